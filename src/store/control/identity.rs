//! Whether the store is still the one that it was, as far as this replica knows: shared by all who act on it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::domain::UnixMs;
use crate::store::Store;

/// What the beats have found, and the numbered calls.
#[derive(Debug, Default)]
pub(in crate::store) struct Identity {
    strange: AtomicBool,
    changed_ms: AtomicI64,
    /// How often the numbered calls had found it gone back when that was last looked at.
    seen: AtomicU64,
}

impl Store {
    /// Whether it was found to be another store than before, or an empty one, and nobody has looked yet whether it
    /// may be used: nothing is stored in it and nothing claimed from it.
    pub fn is_strange(&self) -> bool {
        self.0.identity.strange.load(Ordering::Acquire)
    }

    /// Says so, or that it may be used after all.
    pub fn set_strange(&self, strange: bool) {
        self.0.identity.strange.store(strange, Ordering::Release);
    }

    /// The latest moment at which it was found to have gone back (a failover, a restored copy) or to have been
    /// wiped; the epoch if it never was. What was due by then may have been published before.
    pub fn changed(&self) -> UnixMs {
        let (identity, times) = (&self.0.identity, self.went_back());
        if identity.seen.fetch_max(times, Ordering::AcqRel) < times {
            self.set_changed(self.0.clock.now());
        }
        UnixMs(identity.changed_ms.load(Ordering::Acquire))
    }

    /// Notes such a moment; an earlier one than the latest changes nothing.
    pub fn set_changed(&self, at: UnixMs) {
        self.0.identity.changed_ms.fetch_max(at.0, Ordering::AcqRel);
    }
}
