//! Names that are on their way into the store. On a route that keeps the order of keys a command may have another key
//! than its message, and the store is asked which partition has the name. It does not know yet what was read just before.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::{Partition, Text};

/// The names of one source's messages to which the store has not answered yet, each with its partitions in the order in
/// which they were read.
#[derive(Debug, Default)]
pub(super) struct UnstoredNames(Mutex<HashMap<Text, Vec<Partition>>>);

/// A name until its message's record is resolved or abandoned.
#[derive(Debug)]
pub(super) struct UnstoredName {
    names: Arc<UnstoredNames>,
    id: Text,
    partition: Partition,
}

impl UnstoredNames {
    pub(super) fn enter(self: &Arc<Self>, id: Text, partition: Partition) -> UnstoredName {
        let mut names = self.0.lock();
        names.entry(id.clone()).or_default().push(partition);
        UnstoredName {
            names: self.clone(),
            id,
            partition,
        }
    }

    /// The partition of the last message of this name.
    pub(super) fn find(&self, id: &Text) -> Option<Partition> {
        self.0.lock().get(id)?.last().copied()
    }
}

impl Drop for UnstoredName {
    fn drop(&mut self) {
        let mut names = self.names.0.lock();
        let Some(partitions) = names.get_mut(&self.id) else {
            return;
        };
        if let Some(first) = partitions.iter().position(|&p| p == self.partition) {
            partitions.remove(first);
        }
        if partitions.is_empty() {
            names.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_the_last_of_its_messages_has_an_answer() {
        let names = Arc::<UnstoredNames>::default();
        let (a, b): (Text, Text) = ("a".into(), "b".into());
        assert_eq!(names.find(&a), None);
        let first = names.enter(a.clone(), Partition(3));
        let second = names.enter(a.clone(), Partition(5));
        let third = names.enter(a.clone(), Partition(3));
        let other = names.enter(b.clone(), Partition(7));
        assert_eq!(names.find(&a), Some(Partition(3)));
        drop(third);
        drop(first);
        assert_eq!(names.find(&a), Some(Partition(5)));
        drop(second);
        assert_eq!(names.find(&a), None);
        assert_eq!(names.find(&b), Some(Partition(7)));
        drop(other);
        assert!(names.0.lock().is_empty());
    }
}
