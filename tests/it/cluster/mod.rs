//! Several relays on one store, with the accounting on: who serves what, who takes over, and what of it costs a
//! message (nothing) or repeats one (only what has a cause).

#![allow(clippy::print_stdout, reason = "shown when the test fails")]

mod clocks;
mod dead;
mod flapping;
mod lost;
mod names;
mod rolling;
mod takeover;
mod versions;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::names::unique;
use crate::support::relay::binary;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually};

/// Partitions of the store, by default.
const PARTITIONS: usize = 64;

/// One route from queue to queue, served by several relays.
struct Crew {
    run: Run,
    config: Config,
    source: String,
    target: String,
    relays: Vec<Relay>,
}

impl Crew {
    /// So many relays, each serving its share.
    async fn start(redis: &Redis, rabbitmq: &Rabbitmq, count: usize, more: &str) -> Self {
        let crew = Self::plan(redis, rabbitmq, more).await;
        crew.begin(&binary(), count).await
    }

    /// Starts so many relays of this program.
    async fn begin(mut self, program: &Path, count: usize) -> Self {
        for _ in 0..count {
            let mut relay = Relay::spawn_as(program.to_owned(), &self.config, &[]);
            relay.ready().await;
            self.relays.push(relay);
        }
        self.shared().await;
        self
    }

    /// The same without a relay yet.
    async fn plan(redis: &Redis, rabbitmq: &Rabbitmq, more: &str) -> Self {
        Self::plan_with(redis, rabbitmq, "", more).await
    }

    /// The same with further lines of the route.
    async fn plan_with(redis: &Redis, rabbitmq: &Rabbitmq, of_route: &str, more: &str) -> Self {
        let run = Run::new();
        let source = unique("source");
        let target = unique("target");
        rabbitmq.declare_queue(&source, QueueKind::Quorum).await;
        rabbitmq.declare_queue(&target, QueueKind::Classic).await;
        run.collect_rabbitmq(rabbitmq, &target);
        let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
        let config = Config::new(redis)
            .rabbitmq("main", rabbitmq)
            .route("orders", &from, &to, of_route)
            .section(more);
        Self {
            run,
            config,
            source,
            target,
            relays: Vec::new(),
        }
    }

    /// Messages, the n-th due after `first_ms` and n times `step_ms` from its making.
    async fn send(&self, rabbitmq: &Rabbitmq, count: u64, first_ms: u64, step_ms: u64) {
        self.send_when(rabbitmq, count, |n| When::At(first_ms + n * step_ms))
            .await;
    }

    /// Messages, each due when this says.
    async fn send_when(&self, rabbitmq: &Rabbitmq, count: u64, when: impl Fn(u64) -> When) {
        let label = format!("rabbitmq:{}", self.target);
        let message = |n| self.run.message(&label, when(n)).key(&self.target);
        let messages = (0..count).map(message).collect();
        self.run
            .send_rabbitmq(rabbitmq, "", Some(&self.source), messages)
            .await;
    }

    /// Sends, a hundred after the other, each due `delay_ms` after its arrival, until the work is done.
    async fn under_load<T>(
        &self,
        rabbitmq: &Rabbitmq,
        delay_ms: u64,
        work: impl Future<Output = T>,
    ) -> T {
        let done = AtomicBool::new(false);
        let load = async {
            while !done.load(Ordering::Acquire) {
                self.send_when(rabbitmq, 100, |_| When::Delay(delay_ms))
                    .await;
            }
        };
        let work = async {
            let result = work.await;
            done.store(true, Ordering::Release);
            result
        };
        tokio::join!(load, work).1
    }

    /// Waits until so many more messages than now have arrived.
    async fn flows(&self, more: usize) {
        let before = self.run.ledger().delivered();
        eventually("messages come and go", async || {
            let since = self.run.ledger().delivered() - before;
            if since >= more {
                Ok(())
            } else {
                Err(format!("{since} since"))
            }
        })
        .await;
    }

    /// Waits until each relay of these serves its share, and all of them everything.
    async fn shared(&self) {
        shared(&self.relays).await;
    }

    /// Drains by the word of one relay, and compares: as many repeats as these relays have a cause for.
    async fn accounted(&self, by: usize) {
        self.run.drain(&self.relays[by]).await;
        let mut explained = 0;
        for relay in &self.relays {
            // One that was killed has said so before.
            if relay.is_alive() {
                explained += relay.total("postdate_redelivered_total", &[]).await as usize;
            } else {
                explained += relay.past_total("postdate_redelivered_total") as usize;
            }
        }
        let report = self.run.report();
        report.assert_accounted(explained);
        // An upper bound: a claim that expires on a busy machine counts, whether its message had left or not.
        assert!(
            explained <= 2 * report.attempts,
            "{explained} repeats of {} messages",
            report.attempts
        );
    }
}

/// Waits until a relay's log says this.
async fn logged(relay: &Relay, expected: &str) {
    eventually(&format!("the log says {expected:?}"), async || {
        if relay.log().contains(expected) {
            Ok(())
        } else {
            Err("it does not yet")
        }
    })
    .await;
}

/// Waits until nothing that was sent is missing.
async fn arrived(run: &Run) {
    eventually("all of them arrive", async || {
        match run.ledger().missing().len() {
            0 => Ok(()),
            missing => Err(format!("{missing} missing")),
        }
    })
    .await;
}

/// Waits until each of these serves its share, and all of them everything.
async fn shared(relays: &[Relay]) {
    let base = PARTITIONS / relays.len();
    let over = PARTITIONS % relays.len();
    eventually(
        &format!("{} relays share the partitions", relays.len()),
        async || {
            let mut owned = Vec::new();
            for relay in relays {
                owned.push(relay.metrics().await?.sum("postdate_partitions_owned", &[]) as usize);
            }
            let fair = owned.iter().filter(|&&n| n == base + 1).count() == over
                && owned.iter().all(|&n| n == base || n == base + 1);
            if fair {
                Ok(())
            } else {
                Err(anyhow::anyhow!("they own {owned:?}"))
            }
        },
    )
    .await;
}
