//! Targets that are missing, refuse publishes or do not answer them, since when, and with which error.
//!
//! A spell of failures begins with the first publish that fails. It ends when a publish is confirmed and none has
//! failed for [`QUIET_US`], or [`FORGET_US`] after the last retry that was announced. A target is silent while one of
//! its publishes has had no answer for [`SILENT_US`]. Pure: moments are arguments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Health;
use crate::domain::route::describe;
use crate::domain::{Target, Text, duration};

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
    /// Targets with a spell of failures, and those that were found to be missing. While there are none, confirms need no
    /// lock.
    spells: AtomicUsize,
    /// The number of places that publish, so far.
    places: AtomicU64,
}

#[derive(Debug, Default)]
struct TargetHealth {
    spell: Option<FailureSpell>,
    /// Why it could not take a message, as it was last looked at.
    missing: Option<String>,
    /// The moment at which the oldest unanswered publish of each place was submitted.
    unanswered: BTreeMap<u64, i64>,
    silent: bool,
}

#[derive(Debug)]
struct FailureSpell {
    began_us: i64,
    last_us: i64,
    /// The latest announced retry of a message that failed.
    next_us: i64,
    confirmed_us: i64,
    failures: u64,
    reason: &'static str,
    error: Text,
}

impl TargetFailures {
    /// Notes a publish that failed.
    pub fn failed(&self, target: &Target, now_us: i64, reason: &'static str, error: &Text) {
        let mut targets = self.targets.lock();
        let health = targets.entry(describe(target)).or_default();
        let spell = health.spell.get_or_insert_with(|| {
            self.spells.fetch_add(1, Ordering::Relaxed);
            FailureSpell {
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
        let Some(health) = targets.get_mut(&describe(target)) else {
            return;
        };
        if let Some(spell) = &mut health.spell {
            spell.confirmed_us = now_us;
        }
        self.set_missing(health, None);
    }

    /// Notes what was found when a target was looked at: why it could not take a message, or that it is there.
    pub fn looked_at(&self, target: &Target, missing: Option<&str>) {
        let mut targets = self.targets.lock();
        if missing.is_some() || targets.contains_key(&describe(target)) {
            let health = targets.entry(describe(target)).or_default();
            self.set_missing(health, missing.map(str::to_owned));
        }
    }

    fn set_missing(&self, health: &mut TargetHealth, missing: Option<String>) {
        match (health.missing.is_some(), missing.is_some()) {
            (false, true) => self.spells.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.spells.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        health.missing = missing;
    }

    /// Ends the spells that are over at this moment, and finds the targets that are silent.
    pub fn look(&self, now_us: i64) {
        for health in self.targets.lock().values_mut() {
            if health
                .spell
                .take_if(|spell| spell.is_over(now_us))
                .is_some()
            {
                self.spells.fetch_sub(1, Ordering::Relaxed);
            }
            health.silent = health.silent_us(now_us) >= SILENT_US;
        }
    }

    /// Reports whether a target does not answer, and nothing else is known of it.
    pub fn is_silent(&self, target: &Target) -> bool {
        let targets = self.targets.lock();
        targets.get(&describe(target)).is_some_and(|health| {
            health.silent && health.spell.is_none() && health.missing.is_none()
        })
    }

    /// A sentence on the failures of a target; `None` while nothing fails, as the last [look](Self::look) found it.
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
            let span = duration::words((now_us - began_us).max(1_000_000) / 1_000_000 * 1_000);
            let publishes = if *failures == 1 {
                "publish"
            } else {
                "publishes"
            };
            return Some(format!(
                "{failures} {publishes} failed within {span}: {reason}: {error}"
            ));
        }
        if health.missing.is_some() {
            return health.missing.clone();
        }
        let silent_us = health.silent_us(now_us).max(SILENT_US);
        health.silent.then(|| {
            format!(
                "no answer to a publish for {}",
                duration::words(silent_us / 1_000)
            )
        })
    }
}

/// A place that publishes: a timer shard, or what ingress publishes itself. Its unanswered publishes are forgotten once it
/// is dropped.
#[derive(Debug)]
pub struct PublishPlace {
    number: u64,
    health: Health,
}

impl PublishPlace {
    /// A new place.
    pub fn new(health: &Health) -> Self {
        let number = health.targets().places.fetch_add(1, Ordering::Relaxed);
        Self {
            number,
            health: health.clone(),
        }
    }

    /// Notes the publishes of the place that have no answer: targets, each with the moment at which one was submitted,
    /// monotonic microseconds. Replaces the last report.
    pub fn unanswered<'a>(&self, submitted: impl IntoIterator<Item = (&'a Target, i64)>) {
        let mut targets = self.health.targets().targets.lock();
        for health in targets.values_mut() {
            health.unanswered.remove(&self.number);
        }
        for (target, submitted_us) in submitted {
            let unanswered = &mut targets.entry(describe(target)).or_default().unanswered;
            let oldest = unanswered.entry(self.number).or_insert(submitted_us);
            *oldest = submitted_us.min(*oldest);
        }
    }
}

impl Drop for PublishPlace {
    fn drop(&mut self) {
        self.unanswered([]);
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

    /// What is said of a target after a look at this moment.
    fn said(failures: &TargetFailures, target: &Target, now_us: i64) -> Option<String> {
        failures.look(now_us);
        failures.why(target, now_us)
    }

    #[test]
    fn a_spell_of_failures_lasts_until_one_is_confirmed_and_none_fails_for_a_while() {
        let failures = TargetFailures::default();
        let bad = target("bad");
        let good = target("good");
        failures.confirmed(&bad, 0);
        assert_eq!(said(&failures, &bad, 0), None);
        for n in 0..9 {
            failures.failed(&bad, n * 300 * S, "unroutable", &"NO_ROUTE".into());
            failures.tried_again(&bad, (n + 1) * 300 * S);
            failures.confirmed(&good, n * 300 * S + 1);
            assert!(
                said(&failures, &bad, n * 300 * S + 299 * S).is_some(),
                "between two tries it still fails"
            );
        }
        assert_eq!(
            said(&failures, &bad, 2400 * S).as_deref(),
            Some("9 publishes failed within 40 min: unroutable: NO_ROUTE")
        );
        assert_eq!(said(&failures, &good, 2400 * S), None);
        failures.confirmed(&bad, 2401 * S);
        assert!(
            said(&failures, &bad, 2409 * S).is_some(),
            "one success between failures ends nothing"
        );
        assert_eq!(said(&failures, &bad, 2410 * S), None);
    }

    #[test]
    fn a_spell_that_nothing_follows_ends_by_itself() {
        let failures = TargetFailures::default();
        let bad = target("bad");
        failures.failed(&bad, 0, "not_allowed", &"no".into());
        failures.tried_again(&bad, 300 * S);
        failures.tried_again(&bad, 200 * S);
        assert!(
            said(&failures, &bad, 300 * S + FORGET_US - 1).is_some(),
            "a try is to come"
        );
        assert_eq!(said(&failures, &bad, 300 * S + FORGET_US), None);
        failures.failed(&bad, 400 * S, "too_big_for_target", &"no".into());
        assert!(said(&failures, &bad, 401 * S).is_some());
        assert_eq!(said(&failures, &bad, 400 * S + FORGET_US), None);
    }

    #[test]
    fn a_target_that_does_not_answer_is_named_whichever_place_waits_for_it() {
        let health = Health::default();
        let failures = health.targets();
        let slow = target("slow");
        let [one, other] = [0; 2].map(|_| PublishPlace::new(&health));
        one.unanswered([(&slow, 3 * S), (&target("quick"), 3 * S), (&slow, 2 * S)]);
        other.unanswered([(&slow, S)]);
        assert_eq!(said(failures, &slow, S + SILENT_US - 1), None);
        assert_eq!(
            said(failures, &slow, 4 * S).as_deref(),
            Some("no answer to a publish for 3 s")
        );
        other.unanswered([]);
        assert_eq!(said(failures, &slow, 2 * S + SILENT_US - 1), None);
        assert!(
            said(failures, &slow, 2 * S + SILENT_US).is_some(),
            "the other one still waits"
        );
        drop(one);
        assert_eq!(said(failures, &slow, 2 * S + SILENT_US), None);
    }

    #[test]
    fn a_target_that_is_looked_at_is_missing_until_it_is_found_or_takes_a_message() {
        let failures = TargetFailures::default();
        let missing = Some("topic orders is missing");
        let told = |failures: &TargetFailures| failures.why(&target("orders"), 0);
        failures.looked_at(&target("orders"), None);
        assert_eq!(told(&failures), None);
        for found in [true, false] {
            failures.looked_at(&target("orders"), missing);
            assert_eq!(told(&failures).as_deref(), missing);
            if found {
                failures.looked_at(&target("orders"), None);
            } else {
                failures.confirmed(&target("orders"), 1);
            }
            assert_eq!(told(&failures), None);
            assert_eq!(failures.spells.load(Ordering::Relaxed), 0);
        }
    }
}
