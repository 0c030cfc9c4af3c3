//! The oldest overdue message of a route: one figure for the metric, the API and the command line.
//!
//! A message counts from the moment it was asked for, wherever it is: waiting in the store, put back after a failed
//! publish, claimed by this replica or by another one. Each place reports on its own; the earliest moment stands.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::domain::UnixMs;

/// Where a message that is due can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the store, never published.
    Waiting,
    /// In the store, put back after it was due.
    PutBack,
    /// Claimed by this timer shard of this replica.
    Claimed(usize),
    /// Claimed by another replica, by its own word.
    Elsewhere,
}

/// The earliest moment asked for in each place, of one route.
#[derive(Debug, Default)]
pub struct Overdue(Mutex<Moments>);

#[derive(Debug, Default)]
struct Moments {
    now: BTreeMap<Place, UnixMs>,
    /// Moments that a place of the store no longer reports. Each stands until that place's next report: a message that
    /// was claimed is reported by its holder a little later, and must not be forgotten in between.
    before: BTreeMap<Place, UnixMs>,
}

impl Moments {
    fn all(&self) -> impl Iterator<Item = (Place, UnixMs)> {
        self.now.iter().chain(&self.before).map(|(place, asked)| (*place, *asked))
    }
}

impl Place {
    /// The place in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Waiting => "waits in the store, unclaimed",
            Self::PutBack => "was put back after a try, and waits for the next",
            Self::Claimed(_) => "is claimed by this replica and not settled",
            Self::Elsewhere => "is claimed by another replica",
        }
    }
}

impl Overdue {
    /// Reports one place: the earliest moment asked for there; `None`: nothing there is due.
    pub fn report(&self, place: Place, asked: Option<UnixMs>) {
        let moments = &mut *self.0.lock();
        moments.before.remove(&place);
        let was = match asked {
            Some(asked) => moments.now.insert(place, asked),
            None => moments.now.remove(&place),
        };
        let is_of_store = matches!(place, Place::Waiting | Place::PutBack);
        if let Some(was) = was.filter(|&was| is_of_store && asked.is_none_or(|asked| was < asked)) {
            moments.before.insert(place, was);
        }
    }

    /// Notes that a message which was asked for at this moment has been put back: the next look at the store shows it.
    pub fn put_back(&self, asked: UnixMs) {
        let moments = &mut *self.0.lock();
        let earliest = moments.now.entry(Place::PutBack).or_insert(asked);
        *earliest = asked.min(*earliest);
    }

    /// The earliest moment asked for, over all places; `None`: nothing is due.
    pub fn oldest(&self) -> Option<UnixMs> {
        self.0.lock().all().map(|(_, asked)| asked).min()
    }

    /// Where the message is that was asked for earliest; `None`: nothing is due.
    pub fn place(&self) -> Option<Place> {
        self.0.lock().all().min_by_key(|(_, asked)| *asked).map(|(place, _)| place)
    }

    /// The earliest moment asked for among what this replica has claimed.
    pub fn claimed(&self) -> Option<UnixMs> {
        let moments = self.0.lock();
        moments.all().filter(|(place, _)| matches!(place, Place::Claimed(_))).map(|(_, asked)| asked).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_all_places_stands_until_its_place_takes_it_back() {
        let overdue = Overdue::default();
        assert_eq!(overdue.oldest(), None);
        let places = [Place::Waiting, Place::PutBack, Place::Claimed(0), Place::Claimed(1), Place::Elsewhere];
        for (n, place) in (0..5_i32).zip(places) {
            overdue.report(place, Some(UnixMs(100 - i64::from(n))));
            assert_eq!(overdue.oldest(), Some(UnixMs(100 - i64::from(n))), "{place:?}");
            assert_eq!(overdue.place(), Some(place));
        }
        assert_eq!(overdue.claimed(), Some(UnixMs(97)), "by this replica alone");
        for (n, place) in (0..5_i32).zip(places).rev() {
            assert_eq!(overdue.oldest(), Some(UnixMs(100 - i64::from(n))), "{place:?}");
            overdue.report(place, None);
            overdue.report(place, None);
        }
        assert_eq!((overdue.oldest(), overdue.claimed()), (None, None));
    }

    #[test]
    fn a_message_on_its_way_between_two_places_is_in_one_of_them() {
        let (overdue, asked) = (Overdue::default(), Some(UnixMs(7)));
        overdue.report(Place::Waiting, asked);
        // Claimed: the store's next look does not show it, and its holder reports it later.
        overdue.report(Place::Waiting, None);
        assert_eq!(overdue.oldest(), asked);
        overdue.report(Place::Claimed(0), asked);
        overdue.report(Place::Waiting, None);
        assert_eq!(overdue.oldest(), asked);
        // Put back: a look that began before does not show it.
        overdue.put_back(UnixMs(7));
        overdue.report(Place::Claimed(0), None);
        overdue.report(Place::PutBack, None);
        assert_eq!(overdue.oldest(), asked);
        overdue.report(Place::PutBack, asked);
        overdue.report(Place::PutBack, None);
        overdue.report(Place::PutBack, None);
        assert_eq!(overdue.oldest(), None, "delivered");
    }

    #[test]
    fn a_later_moment_of_a_place_takes_over_at_its_second_report() {
        let overdue = Overdue::default();
        overdue.report(Place::Waiting, Some(UnixMs(7)));
        overdue.report(Place::Waiting, Some(UnixMs(9)));
        assert_eq!(overdue.oldest(), Some(UnixMs(7)));
        overdue.report(Place::Waiting, Some(UnixMs(9)));
        assert_eq!(overdue.oldest(), Some(UnixMs(9)));
    }
}
