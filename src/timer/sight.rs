//! What of all that is due falls to this replica. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::Owned;
use crate::domain::{Partition, UnixMs};
use crate::store::Head;

/// What one look may claim of what it sees.
pub(super) struct Sight {
    pub(super) owned: Arc<Owned>,
    /// Served for this once, whoever's it is.
    pub(super) near: BTreeSet<Partition>,
    /// Due by then, it is claimed where this replica serves it.
    pub(super) until: UnixMs,
    /// Due by then, it is claimed whoever's it is.
    pub(super) overdue: UnixMs,
}

impl Sight {
    pub(super) fn takes(&self, head: &Head) -> bool {
        head.due <= self.until && (self.is_ours(head) || head.due <= self.overdue)
    }

    pub(super) fn looks_at(&self, p: Partition) -> bool {
        self.owned.serves_any(p) || self.near.contains(&p)
    }

    pub(super) fn is_ours(&self, head: &Head) -> bool {
        self.serves(head.partition, head.route())
    }

    /// Whether what is there of a route is this replica's to serve.
    pub(super) fn serves(&self, p: Partition, route: &str) -> bool {
        self.owned.serves(p, route) || self.near.contains(&p)
    }
}
