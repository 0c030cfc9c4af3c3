//! Outcomes of one submission: the store's answers are counted and recorded in the trail, and the receipts of safe
//! messages resolved.

use std::sync::Arc;

use tracing::warn;

use super::Receipt;
use crate::domain::{DeadReason, Entry, Flags, KafkaPosition, StoreClock, Text, UnixMs};
use crate::publishing::RouteReporter;
use crate::store::{PendingWrite, RouteTrail, TrailCause, WriteOp, WriteResult};

/// Facts that are remembered of an operation until its answer comes.
pub(super) struct SubmittedOp {
    /// The name of a command. `None` for writes that are no command.
    command: Option<&'static str>,
    /// The reason of a dead letter, and its message's id if it has one. `None` for other writes.
    dead: Option<(DeadReason, Option<Text>)>,
    /// Facts for the trail; nothing where the route has none.
    traced: TracedOp,
}

/// Facts of an operation for the trail.
enum TracedOp {
    Nothing,
    /// A bundle of named messages.
    Named(Arc<Vec<Entry>>),
    Cancel {
        id: Text,
        position: Option<KafkaPosition>,
    },
    Reschedule {
        id: Text,
        due: UnixMs,
        position: Option<KafkaPosition>,
    },
    Replace {
        id: Text,
        position: Option<KafkaPosition>,
    },
}

impl SubmittedOp {
    /// `position` is that of a command's record. `has_trail`: the trail is to hear of the outcome.
    pub(super) fn new(op: &WriteOp, position: Option<KafkaPosition>, has_trail: bool) -> Self {
        let command = match op {
            WriteOp::Cancel { .. } => Some("cancel"),
            WriteOp::Reschedule { .. } => Some("reschedule"),
            WriteOp::Replace { .. } => Some("replace"),
            WriteOp::Store { .. } | WriteOp::DeadLetter(_) => None,
        };
        let dead = match op {
            WriteOp::DeadLetter(dead_letter) => {
                let entry = dead_letter.bundle.entries.first();
                let id = entry.and_then(|entry| entry.id.clone());
                Some((dead_letter.reason, id))
            }
            _ => None,
        };
        let traced = if has_trail {
            TracedOp::of(op, position)
        } else {
            TracedOp::Nothing
        };
        Self {
            command,
            dead,
            traced,
        }
    }
}

impl TracedOp {
    fn of(op: &WriteOp, position: Option<KafkaPosition>) -> Self {
        match op {
            // Named and unnamed messages never share a bundle.
            WriteOp::Store { bundle, .. }
                if bundle
                    .entries
                    .first()
                    .is_some_and(|entry| entry.flags.has(Flags::NAMED)) =>
            {
                Self::Named(bundle.entries.clone())
            }
            WriteOp::Cancel { id, .. } => Self::Cancel {
                id: id.clone(),
                position,
            },
            WriteOp::Reschedule { id, due, .. } => Self::Reschedule {
                id: id.clone(),
                due: *due,
                position,
            },
            WriteOp::Replace { id, .. } => Self::Replace {
                id: id.clone(),
                position,
            },
            WriteOp::Store { .. } | WriteOp::DeadLetter(_) => Self::Nothing,
        }
    }

    fn record(&self, results: &[WriteResult], trail: &RouteTrail, now: UnixMs) {
        match (self, results) {
            (Self::Named(entries), results) => {
                for (entry, result) in entries.iter().zip(results) {
                    let Some(id) = &entry.id else { continue };
                    match result {
                        WriteResult::Duplicate => {
                            trail.deduplicated(id.as_str(), now, entry.position);
                        }
                        WriteResult::Replaced => {
                            let cause = TrailCause::Namesake(entry.position);
                            trail.replaced(id.as_str(), now, cause);
                        }
                        _ => {}
                    }
                }
            }
            (Self::Cancel { id, position }, [WriteResult::Cancelled]) => {
                trail.cancelled(id.as_str(), now, None, TrailCause::Header(*position));
            }
            (Self::Reschedule { id, due, position }, [WriteResult::Rescheduled]) => {
                trail.moved(id.as_str(), now, *due, TrailCause::Header(*position));
            }
            (Self::Replace { id, position }, [WriteResult::Replaced]) => {
                trail.replaced(id.as_str(), now, TrailCause::Header(*position));
            }
            _ => {}
        }
    }
}

/// Longest time by which an event of the trail is dated before the store's answer, ms.
const MOST_EARLIER_MS: i64 = 1000;

/// Waits for the answer to a submission, counts and records the outcomes, and resolves the receipts.
pub(super) async fn resolve_outcomes(
    written: PendingWrite,
    receipts: Vec<Vec<Receipt>>,
    submitted: Vec<SubmittedOp>,
    reporter: &RouteReporter,
    clock: &StoreClock,
) {
    let metrics = reporter.metrics();
    let trail = reporter.trail();
    let asked_at = trail.map_or(UnixMs(0), |_| clock.now());
    let results = match written.results().await {
        Ok(results) => results,
        Err(why) => {
            warn!(error = %why, "the store did not answer; its source will deliver this again");
            return;
        }
    };
    // A message that is moved to now may be delivered before the answer is here: its move comes first in the trail. Where
    // the store took long, the answer tells better when it was done.
    let now = trail.map_or(UnixMs(0), |_| {
        asked_at.max(clock.now().plus(-MOST_EARLIER_MS))
    });
    let mut safe = Vec::new();
    let mut stored = 0;
    let mut duplicates = 0;
    for ((results, receipts), op) in results.into_iter().zip(receipts).zip(submitted) {
        if let Some(trail) = trail {
            op.traced.record(&results, trail, now);
        }
        if let Some((reason, id)) = &op.dead {
            reporter.kept_dead(*reason, id.as_ref());
        }
        for (&result, receipt) in results.iter().zip(receipts) {
            match (result, op.command) {
                (WriteResult::Stored, _) => stored += 1,
                (WriteResult::Duplicate, _) => duplicates += 1,
                (WriteResult::Replaced, None) => {
                    stored += 1;
                    duplicates += 1;
                }
                _ => {}
            }
            if let Some(command) = op.command {
                metrics.command(command, outcome_label(result));
            }
            safe.push(receipt);
        }
    }
    metrics.stored.inc_by(stored);
    metrics.duplicates.inc_by(duplicates);
    Receipt::resolve_all(safe);
}

/// The label of a command's outcome in its metric.
fn outcome_label(result: WriteResult) -> &'static str {
    match result {
        WriteResult::Stored => "stored",
        WriteResult::Replaced => "replaced",
        WriteResult::Duplicate => "duplicate",
        WriteResult::Cancelled => "cancelled",
        WriteResult::InFlight => "in_flight",
        WriteResult::Rescheduled => "rescheduled",
        WriteResult::TooLate => "too_late",
        WriteResult::Unknown => "unknown",
        WriteResult::Published => "published",
    }
}
