//! The keeper: returns the claims of dead holders, and audits what no transition makes.
//!
//! Both go partition by partition, bounded, beside the flow and never in its way: a sweep of all of a shard's
//! partitions each second, an audit of each about once a minute. After Redis's clock has stepped, the store has gone
//! back or was away, nothing expires for one claim's time: deadlines written by the old clock mean nothing under the
//! new one, and who could not extend its claims may well live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error, info};

use super::{Served, Shard};
use crate::domain::{Partition, UnixMs};
use crate::lifecycle::tick;
use crate::mutants::{self, Mutant};
use crate::store::{AuditReport, StoreError};
use crate::telemetry::Metrics;

/// Claims of dead holders are looked for this often.
const SWEEP: Duration = Duration::from_secs(1);
/// Of the partitions that fall to others too, once in so many sweeps: their keeper may hang. Then also what does not
/// press: see [`Store::sweep`](crate::store::Store::sweep).
const AROUND: u64 = 10;
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
        changed: shard.store.changed(),
        hold_until_us: 0,
        away: BTreeMap::new(),
        audited: 0,
        due_us: 0,
        hurt: None,
        expired: 0,
        sweeps: 0,
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
            () = tick(SWEEP) => {}
        }
    }
}

struct Keeper {
    shard: Arc<Shard>,
    /// Steps of Redis's clock seen so far.
    steps: u64,
    /// When the store was last found to have gone back.
    changed: UnixMs,
    /// Nothing expires before this.
    hold_until_us: i64,
    /// Partitions that were away, and until when nothing of them expires.
    away: BTreeMap<Partition, i64>,
    /// The place of the partition audited last.
    audited: usize,
    /// The place of the partition whose dead letters were looked through last.
    expired: usize,
    /// When the next audit is due.
    due_us: i64,
    /// A partition that refused to be swept: it is audited at once.
    hurt: Option<Partition>,
    sweeps: u64,
}

impl Keeper {
    async fn keep(&mut self) {
        if self.shard.store.is_strange() {
            return;
        }
        let kept = tokio::time::timeout(DEADLINE, async {
            // One partition's damage, or one node of a cluster that is away, must not cost the others their round.
            let swept = self.sweep().await;
            let expired = self.expire().await;
            self.audit().await.and(expired).and(swept)
        });
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                debug!(shard = self.shard.number, error = %why, "cannot sweep or audit; trying on");
            }
            Err(_) => {
                self.hold();
                debug!(shard = self.shard.number, "no answer to a sweep or an audit in time; trying on");
            }
        }
    }

    /// The partitions that it looks after now.
    fn kept(&self) -> Vec<Partition> {
        let owned = self.shard.cluster.owned();
        self.shard.partitions.iter().copied().filter(|&p| owned.keeps(p)).collect()
    }

    /// Deadlines that were written by another clock, or while nobody could extend them, mean nothing.
    fn hold(&mut self) {
        self.hold_until_us = self.shard.mono_us() + self.shard.lease_us();
    }

    async fn sweep(&mut self) -> Result<(), StoreError> {
        self.sweeps += 1;
        if mutants::is(Mutant::SweepAtStartOnly) && self.sweeps > 1 {
            return Ok(());
        }
        let around = self.sweeps.is_multiple_of(AROUND);
        let swept = if around { self.shard.partitions.clone() } else { self.kept() };
        let shard = &self.shard;
        let (steps, changed) = (shard.store.clock().steps(), shard.store.changed());
        if (steps, changed) != (self.steps, self.changed) {
            (self.steps, self.changed) = (steps, changed);
            info!(
                shard = shard.number,
                "the clock of redis stepped, or the store went back; no claim expires for one claim's time"
            );
            self.hold();
        }
        let shard = &self.shard;
        let now_us = shard.mono_us();
        self.away.retain(|_, until_us| *until_us > now_us);
        let held = swept.iter().copied();
        let held = held.filter(|p| now_us < self.hold_until_us || self.away.contains_key(p)).collect();
        let mut failed = None;
        // Deadlines that another clock wrote may be far ahead.
        let thorough = around || now_us < self.hold_until_us;
        for (p, swept) in shard.store.sweep(&swept, shard.lease_ms(), &held, thorough).await {
            match swept {
                Ok(swept) if swept.expired + swept.clamped > 0 => {
                    let (expired, clamped) = (swept.expired, swept.clamped);
                    debug!(partition = p.0, expired, clamped, "claims came back");
                }
                Ok(_) => {}
                Err(why) => {
                    if matches!(why, StoreError::Damaged(_)) {
                        self.hurt.get_or_insert(p);
                    }
                    self.away.insert(p, now_us + shard.lease_us());
                    failed = Some(why);
                }
            }
        }
        failed.map_or(Ok(()), Err)
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
        let kept = self.kept();
        for _ in 0..kept.len().div_ceil(EXPIRE_ROUND) {
            self.expired = (self.expired + 1) % kept.len();
            let p = kept[self.expired];
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

    /// The audit of a partition that refused to be swept, and of the one whose turn has come.
    async fn audit(&mut self) -> Result<(), StoreError> {
        let partitions = self.kept();
        let mut next: Vec<Partition> = self.hurt.take().into_iter().collect();
        if !partitions.is_empty() && self.shard.mono_us() >= self.due_us {
            self.audited = (self.audited + 1) % partitions.len();
            self.due_us = self.shard.mono_us() + AUDIT_ROUND.as_micros() as i64 / partitions.len() as i64;
            next.push(partitions[self.audited]);
        }
        for p in next {
            let report = self.shard.store.audit(p).await?;
            if !report.is_clean() {
                tell(&self.shard.metrics, p, &report);
            }
        }
        Ok(())
    }
}

fn tell(metrics: &Metrics, p: Partition, report: &AuditReport) {
    let counts = report.counts.unwrap_or(0);
    for (what, found) in [
        ("mended", (report.indexes + report.leftovers + counts) as usize),
        ("restored", report.restored.len() + report.dead_restored.len()),
        ("lost", report.lost.len() + report.dead_lost.len()),
        ("unreadable", report.unreadable.len()),
        ("quarantined", report.quarantined.len()),
    ] {
        metrics.store_damage(what, found as u64);
    }
    error!(
        partition = p.0,
        lost = ?report.lost,
        restored = ?report.restored,
        indexes = report.indexes,
        leftovers = report.leftovers,
        counts,
        quarantined = ?report.quarantined,
        unreadable = ?report.unreadable,
        dead_lost = ?report.dead_lost,
        dead_restored = ?report.dead_restored,
        "the store was damaged; what could be mended is mended"
    );
}
