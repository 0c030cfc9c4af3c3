//! Knowledge of this replica whether the store is still the one that it was. All rooms that act on the
//! store share it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::domain::UnixMs;
use crate::mutants::{self, Mutant};
use crate::store::Store;

/// Findings of the heartbeats and of the numbered calls.
#[derive(Debug, Default)]
pub(in crate::store) struct IdentityState {
    replaced: AtomicBool,
    changed_ms: AtomicI64,
    new_master_ms: AtomicI64,
    /// The number of rollbacks seen by the numbered calls when [`Store::rolled_back_at`] was last called.
    seen: AtomicU64,
}

impl Store {
    /// Reports whether the store was found to be another or an empty one, and is not cleared for use yet. Until
    /// then nothing is stored in it and nothing claimed from it.
    pub fn is_replaced(&self) -> bool {
        self.0.identity.replaced.load(Ordering::Acquire)
    }

    /// Sets whether the store counts as replaced.
    pub fn set_replaced(&self, replaced: bool) {
        self.0.identity.replaced.store(replaced, Ordering::Release);
    }

    /// The latest moment at which the store was found to have rolled back (a failover, a restored copy) or to
    /// have been wiped. The epoch if it never was. A message due by then may have been published before.
    /// Takes in rollbacks that numbered calls have seen since the last call, as of now.
    pub fn rolled_back_at(&self) -> UnixMs {
        let identity = &self.0.identity;
        let times = self.rollbacks();
        if identity.seen.fetch_max(times, Ordering::AcqRel) < times {
            self.note_rollback(self.0.clock.now());
        }
        UnixMs(identity.changed_ms.load(Ordering::Acquire))
    }

    /// Notes a rollback. A moment earlier than the latest changes nothing.
    pub fn note_rollback(&self, at: UnixMs) {
        self.0.identity.changed_ms.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Notes that another server answers as the master since then. It may lack the last writes of the former one.
    pub fn note_new_master(&self, at: UnixMs) {
        if mutants::is(Mutant::ForgetMaster) {
            return;
        }
        let noted = &self.0.identity.new_master_ms;
        noted.fetch_max(at.0, Ordering::AcqRel);
    }

    /// A message due by then may have been published before, and the store may have forgotten that: it has rolled
    /// back, or another server answers as its master.
    pub fn may_repeat_until(&self) -> UnixMs {
        let new_master = self.0.identity.new_master_ms.load(Ordering::Acquire);
        self.rolled_back_at().max(UnixMs(new_master))
    }
}
