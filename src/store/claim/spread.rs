//! Spreads growing bundles whose spans are near: each message moves into a bundle of its own moment, which is published as
//! all others are.
//!
//! Nobody claims it for that. The call that moves the messages says which of them were gone when they were read; if more is
//! gone by then, or more has come, it changes nothing, and the bundle is read again. So whoever dies in between, or does it
//! beside another one, costs nothing, and until that call each message is pending as before.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use redis::Value;
use tracing::{debug, error, warn};

use crate::domain::{DeadReason, Entry, Partition, RouteName, TargetRef, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{BundleId, SPREAD_AHEAD_MS, growing_due_set};
use crate::store::model::codec::{GrowingElements, elements_of, later_version};
use crate::store::query::browse::range;
use crate::store::{
    Bundle, Claim, DeadLetter, Division, NewBundle, Remainder, SettleAnswer, Store, StoreError,
    decode,
};

/// Span of the bundles that the messages move into, ms: that of named messages which are due soon.
const SPAN_MS: i64 = 64;
/// The same of messages that are overdue, ms: the longest span of a bundle. A list of what waits looks no further behind the
/// first message of a bundle.
const OVERDUE_SPAN_MS: i64 = 4096;
/// Bundles that one read of their due set shows.
const READ_BUNDLES: usize = 64;
/// Reads of a bundle before it is left to the next round. Messages are cancelled meanwhile, but not this often.
const READS: usize = 20;

/// Growing bundles of one route in one partition that are due to be spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueToSpread {
    /// The partition of the store.
    pub partition: Partition,
    /// The route, as text.
    pub route: String,
    /// The earliest moment at which one of their messages may be due.
    pub first_due: UnixMs,
    due_set: String,
}

/// What of a growing bundle there is to move.
#[derive(Default)]
struct Spread {
    /// By the beginning of their span: the messages, and their places before.
    spans: BTreeMap<i64, (Vec<Entry>, Vec<u32>)>,
    target: TargetRef,
    dead: Vec<DeadLetter>,
}

impl Store {
    /// The growing bundles of these routes that are due to be spread in these partitions, in one trip a node. Partitions of a
    /// node that is away are left out.
    pub async fn due_to_spread(
        &self,
        partitions: &[Partition],
        routes: &[RouteName],
    ) -> Vec<DueToSpread> {
        let due_sets: Vec<String> = routes
            .iter()
            .map(|route| growing_due_set(route.as_str()))
            .collect();
        if due_sets.is_empty() {
            return Vec::new();
        }
        let now = self.0.clock.now();
        let commands = partitions.iter().map(|&p| {
            let mut scores = redis::cmd("ZMSCORE");
            scores.arg(self.0.keys.of(p, "idx")).arg(&due_sets);
            (Keys::slot(p), scores)
        });
        let answers = self.0.side.gather(commands.collect()).await;
        let mut due = Vec::new();
        for (&partition, answer) in partitions.iter().zip(answers) {
            let scores = answer.and_then(read::<Vec<Option<f64>>>);
            for (due_set, score) in due_sets.iter().zip(scores.unwrap_or_default()) {
                let score = score.map(|score| UnixMs(score as i64));
                let Some(score) = score.filter(|score| *score <= now) else {
                    continue;
                };
                due.push(DueToSpread {
                    partition,
                    route: due_set.split('/').next().unwrap_or_default().to_owned(),
                    first_due: score.plus(SPREAD_AHEAD_MS),
                    due_set: due_set.clone(),
                });
            }
        }
        due
    }

    /// Spreads the growing bundles of a route in one partition that are due to be, and returns how many.
    pub async fn spread(&self, due: &DueToSpread) -> Result<usize, StoreError> {
        let p = due.partition;
        let key = self.0.keys.due(p, &due.due_set);
        let (mut spread, mut left) = (0, 0);
        loop {
            let until = self.0.clock.now().0;
            let listed = range(&key, "-inf".to_owned(), until, left, READ_BUNDLES);
            let listed = self
                .0
                .side
                .gather(vec![(Keys::slot(p), listed)])
                .await
                .pop();
            let listed: Vec<(String, f64)> = read(listed.unwrap_or(Ok(Value::Nil))?)?;
            if listed.is_empty() {
                return Ok(spread);
            }
            for (id, _) in listed {
                // A scrub removes what is no bundle.
                let is_spread = match BundleId::parse(&id).filter(BundleId::is_growing) {
                    Some(id) => self.spread_one(p, id).await?,
                    None => false,
                };
                spread += usize::from(is_spread);
                left += usize::from(!is_spread);
            }
        }
    }

    /// Spreads a growing bundle, whenever it is due to be. Returns false if it stays.
    #[cfg(feature = "test-util")]
    pub async fn spread_now(&self, p: Partition, id: BundleId) -> Result<bool, StoreError> {
        self.spread_one(p, id).await
    }

    /// Spreads one bundle. Returns false if it stays.
    async fn spread_one(&self, p: Partition, id: BundleId) -> Result<bool, StoreError> {
        let Some(route) = RouteName::new(id.route()) else {
            return Ok(false);
        };
        for _ in 0..READS {
            let Some((gone, blob)) = self.read_growing(p, &id).await? else {
                // A scrub finds out whether its content is lost.
                return Ok(false);
            };
            if let Some(version) = later_version(&blob) {
                debug!(bundle = %id, version, "a growing bundle of a later version is left to a replica of that version");
                return Ok(false);
            }
            let Some(elements) = elements_of(&blob) else {
                warn!(bundle = %id, "a growing bundle cannot be read; it stays where it is");
                return Ok(false);
            };
            let elements = GrowingElements(elements);
            let spread = Spread::read(&route, &gone, &elements, self.0.clock.now());
            let corrupt = spread.dead.len();
            let entries = spread.spans.values().flat_map(|(entries, _)| entries);
            let first = entries.map(|entry| entry.due).min();
            let division = spread.division(p, &id, &route);
            match self.divide_as_seen(&division, Some(&gone)).await? {
                Some(SettleAnswer::Applied(_)) => {
                    if corrupt > 0 {
                        error!(bundle = %id, messages = corrupt, "messages of a growing bundle cannot be read; they are dead letters now");
                    }
                    if let Some(first) = first {
                        self.0.wake.stored(p, first);
                    }
                    return Ok(true);
                }
                // Somebody else has spread it.
                Some(SettleAnswer::Stale) => return Ok(true),
                None => {}
            }
        }
        Ok(false)
    }

    /// The bitmap and the content of a growing bundle. `None`: its content is not there.
    async fn read_growing(
        &self,
        p: Partition,
        id: &BundleId,
    ) -> Result<Option<(String, Bytes)>, StoreError> {
        let link = self.0.settles.link();
        let mut gone = redis::cmd("HGET");
        gone.arg(self.0.keys.of(p, "gone")).arg(id.as_str());
        let answer = link.gather(vec![(Keys::slot(p), gone)]).await.pop();
        let gone: Option<String> = read(answer.unwrap_or(Ok(Value::Nil))?)?;
        let blobs = link.get_blobs(Keys::slot(p), vec![self.0.keys.blob(p, id)]);
        let blob = blobs.await?.pop().flatten();
        Ok(blob.map(|blob| (gone.unwrap_or_default(), blob)))
    }
}

impl Spread {
    /// Reads the messages that are not gone.
    fn read(route: &RouteName, gone: &str, elements: &GrowingElements, now: UnixMs) -> Self {
        let mut spread = Self::default();
        for index in 0..elements.0.len() {
            if gone.as_bytes().get(index) == Some(&b'1') {
                continue;
            }
            // One that has left since the bitmap was read is none; the call is refused then.
            let Some((element, place)) = elements.alone(index) else {
                continue;
            };
            match decode(&element) {
                Ok(bundle) => {
                    if let Some(entry) = bundle.entries.get(place) {
                        // What is overdue leaves at once: its bundles are due when their first messages were.
                        let span = if entry.due < now {
                            OVERDUE_SPAN_MS
                        } else {
                            SPAN_MS
                        };
                        let begin = entry.due.0.div_euclid(span) * span;
                        let (entries, from) = spread.spans.entry(begin).or_default();
                        entries.push(entry.clone());
                        from.push(index as u32);
                    }
                    spread.target = bundle.target;
                }
                Err(_) => spread.dead.push(unreadable(route, element)),
            }
        }
        spread
    }

    fn division(self, p: Partition, id: &BundleId, route: &RouteName) -> Division {
        let target = self.target;
        let mut remainders = Vec::with_capacity(self.spans.len());
        for (entries, from) in self.spans.into_values() {
            remainders.push(Remainder {
                new_bundle: NewBundle {
                    route: route.clone(),
                    bundle: Bundle {
                        target: target.clone(),
                        entries: Arc::new(entries),
                    },
                },
                from,
                lease_ms: None,
                expiries: 0,
                sequence: None,
            });
        }
        Division {
            claim: Claim {
                partition: p,
                id: id.clone(),
                token: "".into(),
            },
            confirmed: Vec::new(),
            delivered: Vec::new(),
            freed: Vec::new(),
            remainders,
            dead: self.dead,
            held_keys: Vec::new(),
        }
    }
}

fn unreadable(route: &RouteName, content: Bytes) -> DeadLetter {
    let bundle = Bundle {
        target: TargetRef::Own,
        entries: Arc::default(),
    };
    DeadLetter {
        route: route.clone(),
        reason: DeadReason::Corrupt,
        bundle,
        raw: Some(content),
    }
}
