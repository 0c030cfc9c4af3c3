//! Accepts a claimed bundle: into the claim table and the wheel, back to the store in parts, or to the dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use tracing::{debug, error, warn};

use super::claimed::{ClaimedBundle, DeliveryState, InFlightBatch, KeyedEntry};
use super::credit::HeldCredit;
use super::wheel::WheelItem;
use super::{ServedRoute, Shard};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::limits::{MAX_EXPIRIES, SPLIT_EXPIRIES};
use crate::domain::{
    DeadReason, Entry, Flags, MonoUs, Route, Target, TargetRef, Text, Verdict, dying, retry,
};
use crate::egress::{PublishBatch, Ticket};
use crate::health::Overdue;
use crate::mutants::{self, Mutant};
use crate::store::{
    Bundle, Claim, ClaimAnswer, CodecError, DeadLetter, Division, NewBundle, Remainder,
    SettleAnswer, UnopenedBundle,
};

/// Delay until a bundle of a later version is claimed again, ms. By then a replica of that version may serve it.
const UNREADABLE_MS: u64 = 30_000;

/// The end of [`accept`] for one claimed bundle.
pub(super) enum AcceptOutcome {
    /// The bundle is in the claim table. Holds its item for the wheel, if some of its messages leave by due time.
    Accepted(Option<WheelItem>),
    /// The bundle is a dead letter.
    Dead,
    /// The bundle's messages are in the store again, in other bundles.
    StoredAgain,
    /// The bundle stays claimed in the store, and this shard does not know it.
    LeftClaimed,
    /// The bundle's target gets no more messages: it is to be put off.
    TargetFull(Claim, HeldCredit),
}

/// Enters one claimed bundle into the claim table, or disposes of one that cannot be published as it is.
pub(super) async fn accept(
    shard: &Shard,
    claimed: ClaimAnswer,
    credit: HeldCredit,
    lease_end: MonoUs,
) -> AcceptOutcome {
    let Some(served) = shard.routes.get(claimed.claim.id.route()).cloned() else {
        return AcceptOutcome::LeftClaimed;
    };
    let bundle = match &claimed.bundle {
        Ok(bundle) if bundle.entries.len() == claimed.skip.len() => bundle.clone(),
        Ok(_) => {
            let why = "it holds a different number of messages";
            return keep_unreadable(shard, &claimed, &served, DeadReason::Corrupt, why).await;
        }
        Err(CodecError::Missing) => {
            // Our claim is still valid, so only damage can have removed the blob.
            return keep_unreadable(
                shard,
                &claimed,
                &served,
                DeadReason::Corrupt,
                "its blob is missing",
            )
            .await;
        }
        Err(CodecError::UnknownVersion(version)) => {
            return put_off(shard, &claimed.claim, &served, *version).await;
        }
        Err(why @ CodecError::Poison) => {
            return keep_unreadable(
                shard,
                &claimed,
                &served,
                DeadReason::Crashes,
                &why.to_string(),
            )
            .await;
        }
        Err(why) => {
            return keep_unreadable(
                shard,
                &claimed,
                &served,
                DeadReason::Corrupt,
                &why.to_string(),
            )
            .await;
        }
    };
    let bundle = flag_rolled_back(shard, bundle);
    if claimed.expiries >= SPLIT_EXPIRIES && bundle.entries.len() > 1 {
        return split_up(shard, &claimed, &served, &bundle).await;
    }
    if claimed.expiries >= MAX_EXPIRIES {
        return end_crashed(shard, &claimed, &served, &bundle).await;
    }
    let dies = bundle
        .entries
        .iter()
        .any(|entry| entry.flags.has(Flags::DYING));
    if dies && served.route.dead_letter_to.is_none() {
        return end_dying(shard, &claimed, &served, &bundle).await;
    }
    let goal = Goal {
        target: target_of(shard, &served.route, &bundle, dies),
        dies,
    };
    if goal
        .target
        .as_ref()
        .is_some_and(|target| served.credit.is_full(target))
    {
        let asked = bundle.entries.iter().map(Entry::asked_due).min();
        let now = shard.store.clock().now();
        if let Some(asked) = asked.filter(|&asked| asked <= now) {
            served.health.overdue.put_back(Overdue { asked, seen: now });
        }
        return AcceptOutcome::TargetFull(claimed.claim, credit);
    }
    AcceptOutcome::Accepted(enter(
        shard, claimed, credit, &served, &bundle, lease_end, goal,
    ))
}

/// Where the messages of a bundle go.
struct Goal {
    /// `None`: the route may not publish there (any more).
    target: Option<Arc<Target>>,
    /// They are dead letters on their way to the route's `dead_letter_to`.
    dies: bool,
}

fn target_of(shard: &Shard, route: &Route, bundle: &Bundle, dies: bool) -> Option<Arc<Target>> {
    if mutants::is(Mutant::WrongTarget) {
        let mut others = shard.routes.values().map(|other| &other.route.to);
        return others.find(|&to| *to != route.to).cloned();
    }
    if dies {
        route.dead_letter_to.clone()
    } else {
        route.target(&bundle.target)
    }
}

/// Flags the messages that were due before the store was found to have gone back, or to have another master: a replica
/// may have published them and the store may have forgotten that.
fn flag_rolled_back(shard: &Shard, mut bundle: Bundle) -> Bundle {
    let may_repeat_until = shard.store.may_repeat_until();
    if bundle
        .entries
        .iter()
        .any(|entry| entry.due <= may_repeat_until)
    {
        for entry in Arc::make_mut(&mut bundle.entries)
            .iter_mut()
            .filter(|entry| entry.due <= may_repeat_until)
        {
            entry.flags = entry.flags.with(Flags::STORE_ROLLBACK);
        }
    }
    bundle
}

/// Makes dead letters of messages that were on their way to a `dead_letter_to` that is no longer configured.
async fn end_dying(
    shard: &Shard,
    claimed: &ClaimAnswer,
    served: &Arc<ServedRoute>,
    bundle: &Bundle,
) -> AcceptOutcome {
    let dead_letters = bundle.entries.iter().map(|entry| {
        DeadLetter::of(
            served.route.name.clone(),
            dying::reason(entry),
            bundle.target.clone(),
            dying::ended(entry.clone()),
        )
    });
    divide(
        shard,
        served,
        claimed,
        Vec::new(),
        Vec::new(),
        dead_letters.collect(),
    )
    .await
}

/// Leaves a bundle of a later version to a replica that can read it. In an ordered route the bundle keeps its place,
/// and blocks everything behind it.
async fn put_off(shard: &Shard, claim: &Claim, served: &ServedRoute, version: u8) -> AcceptOutcome {
    shard.metrics.unknown_versions.inc();
    if !shard.saw_later_version.swap(true, Ordering::Relaxed) {
        warn!(
            bundle = %claim.id,
            version,
            "the store holds bundles of a later version; they wait for a replica that can read them"
        );
    }
    let wait_ms = if served.route.policy.ordered {
        0
    } else {
        UNREADABLE_MS
    };
    if let Err(why) = shard
        .store
        .put_off(claim.partition, std::slice::from_ref(claim), wait_ms)
        .await
    {
        // The claim expires and the next claimer tries again.
        debug!(bundle = %claim.id, error = %why, "deferring a bundle failed");
    }
    AcceptOutcome::LeftClaimed
}

/// Enters a bundle into the claim table. Returns its item for the wheel, if some of its messages leave by due time.
fn enter(
    shard: &Shard,
    claimed: ClaimAnswer,
    credit: HeldCredit,
    served: &Arc<ServedRoute>,
    bundle: &Bundle,
    lease_end: MonoUs,
    goal: Goal,
) -> Option<WheelItem> {
    let ClaimAnswer {
        claim,
        expiries,
        skip,
        ..
    } = claimed;
    let expiries = if mutants::is(Mutant::ForgetExpiry) {
        0
    } else {
        expiries
    };
    let slot = shard.table.slot();
    let Goal { target, dies } = goal;
    let keyed = if dies {
        Vec::new()
    } else {
        keyed(served, bundle, &skip)
    };
    let mut order: Vec<u32> = (0..skip.len() as u32)
        .filter(|&i| !skip[i as usize])
        .collect();
    let open = order.len();
    order.retain(|&index| keyed.get(index as usize).is_none_or(Option::is_none));
    order.sort_by_key(|&index| bundle.entries[index as usize].due);
    let entries = if dies {
        let outgoing = bundle.entries.iter();
        Arc::new(
            outgoing
                .map(|entry| dying::outgoing(entry, &served.route.name))
                .collect(),
        )
    } else {
        bundle.entries.clone()
    };
    let batch = PublishBatch {
        entries,
        ids: claim.id.message_ids(claim.partition, &bundle.entries),
        expiries,
        spans: served.reporter.spans(&bundle.entries),
        target: target.clone().unwrap_or_else(|| served.route.to.clone()),
        // A dead letter is wanted whenever it comes.
        clock: (!dies).then(|| shard.store.clock().clone()),
        copies: served.route.policy.copies,
        number: slot,
        verdicts: shard.verdicts.clone(),
        listener: Some(served.reporter.clone()),
        not_after_us: lease_end.0.into(),
    };
    let in_flight = Arc::new(InFlightBatch {
        served: served.clone(),
        entries: bundle.entries.clone(),
        batch: Arc::new(batch),
        lane: target.map(|target| shard.lanes.lane(&target)),
        target_ref: bundle.target.clone(),
        published_us: AtomicI64::new(i64::MAX),
        handed: AtomicU32::new(0),
        first_sequence: claim.id.sequence(),
        keyed,
        flow: if dies {
            PublishFlow::Dying
        } else {
            PublishFlow::Delayed
        },
        order,
    });
    let states: Vec<DeliveryState> = skip
        .iter()
        .map(|&skip| {
            if skip {
                DeliveryState::Skipped
            } else {
                DeliveryState::Open
            }
        })
        .collect();
    let mut claimed = ClaimedBundle {
        claim,
        in_flight: in_flight.clone(),
        stored: (0..skip.len() as u32).collect(),
        states,
        open,
        credit,
        news: false,
        busy: false,
        moving: Vec::new(),
        lost: false,
        split: false,
    };
    claimed.update_credit();
    let batch_target = &in_flight.batch.target;
    if served.credit.sets_aside(batch_target)
        && in_flight
            .lane
            .as_ref()
            .is_some_and(|lane| lane.trouble_of(batch_target).is_some())
    {
        claimed.credit.set_aside(batch_target);
    }
    shard.table.lock().enter(slot, claimed);
    if open == 0 {
        // No message of the bundle is left to publish. This verdict has the settler finish it like any other bundle.
        let first = Ticket {
            batch: slot,
            index: 0,
        };
        shard.verdicts.push(first, Verdict::NotTried);
    }
    WheelItem::new(in_flight)
}

/// The entries that leave when their key's turn comes, by index. Empty where the route keeps no key order.
fn keyed(served: &ServedRoute, bundle: &Bundle, skip: &[bool]) -> Vec<Option<KeyedEntry>> {
    if !served.route.policy.ordered {
        return Vec::new();
    }
    let keyed = |entry: &Entry, skip: bool| {
        let key = served.route.order_key(&entry.message).filter(|_| !skip)?;
        Some(KeyedEntry {
            key,
            taken: AtomicBool::new(false),
        })
    };
    bundle
        .entries
        .iter()
        .zip(skip)
        .map(|(entry, &skip)| keyed(entry, skip))
        .collect()
}

/// Splits a bundle whose claim expired twice into single messages. One of them may crash its publisher; from here on
/// each message is judged alone.
async fn split_up(
    shard: &Shard,
    claimed: &ClaimAnswer,
    served: &Arc<ServedRoute>,
    bundle: &Bundle,
) -> AcceptOutcome {
    let claim = &claimed.claim;
    let live = (0..bundle.entries.len()).filter(|&i| !claimed.skip[i]);
    let remainders = live.map(|index| {
        let mut entry = bundle.entries[index].clone();
        entry
            .id
            .get_or_insert_with(|| claim.id.message_id(claim.partition, index, entry.due));
        let one = Bundle {
            target: bundle.target.clone(),
            entries: Arc::new(vec![entry]),
        };
        Remainder {
            new_bundle: NewBundle {
                route: served.route.name.clone(),
                bundle: one,
            },
            from: vec![index as u32],
            lease_ms: None,
            expiries: claimed.expiries,
            sequence: None,
        }
    });
    warn!(bundle = %claim.id, expiries = claimed.expiries, "claims of a bundle expired; split into single messages");
    let freed = freed(bundle, |index| claimed.skip[index]);
    divide(
        shard,
        served,
        claimed,
        freed,
        remainders.collect(),
        Vec::new(),
    )
    .await
}

/// Makes a dead letter of a bundle whose claims expired too often.
async fn end_crashed(
    shard: &Shard,
    claimed: &ClaimAnswer,
    served: &Arc<ServedRoute>,
    bundle: &Bundle,
) -> AcceptOutcome {
    let mut bundle = bundle.clone();
    for entry in Arc::make_mut(&mut bundle.entries) {
        let now = shard.store.clock().now();
        retry::remember(
            entry,
            now,
            DeadReason::Crashes.as_str(),
            "its claims expired unpublished",
        );
        // A redriven message may be a repeat: nobody knows whether it was published under the claims that expired.
        entry.flags = entry.flags.with(Flags::CLAIM_EXPIRED);
    }
    let dead_letter = DeadLetter {
        route: served.route.name.clone(),
        reason: DeadReason::Crashes,
        bundle,
        raw: None,
    };
    let freed = freed(&dead_letter.bundle, |_| true);
    divide(shard, served, claimed, freed, Vec::new(), vec![dead_letter]).await
}

/// Keeps an unreadable blob as a dead letter, unchanged.
async fn keep_unreadable(
    shard: &Shard,
    claimed: &ClaimAnswer,
    served: &Arc<ServedRoute>,
    reason: DeadReason,
    why: &str,
) -> AcceptOutcome {
    let empty = Bundle {
        target: TargetRef::Own,
        entries: Arc::default(),
    };
    let content = match reason {
        // A person may ask for it again: not for messages that were cancelled or confirmed before.
        DeadReason::Crashes => UnopenedBundle {
            blob: claimed.blob.clone(),
            skip: claimed.skip.clone(),
        }
        .encode(),
        _ => claimed.blob.clone(),
    };
    let raw = Some(content).filter(|content| !content.is_empty());
    let dead_letter = DeadLetter {
        route: served.route.name.clone(),
        reason,
        bundle: empty,
        raw,
    };
    // The names inside cannot be read. The scrub removes names whose message is gone.
    let outcome = divide(
        shard,
        served,
        claimed,
        Vec::new(),
        Vec::new(),
        vec![dead_letter],
    )
    .await;
    match outcome {
        AcceptOutcome::Dead => {
            error!(bundle = %claimed.claim.id, reason = reason.as_str(), error = why, "a bundle cannot be read");
        }
        _ => {
            warn!(bundle = %claimed.claim.id, error = why, "a bundle cannot be read; it will be claimed again");
        }
    }
    outcome
}

/// Divides a claimed bundle in the store, and counts its dead letters once the store has confirmed them.
async fn divide(
    shard: &Shard,
    served: &ServedRoute,
    claimed: &ClaimAnswer,
    freed: Vec<(Text, u32)>,
    remainders: Vec<Remainder>,
    dead: Vec<DeadLetter>,
) -> AcceptOutcome {
    let outcome = if remainders.is_empty() {
        AcceptOutcome::Dead
    } else {
        AcceptOutcome::StoredAgain
    };
    let division = Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false; claimed.skip.len()],
        delivered: Vec::new(),
        freed,
        remainders,
        dead,
        held_keys: Vec::new(),
    };
    match shard.store.divide(&division).await {
        Ok(SettleAnswer::Applied(_)) => {
            for dead_letter in &division.dead {
                served.reporter.died(dead_letter);
            }
            outcome
        }
        // The claim belongs to another replica, or soon will.
        Ok(SettleAnswer::Stale) => AcceptOutcome::LeftClaimed,
        Err(why) => {
            // The claim expires and the next claimer tries again.
            error!(bundle = %division.claim.id, error = %why, "dividing a bundle failed");
            AcceptOutcome::LeftClaimed
        }
    }
}

/// The names of the messages that leave a bundle for good, with their positions.
fn freed(bundle: &Bundle, leaves: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
    let named = bundle
        .entries
        .iter()
        .enumerate()
        .filter(|(index, _)| leaves(*index));
    named
        .filter_map(|(index, entry)| Some((entry.id.clone()?, index as u32)))
        .collect()
}
