//! Targets that fail: which ones refuse, or do not answer, since when and in whose words.
//!
//! A target begins to fail with the first publish that fails, or when one was not answered for [`SILENT_US`]. It ends
//! when a publish is confirmed and none has failed for [`QUIET_US`], or [`FORGET_US`] after the last try that was to
//! come. Each begin and each end is told once, whatever the number of messages. Pure: moments are arguments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::domain::route::describe;
use crate::domain::{Target, Text};

/// Longest time that a broker may take to answer a publish before that is named, microseconds.
pub const SILENT_US: i64 = 2_500_000;
/// Time without a failure after which a confirmed publish ends a spell, microseconds.
const QUIET_US: i64 = 10_000_000;
/// Time after the last try that was to come after which a spell ends by itself, microseconds.
const FORGET_US: i64 = 30_000_000;

/// All targets of the process. Keys come from configuration.
#[derive(Debug, Default)]
pub struct Failing {
    targets: Mutex<BTreeMap<Text, Standing>>,
    /// Targets with a failure that is not over: nobody else's confirmation is of interest.
    spells: AtomicUsize,
}

#[derive(Debug, Default)]
struct Standing {
    spell: Option<Spell>,
    /// When the oldest publish that is not answered was handed over, by timer shard.
    unanswered: BTreeMap<usize, i64>,
    silent: bool,
}

#[derive(Debug)]
struct Spell {
    told: bool,
    began_us: i64,
    last_us: i64,
    /// When the last of what failed is tried again.
    next_us: i64,
    confirmed_us: i64,
    failures: u64,
    reason: &'static str,
    error: Text,
}

/// What is to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Publishes fail from now on.
    Fails {
        /// The label of the first failure.
        reason: &'static str,
        /// The broker's words.
        error: Text,
    },
    /// They do not any more.
    Works {
        /// How many failed.
        failures: u64,
        /// For how long, microseconds.
        lasted_us: i64,
    },
    /// Publishes are not answered.
    Silent,
    /// They are again.
    Answers,
}

impl Failing {
    /// A publish failed.
    pub fn failed(&self, target: &Target, now_us: i64, reason: &'static str, error: &Text) {
        let mut targets = self.targets.lock();
        let standing = targets.entry(describe(target)).or_default();
        let spell = standing.spell.get_or_insert_with(|| {
            self.spells.fetch_add(1, Ordering::Relaxed);
            Spell {
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
        (spell.reason, spell.error) = (reason, error.clone());
    }

    /// What failed is tried again then.
    pub fn tried_again(&self, target: &Target, next_us: i64) {
        if let Some(spell) = self.targets.lock().get_mut(&describe(target)).and_then(|s| s.spell.as_mut()) {
            spell.next_us = next_us.max(spell.next_us);
        }
    }

    /// A publish was confirmed. Costs nothing while no target fails.
    pub fn confirmed(&self, target: &Target, now_us: i64) {
        if self.spells.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut targets = self.targets.lock();
        if let Some(spell) = targets.get_mut(&describe(target)).and_then(|s| s.spell.as_mut()) {
            spell.confirmed_us = now_us;
        }
    }

    /// A shard's publishes that are not answered: by target, when the oldest was handed over. Replaces what the
    /// shard said before.
    pub fn unanswered(&self, shard: usize, oldest: &BTreeMap<Text, i64>) {
        let mut targets = self.targets.lock();
        for standing in targets.values_mut() {
            standing.unanswered.remove(&shard);
        }
        for (target, handed_us) in oldest {
            targets.entry(target.clone()).or_default().unanswered.insert(shard, *handed_us);
        }
    }

    /// What has begun or ended since the last look, by target.
    pub fn look(&self, now_us: i64) -> Vec<(Text, Turn)> {
        let mut turns = Vec::new();
        for (target, standing) in self.targets.lock().iter_mut() {
            let turn = |turn| (target.clone(), turn);
            if let Some(spell) = standing.spell.as_mut().filter(|spell| !spell.told) {
                spell.told = true;
                turns.push(turn(Turn::Fails { reason: spell.reason, error: spell.error.clone() }));
            }
            if let Some(spell) = standing.spell.take_if(|spell| spell.is_over(now_us)) {
                self.spells.fetch_sub(1, Ordering::Relaxed);
                let lasted_us = spell.last_us - spell.began_us;
                turns.push(turn(Turn::Works { failures: spell.failures, lasted_us }));
            }
            let silent = standing.silent_us(now_us) >= SILENT_US;
            if std::mem::replace(&mut standing.silent, silent) != silent {
                turns.push(turn(if silent { Turn::Silent } else { Turn::Answers }));
            }
        }
        turns
    }

    /// What is wrong with a target, in a sentence; `None` while nothing fails.
    pub fn why(&self, target: &Target, now_us: i64) -> Option<String> {
        let targets = self.targets.lock();
        let standing = targets.get(&describe(target))?;
        if let Some(Spell { failures, reason, error, began_us, .. }) = &standing.spell {
            let seconds = (now_us - began_us).max(0) / 1_000_000;
            return Some(format!("{failures} publishes failed within {seconds} s: {reason}: {error}"));
        }
        let silent_us = standing.silent_us(now_us);
        (silent_us >= SILENT_US).then(|| format!("no answer to a publish for {} s", silent_us / 1_000_000))
    }
}

impl Standing {
    /// How long the oldest publish has not been answered, microseconds.
    fn silent_us(&self, now_us: i64) -> i64 {
        self.unanswered.values().min().map_or(0, |handed_us| now_us - handed_us)
    }
}

impl Spell {
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
        Target::Kafka { connection: "main".to_owned(), topic: topic.to_owned() }
    }

    fn names(turns: &[(Text, Turn)]) -> Vec<String> {
        turns.iter().map(|(target, turn)| format!("{target} {turn:?}")).collect()
    }

    #[test]
    fn a_spell_of_failures_is_told_once_when_it_begins_and_once_when_it_ends() {
        let (failing, bad, good) = (Failing::default(), target("bad"), target("good"));
        failing.confirmed(&bad, 0);
        assert_eq!(names(&failing.look(0)), Vec::<String>::new());
        for n in 0..9 {
            failing.failed(&bad, n * 300 * S, "unroutable", &"NO_ROUTE".into());
            failing.tried_again(&bad, (n + 1) * 300 * S);
            failing.confirmed(&good, n * 300 * S + 1);
            let begins = usize::from(n == 0);
            assert_eq!(failing.look(n * 300 * S + 1).len(), begins, "the {n}th failure");
            assert_eq!(failing.look(n * 300 * S + 299 * S).len(), 0, "between two tries it still fails");
        }
        let why = failing.why(&bad, 2400 * S).expect("it fails");
        assert_eq!(why, "9 publishes failed within 2400 s: unroutable: NO_ROUTE");
        assert_eq!(failing.why(&good, 2400 * S), None);
        failing.confirmed(&bad, 2401 * S);
        assert_eq!(failing.look(2409 * S).len(), 0, "one success between failures ends nothing");
        let ends = names(&failing.look(2410 * S));
        assert_eq!(ends, ["main:bad Works { failures: 9, lasted_us: 2400000000 }"]);
        assert_eq!((failing.why(&bad, 2410 * S), failing.look(2411 * S).len()), (None, 0));
    }

    #[test]
    fn a_spell_that_nothing_follows_ends_by_itself() {
        let (failing, bad) = (Failing::default(), target("bad"));
        failing.failed(&bad, 0, "not_allowed", &"no".into());
        failing.tried_again(&bad, 300 * S);
        failing.tried_again(&bad, 200 * S);
        assert_eq!(failing.look(300 * S + FORGET_US - 1).len(), 1, "it begins, and a try is to come");
        assert_eq!(failing.look(300 * S + FORGET_US).len(), 1);
        assert_eq!(failing.why(&bad, 300 * S + FORGET_US), None);
        failing.failed(&bad, 400 * S, "too_big_for_target", &"no".into());
        let turns = failing.look(400 * S + FORGET_US);
        assert_eq!(turns.len(), 2, "of what is dead at once begin and end: {turns:?}");
    }

    #[test]
    fn a_target_that_does_not_answer_is_named_whichever_shard_waits_for_it() {
        let (failing, slow) = (Failing::default(), target("slow"));
        let since = |us| BTreeMap::from([(describe(&slow), us)]);
        failing.unanswered(0, &since(2 * S));
        failing.unanswered(1, &since(S));
        assert_eq!(failing.look(S + SILENT_US - 1).len(), 0);
        assert_eq!(names(&failing.look(S + SILENT_US)), ["main:slow Silent"]);
        assert_eq!(failing.why(&slow, 4 * S).as_deref(), Some("no answer to a publish for 3 s"));
        failing.unanswered(1, &BTreeMap::new());
        assert_eq!(failing.look(2 * S + SILENT_US).len(), 0, "the other one still waits");
        failing.unanswered(0, &BTreeMap::new());
        assert_eq!(names(&failing.look(2 * S + SILENT_US)), ["main:slow Answers"]);
    }
}
