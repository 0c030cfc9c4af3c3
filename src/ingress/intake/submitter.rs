//! From bundled work to the store: each partition's share takes its place in that partition's order.

use std::sync::Arc;

use tracing::debug;

use crate::domain::Partition;
use crate::ingress::Receipt;
use crate::ingress::answers::{answer, op_name};
use crate::ingress::bundling::{PartitionWork, Work};
use crate::lifecycle::Tasks;
use crate::mutants::{self, Mutant};
use crate::store::Store;
use crate::telemetry::RouteMetrics;

/// The way of a route's work into the store.
pub(in crate::ingress) struct Submitter {
    pub(in crate::ingress) store: Store,
    pub(super) metrics: Arc<RouteMetrics>,
    pub(super) tasks: Tasks,
}

impl Submitter {
    /// Returns once all of it has its place in the order of each partition.
    pub(in crate::ingress) async fn submit_all(&self, work: Work) {
        for (p, work) in work.finish() {
            self.submit(p, work).await;
        }
    }

    /// Takes its place in one partition's order; the answer resolves the receipts when it comes.
    async fn submit(&self, p: Partition, work: PartitionWork) {
        let PartitionWork { ops, mut receipts, .. } = work;
        if mutants::is(Mutant::AckBeforeStore) {
            receipts.drain(..).flatten().for_each(Receipt::resolve);
        }
        let commands: Vec<Option<&'static str>> = ops.iter().map(op_name).collect();
        match self.store.enqueue(p, ops).await {
            Ok(written) => {
                let answers = answer(written, receipts, commands, self.metrics.clone());
                self.tasks.spawn("ingress:answers", answers);
            }
            Err(why) => debug!(error = %why, "not stored; its source will deliver it again"),
        }
    }
}
