//! A run of the accounting harness on real brokers: messages, producers, collectors, the drain.
//!
//! ```text
//! let run = Run::new();
//! run.collect_kafka(kafka, "orders", 3);
//! let messages = (0..100).map(|n| run.message("kafka:orders", When::Delay(n * 10)).key("k")).collect();
//! run.send_kafka(kafka, "orders.delayed", messages).await;
//! run.drain(&relay).await;
//! run.report().assert_accounted(0);
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use super::accounting::{CRC, Headers, ID, Id, Ledger, Report, Stamp, checksum};
use super::collectors::Collector;
use super::eventually::PATIENCE;
use super::{Observer, Relay, names};

/// How long nothing more may arrive before a drain is over: twice what a replica reads, stores and
/// publishes a message in that it has seen already.
const QUIET: Duration = Duration::from_secs(2);

/// When a message is to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// No delay header: it passes through.
    Now,
    /// `x-delay`, ms from its making.
    Delay(u64),
    /// `x-deliver-at`, this many ms after its making.
    At(u64),
}

/// One run; clones share it. Collectors end with its last clone, and its observer fails the test then.
#[derive(Clone, Debug)]
pub struct Run {
    name: String,
    next: Arc<AtomicU64>,
    ledger: Arc<Mutex<Ledger>>,
    collectors: Arc<Mutex<Vec<Collector>>>,
    observer: Arc<Observer>,
}

/// A message that is ready to be produced, once.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) stamp: Stamp,
    pub(super) when: When,
    /// When it was made, Unix ms: the record's timestamp on Kafka.
    pub(super) made_ms: i64,
    headers: Headers,
    contract: Vec<(String, String)>,
    size: usize,
    random: bool,
}

impl Message {
    /// The key or routing key that it is produced with and must arrive with.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.stamp.key = Some(key.to_owned());
        self
    }

    /// A header of the user's, which must arrive as it is; its name begins with `test-`.
    #[must_use]
    pub fn header(mut self, name: &str, value: Option<&[u8]>) -> Self {
        assert!(
            name.starts_with("test-"),
            "{name} would not be under the checksum"
        );
        self.headers
            .push((name.to_owned(), value.map(<[u8]>::to_vec)));
        self
    }

    /// A header for Postdate, beside the one that `When` makes: `x-delay-id`, `x-delay-target`.
    #[must_use]
    pub fn contract(mut self, name: &str, value: &str) -> Self {
        self.contract.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Bytes of the body, at least those of its stamp.
    #[must_use]
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// A body that no compression makes smaller.
    #[must_use]
    pub fn random(mut self) -> Self {
        self.random = true;
        self
    }

    /// Which message it is.
    pub fn id(&self) -> &Id {
        &self.stamp.id
    }

    /// Its body and all its headers but the one that `When` makes, whose type depends on the broker.
    pub(super) fn wire(&self) -> (Vec<u8>, Headers) {
        let mut body = self.stamp.body(self.size);
        if self.random {
            let filler = body
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(body.len(), |end| end + 1);
            fastrand::Rng::with_seed(self.stamp.id.seq).fill(&mut body[filler..]);
        }
        let mut headers = self.headers.clone();
        headers.push((ID.to_owned(), Some(self.stamp.id.to_string().into_bytes())));
        headers.push((CRC.to_owned(), Some(checksum(&body, &headers).into_bytes())));
        let contract = self
            .contract
            .iter()
            .map(|(name, value)| (name.clone(), Some(value.clone().into_bytes())));
        headers.extend(contract);
        (body, headers)
    }
}

impl Run {
    /// A new run, whose ids no other run has.
    pub fn new() -> Self {
        let ledger = Arc::<Mutex<Ledger>>::default();
        Self {
            name: names::unique("run"),
            next: Arc::default(),
            observer: Arc::new(Observer::start(ledger.clone())),
            ledger,
            collectors: Arc::default(),
        }
    }

    /// Messages that waited so far while no reason was reported.
    pub fn noticed(&self) -> Vec<String> {
        self.observer.noticed()
    }

    /// Messages that waited while no reason was reported; ends the observation.
    pub fn silences(&self) -> Vec<String> {
        self.observer.silences()
    }

    /// Observes nothing from now on, for this reason.
    pub fn unobserved(&self, _why: &str) {
        self.observer.silences();
    }

    /// A message for the target with this label, due from now.
    pub fn message(&self, target: &str, when: When) -> Message {
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let id = Id {
            run: self.name.clone(),
            producer: 0,
            seq,
        };
        let made_ms = now_ms();
        let delay = match when {
            When::Now => 0,
            When::Delay(ms) | When::At(ms) => ms as i64,
        };
        let stamp = Stamp {
            id,
            due_ms: made_ms + delay,
            target: target.to_owned(),
            key: None,
        };
        Message {
            stamp,
            when,
            made_ms,
            headers: vec![],
            contract: vec![],
            size: 256,
            random: false,
        }
    }

    /// How many messages were made so far: those made later have a `seq` of this or more.
    pub fn made(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Ledger of the run so far.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("the ledger")
    }

    pub(super) fn shared_ledger(&self) -> Arc<Mutex<Ledger>> {
        self.ledger.clone()
    }

    pub(super) fn keep(&self, collector: Collector) {
        self.collectors.lock().expect("collectors").push(collector);
    }

    /// Compares what was produced with what arrived; after a drain.
    pub fn report(&self) -> Report {
        self.ledger().report()
    }

    /// Waits until every confirmed message has been found, the relay has none pending or in flight, and
    /// nothing more arrives; at most a minute for what is missing. What is still missing then is the
    /// report's to say.
    pub async fn drain(&self, relay: &Relay) {
        self.drain_within(relay, PATIENCE).await;
    }

    /// The same with other patience for what is missing: short where a loss is what a test expects.
    pub async fn drain_within(&self, relay: &Relay, patience: Duration) {
        let mut delivered = self.ledger().delivered();
        let mut since = Instant::now();
        let give_up = Instant::now() + patience;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (now, missing) = {
                let ledger = self.ledger();
                (ledger.delivered(), ledger.missing())
            };
            let drained = missing.is_empty() && empty(relay).await;
            if now != delivered || !drained {
                (delivered, since) = (now, Instant::now());
            }
            if since.elapsed() >= QUIET || Instant::now() >= give_up {
                return;
            }
        }
    }
}

impl Default for Run {
    fn default() -> Self {
        Self::new()
    }
}

/// Reports whether the relay has nothing pending or in flight; a relay that does not answer may have.
async fn empty(relay: &Relay) -> bool {
    relay.metrics().await.is_ok_and(|metrics| {
        metrics.sum("postdate_pending", &[]) + metrics.sum("postdate_in_flight", &[]) < 0.5
    })
}

/// The wall clock, Unix ms.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as i64
}
