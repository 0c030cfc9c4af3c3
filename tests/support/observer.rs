//! The observer of every test: it fails the test when a message is late, or lies unread in its source, for five
//! seconds and nothing says why; when a message overtakes one that was due before it; and when a relay holds what the
//! store does not say is claimed; and when what a relay says of its parts does not agree with itself.
//!
//! Nobody starts it. Each [`Run`](super::Run) has one of its own and each [`Relay`](super::Relay) has a
//! [`RelayWatch`]; both speak when they are dropped. The run knows what its producers had confirmed and what has
//! arrived; the watches know what the relays say. A message finds its relays by the name of its source, which stands
//! in their configuration; without such a relay nothing is judged. Three things must agree before a reason counts:
//! `/readyz` names a part on the message's way that is not up, the metric of that part is 0, and a line of the log
//! said so when it began. A reason goes on explaining what is late for [`RECOVERY`]: clients that read the targets
//! need that long to come back.
//!
//! A test that plants a fault in the relay itself (`POSTDATE_MUTANT`) is not observed. A test that asserts a silence
//! says so: `run.unobserved("why")`, `relay.unobserved("why")`.

mod agreement;
mod claims;
mod log_lines;
mod overtaking;
mod relay_watch;
mod route_ends;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::overtaking::Overtaking;
pub use self::relay_watch::RelayWatch;
use self::route_ends::RouteEnds;
use super::accounting::{Id, Ledger};
use super::run::now_ms;

/// A message may be late by five seconds, and by what a busy machine needs to notice. Where the observer judges messages,
/// and a relay by its own words, the time is added for which the machine did not let it run: it lets nobody else run either.
const LATE_MS: i64 = 5000 + 3000;
/// How long a reason goes on explaining what is late.
const RECOVERY_MS: i64 = 20_000;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Looks over which lost time is counted: as many as [`LATE_MS`] has.
const LOST_LOOKS: usize = 32;

/// The relays that run, or are to be restarted.
static WATCHES: LazyLock<Mutex<Vec<Arc<RelayWatch>>>> = LazyLock::new(Mutex::default);

fn watches() -> Vec<Arc<RelayWatch>> {
    WATCHES.lock().expect("the watches").clone()
}

/// A thread that looks again and again until it is told to end.
#[derive(Debug)]
struct Looks {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looks {
    /// `look` is told how much later than it should it came of late, ms.
    fn start(mut look: impl FnMut(i64) + Send + 'static) -> Self {
        let ends = Arc::<AtomicBool>::default();
        let until = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut lost = VecDeque::from([0; LOST_LOOKS]);
            while !until.load(Ordering::Acquire) {
                look(lost.iter().sum());
                let began = Instant::now();
                std::thread::park_timeout(LOOK);
                lost.pop_front();
                lost.push_back(began.elapsed().saturating_sub(LOOK).as_millis() as i64);
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }

    fn end(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "an observer panicked"
            );
        }
    }
}

/// The observer of a run's messages.
#[derive(Debug)]
pub struct Observer {
    looks: Mutex<Looks>,
    silences: Arc<Mutex<Vec<String>>>,
}

impl Observer {
    /// Watches the messages of a ledger on their way through whichever relays read them.
    pub fn start(ledger: Arc<Mutex<Ledger>>) -> Self {
        let silences = Arc::<Mutex<Vec<String>>>::default();
        let found = silences.clone();
        let mut confirmed = BTreeMap::new();
        let mut overtaking = Overtaking::default();
        let looks = Looks::start(move |lost_ms| {
            let mut silences = found.lock().expect("the silences");
            // The first silence is the one to look at.
            if silences.is_empty() {
                silences.extend(look(&ledger, &mut confirmed, &mut overtaking, lost_ms));
            }
        });
        Self {
            looks: Mutex::new(looks),
            silences,
        }
    }

    /// Silences found so far.
    pub fn noticed(&self) -> Vec<String> {
        self.silences.lock().expect("the silences").clone()
    }

    /// Messages that were late or unread while no reason was reported; ends the watch.
    pub fn silences(&self) -> Vec<String> {
        self.looks.lock().expect("the looks").end();
        std::mem::take(&mut *self.silences.lock().expect("the silences"))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        verdict(&self.silences());
    }
}

/// Fails the test; one that fails already is left its own reason.
fn verdict(silences: &[String]) {
    if !std::thread::panicking() {
        assert!(
            silences.is_empty(),
            "something waited and nothing said why:\n{}",
            silences.join("\n")
        );
    }
}

/// Messages of one source that wait for one target.
#[derive(Debug, Default)]
struct Waiting {
    /// Late messages, and since when.
    late: BTreeMap<Id, i64>,
    /// Whoever notes what arrives at the target has a connection, and has had it for [`LATE_MS`].
    is_read: bool,
    /// Messages that are not yet due and whose producer has known for [`LATE_MS`] that they lie in their source.
    to_be_stored: BTreeMap<Id, i64>,
}

fn look(
    ledger: &Mutex<Ledger>,
    confirmed: &mut BTreeMap<Id, i64>,
    overtaking: &mut Overtaking,
    lost_ms: i64,
) -> Option<String> {
    let now = now_ms();
    let late_ms = LATE_MS + lost_ms;
    let waiting = {
        let ledger = ledger.lock().expect("the ledger");
        overtaking.look(&ledger, confirmed);
        waiting(&ledger, confirmed, now, late_ms)
    };
    let late = waiting.into_iter().find_map(|((source, target), waiting)| {
        judge(&ways(source.as_deref(), &target)?, &waiting, now)
    });
    late.or_else(|| overtaking.judge(now))
}

/// The relays that carry these messages. `None`: nobody reads them, or a fault is planted in who does.
fn ways(source: Option<&str>, target: &str) -> Option<Vec<(Arc<RelayWatch>, RouteEnds)>> {
    let ways: Vec<_> = watches()
        .into_iter()
        .filter_map(|watch| {
            let route = watch.route(source, target)?.clone();
            Some((watch, route))
        })
        .collect();
    (!ways.is_empty() && ways.iter().all(|(watch, _)| watch.is_judged())).then_some(ways)
}

/// Messages that wait for too long, by source and target. A message counts from when its producer knew of it.
fn waiting(
    ledger: &Ledger,
    confirmed: &mut BTreeMap<Id, i64>,
    now: i64,
    late_ms: i64,
) -> BTreeMap<(Option<String>, String), Waiting> {
    confirmed.retain(|id, _| ledger.waits(id));
    let mut all = BTreeMap::<_, Waiting>::new();
    for (id, stamp, source) in ledger.waiting() {
        let since = *confirmed.entry(id.clone()).or_insert(now);
        let late_since = since.max(stamp.due_ms);
        if since + late_ms > now || (stamp.due_ms <= now && late_since + late_ms > now) {
            continue;
        }
        let waiting = all
            .entry((source.map(str::to_owned), stamp.target.clone()))
            .or_default();
        let read_since = ledger.read_since(&stamp.target);
        waiting.is_read = read_since.is_some_and(|at| at + late_ms <= now);
        if stamp.due_ms <= now {
            waiting.late.insert(id.clone(), late_since);
        } else {
            waiting.to_be_stored.insert(id.clone(), since);
        }
    }
    all
}

fn judge(ways: &[(Arc<RelayWatch>, RouteEnds)], waiting: &Waiting, now: i64) -> Option<String> {
    let kept = ways
        .iter()
        .map(|(watch, route)| watch.kept(&route.name))
        .max()
        .unwrap_or_default();
    let oldest = |of: &BTreeMap<Id, i64>| {
        of.iter()
            .min_by_key(|(_, since)| **since)
            .map(|(id, since)| (id.to_string(), *since))
    };
    // What no relay holds has left it, and its arrival may not have been noted yet.
    let may_be_late = waiting.is_read || kept.stored > 0;
    let what = if may_be_late && waiting.late.len() as i64 > kept.dead {
        let (id, since) = oldest(&waiting.late)?;
        (
            format!(
                "{id} and {} more are late for {} ms",
                waiting.late.len() - 1,
                now - since
            ),
            since,
        )
    } else if waiting.to_be_stored.len() as i64 > kept.stored {
        let (id, since) = oldest(&waiting.to_be_stored)?;
        let count = waiting.to_be_stored.len();
        let stored = kept.stored;
        let lie = format!(
            "{count} messages such as {id} are confirmed for {} ms",
            now - since
        );
        (format!("{lie} and {stored} are in the store"), since)
    } else {
        return None;
    };
    let is_silent = are_heard(ways, what.1) && explained(ways, what.1, now).is_none();
    is_silent.then(|| {
        let said: Vec<_> = ways
            .iter()
            .map(|(watch, route)| watch.describe(route))
            .collect();
        format!("{}:\n  {}", what.0, said.join("\n  "))
    })
}

/// Reports whether each of these relays was heard late enough to say why something waits since then. A slow machine lets
/// the observer hear late.
fn are_heard(ways: &[(Arc<RelayWatch>, RouteEnds)], since: i64) -> bool {
    ways.iter()
        .all(|(watch, _)| watch.is_heard(since + LATE_MS))
}

/// The reason that one of these relays gives for what waits on its route since then.
fn explained(ways: &[(Arc<RelayWatch>, RouteEnds)], since: i64, now: i64) -> Option<String> {
    let away = ways.iter().all(|(watch, _)| watch.is_away());
    // Whoever runs a relay that is gone, or hangs, sees that.
    if away {
        return Some("no relay answers".to_owned());
    }
    ways.iter()
        .find_map(|(watch, route)| watch.reason(route, since, now))
}
