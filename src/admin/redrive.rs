//! Redrive of a dead letter, as `app` provides it: it takes the ingress's rules, which `admin` may not use.

use futures_util::future::BoxFuture;

use crate::store::{DeadId, StoreError};

/// Makes dead letters due again.
pub trait Redrive: Send + Sync {
    /// Makes a dead letter due now, by the rules of its route as they are now. It goes to `target`, or without one to
    /// the target that it had. `by` says who asks for it, for the trail. Waits for the store as long as the store takes:
    /// the caller sets a deadline.
    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        target: Option<&'a str>,
        by: &'a str,
    ) -> BoxFuture<'a, Result<RedriveOutcome, StoreError>>;
}

/// Outcome of a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveOutcome {
    /// The message is due now.
    Done,
    /// The dead letter is not there (any more).
    Unknown,
    /// A rule forbids it, for this reason; the dead letter is where it was.
    Refused(String),
}
