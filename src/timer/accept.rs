//! Taking a claimed bundle: into the table and the wheel, or apart, or to the dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use tracing::{debug, error, warn};

use super::budget::Room;
use super::claimed::{Flight, Holding, INDEX_BITS, Keyed, Standing};
use super::wheel::Item;
use super::{Served, Shard};
use crate::domain::limits::{MAX_EXPIRIES, SPLIT_EXPIRIES};
use crate::domain::{DeadReason, Entry, Flags, Text, Verdict, dying, retry};
use crate::egress::PublishBatch;
use crate::mutants::{self, Mutant};
use crate::store::{
    Bundle, Claim, ClaimAnswer, CodecError, DeadLetter, Division, NewBundle, Remainder, SettleAnswer,
};

/// A bundle of a later version is tried again after this, ms: by then a replica of that version may serve it.
const UNREADABLE_MS: u64 = 30_000;

/// What became of a claimed bundle.
pub(super) enum Taken {
    /// It is held here: what of it is for the wheel.
    Held(Option<Item>),
    /// It has gone to the dead letters.
    Gone,
    /// It is in the store again, in other bundles.
    Back,
    /// It is left claimed, and nobody here knows of it.
    Left,
}

/// Enters one claimed bundle, or deals with one that cannot be published as it is.
pub(super) async fn take(shard: &Shard, claimed: ClaimAnswer, room: Room, lease_until_us: i64) -> Taken {
    let Some(served) = shard.routes.get(claimed.claim.id.route()).cloned() else { return Taken::Left };
    let bundle = match &claimed.bundle {
        Ok(bundle) if bundle.entries.len() == claimed.skip.len() => bundle.clone(),
        Ok(_) => {
            let why = "it holds another number of messages";
            return bury_whole(shard, &claimed, &served, DeadReason::Corrupt, why).await;
        }
        Err(CodecError::Missing) => {
            // Under a claim that is still ours nothing but damage takes a blob away.
            return bury_whole(shard, &claimed, &served, DeadReason::Corrupt, "its blob is not there").await;
        }
        Err(CodecError::UnknownVersion(version)) => {
            return put_off(shard, &claimed.claim, &served, *version).await;
        }
        Err(why @ CodecError::Poison) => {
            return bury_whole(shard, &claimed, &served, DeadReason::Crashes, &why.to_string()).await;
        }
        Err(why) => {
            return bury_whole(shard, &claimed, &served, DeadReason::Corrupt, &why.to_string()).await;
        }
    };
    let bundle = doubted(shard, bundle);
    if claimed.expiries >= SPLIT_EXPIRIES && bundle.entries.len() > 1 {
        return take_apart(shard, &claimed, &served, &bundle).await;
    }
    if claimed.expiries >= MAX_EXPIRIES {
        return bury_crashed(shard, &claimed, &served, &bundle).await;
    }
    let dies = bundle.entries.iter().any(|entry| entry.flags.has(Flags::DYING));
    if dies && served.route.dead_letter_to.is_none() {
        return bury_dying(shard, &claimed, &served, &bundle).await;
    }
    Taken::Held(enter(shard, claimed, room, &served, &bundle, lease_until_us))
}

/// What was due before the store was found to have gone back may have been published by whoever knew what the store
/// has forgotten.
fn doubted(shard: &Shard, mut bundle: Bundle) -> Bundle {
    let changed = shard.store.rolled_back_at();
    if bundle.entries.iter().any(|entry| entry.due <= changed) {
        for entry in Arc::make_mut(&mut bundle.entries).iter_mut().filter(|entry| entry.due <= changed) {
            entry.flags = entry.flags.with(Flags::STORE_ROLLBACK);
        }
    }
    bundle
}

/// What was on its way to a `dead_letter_to` that is not configured any more is a dead letter now.
async fn bury_dying(shard: &Shard, claimed: &ClaimAnswer, served: &Arc<Served>, bundle: &Bundle) -> Taken {
    let letters = bundle.entries.iter().map(|entry| {
        let (reason, target) = (dying::reason(entry), bundle.target.clone());
        let bundle = Bundle { target, entries: Arc::new(vec![dying::ended(entry.clone())]) };
        DeadLetter { route: served.route.name.clone(), reason, bundle, raw: None }
    });
    divide(shard, served, &claimed.claim, (claimed.skip.len(), Vec::new()), Vec::new(), letters.collect())
        .await
}

/// What a later version wrote waits for whoever can read it. In an ordered route it keeps its place, and with it all
/// that comes behind.
async fn put_off(shard: &Shard, claim: &Claim, served: &Served, version: u8) -> Taken {
    shard.metrics.unknown_versions.inc();
    if !shard.met_later.swap(true, Ordering::Relaxed) {
        warn!(
            bundle = %claim.id,
            version,
            "the store holds bundles of a later version; they wait for a replica that can read them"
        );
    }
    let wait_ms = if served.route.policy.ordered { 0 } else { UNREADABLE_MS };
    if let Err(why) = shard.store.put_off(claim.partition, std::slice::from_ref(claim), wait_ms).await {
        // The claim expires and the next holder tries again.
        debug!(bundle = %claim.id, error = %why, "cannot put a bundle off");
    }
    Taken::Left
}

fn enter(
    shard: &Shard,
    claimed: ClaimAnswer,
    room: Room,
    served: &Arc<Served>,
    bundle: &Bundle,
    lease_until_us: i64,
) -> Option<Item> {
    let ClaimAnswer { claim, expiries, skip, .. } = claimed;
    let expiries = if mutants::is(Mutant::ForgetExpiry) { 0 } else { expiries };
    let slot = shard.table.slot();
    let dying = bundle.entries.iter().any(|entry| entry.flags.has(Flags::DYING));
    let mut target = served.route.target(bundle.target.as_str());
    if dying {
        target = served.route.dead_letter_to.as_ref();
    }
    if mutants::is(Mutant::WrongTarget) {
        target = shard.routes.values().map(|other| &other.route.to).find(|&to| *to != served.route.to);
    }
    let keyed = if dying { Vec::new() } else { keyed(served, bundle, &skip) };
    let mut order: Vec<u32> = (0..skip.len() as u32).filter(|&i| !skip[i as usize]).collect();
    let open = order.len();
    order.retain(|&index| keyed.get(index as usize).is_none_or(Option::is_none));
    order.sort_by_key(|&index| bundle.entries[index as usize].due);
    let flight = Arc::new(Flight {
        served: served.clone(),
        entries: bundle.entries.clone(),
        batch: Arc::new(PublishBatch {
            entries: if dying {
                Arc::new(bundle.entries.iter().map(|e| dying::outgoing(e, &served.route.name)).collect())
            } else {
                bundle.entries.clone()
            },
            ids: claim.id.message_ids(claim.partition, &bundle.entries),
            expiries,
            target: target.unwrap_or(&served.route.to).clone(),
            first_ticket: slot << INDEX_BITS,
            verdicts: shard.verdicts.clone(),
            not_after_us: lease_until_us.into(),
        }),
        lane: target.map(|target| shard.lanes.lane(target)),
        target_name: bundle.target.clone(),
        published_us: AtomicI64::new(i64::MAX),
        handed: AtomicU32::new(0),
        first_stamp: claim.id.sequence(),
        keyed,
        dying,
        order,
    });
    let standing: Vec<Standing> =
        skip.iter().map(|&skip| if skip { Standing::Skipped } else { Standing::Open }).collect();
    served.hold(skip.len() as i64);
    let holding = Holding {
        claim,
        flight: flight.clone(),
        stored: (0..skip.len() as u32).collect(),
        standing,
        open,
        room,
        news: false,
        busy: false,
        moving: Vec::new(),
        lost: false,
        split: false,
    };
    shard.table.lock().enter(slot, holding);
    if open == 0 {
        // All of it is gone or done: the settler hears of it as of any other that is finished.
        shard.verdicts.push(flight.batch.first_ticket, Verdict::NotTried);
    }
    Item::new(flight)
}

/// The entries that go when it is their key's turn; none where keys have no order.
fn keyed(served: &Served, bundle: &Bundle, skip: &[bool]) -> Vec<Option<Keyed>> {
    if !served.route.policy.ordered {
        return Vec::new();
    }
    let keyed = |(entry, &skip): (&Entry, &bool)| {
        let key = served.route.order_key(&entry.message).filter(|_| !skip)?;
        Some(Keyed { key, taken: AtomicBool::new(false) })
    };
    bundle.entries.iter().zip(skip).map(keyed).collect()
}

/// A bundle whose claim expired twice may hold what kills its publisher: each message on its own from
/// here on, so that it judges only itself.
async fn take_apart(shard: &Shard, claimed: &ClaimAnswer, served: &Arc<Served>, bundle: &Bundle) -> Taken {
    let claim = &claimed.claim;
    let live = (0..bundle.entries.len()).filter(|&i| !claimed.skip[i]);
    let remainders = live.map(|index| {
        let mut entry = bundle.entries[index].clone();
        entry.id.get_or_insert_with(|| claim.id.message_id(claim.partition, index, entry.due));
        let one = Bundle { target: bundle.target.clone(), entries: Arc::new(vec![entry]) };
        Remainder {
            new_bundle: NewBundle { route: served.route.name.clone(), bundle: one },
            from: vec![index as u32],
            lease_ms: None,
            expiries: claimed.expiries,
            sequence: None,
        }
    });
    warn!(bundle = %claim.id, expiries = claimed.expiries, "its claims expire; taken apart into single messages");
    let freed = freed(bundle, |index| claimed.skip[index]);
    divide(shard, served, claim, (claimed.skip.len(), freed), remainders.collect(), Vec::new()).await
}

async fn bury_crashed(shard: &Shard, claimed: &ClaimAnswer, served: &Arc<Served>, bundle: &Bundle) -> Taken {
    let mut bundle = bundle.clone();
    for entry in Arc::make_mut(&mut bundle.entries) {
        let now = shard.store.clock().now();
        retry::remember(entry, now, DeadReason::Crashes.as_str(), "its claims expired unpublished");
        // Redriven, it may be a repeat: nobody knows what became of it under those claims.
        entry.flags = entry.flags.with(Flags::CLAIM_EXPIRED);
    }
    let letter =
        DeadLetter { route: served.route.name.clone(), reason: DeadReason::Crashes, bundle, raw: None };
    let freed = freed(&letter.bundle, |_| true);
    divide(shard, served, &claimed.claim, (claimed.skip.len(), freed), Vec::new(), vec![letter]).await
}

/// Keeps a blob that nobody can or may open, as it is.
async fn bury_whole(
    shard: &Shard,
    claimed: &ClaimAnswer,
    served: &Arc<Served>,
    reason: DeadReason,
    why: &str,
) -> Taken {
    let nothing = Bundle { target: Text::default(), entries: Arc::default() };
    let raw = Some(claimed.blob.clone()).filter(|blob| !blob.is_empty());
    let letter = DeadLetter { route: served.route.name.clone(), reason, bundle: nothing, raw };
    // The names in it cannot be read; the audit removes those that mean what is no longer there.
    let count = claimed.skip.len();
    let taken = divide(shard, served, &claimed.claim, (count, Vec::new()), Vec::new(), vec![letter]).await;
    match taken {
        Taken::Gone => {
            error!(bundle = %claimed.claim.id, reason = reason.as_str(), error = why, "a bundle cannot be read");
        }
        _ => {
            warn!(bundle = %claimed.claim.id, error = why, "a bundle could not be read, and is left to be claimed again");
        }
    }
    taken
}

/// What is dead of it is counted as such once the store has said so.
async fn divide(
    shard: &Shard,
    served: &Served,
    claim: &Claim,
    (count, freed): (usize, Vec<(Text, u32)>),
    remainders: Vec<Remainder>,
    dead: Vec<DeadLetter>,
) -> Taken {
    let taken = if remainders.is_empty() { Taken::Gone } else { Taken::Back };
    let confirmed = vec![false; count];
    let delivered = Vec::new();
    let (claim_of, holds) = (claim.clone(), Vec::new());
    let division =
        Division { claim: claim_of, confirmed, delivered, freed, remainders, dead, held_keys: holds };
    match shard.store.divide(&division).await {
        Ok(SettleAnswer::Applied(_)) => {
            for letter in &division.dead {
                served.metrics.dead_letter(letter.reason.as_str());
            }
            taken
        }
        // Another holder has it, or will.
        Ok(SettleAnswer::Stale) => Taken::Left,
        Err(why) => {
            // The claim expires and the next holder tries again.
            error!(bundle = %claim.id, error = %why, "cannot take a bundle apart");
            Taken::Left
        }
    }
}

/// The names of a bundle's messages that leave for good, and their places.
fn freed(bundle: &Bundle, leaves: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
    let named = bundle.entries.iter().enumerate().filter(|(index, _)| leaves(*index));
    named.filter_map(|(index, entry)| Some((entry.id.clone()?, index as u32))).collect()
}
