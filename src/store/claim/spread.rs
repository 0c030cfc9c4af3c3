//! Spreads growing bundles whose spans are near: each message moves into a bundle of its own moment, which is published as
//! all others are.
//!
//! A growing bundle is claimed for that, so that only one replica does it at a time, and comes back like any other claim if
//! that replica dies. Meanwhile its messages are pending as before: one that is cancelled or moved between the read and the
//! call has the call refused, and the bundle is read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use redis::Value;
use tracing::{debug, error};

use crate::domain::limits::MAX_EXPIRIES;
use crate::domain::{DeadReason, Entry, Partition, RouteName, TargetRef, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{SPREAD_AHEAD_MS, is_of_growing};
use crate::store::model::codec::{elements_of, later_version};
use crate::store::query::browse::range;
use crate::store::{
    Bundle, ClaimAnswer, ClaimRequest, DeadLetter, Division, NewBundle, Remainder, SettleAnswer,
    Store, StoreError, UnopenedBundle, decode,
};

/// Span of the bundles that the messages move into, ms: that of named messages which are due soon.
const SPAN_MS: i64 = 64;
/// Due sets that one read of the index shows.
const READ_DUE_SETS: usize = 1000;
/// Bundles of one claim.
const CLAIMED_BUNDLES: usize = 8;
/// Reads of a bundle before it is left to the next round. Messages are cancelled meanwhile, but not this often.
const READS: usize = 20;
/// Delay until a bundle of a later version is claimed again, ms.
const LATER_VERSION_MS: u64 = 10_000;

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
    /// The growing bundles of these partitions that are due to be spread, in one trip a node. Partitions of a node that is
    /// away are left out.
    pub async fn due_to_spread(&self, partitions: &[Partition]) -> Vec<DueToSpread> {
        let now = self.0.clock.now();
        let mut due = Vec::new();
        let mut left = partitions.to_vec();
        for at in (0..).step_by(READ_DUE_SETS) {
            let commands = left.iter().map(|&p| {
                let idx = self.0.keys.of(p, "idx");
                let command = range(&idx, "-inf".to_owned(), now.0, at, READ_DUE_SETS);
                (Keys::slot(p), command)
            });
            let answers = self.0.side.gather(commands.collect()).await;
            let mut crowded = Vec::new();
            for (p, answer) in left.into_iter().zip(answers) {
                let listed = answer.and_then(read::<Vec<(String, f64)>>);
                let listed = listed.unwrap_or_default();
                if listed.len() == READ_DUE_SETS {
                    crowded.push(p);
                }
                let growing = listed.into_iter().filter(|(name, _)| is_of_growing(name));
                due.extend(growing.map(|(due_set, score)| DueToSpread {
                    partition: p,
                    route: due_set.split('/').next().unwrap_or_default().to_owned(),
                    first_due: UnixMs(score as i64 + SPREAD_AHEAD_MS),
                    due_set,
                }));
            }
            left = crowded;
            if left.is_empty() {
                break;
            }
        }
        due
    }

    /// Spreads the growing bundles of a route in one partition that are due to be, and returns how many.
    pub async fn spread(&self, due: &DueToSpread, lease_ms: u64) -> Result<usize, StoreError> {
        let request = ClaimRequest {
            partition: due.partition,
            due_sets: vec![(due.due_set.clone(), u32::MAX)],
            lookahead_ms: 0,
            lease_ms,
            max_bundles: CLAIMED_BUNDLES,
        };
        let mut spread = 0;
        loop {
            let claimed = self.claim_unread(&request).await?;
            let count = claimed.len();
            for claimed in claimed {
                self.spread_one(claimed).await?;
                spread += 1;
            }
            if count < CLAIMED_BUNDLES {
                return Ok(spread);
            }
        }
    }

    async fn spread_one(&self, claimed: ClaimAnswer) -> Result<(), StoreError> {
        let p = claimed.claim.partition;
        let id = &claimed.claim.id;
        let Some(route) = RouteName::new(id.route()) else {
            return Ok(());
        };
        for _ in 0..READS {
            let Some((gone, blob)) = self.read_growing(&claimed).await? else {
                // Its claim expires, and a scrub finds out whether its content is lost.
                return Ok(());
            };
            if let Some(version) = later_version(&blob) {
                debug!(bundle = %id, version, "a growing bundle of a later version is left to a replica of that version");
                return self
                    .put_off(p, std::slice::from_ref(&claimed.claim), LATER_VERSION_MS)
                    .await;
            }
            let spread = if claimed.expiries > MAX_EXPIRIES {
                Some(unopened(&route, &gone, &blob, id.count()))
            } else {
                Spread::read(&route, &gone, &blob, self.0.clock.now())
            };
            let Some(spread) = spread else { continue };
            for dead in &spread.dead {
                error!(bundle = %id, reason = dead.reason.as_str(), "a message of a growing bundle cannot be read; it becomes a dead letter");
            }
            let first = spread.spans.values().flat_map(|(entries, _)| entries);
            let first = first.map(|entry| entry.due).min();
            let division = spread.division(&claimed, &route);
            match self.divide_as_seen(&division, &gone).await? {
                Some(SettleAnswer::Applied(_)) => {
                    if let Some(first) = first {
                        self.0.wake.stored(p, first);
                    }
                    return Ok(());
                }
                // Somebody else has it by now.
                Some(SettleAnswer::Stale) => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    /// The bitmap and the content of a claimed growing bundle. `None`: its content is not there.
    async fn read_growing(
        &self,
        claimed: &ClaimAnswer,
    ) -> Result<Option<(String, Bytes)>, StoreError> {
        let p = claimed.claim.partition;
        let id = &claimed.claim.id;
        let link = self.0.claims.link();
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
    /// Reads the messages that are not gone. `None`: one of them has left since the bitmap was read.
    fn read(route: &RouteName, gone: &str, blob: &Bytes, now: UnixMs) -> Option<Self> {
        let mut spread = Self::default();
        let elements = elements_of(blob).unwrap_or_default();
        for (index, element) in elements.into_iter().enumerate() {
            if gone.as_bytes().get(index) == Some(&b'1') {
                continue;
            }
            if element.is_empty() {
                return None;
            }
            match decode(&element) {
                Ok(bundle) => {
                    spread.target = bundle.target;
                    for entry in bundle.entries.iter() {
                        // What is overdue leaves at once, all of it.
                        let begin = entry.due.max(now).0.div_euclid(SPAN_MS);
                        let (entries, from) = spread.spans.entry(begin).or_default();
                        entries.push(entry.clone());
                        from.push(index as u32);
                    }
                }
                Err(_) => spread
                    .dead
                    .push(unreadable(route, DeadReason::Corrupt, element)),
            }
        }
        Some(spread)
    }

    fn division(self, claimed: &ClaimAnswer, route: &RouteName) -> Division {
        let target = self.target;
        let remainder = |(entries, from): (Vec<Entry>, Vec<u32>)| Remainder {
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
        };
        Division {
            claim: claimed.claim.clone(),
            confirmed: vec![false; claimed.claim.id.count()],
            delivered: Vec::new(),
            freed: Vec::new(),
            remainders: self.spans.into_values().map(remainder).collect(),
            dead: self.dead,
            held_keys: Vec::new(),
        }
    }
}

/// A whole bundle that nobody opens any more: its readers have died of it.
fn unopened(route: &RouteName, gone: &str, blob: &Bytes, places: usize) -> Spread {
    let is_gone = |index: usize| gone.as_bytes().get(index) == Some(&b'1');
    let content = UnopenedBundle {
        blob: blob.clone(),
        skip: (0..places).map(is_gone).collect(),
    };
    Spread {
        dead: vec![unreadable(route, DeadReason::Crashes, content.encode())],
        ..Spread::default()
    }
}

fn unreadable(route: &RouteName, reason: DeadReason, content: Bytes) -> DeadLetter {
    let bundle = Bundle {
        target: TargetRef::Own,
        entries: Arc::default(),
    };
    DeadLetter {
        route: route.clone(),
        reason,
        bundle,
        raw: Some(content),
    }
}
