//! What this replica is to serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{Partition, Partitions};

/// Which partitions this replica is to serve: all of its own accord. Ownership is only for efficiency: serving
/// more or less than this costs trips or time, never a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Whose claims it sweeps, and what it audits.
    keeps: Arc<Vec<bool>>,
    /// By route: where some replicas do not know it, its partitions are shared among those that do.
    routes: BTreeMap<String, Arc<Vec<bool>>>,
}

impl Owned {
    pub(super) fn new(keeps: Arc<Vec<bool>>, routes: BTreeMap<String, Arc<Vec<bool>>>) -> Self {
        Self { keeps, routes }
    }

    /// Everything, as if there were no others.
    pub fn everything(partitions: Partitions, routes: impl IntoIterator<Item = String>) -> Self {
        let all = Arc::new(vec![true; usize::from(partitions.count())]);
        Self { routes: routes.into_iter().map(|route| (route, all.clone())).collect(), keeps: all }
    }

    /// Whether it serves this route in this partition.
    pub fn serves(&self, p: Partition, route: &str) -> bool {
        self.routes.get(route).is_some_and(|served| is(served, p))
    }

    /// Whether it serves any route in this partition.
    pub fn serves_any(&self, p: Partition) -> bool {
        self.keeps(p) || self.routes.values().any(|served| is(served, p))
    }

    /// Whether it looks after this partition: sweeps, audits.
    pub fn keeps(&self, p: Partition) -> bool {
        is(&self.keeps, p)
    }

    /// How many partitions it looks after.
    pub fn count(&self) -> usize {
        self.keeps.iter().filter(|kept| **kept).count()
    }

    pub(super) fn kept(&self) -> &[bool] {
        &self.keeps
    }
}

fn is(served: &[bool], p: Partition) -> bool {
    served.get(usize::from(p.0)).copied().unwrap_or(false)
}
