//! Drops dead letters that are older than `dead_letters.keep`.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use super::{MaintenanceTask, maintained};
use crate::domain::{Actor, Partition, RouteName, UnixMs};
use crate::store::StoreError;
use crate::timer::Shard;

/// Seconds in which a round visits all partitions of a shard, and steps that one visit takes at most.
const ROUND_SECONDS: usize = 10;
const MAX_STEPS: usize = 10;
/// Longest time for one partition. The next round continues.
const PARTITION_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct DeadLetterDropper {
    shard: Arc<Shard>,
    /// Index of the partition that was visited last.
    place: usize,
}

impl MaintenanceTask for DeadLetterDropper {
    async fn round(&mut self) {
        self.expire().await;
    }
}

impl DeadLetterDropper {
    pub(super) fn new(shard: Arc<Shard>) -> Self {
        Self { shard, place: 0 }
    }

    /// Visits the next few partitions.
    async fn expire(&mut self) {
        let shard = self.shard.clone();
        let now = shard.store.clock().now();
        let mut routes = Vec::with_capacity(shard.routes.len());
        for served in shard.routes.values() {
            let route = &served.route;
            let kept_from = now.plus(-route.policy.dead_letters.keep_ms);
            routes.push((route.name.clone(), kept_from));
        }
        let partitions = maintained(&shard);
        for _ in 0..partitions.len().div_ceil(ROUND_SECONDS) {
            self.place = (self.place + 1) % partitions.len();
            let p = partitions[self.place];
            match tokio::time::timeout(PARTITION_TIMEOUT, drop_old(&shard, p, &routes)).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    debug!(partition = p.0, error = %why, "dropping old dead letters failed; retrying");
                }
                Err(_) => debug!(
                    partition = p.0,
                    "dropping old dead letters timed out; retrying"
                ),
            }
        }
    }
}

async fn drop_old(
    shard: &Shard,
    p: Partition,
    routes: &[(RouteName, UnixMs)],
) -> Result<(), StoreError> {
    let rule = Actor::new("dead_letters.keep");
    for _ in 0..MAX_STEPS {
        let old = shard.store.dead_before(p, routes).await?;
        if old.is_empty() {
            break;
        }
        for (id, dropped) in old.iter().zip(shard.store.drop_dead_by(&old, &rule).await?) {
            if let Some(served) = shard.routes.get(id.route()).filter(|_| dropped) {
                served.metrics.dropped("dead_letters_keep", 1);
            }
        }
        info!(
            partition = p.0,
            dead_letters = old.len(),
            "dropped dead letters older than dead_letters.keep"
        );
    }
    Ok(())
}
