//! What a server refuses although it answers: writes while its disk is full or too few replicas are connected, everything
//! while a script runs for too long, a command that it does not know. Whichever call of whichever connection meets a
//! refusal notes it here; the heartbeat meets one within a second where nothing else is written.

use parking_lot::Mutex;
use redis::RedisError;

use crate::domain::MonoUs;

/// A refusal that was met so lately is not over, even if a write was taken since: not every write is refused. Longer than
/// the longest wait of a call that is refused again and again.
const LATELY_US: i64 = 3_000_000;
/// A refusal that was not met for so long is over, even if nothing was written since.
const FORGOTTEN_US: i64 = 30_000_000;

/// What a refusal means, by a code or a phrase in the server's answer.
const MEANINGS: [(&str, &str); 7] = [
    (
        "MISCONF",
        "it cannot write its snapshot or its append-only file",
    ),
    (
        "NOREPLICAS",
        "fewer replicas are connected than its min-replicas-to-write",
    ),
    ("OOM ", "it is at maxmemory"),
    ("OOM:", "it is at maxmemory"),
    ("BUSY", "a script has been running on it for too long"),
    (
        "nknown command",
        "it does not know a command that Postdate needs",
    ),
    ("rror compiling script", "it cannot load a script"),
];

/// The last refusal that was met, until it is over.
#[derive(Debug, Default)]
pub(in crate::store) struct LastRefusal(Mutex<Option<Refusal>>);

#[derive(Debug)]
struct Refusal {
    why: String,
    met: MonoUs,
    /// A write was taken since it was met.
    taken_since: bool,
}

impl LastRefusal {
    /// Notes an answer, if it is a refusal.
    pub(in crate::store) fn answered(&self, error: &RedisError, now: MonoUs) {
        if let Some(why) = meaning(&error.to_string()) {
            *self.0.lock() = Some(Refusal {
                why,
                met: now,
                taken_since: false,
            });
        }
    }

    /// Notes that a server has taken a write. One that refused before may be no master any more, and asked never again:
    /// what is refused still is met again soon.
    pub(in crate::store) fn taken(&self) {
        if let Some(refusal) = &mut *self.0.lock() {
            refusal.taken_since = true;
        }
    }

    /// Why a server refuses what it is asked, if one does.
    pub(in crate::store) fn why(&self, now: MonoUs) -> Option<String> {
        let mut last = self.0.lock();
        last.take_if(|refusal| {
            let since_us = now.since(refusal.met);
            let lasts = since_us < LATELY_US || (!refusal.taken_since && since_us < FORGOTTEN_US);
            !lasts
        });
        last.as_ref().map(|refusal| refusal.why.clone())
    }
}

/// The words for a refusal, with the server's own behind them. `None`: the answer is none.
fn meaning(answer: &str) -> Option<String> {
    let (_, meaning) = MEANINGS.iter().find(|(word, _)| answer.contains(word))?;
    Some(format!("{meaning} ({})", first_refusal(answer)))
}

/// Of the refusals of a transaction's commands the first: the others say the same.
fn first_refusal(answer: &str) -> &str {
    let Some((_, refusals)) = answer.split_once("[(Index 0, error: ") else {
        return answer;
    };
    let first = refusals.split("), (Index ").next();
    first.unwrap_or(refusals).trim_end_matches(")]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &'static str) -> RedisError {
        let text = format!("-{code} some words of the server\r\n");
        let value = redis::parse_redis_value(text.as_bytes()).expect("an answer");
        match value.extract_error() {
            Err(error) => error,
            Ok(value) => panic!("{value:?}"),
        }
    }

    const SECOND_US: i64 = 1_000_000;

    #[test]
    fn of_a_transaction_the_first_refusal_is_told() {
        let no = "\"NOREPLICAS\": Not enough good replicas to write.";
        for aborted in [
            format!("Transaction aborted: [(Index 0, error: {no})]"),
            format!("Transaction aborted: [(Index 0, error: {no}), (Index 1, error: {no})]"),
        ] {
            let why = meaning(&aborted).expect("a refusal");
            assert!(why.ends_with(&format!(" ({no})")), "{why}");
        }
    }

    #[test]
    fn a_refusal_lasts_until_a_write_was_taken_and_none_was_refused_for_a_while() {
        let refusals = LastRefusal::default();
        let why = |seconds: i64| refusals.why(MonoUs(seconds * SECOND_US));
        refusals.answered(&error("MISCONF"), MonoUs(0));
        assert!(why(20).is_some_and(|why| why.contains("append-only") && why.contains("MISCONF")));
        refusals.taken();
        refusals.answered(&error("MISCONF"), MonoUs(21 * SECOND_US));
        refusals.taken();
        assert!(why(23).is_some(), "one was refused two seconds ago");
        assert_eq!(why(24), None);
    }

    #[test]
    fn one_of_a_server_that_is_never_asked_again_is_forgotten() {
        let refusals = LastRefusal::default();
        refusals.answered(&error("NOREPLICAS"), MonoUs(0));
        assert!(refusals.why(MonoUs(29 * SECOND_US)).is_some());
        assert_eq!(refusals.why(MonoUs(30 * SECOND_US)), None);
        refusals.answered(&error("NOREPLICAS"), MonoUs(31 * SECOND_US));
        refusals.taken();
        assert_eq!(
            refusals.why(MonoUs(34 * SECOND_US)),
            None,
            "its successor takes writes"
        );
    }

    #[test]
    fn an_answer_about_a_key_a_slot_or_a_right_is_no_refusal() {
        for code in ["WRONGTYPE", "MOVED", "NOSCRIPT", "ERR", "READONLY"] {
            let refusals = LastRefusal::default();
            refusals.answered(&error(code), MonoUs(0));
            assert_eq!(refusals.why(MonoUs(0)), None, "{code}");
        }
    }
}
