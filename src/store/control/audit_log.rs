//! The audit's trail: a bounded stream of who did what through the API of any replica.

use redis::Value;
use redis::cluster_routing::Slot;

use crate::store::{Store, StoreError};

/// Entries kept, or a few more.
const KEPT: usize = 10_000;

/// An entry's id in the trail (its time in Unix ms first), and its fields.
pub type TrailEntry = (String, Vec<(String, String)>);

impl Store {
    /// Adds an entry. Waits while the store is away.
    pub async fn append_to_trail(&self, fields: &[(&str, &str)]) -> Result<(), StoreError> {
        let mut xadd = redis::cmd("XADD");
        xadd.arg(self.0.keys.trail()).arg("MAXLEN").arg("~").arg(KEPT).arg("*").arg(fields);
        let mut pipe = redis::pipe();
        pipe.add_command(xadd);
        self.mended(self.0.browse.pipe::<Value>(self.trail_slot(), &pipe).await).await.map(drop)
    }

    /// The newest entries, those before `before` only, newest first.
    pub async fn trail(&self, before: Option<&str>, limit: usize) -> Result<Vec<TrailEntry>, StoreError> {
        let mut range = redis::cmd("XREVRANGE");
        let end = before.map_or_else(|| "+".to_owned(), |id| format!("({id}"));
        range.arg(self.0.keys.trail()).arg(end).arg("-").arg("COUNT").arg(limit);
        let told = self.mended(self.trips(vec![(self.trail_slot(), range)], 1).await).await;
        Ok(told?.pop().unwrap_or_default())
    }

    fn trail_slot(&self) -> Slot {
        Slot::for_key(self.0.keys.trail())
    }

    /// Whether the store can be reached right now, as far as its connections know.
    pub fn is_reachable(&self) -> bool {
        self.0.browse.is_up() && self.0.writer.is_up()
    }
}
