//! Lateness of a route, and its causes as far as known. Pure but for the log lines.

use std::collections::BTreeMap;

use tracing::{info, warn};

use crate::domain::{Route, RouteName, route};
use crate::telemetry::OverduePlace;

/// A route is late from so many seconds on, and in time again below so few.
const LATE_S: f64 = 3.0;
const IN_TIME_S: f64 = 1.0;

/// A late route catches up if less waits, or what waits is younger, than so many seconds ago.
const PROGRESS_S: f64 = 5.0;
/// The store's clock and this process's differ by less than this within a few seconds.
const CLOCKS_S: f64 = 0.1;

/// Lateness of a route, with a little patience at both ends.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    late: bool,
    progress: Option<Progress>,
}

/// How far a late route has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The moment that its oldest message was asked for, seconds.
    oldest_s: f64,
    /// The fewest messages that waited since it is late.
    waits: i64,
    /// When one of these last went on, seconds.
    moved_s: f64,
}

/// A change of a route's lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Late,
    InTime,
}

impl Lateness {
    /// Takes how late the oldest message is, in seconds; answers what that begins, if anything.
    pub(super) fn look(&mut self, late_s: f64) -> Option<Turn> {
        let late = if self.late { late_s >= IN_TIME_S } else { late_s >= LATE_S };
        let turn = if late { Turn::Late } else { Turn::InTime };
        (std::mem::replace(&mut self.late, late) != late).then_some(turn)
    }

    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Takes how many messages wait now. Whether those that are late become fewer, or less late: what is slow then is
    /// the way, and nothing stands still.
    pub(super) fn catches_up(&mut self, now_s: f64, late_s: f64, waits: i64) -> bool {
        if !self.late {
            self.progress = None;
            return false;
        }
        let oldest_s = now_s - late_s;
        let begin = Progress { oldest_s, waits, moved_s: now_s - PROGRESS_S };
        let progress = self.progress.get_or_insert(begin);
        // While a message stands still, its moment differs by no more than two clocks do.
        if oldest_s > progress.oldest_s + CLOCKS_S || waits < progress.waits {
            progress.moved_s = now_s;
        }
        progress.oldest_s = oldest_s.max(progress.oldest_s);
        progress.waits = waits.min(progress.waits);
        now_s - progress.moved_s < PROGRESS_S
    }
}

impl Turn {
    pub(super) fn tell(self, route: &RouteName, late_s: f64, causes: &str) {
        match self {
            Self::Late => warn!(%route, late_s, causes, "messages are late"),
            Self::InTime => info!(%route, "messages are in time again"),
        }
    }
}

/// Why a route may be late: what of its way is in trouble, given all parts that are; how many messages wait, if it
/// catches up; where its oldest message is, if nothing else is known.
pub(super) fn causes(
    route: &Route,
    paused: bool,
    waits: Option<i64>,
    oldest: Option<OverduePlace>,
    trouble: &BTreeMap<String, String>,
) -> String {
    let mut causes = Vec::new();
    if paused {
        causes.push("publishing is paused".to_owned());
    }
    let targets = route.targets().map(|target| format!("target:{}", route::describe(target)));
    let store = ["redis", "store", "store:room"].map(str::to_owned);
    for part in store.into_iter().chain(targets) {
        causes.extend(trouble.get(&part).map(|why| format!("{part}: {why}")));
    }
    if route.policy.rate.is_some() {
        causes.push("the route's rate is limited".to_owned());
    }
    causes.extend(waits.map(|waits| format!("it catches up: {waits} messages wait")));
    if causes.is_empty() {
        let place = oldest.map_or("is delivered by now", OverduePlace::words);
        return format!("no trouble is known; the oldest {place}");
    }
    causes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    #[test]
    fn a_route_is_late_from_three_seconds_until_less_than_one() {
        let mut lateness = Lateness::default();
        let turns = [0.0, 2.9, 3.0, 9.0, 1.0, 0.9, 2.0].map(|late_s| lateness.look(late_s));
        let (late, in_time) = (Some(Turn::Late), Some(Turn::InTime));
        assert_eq!(turns, [None, None, late, None, None, in_time, None]);
    }

    #[test]
    fn a_late_route_catches_up_while_less_waits_or_what_waits_is_younger_and_not_when_it_stands() {
        let mut lateness = Lateness::default();
        assert!(!lateness.catches_up(100.0, 0.0, 50), "it is in time");
        lateness.look(3.0);
        // The moment, how late it is then, how many wait, whether that is progress.
        for (now_s, late_s, waits, expected) in [
            (101.0, 4.0, 50, false),
            (102.0, 5.0, 50, false),
            (103.0, 6.0, 49, true),
            (107.0, 10.0, 60, true),
            (108.0, 11.0, 49, false),
            (109.0, 11.5, 60, true),
            (113.9, 16.4, 60, true),
            (114.0, 16.5, 60, false),
        ] {
            assert_eq!(lateness.catches_up(now_s, late_s, waits), expected, "at {now_s}");
        }
        lateness.look(0.0);
        assert!(!lateness.catches_up(115.0, 0.0, 0));
    }

    #[test]
    fn whatever_is_in_trouble_on_its_way_is_named_and_nothing_else() {
        let route = testing::route();
        let target = format!("target:{}", route::describe(&route.to));
        let trouble = |parts: &[&str]| parts.iter().map(|p| ((*p).to_owned(), "away".to_owned())).collect();
        let none = causes(&route, false, None, None, &trouble(&["target:main:another", "kafka:main"]));
        assert_eq!(none, "no trouble is known; the oldest is delivered by now");
        let claimed = causes(&route, false, None, Some(OverduePlace::Claimed(1)), &BTreeMap::new());
        assert_eq!(claimed, "no trouble is known; the oldest is claimed by this replica and not settled");
        let all = causes(&route, true, Some(7), Some(OverduePlace::Waiting), &trouble(&["redis", &target]));
        let expected = format!("publishing is paused; redis: away; {target}: away");
        assert_eq!(all, format!("{expected}; it catches up: 7 messages wait"));
    }
}
