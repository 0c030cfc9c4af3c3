//! Wake-ups inside one process. When ingress stores something due soon, the shard that serves its partition
//! need not wait for its next poll. A wake-up only shortens a wait: the regular poll alone delivers everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::domain::{Partition, Partitions, UnixMs};

/// One bell for each timer shard. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WakeUps(Arc<WakeInner>);

#[derive(Debug)]
struct WakeInner {
    bells: Vec<ShardBell>,
    /// Per partition, the earliest due time stored since its shard last asked.
    earliest: Vec<AtomicI64>,
}

#[derive(Debug)]
struct ShardBell {
    /// The earliest due time stored since the shard last looked.
    earliest: AtomicI64,
    rung: Notify,
}

impl WakeUps {
    pub(in crate::store) fn new(shards: usize, partitions: Partitions) -> Self {
        let bells = (0..shards.max(1)).map(|_| ShardBell {
            earliest: AtomicI64::new(i64::MAX),
            rung: Notify::new(),
        });
        Self(Arc::new(WakeInner {
            bells: bells.collect(),
            earliest: partitions.all().map(|_| AtomicI64::new(i64::MAX)).collect(),
        }))
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.0.bells.len()
    }

    /// The shard that serves a partition.
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

    /// Takes the earliest due time stored since the last call. `None` if nothing was stored.
    pub fn take(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0.bells[shard]
            .earliest
            .swap(i64::MAX, Ordering::AcqRel);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// The earliest due time stored since the last `take`, without taking it.
    pub fn peek(&self, shard: usize) -> Option<UnixMs> {
        let due = self.0.bells[shard].earliest.load(Ordering::Acquire);
        (due != i64::MAX).then_some(UnixMs(due))
    }

    /// Takes the earliest due time that this process stored in a partition since the last call, if it is not
    /// later than `until`. A later one is forgotten: the server of the partition sees it in time.
    pub fn soon(&self, p: Partition, until: UnixMs) -> Option<UnixMs> {
        let due = self
            .0
            .earliest
            .get(usize::from(p.0))?
            .swap(i64::MAX, Ordering::AcqRel);
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
        let wake = WakeUps::new(2, Partitions::new(4).expect("some"));
        wake.stored(Partition(3), UnixMs(500));
        wake.stored(Partition(3), UnixMs(300));
        assert_eq!(wake.peek(1), Some(UnixMs(300)));
        assert_eq!(wake.soon(Partition(3), UnixMs(300)), Some(UnixMs(300)));
        assert_eq!(wake.soon(Partition(3), UnixMs(900)), None, "it was said");
        wake.stored(Partition(1), UnixMs(500));
        assert_eq!(wake.soon(Partition(1), UnixMs(499)), None);
        assert_eq!(
            wake.soon(Partition(1), UnixMs(900)),
            None,
            "it was forgotten"
        );
        assert_eq!(
            wake.take(1),
            Some(UnixMs(300)),
            "the bell is another matter"
        );
    }
}
