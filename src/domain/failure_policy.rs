//! The failure policy: decides on a message whose publish was not confirmed. Pure. `publishing` tells the decision, and
//! whoever published the message carries it out.

use super::due::UnixMs;
use super::entry::{Entry, Flags};
use super::route::{OnExpired, OnRefused, OnUnroutable, RetryPolicy, Route, RoutePolicy};
use super::verdict::{DeadReason, Refusal, Verdict};
use super::{dying_message, moment, retry};

/// Time between two tries of a passing message at a target that is away or missing, ms. A lane asks its broker no
/// more often than this.
pub const TARGET_RETRY_MS: i64 = 1000;
/// Logged when a message is out of attempts and the dead-letter quota is exhausted.
pub const QUOTA_FULL: &str = "dead_letters is full: what is out of attempts is tried again";
/// Shortest and longest wait of a delayed message whose partition is away, ms. It waits half as long as it is late.
const PARTITION_RETRY_MS: (i64, i64) = (1000, 30_000);
/// Time until a passing message that was never handed to the broker is submitted again, ms.
const UNTRIED_RETRY_MS: i64 = 100;

/// The way of a message to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishFlow {
    /// The message is delayed: it is in the store, or goes there when its publish fails.
    Delayed,
    /// The message is on its way to its route's `dead_letter_to`.
    Dying,
    /// The message passes through: it waits in its source, in order.
    Passing {
        /// Tries in a row before this one that found the target away.
        waits: u32,
    },
}

impl PublishFlow {
    /// Reports whether the message is published byte for byte, without the headers of a delayed message.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Passing { .. })
    }
}

/// A publish that was not confirmed.
#[derive(Clone, Copy, Debug)]
pub struct FailedPublish<'a> {
    /// The message as it was published.
    pub entry: &'a Entry,
    /// The lane's answer.
    pub verdict: &'a Verdict,
    /// Hand-outs of the message, this one included.
    pub handouts: u32,
    /// The way of the message.
    pub flow: PublishFlow,
    /// The moment of the decision.
    pub now: UnixMs,
    /// A random number, `0..1`.
    pub jitter: f64,
}

/// The decision on a message after a publish that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureDecision {
    /// The message goes to the store and is published again at this moment.
    RetryAt(UnixMs),
    /// The message is published again at this moment. Its source waits, so that nothing overtakes it.
    WaitUntil(UnixMs),
    /// The message becomes a dead letter.
    DeadLetter(DeadReason),
    /// The message becomes a dead letter once `dead_letter_to` has confirmed it.
    DeadLetterVia(DeadReason),
    /// The message is dropped, counted and logged.
    Drop(DropReason),
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Its target refuses it, by `on_refused` or `on_unroutable`.
    Refused,
    /// It is not wanted any more, by `on_expired`.
    Expired,
}

impl DropReason {
    /// The label of `dropped_total{reason}`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Expired => "expired",
        }
    }
}

/// A message after a failed publish.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedMessage {
    /// The message with its hand-outs, failures, flags and history updated.
    pub entry: Entry,
    /// The decision on it.
    pub decision: FailureDecision,
    /// The reason for which it would be a dead letter if `dead_letters` were not full.
    pub is_full: Option<DeadReason>,
}

/// Decides on a failed publish. `take_quota` takes this many bytes of the dead-letter quota, and returns whether they
/// were there. It is not asked for messages that are to blame themselves, nor for dying ones.
pub fn decide(
    publish: FailedPublish<'_>,
    route: &Route,
    take_quota: impl FnOnce(usize) -> bool,
) -> FailedMessage {
    match publish.flow {
        PublishFlow::Dying => decide_dying(publish, route.policy.retry),
        PublishFlow::Delayed if *publish.verdict == Verdict::Expired => {
            decide_expired(publish, route)
        }
        PublishFlow::Delayed | PublishFlow::Passing { .. } => {
            let mut failed = decide_living(publish, route, take_quota);
            // Its key and its name are not held for longer than anybody wants it.
            if let FailureDecision::RetryAt(at) = &mut failed.decision
                && let Some(last) = publish.entry.wanted_until()
            {
                *at = last.min(*at);
            }
            failed
        }
    }
}

/// Decides on a message that is not wanted any more.
fn decide_expired(publish: FailedPublish<'_>, route: &Route) -> FailedMessage {
    let mut entry = publish.entry.clone();
    let reason = DeadReason::Expired;
    let last = entry.wanted_until().and_then(moment::render);
    let error = format!("wanted until {}", last.unwrap_or_default());
    retry::remember(&mut entry, publish.now, reason.as_str(), &error);
    let decision = match route.policy.on_expired {
        OnExpired::Drop => FailureDecision::Drop(DropReason::Expired),
        OnExpired::DeadLetter if route.dead_letter_to.is_some() => {
            FailureDecision::DeadLetterVia(reason)
        }
        OnExpired::DeadLetter => FailureDecision::DeadLetter(reason),
    };
    FailedMessage {
        entry,
        decision,
        is_full: None,
    }
}

/// Decides on a dead message that `dead_letter_to` did not take.
fn decide_dying(publish: FailedPublish<'_>, retry: RetryPolicy) -> FailedMessage {
    let mut entry = publish.entry.clone();
    let decision = if publish.verdict.is_hopeless() {
        let reason = dying_message::reason(&entry);
        entry = dying_message::ended(entry);
        FailureDecision::DeadLetter(reason)
    } else {
        if publish.verdict.is_unknown() {
            entry.flags = entry.flags.with(Flags::CONFIRM_UNKNOWN);
        }
        entry.handouts = publish.handouts;
        FailureDecision::RetryAt(publish.now.plus(retry.max_ms))
    };
    FailedMessage {
        entry,
        decision,
        is_full: None,
    }
}

/// Decides on a message that is not dead yet.
fn decide_living(
    publish: FailedPublish<'_>,
    route: &Route,
    take_quota: impl FnOnce(usize) -> bool,
) -> FailedMessage {
    let FailedPublish {
        entry,
        verdict,
        handouts,
        flow,
        now,
        jitter,
    } = publish;
    if let Some(decision) = not_counted(publish, route.policy.retry) {
        // It was not handed over now. Those whose claims on it expired may have done that.
        let entry = Entry {
            handouts: handouts.saturating_sub(1),
            ..entry.clone()
        };
        return FailedMessage {
            entry,
            decision,
            is_full: None,
        };
    }
    let entry = retry::failed(entry, verdict, handouts, now);
    let rule = rule(&entry, verdict, flow, &route.policy);
    let retry = route.policy.retry;
    let again = |at| {
        if rule == RetryRule::Wait {
            FailureDecision::WaitUntil(at)
        } else {
            FailureDecision::RetryAt(at)
        }
    };
    let is_over = rule == RetryRule::DeadLetter
        || verdict.is_hopeless()
        || verdict.spends_attempt() && entry.failures >= retry.attempts;
    let (decision, is_full) = if rule == RetryRule::Drop {
        (FailureDecision::Drop(DropReason::Refused), None)
    } else if !is_over {
        (
            again(now.plus(back_off_ms(retry, entry.failures.max(1), jitter))),
            None,
        )
    } else {
        let reason = dead_reason(verdict);
        if !reason.is_own_fault() && !take_quota(entry.stored_size()) {
            (again(now.plus(retry.max_ms)), Some(reason))
        } else if route.dead_letter_to.is_some() {
            (FailureDecision::DeadLetterVia(reason), None)
        } else {
            (FailureDecision::DeadLetter(reason), None)
        }
    };
    FailedMessage {
        entry,
        decision,
        is_full,
    }
}

/// How a failed message goes on while it has attempts left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryRule {
    Retry,
    Wait,
    DeadLetter,
    Drop,
}

fn rule(entry: &Entry, verdict: &Verdict, flow: PublishFlow, policy: &RoutePolicy) -> RetryRule {
    let on_refused = policy.on_refused;
    match (flow, verdict) {
        (PublishFlow::Delayed, _) if is_unwanted(entry, verdict) => match policy.on_unroutable {
            OnUnroutable::Retry => RetryRule::Retry,
            OnUnroutable::DeadLetter => RetryRule::DeadLetter,
            OnUnroutable::Drop => RetryRule::Drop,
        },
        (PublishFlow::Delayed | PublishFlow::Dying, _) => RetryRule::Retry,
        (_, Verdict::Refused { reason, .. }) if reason.is_hopeless() => match on_refused {
            OnRefused::Wait => RetryRule::Wait,
            _ => RetryRule::Retry,
        },
        (_, Verdict::Refused { .. }) => match on_refused {
            OnRefused::Retry => RetryRule::Retry,
            OnRefused::Wait => RetryRule::Wait,
            OnRefused::DeadLetter => RetryRule::DeadLetter,
            OnRefused::Drop => RetryRule::Drop,
        },
        // Nobody knows whether it arrived, so it keeps its place in its source.
        _ => RetryRule::Wait,
    }
}

/// Reports whether no binding wants a delayed message. What passed through asked for no delay, and keeps the retries that
/// `on_refused` gave it.
pub fn is_unwanted(entry: &Entry, verdict: &Verdict) -> bool {
    let is_unroutable = matches!(
        verdict,
        Verdict::Refused {
            reason: Refusal::Unroutable,
            ..
        }
    );
    is_unroutable && entry.request.is_some()
}

/// The decision on a publish that leaves nothing to note: it was never tried, or its target is away and its source can
/// wait.
fn not_counted(publish: FailedPublish<'_>, retry: RetryPolicy) -> Option<FailureDecision> {
    let FailedPublish { now, jitter, .. } = publish;
    let waits = match publish.flow {
        PublishFlow::Delayed | PublishFlow::Dying => None,
        PublishFlow::Passing { waits } => Some(waits),
    };
    match (waits, publish.verdict) {
        (None, Verdict::NotTried) => Some(FailureDecision::RetryAt(publish.entry.due)),
        (Some(_), Verdict::NotTried) => {
            Some(FailureDecision::WaitUntil(now.plus(UNTRIED_RETRY_MS)))
        }
        (
            None,
            Verdict::Refused {
                reason: Refusal::PartitionAway,
                ..
            },
        ) => {
            let (shortest, longest) = PARTITION_RETRY_MS;
            let late_ms = now.since(publish.entry.asked_due());
            let whole = (late_ms / 2).clamp(shortest, longest);
            Some(FailureDecision::RetryAt(now.plus(jittered(whole, jitter))))
        }
        (
            Some(waits),
            Verdict::Refused {
                reason: Refusal::UnknownTarget | Refusal::Unavailable | Refusal::PartitionAway,
                ..
            },
        ) => {
            let wait_ms = back_off_ms(retry, waits + 1, jitter).min(TARGET_RETRY_MS);
            Some(FailureDecision::WaitUntil(now.plus(wait_ms)))
        }
        _ => None,
    }
}

/// The dead letter's reason for this verdict.
fn dead_reason(verdict: &Verdict) -> DeadReason {
    match verdict {
        Verdict::Refused {
            reason: Refusal::TooBig,
            ..
        } => DeadReason::TooBigForTarget,
        Verdict::Refused {
            reason: Refusal::Unroutable,
            ..
        } => DeadReason::Unroutable,
        Verdict::Refused {
            reason: Refusal::UnknownTarget,
            ..
        } => DeadReason::UnknownTarget,
        Verdict::Refused {
            reason: Refusal::NotAllowed,
            ..
        } => DeadReason::NotAllowed,
        Verdict::Refused {
            reason: Refusal::Unpublishable,
            ..
        } => DeadReason::Unpublishable,
        _ => DeadReason::Attempts,
    }
}

/// The wait after this many failures, ms. It doubles from the initial wait up to the longest, and is jittered
/// downwards.
fn back_off_ms(retry: RetryPolicy, failures: u32, jitter: f64) -> i64 {
    let doublings = failures.saturating_sub(1).min(40);
    let whole = retry
        .initial_ms
        .saturating_mul(1i64 << doublings)
        .min(retry.max_ms);
    jittered(whole, jitter)
}

/// Half to all of a wait, at least a millisecond.
fn jittered(whole_ms: i64, jitter: f64) -> i64 {
    ((whole_ms as f64 * (0.5 + jitter / 2.0)) as i64).max(1)
}

#[cfg(test)]
mod tests;
