//! Unique names for what the store makes: bundles, claims, dead letters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::model::bundle::base36;

/// The source of unique names: a random nonce of this process and a counter.
#[derive(Debug)]
pub(in crate::store) struct Ids {
    pub(in crate::store) nonce: String,
    next: AtomicU64,
}

impl Ids {
    pub(in crate::store) fn new() -> Self {
        Self {
            nonce: base36(fastrand::u64(..1 << 52)),
            next: AtomicU64::new(1),
        }
    }

    /// A new name: `nonce.counter`.
    pub(in crate::store) fn unique(&self) -> String {
        format!(
            "{}.{}",
            self.nonce,
            base36(self.next.fetch_add(1, Ordering::Relaxed))
        )
    }
}
