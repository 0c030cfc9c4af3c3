//! The way of an import into the store: the same partitions, bundles, outcomes and gates as for records of a source.
//! Nothing bypasses the store, and every message has a name.

use std::sync::Arc;

use super::super::Ledger;
use super::Source;
use crate::domain::{DelayRequest, Entry, Flags, Message, Target, Text, UnixMs};
use crate::ingress::admit::AskedTime;
use crate::ingress::bundling::{PlacedMessage, StoreWork};

/// A message of another program's delay queue, after admission.
#[derive(Clone, Debug)]
pub struct ImportedMessage {
    /// The moment of its publish.
    pub due: UnixMs,
    /// What its entry asked for.
    pub request: DelayRequest,
    /// The name that the import derived from its entry.
    pub id: Text,
    /// The route's own target, or the allowed one that the import names.
    pub target: Arc<Target>,
    /// The message without its delay headers.
    pub message: Message,
}

impl Source {
    /// Submits messages to the store, in order, each with a receipt in the ledger that is resolved once the store has
    /// it. Waits while the gate is closed. Returns `false` if shutting down began meanwhile, and leaves the rest undone.
    pub async fn store_imported(
        &mut self,
        mut batch: Vec<ImportedMessage>,
        ledger: &Arc<Ledger>,
    ) -> bool {
        while !batch.is_empty() {
            let Some(mut permits) = self.permits(batch.len()).await else {
                return false;
            };
            let rest = batch.split_off(permits.messages());
            let now = self.intake.store.clock().now();
            let mut work = StoreWork::new(self.route.clone(), now);
            for ImportedMessage {
                due,
                request,
                id,
                target,
                message,
            } in batch
            {
                let mut receipt = ledger.enter(0);
                if let Some(permit) = permits.take(message.size()) {
                    receipt.attach(permit);
                }
                let asked = AskedTime {
                    due,
                    request,
                    spread_ms: 0,
                };
                let (due, request) = self.jitter.apply(asked, Some(&id), None);
                let key = self.route.order_key(&message);
                let partition = self.partition_of(key.as_ref(), Some(&id), None);
                let flags = Flags(Flags::NAMED);
                let entry = Entry {
                    id: Some(id),
                    flags,
                    request: Some(request),
                    ..Entry::new(due, message)
                };
                work.store(PlacedMessage {
                    partition,
                    target: self.route.target_ref(&target),
                    entry,
                    receipt,
                });
            }
            self.submitter.submit_all(work).await;
            batch = rest;
        }
        true
    }
}
