//! The oldest overdue message of a route: one figure for the metric, the API and the command line.
//!
//! A message counts from its requested due time, wherever it is: waiting in the store, put back after a failed publish,
//! claimed by this replica or by another one. Each place reports its earliest due time; the earliest of all counts.

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
    now: BTreeMap<OverduePlace, UnixMs>,
    /// Moments that a place of the store no longer reports. Each counts until the next report of that place: a message
    /// that was claimed is reported by its claimer a little later, and must not be forgotten in between.
    before: BTreeMap<OverduePlace, UnixMs>,
}

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
            .map(|(place, asked)| (*place, *asked))
    }
}

impl OverduePlace {
    /// The place in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Waiting => "waits in the store, unclaimed",
            Self::PutBack => "was put back after a try, and waits for the next",
            Self::Claimed(_) => "is claimed by this replica and not settled",
            Self::Elsewhere => "is claimed by another replica",
            Self::DeadReplica => "was claimed by a replica that is dead",
        }
    }
}

impl OldestOverdue {
    /// Reports the earliest requested due time of one place; `None` if nothing there is due.
    pub fn report(&self, place: OverduePlace, asked: Option<UnixMs>) {
        let moments = &mut *self.0.lock();
        moments.before.remove(&place);
        let was = match asked {
            Some(asked) => moments.now.insert(place, asked),
            None => moments.now.remove(&place),
        };
        let is_of_store = matches!(place, OverduePlace::Waiting | OverduePlace::PutBack);
        if let Some(was) = was.filter(|&was| is_of_store && asked.is_none_or(|asked| was < asked)) {
            moments.before.insert(place, was);
        }
    }

    /// Notes that a message with this requested due time was put back. The next report of the store shows it.
    pub fn put_back(&self, asked: UnixMs) {
        let moments = &mut *self.0.lock();
        let earliest = moments.now.entry(OverduePlace::PutBack).or_insert(asked);
        *earliest = asked.min(*earliest);
    }

    /// The earliest requested due time of all places; `None` if nothing is due.
    pub fn oldest(&self) -> Option<UnixMs> {
        self.0.lock().all().map(|(_, asked)| asked).min()
    }

    /// The place of the message with the earliest requested due time; `None` if nothing is due.
    pub fn place(&self) -> Option<OverduePlace> {
        self.0
            .lock()
            .all()
            .min_by_key(|(_, asked)| *asked)
            .map(|(place, _)| place)
    }

    /// The earliest requested due time of messages that this replica has claimed.
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

    #[test]
    fn the_oldest_of_all_places_stands_until_its_place_takes_it_back() {
        let overdue = OldestOverdue::default();
        assert_eq!(overdue.oldest(), None);
        let places = [
            OverduePlace::Waiting,
            OverduePlace::PutBack,
            OverduePlace::Claimed(0),
            OverduePlace::Claimed(1),
            OverduePlace::Elsewhere,
            OverduePlace::DeadReplica,
        ];
        for (n, place) in (0..6_i32).zip(places) {
            overdue.report(place, Some(UnixMs(100 - i64::from(n))));
            assert_eq!(
                overdue.oldest(),
                Some(UnixMs(100 - i64::from(n))),
                "{place:?}"
            );
            assert_eq!(overdue.place(), Some(place));
        }
        assert_eq!(overdue.claimed(), Some(UnixMs(97)), "by this replica alone");
        for (n, place) in (0..6_i32).zip(places).rev() {
            assert_eq!(
                overdue.oldest(),
                Some(UnixMs(100 - i64::from(n))),
                "{place:?}"
            );
            overdue.report(place, None);
            overdue.report(place, None);
        }
        assert_eq!((overdue.oldest(), overdue.claimed()), (None, None));
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
        let overdue = OldestOverdue::default();
        let asked = Some(UnixMs(7));
        overdue.report(OverduePlace::Waiting, asked);
        // Claimed: the next look at the store does not show it, and its claimer reports it later.
        overdue.report(OverduePlace::Waiting, None);
        assert_eq!(overdue.oldest(), asked);
        overdue.report(OverduePlace::Claimed(0), asked);
        overdue.report(OverduePlace::Waiting, None);
        assert_eq!(overdue.oldest(), asked);
        // Put back: a look that began before does not show it.
        overdue.put_back(UnixMs(7));
        overdue.report(OverduePlace::Claimed(0), None);
        overdue.report(OverduePlace::PutBack, None);
        assert_eq!(overdue.oldest(), asked);
        overdue.report(OverduePlace::PutBack, asked);
        overdue.report(OverduePlace::PutBack, None);
        overdue.report(OverduePlace::PutBack, None);
        assert_eq!(overdue.oldest(), None, "delivered");
    }

    #[test]
    fn a_later_moment_of_a_place_takes_over_at_its_second_report() {
        let overdue = OldestOverdue::default();
        overdue.report(OverduePlace::Waiting, Some(UnixMs(7)));
        overdue.report(OverduePlace::Waiting, Some(UnixMs(9)));
        assert_eq!(overdue.oldest(), Some(UnixMs(7)));
        overdue.report(OverduePlace::Waiting, Some(UnixMs(9)));
        assert_eq!(overdue.oldest(), Some(UnixMs(9)));
    }
}
