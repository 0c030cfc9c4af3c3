//! Whether what a relay says of its parts agrees with itself: one cause is one trouble, a part is not up while what it needs
//! is away, a reason is no older than its outage, and a metric does not outlast it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::LATE_MS;

/// A reason may be that much older than the last look that found its part up.
const BEFORE_MS: i64 = 5000;

/// What a relay says at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The moment, by the relay's clock.
    pub(super) at_ms: i64,
    /// The parts that are up.
    pub(super) up: BTreeSet<String>,
    /// The parts that are not, and since when they say so.
    pub(super) down: BTreeMap<String, i64>,
    /// The parts of the troubles.
    pub(super) troubles: BTreeSet<String>,
    /// The parts whose metric is 0.
    pub(super) zero: BTreeSet<String>,
}

/// What disagrees, since when; and when each part was last seen up.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    since: BTreeMap<String, i64>,
    /// By the relay's clock.
    up: BTreeMap<String, i64>,
    /// How far the relay's clock was from ours at the last look.
    ahead_ms: Option<i64>,
}

impl Agreement {
    /// Takes what is told now. `source_of` names the connection of a route's source. Answers what has disagreed for
    /// [`LATE_MS`].
    pub(super) fn look(
        &mut self,
        told: &Told,
        source_of: impl Fn(&str) -> Option<String>,
        now: i64,
    ) -> Option<String> {
        let ahead_ms = told.at_ms - now;
        if self
            .ahead_ms
            .is_some_and(|was| (was - ahead_ms).abs() >= BEFORE_MS)
        {
            // Its clock was set.
            self.up.clear();
        }
        self.ahead_ms = Some(ahead_ms);
        let mut found = BTreeSet::new();
        for part in told.up.iter().chain(told.down.keys()) {
            let Some(needed) = needed(part, &source_of) else {
                continue;
            };
            if told.troubles.contains(part) && told.troubles.contains(&needed) {
                found.insert(format!("one cause is two troubles: {needed} and {part}"));
            }
            if told.up.contains(part) && told.down.contains_key(&needed) {
                found.insert(format!(
                    "{part} is up, and {needed}, which it needs, is not"
                ));
            }
        }
        for part in &told.up {
            self.up.insert(part.clone(), told.at_ms);
            if told.zero.contains(part) {
                found.insert(format!("{part} is up, and its metric says that it is not"));
            }
        }
        for (part, since) in &told.down {
            let was_up = self.up.get(part);
            // A route has been late since its oldest message was due.
            if !part.starts_with("route:") && was_up.is_some_and(|at| *since < at - BEFORE_MS) {
                found.insert(format!(
                    "{part} was up after its trouble is said to have begun"
                ));
            }
        }
        self.since.retain(|what, _| found.contains(what));
        for what in found {
            let since = *self.since.entry(what.clone()).or_insert(now);
            if now - since >= LATE_MS {
                return Some(format!("{what}, for {} ms", now - since));
            }
        }
        None
    }

    /// Forgets what was told: the process is another one, or does not answer.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The part without which this one cannot be up.
fn needed(part: &str, source_of: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (kind, rest) = part.split_once(':').unwrap_or((part, ""));
    match kind {
        "store" => Some("redis".to_owned()),
        "source" => source_of(rest),
        "target" => {
            // A topic has no slash, an exchange and its key have one between them.
            let (connection, name) = rest.split_once(':')?;
            let kind = if name.contains('/') {
                "rabbitmq"
            } else {
                "kafka"
            };
            Some(format!("{kind}:{connection}"))
        }
        _ => None,
    }
}

#[test]
fn each_disagreement_is_found_once_it_lasts() {
    let source_of = |route: &str| (route == "r").then(|| "rabbitmq:main".to_owned());
    let set = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect();
    let told = |up: &[&str], down: &[(&str, i64)], troubles: &[&str], zero: &[&str]| Told {
        at_ms: 0,
        up: set(up),
        down: down
            .iter()
            .map(|(part, since)| ((*part).to_owned(), *since))
            .collect(),
        troubles: set(troubles),
        zero: set(zero),
    };
    let kafka = ("kafka:main", 0);
    let rabbitmq = ("rabbitmq:main", 0);
    let cases = [
        (
            told(
                &["target:main:q/k"],
                &[kafka],
                &["kafka:main"],
                &["kafka:main"],
            ),
            None,
        ),
        (
            told(&["target:main:t"], &[kafka], &["kafka:main"], &[]),
            Some("which it needs"),
        ),
        (
            told(&["source:r"], &[rabbitmq], &["rabbitmq:main"], &[]),
            Some("which it needs"),
        ),
        (
            told(&["store:room"], &[("redis", 0)], &["redis"], &[]),
            Some("which it needs"),
        ),
        (
            told(
                &[],
                &[kafka, ("target:main:t", 0)],
                &["kafka:main", "target:main:t"],
                &[],
            ),
            Some("two troubles"),
        ),
        (
            told(&[], &[kafka, ("target:main:t", 0)], &["kafka:main"], &[]),
            None,
        ),
        (told(&["redis"], &[], &[], &["redis"]), Some("its metric")),
    ];
    for (told, expected) in cases {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.look(&told, source_of, 0), None, "{told:?}");
        let found = agreement.look(&told, source_of, LATE_MS);
        assert_eq!(found.is_some(), expected.is_some(), "{told:?}: {found:?}");
        assert!(
            found
                .unwrap_or_default()
                .contains(expected.unwrap_or_default()),
            "{told:?}"
        );
    }

    // By a clock that is far ahead, and once by one that is set back between the looks.
    for (since, set_back_ms, is_old) in [
        (-BEFORE_MS, 0, false),
        (-BEFORE_MS - 1, 0, true),
        (-3_600_000, 3_600_000, false),
    ] {
        const UP_MS: i64 = 7_200_000;
        let mut agreement = Agreement::default();
        let at = |mut told: Told, at_ms: i64| {
            told.at_ms = at_ms;
            told
        };
        let up = at(told(&["redis"], &[], &[], &[]), UP_MS);
        assert_eq!(agreement.look(&up, source_of, 0), None);
        let down = told(&[], &[("redis", UP_MS + since)], &["redis"], &[]);
        for now in [1, 1 + LATE_MS] {
            let told = at(down.clone(), UP_MS + now - set_back_ms);
            let found = agreement.look(&told, source_of, now);
            assert_eq!(found.is_some(), is_old && now > 1, "{found:?}");
        }
    }
}
