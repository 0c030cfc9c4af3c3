//! Commands on names: each goes to the partition that has the name, in order with what is stored there.

use std::sync::Arc;

use bytes::Bytes;

use super::super::unstored_names::UnstoredAt;
use super::{JudgedBatch, Receipt, Source};
use crate::domain::{Entry, Partition, Target, Text};
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
    pub(super) fn note_name(&self, id: &Text, partition: Partition, receipt: &mut Receipt) {
        // On other routes the name itself decides where its operations go, and they keep their order there.
        if self.route.policy.ordered {
            receipt.name(self.names.enter(id.clone(), partition));
        }
    }

    /// The partition that stores the message a command names: as a rule that of the command's own key. `None`
    /// if shutting down is forced.
    pub(super) async fn place_command(
        &self,
        key: Option<&Bytes>,
        id: &Text,
        receipt: &mut Receipt,
        judged: &mut JudgedBatch,
    ) -> Option<Partition> {
        let home = self.partition_of(key, Some(id), None);
        if !self.route.policy.ordered {
            return Some(home);
        }
        let unstored = self.names.find(id, home);
        if unstored == UnstoredAt::Elsewhere {
            self.submitter.submit_all(judged.work.take()).await;
            self.names.answered(id).await;
        }
        let partition = if unstored == UnstoredAt::There {
            home
        } else {
            let store = &self.intake.store;
            let route = &self.route.name;
            let located = || store.locate(route, id.as_str(), home);
            self.intake.until_done("look for a name", located).await?
        };
        self.note_name(id, partition, receipt);
        Some(partition)
    }
}
