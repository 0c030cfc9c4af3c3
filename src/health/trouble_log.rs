//! The log's lines of a trouble: one when it begins, one when another cause is found, and one when it is over.
//!
//! A part that waits for another one has no lines. Connections have lines of whoever keeps them up.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::troubles::TroubleKind;
use super::{PartTrouble, troubles};
use crate::domain::UnixMs;

/// Looks at which a part must be in trouble by itself before the log says so. By then a connection that is lost is known to
/// be.
const TELL_AFTER: u32 = 2;
/// How long a part that was in trouble for less is remembered, ms: what comes and goes is told too.
const REMEMBERED_MS: i64 = 10_000;
/// Shortest time between the first line of a trouble and one that it has another cause, ms: what is written first is
/// often a symptom.
const FIRST_CHANGE_MS: i64 = 5000;
/// Shortest time between two lines that a trouble has another cause, ms.
const CHANGE_MS: i64 = 30_000;
/// Most parts that a line names.
const MAX_NAMED: usize = 10;

/// The troubles that the log has told, or will tell soon.
#[derive(Debug, Default)]
pub struct TroubleLog {
    seen: BTreeMap<String, SeenTrouble>,
}

/// A part that was in trouble by itself.
#[derive(Debug)]
struct SeenTrouble {
    /// Since when, by the last look.
    since: UnixMs,
    looks: u32,
    /// When it was last seen so.
    last: UnixMs,
    /// The log has a cause of it: this one, without its figures.
    told_why: String,
    /// Before this moment no other cause is told.
    quiet_until: UnixMs,
    is_explained: bool,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
enum TroubleNews {
    Begins {
        part: String,
        why: String,
        follows: Vec<String>,
    },
    Explained {
        part: String,
        why: String,
    },
    Over {
        part: String,
        lasted_s: i64,
    },
}

impl TroubleLog {
    /// Takes the parts that are not up, and logs what has begun or ended since the last look.
    pub fn look(&mut self, not_up: &BTreeMap<String, PartTrouble>, now: UnixMs) {
        for news in self.news(not_up, now) {
            news.log();
        }
    }

    fn news(&mut self, not_up: &BTreeMap<String, PartTrouble>, now: UnixMs) -> Vec<TroubleNews> {
        let mut news = Vec::new();
        self.seen.retain(|part, seen| {
            // What began later than it did by the last look is another trouble: the part was up in between. The clock of
            // now does not tell: it may have stepped back.
            if let Some(trouble) = not_up.get(part)
                && trouble.since <= seen.since
            {
                return true;
            }
            let is_told = seen.looks >= TELL_AFTER;
            if is_told {
                news.push(TroubleNews::Over {
                    part: part.clone(),
                    lasted_s: now.since(seen.since).max(0) / 1000,
                });
            }
            !is_told && now.since(seen.last) < REMEMBERED_MS
        });
        for trouble in troubles::of(not_up) {
            if is_told_by_its_owner(&trouble.part) {
                continue;
            }
            let seen = self
                .seen
                .entry(trouble.part.clone())
                .or_insert(SeenTrouble {
                    since: trouble.since,
                    looks: 0,
                    last: now,
                    told_why: String::new(),
                    quiet_until: now,
                    is_explained: true,
                });
            seen.looks = seen.looks.saturating_add(1);
            seen.last = now;
            if seen.looks == TELL_AFTER {
                seen.told_why = troubles::without_numbers(&trouble.why);
                seen.quiet_until = now.plus(FIRST_CHANGE_MS);
                seen.is_explained = is_explained(not_up, &trouble.part);
                news.push(TroubleNews::Begins {
                    part: trouble.part,
                    why: trouble.why,
                    follows: trouble.follows,
                });
            }
        }
        for (part, seen) in &mut self.seen {
            let Some(trouble) = not_up.get(part) else {
                continue;
            };
            seen.since = trouble.since;
            if seen.looks < TELL_AFTER {
                // It follows from another one now: what it was before says nothing.
                seen.looks = if seen.last == now { seen.looks } else { 0 };
                continue;
            }
            let why = troubles::without_numbers(&trouble.why);
            let is_explained = is_explained(not_up, part);
            let is_found = is_explained && !seen.is_explained;
            let is_another = why != seen.told_why && now >= seen.quiet_until;
            if is_found || is_another {
                seen.told_why = why;
                seen.quiet_until = now.plus(CHANGE_MS);
                seen.is_explained = is_explained;
                news.push(TroubleNews::Explained {
                    part: part.clone(),
                    why: trouble.why.clone(),
                });
            }
        }
        news
    }
}

/// True if the cause of a part's trouble is known.
fn is_explained(not_up: &BTreeMap<String, PartTrouble>, part: &str) -> bool {
    not_up
        .get(part)
        .is_none_or(|part| part.kind != TroubleKind::Unknown)
}

/// True for connections and the store's identity: whoever keeps them up logs what happens to them.
fn is_told_by_its_owner(part: &str) -> bool {
    let kind = part.split(':').next();
    part == "store" || matches!(kind, Some("redis" | "kafka" | "rabbitmq"))
}

/// The names of these parts, of many the first ones; `None` if there are none.
fn named(parts: &[String]) -> Option<String> {
    let names = parts.get(..MAX_NAMED).unwrap_or(parts).join(", ");
    match parts.len() {
        0 => None,
        1..=MAX_NAMED => Some(names),
        number => Some(format!("{names} and {} more", number - MAX_NAMED)),
    }
}

impl TroubleNews {
    fn log(self) {
        match self {
            Self::Begins { part, why, follows } => {
                let follows = named(&follows);
                warn!(part, why, follows, "trouble begins");
            }
            Self::Explained { part, why } => {
                warn!(part, why, "the cause of a trouble is another one");
            }
            Self::Over { part, lasted_s } => info!(part, lasted_s, "trouble is over"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One look at these parts (name, what it waits for, whether its cause is known), in words.
    fn told(log: &mut TroubleLog, at_s: i64, parts: &[(&str, Option<&str>, bool)]) -> Vec<String> {
        told_since(log, at_s, 0, parts)
    }

    /// The same, where all of them are in trouble since then.
    fn told_since(
        log: &mut TroubleLog,
        at_s: i64,
        since_s: i64,
        parts: &[(&str, Option<&str>, bool)],
    ) -> Vec<String> {
        let not_up = parts.iter().map(|(name, because, is_known)| {
            let trouble = PartTrouble {
                why: "why".to_owned(),
                because: because.map(str::to_owned),
                since: UnixMs(since_s * 1000),
                kind: if *is_known {
                    TroubleKind::Known
                } else {
                    TroubleKind::Unknown
                },
                needs: None,
            };
            ((*name).to_owned(), trouble)
        });
        let news = log.news(&not_up.collect(), UnixMs(at_s * 1000));
        let words = news.into_iter().map(|news| match news {
            TroubleNews::Begins { part, follows, .. } => {
                format!("{part} begins: {}", follows.join(" "))
            }
            TroubleNews::Explained { part, .. } => format!("{part} is explained"),
            TroubleNews::Over { part, lasted_s } => format!("{part} is over after {lasted_s} s"),
        });
        words.collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn a_trouble_begins_and_ends_once_with_what_follows_from_it() {
        let mut log = TroubleLog::default();
        let target = [
            ("target:main:x", None, true),
            ("route:a", Some("target:main:x"), true),
        ];
        assert_eq!(told(&mut log, 1, &target), NONE);
        assert_eq!(
            told(&mut log, 2, &target),
            ["target:main:x begins: route:a"]
        );
        assert_eq!(told(&mut log, 3, &target), NONE);
        let late = [("route:a", None, true)];
        assert_eq!(
            told(&mut log, 9, &late),
            ["target:main:x is over after 9 s"]
        );
        assert_eq!(
            told(&mut log, 10, &[]),
            NONE,
            "it was late for a moment more"
        );
        assert_eq!(told(&mut log, 11, &[]), NONE);
    }

    #[test]
    fn what_turns_out_to_follow_from_another_one_is_not_told_again() {
        let mut log = TroubleLog::default();
        let late = [("route:a", None, false)];
        told(&mut log, 1, &late);
        assert_eq!(told(&mut log, 2, &late), ["route:a begins: "]);
        let kafka = [
            ("kafka:main", None, true),
            ("route:a", Some("kafka:main"), true),
        ];
        assert_eq!(told(&mut log, 3, &kafka), ["route:a is explained"]);
        assert_eq!(
            told(&mut log, 4, &kafka),
            NONE,
            "the connection tells itself"
        );
        assert_eq!(told(&mut log, 5, &late), NONE);
        assert_eq!(told(&mut log, 7, &[]), ["route:a is over after 7 s"]);
    }

    #[test]
    fn what_comes_and_goes_is_told_and_what_is_seen_once_is_not() {
        let mut log = TroubleLog::default();
        let source = [("source:a", None, true)];
        assert_eq!(told(&mut log, 1, &source), NONE);
        assert_eq!(told(&mut log, 2, &[]), NONE);
        assert_eq!(told(&mut log, 6, &source), ["source:a begins: "]);
        assert_eq!(told(&mut log, 7, &[]), ["source:a is over after 7 s"]);
        assert_eq!(told(&mut log, 8, &source), NONE);
        assert_eq!(told(&mut log, 18, &[]), NONE);
        assert_eq!(told(&mut log, 19, &source), NONE, "it was forgotten");
    }

    #[test]
    fn what_ends_and_begins_again_between_two_looks_is_over() {
        for again in [None, Some("redis")] {
            let mut log = TroubleLog::default();
            let late = [("route:a", None, true)];
            told(&mut log, 1, &late);
            assert_eq!(told(&mut log, 3, &late), ["route:a begins: "]);
            let parts = [("redis", None, true), ("route:a", again, true)];
            assert_eq!(
                told_since(&mut log, 5, 4, &parts),
                ["route:a is over after 5 s"],
                "{again:?}"
            );
            let begins: &[&str] = match again {
                None => &["route:a begins: "],
                Some(_) => &[],
            };
            assert_eq!(told_since(&mut log, 6, 4, &parts), begins, "{again:?}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_neither_ends_a_trouble_nor_begins_it_again() {
        let mut log = TroubleLog::default();
        let late = [("route:a", None, true)];
        told_since(&mut log, 100, 99, &late);
        assert_eq!(told_since(&mut log, 101, 99, &late), ["route:a begins: "]);
        for at_s in 41..45 {
            assert_eq!(told_since(&mut log, at_s, 99, &late), NONE, "at {at_s}");
        }
        // It is found to have lasted longer.
        assert_eq!(told_since(&mut log, 45, 31, &late), NONE);
        assert_eq!(told(&mut log, 46, &[]), ["route:a is over after 15 s"]);
    }

    #[test]
    fn of_many_parts_that_follow_the_first_are_named() {
        let parts = |number: usize| {
            (0..number)
                .map(|n| format!("route:{n}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(named(&parts(0)), None);
        assert_eq!(named(&parts(2)).as_deref(), Some("route:0, route:1"));
        let many = named(&parts(12)).expect("some");
        assert!(many.ends_with("route:9 and 2 more"), "{many}");
    }

    #[test]
    fn a_consequence_that_outlives_its_cause_is_told_then() {
        let mut log = TroubleLog::default();
        let kafka = [
            ("kafka:main", None, true),
            ("route:a", Some("kafka:main"), true),
        ];
        for at_s in 1..5 {
            assert_eq!(told(&mut log, at_s, &kafka), NONE);
        }
        let late = [("route:a", None, true)];
        assert_eq!(told(&mut log, 5, &late), NONE);
        assert_eq!(told(&mut log, 6, &late), ["route:a begins: "]);
        assert_eq!(told(&mut log, 7, &[]), ["route:a is over after 7 s"]);
    }

    #[test]
    fn the_first_cause_is_corrected_soon_and_the_next_ones_seldom() {
        let mut log = TroubleLog::default();
        let mut lines = |at_s: i64, why: &str| {
            let trouble = PartTrouble {
                why: why.to_owned(),
                because: None,
                since: UnixMs(0),
                kind: TroubleKind::Known,
                needs: None,
            };
            let not_up = BTreeMap::from([("target:main:x".to_owned(), trouble)]);
            log.news(&not_up, UnixMs(at_s * 1000)).len()
        };
        let symptom = "no answer to a publish for 3 s";
        assert_eq!((lines(1, symptom), lines(2, symptom)), (0, 1));
        let cause = "partition 2 of x has no leader";
        assert_eq!((lines(6, cause), lines(7, cause)), (0, 1));
        assert_eq!((lines(8, symptom), lines(36, symptom)), (0, 0));
        assert_eq!(lines(37, symptom), 1);
    }
}
