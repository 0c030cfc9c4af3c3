//! What this process did lately, counted until somebody keeps it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A delivery that is later than this counts as late, microseconds.
const LATE_US: i64 = 1_000_000;

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKind {
    /// A delayed message was delivered.
    Delivered,
    /// One was delivered more than a second late.
    Late,
    /// A publish failed.
    Failed,
    /// A message became a dead letter.
    Dead,
    /// A replica has started.
    Started,
    /// A route was paused by hand, or a part of it.
    Paused,
    /// A route was resumed by hand, or a part of it.
    Resumed,
    /// A replica has found that the store went back, was wiped or replaced.
    StoreChanged,
}

impl ActivityKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Delivered,
        Self::Late,
        Self::Failed,
        Self::Dead,
        Self::Started,
        Self::Paused,
        Self::Resumed,
        Self::StoreChanged,
    ];

    /// Its name in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Late => "late",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Started => "started",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::StoreChanged => "store_changed",
        }
    }
}

/// Numbers by kind.
pub type ActivityCounts = [u64; ActivityKind::ALL.len()];

/// Counts what the process does.
#[derive(Debug, Default)]
pub struct Activity([AtomicU64; ActivityKind::ALL.len()]);

impl Activity {
    /// Counts one.
    pub fn note(&self, kind: ActivityKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a delivery.
    pub fn delivered(&self, late_us: i64) {
        self.note(ActivityKind::Delivered);
        if late_us > LATE_US {
            self.note(ActivityKind::Late);
        }
    }

    /// Takes what was counted; it begins at zero again.
    pub fn take(&self) -> ActivityCounts {
        ActivityKind::ALL.map(|kind| self.0[kind as usize].swap(0, Ordering::Relaxed))
    }

    /// Gives back what could not be kept.
    pub fn give_back(&self, counts: ActivityCounts) {
        for (count, back) in self.0.iter().zip(counts) {
            count.fetch_add(back, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_taken_once_unless_it_comes_back() {
        let activity = Activity::default();
        for late_us in [-1, LATE_US, LATE_US + 1] {
            activity.delivered(late_us);
        }
        activity.note(ActivityKind::StoreChanged);
        let counts = activity.take();
        assert_eq!(counts, [3, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(activity.take(), [0; 8]);
        activity.give_back(counts);
        activity.note(ActivityKind::Dead);
        assert_eq!(activity.take(), [3, 1, 0, 1, 0, 0, 0, 1]);
    }
}
