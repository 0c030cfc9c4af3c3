//! Names of operations that the store has not answered yet. On a route that keeps the order of keys a command may have
//! another key than its message, and the store is asked which partition has the name: not before it knows all that was
//! read of this name until then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::{Partition, Text};

/// The names of one source, each with its operations without an answer, in order.
#[derive(Debug, Default)]
pub(super) struct UnstoredNames {
    operations: Mutex<HashMap<Text, Vec<NamedOperation>>>,
    fewer: Notify,
}

/// An operation on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedOperation {
    pub(super) partition: Partition,
    pub(super) is_cancel: bool,
}

/// The name of one operation, until its record is resolved or abandoned.
#[derive(Debug)]
pub(super) struct UnstoredName {
    names: Arc<UnstoredNames>,
    id: Text,
    operation: NamedOperation,
}

/// Where the operations of a name are that the store has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnstoredAt {
    Nowhere,
    /// All of them are in the partition that was asked for, and the last of them leaves a message with the name there. What
    /// follows them keeps its order.
    There,
    /// Only the store can tell, once it has answered them.
    Unknown,
}

impl UnstoredNames {
    pub(super) fn enter(self: &Arc<Self>, id: Text, operation: NamedOperation) -> UnstoredName {
        let mut operations = self.operations.lock();
        operations.entry(id.clone()).or_default().push(operation);
        UnstoredName {
            names: self.clone(),
            id,
            operation,
        }
    }

    pub(super) fn find(&self, id: &Text, partition: Partition) -> UnstoredAt {
        let operations = self.operations.lock();
        let Some(all) = operations.get(id) else {
            return UnstoredAt::Nowhere;
        };
        let are_there = all.iter().all(|op| op.partition == partition);
        if are_there && all.last().is_some_and(|last| !last.is_cancel) {
            UnstoredAt::There
        } else {
            UnstoredAt::Unknown
        }
    }

    /// Waits until no operation of this name is without an answer. For one who waits at a time. Cancel-safe.
    pub(super) async fn answered(&self, id: &Text) {
        while self.operations.lock().contains_key(id) {
            self.fewer.notified().await;
        }
    }
}

impl Drop for UnstoredName {
    fn drop(&mut self) {
        let mut operations = self.names.operations.lock();
        let Some(all) = operations.get_mut(&self.id) else {
            return;
        };
        if let Some(at) = all.iter().position(|op| *op == self.operation) {
            all.remove(at);
        }
        if all.is_empty() {
            operations.remove(&self.id);
            drop(operations);
            self.names.fewer.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn operation(partition: u16, is_cancel: bool) -> NamedOperation {
        let partition = Partition(partition);
        NamedOperation {
            partition,
            is_cancel,
        }
    }

    #[test]
    fn a_name_is_waited_for_until_the_last_of_its_operations_has_an_answer() {
        let names = Arc::<UnstoredNames>::default();
        let (a, b): (Text, Text) = ("a".into(), "b".into());
        assert!(names.answered(&a).now_or_never().is_some());
        let [first, second, other] = [(&a, 3), (&a, 5), (&b, 3)]
            .map(|(id, partition)| names.enter(id.clone(), operation(partition, false)));
        let mut answered = pin!(names.answered(&a));
        let mut is_answered = || answered.as_mut().now_or_never().is_some();
        let at = |id| names.find(id, Partition(3));
        assert!(!is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::Unknown, UnstoredAt::There]);
        drop(second);
        assert!(!is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::There; 2]);
        drop(first);
        assert!(is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::Nowhere, UnstoredAt::There]);
        drop(other);
        assert!(names.operations.lock().is_empty());
    }

    #[test]
    fn after_a_cancel_only_the_store_can_tell_who_has_the_name() {
        let names = Arc::<UnstoredNames>::default();
        let a: Text = "a".into();
        let stored = names.enter(a.clone(), operation(3, false));
        let cancelled = names.enter(a.clone(), operation(3, true));
        assert_eq!(names.find(&a, Partition(3)), UnstoredAt::Unknown);
        let again = names.enter(a.clone(), operation(3, false));
        assert_eq!(names.find(&a, Partition(3)), UnstoredAt::There);
        drop(stored);
        drop(cancelled);
        assert_eq!(names.find(&a, Partition(3)), UnstoredAt::There);
        drop(again);
        assert_eq!(names.find(&a, Partition(3)), UnstoredAt::Nowhere);
    }
}
