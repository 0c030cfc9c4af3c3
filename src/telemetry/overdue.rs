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
pub struct Overdue(Mutex<BTreeMap<Place, UnixMs>>);

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
        let mut places = self.0.lock();
        match asked {
            Some(asked) => places.insert(place, asked),
            None => places.remove(&place),
        };
    }

    /// The earliest moment asked for, over all places; `None`: nothing is due.
    pub fn oldest(&self) -> Option<UnixMs> {
        self.0.lock().values().min().copied()
    }

    /// Where the message is that was asked for earliest; `None`: nothing is due.
    pub fn place(&self) -> Option<Place> {
        let places = self.0.lock();
        places.iter().min_by_key(|(_, asked)| **asked).map(|(place, _)| *place)
    }

    /// The earliest moment asked for among what this replica has claimed.
    pub fn claimed(&self) -> Option<UnixMs> {
        let places = self.0.lock();
        places.iter().filter(|(place, _)| matches!(place, Place::Claimed(_))).map(|(_, asked)| *asked).min()
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
        }
        assert_eq!((overdue.oldest(), overdue.claimed()), (None, None));
    }
}
