//! The report of one scrub.

use super::bundle::BundleId;
use super::dead_letter::DeadId;

/// Damage that a scrub found and mended. Each find is damage unless its field says otherwise: no transition makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Due sets whose entry in the index was missing or wrong.
    pub indexes: u32,
    /// Entries without a blob, removed: these messages are lost.
    pub lost: Vec<BundleId>,
    /// Blobs without an entry, due again as if their claim had expired.
    pub restored: Vec<BundleId>,
    /// Removed leftovers: tokens, bitmaps and counters without a bundle, malformed names, second entries, and
    /// members that are no bundle.
    pub leftovers: u32,
    /// Freed names of bundles that are gone, and freed held keys with nothing waiting. No damage: some
    /// transitions leave them behind.
    pub freed: u32,
    /// Corrected counts. `None` if they could not be checked this time: the partition was busy, or is large and
    /// was counted recently.
    pub counts: Option<u32>,
    /// Forgotten callers of numbered calls, or their last answers. No damage.
    pub callers: u32,
    /// Keys of a wrong type, by their names within the partition. Moved to `quarantine:` as they were.
    pub quarantined: Vec<String>,
    /// Bundles whose content is not what was written. They stay where they are, and become dead letters when
    /// they are due.
    pub unreadable: Vec<BundleId>,
    /// Dead letters without a blob, removed: these are lost.
    pub dead_lost: Vec<DeadId>,
    /// Dead letters that were missing in their queue, and are there again.
    pub dead_restored: Vec<DeadId>,
}

impl ScrubReport {
    /// Reports whether nothing had to be mended.
    pub fn is_clean(&self) -> bool {
        self.restored.is_empty() && self.others() == 0
    }

    /// Reports whether nothing but entries of blobs had to be mended.
    pub fn is_only_restored(&self) -> bool {
        !self.restored.is_empty() && self.others() == 0
    }

    /// What had to be mended, but for restored bundles.
    fn others(&self) -> usize {
        let mended = self.indexes + self.leftovers + self.counts.unwrap_or(0);
        let dead = self.dead_lost.len() + self.dead_restored.len();
        mended as usize + self.lost.len() + self.quarantined.len() + self.unreadable.len() + dead
    }
}
