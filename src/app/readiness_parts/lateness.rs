//! Lateness of a route, and its causes as far as they are known. Pure except for the log lines.

use std::collections::BTreeMap;

use tracing::{info, warn};

use crate::domain::{Route, RouteName, route};
use crate::telemetry::{FullCredit, OverduePlace};

/// Lateness from which on a route is late, seconds.
const LATE_FROM_S: f64 = 3.0;
/// Lateness below which a late route is in time again, seconds.
const IN_TIME_BELOW_S: f64 = 1.0;

/// Window of catching up, seconds: a late route catches up if fewer messages wait, or younger ones, than this long ago.
const CATCH_UP_WINDOW_S: f64 = 5.0;
/// Bound of the difference between the store's clock and this process's within a few seconds, seconds.
const CLOCK_TOLERANCE_S: f64 = 0.1;

/// Lateness of a route. It begins and ends at different limits, so that it does not flap.
#[derive(Debug, Default)]
pub(super) struct RouteLateness {
    late: bool,
    /// The log has a cause of it.
    is_explained: bool,
    catch_up: Option<CatchUp>,
}

/// Progress of a late route.
#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// Requested delivery time of its oldest message, seconds.
    oldest_s: f64,
    /// Fewest messages that waited since it is late.
    waits: i64,
    /// Time of the last progress of either, seconds.
    moved_s: f64,
}

/// A change of a route's lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatenessChange {
    Late,
    /// A cause was found only after the lateness was logged without one.
    Explained,
    InTime,
}

/// The causes of a route's lateness, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LatenessCauses {
    pub(super) words: String,
    /// False if the words only say where the oldest message is.
    pub(super) is_known: bool,
}

impl RouteLateness {
    /// Takes the lateness of the oldest message, in seconds. Answers the change that it makes, if any.
    pub(super) fn update(&mut self, late_s: f64) -> Option<LatenessChange> {
        let late = if self.late {
            late_s >= IN_TIME_BELOW_S
        } else {
            late_s >= LATE_FROM_S
        };
        let change = if late {
            LatenessChange::Late
        } else {
            LatenessChange::InTime
        };
        (std::mem::replace(&mut self.late, late) != late).then_some(change)
    }

    /// Takes the causes that are known now. Answers what the log has to say: the change, or a cause that was not known
    /// when the lateness was logged.
    pub(super) fn news(
        &mut self,
        change: Option<LatenessChange>,
        is_known: bool,
    ) -> Option<LatenessChange> {
        if change.is_some() {
            self.is_explained = is_known;
            return change;
        }
        if !self.late || !is_known || self.is_explained {
            return None;
        }
        self.is_explained = true;
        Some(LatenessChange::Explained)
    }

    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Takes the number of messages that wait now. Reports whether the late messages become fewer, or less late: then the
    /// way to the target is slow, but nothing stands still.
    pub(super) fn catches_up(&mut self, now_s: f64, late_s: f64, waits: i64) -> bool {
        if !self.late {
            self.catch_up = None;
            return false;
        }
        let oldest_s = now_s - late_s;
        let begin = CatchUp {
            oldest_s,
            waits,
            moved_s: now_s - CATCH_UP_WINDOW_S,
        };
        let catch_up = self.catch_up.get_or_insert(begin);
        // While the oldest message stands still, its time varies by no more than the two clocks differ.
        if oldest_s > catch_up.oldest_s + CLOCK_TOLERANCE_S || waits < catch_up.waits {
            catch_up.moved_s = now_s;
        }
        catch_up.oldest_s = oldest_s.max(catch_up.oldest_s);
        catch_up.waits = waits.min(catch_up.waits);
        now_s - catch_up.moved_s < CATCH_UP_WINDOW_S
    }
}

impl LatenessChange {
    /// Logs the change.
    pub(super) fn log(self, route: &RouteName, late_s: f64, causes: &str) {
        match self {
            Self::Late => warn!(%route, late_s, causes, "messages are late"),
            Self::Explained => {
                warn!(%route, late_s, causes, "messages are late: the cause is known");
            }
            Self::InTime => info!(%route, "messages are in time again"),
        }
    }
}

/// The causes of a route's lateness: parts on its way that are in trouble, that it catches up, a full credit, and the place
/// of its oldest message if nothing else is known. `trouble` holds all parts in trouble.
pub(super) fn causes(
    route: &Route,
    paused: bool,
    catches_up: bool,
    oldest: Option<OverduePlace>,
    full: Option<&FullCredit>,
    trouble: &BTreeMap<String, String>,
) -> LatenessCauses {
    let mut causes = Vec::new();
    if paused {
        causes.push("publishing is paused".to_owned());
    }
    let targets = route
        .targets()
        .map(|target| format!("target:{}", route::describe(target)));
    let store = ["redis", "store", "store:room"].map(str::to_owned);
    for part in store.into_iter().chain(targets) {
        causes.extend(trouble.get(&part).map(|why| format!("{part}: {why}")));
    }
    if let Some(FullCredit {
        target, messages, ..
    }) = full
    {
        causes.push(format!(
            "the credit of the route is full: {messages} messages are claimed and wait for {target}"
        ));
    } else if route.policy.rate.is_some() {
        causes.push("the route's rate is limited".to_owned());
    }
    if catches_up {
        causes.push("it catches up".to_owned());
    }
    if oldest == Some(OverduePlace::DeadReplica) {
        causes.push(
            "a replica is dead, and what it had claimed comes back when its claims end".to_owned(),
        );
    }
    if causes.is_empty() {
        let place = oldest.map_or("is delivered by now", OverduePlace::words);
        return LatenessCauses {
            words: format!("no trouble is known; the oldest {place}"),
            is_known: false,
        };
    }
    LatenessCauses {
        words: causes.join("; "),
        is_known: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{RateLimit, testing};

    #[test]
    fn a_route_is_late_from_three_seconds_until_less_than_one() {
        let mut lateness = RouteLateness::default();
        let changes = [0.0, 2.9, 3.0, 9.0, 1.0, 0.9, 2.0].map(|late_s| lateness.update(late_s));
        let late = Some(LatenessChange::Late);
        let in_time = Some(LatenessChange::InTime);
        assert_eq!(changes, [None, None, late, None, None, in_time, None]);
    }

    #[test]
    fn a_cause_that_is_found_later_is_told_once() {
        let mut lateness = RouteLateness::default();
        let mut news = |late_s, is_known| {
            let change = lateness.update(late_s);
            lateness.news(change, is_known)
        };
        assert_eq!(news(1.0, true), None);
        assert_eq!(news(3.0, false), Some(LatenessChange::Late));
        assert_eq!(news(4.0, false), None);
        assert_eq!(news(5.0, true), Some(LatenessChange::Explained));
        assert_eq!(news(6.0, true), None);
        assert_eq!(news(0.0, false), Some(LatenessChange::InTime));
        assert_eq!(news(3.0, true), Some(LatenessChange::Late));
        assert_eq!(news(4.0, false), None);
        assert_eq!(news(5.0, true), None, "it was told");
    }

    #[test]
    fn a_late_route_catches_up_while_less_waits_or_what_waits_is_younger_and_not_when_it_stands() {
        let mut lateness = RouteLateness::default();
        assert!(!lateness.catches_up(100.0, 0.0, 50), "it is in time");
        lateness.update(3.0);
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
            assert_eq!(
                lateness.catches_up(now_s, late_s, waits),
                expected,
                "at {now_s}"
            );
        }
        lateness.update(0.0);
        assert!(!lateness.catches_up(115.0, 0.0, 0));
    }

    #[test]
    fn whatever_is_in_trouble_on_its_way_is_named_and_nothing_else() {
        let route = testing::route();
        let target = format!("target:{}", route::describe(&route.to));
        let trouble = |parts: &[&str]| {
            parts
                .iter()
                .map(|p| ((*p).to_owned(), "away".to_owned()))
                .collect()
        };
        let none = causes(
            &route,
            false,
            false,
            None,
            None,
            &trouble(&["target:main:another", "kafka:main"]),
        );
        assert_eq!(
            none.words,
            "no trouble is known; the oldest is delivered by now"
        );
        let claimed = causes(
            &route,
            false,
            false,
            Some(OverduePlace::Claimed(1)),
            None,
            &BTreeMap::new(),
        );
        assert!(!claimed.is_known && !none.is_known);
        assert_eq!(
            claimed.words,
            "no trouble is known; the oldest is claimed by this replica and not settled"
        );
        let full = FullCredit {
            target: "main:orders".into(),
            messages: 198,
            taken: 200,
        };
        let mut limited = Route::clone(&route);
        limited.policy.rate = Some(RateLimit {
            per_second: 100,
            burst: 0,
        });
        let waiting = Some(OverduePlace::Waiting);
        let of_credit = |full| causes(&limited, false, false, waiting, full, &BTreeMap::new());
        assert_eq!(
            of_credit(Some(&full)).words,
            "the credit of the route is full: 198 messages are claimed and wait for main:orders"
        );
        assert_eq!(of_credit(None).words, "the route's rate is limited");
        let dead = causes(
            &route,
            false,
            false,
            Some(OverduePlace::DeadReplica),
            None,
            &BTreeMap::new(),
        );
        assert!(dead.is_known);
        assert_eq!(
            dead.words,
            "a replica is dead, and what it had claimed comes back when its claims end"
        );
        let all = causes(
            &route,
            true,
            true,
            Some(OverduePlace::Waiting),
            None,
            &trouble(&["redis", &target]),
        );
        let expected = format!("publishing is paused; redis: away; {target}: away");
        assert_eq!(all.words, format!("{expected}; it catches up"));
    }
}
