//! Cuts submissions into calls, so that no script keeps Redis busy for long.

use std::sync::Arc;

use super::{CALL_BYTES, CALL_OPS, PartitionWriter, op_size, reads_first};
use crate::domain::limits::MAX_CALL_NAMES;
use crate::store::{Bundle, WriteOp};

/// Bundles that one call may change by their messages' names, if it has more than a few operations. Each bundle
/// costs a script some 30 microseconds.
const CALL_TOUCHED: usize = 100;

impl PartitionWriter {
    /// The number of operations that may go in one call.
    pub(super) async fn run_length(&self, ops: &[&WriteOp]) -> usize {
        let run = run_length(ops, MAX_CALL_NAMES);
        if run > 1 && self.touches_many(&ops[..run]).await {
            run_length(ops, CALL_TOUCHED)
        } else {
            run
        }
    }

    /// Reports whether the names of these operations mean messages in more bundles than one call should change.
    /// Without an answer it says no: the call itself asks again.
    pub(super) async fn touches_many(&self, ops: &[&WriteOp]) -> bool {
        let names: usize = ops.iter().copied().map(named).sum();
        names > CALL_TOUCHED
            && self
                .bundles_of(ops)
                .await
                .is_ok_and(|touched| touched.len() > CALL_TOUCHED)
    }
}

/// Cuts a bundle into several, none of which changes too many others.
pub(super) fn pieces(bundle: &Bundle) -> impl Iterator<Item = Bundle> {
    let entries = bundle.entries.chunks(CALL_TOUCHED);
    entries.map(|entries| Bundle {
        target: bundle.target.clone(),
        entries: Arc::new(entries.to_vec()),
    })
}

/// The number of operations that may go in one call: up to the first that goes alone, the limit on bytes, on
/// names, or on operations.
pub(super) fn run_length(ops: &[&WriteOp], most_names: usize) -> usize {
    let mut bytes = 0;
    let mut names = 0;
    let mut run = 0;
    for op in ops.iter().take(CALL_OPS) {
        bytes += op_size(op);
        names += named(op);
        if reads_first(op) || (run > 0 && (bytes > CALL_BYTES || names > most_names)) {
            break;
        }
        run += 1;
    }
    run.max(1)
}

/// The number of names in an operation.
fn named(op: &WriteOp) -> usize {
    match op {
        WriteOp::Store { bundle, .. } => bundle
            .entries
            .iter()
            .filter(|e| e.listed_id().is_some())
            .count(),
        WriteOp::Cancel { .. } | WriteOp::Reschedule { .. } | WriteOp::Replace { .. } => 1,
        WriteOp::DeadLetter(_) => 0,
    }
}
