//! Retry, give up, or done: a verdict and a policy make the decision. Pure.

use super::due::UnixMs;
use super::limits::{ERROR_TEXT, HISTORY};
use super::message::{Entry, Failure, Flags, Text};
use super::route::Retry;
use super::verdict::{DeadReason, Refusal, Verdict};

/// What is to be done with a message after a publish that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To be published again at this moment.
    Again(UnixMs),
    /// To be kept for a person.
    Dead(DeadReason),
}

/// The decision. `failures` counts publishes of this message that failed, this one included; `jitter` lies
/// in `0..1`. A missing target, an unroutable key, a refused permission may be mended, so they are tried
/// again as well; what is too big will stay too big.
pub fn after(verdict: &Verdict, failures: u32, retry: Retry, now: UnixMs, jitter: f64) -> Next {
    let reason = match verdict {
        Verdict::Refused { reason: Refusal::TooBig, .. } => return Next::Dead(DeadReason::TooBigForTarget),
        Verdict::Refused { reason: Refusal::Unroutable, .. } => DeadReason::Unroutable,
        Verdict::Refused { reason: Refusal::UnknownTarget, .. } => DeadReason::UnknownTarget,
        Verdict::Refused { reason: Refusal::NotAllowed, .. } => DeadReason::NotAllowed,
        _ => DeadReason::Attempts,
    };
    if failures >= retry.attempts {
        return Next::Dead(reason);
    }
    let doublings = failures.saturating_sub(1).min(40);
    let whole = retry.initial_ms.saturating_mul(1i64 << doublings).min(retry.max_ms);
    let wait = whole as f64 * (0.5 + jitter / 2.0);
    Next::Again(now.plus((wait as i64).max(1)))
}

/// The label and the words of a verdict that is not a confirmation.
pub fn describe(verdict: &Verdict) -> (&'static str, Text) {
    match verdict {
        Verdict::Confirmed => ("confirmed", Text::default()),
        Verdict::Refused { reason, error } => (reason.as_str(), error.clone()),
        Verdict::Unknown { error } => ("confirm_unknown", error.clone()),
        Verdict::NotTried => ("not_tried", Text::default()),
    }
}

/// The entry as it goes back after a failed publish: one hand-out and one failure more, the failure in its
/// history, and flagged if nobody knows whether it arrived.
#[must_use]
pub fn failed(entry: &Entry, verdict: &Verdict, handouts: u32, now: UnixMs) -> Entry {
    let (reason, error) = describe(verdict);
    let mut entry = entry.clone();
    entry.handouts = handouts;
    entry.failures += 1;
    if matches!(verdict, Verdict::Unknown { .. }) {
        entry.flags = entry.flags.with(Flags::CONFIRM_UNKNOWN);
    }
    remember(&mut entry, now, reason, error.as_str());
    entry
}

/// Adds a failure to a message's history; the oldest beyond the bound goes.
pub fn remember(entry: &mut Entry, at: UnixMs, reason: &str, error: &str) {
    if entry.history.len() >= HISTORY {
        entry.history.remove(0);
    }
    entry.history.push(Failure { at, reason: reason.into(), error: cut(error) });
}

/// An error's text within its bound.
pub fn cut(error: &str) -> Text {
    let mut end = error.len().min(ERROR_TEXT);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    Text::from(&error[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry { attempts: 3, initial_ms: 1000, max_ms: 1500 };

    fn refused(reason: Refusal) -> Verdict {
        Verdict::Refused { reason, error: "no".into() }
    }

    #[test]
    fn waits_double_up_to_the_maximum_then_it_is_dead_with_its_reason() {
        let now = UnixMs(10_000);
        let unknown = Verdict::Unknown { error: "lost".into() };
        assert_eq!(after(&unknown, 1, RETRY, now, 1.0), Next::Again(UnixMs(11_000)));
        assert_eq!(after(&unknown, 1, RETRY, now, 0.0), Next::Again(UnixMs(10_500)));
        assert_eq!(after(&unknown, 2, RETRY, now, 1.0), Next::Again(UnixMs(11_500)));
        assert_eq!(after(&unknown, 3, RETRY, now, 1.0), Next::Dead(DeadReason::Attempts));
        assert_eq!(
            after(&refused(Refusal::Unroutable), 3, RETRY, now, 1.0),
            Next::Dead(DeadReason::Unroutable)
        );
    }

    #[test]
    fn what_is_too_big_is_dead_at_once() {
        let next = after(&refused(Refusal::TooBig), 1, RETRY, UnixMs(0), 0.5);
        assert_eq!(next, Next::Dead(DeadReason::TooBigForTarget));
    }

    #[test]
    fn a_cut_ends_on_a_character() {
        let text = "é".repeat(150);
        assert_eq!(cut(&text).len(), 200);
    }
}
