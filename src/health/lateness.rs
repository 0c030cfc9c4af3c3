//! Lateness of a route, and its causes as far as they are known. Pure.

use std::collections::BTreeMap;

use super::{FullCredit, OverduePlace, PartTrouble, RouteHealth};
use crate::domain::{Route, UnixMs, route};

/// Lateness from which on a route is late, seconds.
const LATE_FROM_S: f64 = 3.0;
/// Lateness below which a late route is in time again, seconds.
const IN_TIME_BELOW_S: f64 = 1.0;

/// Window of catching up, seconds: a late route catches up if fewer messages wait, or younger ones, than this long ago.
const CATCH_UP_WINDOW_S: f64 = 5.0;

/// Lateness of a route. It begins and ends at different limits, so that it does not flap.
#[derive(Debug)]
pub struct RouteLateness {
    /// When this process began.
    began: UnixMs,
    late: bool,
    catch_up: Option<CatchUp>,
}

/// Progress of a late route.
#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// Requested due time of its oldest message.
    oldest: UnixMs,
    /// Fewest messages that waited since it is late.
    waits: i64,
    /// Time of the last progress of either, seconds.
    moved_s: f64,
}

/// The causes of a route's lateness, in words.
#[derive(Debug, PartialEq, Eq)]
pub struct LatenessCauses {
    /// The causes, in words.
    pub words: String,
    /// False if the words only say where the oldest message is.
    pub is_known: bool,
    /// The first part that is to blame.
    pub part: Option<String>,
}

impl RouteLateness {
    /// The lateness of a route in a process that began then.
    pub fn new(began: UnixMs) -> Self {
        Self {
            began,
            late: false,
            catch_up: None,
        }
    }

    /// Takes the lateness of the oldest message, in seconds. Reports whether the route is late.
    pub fn update(&mut self, late_s: f64) -> bool {
        self.late = if self.late {
            late_s >= IN_TIME_BELOW_S
        } else {
            late_s >= LATE_FROM_S
        };
        self.late
    }

    /// Takes the requested due time of the oldest message, and how many wait now. Reports whether the late messages become
    /// fewer, or less late: then the way to the target is slow, but nothing stands still. What fell due before this process
    /// began has waited for it, and gets the time of one window.
    pub fn catches_up(&mut self, now_s: f64, oldest: Option<UnixMs>, waits: i64) -> bool {
        let Some(oldest) = oldest.filter(|_| self.late) else {
            self.catch_up = None;
            return false;
        };
        let begin = CatchUp {
            oldest,
            waits,
            moved_s: if oldest < self.began {
                now_s
            } else {
                now_s - CATCH_UP_WINDOW_S
            },
        };
        let catch_up = self.catch_up.get_or_insert(begin);
        if oldest > catch_up.oldest || waits < catch_up.waits {
            catch_up.moved_s = now_s;
        }
        catch_up.oldest = oldest.max(catch_up.oldest);
        catch_up.waits = waits.min(catch_up.waits);
        now_s - catch_up.moved_s < CATCH_UP_WINDOW_S
    }
}

/// The causes of a route's lateness: parts on its way that are in trouble, that it catches up, a full credit, and the place
/// of its oldest message if nothing else is known. `trouble` holds all parts in trouble.
pub fn causes(
    route: &Route,
    health: &RouteHealth,
    catches_up: bool,
    trouble: &BTreeMap<String, PartTrouble>,
) -> LatenessCauses {
    let pause = health.publishing_pause();
    let oldest = health.overdue.place();
    let mut causes = Vec::new();
    let mut to_blame = None;
    if let Some(pause) = &pause {
        causes.push(format!("publishing is {pause}"));
    }
    let targets = route
        .targets()
        .map(|target| format!("target:{}", route::describe(target)));
    let store = ["redis", "store", "store:room"].map(str::to_owned);
    for part in store.into_iter().chain(targets) {
        if let Some(PartTrouble { why, .. }) = trouble.get(&part) {
            causes.push(format!("{part}: {why}"));
            to_blame.get_or_insert(part);
        }
    }
    if let Some(FullCredit {
        target, messages, ..
    }) = health.full_credits.cause()
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
            part: None,
        };
    }
    LatenessCauses {
        words: causes.join("; "),
        is_known: true,
        // Who has paused the route is to blame before any part.
        part: to_blame.filter(|_| pause.is_none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{RateLimit, testing};
    use crate::health::Overdue;
    use crate::health::troubles::TroubleKind;

    #[test]
    fn a_route_is_late_from_three_seconds_until_less_than_one() {
        let mut lateness = RouteLateness::new(UnixMs(0));
        let late = [0.0, 2.9, 3.0, 9.0, 1.0, 0.9, 2.0].map(|late_s| lateness.update(late_s));
        assert_eq!(late, [false, false, true, true, true, false, false]);
    }

    #[test]
    fn a_late_route_catches_up_while_less_waits_or_what_waits_is_younger_and_not_when_it_stands() {
        let mut lateness = RouteLateness::new(UnixMs(90_000));
        let asked = |oldest_s: f64| Some(UnixMs((oldest_s * 1e3) as i64));
        assert!(
            !lateness.catches_up(100.0, asked(97.0), 50),
            "it is in time"
        );
        lateness.update(3.0);
        // The moment, when the oldest was due, how many wait, whether that is progress.
        for (now_s, oldest_s, waits, expected) in [
            (101.0, 97.0, 50, false),
            (102.0, 97.0, 50, false),
            (103.0, 97.0, 49, true),
            (107.0, 97.0, 60, true),
            (108.0, 97.0, 49, false),
            (109.0, 97.5, 60, true),
            (113.9, 97.5, 60, true),
            (114.0, 97.5, 60, false),
        ] {
            assert_eq!(
                lateness.catches_up(now_s, asked(oldest_s), waits),
                expected,
                "at {now_s}"
            );
        }
        lateness.update(0.0);
        assert!(!lateness.catches_up(115.0, None, 0));
        // What fell due before the process began.
        lateness.update(30.0);
        for (now_s, expected) in [(116.0, true), (120.9, true), (121.0, false)] {
            let catches_up = lateness.catches_up(now_s, asked(89.0), 50);
            assert_eq!(catches_up, expected, "at {now_s}");
        }
    }

    #[test]
    fn whatever_is_in_trouble_on_its_way_is_named_and_nothing_else() {
        let route = testing::route();
        let target = format!("target:{}", route::describe(&route.to));
        let trouble = |parts: &[&str]| {
            parts
                .iter()
                .map(|part| {
                    let trouble = PartTrouble {
                        why: "away".to_owned(),
                        because: None,
                        since: UnixMs(0),
                        kind: TroubleKind::Known,
                        needs: None,
                    };
                    ((*part).to_owned(), trouble)
                })
                .collect()
        };
        let health = RouteHealth::default();
        let told = |parts: &[&str]| causes(&route, &health, false, &trouble(parts));
        let none = told(&["target:main:another", "kafka:main"]);
        assert_eq!(
            none.words,
            "no trouble is known; the oldest is delivered by now"
        );
        let at = |place, moment| {
            let (asked, seen) = (UnixMs(moment), UnixMs(9));
            health.overdue.report(place, Some(Overdue { asked, seen }));
        };
        at(OverduePlace::Claimed(1), 9);
        let claimed = told(&[]);
        assert!(!claimed.is_known && !none.is_known);
        assert_eq!(
            claimed.words,
            "no trouble is known; the oldest is claimed by this replica and not settled"
        );
        at(OverduePlace::DeadReplica, 8);
        let dead = told(&[]);
        assert!(dead.is_known);
        assert_eq!(
            dead.words,
            "a replica is dead, and what it had claimed comes back when its claims end"
        );
        at(OverduePlace::Waiting, 7);
        let mut limited = Route::clone(&route);
        limited.policy.rate = Some(RateLimit {
            per_second: 100,
            burst: 0,
        });
        let of_credit = || causes(&limited, &health, false, &BTreeMap::new()).words;
        assert_eq!(of_credit(), "the route's rate is limited");
        let full = FullCredit {
            target: "main:orders".into(),
            messages: 198,
            taken: 200,
        };
        health.full_credits.report(0, Some(full));
        assert_eq!(
            of_credit(),
            "the credit of the route is full: 198 messages are claimed and wait for main:orders"
        );
        health.full_credits.report(0, None);
        health.paused(testing::paused());
        let all = causes(&route, &health, true, &trouble(&["redis", &target]));
        let expected = format!(
            "publishing is paused by hand since 1970-01-01T00:00:01.000Z by ann: #4711; redis: away; {target}: away"
        );
        assert_eq!(all.words, format!("{expected}; it catches up"));
    }
}
