//! Outcome of a cycle, and the sum of all cycles of a row.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::task::JoinError;

/// How a cycle, or a row, ended. Later ones outweigh earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// A precondition was not met: the cycle says nothing.
    Inconclusive,
    /// All is accounted for and every limit was kept.
    Passed,
    /// All is accounted for; a limit on time or amount was not kept.
    Missed,
    /// Something is not accounted for.
    Failed,
}

impl Verdict {
    /// Reports whether a run with this verdict is a success. In a short one only the accounts judge: how quick the machine is
    /// decides about times, and about how much a fault meets.
    pub(crate) fn is_good(self, short: bool) -> bool {
        self == Self::Passed || short && self != Self::Failed
    }
}

/// One cycle, or several in one scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    /// Cycles whose preconditions were met: more than one where a row injects its fault again into the same scenario.
    pub(crate) cycles: usize,
    /// Further cycles of the same scenario whose preconditions were not met.
    pub(crate) unmet_cycles: usize,
    /// Attempts to produce.
    pub(crate) messages: usize,
    /// Messages that the victims had claimed just before each injection.
    pub(crate) in_flight: Vec<usize>,
    pub(crate) lost: usize,
    /// Lost as well, by a fault that takes just these.
    pub(crate) taken: usize,
    pub(crate) early: usize,
    /// Misrouted, corrupt, unexpected, aborted, left behind in the store.
    pub(crate) wrong: usize,
    pub(crate) duplicates: usize,
    /// Duplicates that the relay's own counters of possible repeats do not cover.
    pub(crate) unexplained: usize,
    /// The longest wait, from the fault on, of a message that was stored and due then or within the look-ahead, ms.
    pub(crate) takeover_ms: Option<i64>,
    /// From the healing to the last message that was over a second late, ms.
    pub(crate) recovery_ms: Option<i64>,
    /// Preconditions that were not met.
    pub(crate) unmet: Vec<String>,
    /// Limits that were not kept.
    pub(crate) missed: Vec<String>,
    /// Messages and keys that are not accounted for.
    pub(crate) faults: Vec<String>,
    /// Other remarks.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// A cycle that could not be played to its end is no success.
    pub(crate) fn panicked(seed: u64, panic: &JoinError) -> Self {
        let faults = vec![format!("the cycle ended early: {panic}")];
        Self {
            seed,
            cycles: 1,
            faults,
            ..Self::default()
        }
    }

    /// Judges the cycle. A message that is not accounted for counts whether the preconditions were met or not.
    pub(crate) fn verdict(&self) -> Verdict {
        if !self.faults.is_empty() {
            Verdict::Failed
        } else if !self.unmet.is_empty() {
            Verdict::Inconclusive
        } else if self.missed.is_empty() {
            Verdict::Passed
        } else {
            Verdict::Missed
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds =
            |ms: Option<i64>| ms.map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1e3));
        write!(
            f,
            "{:?}: {} messages, {:?} in flight at the fault; lost {}, early {}, otherwise wrong {}, duplicates {} \
             ({} unexplained); takeover {}, recovery {}",
            self.verdict(),
            self.messages,
            self.in_flight,
            self.lost,
            self.early,
            self.wrong,
            self.duplicates,
            self.unexplained,
            seconds(self.takeover_ms),
            seconds(self.recovery_ms),
        )?;
        for (what, lines) in [
            ("NOT ACCOUNTED FOR", &self.faults),
            ("precondition not met", &self.unmet),
            ("limit not kept", &self.missed),
            ("note", &self.notes),
        ] {
            for line in lines {
                write!(f, "\n    {what}: {line}")?;
            }
        }
        Ok(())
    }
}

/// Sum of all cycles of a row. Counts cover the conclusive cycles, those whose preconditions were met.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) verdict: Verdict,
    /// Conclusive cycles.
    pub(crate) cycles: usize,
    pub(crate) inconclusive: usize,
    /// Scenarios that were played, then those of them that missed a limit, then those that failed.
    #[serde(default)]
    pub(crate) plays: usize,
    #[serde(default)]
    pub(crate) missed: usize,
    #[serde(default)]
    pub(crate) failed: usize,
    pub(crate) messages: usize,
    /// Smallest and largest.
    pub(crate) in_flight: (usize, usize),
    pub(crate) lost: usize,
    pub(crate) taken: usize,
    pub(crate) early: usize,
    pub(crate) wrong: usize,
    pub(crate) explained: usize,
    pub(crate) unexplained: usize,
    /// The longest of all cycles.
    pub(crate) takeover_ms: Option<i64>,
    pub(crate) recovery_ms: Option<i64>,
    /// Limits not kept, faults, and preconditions not met: each once, with the seed of its cycle.
    pub(crate) remarks: Vec<String>,
}

/// Sums up outcomes. Without a conclusive one the sum is inconclusive.
pub(crate) fn sum(outcomes: &[Outcome]) -> Sum {
    let conclusive: Vec<_> = outcomes
        .iter()
        .filter(|o| o.verdict() != Verdict::Inconclusive)
        .collect();
    let total =
        |count: fn(&Outcome) -> usize| conclusive.iter().map(|outcome| count(outcome)).sum();
    let (duplicates, unexplained): (usize, usize) =
        (total(|o| o.duplicates), total(|o| o.unexplained));
    let in_flight = conclusive.iter().flat_map(|o| o.in_flight.iter().copied());
    let ended = |verdict| conclusive.iter().filter(|o| o.verdict() == verdict).count();
    let remarks = outcomes.iter().flat_map(|outcome| {
        let lines = outcome
            .faults
            .iter()
            .chain(&outcome.missed)
            .chain(&outcome.unmet);
        lines.map(|line| format!("{line} (seed {})", outcome.seed))
    });
    Sum {
        verdict: conclusive
            .iter()
            .map(|o| o.verdict())
            .max()
            .unwrap_or(Verdict::Inconclusive),
        cycles: total(|o| o.cycles),
        inconclusive: outcomes.len() - conclusive.len() + total(|o| o.unmet_cycles),
        plays: conclusive.len(),
        missed: ended(Verdict::Missed),
        failed: ended(Verdict::Failed),
        messages: total(|o| o.messages),
        in_flight: (
            in_flight.clone().min().unwrap_or(0),
            in_flight.max().unwrap_or(0),
        ),
        lost: total(|o| o.lost),
        taken: total(|o| o.taken),
        early: total(|o| o.early),
        wrong: total(|o| o.wrong),
        explained: duplicates - unexplained,
        unexplained,
        takeover_ms: conclusive.iter().filter_map(|o| o.takeover_ms).max(),
        recovery_ms: conclusive.iter().filter_map(|o| o.recovery_ms).max(),
        remarks: remarks.collect(),
    }
}

impl Sum {
    /// Adds later cycles: counts are summed up, ranges widened, the worst verdict stays.
    pub(crate) fn add(&mut self, later: Self) {
        if self.plays == 0 {
            self.in_flight = later.in_flight;
        } else if later.plays > 0 {
            let (least, most) = later.in_flight;
            self.in_flight = (self.in_flight.0.min(least), self.in_flight.1.max(most));
        }
        self.verdict = self.verdict.max(later.verdict);
        self.takeover_ms = self.takeover_ms.max(later.takeover_ms);
        self.recovery_ms = self.recovery_ms.max(later.recovery_ms);
        self.remarks.extend(later.remarks);
        for (count, more) in [
            (&mut self.cycles, later.cycles),
            (&mut self.inconclusive, later.inconclusive),
            (&mut self.plays, later.plays),
            (&mut self.missed, later.missed),
            (&mut self.failed, later.failed),
            (&mut self.messages, later.messages),
            (&mut self.lost, later.lost),
            (&mut self.taken, later.taken),
            (&mut self.early, later.early),
            (&mut self.wrong, later.wrong),
            (&mut self.explained, later.explained),
            (&mut self.unexplained, later.unexplained),
        ] {
            *count += more;
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verdict,
            cycles,
            inconclusive,
            messages,
            lost,
            early,
            wrong,
            explained,
            unexplained,
            ..
        } = self;
        write!(
            f,
            "{verdict:?} in {cycles} cycles ({inconclusive} inconclusive beside them): {messages} messages, lost \
             {lost}, early {early}, otherwise wrong {wrong}, duplicates {explained} explained, {unexplained} \
             unexplained"
        )
    }
}
