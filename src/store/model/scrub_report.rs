//! The report of one scrub.

use super::bundle::BundleId;
use super::dead_letter::DeadId;

/// What an audit found and mended. All of it is damage, but where it says otherwise: no transition makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Shelves whose entry in the index was missing or wrong.
    pub indexes: u32,
    /// Entries whose blob is not there, removed: these messages are lost.
    pub lost: Vec<BundleId>,
    /// Blobs whose entry was lost, due again as if their claim had expired.
    pub restored: Vec<BundleId>,
    /// Tokens, bitmaps and counters of bundles that stand nowhere, names that mean nothing, second entries, and what was
    /// no bundle at all: removed.
    pub leftovers: u32,
    /// Names of bundles that have gone and held keys of which nothing waits, freed. No damage: some transitions leave them behind.
    pub freed: u32,
    /// Counts that were wrong; `None` if they could not be checked this time (the partition was busy, or is large
    /// and was counted lately).
    pub counts: Option<u32>,
    /// Lanes of calls long unused: forgotten, or their last answers. No damage.
    pub lanes: u32,
    /// Keys of the wrong type, by their names within the partition: moved to `quarantine:`, as they were.
    pub quarantined: Vec<String>,
    /// Bundles whose content is not what was written. They stay where they are, and become dead letters when they
    /// are due.
    pub unreadable: Vec<BundleId>,
    /// Dead letters whose blob is not there, removed: these are lost.
    pub dead_lost: Vec<DeadId>,
    /// Dead letters that had lost their place in their grave, and have it again.
    pub dead_restored: Vec<DeadId>,
}

impl AuditReport {
    /// Whether nothing had to be mended.
    pub fn is_clean(&self) -> bool {
        let mended = self.indexes + self.leftovers + self.counts.unwrap_or(0);
        let named = self.lost.len() + self.restored.len() + self.quarantined.len() + self.unreadable.len();
        mended == 0 && named + self.dead_lost.len() + self.dead_restored.len() == 0
    }
}
