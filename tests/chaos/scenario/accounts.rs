//! The end of a cycle: the drain, the accounts, what is left.

use std::time::Duration;

use anyhow::Context;

use super::{LOOKAHEAD_MS, Scenario};
use crate::outcome::Outcome;
use crate::store;
use crate::support::accounting::{Id, Report, Stamp};
use crate::support::{Relay, eventually};

/// Nothing more may arrive for this long before a drain is over.
const QUIET: Duration = Duration::from_secs(2);
/// A drain that goes on takes so many times a row's patience at most.
const LONGEST: u32 = 4;
/// Within this an audit looks at every partition, with time to spare.
const AUDIT: Duration = Duration::from_secs(80);
/// A message later than this after its due time counts as late.
const LATE_MS: i64 = 1000;

impl Scenario {
    /// Messages lost by a fault that takes just those: as many as the row allows, or it is a failure.
    pub(crate) fn expect_lost(&mut self, held: bool, why: &str) {
        let outcome = &mut self.outcome;
        let (lost, others): (Vec<_>, _) = outcome
            .faults
            .drain(..)
            .partition(|fault| fault.starts_with("lost"));
        outcome.faults = others;
        if held {
            outcome.taken = std::mem::take(&mut outcome.lost);
            outcome.notes.push(format!(
                "{} messages lost by the fault itself: {why}",
                outcome.taken
            ));
        } else {
            outcome
                .faults
                .extend(lost.into_iter().map(|line| format!("{line}; {why}")));
        }
    }

    /// Ends the load, drains, counts. All replicas must be up.
    pub(crate) async fn account(&mut self) -> Report {
        self.quiet().await;
        self.drain().await;
        eventually("the dead letters are listed", async || {
            self.park_dead_letters().await
        })
        .await;
        let report = self.run.report();
        let mut silences = self.run.silences();
        silences.extend(self.relays.iter().flat_map(Relay::silences));
        // What the fault itself has taken is late for ever, and others judge that.
        if report.lost.is_empty() {
            let told = silences
                .iter()
                .map(|what| format!("something waited, and nothing said why: {what}"));
            self.outcome.missed.extend(told);
        }
        let explained = self.total("postdate_redelivered_total", &[]).await as usize;
        let outcome = &mut self.outcome;
        outcome.messages = report.attempts;
        outcome.lost = report.lost.len();
        outcome.early = report.early.len();
        outcome.wrong = report.misrouted.len()
            + report.corrupt.len()
            + report.unexpected.len()
            + report.aborted.len()
            + report.both.len();
        outcome.duplicates = report.duplicates();
        outcome.unexplained = outcome.duplicates.saturating_sub(explained);
        outcome.faults.extend(report.faults(explained));
        let mut causes = Vec::new();
        for cause in [
            "claim_expired",
            "confirm_unknown",
            "source_reread",
            "source_redelivery",
            "store_rollback",
        ] {
            let count = self
                .total("postdate_redelivered_total", &[("cause", cause)])
                .await;
            if count > 0.0 {
                causes.push(format!("{cause} {count}"));
            }
        }
        if !causes.is_empty() {
            self.note(format!(
                "possible repeats that the relay counted: {}",
                causes.join(", ")
            ));
        }
        if !report.lost.is_empty() {
            self.tell_where(&report).await;
        }
        self.times();
        self.look_for_leftovers().await;
        report
    }

    /// Notes by which ways what is lost came, and what the replicas know of and the sources still hold.
    async fn tell_where(&mut self, report: &Report) {
        let pending = self.total("postdate_pending", &[]).await / self.relays.len() as f64;
        let in_flight = self.total("postdate_in_flight", &[]).await;
        self.note(format!(
            "the replicas know of {pending} messages that wait and hold {in_flight}"
        ));
        for way in self.ways.clone() {
            let label = way.label();
            let targets: Vec<_> = {
                let ledger = self.run.ledger();
                report
                    .lost
                    .iter()
                    .filter_map(|id| ledger.due_of(id, &label))
                    .collect()
            };
            let (Some(first), Some(last)) = (targets.iter().min(), targets.iter().max()) else {
                continue;
            };
            let struck = self.injected_ms();
            let first = first - struck;
            let last = last - struck;
            let behind = if way.from_kafka {
                self.kafka.get().server.lag(&way.source, &way.source)
            } else {
                Ok(u64::from(
                    self.rabbitmq.get().server.queue_len(&way.source).await,
                ))
            };
            self.note(format!(
                "{}: {} lost, due from {first} to {last} ms after the fault; its source still holds {behind:?}",
                way.name,
                targets.len()
            ));
        }
        self.tell_queues().await;
    }

    /// Notes what RabbitMQ's queues still hold: also what a consumer was lent and has not acknowledged.
    async fn tell_queues(&mut self) {
        let columns = [
            "name",
            "messages_ready",
            "messages_unacknowledged",
            "consumers",
        ];
        let asked = [&["-q", "list_queues"], &columns[..]].concat();
        let queues = self.rabbitmq.get().server.ctl(&asked).await;
        let is_ours = |line: &&str| {
            let name = line.split_whitespace().next().unwrap_or_default();
            self.ways
                .iter()
                .any(|way| way.source == name || way.target == name)
        };
        let ours: Vec<_> = queues.lines().filter(is_ours).collect();
        self.note(format!(
            "queues ({}): {}",
            columns.join(", "),
            ours.join("; ")
        ));
    }

    /// Notes the dead letters that have a name: ours are named by their ids.
    async fn park_dead_letters(&self) -> anyhow::Result<()> {
        let relay = self.relays.first().context("a replica")?;
        let mut cursor = String::new();
        loop {
            let (status, page) = relay
                .get(&format!("/api/v1/dead?limit=100{cursor}"))
                .await?;
            anyhow::ensure!(status == 200, "{status}: {page}");
            let page: serde_json::Value = serde_json::from_str(&page)?;
            for letter in page["items"].as_array().context("a page has items")? {
                let name = letter["id"].as_str().unwrap_or_default();
                if let Some(id) = Id::read(name).filter(|id| self.run.ledger().has_attempt(id)) {
                    self.run.ledger().park(id);
                }
            }
            let Some(next) = page["next"].as_str() else {
                return Ok(());
            };
            cursor = format!("&cursor={next}");
        }
    }

    /// Looks for keys that stay in the store when nothing waits: they are wrong, unless the next scrub removes them.
    async fn look_for_leftovers(&mut self) {
        let began = tokio::time::Instant::now();
        let mut first = None;
        loop {
            match store::leftovers(&self.stores, &self.prefix).await {
                Ok(left) if left.is_empty() => break,
                Ok(left) if began.elapsed() < AUDIT && self.scale.mutant.is_none() => {
                    first = first.or(Some(left));
                }
                Ok(left) => {
                    self.outcome.wrong += left.len();
                    let some = left[..left.len().min(5)].join(", ");
                    self.outcome
                        .faults
                        .push(format!("left in the store: {} keys ({some})", left.len()));
                    return;
                }
                Err(error) => {
                    self.outcome
                        .faults
                        .push(format!("the store could not be looked through: {error}"));
                    return;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if let Some(left) = first {
            self.note(format!(
                "the audit took away {left:?} within {:?}",
                began.elapsed()
            ));
        }
    }

    /// Gives back what the cycle used, and what came of it.
    pub(crate) async fn close(self) -> Outcome {
        if !self.outcome.faults.is_empty() {
            for (number, relay) in self.relays.iter().enumerate() {
                let log = relay.log();
                let said = log
                    .lines()
                    .filter(|line| line.contains("WARN") || line.contains("ERROR"));
                let said: Vec<_> = said.collect();
                println!(
                    "--- warnings of replica {number}:\n{}",
                    said[said.len().saturating_sub(30)..].join("\n")
                );
            }
        }
        drop(self.relays);
        // Its collectors would ask for topics that are gone.
        drop(self.run);
        let kafka = &self.kafka.get().server;
        let ways = &self.ways;
        let topics = ways.iter().flat_map(|way| {
            [
                way.from_kafka.then_some(way.source.as_str()),
                way.to_kafka.then_some(way.target.as_str()),
            ]
        });
        let topics: Vec<_> = topics.flatten().collect();
        // They are only in the way; that they are gone need not be waited for.
        if let Err(error) = kafka
            .admin()
            .delete_topics(&topics, &rdkafka::admin::AdminOptions::new())
            .await
        {
            println!("topics are left behind: {error}");
        }
        self.outcome
    }

    /// Waits until all that was confirmed is found, no replica holds or knows of anything, and nothing more
    /// arrives.
    async fn drain(&self) {
        let began = tokio::time::Instant::now();
        let mut since = began;
        let mut progress = began;
        let mut sampled = began;
        let mut delivered = self.run.ledger().delivered();
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let (now, missing, is_noted) = {
                let ledger = self.run.ledger();
                (
                    ledger.delivered(),
                    ledger.missing().len(),
                    ledger.reads_all(),
                )
            };
            if missing > 0
                && let Err(error) = self.park_dead_letters().await
            {
                println!("the dead letters cannot be looked at yet: {error:#}");
            }
            let busy = now != delivered || missing > 0 || !self.is_empty().await;
            // Only now: what was asked may have taken longer to answer than the quiet that is waited for.
            let at = tokio::time::Instant::now();
            if now != delivered {
                (delivered, progress) = (now, at);
            }
            if !is_noted {
                progress += at - sampled;
            }
            sampled = at;
            if busy {
                since = at;
            }
            let patience = self.setup.patience;
            if at - since >= QUIET || at - progress >= patience || at - began >= LONGEST * patience
            {
                return;
            }
        }
    }

    async fn is_empty(&self) -> bool {
        for relay in &self.relays {
            let Ok(metrics) = relay.metrics().await else {
                return false;
            };
            if metrics.sum("postdate_pending", &[]) + metrics.sum("postdate_in_flight", &[]) > 0.5 {
                return false;
            }
        }
        true
    }

    fn times(&mut self) {
        let arrivals = self.run.ledger().arrivals();
        let mut takeover = None;
        let mut recovery = None;
        for (n, injection) in self.injections.iter().enumerate() {
            let struck = injection.at_ms;
            let taken = |stamp: &Stamp| {
                stamp.id.seq < injection.stored && stamp.due_ms <= struck + LOOKAHEAD_MS
            };
            let waited = arrivals
                .iter()
                .filter(|(stamp, came)| taken(stamp) && *came > struck);
            takeover = takeover.max(
                waited
                    .map(|(stamp, came)| came - struck.max(stamp.due_ms))
                    .max(),
            );
            let Some(healed) = injection.healed_ms else {
                continue;
            };
            let next = self
                .injections
                .get(n + 1)
                .map_or(i64::MAX, |next| next.at_ms);
            let late = arrivals.iter().filter(|(stamp, came)| {
                *came > healed && *came < next && came - stamp.due_ms > LATE_MS
            });
            recovery = recovery.max(Some(late.map(|(_, came)| came - healed).max().unwrap_or(0)));
        }
        (self.outcome.takeover_ms, self.outcome.recovery_ms) = (takeover, recovery);
    }
}
