//! Outcomes of one submission: the store's answers are counted, and the receipts of safe messages resolved.

use std::sync::Arc;

use tracing::warn;

use super::Receipt;
use crate::store::{PendingWrite, WriteOp, WriteResult};
use crate::telemetry::RouteMetrics;

/// The name of a command. `None` for writes that are no command.
pub(super) fn command_name(op: &WriteOp) -> Option<&'static str> {
    match op {
        WriteOp::Cancel { .. } => Some("cancel"),
        WriteOp::Reschedule { .. } => Some("reschedule"),
        WriteOp::Store { .. } | WriteOp::DeadLetter(_) => None,
    }
}

/// Waits for the answer to a submission, counts the outcomes, and resolves the receipts.
pub(super) async fn resolve_outcomes(
    written: PendingWrite,
    receipts: Vec<Vec<Receipt>>,
    commands: Vec<Option<&'static str>>,
    metrics: Arc<RouteMetrics>,
) {
    let results = match written.results().await {
        Ok(results) => results,
        Err(why) => {
            warn!(error = %why, "the store did not answer; its source will deliver this again");
            return;
        }
    };
    let mut safe = Vec::new();
    let mut stored = 0;
    let mut duplicates = 0;
    for ((results, receipts), command) in results.into_iter().zip(receipts).zip(commands) {
        for (&result, receipt) in results.iter().zip(receipts) {
            stored += u64::from(matches!(result, WriteResult::Stored | WriteResult::Replaced));
            duplicates += u64::from(matches!(result, WriteResult::Duplicate | WriteResult::Replaced));
            if let Some(op) = command {
                metrics.command(op, outcome_label(result));
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
        WriteResult::Stored | WriteResult::Replaced => "stored",
        WriteResult::Duplicate => "duplicate",
        WriteResult::Cancelled => "cancelled",
        WriteResult::InFlight => "in_flight",
        WriteResult::Rescheduled => "rescheduled",
        WriteResult::TooLate => "too_late",
        WriteResult::Unknown => "unknown",
        WriteResult::Published => "published",
    }
}
