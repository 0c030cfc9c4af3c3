//! Names that no other test of this process uses.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// `KIND-PID-N`: a topic, queue, exchange, group, route or Redis prefix of one test alone.
pub fn unique(kind: &str) -> String {
    format!(
        "{kind}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
