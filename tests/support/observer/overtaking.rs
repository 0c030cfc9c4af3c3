//! Messages that others overtake: of one source, to one target, due later and there before them.
//!
//! Only what lay in the store for long enough before it was due is judged: what arrives together may be read in any
//! order. A reason has as long to be told as for a message that is late.

use std::collections::BTreeMap;

use super::{LATE_MS, are_heard, explained, ways};
use crate::support::accounting::{Id, Ledger};

/// By so much later may a message be due that arrives first: a route calls messages late from three seconds on, and tells
/// it within two. What is over before that has no line of its own.
const OVERTAKEN_MS: i64 = 3000 + 2000;
/// Known to its producer for so long before it is due, a message is stored by then.
const STORED_MS: i64 = 5000;

/// Those that were overtaken and whose reason may yet be told.
#[derive(Debug, Default)]
pub(super) struct Overtaking {
    /// How many the ledger had named before.
    looked_at: usize,
    unexplained: BTreeMap<Id, OvertakenMessage>,
}

#[derive(Debug)]
struct OvertakenMessage {
    source: Option<String>,
    target: String,
    due_ms: i64,
    by_ms: i64,
}

impl Overtaking {
    /// Notes what has been overtaken since the last look. `confirmed`: since when each message that waited until then is
    /// known to its producer.
    pub(super) fn look(&mut self, ledger: &Ledger, confirmed: &BTreeMap<Id, i64>) {
        let named = ledger.overtaken();
        for (id, by_ms) in &named[self.looked_at..] {
            let known = confirmed.get(id).copied();
            let produced = ledger.produced(id).zip(known);
            let Some(((stamp, source), known)) = produced.filter(|_| *by_ms > OVERTAKEN_MS) else {
                continue;
            };
            if known + STORED_MS > stamp.due_ms {
                continue;
            }
            let message = OvertakenMessage {
                source: source.map(str::to_owned),
                target: stamp.target.clone(),
                due_ms: stamp.due_ms,
                by_ms: *by_ms,
            };
            self.unexplained.insert(id.clone(), message);
        }
        self.looked_at = named.len();
    }

    /// Takes out what has its reason, or none after all.
    pub(super) fn judge(&mut self, now: i64) -> Option<String> {
        let mut silence = None;
        self.unexplained.retain(|id, message| {
            let Some(ways) = ways(message.source.as_deref(), &message.target) else {
                return false;
            };
            let is_ordered = ways.iter().any(|(_, route)| route.is_ordered);
            if is_ordered || explained(&ways, message.due_ms, now).is_some() {
                return false;
            }
            if now < message.due_ms + LATE_MS || !are_heard(&ways, message.due_ms) {
                return true;
            }
            let said: Vec<_> = ways
                .iter()
                .map(|(watch, route)| watch.describe(route))
                .collect();
            silence.get_or_insert_with(|| {
                format!(
                    "{id} was overtaken by one that was due {} ms later:\n  {}",
                    message.by_ms,
                    said.join("\n  ")
                )
            });
            false
        });
        silence
    }
}
