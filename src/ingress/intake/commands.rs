//! Commands on names: each goes to the partition that has the name, in order with what is stored there.

use std::sync::Arc;

use bytes::Bytes;

use super::super::unstored_names::{NamedOperation, UnstoredAt};
use super::{JudgedBatch, Receipt, Source};
use crate::domain::{Entry, KafkaPosition, Partition, Target, Text};
use crate::store::{Bundle, IntendedMessage, WriteOp};

impl Source {
    /// The operation that cancels the message of a name, if it is the intended one.
    pub(super) fn cancel_op(&self, id: Text, of: Option<IntendedMessage>) -> WriteOp {
        WriteOp::Cancel {
            route: self.route.name.clone(),
            id,
            of,
        }
    }

    /// The operation by which a message moves the one of its name, or takes its place.
    pub(super) fn change_op(
        &self,
        replaces: bool,
        id: Text,
        target: &Arc<Target>,
        entry: Entry,
    ) -> WriteOp {
        let due = entry.due;
        let route = self.route.name.clone();
        let bundle = Bundle {
            target: self.route.target_ref(target),
            entries: Arc::new(vec![entry]),
        };
        if replaces {
            WriteOp::Replace {
                route,
                id,
                bundle,
                or_store: true,
                of: None,
            }
        } else {
            WriteOp::Reschedule {
                route,
                id,
                due,
                fallback: Some(bundle),
                of: None,
            }
        }
    }

    /// Notes that the store is to hear of an operation on this name.
    pub(super) fn note_name(&self, id: &Text, operation: NamedOperation, receipt: &mut Receipt) {
        // On other routes the name itself decides where its operations go, and they keep their order there.
        if self.route.policy.ordered {
            receipt.name(self.names.enter(id.clone(), operation));
        }
    }

    /// Adds a command to the batch. `position` is that of its record, if the trail is to tell it. Ends the source if the
    /// store cannot be asked where its message is.
    pub(super) async fn command(
        &mut self,
        id: &Text,
        op: WriteOp,
        key: Option<&Bytes>,
        position: Option<KafkaPosition>,
        mut receipt: Receipt,
        judged: &mut JudgedBatch,
    ) {
        let is_cancel = matches!(op, WriteOp::Cancel { .. });
        if let Some(partition) = self.place_command(key, id, judged).await {
            let operation = NamedOperation {
                partition,
                is_cancel,
            };
            self.note_name(id, operation, &mut receipt);
            judged.work.command_at(partition, op, position, receipt);
        } else {
            self.has_ended = true;
        }
    }

    /// The partition that stores the message a command names: as a rule that of the command's own key. `None` if shutting
    /// down is forced, or has begun and the store does not answer.
    async fn place_command(
        &self,
        key: Option<&Bytes>,
        id: &Text,
        judged: &mut JudgedBatch,
    ) -> Option<Partition> {
        let home = self.partition_of(key, Some(id), None);
        if !self.route.policy.ordered {
            return Some(home);
        }
        match self.names.find(id, home) {
            UnstoredAt::There => return Some(home),
            UnstoredAt::Unknown => {
                self.submitter.submit_all(judged.work.take()).await;
                self.names.answered(id).await;
            }
            UnstoredAt::Nowhere => {}
        }
        let (store, route) = (&self.intake.store, &self.route.name);
        let located = || store.locate(route, id.as_str(), home);
        self.intake.until_done("look for a name", located).await
    }
}
