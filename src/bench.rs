//! `bench`: measures a route of running relays from outside, as its producers and consumers see it. Marked messages go
//! into the route's ingress. A reader of its own finds them at the target, and takes no message from anybody. Messages
//! that have not arrived at the end are taken out of the store.

mod clock_steps;
mod load;
mod measured_route;
mod tally;
mod types;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;

use self::clock_steps::StepDetector;
use self::load::{BenchSender, SendCounts, SendPlan};
use self::measured_route::MeasuredRoute;
use self::tally::ArrivalTally;
pub use self::types::{BenchProgress, BenchRequest, BenchSummary, BenchWatcher, LatenessSummary};
use crate::app::runtime;
use crate::config::Config;
use crate::egress::VerdictInbox;
use crate::lifecycle::signals::ShutdownSignals;

/// Log filter unless another one is configured. The bench reports problems itself.
const DEFAULT_LOG_FILTER: &str = "error,lapin=off,rdkafka=off,librdkafka=off";
/// Time between two checks of the run.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time without an arrival once all messages are due, and longest wait for the first one, microseconds.
const ARRIVAL_TIMEOUT_US: i64 = 10_000_000;
/// Plan of the messages that probe the route and warm it up: sent over half a second, due soon.
const PROBE_PLAN: SendPlan = SendPlan {
    gap_us: 10_000.0,
    length_us: 500_000,
    delay_ms: (200, 400),
};
/// Longest search in the store for messages that have not arrived, microseconds.
const CLEANUP_TIMEOUT_US: i64 = 10_000_000;

/// Outcome of a bench.
pub enum BenchOutcome {
    /// It was measured, maybe not for as long as was asked.
    Measured(Box<BenchSummary>),
    /// A second signal ended it at once, with this exit code. Its messages are not cleaned up.
    Killed(ExitCode),
}

/// Measures a route. `Err` is a sentence that says why there are no numbers.
pub fn bench(
    config: &Config,
    request: &BenchRequest,
    watcher: &dyn BenchWatcher,
) -> anyhow::Result<BenchOutcome> {
    runtime::run_to_end(
        &runtime::log_as_text(config, Some(DEFAULT_LOG_FILTER)),
        run_bench(config, request, watcher),
    )
}

async fn run_bench(
    config: &Config,
    request: &BenchRequest,
    watcher: &dyn BenchWatcher,
) -> anyhow::Result<BenchOutcome> {
    let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
    let opened = tokio::select! {
        opened = MeasuredRoute::open(config, request) => opened,
        _ = signals.next() => bail!("ended before anything was sent"),
    };
    let route = opened?;
    let audit = route.audit(request).await?;
    let probe = BenchRun::begin(&route, request)?;
    let tried = probe.probe(&mut signals).await;
    let cleaned = probe.clean(&mut signals, watcher).await;
    if let CleanupEnd::Killed(code) = cleaned {
        return Ok(BenchOutcome::Killed(ExitCode::from(code)));
    }
    tried?;
    let run = BenchRun::begin(&route, request)?;
    watcher.begins(&run.name, &route.from, &route.to);
    let measured = run.measure(request, &mut signals, watcher).await;
    // The cleanup comes first even if the run failed: nothing is left behind.
    let cancelled = match run.clean(&mut signals, watcher).await {
        CleanupEnd::Killed(code) => return Ok(BenchOutcome::Killed(ExitCode::from(code))),
        CleanupEnd::Cancelled(cancelled) => cancelled,
    };
    let result = match &measured {
        Ok(_) => format!("{cancelled} messages taken out of the store"),
        Err(why) => format!("{why:#}; {cancelled} messages taken out of the store"),
    };
    let audited = audit.end(&result).await;
    let summary = run.summary(&measured?, cancelled);
    audited?;
    route.close().await;
    Ok(BenchOutcome::Measured(Box::new(summary)))
}

/// End of the cleanup.
enum CleanupEnd {
    /// It is done: the number of messages taken out of the store.
    Cancelled(u64),
    /// A signal ended it: its exit code.
    Killed(u8),
}

/// End of the sending and receiving of a run.
struct RunEnd {
    /// True if a signal cut the run short.
    stopped: bool,
    /// Time for which messages were sent, microseconds.
    sent_us: i64,
}

/// A run: messages that carry its name, and their account.
struct BenchRun<'a> {
    route: &'a MeasuredRoute,
    name: String,
    sender: BenchSender,
    verdicts: Arc<VerdictInbox>,
    sent: Arc<SendCounts>,
    tally: Arc<Mutex<ArrivalTally>>,
}

impl<'a> BenchRun<'a> {
    fn begin(route: &'a MeasuredRoute, request: &BenchRequest) -> anyhow::Result<Self> {
        let name = format!("{:08x}", fastrand::u32(..));
        let verdicts: Arc<VerdictInbox> = Arc::default();
        let sent: Arc<SendCounts> = Arc::default();
        let tally = Arc::new(Mutex::new(ArrivalTally::new(&name)?));
        route.count(&tally, &sent);
        let lane = (route.lane.clone(), route.ingress.clone());
        let sender = BenchSender::new(request, &name, route.clock, lane, &verdicts, &sent);
        Ok(Self {
            route,
            name,
            sender,
            verdicts,
            sent,
            tally,
        })
    }

    /// The number of messages that the ingress has confirmed and that have not arrived yet.
    fn waiting(&self) -> u64 {
        self.sent
            .confirmed
            .load(Ordering::Acquire)
            .saturating_sub(self.tally.lock().received)
    }

    /// Probes the route with a few messages. `Err` says why it cannot be measured.
    async fn probe(&self, signals: &mut ShutdownSignals) -> anyhow::Result<()> {
        let step_detector = StepDetector::new(self.route.clock);
        tokio::select! {
            () = self.sender.run(PROBE_PLAN) => {}
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => bail!("ended before anything was measured"),
        }
        let arrivals = self.await_arrivals(&step_detector, |_| {});
        tokio::select! {
            arrived = arrivals => arrived?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => bail!("ended before anything was measured"),
        }
        if let Some(why) = self.sent.why.lock().as_ref() {
            bail!("{} does not take what is sent: {why}", self.route.from);
        }
        let sent = self.sent.sent();
        let received = self.tally.lock().received;
        ensure!(
            received == sent,
            "of {sent} messages sent to {} {received} arrived at {} within {} s: do the relays that serve the route \
             have this configuration, and is its publishing paused or limited?",
            self.route.from,
            self.route.to,
            ARRIVAL_TIMEOUT_US / 1_000_000
        );
        Ok(())
    }

    /// Waits until all messages have arrived, or none has arrived for [`ARRIVAL_TIMEOUT_US`].
    async fn await_arrivals(
        &self,
        step_detector: &StepDetector,
        mut each: impl FnMut(&Self),
    ) -> anyhow::Result<()> {
        let clock = self.route.clock;
        let mut last_waiting = u64::MAX;
        let mut since_us = clock.mono_us();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.route.check(step_detector)?;
            each(self);
            let waiting = self.waiting();
            if waiting == 0 && self.sent.open() == 0 {
                return Ok(());
            }
            let is_due = clock.wall().0 > self.sent.last_due.load(Ordering::Acquire);
            if waiting != last_waiting || !is_due {
                last_waiting = waiting;
                since_us = clock.mono_us();
            }
            if clock.mono_us() - since_us > ARRIVAL_TIMEOUT_US {
                return Ok(());
            }
        }
    }

    /// Sends messages by the request's plan and waits until they have arrived.
    async fn measure(
        &self,
        request: &BenchRequest,
        signals: &mut ShutdownSignals,
        watcher: &dyn BenchWatcher,
    ) -> anyhow::Result<RunEnd> {
        let clock = self.route.clock;
        let step_detector = StepDetector::new(clock);
        let begin_us = clock.mono_us();
        let plan = SendPlan {
            gap_us: 1e6 / f64::from(request.rate),
            length_us: request.duration.as_micros() as i64,
            delay_ms: request.delay_ms,
        };
        let tell = |run: &Self| watcher.goes_on(&run.progress((clock.mono_us() - begin_us) / 1000));
        let sending = async {
            let checking = async {
                loop {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    self.route.check(&step_detector)?;
                    tell(self);
                }
            };
            tokio::select! {
                () = self.sender.run(plan) => anyhow::Ok(()),
                failed = checking => failed,
            }
        };
        tokio::select! {
            sent = sending => sent?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => return Ok(RunEnd { stopped: true, sent_us: clock.mono_us() - begin_us }),
        }
        let sent_us = clock.mono_us() - begin_us;
        tokio::select! {
            arrived = self.await_arrivals(&step_detector, tell) => arrived?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => return Ok(RunEnd { stopped: true, sent_us }),
        }
        Ok(RunEnd {
            stopped: false,
            sent_us,
        })
    }

    fn progress(&self, at_ms: i64) -> BenchProgress {
        let tally = self.tally.lock();
        let at = |quantile| tally.late.value_at_quantile(quantile);
        BenchProgress {
            at_ms,
            sent: self.sent.sent(),
            received: tally.received,
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    }

    /// Takes messages that have not arrived out of the store, until all are accounted for or
    /// [`CLEANUP_TIMEOUT_US`] is over.
    async fn clean(&self, signals: &mut ShutdownSignals, watcher: &dyn BenchWatcher) -> CleanupEnd {
        let mut cancelled = 0;
        let until_us = self.route.clock.mono_us() + CLEANUP_TIMEOUT_US;
        let cleaning = async {
            loop {
                let waiting = self.waiting().saturating_sub(cancelled);
                if waiting == 0 && self.sent.open() == 0 || self.route.clock.mono_us() > until_us {
                    return;
                }
                watcher.cleans(waiting);
                match tokio::time::timeout(CHECK_INTERVAL * 50, self.route.cancel(&self.name)).await
                {
                    Ok(Ok(some)) => cancelled += some,
                    // The store is away, or refuses: it is asked again until the time is over.
                    Ok(Err(error)) => tracing::debug!(%error, "cleanup failed; retrying"),
                    Err(_) => tracing::debug!("the store does not answer; retrying"),
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = cleaning => CleanupEnd::Cancelled(cancelled),
            () = self.sent.hear(&self.verdicts) => CleanupEnd::Cancelled(0),
            signal = signals.next() => CleanupEnd::Killed(signal.exit_code),
        }
    }

    fn summary(&self, end: &RunEnd, cancelled: u64) -> BenchSummary {
        let waiting = self.waiting();
        let tally = self.tally.lock();
        let late = &tally.late;
        let at = |quantile| late.value_at_quantile(quantile);
        BenchSummary {
            run: self.name.clone(),
            stopped: end.stopped,
            sent: self.sent.sent(),
            sent_ms: end.sent_us / 1000,
            behind_us: self.sent.behind_us.load(Ordering::Acquire),
            failed: self.sent.failed.load(Ordering::Acquire) + self.sent.open(),
            why: self.sent.why.lock().clone(),
            received: tally.received,
            received_per_second: tally.per_second(),
            again: tally.again,
            early: tally.early,
            earliest_us: tally.earliest_us,
            cancelled,
            missing: waiting.saturating_sub(cancelled),
            skew_us: self.route.skew_us,
            late: LatenessSummary {
                min: late.min(),
                mean: late.mean(),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: late.max(),
            },
            rows: tally.rows(),
        }
    }
}
