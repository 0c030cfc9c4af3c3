//! New-head wake-ups inside one process: ingress stores something due soon, the shard that serves its
//! partition need not sleep until its next look. A wake-up only shortens a wait; the bounded look alone
//! delivers everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::{Partition, UnixMs};

/// One bell per timer shard. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Wake(Arc<Vec<Bell>>);

#[derive(Debug)]
struct Bell {
    /// The earliest due time stored since the shard last looked.
    earliest: AtomicI64,
    rung: Notify,
}

impl Wake {
    pub(super) fn new(shards: usize) -> Self {
        let bell = || Bell { earliest: AtomicI64::new(i64::MAX), rung: Notify::new() };
        Self(Arc::new((0..shards.max(1)).map(|_| bell()).collect()))
    }

    /// Which shard serves a partition.
    pub fn shard_of(&self, p: Partition) -> usize {
        usize::from(p.0) % self.0.len()
    }

    pub(super) fn stored(&self, p: Partition, due: UnixMs) {
        let bell = &self.0[self.shard_of(p)];
        if bell.earliest.fetch_min(due.0, Ordering::AcqRel) > due.0 {
            bell.rung.notify_one();
        }
    }

    /// The earliest due time stored since the last call; `None` if nothing was.
    pub fn take(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0[shard].earliest.swap(i64::MAX, Ordering::AcqRel);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// The earliest due time stored since the last `take`, left standing.
    pub fn peek(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0[shard].earliest.load(Ordering::Acquire);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// Waits until something earlier than all before was stored. Cancel-safe.
    pub async fn rung(&self, shard: usize) {
        self.0[shard].rung.notified().await;
    }
}
