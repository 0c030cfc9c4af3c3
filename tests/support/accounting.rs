//! The accounting: what was produced, what arrived where and when, and what follows from both.
//!
//! Every message carries its id, due time, target and key in its body, and a checksum over body and
//! `test-*` headers in a header. Producers note each attempt and how it ended; independent consumers
//! note every delivery on every target. The [`Report`] compares the two after a full drain. Pure: it
//! reads no clock and no network, and is itself tested with planted faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::report::Report;

/// Name of the header that holds the id as text.
pub const ID: &str = "test-id";
/// Name of the header that holds the checksum in hex.
pub const CRC: &str = "test-crc";

/// Headers as every technology can carry them; the value may be null.
pub type Headers = Vec<(String, Option<Vec<u8>>)>;

/// Which message: never used twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// The run of the harness.
    pub run: String,
    /// Which of its producers.
    pub producer: u32,
    /// Which of that producer's messages.
    pub seq: u64,
}

impl Id {
    /// Reads what `Display` writes.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        let run = parts.next()?.to_owned();
        Some(Self {
            run,
            producer: parts.next()?.parse().ok()?,
            seq: parts.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.producer, self.seq)
    }
}

/// Stamp of a message: the first line of its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Which message.
    pub id: Id,
    /// The earliest moment at which it may arrive, Unix ms.
    pub due_ms: i64,
    /// Where it must arrive: the label of a collector.
    pub target: String,
    /// The key (Kafka) or routing key (RabbitMQ) that it must arrive with; `None` = any.
    pub key: Option<String>,
}

impl Stamp {
    /// The body: the stamp as one line of JSON, then filler (not UTF-8) up to `size` bytes.
    pub fn body(&self, size: usize) -> Vec<u8> {
        let mut body = serde_json::to_vec(self).expect("a stamp is JSON");
        body.push(b'\n');
        let filler = (0_u64..).map(|n| ((n.wrapping_mul(167) ^ self.id.seq) & 0xff) as u8);
        let missing = size.saturating_sub(body.len());
        body.extend(filler.take(missing));
        body
    }

    /// Reads it back.
    pub fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body.split(|&byte| byte == b'\n').next()?).ok()
    }
}

/// The checksum over a body and its `test-*` headers, whatever order those are in.
pub fn checksum(body: &[u8], headers: &Headers) -> String {
    let mut own: Vec<_> = headers
        .iter()
        .filter(|(name, _)| name.starts_with("test-") && name != CRC)
        .collect();
    own.sort();
    let mut crc = crc32fast::Hasher::new();
    crc.update(body);
    for (name, value) in own {
        crc.update(name.as_bytes());
        match value {
            None => crc.update(&[0]),
            Some(value) => {
                crc.update(&[1]);
                crc.update(&(value.len() as u64).to_be_bytes());
                crc.update(value);
            }
        }
    }
    format!("{:08x}", crc.finalize())
}

/// How an attempt to produce ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has confirmed it: it must arrive.
    Ok,
    /// The broker has refused it: it must not arrive.
    Fail,
    /// Nobody knows: it may arrive.
    Info,
}

/// One arrival at one target.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Label of the collector that saw it.
    pub target: String,
    /// When that was, Unix ms.
    pub received_ms: i64,
    /// The key or routing key.
    pub key: Option<String>,
    /// The body.
    pub body: Vec<u8>,
    /// The headers, Postdate's own included.
    pub headers: Headers,
}

/// Bytes of a body that are kept whole. Of a longer one that arrived unchanged the stamp alone is kept: thousands of
/// them would take the memory that the servers need.
const KEPT_BODY: usize = 256 << 10;

impl Delivery {
    /// Compares a long body with its checksum and, if it is unchanged, cuts it down to its stamp, with a checksum of
    /// that. A changed one stays as it is, for the report to find.
    fn shorten(&mut self) {
        if self.body.len() <= KEPT_BODY {
            return;
        }
        let found = checksum(&self.body, &self.headers).into_bytes();
        let end = self.body.iter().position(|&byte| byte == b'\n');
        let crc = self.headers.iter().position(|(name, _)| name == CRC);
        let (Some(end), Some(crc)) = (end, crc) else {
            return;
        };
        if self.headers[crc].1.as_deref() != Some(&found) {
            return;
        }
        self.body = self.body[..=end].to_vec();
        let kept = checksum(&self.body, &self.headers);
        self.headers[crc].1 = Some(kept.into_bytes());
    }
}

/// Everything that was noted.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(super) attempts: BTreeMap<Id, (Stamp, Outcome)>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) parked: BTreeSet<Id>,
    pub(super) stored: BTreeSet<Id>,
    seen: BTreeSet<Id>,
    /// The topic or queue that each was produced to, where that is known.
    sources: BTreeMap<Id, Arc<str>>,
    /// Confirmed to their producer and found nowhere yet.
    waiting: BTreeSet<Id>,
    /// Since when each target is read, Unix ms; `None` while its collector has no connection.
    read_since: BTreeMap<String, Option<i64>>,
    /// The latest due time among what has arrived, Unix ms, by source and target.
    latest: BTreeMap<(Option<Arc<str>>, String), i64>,
    /// Messages that arrived after one that was due later, and by how much later, ms.
    overtaken: Vec<(Id, i64)>,
}

impl Ledger {
    /// A message is about to be produced to this topic or queue; see [`Ledger::attempt`].
    pub fn attempt_to(&mut self, source: &Arc<str>, stamp: Stamp) {
        self.sources.insert(stamp.id.clone(), source.clone());
        self.attempt(stamp);
    }

    /// A message is about to be produced; until [`Ledger::resolve`] nobody knows how that ends.
    pub fn attempt(&mut self, stamp: Stamp) {
        let earlier = self
            .attempts
            .insert(stamp.id.clone(), (stamp, Outcome::Info));
        assert!(earlier.is_none(), "an id is used once: {earlier:?}");
    }

    /// How producing it ended.
    pub fn resolve(&mut self, id: &Id, outcome: Outcome) {
        self.attempts
            .get_mut(id)
            .expect("attempted before it is resolved")
            .1 = outcome;
        let found = self.seen.contains(id) || self.parked.contains(id) || self.stored.contains(id);
        if outcome == Outcome::Ok && !found {
            self.waiting.insert(id.clone());
        } else {
            self.waiting.remove(id);
        }
    }

    /// Something arrived.
    pub fn deliver(&mut self, mut delivery: Delivery) {
        if let Some(Stamp {
            id, due_ms, target, ..
        }) = Stamp::read(&delivery.body)
        {
            let source = self.sources.get(&id).cloned();
            let latest = self.latest.entry((source, target)).or_insert(due_ms);
            *latest = due_ms.max(*latest);
            let by_ms = *latest - due_ms;
            self.waiting.remove(&id);
            if self.seen.insert(id.clone()) && by_ms > 0 {
                self.overtaken.push((id, by_ms));
            }
        }
        delivery.shorten();
        self.deliveries.push(delivery);
    }

    /// What arrives at a target is noted since then, Unix ms. `None`: its collector has no connection.
    pub fn read(&mut self, target: &str, since: Option<i64>) {
        self.read_since.insert(target.to_owned(), since);
    }

    /// Since when what arrives at a target is noted, Unix ms. `None`: it is not noted now. Collectors that do not tell are
    /// taken to read for ever.
    pub fn read_since(&self, target: &str) -> Option<i64> {
        self.read_since.get(target).copied().unwrap_or(Some(0))
    }

    /// Reports whether what arrives is noted at each target.
    pub fn reads_all(&self) -> bool {
        self.read_since.values().all(Option::is_some)
    }

    /// It was found among the dead letters (or wherever the route's policy puts it).
    pub fn park(&mut self, id: Id) {
        self.waiting.remove(&id);
        self.parked.insert(id);
    }

    /// It was found still in the store at the end.
    pub fn store(&mut self, id: Id) {
        self.waiting.remove(&id);
        self.stored.insert(id);
    }

    /// Reports whether this id was ever produced.
    pub fn has_attempt(&self, id: &Id) -> bool {
        self.attempts.contains_key(id)
    }

    /// When it is due, Unix ms, if it was produced for this target.
    pub fn due_of(&self, id: &Id, target: &str) -> Option<i64> {
        let (stamp, _) = self.attempts.get(id)?;
        (stamp.target == target).then_some(stamp.due_ms)
    }

    /// Reports whether this id has arrived somewhere.
    pub fn has_seen(&self, id: &Id) -> bool {
        self.seen.contains(id)
    }

    /// How many deliveries were noted.
    pub fn delivered(&self) -> usize {
        self.deliveries.len()
    }

    /// The deliveries after the first `skip`, in the order of their arrival.
    pub fn deliveries_from(&self, skip: usize) -> Vec<Delivery> {
        self.deliveries.iter().skip(skip).cloned().collect()
    }

    /// Each message of ours that arrived, and when it first did, Unix ms.
    pub fn arrivals(&self) -> Vec<(Stamp, i64)> {
        let mut first = BTreeMap::<Id, (Stamp, i64)>::new();
        for delivery in &self.deliveries {
            let Some(stamp) = Stamp::read(&delivery.body) else {
                continue;
            };
            let came = delivery.received_ms;
            first
                .entry(stamp.id.clone())
                .and_modify(|(_, at)| *at = came.min(*at))
                .or_insert((stamp, came));
        }
        first.into_values().collect()
    }

    /// Messages that arrived at their target after one from the same source that was due later; each with the time by
    /// which that one was due later, ms. Says something of unordered routes whose messages are not retried.
    pub fn overtaken(&self) -> &[(Id, i64)] {
        &self.overtaken
    }

    /// The stamp of a message, and the topic or queue that it was produced to, where that is known.
    pub fn produced(&self, id: &Id) -> Option<(&Stamp, Option<&str>)> {
        let (stamp, _) = self.attempts.get(id)?;
        Some((stamp, self.sources.get(id).map(|source| &**source)))
    }

    /// The ids that are confirmed to their producer and have been found nowhere yet.
    pub fn missing(&self) -> Vec<Id> {
        self.waiting.iter().cloned().collect()
    }

    /// Reports whether this id is confirmed to its producer and found nowhere yet.
    pub fn waits(&self, id: &Id) -> bool {
        self.waiting.contains(id)
    }

    /// Each of those, its stamp, and the topic or queue that it was produced to, where that is known.
    pub fn waiting(&self) -> impl Iterator<Item = (&Id, &Stamp, Option<&str>)> {
        self.waiting.iter().filter_map(|id| {
            let (stamp, _) = self.attempts.get(id)?;
            Some((id, stamp, self.sources.get(id).map(|source| &**source)))
        })
    }

    /// Compares; only meaningful after a full drain.
    pub fn report(&self) -> Report {
        Report::of(self)
    }
}
