//! This replica's membership in the cluster, as the other rooms see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use tokio::sync::watch;

use super::{ClusterError, OwnedPartitions};
use crate::domain::Partitions;

/// This replica's membership in the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(super) owned: watch::Receiver<Arc<OwnedPartitions>>,
    pub(super) ended: watch::Receiver<Option<ClusterError>>,
    pub(super) rounds: Arc<ClaimRounds>,
    pub(super) replicas: Arc<AtomicUsize>,
    pub(super) longest_claim_ms: Arc<AtomicI64>,
}

/// The end of each timer shard's latest claim round, monotonic microseconds.
#[derive(Debug)]
pub(super) struct ClaimRounds(Vec<AtomicI64>);

impl Cluster {
    /// A replica that knows no other and serves these routes in all partitions, for a timer without a registry.
    pub fn alone(partitions: Partitions, routes: impl IntoIterator<Item = String>) -> Self {
        let (_, owned) = watch::channel(Arc::new(OwnedPartitions::everything(partitions, routes)));
        let (_, ended) = watch::channel(None);
        Self {
            owned,
            ended,
            rounds: Arc::new(ClaimRounds::new(0, 0)),
            replicas: Arc::new(AtomicUsize::new(1)),
            longest_claim_ms: Arc::default(),
        }
    }

    /// The number of living replicas, this one included.
    pub fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed).max(1)
    }

    /// The longest `timer.claim` of a replica, ms, the dead whose entries are kept included. 0: none is known.
    pub fn longest_claim_ms(&self) -> u64 {
        self.longest_claim_ms.load(Ordering::Relaxed).max(0) as u64
    }

    /// The partitions that this replica owns now.
    pub fn owned(&self) -> Arc<OwnedPartitions> {
        self.owned.borrow().clone()
    }

    /// Like `owned`, and marks the value as seen. A change after this call ends a wait for [`Self::moved`].
    pub fn owned_for_now(&mut self) -> Arc<OwnedPartitions> {
        self.owned.borrow_and_update().clone()
    }

    /// Waits until the owned partitions change. Cancel-safe.
    pub async fn moved(&mut self) {
        if self.owned.changed().await.is_err() {
            // No change can come any more: there are no others, or this replica has left them.
            std::future::pending::<()>().await;
        }
    }

    /// Notes the end of a timer shard's claim round. A replica with a shard that hangs soon owns nothing.
    pub fn round(&self, shard: usize, now_us: i64) {
        if let Some(round) = self.rounds.0.get(shard) {
            round.store(now_us, Ordering::Relaxed);
        }
    }

    /// Waits until this replica may not go on, and returns the reason. Cancel-safe.
    pub async fn refused(&mut self) -> ClusterError {
        match self
            .ended
            .wait_for(Option::is_some)
            .await
            .map(|why| why.clone())
        {
            Ok(Some(why)) => why,
            // The replica has left the others while draining.
            _ => std::future::pending().await,
        }
    }
}

impl ClaimRounds {
    pub(super) fn new(shards: usize, now_us: i64) -> Self {
        Self((0..shards).map(|_| AtomicI64::new(now_us)).collect())
    }

    /// The age of each shard's latest round, ms.
    pub(super) fn ages_ms(&self, now_us: i64) -> Vec<i64> {
        self.0
            .iter()
            .map(|round| (now_us - round.load(Ordering::Relaxed)).max(0) / 1000)
            .collect()
    }
}
