//! Resolves a claimed bundle that is not wholly confirmed: the division by which each of its messages goes on. To be asked
//! once for each division: it logs failures, takes quota for dead letters, and moves messages in their key's queue.

use std::sync::Arc;

use bytes::Bytes;

use super::Shard;
use super::claimed::{ClaimedBundle, DeliveryState, InFlightBatch};
use super::key_order::rules::KeyQueue;
use crate::domain::failure_policy::FailedPublish;
use crate::domain::{DeadReason, Entry, Flags, UnixMs, Verdict, dying_message};
use crate::publishing::{DroppedMessage, Fate};
use crate::store::{Bundle, DeadLetter, Division, HeldKey, NewBundle, Remainder, slice_of};

/// Failed messages due within this time go back in one bundle.
const RETRY_SPAN_MS: i64 = 1000;

/// A division, what it lets go of, and the number of failed messages that it puts back: to be told once the store has carried
/// it out.
pub(super) struct Resolution {
    pub(super) division: Division,
    pub(super) dropped: Vec<DroppedMessage>,
    pub(super) put_back: u64,
}

/// The division of a claimed bundle. Confirmed messages leave; failed ones go back or become dead letters. Open messages
/// stay claimed, in a bundle of their own.
pub(super) fn resolve(
    shard: &Shard,
    claimed: &ClaimedBundle,
    mut key_queue: Option<&mut KeyQueue>,
) -> Resolution {
    let now = shard.store.clock().now();
    let jitter = fastrand::f64();
    let mut again: Vec<(u32, Entry)> = Vec::new();
    let mut behind: Vec<(u32, u64, Entry)> = Vec::new();
    let mut open = Vec::new();
    let mut dying = Vec::new();
    let mut dead = Vec::new();
    let mut dropped = Vec::new();
    let mut put_back = 0;
    let mut stays = vec![false; claimed.stored.len()];
    for (position, &index) in claimed.stored.iter().enumerate() {
        let way = match &claimed.states[index as usize] {
            DeliveryState::Failed(verdict) if *verdict != Verdict::NotTried => {
                let fate = fate_of(shard, claimed, index, verdict, now, jitter);
                put_back += u64::from(matches!(fate, Fate::Again(_) | Fate::Wait(..)));
                way_of_failed(shard, claimed, index, fate, key_queue.as_deref_mut())
            }
            state => way_of(claimed, index, state),
        };
        let at = position as u32;
        stays[position] = matches!(way, Way::Open(_) | Way::Again(_) | Way::Behind(..));
        match way {
            Way::Leaves => {}
            Way::Open(entry) => open.push((at, entry)),
            Way::Again(entry) => again.push((at, entry)),
            Way::Behind(number, entry) => behind.push((at, number, entry)),
            Way::Dying(entry) => dying.push((at, entry)),
            Way::Dead(dead_letter) => dead.push(dead_letter),
            Way::Dropped(message) => dropped.push(message),
        }
    }
    let mut remainders = group_by_due(claimed, again);
    // Kept apart from the messages that live on, because a bundle has one target.
    remainders.extend(group_by_due(claimed, dying));
    remainders.extend(group_by_sequence(claimed, behind));
    if !open.is_empty() {
        let expiries = claimed.in_flight.batch.expiries;
        remainders.push(remainder(claimed, open, Some(shard.lease_ms()), expiries));
    }
    let names = claimed.names(|_| true);
    let freed = names
        .into_iter()
        .filter(|(_, position)| !stays[*position as usize])
        .collect();
    let division = Division {
        claim: claimed.claim.clone(),
        confirmed: claimed.confirmed(),
        delivered: claimed.delivered(),
        freed,
        remainders,
        dead,
        held_keys: key_queue
            .map(|key_queue| held_keys(key_queue, claimed))
            .unwrap_or_default(),
    };
    Resolution {
        division,
        dropped,
        put_back,
    }
}

/// The way of one message out of its bundle.
enum Way {
    /// It has left the store.
    Leaves,
    /// It stays claimed.
    Open(Entry),
    /// It waits again.
    Again(Entry),
    /// It waits again, with this sequence number, behind others of its key.
    Behind(u64, Entry),
    /// It goes to the route's `dead_letter_to`.
    Dying(Entry),
    Dead(DeadLetter),
    Dropped(DroppedMessage),
}

/// The way of a message of which no publish has failed.
fn way_of(claimed: &ClaimedBundle, index: u32, state: &DeliveryState) -> Way {
    let in_flight = &claimed.in_flight;
    match state {
        DeliveryState::Confirmed | DeliveryState::Skipped => Way::Leaves,
        DeliveryState::Open => Way::Open(detached(in_flight, index)),
        DeliveryState::Failed(_) => Way::Again(detached_untried(in_flight, index)),
        DeliveryState::Died => {
            let entry = &in_flight.entries[index as usize];
            let ended = dying_message::ended(entry.clone());
            Way::Dead(dead_letter(claimed, ended, dying_message::reason(entry)))
        }
        DeliveryState::Moved(to) => {
            let mut entry = detached_untried(in_flight, index);
            entry.asked.get_or_insert(entry.due);
            entry.due = to.due;
            Way::Behind(to.sequence, entry)
        }
    }
}

fn way_of_failed(
    shard: &Shard,
    claimed: &ClaimedBundle,
    index: u32,
    fate: Fate,
    key_queue: Option<&mut KeyQueue>,
) -> Way {
    match fate {
        // The store is where a due message waits, whatever it waits for.
        Fate::Again(entry) | Fate::Wait(entry, _) => {
            let Some((key_queue, keyed)) = key_queue.zip(claimed.in_flight.keyed(index)) else {
                return Way::Again(entry);
            };
            let fresh = shard.store.next_sequence(1);
            Way::Behind(key_queue.failed(&keyed.key, entry.due, fresh), entry)
        }
        Fate::Dying(entry) => Way::Dying(entry),
        Fate::Dead(entry, reason) => Way::Dead(dead_letter(claimed, entry, reason)),
        Fate::Dropped(message) => Way::Dropped(message),
    }
}

/// The keys of moving messages, with their current held ranges.
fn held_keys(key_queue: &KeyQueue, claimed: &ClaimedBundle) -> Vec<(Bytes, HeldKey)> {
    claimed
        .moving
        .iter()
        .filter_map(|key| Some((key.clone(), key_queue.hold_of(key)?)))
        .collect()
}

/// The fate of a message whose publish failed.
fn fate_of(
    shard: &Shard,
    claimed: &ClaimedBundle,
    index: u32,
    verdict: &Verdict,
    now: UnixMs,
    jitter: f64,
) -> Fate {
    let InFlightBatch {
        served,
        batch,
        flow,
        ..
    } = &*claimed.in_flight;
    let entry = detached(&claimed.in_flight, index);
    let failed = FailedPublish {
        entry: &entry,
        verdict,
        handouts: entry.handouts + batch.expiries + 1,
        flow: *flow,
        now,
        jitter,
    };
    served.reporter.fate(failed, &batch.target, shard.mono())
}

/// Prepares a message to leave its first bundle. It takes its `~` id along, and a flag if an earlier claimer may have
/// published it: the new bundle does not know that.
fn detached(in_flight: &InFlightBatch, index: u32) -> Entry {
    let mut entry = in_flight.entries[index as usize].clone();
    entry
        .id
        .get_or_insert_with(|| in_flight.batch.ids[index as usize].clone());
    if in_flight.batch.expiries > 0 {
        entry.flags = entry.flags.with(Flags::CLAIM_EXPIRED);
    }
    entry
}

/// The same for a message that this replica did not publish. Earlier claimers may have, each under a claim that
/// expired.
fn detached_untried(in_flight: &InFlightBatch, index: u32) -> Entry {
    let mut entry = detached(in_flight, index);
    entry.handouts += in_flight.batch.expiries;
    entry
}

/// Makes a dead letter of a message.
fn dead_letter(claimed: &ClaimedBundle, entry: Entry, reason: DeadReason) -> DeadLetter {
    let in_flight = &claimed.in_flight;
    let route = in_flight.served.route.name.clone();
    DeadLetter::of(route, reason, in_flight.target_ref.clone(), entry)
}

fn group_by_due(claimed: &ClaimedBundle, again: Vec<(u32, Entry)>) -> Vec<Remainder> {
    groups_by_due(again, claimed.in_flight.served.route.policy.ordered)
        .into_iter()
        .map(|group| remainder(claimed, group, None, 0))
        .collect()
}

/// Groups returning messages into few bundles: messages due close together share one. On an ordered route they must also
/// follow each other in their bundle: a bundle's messages have consecutive sequence numbers, and each keeps its own.
fn groups_by_due(mut again: Vec<(u32, Entry)>, is_ordered: bool) -> Vec<Vec<(u32, Entry)>> {
    again.sort_by_key(|(_, entry)| entry.due);
    let mut groups: Vec<Vec<(u32, Entry)>> = Vec::new();
    for (position, entry) in again {
        if let Some(group) = groups.last_mut()
            && let Some((_, first)) = group.first()
            && entry.due.since(first.due) <= RETRY_SPAN_MS
            && slice_of(entry.due) == slice_of(first.due)
            && (!is_ordered || group.last().is_some_and(|(last, _)| last + 1 == position))
        {
            group.push((position, entry));
        } else {
            groups.push(vec![(position, entry)]);
        }
    }
    groups
}

/// Groups returning messages with sequence numbers of their own: consecutive messages with one due time share a
/// bundle.
fn group_by_sequence(
    claimed: &ClaimedBundle,
    mut behind: Vec<(u32, u64, Entry)>,
) -> Vec<Remainder> {
    behind.sort_by_key(|(_, number, entry)| (entry.due, *number));
    let mut rows: Vec<(u64, Vec<(u32, Entry)>)> = Vec::new();
    for (position, number, entry) in behind {
        if let Some((first, row)) = rows.last_mut()
            && *first + row.len() as u64 == number
            && row.first().is_some_and(|(_, e)| e.due == entry.due)
        {
            row.push((position, entry));
        } else {
            rows.push((number, vec![(position, entry)]));
        }
    }
    rows.into_iter()
        .map(|(first, row)| Remainder {
            sequence: Some(first),
            ..remainder(claimed, row, None, 0)
        })
        .collect()
}

fn remainder(
    claimed: &ClaimedBundle,
    messages: Vec<(u32, Entry)>,
    lease_ms: Option<u64>,
    expiries: u32,
) -> Remainder {
    let (from, entries): (Vec<u32>, Vec<Entry>) = messages.into_iter().unzip();
    let bundle = Bundle {
        target: claimed.in_flight.target_ref.clone(),
        entries: Arc::new(entries),
    };
    let route = claimed.in_flight.served.route.name.clone();
    Remainder {
        new_bundle: NewBundle { route, bundle },
        from,
        lease_ms,
        expiries,
        sequence: None,
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::domain::testing::entry;
    use crate::domain::{Clock, RepeatCause};
    use crate::timer::simulation;

    #[test]
    fn a_message_of_an_ordered_route_goes_back_with_its_own_sequence_number() {
        let again = [0, 1, 3, 4, 7].map(|position| (position, entry(UnixMs(9), b"body")));
        let positions = |is_ordered| {
            let groups = groups_by_due(again.to_vec(), is_ordered);
            let positions =
                |group: Vec<(u32, Entry)>| group.into_iter().map(|(at, _)| at).collect();
            groups.into_iter().map(positions).collect::<Vec<Vec<u32>>>()
        };
        assert_eq!(positions(true), [vec![0, 1], vec![3, 4], vec![7]]);
        assert_eq!(positions(false), [vec![0, 1, 3, 4, 7]]);
    }

    #[test]
    fn what_a_holder_did_not_publish_counts_the_claims_of_those_before_him() {
        let served = simulation::served(Clock::start());
        let in_flight =
            |expiries| simulation::in_flight(&served, 0, vec![entry(UnixMs(7), b"body")], expiries);
        let first = detached_untried(&in_flight(0), 0);
        assert_eq!((first.handouts, first.repeat_cause(0)), (0, None));
        let later = detached_untried(&in_flight(2), 0);
        assert_eq!(
            (later.handouts, later.repeat_cause(0)),
            (2, Some(RepeatCause::ClaimExpired))
        );
        assert_eq!(later.id, Some("~0.a.b.1".into()));
    }
}
