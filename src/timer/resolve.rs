//! What becomes of each message of a holding that is not wholly confirmed. Pure but for the metrics, the log
//! line of a dead letter, and the clock.

use std::sync::Arc;

use bytes::Bytes;
use tracing::warn;

use super::Shard;
use super::claimed::{Flight, Holding, Standing};
use super::key_order::rules::Line;
use crate::domain::failure::{self, Decision, Failed, FailedPublish, Flow};
use crate::domain::{DeadReason, Entry, Flags, Text, UnixMs, Verdict, dying, retry};
use crate::store::{Bundle, DeadLetter, Division, HeldKey, NewBundle, Remainder, slice_of};
use crate::telemetry::MessageEnd;

/// Failed messages due within this go back together.
const RETRY_SPAN_MS: i64 = 1000;

/// What becomes of each message of a holding: confirmed ones leave, failed ones go back or die; with
/// `split`, open ones are held on as a bundle of their own.
pub(super) fn of(shard: &Shard, holding: &Holding, mut line: Option<&mut Line>, split: bool) -> Division {
    let now = shard.store.clock().now();
    let jitter = fastrand::f64();
    let mut again: Vec<(u32, Entry)> = Vec::new();
    let (mut open, mut dead, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let mut behind: Vec<(u32, u64, Entry)> = Vec::new();
    let mut leaves = vec![true; holding.stored.len()];
    for (position, &index) in holding.stored.iter().enumerate() {
        let entry = &holding.flight.entries[index as usize];
        match &holding.standing[index as usize] {
            Standing::Confirmed | Standing::Skipped => {}
            Standing::Open if split => {
                leaves[position] = false;
                open.push((position as u32, named(&holding.flight, index, entry.clone())));
            }
            Standing::Open | Standing::Failed(Verdict::NotTried) => {
                leaves[position] = false;
                again.push((position as u32, counted(&holding.flight, index)));
            }
            Standing::Died => dead.push(letter(holding, dying::ended(entry.clone()), dying::reason(entry))),
            Standing::Moved(to) => {
                leaves[position] = false;
                let mut entry = counted(&holding.flight, index);
                entry.asked.get_or_insert(entry.due);
                entry.due = to.due;
                behind.push((position as u32, to.sequence, entry));
            }
            Standing::Failed(verdict) => {
                let fate = if holding.flight.dying {
                    dying(shard, holding, index, verdict, now)
                } else {
                    failed(shard, holding, index, verdict, now, jitter)
                };
                match fate {
                    Fate::Again(entry) => {
                        leaves[position] = false;
                        if let Some((line, keyed)) = line.as_mut().zip(holding.flight.keyed(index)) {
                            let stamp = line.failed(&keyed.key, entry.due, shard.store.next_sequence(1));
                            behind.push((position as u32, stamp, entry));
                            continue;
                        }
                        again.push((position as u32, entry));
                    }
                    Fate::Dying(entry) => ends.push((position as u32, entry)),
                    Fate::Dead(letter) => dead.push(letter),
                    Fate::Dropped => {}
                }
            }
        }
    }
    let mut remainders = together(holding, again);
    // Never among those that are to live: a bundle has one target.
    remainders.extend(together(holding, ends));
    remainders.extend(in_a_row(holding, behind));
    if !open.is_empty() {
        let expiries = holding.flight.batch.expiries;
        remainders.push(remainder(holding, open, Some(shard.lease_ms()), expiries));
    }
    let names = holding.names(|_| true);
    let freed = names.into_iter().filter(|(_, position)| leaves[*position as usize]).collect();
    Division {
        claim: holding.claim.clone(),
        confirmed: holding.confirmed(),
        delivered: holding.delivered(),
        freed,
        remainders,
        dead,
        held_keys: line.map(|line| holds(line, holding)).unwrap_or_default(),
    }
}

/// The keys of which something is put elsewhere, as they are held back now.
fn holds(line: &Line, holding: &Holding) -> Vec<(Bytes, HeldKey)> {
    let hold = |key: &Bytes| Some((key.clone(), line.hold_of(key)?));
    holding.moving.iter().filter_map(hold).collect()
}

/// What becomes of a message whose publish failed.
enum Fate {
    /// It is due again.
    Again(Entry),
    /// It is dead as soon as `dead_letter_to` has confirmed it.
    Dying(Entry),
    Dead(DeadLetter),
    /// It leaves, and nothing of it is kept.
    Dropped,
}

fn failed(shard: &Shard, holding: &Holding, index: u32, verdict: &Verdict, now: UnixMs, jitter: f64) -> Fate {
    let served = &holding.flight.served;
    let entry = named(&holding.flight, index, holding.flight.entries[index as usize].clone());
    let handouts = entry.handouts + holding.flight.batch.expiries + 1;
    fails(shard, holding, verdict);
    let publish = FailedPublish { entry: &entry, verdict, handouts, flow: Flow::Delayed, now, jitter };
    let quota = |size| shard.dead_room.take(&served.route.name, size);
    let Failed { mut entry, decision, is_full } = failure::decide(publish, &served.route, quota);
    if let Some(reason) = is_full {
        let error = entry.history.last().map(|f| f.error.clone()).unwrap_or_default();
        served.bursts.note(failure::QUOTA_FULL, &served.route.name, reason.as_str(), error);
    }
    match decision {
        Decision::RetryAt(due) | Decision::WaitUntil(due) => {
            served.metrics.retries.inc();
            tried_again(shard, holding, due.since(now));
            entry.asked.get_or_insert(entry.due);
            entry.due = due;
            Fate::Again(entry)
        }
        Decision::DeadLetter(reason) => Fate::Dead(letter(holding, entry, reason)),
        Decision::DeadLetterVia(reason) => {
            dying::begin(&mut entry, now, reason);
            Fate::Dying(entry)
        }
        Decision::Drop => {
            served.metrics.dropped(failure::REFUSED, 1);
            Fate::Dropped
        }
    }
}

/// Counts a failed publish, and has its target named; answers why it failed.
fn fails(shard: &Shard, holding: &Holding, verdict: &Verdict) -> (&'static str, Text) {
    let (reason, error) = retry::describe(verdict);
    let metrics = &holding.flight.served.metrics;
    metrics.publish_failure(reason);
    metrics.target_failures.failed(&holding.flight.batch.target, shard.mono_us(), reason, &error);
    (reason, error)
}

/// Has its target count as failing until then.
fn tried_again(shard: &Shard, holding: &Holding, in_ms: i64) {
    let failing = &holding.flight.served.metrics.target_failures;
    failing.tried_again(&holding.flight.batch.target, shard.mono_us() + in_ms * 1000);
}

/// What becomes of a dead message that `dead_letter_to` did not take.
fn dying(shard: &Shard, holding: &Holding, index: u32, verdict: &Verdict, now: UnixMs) -> Fate {
    let (served, entry) = (&holding.flight.served, &holding.flight.entries[index as usize]);
    if let Verdict::Refused { reason, error } = verdict
        && reason.is_hopeless()
    {
        // It never will be taken there; the store has it, so nothing is lost.
        warn!(route = %served.route.name, reason = reason.as_str(), %error, "dead_letter_to can never take a dead letter");
        return Fate::Dead(letter(holding, dying::ended(entry.clone()), dying::reason(entry)));
    }
    let (reason, error) = fails(shard, holding, verdict);
    let what = "dead_letter_to does not take what is dead; trying on";
    served.bursts.note(what, &served.route.name, reason, error);
    let mut entry = named(&holding.flight, index, entry.clone());
    entry.handouts += holding.flight.batch.expiries + 1;
    entry.due = now.plus(served.route.policy.retry.max_ms);
    tried_again(shard, holding, served.route.policy.retry.max_ms);
    Fate::Again(entry)
}

/// A message that leaves its first bundle takes its `~` id along; and, for its new bundle does not know of it,
/// that a holder of before may have published it.
fn named(flight: &Flight, index: u32, mut entry: Entry) -> Entry {
    entry.id.get_or_insert_with(|| flight.batch.ids[index as usize].clone());
    if flight.batch.expiries > 0 {
        entry.flags = entry.flags.with(Flags::CLAIM_EXPIRED);
    }
    entry
}

/// The same of one that its holder did not publish: those before him may have, each under a claim that expired.
fn counted(flight: &Flight, index: u32) -> Entry {
    let mut entry = named(flight, index, flight.entries[index as usize].clone());
    entry.handouts += flight.batch.expiries;
    entry
}

fn letter(holding: &Holding, entry: Entry, reason: DeadReason) -> DeadLetter {
    let served = &holding.flight.served;
    served.metrics.dead_letter(reason.as_str());
    let id = entry.id.clone().unwrap_or_default();
    served
        .watch
        .report(&served.route.name, id.as_str(), || MessageEnd::Dead { reason: reason.as_str().to_owned() });
    let error = entry.history.last().map(|f| f.error.clone()).unwrap_or_default();
    warn!(
        route = %served.route.name, %id, reason = reason.as_str(),
        error = %error, failures = entry.failures, "a message became a dead letter"
    );
    let bundle = Bundle { target: holding.flight.target_name.clone(), entries: Arc::new(vec![entry]) };
    DeadLetter { route: served.route.name.clone(), reason, bundle, raw: None }
}

/// Messages that go back, as few bundles: those due close together share one.
fn together(holding: &Holding, mut again: Vec<(u32, Entry)>) -> Vec<Remainder> {
    again.sort_by_key(|(_, entry)| entry.due);
    let mut groups: Vec<Vec<(u32, Entry)>> = Vec::new();
    for (position, entry) in again {
        let fits = |first: &UnixMs| {
            entry.due.since(*first) <= RETRY_SPAN_MS && slice_of(entry.due) == slice_of(*first)
        };
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(|(_, e)| fits(&e.due)) => group.push((position, entry)),
            _ => groups.push(vec![(position, entry)]),
        }
    }
    groups.into_iter().map(|group| remainder(holding, group, None, 0)).collect()
}

/// Messages that go back under stamps of their own, as few bundles: those in a row that are due together share one.
fn in_a_row(holding: &Holding, mut behind: Vec<(u32, u64, Entry)>) -> Vec<Remainder> {
    behind.sort_by_key(|(_, stamp, entry)| (entry.due, *stamp));
    let mut rows: Vec<(u64, Vec<(u32, Entry)>)> = Vec::new();
    for (position, stamp, entry) in behind {
        let next = |(first, row): &(u64, Vec<(u32, Entry)>)| {
            *first + row.len() as u64 == stamp && row.first().is_some_and(|(_, e)| e.due == entry.due)
        };
        match rows.last_mut().filter(|row| next(row)) {
            Some((_, row)) => row.push((position, entry)),
            None => rows.push((stamp, vec![(position, entry)])),
        }
    }
    let stamped = |(stamp, row)| Remainder { sequence: Some(stamp), ..remainder(holding, row, None, 0) };
    rows.into_iter().map(stamped).collect()
}

fn remainder(
    holding: &Holding,
    messages: Vec<(u32, Entry)>,
    lease_ms: Option<u64>,
    expiries: u32,
) -> Remainder {
    let (from, entries): (Vec<u32>, Vec<Entry>) = messages.into_iter().unzip();
    let bundle = Bundle { target: holding.flight.target_name.clone(), entries: Arc::new(entries) };
    let route = holding.flight.served.route.name.clone();
    Remainder { new_bundle: NewBundle { route, bundle }, from, lease_ms, expiries, sequence: None }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::domain::testing::entry;
    use crate::domain::{Cause, Clock};
    use crate::timer::simulation;

    #[test]
    fn what_a_holder_did_not_publish_counts_the_claims_of_those_before_him() {
        let served = simulation::served(Clock::start());
        let flight = |expiries| simulation::flight(&served, 0, vec![entry(UnixMs(7), b"body")], expiries);
        let first = counted(&flight(0), 0);
        assert_eq!((first.handouts, first.repeat_cause(0)), (0, None));
        let later = counted(&flight(2), 0);
        assert_eq!((later.handouts, later.repeat_cause(0)), (2, Some(Cause::ClaimExpired)));
        assert_eq!(later.id, Some("~0.a.b.1".into()));
    }
}
