//! Submits bundled work to the store: each partition's part takes its place in that partition's order.

use std::sync::Arc;

use tracing::debug;

use crate::domain::Partition;
use crate::ingress::Receipt;
use crate::ingress::bundling::{PartitionWork, StoreWork};
use crate::ingress::outcomes::{SubmittedOp, resolve_outcomes};
use crate::lifecycle::{Shutdown, Tasks};
use crate::mutants::{self, Mutant};
use crate::publishing::RouteReporter;
use crate::store::Store;

/// The way of a route's work into the store.
pub(super) struct Submitter {
    pub(super) store: Store,
    /// Tells what becomes of the route's messages.
    pub(super) reporter: Arc<RouteReporter>,
    pub(super) tasks: Tasks,
    pub(super) shutdown: Shutdown,
}

impl Submitter {
    /// Submits work. Returns once all of it has its place in the order of each partition, or shutting down is
    /// forced.
    pub(super) async fn submit_all(&self, work: StoreWork) {
        for (p, work) in work.finish() {
            self.submit(p, work).await;
        }
    }

    /// Submits the work of one partition. The store's answer resolves the receipts later.
    async fn submit(&self, p: Partition, work: PartitionWork) {
        let PartitionWork {
            ops,
            mut receipts,
            positions,
            ..
        } = work;
        if mutants::is(Mutant::AckBeforeStore) {
            receipts.drain(..).flatten().for_each(Receipt::resolve);
        }
        let submitted = ops.iter().zip(positions);
        let submitted = submitted
            .map(|(op, at)| SubmittedOp::new(op, at, self.reporter.trail().is_some()))
            .collect();
        let enqueued = tokio::select! {
            biased;
            () = self.shutdown.forced() => return,
            enqueued = self.store.enqueue(p, ops) => enqueued,
        };
        match enqueued {
            Ok(written) => {
                let reporter = self.reporter.clone();
                let store = self.store.clone();
                let shutdown = self.shutdown.clone();
                self.tasks.spawn("ingress:answers", async move {
                    tokio::select! {
                        () = shutdown.forced() => {}
                        () = resolve_outcomes(written, receipts, submitted, &reporter, store.clock()) => {}
                    }
                });
            }
            Err(why) => debug!(error = %why, "not stored; its source will deliver it again"),
        }
    }
}
