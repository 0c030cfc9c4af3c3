//! The way to the dead letters, as `app` provides it.

use futures_util::future::BoxFuture;

use crate::domain::{RouteName, UnixMs};
use crate::store::{DeadBody, DeadFilter, DeadId, DeadMark, DeadPage, StoreError};

/// What is asked of the dead letters. Every call may wait for the store: callers have their own deadline.
pub trait Graves: Send + Sync {
    /// See [`Store::dead_page`](crate::store::Store::dead_page).
    fn page<'a>(
        &'a self,
        filter: &'a DeadFilter,
        after: Option<&'a DeadMark>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DeadPage, StoreError>>;

    /// See [`Store::dead_letters`](crate::store::Store::dead_letters).
    fn read<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<Option<DeadBody>>, StoreError>>;

    /// When this became a dead letter; `None` if it is not there.
    fn at<'a>(&'a self, id: &'a DeadId) -> BoxFuture<'a, Result<Option<UnixMs>, StoreError>>;

    /// The dead letters of this message id.
    fn find<'a>(
        &'a self,
        route: &'a RouteName,
        message: &'a str,
    ) -> BoxFuture<'a, Result<Vec<DeadId>, StoreError>>;

    /// Makes one due now, to its own target or to this one, by the route's rules as they are now.
    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        target: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Redriven, StoreError>>;

    /// Drops these for good; whether each was there.
    fn drop_dead<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>>;
}

/// What became of a dead letter that was to be redriven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redriven {
    /// It is due now.
    Done,
    /// It is not there (any more).
    Unknown,
    /// It may not go, for this reason; it is where it was.
    Refused(String),
}
