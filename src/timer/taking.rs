//! Taking a claimed bundle: into the table and the wheel, or apart, or to the dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32};

use tracing::{error, warn};

use super::holding::{Flight, Holding, Standing};
use super::wheel::Item;
use super::{Served, Shard};
use crate::domain::limits::{MAX_EXPIRIES, SPLIT_EXPIRIES};
use crate::domain::{DeadReason, Flags, Text, dying, retry};
use crate::mutants::{self, Mutant};
use crate::store::{Bundle, Claim, Claimed, CodecError, DeadLetter, Division, Fresh, Remainder};

/// Enters one claimed bundle, or deals with one that cannot be published as it is.
pub(super) async fn take(shard: &Shard, claimed: Claimed, lease_until_us: i64) -> Option<Item> {
    let served = shard.routes.get(claimed.claim.id.route())?.clone();
    let bundle = match &claimed.bundle {
        Ok(bundle) if bundle.entries.len() == claimed.skip.len() => bundle.clone(),
        Ok(_) => {
            bury_whole(shard, &claimed, &served, DeadReason::Corrupt, "it holds another number of messages")
                .await;
            return None;
        }
        Err(None) => {
            // Under a claim that is still ours nothing but damage takes a blob away.
            bury_whole(shard, &claimed, &served, DeadReason::Corrupt, "its blob is not there").await;
            return None;
        }
        Err(Some(CodecError::UnknownVersion(version))) => {
            warn!(bundle = %claimed.claim.id, version, "a bundle of a later version is left alone");
            return None;
        }
        Err(Some(why @ CodecError::Poison)) => {
            bury_whole(shard, &claimed, &served, DeadReason::Crashes, &why.to_string()).await;
            return None;
        }
        Err(Some(why)) => {
            bury_whole(shard, &claimed, &served, DeadReason::Corrupt, &why.to_string()).await;
            return None;
        }
    };
    if claimed.expiries >= SPLIT_EXPIRIES && bundle.entries.len() > 1 {
        take_apart(shard, &claimed, &served, &bundle).await;
        return None;
    }
    if claimed.expiries >= MAX_EXPIRIES {
        bury_crashed(shard, &claimed, &served, &bundle).await;
        return None;
    }
    let dies = bundle.entries.iter().any(|entry| entry.flags.has(Flags::DYING));
    if dies && served.route.dead_letter_to.is_none() {
        bury_dying(shard, &claimed, &served, &bundle).await;
        return None;
    }
    enter(shard, claimed, &served, &bundle, lease_until_us)
}

/// What was on its way to a `dead_letter_to` that is not configured any more is a dead letter now.
async fn bury_dying(shard: &Shard, claimed: &Claimed, served: &Arc<Served>, bundle: &Bundle) {
    let letters = bundle.entries.iter().map(|entry| {
        let (reason, target) = (dying::reason(entry), bundle.target.clone());
        served.metrics.dead_letter(reason.as_str());
        let bundle = Bundle { target, entries: Arc::new(vec![dying::ended(entry.clone())]) };
        DeadLetter { route: served.route.name.clone(), reason, bundle, raw: None }
    });
    divide(shard, &claimed.claim, claimed.skip.len(), Vec::new(), Vec::new(), letters.collect()).await;
}

fn enter(
    shard: &Shard,
    claimed: Claimed,
    served: &Arc<Served>,
    bundle: &Bundle,
    lease_until_us: i64,
) -> Option<Item> {
    let Claimed { claim, expiries, skip, blob, .. } = claimed;
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
    let mut order: Vec<u32> = (0..skip.len() as u32).filter(|&i| !skip[i as usize]).collect();
    order.sort_by_key(|&index| bundle.entries[index as usize].due);
    let flight = Arc::new(Flight {
        slot,
        served: served.clone(),
        entries: bundle.entries.clone(),
        outgoing: if dying {
            Arc::new(bundle.entries.iter().map(|e| dying::outgoing(e, &served.route.name)).collect())
        } else {
            bundle.entries.clone()
        },
        ids: claim.id.message_ids(claim.partition, &bundle.entries),
        lane: target.map(|target| shard.lanes.lane(target)),
        target: target.unwrap_or(&served.route.to).clone(),
        target_name: bundle.target.clone(),
        verdicts: shard.verdicts.clone(),
        expiries,
        lease_until_us: AtomicI64::new(lease_until_us),
        published_us: AtomicI64::new(i64::MAX),
        handed: AtomicU32::new(0),
        dying,
        order,
    });
    let standing: Vec<Standing> =
        skip.iter().map(|&skip| if skip { Standing::Skipped } else { Standing::Open }).collect();
    let (open, bytes) = (flight.order.len(), blob.len() as i64);
    served.hold(skip.len() as i64, bytes);
    let holding = Holding {
        claim,
        flight: flight.clone(),
        stored: (0..skip.len() as u32).collect(),
        standing,
        open,
        bytes,
        news: false,
        busy: false,
        lost: false,
    };
    shard.table.lock().holdings.insert(slot, holding);
    if open == 0 {
        // All of it is gone or done: the settler hears of it as of any other that is finished.
        shard.verdicts.push(flight.ticket(0), crate::domain::Verdict::NotTried);
    }
    Item::new(flight)
}

/// A bundle whose claim expired twice may hold what kills its publisher: each message on its own from
/// here on, so that it judges only itself.
async fn take_apart(shard: &Shard, claimed: &Claimed, served: &Arc<Served>, bundle: &Bundle) {
    let claim = &claimed.claim;
    let live = (0..bundle.entries.len()).filter(|&i| !claimed.skip[i]);
    let remainders = live.map(|index| {
        let mut entry = bundle.entries[index].clone();
        entry.id.get_or_insert_with(|| claim.id.message_id(claim.partition, index, entry.due));
        let one = Bundle { target: bundle.target.clone(), entries: Arc::new(vec![entry]) };
        Remainder {
            fresh: Fresh { route: served.route.name.clone(), bundle: one },
            from: vec![index as u32],
            lease_ms: None,
            expiries: claimed.expiries,
        }
    });
    warn!(bundle = %claim.id, expiries = claimed.expiries, "its claims expire; taken apart into single messages");
    let freed = freed(bundle, |index| claimed.skip[index]);
    divide(shard, claim, claimed.skip.len(), freed, remainders.collect(), Vec::new()).await;
}

async fn bury_crashed(shard: &Shard, claimed: &Claimed, served: &Arc<Served>, bundle: &Bundle) {
    let mut bundle = bundle.clone();
    for entry in Arc::make_mut(&mut bundle.entries) {
        let now = shard.store.clock().now();
        retry::remember(entry, now, DeadReason::Crashes.as_str(), "its claims expired unpublished");
    }
    let letter =
        DeadLetter { route: served.route.name.clone(), reason: DeadReason::Crashes, bundle, raw: None };
    served.metrics.dead_letter(DeadReason::Crashes.as_str());
    let freed = freed(&letter.bundle, |_| true);
    divide(shard, &claimed.claim, claimed.skip.len(), freed, Vec::new(), vec![letter]).await;
}

/// Keeps a blob that nobody can or may open, as it is.
async fn bury_whole(shard: &Shard, claimed: &Claimed, served: &Arc<Served>, reason: DeadReason, why: &str) {
    error!(bundle = %claimed.claim.id, reason = reason.as_str(), error = why, "a bundle cannot be read");
    served.metrics.dead_letter(reason.as_str());
    let nothing = Bundle { target: Text::default(), entries: Arc::default() };
    let raw = Some(claimed.blob.clone()).filter(|blob| !blob.is_empty());
    let letter = DeadLetter { route: served.route.name.clone(), reason, bundle: nothing, raw };
    // The names in it cannot be read; the audit removes those that mean what is no longer there.
    divide(shard, &claimed.claim, claimed.skip.len(), Vec::new(), Vec::new(), vec![letter]).await;
}

async fn divide(
    shard: &Shard,
    claim: &Claim,
    count: usize,
    freed: Vec<(Text, u32)>,
    remainders: Vec<Remainder>,
    dead: Vec<DeadLetter>,
) {
    let confirmed = vec![false; count];
    let delivered = Vec::new();
    let division = Division { claim: claim.clone(), confirmed, delivered, freed, remainders, dead };
    if let Err(why) = shard.store.divide(&division).await {
        // The claim expires and the next holder tries again.
        error!(bundle = %claim.id, error = %why, "cannot take a bundle apart");
    }
}

/// The names of a bundle's messages that leave for good, and their places.
fn freed(bundle: &Bundle, leaves: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
    let named = bundle.entries.iter().enumerate().filter(|(index, _)| leaves(*index));
    named.filter_map(|(index, entry)| Some((entry.id.clone()?, index as u32))).collect()
}
