//! New-head wake-ups inside one process: ingress stores something due soon, the shard that serves its
//! partition need not sleep until its next look. A wake-up only shortens a wait; the bounded look alone
//! delivers everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::{Partition, Partitions, UnixMs};

/// One bell per timer shard. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Wake(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bells: Vec<Bell>,
    /// Per partition, the earliest due time stored since its shard last asked.
    earliest: Vec<AtomicI64>,
}

#[derive(Debug)]
struct Bell {
    /// The earliest due time stored since the shard last looked.
    earliest: AtomicI64,
    rung: Notify,
}

impl Wake {
    pub(in crate::store) fn new(shards: usize, partitions: Partitions) -> Self {
        let bell = || Bell { earliest: AtomicI64::new(i64::MAX), rung: Notify::new() };
        Self(Arc::new(Inner {
            bells: (0..shards.max(1)).map(|_| bell()).collect(),
            earliest: partitions.all().map(|_| AtomicI64::new(i64::MAX)).collect(),
        }))
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.0.bells.len()
    }

    /// Which shard serves a partition.
    pub fn shard_of(&self, p: Partition) -> usize {
        usize::from(p.0) % self.0.bells.len()
    }

    pub(in crate::store) fn stored(&self, p: Partition, due: UnixMs) {
        if let Some(earliest) = self.0.earliest.get(usize::from(p.0)) {
            earliest.fetch_min(due.0, Ordering::AcqRel);
        }
        let bell = &self.0.bells[self.shard_of(p)];
        if bell.earliest.fetch_min(due.0, Ordering::AcqRel) > due.0 {
            bell.rung.notify_one();
        }
    }

    /// The earliest due time stored since the last call; `None` if nothing was.
    pub fn take(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0.bells[shard].earliest.swap(i64::MAX, Ordering::AcqRel);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// The earliest due time stored since the last `take`, left standing.
    pub fn peek(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0.bells[shard].earliest.load(Ordering::Acquire);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// The earliest due time that this process stored in a partition since the last call, if it is not later than
    /// `until`. What is later is forgotten: whoever serves the partition sees it in time.
    pub fn soon(&self, p: Partition, until: UnixMs) -> Option<UnixMs> {
        let due = self.0.earliest.get(usize::from(p.0))?.swap(i64::MAX, Ordering::AcqRel);
        (due <= until.0).then_some(UnixMs(due))
    }

    /// Waits until something earlier than all before was stored. Cancel-safe.
    pub async fn rung(&self, shard: usize) {
        self.0.bells[shard].rung.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_says_once_what_is_due_soon_and_forgets_what_is_not() {
        let wake = Wake::new(2, Partitions::new(4).expect("some"));
        wake.stored(Partition(3), UnixMs(500));
        wake.stored(Partition(3), UnixMs(300));
        assert_eq!(wake.peek(1), Some(UnixMs(300)));
        assert_eq!(wake.soon(Partition(3), UnixMs(300)), Some(UnixMs(300)));
        assert_eq!(wake.soon(Partition(3), UnixMs(900)), None, "it was said");
        wake.stored(Partition(1), UnixMs(500));
        assert_eq!(wake.soon(Partition(1), UnixMs(499)), None);
        assert_eq!(wake.soon(Partition(1), UnixMs(900)), None, "it was forgotten");
        assert_eq!(wake.take(1), Some(UnixMs(300)), "the bell is another matter");
    }
}
