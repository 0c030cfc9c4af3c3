//! The oldest overdue message of a route: one figure for the metric, the API and the command line.
//!
//! A message counts from its requested due time, wherever it is: waiting in the store, put back after a failed publish,
//! claimed by this replica or by another one. Each place reports its earliest due time; the earliest of all counts. What this
//! replica has claimed is reported before it is due, and is late from its due time on.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::domain::{Text, UnixMs};

/// Place of a message that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverduePlace {
    /// In the store, never published.
    Waiting,
    /// In the store, put back after it was due.
    PutBack,
    /// Claimed by this timer shard of this replica.
    Claimed(usize),
    /// Claimed by another replica, as that one reports.
    Elsewhere,
    /// Claimed by a replica that has died since, as it reported last. Perhaps it was settled after that report.
    DeadReplica,
}

/// The earliest requested due time in each place, of one route.
#[derive(Debug, Default)]
pub struct OldestOverdue(Mutex<EarliestMoments>);

#[derive(Debug, Default)]
struct EarliestMoments {
    now: BTreeMap<OverduePlace, Overdue>,
    /// What a place of the store no longer reports. Each counts until the next report of that place: a message that was
    /// claimed is reported by its claimer a little later, and must not be forgotten in between.
    before: BTreeMap<OverduePlace, Overdue>,
}

/// The message of a place with the earliest due time: overdue, or claimed and not due yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Its requested due time.
    pub asked: UnixMs,
    /// When it was seen there last. It may have been delivered since.
    pub seen: UnixMs,
}

/// From this age on of the last look, whatever it saw counts as still there, milliseconds: nobody can look.
const NOT_LOOKED_MS: i64 = 5_000;

/// Messages that wait for a target while the credit of their route is used up: nothing more of the route is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullCredit {
    /// The target that they wait for.
    pub target: Text,
    /// Their number.
    pub messages: i64,
    /// Messages of the route that hold credit.
    pub taken: i64,
}

/// What each timer shard says of the credit of one route.
#[derive(Debug, Default)]
pub struct FullCredits(Mutex<BTreeMap<usize, FullCredit>>);

impl FullCredits {
    /// Reports the messages of one shard that wait for a target; `None` while the route has credit.
    pub fn report(&self, shard: usize, full: Option<FullCredit>) {
        let mut shards = self.0.lock();
        match full {
            Some(full) => drop(shards.insert(shard, full)),
            None => drop(shards.remove(&shard)),
        }
    }

    /// The target that most of the credit waits for. `None` if the route has credit, or if most of its messages wait
    /// for something else.
    pub fn cause(&self) -> Option<FullCredit> {
        let mut by_target: BTreeMap<Text, FullCredit> = BTreeMap::new();
        for full in self.0.lock().values() {
            match by_target.get_mut(&full.target) {
                Some(all) => all.messages += full.messages,
                None => drop(by_target.insert(full.target.clone(), full.clone())),
            }
        }
        by_target
            .into_values()
            .max_by_key(|full| full.messages)
            .filter(|full| full.messages * 2 >= full.taken)
    }
}

impl EarliestMoments {
    fn all(&self) -> impl Iterator<Item = (OverduePlace, UnixMs)> {
        self.now
            .iter()
            .chain(&self.before)
            .map(|(place, overdue)| (*place, overdue.asked))
    }
}

impl OverduePlace {
    /// The place in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Waiting => "waits in the store, unclaimed",
            Self::PutBack => "was put back, and waits for its next try",
            Self::Claimed(_) => "is claimed by this replica and not settled",
            Self::Elsewhere => "is claimed by another replica",
            Self::DeadReplica => "was claimed by a replica that is dead",
        }
    }
}

impl OldestOverdue {
    /// Reports the oldest overdue message of one place, of claims the earliest one; `None` if there is none.
    pub fn report(&self, place: OverduePlace, oldest: Option<Overdue>) {
        let moments = &mut *self.0.lock();
        moments.before.remove(&place);
        let was = match oldest {
            Some(oldest) => moments.now.insert(place, oldest),
            None => moments.now.remove(&place),
        };
        let is_of_store = matches!(place, OverduePlace::Waiting | OverduePlace::PutBack);
        if let Some(was) = was
            && is_of_store
            && oldest.is_none_or(|oldest| was.asked < oldest.asked)
        {
            moments.before.insert(place, was);
        }
    }

    /// Notes that a message was put back. The next report of the store shows it.
    pub fn put_back(&self, message: Overdue) {
        let moments = &mut *self.0.lock();
        let earliest = moments.now.entry(OverduePlace::PutBack);
        let earliest = earliest.or_insert(message);
        earliest.asked = message.asked.min(earliest.asked);
        earliest.seen = message.seen.max(earliest.seen);
    }

    /// How late the oldest message was when it was seen last, milliseconds; 0 if nothing is due.
    pub fn late_ms(&self, now: UnixMs) -> i64 {
        let moments = self.0.lock();
        let mut late_ms = 0_i64;
        for overdue in moments.now.values().chain(moments.before.values()) {
            let is_fresh = now.since(overdue.seen) < NOT_LOOKED_MS;
            let until = if is_fresh { overdue.seen } else { now };
            late_ms = late_ms.max(until.since(overdue.asked));
        }
        late_ms
    }

    /// The earliest requested due time of all places; `None` if there is none. It is past if the route is late.
    pub fn oldest(&self) -> Option<UnixMs> {
        self.0.lock().all().map(|(_, asked)| asked).min()
    }

    /// The place of the message with the earliest requested due time; `None` if there is none.
    pub fn place(&self) -> Option<OverduePlace> {
        self.0
            .lock()
            .all()
            .min_by_key(|(_, asked)| *asked)
            .map(|(place, _)| place)
    }

    /// The earliest requested due time of messages that this replica has claimed, due or not.
    pub fn claimed(&self) -> Option<UnixMs> {
        let moments = self.0.lock();
        moments
            .all()
            .filter(|(place, _)| matches!(place, OverduePlace::Claimed(_)))
            .map(|(_, asked)| asked)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overdue(asked: i64, seen: i64) -> Overdue {
        Overdue {
            asked: UnixMs(asked),
            seen: UnixMs(seen),
        }
    }

    #[test]
    fn the_oldest_of_all_places_stands_until_its_place_takes_it_back() {
        let oldest = OldestOverdue::default();
        let late_ms = || oldest.late_ms(UnixMs(100));
        assert_eq!(late_ms(), 0);
        let places = [
            OverduePlace::Waiting,
            OverduePlace::PutBack,
            OverduePlace::Claimed(0),
            OverduePlace::Claimed(1),
            OverduePlace::Elsewhere,
            OverduePlace::DeadReplica,
        ];
        for (n, place) in (1..7_i64).zip(places) {
            oldest.report(place, Some(overdue(100 - n, 100)));
            assert_eq!(late_ms(), n, "{place:?}");
            assert_eq!(oldest.place(), Some(place));
        }
        assert_eq!(oldest.claimed(), Some(UnixMs(96)), "by this replica alone");
        for (n, place) in (1..7_i32).zip(places).rev() {
            assert_eq!(late_ms(), i64::from(n), "{place:?}");
            oldest.report(place, None);
            oldest.report(place, None);
        }
        assert_eq!((late_ms(), oldest.claimed()), (0, None));
    }

    #[test]
    fn a_message_is_as_late_as_it_was_seen_until_nobody_has_looked_for_long() {
        let oldest = OldestOverdue::default();
        let late_ms = |now| oldest.late_ms(UnixMs(now));
        oldest.report(OverduePlace::Waiting, Some(overdue(1_000, 1_010)));
        assert_eq!([late_ms(1_010), late_ms(3_500), late_ms(6_009)], [10; 3]);
        assert_eq!(late_ms(6_010), 5_010, "nobody has looked");
        oldest.report(OverduePlace::Waiting, Some(overdue(1_000, 6_500)));
        assert_eq!(late_ms(7_000), 5_500);
    }

    #[test]
    fn what_is_claimed_is_late_from_its_due_time_on_and_not_before() {
        let oldest = OldestOverdue::default();
        let late_ms = |now| oldest.late_ms(UnixMs(now));
        oldest.report(OverduePlace::Claimed(0), Some(overdue(1_000, 400)));
        assert_eq!([late_ms(400), late_ms(1_200)], [0, 0], "as it was seen");
        assert_eq!(oldest.claimed(), Some(UnixMs(1_000)));
        assert_eq!(late_ms(5_400), 4_400, "nobody has looked");
        oldest.report(OverduePlace::Claimed(0), Some(overdue(1_000, 1_400)));
        assert_eq!(late_ms(1_500), 400);
    }

    #[test]
    fn a_full_credit_names_the_target_that_most_of_it_waits_for() {
        let credits = FullCredits::default();
        let full = |target: &'static str, messages, taken| {
            Some(FullCredit {
                target: Text::from_static(target),
                messages,
                taken,
            })
        };
        assert_eq!(credits.cause(), None);
        credits.report(0, full("a", 20, 100));
        assert_eq!(credits.cause(), None, "the others wait for tokens");
        credits.report(1, full("a", 30, 100));
        credits.report(2, full("b", 40, 100));
        assert_eq!(credits.cause(), full("a", 50, 100));
        credits.report(0, None);
        assert_eq!(credits.cause(), None);
    }

    #[test]
    fn a_message_on_its_way_between_two_places_is_in_one_of_them() {
        let oldest = OldestOverdue::default();
        let late_ms = || oldest.late_ms(UnixMs(80));
        oldest.report(OverduePlace::Waiting, Some(overdue(7, 10)));
        // Claimed: the next look at the store does not show it, and its claimer reports it later.
        oldest.report(OverduePlace::Waiting, None);
        assert_eq!(late_ms(), 3);
        oldest.report(OverduePlace::Claimed(0), Some(overdue(7, 30)));
        oldest.report(OverduePlace::Waiting, None);
        assert_eq!(late_ms(), 23);
        // Put back: a look that began before does not show it.
        oldest.put_back(overdue(7, 40));
        oldest.report(OverduePlace::Claimed(0), None);
        oldest.report(OverduePlace::PutBack, None);
        assert_eq!(late_ms(), 33);
        oldest.report(OverduePlace::PutBack, Some(overdue(7, 50)));
        oldest.report(OverduePlace::PutBack, None);
        assert_eq!(late_ms(), 43);
        oldest.report(OverduePlace::PutBack, None);
        assert_eq!(late_ms(), 0, "delivered");
    }

    #[test]
    fn a_later_moment_of_a_place_takes_over_at_its_second_report() {
        let oldest = OldestOverdue::default();
        oldest.report(OverduePlace::Waiting, Some(overdue(7, 17)));
        oldest.report(OverduePlace::Waiting, Some(overdue(19, 20)));
        assert_eq!(oldest.late_ms(UnixMs(21)), 10);
        oldest.report(OverduePlace::Waiting, Some(overdue(19, 21)));
        assert_eq!(oldest.late_ms(UnixMs(21)), 2);
    }
}
