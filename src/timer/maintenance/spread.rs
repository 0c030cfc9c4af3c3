//! Spreads the growing bundles whose spans are near, see [`Store::spread`](crate::store::Store::spread).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tracing::{debug, warn};

use super::{MaintenanceTask, maintained};
use crate::domain::RouteName;
use crate::health::Overdue;
use crate::store::DueToSpread;
use crate::timer::Shard;

/// One round in this many covers all partitions of the shard, because their owner may hang.
const FULL_ROUND_EVERY: u64 = 10;
/// Partitions and routes that are spread at once.
const AT_ONCE: usize = 8;
/// Longest time for one route in one partition. The next round goes on.
const TIME: Duration = Duration::from_secs(10);

pub(super) struct Spreader {
    shard: Arc<Shard>,
    rounds: u64,
    failing: bool,
}

impl MaintenanceTask for Spreader {
    async fn round(&mut self) {
        self.rounds += 1;
        let shard = self.shard.clone();
        let partitions = if self.rounds.is_multiple_of(FULL_ROUND_EVERY) {
            shard.partitions.clone()
        } else {
            maintained(&shard)
        };
        let routes: Vec<RouteName> = shard
            .routes
            .values()
            .map(|served| served.route.name.clone())
            .collect();
        let due = shard.store.due_to_spread(&partitions, &routes).await;
        self.report_late(&due);
        let spreads = stream::iter(due).map(|due| {
            let shard = shard.clone();
            async move {
                let spread = shard.store.spread(&due);
                let spread = tokio::time::timeout(TIME, spread).await;
                (due, spread)
            }
        });
        let mut spreads = std::pin::pin!(spreads.buffer_unordered(AT_ONCE));
        let mut failed = None;
        while let Some((due, spread)) = spreads.next().await {
            let (route, partition) = (&due.route, due.partition.0);
            match spread {
                Ok(Ok(bundles)) => debug!(route, partition, bundles, "growing bundles are spread"),
                Ok(Err(why)) => failed = Some(why.to_string()),
                Err(_) => failed = Some(format!("no end within {TIME:?}")),
            }
        }
        if let Some(why) = failed.as_ref().filter(|_| !self.failing) {
            warn!(shard = shard.number, error = %why, "spreading growing bundles failed; retrying");
        }
        self.failing = failed.is_some();
    }
}

impl Spreader {
    pub(super) fn new(shard: Arc<Shard>) -> Self {
        Self {
            shard,
            rounds: 0,
            failing: false,
        }
    }

    /// Reports messages that may be overdue in bundles that nobody has spread in time.
    fn report_late(&self, due: &[DueToSpread]) {
        let now = self.shard.store.clock().now();
        let mut oldest: BTreeMap<String, Overdue> = BTreeMap::new();
        for due in due.iter().filter(|due| due.first_due <= now) {
            let asked = due.first_due;
            let first = oldest
                .entry(due.route.clone())
                .or_insert(Overdue { asked, seen: now });
            first.asked = first.asked.min(asked);
        }
        self.shard.store.report_unspread(self.shard.number, oldest);
    }
}
