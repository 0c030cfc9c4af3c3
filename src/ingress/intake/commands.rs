//! Commands on names: each goes to the partition that has the name, in order with what is stored there.

use std::sync::Arc;

use bytes::Bytes;

use super::Source;
use crate::domain::{Entry, KafkaPosition, Target, Text};
use crate::ingress::Receipt;
use crate::ingress::bundling::StoreWork;
use crate::store::{Bundle, WriteOp};

impl Source {
    /// The operation that cancels the message of a name.
    pub(super) fn cancel_op(&self, id: Text) -> WriteOp {
        WriteOp::Cancel {
            route: self.route.name.clone(),
            id,
            of: None,
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

    /// Adds an operation on a name. Nothing is added if shutting down is forced.
    pub(super) async fn command(
        &self,
        id: &Text,
        key: Option<&Bytes>,
        op: WriteOp,
        position: Option<KafkaPosition>,
        receipt: Receipt,
        work: &mut StoreWork,
    ) {
        if let Some(p) = self.partition_of_command(key, id).await {
            work.command_at(p, op, position, receipt);
        }
    }
}
