//! The failure policy: what is done with a message whose publish was not confirmed. Pure. The three places that
//! publish (the timer, what is due on arrival, what passes through) carry the decision out and add nothing to it.

use super::due::UnixMs;
use super::message::Entry;
use super::retry;
use super::route::{OnRefused, Retry, Route};
use super::verdict::{DeadReason, Refusal, Verdict};

/// Time between two tries of a passing message at a target that is away or missing, ms. A lane asks its broker no
/// more often than this.
pub const TARGET_RETRY_MS: i64 = 1000;
/// The reason of `dropped_total` for what is dropped by `on_refused`.
pub const REFUSED: &str = "refused";
/// Said where a message is out of attempts and no dead letter has room.
pub const QUOTA_FULL: &str = "dead_letters is full: what is out of attempts is tried again";
/// Time until a passing message that was never handed to the broker is submitted again, ms.
const UNTRIED_RETRY_MS: i64 = 100;

/// Where the message that failed belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It is delayed: it lies in the store, or goes there when its publish fails.
    Delayed,
    /// It passes through: it waits in its source, in order. `waits`: tries in a row that found the target away.
    Passing {
        /// Such tries before this one.
        waits: u32,
    },
}

/// A publish that was not confirmed.
#[derive(Clone, Copy, Debug)]
pub struct FailedPublish<'a> {
    /// The message as it was published.
    pub entry: &'a Entry,
    /// What the lane answered.
    pub verdict: &'a Verdict,
    /// Hand-outs of the message, this one included.
    pub handouts: u32,
    /// Where it belongs.
    pub flow: Flow,
    /// The moment of the decision.
    pub now: UnixMs,
    /// A random share, `0..1`.
    pub jitter: f64,
}

/// What is to be done with a message after a publish that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It goes to the store and is published again at this moment.
    RetryAt(UnixMs),
    /// It is published again at this moment; its source waits, so that nothing overtakes it.
    WaitUntil(UnixMs),
    /// It becomes a dead letter.
    DeadLetter(DeadReason),
    /// It becomes a dead letter once `dead_letter_to` has confirmed it.
    DeadLetterVia(DeadReason),
    /// It is dropped, counted and logged.
    Drop,
}

/// A message after a failed publish.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// The message as it goes on: its hand-outs, failures, flags and history.
    pub entry: Entry,
    /// What is to be done with it.
    pub decision: Decision,
    /// It would be a dead letter for this reason, but `dead_letters` is full.
    pub is_full: Option<DeadReason>,
}

/// Decides. `take_quota` takes room among the dead letters for so many bytes and answers whether there was any.
pub fn decide(publish: FailedPublish<'_>, route: &Route, take_quota: impl FnOnce(usize) -> bool) -> Failed {
    let FailedPublish { entry, verdict, handouts, flow, now, jitter } = publish;
    if let Some(decision) = not_counted(publish, route.policy.retry) {
        return Failed { entry: entry.clone(), decision, is_full: None };
    }
    let entry = retry::failed(entry, verdict, handouts, now);
    let rule = rule(verdict, flow, route.policy.on_refused);
    let retry = route.policy.retry;
    let again = |at| if rule == Rule::Wait { Decision::WaitUntil(at) } else { Decision::RetryAt(at) };
    let is_over = rule == Rule::DeadLetter || verdict.is_hopeless() || entry.failures >= retry.attempts;
    let (decision, is_full) = if rule == Rule::Drop {
        (Decision::Drop, None)
    } else if !is_over {
        (again(now.plus(back_off_ms(retry, entry.failures, jitter))), None)
    } else {
        let reason = dead_reason(verdict);
        if !take_quota(entry.stored_size()) {
            (again(now.plus(retry.max_ms)), Some(reason))
        } else if route.dead_letter_to.is_some() {
            (Decision::DeadLetterVia(reason), None)
        } else {
            (Decision::DeadLetter(reason), None)
        }
    };
    Failed { entry, decision, is_full }
}

/// How a message that counts as failed goes on while it has attempts left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Retry,
    Wait,
    DeadLetter,
    Drop,
}

fn rule(verdict: &Verdict, flow: Flow, on_refused: OnRefused) -> Rule {
    match (flow, verdict) {
        (Flow::Delayed, _) => Rule::Retry,
        (_, Verdict::Refused { reason, .. }) if reason.is_hopeless() => match on_refused {
            OnRefused::Wait => Rule::Wait,
            _ => Rule::Retry,
        },
        (_, Verdict::Refused { .. }) => match on_refused {
            OnRefused::Retry => Rule::Retry,
            OnRefused::Wait => Rule::Wait,
            OnRefused::DeadLetter => Rule::DeadLetter,
            OnRefused::Drop => Rule::Drop,
        },
        // Nobody knows whether it arrived: it keeps its place in the line.
        _ => Rule::Wait,
    }
}

/// The decision on a publish that spends no attempt: it was never tried, or its target is away and its source can
/// wait for that.
fn not_counted(publish: FailedPublish<'_>, retry: Retry) -> Option<Decision> {
    let FailedPublish { now, jitter, .. } = publish;
    match (publish.flow, publish.verdict) {
        (Flow::Delayed, Verdict::NotTried) => Some(Decision::RetryAt(publish.entry.due)),
        (Flow::Passing { .. }, Verdict::NotTried) => Some(Decision::WaitUntil(now.plus(UNTRIED_RETRY_MS))),
        (
            Flow::Passing { waits },
            Verdict::Refused { reason: Refusal::UnknownTarget | Refusal::Unavailable, .. },
        ) => {
            let wait_ms = back_off_ms(retry, waits + 1, jitter).min(TARGET_RETRY_MS);
            Some(Decision::WaitUntil(now.plus(wait_ms)))
        }
        _ => None,
    }
}

/// Why a message dies of this verdict.
fn dead_reason(verdict: &Verdict) -> DeadReason {
    match verdict {
        Verdict::Refused { reason: Refusal::TooBig, .. } => DeadReason::TooBigForTarget,
        Verdict::Refused { reason: Refusal::Unroutable, .. } => DeadReason::Unroutable,
        Verdict::Refused { reason: Refusal::UnknownTarget, .. } => DeadReason::UnknownTarget,
        Verdict::Refused { reason: Refusal::NotAllowed, .. } => DeadReason::NotAllowed,
        Verdict::Refused { reason: Refusal::Hopeless(reason), .. } => *reason,
        _ => DeadReason::Attempts,
    }
}

/// The wait after so many failures, ms: it doubles from the first one's up to the longest, jittered downwards.
fn back_off_ms(retry: Retry, failures: u32, jitter: f64) -> i64 {
    let doublings = failures.saturating_sub(1).min(40);
    let whole = retry.initial_ms.saturating_mul(1i64 << doublings).min(retry.max_ms);
    ((whole as f64 * (0.5 + jitter / 2.0)) as i64).max(1)
}

#[cfg(test)]
mod tests;
