//! The store's account of its own state: its oldest overdue messages.

use std::collections::BTreeMap;

use crate::health::Overdue;

/// By route, the oldest overdue message that waits in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldestOverdue {
    /// Among messages that were not put back.
    pub waiting: BTreeMap<String, Overdue>,
    /// Among messages that were put back after they were due.
    pub put_back: BTreeMap<String, Overdue>,
}
