//! The observer of a test with a fault: it fails the test when a message is late by five seconds and nothing says why.
//!
//! What is late it knows from the accounting, not from the relay: what is confirmed to its producer, due and not
//! arrived. Somebody must say why: a relay whose `/readyz` names a part that is not up (or that does not answer at
//! all: its operator sees that), a metric of the same, and a warning in its log. What was said goes on explaining what
//! is late for [`RECOVERY`]: clients that read the targets need that long to come back.
//!
//! ```text
//! let _observer = Observer::watch(&run, &[&relay]);
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::accounting::Id;
use super::relay::Metrics;
use super::run::now_ms;
use super::{Relay, Run};

/// A message is late by so much, and the time that a busy machine may take to notice.
const LATE_MS: i64 = 5000 + 3000;
/// How long a reason goes on explaining what is late.
const RECOVERY: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// The guard: its end is the test's verdict.
#[derive(Debug)]
pub struct Observer {
    ends: Arc<AtomicBool>,
    silent: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

/// One relay as its operator sees it.
#[derive(Debug)]
struct Watched {
    url: String,
    log: PathBuf,
}

/// What one relay says.
#[derive(Debug, Default)]
struct Said {
    ready: bool,
    metric: bool,
    log: bool,
}

impl Observer {
    /// Watches the messages of a run on their way through these relays, restarted ones included.
    pub fn watch(run: &Run, relays: &[&Relay]) -> Self {
        let watched: Vec<Watched> =
            relays.iter().map(|relay| Watched { url: relay.url(), log: relay.log_file() }).collect();
        let (ends, silent) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (run, until, found) = (run.clone(), ends.clone(), silent.clone());
        let thread = std::thread::spawn(move || look_until(&until, &run, &watched, &found));
        Self { ends, silent, thread: Some(thread) }
    }

    /// What was late while nothing said why; ends the watch.
    pub fn silences(&mut self) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the observer");
        }
        std::mem::take(&mut *self.silent.lock().expect("what was silent"))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let silences = self.silences();
        if !std::thread::panicking() {
            assert!(silences.is_empty(), "messages were late and nothing said why:\n{}", silences.join("\n"));
        }
    }
}

fn look_until(ends: &AtomicBool, run: &Run, relays: &[Watched], found: &Mutex<Vec<String>>) {
    let (mut waits, mut told): (BTreeMap<Id, i64>, Option<(i64, Instant)>) = (BTreeMap::new(), None);
    while !ends.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        let now = now_ms();
        let late = late(run, &mut waits, now);
        let said: Vec<Said> = relays.iter().map(Watched::look).collect();
        if said.iter().any(|said| said.ready && said.metric && said.log) {
            told = Some((now, Instant::now()));
        }
        let Some((id, since_ms)) = late else { continue };
        let explained = told.is_some_and(|(at_ms, at)| at_ms >= since_ms && at.elapsed() < RECOVERY);
        if !explained {
            let late_ms = now - since_ms;
            found.lock().expect("what was silent").push(format!("{id:?} is {late_ms} ms late: {said:?}"));
            return;
        }
    }
}

/// The message that is late for longest, and since when; a message counts from when its producer knew of it.
fn late(run: &Run, waits: &mut BTreeMap<Id, i64>, now: i64) -> Option<(Id, i64)> {
    let missing = run.ledger().missing_due();
    waits.retain(|id, _| missing.contains_key(id));
    for (id, due_ms) in missing {
        waits.entry(id).or_insert_with(|| due_ms.max(now));
    }
    let oldest = waits.iter().min_by_key(|(_, since)| **since)?;
    (*oldest.1 + LATE_MS <= now).then(|| (oldest.0.clone(), *oldest.1))
}

impl Watched {
    fn look(&self) -> Said {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let log = log.contains("\"WARN\"") || log.contains("\"ERROR\"") || log.contains(" WARN ");
        // One that is gone, or hangs, says enough: whoever runs it sees that.
        let Some((status, body)) = self.get("/readyz") else {
            return Said { ready: true, metric: true, log: true };
        };
        let ready = status != 200 || body.contains("\"degraded\"") || body.contains("\"waiting\"");
        let metrics = self.get("/metrics").and_then(|(_, text)| Metrics::parse(&text).ok());
        let metric = metrics.is_none_or(|metrics| metrics.has_zero("postdate_part_up"));
        Said { ready, metric, log: log || status != 200 }
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(2)))
            .http_status_as_error(false)
            .build();
        let mut answer =
            ureq::Agent::new_with_config(agent).get(format!("{}{path}", self.url)).call().ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_to_string().ok()?))
    }
}
