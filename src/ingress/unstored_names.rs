//! Names of operations that the store has not answered yet. On a route that keeps the order of keys a command may have
//! another key than its message, and the store is asked which partition has the name: not before it knows all that was
//! read of this name until then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::{Partition, Text};

/// The names of one source, each with the partitions of its operations without an answer.
#[derive(Debug, Default)]
pub(super) struct UnstoredNames {
    partitions: Mutex<HashMap<Text, Vec<Partition>>>,
    fewer: Notify,
}

/// The name of one operation, until its record is resolved or abandoned.
#[derive(Debug)]
pub(super) struct UnstoredName {
    names: Arc<UnstoredNames>,
    id: Text,
    partition: Partition,
}

/// Where the operations of a name are that the store has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnstoredAt {
    Nowhere,
    /// All of them are in the partition that was asked for, and what follows them there keeps its order.
    There,
    Elsewhere,
}

impl UnstoredNames {
    pub(super) fn enter(self: &Arc<Self>, id: Text, partition: Partition) -> UnstoredName {
        let mut partitions = self.partitions.lock();
        partitions.entry(id.clone()).or_default().push(partition);
        UnstoredName {
            names: self.clone(),
            id,
            partition,
        }
    }

    pub(super) fn find(&self, id: &Text, partition: Partition) -> UnstoredAt {
        match self.partitions.lock().get(id) {
            None => UnstoredAt::Nowhere,
            Some(all) if all.iter().all(|at| *at == partition) => UnstoredAt::There,
            Some(_) => UnstoredAt::Elsewhere,
        }
    }

    /// Waits until no operation of this name is without an answer. For one who waits at a time. Cancel-safe.
    pub(super) async fn answered(&self, id: &Text) {
        while self.partitions.lock().contains_key(id) {
            self.fewer.notified().await;
        }
    }
}

impl Drop for UnstoredName {
    fn drop(&mut self) {
        let mut partitions = self.names.partitions.lock();
        let Some(all) = partitions.get_mut(&self.id) else {
            return;
        };
        if let Some(at) = all.iter().position(|at| *at == self.partition) {
            all.swap_remove(at);
        }
        if all.is_empty() {
            partitions.remove(&self.id);
            drop(partitions);
            self.names.fewer.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_name_is_waited_for_until_the_last_of_its_operations_has_an_answer() {
        let names = Arc::<UnstoredNames>::default();
        let (a, b): (Text, Text) = ("a".into(), "b".into());
        assert!(names.answered(&a).now_or_never().is_some());
        let [first, second, other] = [(&a, 3), (&a, 5), (&b, 3)]
            .map(|(id, partition)| names.enter(id.clone(), Partition(partition)));
        let mut answered = pin!(names.answered(&a));
        let mut is_answered = || answered.as_mut().now_or_never().is_some();
        let at = |id| names.find(id, Partition(3));
        assert!(!is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::Elsewhere, UnstoredAt::There]);
        drop(second);
        assert!(!is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::There; 2]);
        drop(first);
        assert!(is_answered());
        assert_eq!([at(&a), at(&b)], [UnstoredAt::Nowhere, UnstoredAt::There]);
        drop(other);
        assert!(names.partitions.lock().is_empty());
    }
}
