//! Dead letters that were kept for as long as they are to be are dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use super::{Duty, kept};
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::StoreError;
use crate::timer::{Served, Shard};

/// Seconds of one round over all partitions of a shard, and most steps of one look.
const ROUND: usize = 10;
const STEPS: usize = 10;
/// Longest time for one partition; the next round goes on.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct Expirer {
    shard: Arc<Shard>,
    /// The place of the partition that was looked through last.
    place: usize,
}

impl Duty for Expirer {
    async fn round(&mut self) {
        self.expire().await;
    }
}

impl Expirer {
    pub(super) fn new(shard: Arc<Shard>) -> Self {
        Self { shard, place: 0 }
    }

    /// Looks through the next few partitions.
    async fn expire(&mut self) {
        let shard = self.shard.clone();
        let now = shard.store.clock().now();
        let keep = |served: &Arc<Served>| {
            let route = &served.route;
            (route.name.clone(), now.plus(-route.policy.dead_letters.keep_ms))
        };
        let routes: Vec<_> = shard.routes.values().map(keep).collect();
        let kept = kept(&shard);
        for _ in 0..kept.len().div_ceil(ROUND) {
            self.place = (self.place + 1) % kept.len();
            let p = kept[self.place];
            match tokio::time::timeout(DEADLINE, drop_old(&shard, p, &routes)).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    debug!(partition = p.0, error = %why, "cannot drop old dead letters; trying on");
                }
                Err(_) => debug!(partition = p.0, "no answer about old dead letters in time; trying on"),
            }
        }
    }
}

async fn drop_old(shard: &Shard, p: Partition, routes: &[(RouteName, UnixMs)]) -> Result<(), StoreError> {
    for _ in 0..STEPS {
        let old = shard.store.dead_before(p, routes).await?;
        if old.is_empty() {
            break;
        }
        for (id, dropped) in old.iter().zip(shard.store.drop_dead(&old).await?) {
            if let Some(served) = shard.routes.get(id.route()).filter(|_| dropped) {
                served.metrics.dropped("dead_letters_keep", 1);
            }
        }
        info!(partition = p.0, letters = old.len(), "dropped dead letters older than dead_letters.keep");
    }
    Ok(())
}
