//! What a look at the store sees.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{Partition, UnixMs};

/// What a look at some partitions saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Of each route and partition the earliest shelf; of what is open and due, the earliest shelves.
    pub heads: Vec<Head>,
    /// The partitions that answered.
    pub partitions: BTreeSet<Partition>,
    /// Where more of a route is due than is shown: from when on.
    pub beyond: BTreeMap<(Partition, String), UnixMs>,
}

/// The earliest bundle of one route in one time slice of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which slice of the store.
    pub partition: Partition,
    /// `route/slice`.
    pub shelf: String,
    /// Its first due time.
    pub due: UnixMs,
}

impl Head {
    /// The route, as text.
    pub fn route(&self) -> &str {
        self.shelf.split('/').next().unwrap_or_default()
    }

    /// The partition and the route.
    pub fn line(&self) -> (Partition, String) {
        (self.partition, self.route().to_owned())
    }
}
