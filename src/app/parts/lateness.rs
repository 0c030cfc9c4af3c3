//! Lateness of a route, and its causes as far as known. Pure but for the log lines.

use std::collections::BTreeMap;

use tracing::{info, warn};

use crate::domain::{Route, RouteName, route};

/// A route is late from so many seconds on, and in time again below so few.
const LATE_S: f64 = 3.0;
const IN_TIME_S: f64 = 1.0;

/// Lateness of a route, with a little patience at both ends.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    late: bool,
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
}

impl Turn {
    pub(super) fn tell(self, route: &RouteName, late_s: f64, causes: &str) {
        match self {
            Self::Late => warn!(%route, late_s, causes, "messages are late"),
            Self::InTime => info!(%route, "messages are in time again"),
        }
    }
}

/// Why a route may be late: what of its way is in trouble, given all parts that are.
pub(super) fn causes(route: &Route, paused: bool, trouble: &BTreeMap<String, String>) -> String {
    let mut causes = Vec::new();
    if paused {
        causes.push("publishing is paused".to_owned());
    }
    let targets = route.targets().map(|target| format!("target:{}", route::describe(target)));
    for part in ["redis".to_owned(), "store".to_owned()].into_iter().chain(targets) {
        causes.extend(trouble.get(&part).map(|why| format!("{part}: {why}")));
    }
    if route.policy.rate.is_some() {
        causes.push("the route's rate is limited".to_owned());
    }
    if causes.is_empty() { "no trouble is known; see what waits".to_owned() } else { causes.join("; ") }
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
    fn whatever_is_in_trouble_on_its_way_is_named_and_nothing_else() {
        let route = testing::route();
        let target = format!("target:{}", route::describe(&route.to));
        let trouble = |parts: &[&str]| parts.iter().map(|p| ((*p).to_owned(), "away".to_owned())).collect();
        let none = causes(&route, false, &trouble(&["target:main:another", "kafka:main"]));
        assert_eq!(none, "no trouble is known; see what waits");
        let all = causes(&route, true, &trouble(&["redis", &target]));
        assert_eq!(all, format!("publishing is paused; redis: away; {target}: away"));
    }
}
