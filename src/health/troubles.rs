//! Troubles of the process: one for each cause, with the parts that follow from it. Pure.
//!
//! A part that is not up says why, and which part it waits for, if it waits for one. Parts of one connection that are not
//! up have one cause. So the number of troubles is the number of causes, however many routes there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::UnixMs;

/// Most parts of which each waits for the next. No more are looked at, so that none waits for itself.
const MAX_LINKS: usize = 8;

/// A part that is not up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTrouble {
    /// Why, in a sentence.
    pub why: String,
    /// The part that it waits for. `None`: it is in trouble by itself, as far as is known.
    pub because: Option<String>,
    /// Since when, by the clock of this machine.
    pub since: UnixMs,
    /// What is known of its cause.
    pub kind: TroubleKind,
    /// The part without which it cannot be up: the connection of a target.
    pub needs: Option<String>,
}

/// What is known of the cause of a part's trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TroubleKind {
    /// Its reason tells it.
    #[default]
    Known,
    /// Nothing: the reason tells only what is seen.
    Unknown,
    /// A server does not answer. What else of its connection gets no answer has the same cause.
    Unanswered,
}

/// A cause, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The part that is in trouble.
    pub part: String,
    /// Why, in a sentence.
    pub why: String,
    /// Since when, by the clock of this machine.
    pub since: UnixMs,
    /// The parts that are not up because of it, by name.
    pub follows: Vec<String>,
}

/// The troubles of a moment, found by the parts that they concern.
#[derive(Debug, Default)]
pub struct Troubles {
    all: Vec<Trouble>,
    of_part: BTreeMap<String, usize>,
}

impl Troubles {
    pub(super) fn behind(parts: &BTreeMap<String, PartTrouble>) -> Self {
        let all = of(parts);
        let of_part = all.iter().enumerate().flat_map(|(at, trouble)| {
            let parts = std::iter::once(&trouble.part).chain(&trouble.follows);
            parts.map(move |part| (part.clone(), at))
        });
        Self {
            of_part: of_part.collect(),
            all,
        }
    }

    /// All of them: what stops the whole process first, then the longest.
    pub fn all(&self) -> &[Trouble] {
        &self.all
    }

    /// Those that concern one of these parts, in the same order.
    pub fn concerning(&self, parts: impl IntoIterator<Item = String>) -> Vec<&Trouble> {
        let found: BTreeSet<usize> = parts
            .into_iter()
            .filter_map(|part| self.of_part.get(&part).copied())
            .collect();
        found.into_iter().map(|at| &self.all[at]).collect()
    }
}

/// The troubles behind the parts that are not up: what stops the whole process first, then the longest.
pub(super) fn of(parts: &BTreeMap<String, PartTrouble>) -> Vec<Trouble> {
    let mut causes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, part) in parts {
        if let Some(because) = &part.because
            && !parts.contains_key(because)
        {
            // Its owner says within a second whether it is well again.
            continue;
        }
        let cause = cause_of(name, parts);
        let follows = causes.entry(cause).or_default();
        if cause != name {
            follows.push(name.clone());
        }
    }
    let mut troubles: Vec<Trouble> = causes
        .into_iter()
        .filter_map(|(cause, follows)| {
            let trouble = parts.get(cause)?;
            Some(Trouble {
                part: cause.to_owned(),
                why: trouble.why.clone(),
                since: trouble.since,
                follows,
            })
        })
        .collect();
    troubles.sort_by_key(|trouble| (!is_store(&trouble.part), trouble.since));
    troubles
}

/// The part at the beginning of what a part waits for.
fn cause_of<'a>(name: &'a str, parts: &'a BTreeMap<String, PartTrouble>) -> &'a str {
    let mut cause = name;
    for _ in 0..MAX_LINKS {
        let because = parts[cause].because.as_deref();
        match because.and_then(|because| parts.get_key_value(because)) {
            Some((next, _)) => cause = next,
            None => break,
        }
    }
    first_of_connection(cause, parts)
}

/// The first part of the same connection that is in trouble by itself and for the same cause: `kafka:C` before
/// `kafka:C:GROUP` before a target.
fn first_of_connection<'a>(name: &'a str, parts: &'a BTreeMap<String, PartTrouble>) -> &'a str {
    let Some(trouble) = parts.get(name) else {
        return name;
    };
    let is_unanswered = trouble.kind == TroubleKind::Unanswered;
    let own = connection_of(name);
    // Who gets no answer has the trouble of its connection. A message that a target refuses is a trouble of its own.
    let needed = trouble.needs.clone().filter(|_| is_unanswered);
    let Some(connection) = own.or(needed) else {
        return name;
    };
    let mut of_connection = parts
        .range(connection.clone()..)
        .take_while(|(part, _)| part.starts_with(&connection))
        .filter(|(part, other)| {
            connection_of(part).as_ref() == Some(&connection) && other.because.is_none()
        });
    // Groups that cannot reach a broker say so in the same words; a right that one of them lacks is its own trouble.
    let found = of_connection.find(|(part, other)| {
        **part == connection
            || (is_unanswered && other.kind == TroubleKind::Unanswered)
            || without_numbers(&other.why) == without_numbers(&trouble.why)
    });
    let needs_it = |other: &PartTrouble| {
        let needs_it = other.needs.as_ref() == Some(&connection);
        needs_it && other.kind == TroubleKind::Unanswered && other.because.is_none()
    };
    let found = found.or_else(|| parts.iter().find(|(_, other)| needs_it(other)));
    found.map_or(name, |(part, _)| part)
}

/// The connection that a part is, or that it is a group of.
fn connection_of(part: &str) -> Option<String> {
    let mut words = part.split(':');
    match (words.next(), words.next()) {
        (Some(kind @ ("kafka" | "rabbitmq")), Some(name)) => Some(format!("{kind}:{name}")),
        _ => None,
    }
}

/// A reason without its figures and their units, which change all the time.
pub(super) fn without_numbers(why: &str) -> String {
    let mut words = Vec::new();
    let mut is_after_figure = false;
    for word in why.split(' ') {
        let bare = word.trim_end_matches([',', ';', ':', '.']);
        let is_unit = is_after_figure && matches!(bare, "ms" | "s" | "min" | "h" | "d");
        is_after_figure = word.starts_with(|c: char| c.is_ascii_digit());
        if !is_unit {
            words.push(word.replace(|c: char| c.is_ascii_digit(), ""));
        }
    }
    words.retain(|word| word.contains(char::is_alphabetic));
    words.join(" ")
}

fn is_store(part: &str) -> bool {
    part == "redis" || part.starts_with("store")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(parts: &[(&str, Option<&str>)]) -> Vec<String> {
        let parts = (0..).zip(parts).map(|(since, (name, because))| {
            let trouble = PartTrouble {
                why: "why".to_owned(),
                because: because.map(str::to_owned),
                since: UnixMs(since),
                kind: TroubleKind::Known,
                needs: None,
            };
            ((*name).to_owned(), trouble)
        });
        let told = of(&parts.collect());
        told.iter()
            .map(|trouble| format!("{}: {}", trouble.part, trouble.follows.join(" ")))
            .collect()
    }

    #[test]
    fn a_cause_is_told_once_with_all_that_follows_from_it() {
        let kafka = told(&[
            ("kafka:main", None),
            ("kafka:main:orders", None),
            ("kafka:main:bills", None),
            ("source:orders", Some("kafka:main:orders")),
            ("source:bills", Some("kafka:main:bills")),
            ("target:main:orders", Some("kafka:main")),
            ("route:orders", Some("target:main:orders")),
        ]);
        let follows = "kafka:main:bills kafka:main:orders route:orders source:bills source:orders target:main:orders";
        assert_eq!(kafka, [format!("kafka:main: {follows}")]);
    }

    #[test]
    fn groups_of_a_connection_that_only_reads_have_one_cause_too() {
        let groups = told(&[
            ("kafka:main:orders", None),
            ("kafka:main:bills", None),
            ("source:orders", Some("kafka:main:orders")),
        ]);
        assert_eq!(
            groups,
            ["kafka:main:bills: kafka:main:orders source:orders"]
        );
    }

    #[test]
    fn the_troubles_of_a_part_are_found_by_its_name_whether_it_is_the_cause_or_follows() {
        let part = |because: Option<&str>| PartTrouble {
            why: "why".to_owned(),
            because: because.map(str::to_owned),
            since: UnixMs(0),
            kind: TroubleKind::Known,
            needs: None,
        };
        let parts = BTreeMap::from([
            ("kafka:main".to_owned(), part(None)),
            ("route:a".to_owned(), part(Some("kafka:main"))),
            ("source:b".to_owned(), part(None)),
        ]);
        let troubles = Troubles::behind(&parts);
        let of = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            let found = troubles.concerning(names);
            found
                .iter()
                .map(|trouble| trouble.part.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&["route:a", "kafka:main", "route:x"]), ["kafka:main"]);
        assert_eq!(of(&["source:b", "route:a"]), ["kafka:main", "source:b"]);
        assert_eq!(troubles.all().len(), 2);
    }

    #[test]
    fn targets_that_are_silent_together_have_one_cause_and_those_that_refuse_have_each_its_own() {
        let part = |why: &str| PartTrouble {
            why: why.to_owned(),
            because: None,
            since: UnixMs(0),
            kind: TroubleKind::Known,
            needs: None,
        };
        let silent = |s, needs: &str| PartTrouble {
            kind: TroubleKind::Unanswered,
            needs: Some(needs.to_owned()),
            ..part(&format!("no answer to a publish for {s} s"))
        };
        let mut parts: BTreeMap<_, _> = [
            ("target:main:a", silent(3, "kafka:main")),
            ("target:main:b", silent(59, "kafka:main")),
            ("target:main:/c", silent(3, "rabbitmq:main")),
            (
                "target:main:d",
                part("1 publish failed within 1 s: unroutable"),
            ),
            (
                "target:main:e",
                part("2 publishes failed within 4 s: unroutable"),
            ),
            ("kafka:main:rights", part("may not read the group")),
        ]
        .map(|(name, trouble)| (name.to_owned(), trouble))
        .into();
        let told = |parts: &BTreeMap<String, PartTrouble>| -> Vec<String> {
            let told = of(parts).into_iter();
            told.map(|trouble| format!("{}: {}", trouble.part, trouble.follows.join(" ")))
                .collect()
        };
        let others = ["target:main:/c: ", "target:main:d: ", "target:main:e: "];
        let alone = [
            &["kafka:main:rights: "][..],
            &others[..1],
            &["target:main:a: target:main:b"],
            &others[1..],
        ];
        assert_eq!(told(&parts), alone.concat());
        // A group that cannot reach a broker either tells why.
        let refused = PartTrouble {
            kind: TroubleKind::Unanswered,
            ..part("127.0.0.1:9092 refuses connections")
        };
        parts.insert("kafka:main:group".to_owned(), refused);
        let with_group = [
            &[
                "kafka:main:group: target:main:a target:main:b",
                "kafka:main:rights: ",
            ],
            &others[..],
        ];
        assert_eq!(told(&parts), with_group.concat());
    }

    #[test]
    fn a_reason_stays_the_same_while_its_figures_change() {
        let reason = |late: &str| {
            without_numbers(&format!(
                "its oldest message is {late} late: 198 messages wait for a"
            ))
        };
        for late in ["59 s", "1 min 1 s", "2 h"] {
            assert_eq!(reason(late), reason("3.2 s"), "{late}");
        }
        assert_ne!(
            without_numbers("broker 1 away"),
            without_numbers("broker 1 full")
        );
    }

    #[test]
    fn two_causes_are_two_and_the_store_comes_first() {
        let two = told(&[
            ("rabbitmq:main", None),
            ("rabbitmq:main2", None),
            ("redis", None),
            ("store:room", Some("redis")),
            ("source:a", Some("rabbitmq:main2")),
            ("target:main:x", None),
        ]);
        let expected = [
            "redis: store:room",
            "rabbitmq:main: ",
            "rabbitmq:main2: source:a",
            "target:main:x: ",
        ];
        assert_eq!(two, expected);
    }

    #[test]
    fn a_part_whose_cause_is_over_is_no_trouble_of_its_own() {
        let none: [&str; 0] = [];
        assert_eq!(told(&[("source:a", Some("kafka:main"))]), none);
    }
}
