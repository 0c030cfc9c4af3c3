//! Redrive of a dead letter, as `app` provides it: it takes the ingress's rules, which `admin` may not use.

use futures_util::future::BoxFuture;

use crate::domain::{Actor, UnixMs};
use crate::store::{DeadId, StoreError};

/// Makes dead letters due again.
pub trait Redrive: Send + Sync {
    /// Makes a dead letter due again, by the rules of its route as they are now. Waits for the store as long as the store
    /// takes: the caller sets a deadline.
    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        order: RedriveOrder<'a>,
    ) -> BoxFuture<'a, Result<RedriveOutcome, StoreError>>;
}

/// How a dead letter is redriven.
#[derive(Clone, Copy, Debug)]
pub struct RedriveOrder<'a> {
    /// When it is due; a past moment: at once.
    pub due: UnixMs,
    /// Where it goes; `None`: to the target that it had.
    pub target: Option<&'a str>,
    /// Who asks for it, for the trail.
    pub by: &'a Actor,
}

/// Outcome of a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveOutcome {
    /// The message is due again.
    Done,
    /// The dead letter is not there (any more).
    Unknown,
    /// A rule forbids it, for this reason; the dead letter is where it was.
    Refused(String),
}
