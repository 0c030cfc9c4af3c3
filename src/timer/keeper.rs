//! The keeper: returns the claims of dead holders, and audits what no transition makes.
//!
//! Both go partition by partition, bounded, beside the flow and never in its way: a sweep of all of a shard's
//! partitions each second, an audit of each about once a minute. After Redis's clock has stepped nothing
//! expires for one claim's time: deadlines written by the old clock mean nothing under the new one.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error, info};

use super::{Served, Shard};
use crate::domain::Partition;
use crate::store::StoreError;

/// Claims of dead holders are looked for this often.
const SWEEP: Duration = Duration::from_secs(1);
/// One round of audits over all partitions of a shard.
const AUDIT_ROUND: Duration = Duration::from_secs(60);
/// Seconds of one round of looks for dead letters that are too old, and most steps of one look.
const EXPIRE_ROUND: usize = 10;
const EXPIRE_STEPS: usize = 10;
/// Longest wait for one sweep or audit; then the next second tries again.
const DEADLINE: Duration = Duration::from_secs(10);

/// Runs until draining begins.
pub(super) async fn run(shard: Arc<Shard>) {
    let mut keeper = Keeper {
        steps: shard.store.clock().steps(),
        hold_until_us: 0,
        audited: 0,
        due_us: 0,
        expired: 0,
        shard,
    };
    loop {
        let shard = keeper.shard.clone();
        tokio::select! {
            () = shard.shutdown.draining() => return,
            () = keeper.keep() => {}
        }
        tokio::select! {
            () = shard.shutdown.draining() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

struct Keeper {
    shard: Arc<Shard>,
    /// Steps of Redis's clock seen so far.
    steps: u64,
    /// Nothing expires before this.
    hold_until_us: i64,
    /// The place of the partition audited last.
    audited: usize,
    /// The place of the partition whose dead letters were looked through last.
    expired: usize,
    /// When the next audit is due.
    due_us: i64,
}

impl Keeper {
    async fn keep(&mut self) {
        let kept = tokio::time::timeout(DEADLINE, async {
            self.sweep().await?;
            self.expire().await?;
            self.audit().await
        });
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                debug!(shard = self.shard.number, error = %why, "cannot sweep or audit; trying on");
            }
            Err(_) => {
                debug!(shard = self.shard.number, "no answer to a sweep or an audit in time; trying on");
            }
        }
    }

    async fn sweep(&mut self) -> Result<(), StoreError> {
        let shard = &self.shard;
        let steps = shard.store.clock().steps();
        if steps != self.steps {
            self.steps = steps;
            self.hold_until_us = shard.mono_us() + shard.lease_us();
            info!(shard = shard.number, "the clock of redis stepped; no claim expires for one claim's time");
        }
        let hold = shard.mono_us() < self.hold_until_us;
        for &p in &shard.partitions {
            let swept = shard.store.sweep(p, shard.lease_ms(), hold).await?;
            if swept.expired + swept.clamped > 0 {
                debug!(partition = p.0, expired = swept.expired, clamped = swept.clamped, "claims came back");
            }
        }
        Ok(())
    }

    /// Drops dead letters that were kept for as long as they are to be, in the next few partitions.
    async fn expire(&mut self) -> Result<(), StoreError> {
        let shard = &self.shard;
        let now = shard.store.clock().now();
        let keep = |served: &Arc<Served>| {
            let route = &served.route;
            (route.name.clone(), now.plus(-route.policy.dead_letters.keep_ms))
        };
        let routes: Vec<_> = shard.routes.values().map(keep).collect();
        for _ in 0..shard.partitions.len().div_ceil(EXPIRE_ROUND) {
            self.expired = (self.expired + 1) % shard.partitions.len();
            let p = shard.partitions[self.expired];
            for _ in 0..EXPIRE_STEPS {
                let old = shard.store.dead_before(p, &routes).await?;
                if old.is_empty() {
                    break;
                }
                for (id, dropped) in old.iter().zip(shard.store.drop_dead(&old).await?) {
                    if let Some(served) = shard.routes.get(id.route()).filter(|_| dropped) {
                        served.metrics.dropped("dead_letters_keep", 1);
                    }
                }
                info!(
                    partition = p.0,
                    letters = old.len(),
                    "dropped dead letters older than dead_letters.keep"
                );
            }
        }
        Ok(())
    }

    /// One partition's audit when its turn has come.
    async fn audit(&mut self) -> Result<(), StoreError> {
        let partitions = &self.shard.partitions;
        if partitions.is_empty() || self.shard.mono_us() < self.due_us {
            return Ok(());
        }
        self.audited = (self.audited + 1) % partitions.len();
        self.due_us = self.shard.mono_us() + AUDIT_ROUND.as_micros() as i64 / partitions.len() as i64;
        let p = partitions[self.audited];
        let report = self.shard.store.audit(p).await?;
        if !report.is_clean() {
            tell(p, &report);
        }
        Ok(())
    }
}

fn tell(p: Partition, report: &crate::store::AuditReport) {
    error!(
        partition = p.0,
        lost = ?report.lost,
        restored = ?report.restored,
        indexes = report.indexes,
        leftovers = report.leftovers,
        counts = report.counts.unwrap_or(0),
        "the store was damaged; what could be mended is mended"
    );
}
