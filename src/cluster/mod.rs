//! The cluster: who serves, and what falls to this replica.
//!
//! Replicas beat in one registry in the store and hear of each other in the answer. Each computes the same
//! assignment of partitions ([`assignment`]) from what all of them last said ([`view`]). A replica that was silent
//! for three of its heartbeats counts as dead, one that drains leaves at once, and the others take over. The same
//! beats tell whether the store is the one that it was ([`generation`]) and how far the clocks differ ([`skew`]).
//!
//! Guarantees: none that a message depends on. Two owners of one partition are harmless, because a claim is
//! atomic, and a partition without one is served by anybody once its head is overdue: ownership only spares work.

mod assignment;
pub mod config;
mod heartbeat;
mod owned;
#[cfg(feature = "test-util")]
pub mod simulation;
mod skew;
mod store_identity;
mod view;

pub use config::Config;
pub use heartbeat::{Error, Parts, start};
pub use owned::Owned;
pub use view::Refusal;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::domain::Partitions;

/// This replica's place among the others. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    owned: watch::Receiver<Arc<Owned>>,
    ended: watch::Receiver<Option<Error>>,
    rounds: Arc<Rounds>,
    replicas: Arc<AtomicUsize>,
}

/// When each timer shard last finished a claim round, monotonic microseconds.
#[derive(Debug)]
struct Rounds(Vec<AtomicI64>);

impl Cluster {
    /// One replica that knows of no other and serves everything: for what runs a timer without a registry.
    pub fn alone(partitions: Partitions, routes: impl IntoIterator<Item = String>) -> Self {
        let (_, owned) = watch::channel(Arc::new(Owned::everything(partitions, routes)));
        let (_, ended) = watch::channel(None);
        Self { owned, ended, rounds: Arc::new(Rounds::new(0, 0)), replicas: Arc::new(AtomicUsize::new(1)) }
    }

    /// How many replicas live, this one included.
    pub fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed).max(1)
    }

    /// What this replica is to serve now.
    pub fn owned(&self) -> Arc<Owned> {
        self.owned.borrow().clone()
    }

    /// The same; what changes from here on ends a wait for [`Self::moved`].
    pub fn owned_for_now(&mut self) -> Arc<Owned> {
        self.owned.borrow_and_update().clone()
    }

    /// Waits until this replica is to serve something else than it was told last. Cancel-safe.
    pub async fn moved(&mut self) {
        if self.owned.changed().await.is_err() {
            // Nobody will tell any more: there are no others, or it has left them.
            std::future::pending::<()>().await;
        }
    }

    /// Notes that a timer shard has finished a claim round: one whose rounds end no more owns nothing for long.
    pub fn round(&self, shard: usize, now_us: i64) {
        if let Some(round) = self.rounds.0.get(shard) {
            round.store(now_us, Ordering::Relaxed);
        }
    }

    /// Waits until this replica may not go on: why. Cancel-safe.
    pub async fn refused(&mut self) -> Error {
        match self.ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // It has left the others on its way out.
            _ => std::future::pending().await,
        }
    }
}

impl Rounds {
    fn new(shards: usize, now_us: i64) -> Self {
        Self((0..shards).map(|_| AtomicI64::new(now_us)).collect())
    }

    /// How long ago each was, ms.
    fn ages_ms(&self, now_us: i64) -> Vec<i64> {
        self.0.iter().map(|round| (now_us - round.load(Ordering::Relaxed)).max(0) / 1000).collect()
    }
}
