//! The partitions that this replica owns.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{Partition, Partitions};

/// The partitions that this replica serves of its own accord. Ownership is for efficiency only: serving more or fewer
/// partitions costs round trips or time, never a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedPartitions {
    /// The partitions that it maintains: sweeps and scrubs.
    maintained: Arc<Vec<bool>>,
    /// The partitions that it serves, by route. A route that some replicas do not know is shared among those that do.
    routes: BTreeMap<String, Arc<Vec<bool>>>,
}

impl OwnedPartitions {
    pub(super) fn new(
        maintained: Arc<Vec<bool>>,
        routes: BTreeMap<String, Arc<Vec<bool>>>,
    ) -> Self {
        Self { maintained, routes }
    }

    /// All partitions, for these routes, as if there were no other replica.
    pub fn everything(partitions: Partitions, routes: impl IntoIterator<Item = String>) -> Self {
        let all = Arc::new(vec![true; usize::from(partitions.count())]);
        Self {
            routes: routes
                .into_iter()
                .map(|route| (route, all.clone()))
                .collect(),
            maintained: all,
        }
    }

    /// Reports whether this replica serves a route in a partition.
    pub fn serves(&self, p: Partition, route: &str) -> bool {
        self.routes
            .get(route)
            .is_some_and(|served| is_set(served, p))
    }

    /// Reports whether this replica serves any route in a partition.
    pub fn serves_any(&self, p: Partition) -> bool {
        self.maintains(p) || self.routes.values().any(|served| is_set(served, p))
    }

    /// Reports whether this replica maintains a partition: sweeps and scrubs it.
    pub fn maintains(&self, p: Partition) -> bool {
        is_set(&self.maintained, p)
    }

    /// The number of partitions that it maintains.
    pub fn count(&self) -> usize {
        self.maintained
            .iter()
            .filter(|maintained| **maintained)
            .count()
    }

    pub(super) fn maintained_flags(&self) -> &[bool] {
        &self.maintained
    }
}

fn is_set(served: &[bool], p: Partition) -> bool {
    served.get(usize::from(p.0)).copied().unwrap_or(false)
}
