//! The note of an import: the names of the messages whose outcome an import that was cut off would not know.
//!
//! Before a batch is stored its names are noted in the store, and the batch is marked at the queue's server. The script
//! that removes the batch from the queue writes the names that it removed into that mark. So the next run knows, of each
//! noted name that is no longer in the queue, who took it: the import, or the program that the queue belongs to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::import::foreign::BatchMark;

/// Who has removed an entry from the queue, if it is there no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EntryTaker {
    /// An import: the message is Postdate's alone.
    Import,
    /// The program that the queue belongs to: it may deliver the message too.
    Program,
    /// One of the two. The mark is gone, or the server was restored from a copy.
    Unknown,
}

/// A name whose outcome an earlier run did not note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DoubtfulName {
    /// When its message is due, Unix ms.
    pub(super) due_ms: i64,
    pub(super) taker: EntryTaker,
}

/// The note as it is kept in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImportNote {
    /// Identifies the batch that was being moved.
    batch: String,
    /// Names of that batch, with the due times of their messages, Unix ms.
    moving: BTreeMap<String, i64>,
    /// Names of earlier batches that no run has met again.
    earlier: BTreeMap<String, DoubtfulName>,
}

impl ImportNote {
    pub(super) fn new(
        batch: &str,
        moving: BTreeMap<String, i64>,
        earlier: &BTreeMap<String, DoubtfulName>,
    ) -> Self {
        Self {
            batch: batch.to_owned(),
            moving,
            earlier: earlier.clone(),
        }
    }

    /// All names of the note, judged by the mark at the queue's server.
    pub(super) fn judged(self, mark: &BatchMark) -> BTreeMap<String, DoubtfulName> {
        let mut names = self.earlier;
        let is_marked = mark.batch == self.batch;
        for (name, due_ms) in self.moving {
            let taker = match &mark.removed {
                _ if !is_marked => EntryTaker::Unknown,
                Some(removed) if removed.contains(&name) => EntryTaker::Import,
                _ => EntryTaker::Program,
            };
            names.insert(name, DoubtfulName { due_ms, taker });
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::EntryTaker::{Import, Program, Unknown};
    use super::*;

    #[test]
    fn a_name_that_left_the_queue_is_the_imports_only_if_the_mark_says_so() {
        let earlier = DoubtfulName {
            due_ms: 5,
            taker: EntryTaker::Import,
        };
        let earlier = BTreeMap::from([("old".to_owned(), earlier)]);
        let moving = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let note = ImportNote::new("batch-2", moving, &earlier);
        let removed = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let mark = |batch: &str, removed: Option<BTreeSet<String>>| BatchMark {
            batch: batch.to_owned(),
            removed,
        };
        for (mark, expected) in [
            (mark("batch-2", removed(&["a"])), [Import, Program]),
            (mark("batch-2", None), [Program, Program]),
            (mark("batch-1", removed(&["a", "b"])), [Unknown, Unknown]),
            (BatchMark::default(), [Unknown, Unknown]),
        ] {
            let judged = note.clone().judged(&mark);
            assert_eq!([judged["a"].taker, judged["b"].taker], expected, "{mark:?}");
            assert_eq!(judged["old"].taker, Import);
        }
    }
}
