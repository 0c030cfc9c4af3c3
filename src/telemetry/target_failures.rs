//! Targets that refuse publishes or do not answer them, since when, and with which error.
//!
//! A spell of failures begins with the first publish that fails. It ends when a publish is confirmed and none has
//! failed for [`QUIET_US`], or [`FORGET_US`] after the last retry that was announced. A target is silent while one of
//! its publishes has had no answer for [`SILENT_US`]. Each beginning and each end is reported once, whatever the number
//! of messages. Pure: moments are arguments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::domain::route::describe;
use crate::domain::{Target, Text};

/// Time without an answer to a publish after which its target counts as silent, microseconds.
pub const SILENT_US: i64 = 2_500_000;
/// Time without a failure after which a confirmed publish ends a spell, microseconds.
const QUIET_US: i64 = 10_000_000;
/// Time after the last announced retry after which a spell ends by itself, microseconds.
const FORGET_US: i64 = 30_000_000;

/// Failures of all targets of the process. Targets come from configuration.
#[derive(Debug, Default)]
pub struct TargetFailures {
    targets: Mutex<BTreeMap<Text, TargetHealth>>,
    /// Targets with a spell of failures. While there are none, confirms need no lock.
    spells: AtomicUsize,
}

#[derive(Debug, Default)]
struct TargetHealth {
    spell: Option<FailureSpell>,
    /// The moment at which the oldest unanswered publish of each timer shard was submitted.
    unanswered: BTreeMap<usize, i64>,
    silent: bool,
}

#[derive(Debug)]
struct FailureSpell {
    told: bool,
    began_us: i64,
    last_us: i64,
    /// The latest announced retry of a message that failed.
    next_us: i64,
    confirmed_us: i64,
    failures: u64,
    reason: &'static str,
    error: Text,
}

/// A change of a target, to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetChange {
    /// Publishes fail from now on.
    Fails {
        /// The label of the first failure.
        reason: &'static str,
        /// The error of the broker.
        error: Text,
    },
    /// Publishes no longer fail.
    Works {
        /// Number of publishes that failed.
        failures: u64,
        /// Time from the first failure to the last, microseconds.
        lasted_us: i64,
    },
    /// Publishes are not answered.
    Silent,
    /// Publishes are answered again.
    Answers,
}

impl TargetFailures {
    /// Notes a publish that failed.
    pub fn failed(&self, target: &Target, now_us: i64, reason: &'static str, error: &Text) {
        let mut targets = self.targets.lock();
        let health = targets.entry(describe(target)).or_default();
        let spell = health.spell.get_or_insert_with(|| {
            self.spells.fetch_add(1, Ordering::Relaxed);
            FailureSpell {
                told: false,
                began_us: now_us,
                last_us: now_us,
                next_us: now_us,
                confirmed_us: i64::MIN,
                failures: 0,
                reason,
                error: error.clone(),
            }
        });
        spell.failures += 1;
        spell.last_us = now_us;
        spell.reason = reason;
        spell.error = error.clone();
    }

    /// Notes the moment at which a failed publish is retried.
    pub fn tried_again(&self, target: &Target, next_us: i64) {
        if let Some(spell) = self
            .targets
            .lock()
            .get_mut(&describe(target))
            .and_then(|s| s.spell.as_mut())
        {
            spell.next_us = next_us.max(spell.next_us);
        }
    }

    /// Notes a publish that was confirmed. Costs one relaxed load while no target fails.
    pub fn confirmed(&self, target: &Target, now_us: i64) {
        if self.spells.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut targets = self.targets.lock();
        if let Some(spell) = targets
            .get_mut(&describe(target))
            .and_then(|s| s.spell.as_mut())
        {
            spell.confirmed_us = now_us;
        }
    }

    /// Notes the unanswered publishes of a timer shard: for each target the moment at which the oldest was submitted.
    /// Replaces the last report of the shard.
    pub fn unanswered(&self, shard: usize, oldest: &BTreeMap<Text, i64>) {
        let mut targets = self.targets.lock();
        for health in targets.values_mut() {
            health.unanswered.remove(&shard);
        }
        for (target, submitted_us) in oldest {
            targets
                .entry(target.clone())
                .or_default()
                .unanswered
                .insert(shard, *submitted_us);
        }
    }

    /// The changes since the last call, with their targets.
    pub fn changes(&self, now_us: i64) -> Vec<(Text, TargetChange)> {
        let mut changes = Vec::new();
        for (target, health) in self.targets.lock().iter_mut() {
            let change = |change| (target.clone(), change);
            if let Some(spell) = health.spell.as_mut().filter(|spell| !spell.told) {
                spell.told = true;
                changes.push(change(TargetChange::Fails {
                    reason: spell.reason,
                    error: spell.error.clone(),
                }));
            }
            if let Some(spell) = health.spell.take_if(|spell| spell.is_over(now_us)) {
                self.spells.fetch_sub(1, Ordering::Relaxed);
                let lasted_us = spell.last_us - spell.began_us;
                changes.push(change(TargetChange::Works {
                    failures: spell.failures,
                    lasted_us,
                }));
            }
            let silent = health.silent_us(now_us) >= SILENT_US;
            if std::mem::replace(&mut health.silent, silent) != silent {
                changes.push(change(if silent {
                    TargetChange::Silent
                } else {
                    TargetChange::Answers
                }));
            }
        }
        changes
    }

    /// A sentence on the failures of a target; `None` while nothing fails. A target is silent here from the change to
    /// [`TargetChange::Silent`] to the change to [`TargetChange::Answers`], so that its part and the log agree.
    pub fn why(&self, target: &Target, now_us: i64) -> Option<String> {
        let targets = self.targets.lock();
        let health = targets.get(&describe(target))?;
        if let Some(FailureSpell {
            failures,
            reason,
            error,
            began_us,
            ..
        }) = &health.spell
        {
            let seconds = (now_us - began_us).max(0) / 1_000_000;
            let publishes = if *failures == 1 {
                "publish"
            } else {
                "publishes"
            };
            return Some(format!(
                "{failures} {publishes} failed within {seconds} s: {reason}: {error}"
            ));
        }
        let silent_us = health.silent_us(now_us).max(SILENT_US);
        health
            .silent
            .then(|| format!("no answer to a publish for {} s", silent_us / 1_000_000))
    }
}

impl TargetHealth {
    /// The time for which the oldest publish has had no answer, microseconds.
    fn silent_us(&self, now_us: i64) -> i64 {
        self.unanswered
            .values()
            .min()
            .map_or(0, |submitted_us| now_us - submitted_us)
    }
}

impl FailureSpell {
    fn is_over(&self, now_us: i64) -> bool {
        let works = self.confirmed_us > self.last_us && now_us - self.last_us >= QUIET_US;
        works || now_us - self.last_us.max(self.next_us) >= FORGET_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    fn target(topic: &str) -> Target {
        Target::Kafka {
            connection: "main".to_owned(),
            topic: topic.to_owned(),
        }
    }

    fn names(changes: &[(Text, TargetChange)]) -> Vec<String> {
        changes
            .iter()
            .map(|(target, change)| format!("{target} {change:?}"))
            .collect()
    }

    #[test]
    fn a_spell_of_failures_is_told_once_when_it_begins_and_once_when_it_ends() {
        let failures = TargetFailures::default();
        let bad = target("bad");
        let good = target("good");
        failures.confirmed(&bad, 0);
        assert_eq!(names(&failures.changes(0)), Vec::<String>::new());
        for n in 0..9 {
            failures.failed(&bad, n * 300 * S, "unroutable", &"NO_ROUTE".into());
            failures.tried_again(&bad, (n + 1) * 300 * S);
            failures.confirmed(&good, n * 300 * S + 1);
            let begins = usize::from(n == 0);
            assert_eq!(
                failures.changes(n * 300 * S + 1).len(),
                begins,
                "the {n}th failure"
            );
            assert_eq!(
                failures.changes(n * 300 * S + 299 * S).len(),
                0,
                "between two tries it still fails"
            );
        }
        let why = failures.why(&bad, 2400 * S).expect("it fails");
        assert_eq!(
            why,
            "9 publishes failed within 2400 s: unroutable: NO_ROUTE"
        );
        assert_eq!(failures.why(&good, 2400 * S), None);
        failures.confirmed(&bad, 2401 * S);
        assert_eq!(
            failures.changes(2409 * S).len(),
            0,
            "one success between failures ends nothing"
        );
        let ends = names(&failures.changes(2410 * S));
        assert_eq!(
            ends,
            ["main:bad Works { failures: 9, lasted_us: 2400000000 }"]
        );
        assert_eq!(
            (
                failures.why(&bad, 2410 * S),
                failures.changes(2411 * S).len()
            ),
            (None, 0)
        );
    }

    #[test]
    fn a_spell_that_nothing_follows_ends_by_itself() {
        let failures = TargetFailures::default();
        let bad = target("bad");
        failures.failed(&bad, 0, "not_allowed", &"no".into());
        failures.tried_again(&bad, 300 * S);
        failures.tried_again(&bad, 200 * S);
        assert_eq!(
            failures.changes(300 * S + FORGET_US - 1).len(),
            1,
            "it begins, and a try is to come"
        );
        assert_eq!(failures.changes(300 * S + FORGET_US).len(), 1);
        assert_eq!(failures.why(&bad, 300 * S + FORGET_US), None);
        failures.failed(&bad, 400 * S, "too_big_for_target", &"no".into());
        let changes = failures.changes(400 * S + FORGET_US);
        assert_eq!(
            changes.len(),
            2,
            "of what is dead at once begin and end: {changes:?}"
        );
    }

    #[test]
    fn a_target_that_does_not_answer_is_named_whichever_shard_waits_for_it() {
        let failures = TargetFailures::default();
        let slow = target("slow");
        let since = |us| BTreeMap::from([(describe(&slow), us)]);
        failures.unanswered(0, &since(2 * S));
        failures.unanswered(1, &since(S));
        assert_eq!(failures.changes(S + SILENT_US - 1).len(), 0);
        assert_eq!(
            names(&failures.changes(S + SILENT_US)),
            ["main:slow Silent"]
        );
        assert_eq!(
            failures.why(&slow, 4 * S).as_deref(),
            Some("no answer to a publish for 3 s")
        );
        failures.unanswered(1, &BTreeMap::new());
        assert_eq!(
            failures.changes(2 * S + SILENT_US).len(),
            0,
            "the other one still waits"
        );
        failures.unanswered(0, &BTreeMap::new());
        assert!(
            failures.why(&slow, 2 * S + SILENT_US).is_some(),
            "it is over once that is told"
        );
        assert_eq!(
            names(&failures.changes(2 * S + SILENT_US)),
            ["main:slow Answers"]
        );
        failures.unanswered(0, &since(2 * S));
        assert_eq!(
            failures.why(&slow, 9 * S),
            None,
            "nothing is said before the change is told"
        );
    }
}
