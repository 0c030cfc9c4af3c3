//! `bench`: a route of running relays measured from outside, as its producers and consumers see it. Marked messages
//! go into the route's ingress, and are looked for where they come out, by a reader that takes nothing from
//! anybody. What has not come at the end is taken out of the store.

mod load;
mod site;
mod steps;
mod tally;
mod types;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;

use self::load::{Plan, Sender, Sent};
use self::site::Site;
use self::steps::Steps;
use self::tally::Tally;
pub use self::types::{Late, Progress, Request, Summary, Watcher};
use crate::app::runtime;
use crate::config::Config;
use crate::egress::VerdictInbox;
use crate::lifecycle::signals::ShutdownSignals;

/// What is logged unless another filter is configured: what is wrong is said by the bench itself.
const FILTER: &str = "error,lapin=off,rdkafka=off,librdkafka=off";
/// Between two looks at how it stands.
const LOOK: Duration = Duration::from_millis(100);
/// How long nothing may come once all is due; and how long a first message may take.
const PATIENCE_US: i64 = 10_000_000;
/// Messages that try the way and warm it up: over half a second, due soon.
const PROBE: Plan = Plan { gap_us: 10_000.0, length_us: 500_000, delay_ms: (200, 400) };
/// How long what has not come is looked for in the store.
const CLEANING_US: i64 = 10_000_000;

/// How a bench ended.
pub enum Outcome {
    /// It was measured, maybe not for as long as was asked.
    Measured(Box<Summary>),
    /// A second signal ended it at once, with this exit code; what it has sent is not cleaned up.
    Killed(ExitCode),
}

/// Measures a route. `Err` is a sentence that says why there are no numbers.
pub fn bench(config: &Config, request: &Request, watcher: &dyn Watcher) -> anyhow::Result<Outcome> {
    runtime::run_to_end(&runtime::log_as_text(config, Some(FILTER)), whole(config, request, watcher))
}

async fn whole(config: &Config, request: &Request, watcher: &dyn Watcher) -> anyhow::Result<Outcome> {
    let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
    let begun = tokio::select! {
        begun = Site::open(config, request) => begun,
        _ = signals.next() => bail!("ended before anything was sent"),
    };
    let site = begun?;
    let probe = Run::begin(&site, request)?;
    let tried = probe.probe(&mut signals).await;
    let cleaned = probe.clean(&mut signals, watcher).await;
    if let Cleaned::Killed(code) = cleaned {
        return Ok(Outcome::Killed(ExitCode::from(code)));
    }
    tried?;
    let run = Run::begin(&site, request)?;
    watcher.begins(&run.name, &site.from, &site.to);
    let measured = run.measure(request, &mut signals, watcher).await;
    // Whatever came in between, nothing is left behind.
    let cancelled = match run.clean(&mut signals, watcher).await {
        Cleaned::Killed(code) => return Ok(Outcome::Killed(ExitCode::from(code))),
        Cleaned::Cancelled(cancelled) => cancelled,
    };
    let (stopped, sent_us) = measured?;
    let summary = run.summary((stopped, sent_us), cancelled);
    site.close().await;
    Ok(Outcome::Measured(Box::new(summary)))
}

/// How the cleaning ended.
enum Cleaned {
    /// So many messages were taken out of the store.
    Cancelled(u64),
    /// By a signal: its exit code.
    Killed(u8),
}

/// Messages of one name.
struct Run<'a> {
    site: &'a Site,
    name: String,
    sender: Sender,
    verdicts: Arc<VerdictInbox>,
    sent: Arc<Sent>,
    tally: Arc<Mutex<Tally>>,
}

impl<'a> Run<'a> {
    fn begin(site: &'a Site, request: &Request) -> anyhow::Result<Self> {
        let name = format!("{:08x}", fastrand::u32(..));
        let (verdicts, sent): (Arc<VerdictInbox>, Arc<Sent>) = Default::default();
        let tally = Arc::new(Mutex::new(Tally::new(&name)?));
        site.count(&tally, &sent);
        let sender = Sender::new(request, &name, site.clock, site.lane.clone(), (&verdicts, &sent));
        Ok(Self { site, name, sender, verdicts, sent, tally })
    }

    /// Messages that the ingress has and that have not come, as far as is known.
    fn waiting(&self) -> u64 {
        self.sent.confirmed.load(Ordering::Acquire).saturating_sub(self.tally.lock().received)
    }

    /// Tries the way with a few messages.
    async fn probe(&self, signals: &mut ShutdownSignals) -> anyhow::Result<()> {
        let steps = Steps::new(self.site.clock);
        tokio::select! {
            () = self.sender.run(PROBE) => {}
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => bail!("ended before anything was measured"),
        }
        let come = self.come(&steps, |_| {});
        tokio::select! {
            came = come => came?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => bail!("ended before anything was measured"),
        }
        if let Some(why) = self.sent.why.lock().as_ref() {
            bail!("{} does not take what is sent: {why}", self.site.from);
        }
        let (came, sent) = (self.tally.lock().received, self.sent.sent());
        ensure!(
            came == sent,
            "of {sent} messages sent to {} {came} came out of {} within {} s: do the relays that serve the route \
             have this configuration, and is its publishing not held back?",
            self.site.from,
            self.site.to,
            PATIENCE_US / 1_000_000
        );
        Ok(())
    }

    /// Waits until all that was sent has come, or nothing has come for long enough.
    async fn come(&self, steps: &Steps, mut each: impl FnMut(&Self)) -> anyhow::Result<()> {
        let clock = self.site.clock;
        let (mut last, mut since_us) = (u64::MAX, clock.mono_us());
        loop {
            tokio::time::sleep(LOOK).await;
            self.site.check(steps)?;
            each(self);
            let waiting = self.waiting();
            if waiting == 0 && self.sent.open() == 0 {
                return Ok(());
            }
            let is_due = clock.wall().0 > self.sent.last_due.load(Ordering::Acquire);
            if waiting != last || !is_due {
                (last, since_us) = (waiting, clock.mono_us());
            }
            if clock.mono_us() - since_us > PATIENCE_US {
                return Ok(());
            }
        }
    }

    /// The run itself. Says whether a signal cut it short, and for how long (microseconds) messages were sent.
    async fn measure(
        &self,
        request: &Request,
        signals: &mut ShutdownSignals,
        watcher: &dyn Watcher,
    ) -> anyhow::Result<(bool, i64)> {
        let (clock, steps) = (self.site.clock, Steps::new(self.site.clock));
        let begin_us = clock.mono_us();
        let plan = Plan {
            gap_us: 1e6 / f64::from(request.rate),
            length_us: request.duration.as_micros() as i64,
            delay_ms: request.delay_ms,
        };
        let tell = |run: &Self| watcher.goes_on(&run.progress((clock.mono_us() - begin_us) / 1000));
        let sending = async {
            let looking = async {
                loop {
                    tokio::time::sleep(LOOK).await;
                    self.site.check(&steps)?;
                    tell(self);
                }
            };
            tokio::select! {
                () = self.sender.run(plan) => anyhow::Ok(()),
                broken = looking => broken,
            }
        };
        tokio::select! {
            sent = sending => sent?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => return Ok((true, clock.mono_us() - begin_us)),
        }
        let sent_us = clock.mono_us() - begin_us;
        tokio::select! {
            came = self.come(&steps, tell) => came?,
            () = self.sent.hear(&self.verdicts) => {}
            _ = signals.next() => return Ok((true, sent_us)),
        }
        Ok((false, sent_us))
    }

    fn progress(&self, at_ms: i64) -> Progress {
        let tally = self.tally.lock();
        let at = |quantile| tally.late.value_at_quantile(quantile);
        let (sent, received) = (self.sent.sent(), tally.received);
        Progress { at_ms, sent, received, p50_us: at(0.5), p99_us: at(0.99) }
    }

    /// Takes what has not come out of the store, until all is accounted for or time is over.
    async fn clean(&self, signals: &mut ShutdownSignals, watcher: &dyn Watcher) -> Cleaned {
        let mut cancelled = 0;
        let until_us = self.site.clock.mono_us() + CLEANING_US;
        let cleaning = async {
            loop {
                let waiting = self.waiting().saturating_sub(cancelled);
                if waiting == 0 && self.sent.open() == 0 || self.site.clock.mono_us() > until_us {
                    return;
                }
                watcher.cleans(waiting);
                match tokio::time::timeout(LOOK * 50, self.site.cancel(&self.name)).await {
                    Ok(Ok(some)) => cancelled += some,
                    // The store is away, or says no: it is asked again as long as there is time.
                    Ok(Err(error)) => tracing::debug!(%error, "cannot clean up"),
                    Err(_) => tracing::debug!("the store does not answer"),
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = cleaning => Cleaned::Cancelled(cancelled),
            () = self.sent.hear(&self.verdicts) => Cleaned::Cancelled(0),
            code = signals.next() => Cleaned::Killed(code),
        }
    }

    fn summary(&self, (stopped, sent_us): (bool, i64), cancelled: u64) -> Summary {
        let waiting = self.waiting();
        let tally = self.tally.lock();
        let late = &tally.late;
        let at = |quantile| late.value_at_quantile(quantile);
        Summary {
            run: self.name.clone(),
            stopped,
            sent: self.sent.sent(),
            sent_ms: sent_us / 1000,
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
            skew_us: self.site.skew_us,
            late: Late {
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
