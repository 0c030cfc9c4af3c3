//! The audit log: a bounded stream of who did what through the API of any replica.

use redis::Value;
use redis::cluster_routing::Slot;

use crate::store::{Store, StoreError};

/// Entries kept, or a few more.
const MAX_ENTRIES: usize = 10_000;

/// The id of an entry (its time in Unix ms first), and its fields.
pub type AuditLogEntry = (String, Vec<(String, String)>);

impl Store {
    /// Adds an entry. Waits while the store is away.
    pub async fn append_to_audit_log(&self, fields: &[(&str, &str)]) -> Result<(), StoreError> {
        let mut xadd = redis::cmd("XADD");
        xadd.arg(self.0.keys.audit_log())
            .arg("MAXLEN")
            .arg("~")
            .arg(MAX_ENTRIES)
            .arg("*")
            .arg(fields);
        let mut pipe = redis::pipe();
        pipe.add_command(xadd);
        self.mended(
            self.0
                .browse
                .pipe::<Value>(self.audit_log_slot(), &pipe)
                .await,
        )
        .await
        .map(drop)
    }

    /// The newest entries, newest first. With `before` only older ones.
    pub async fn audit_log(
        &self,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<AuditLogEntry>, StoreError> {
        let mut range = redis::cmd("XREVRANGE");
        let end = before.map_or_else(|| "+".to_owned(), |id| format!("({id}"));
        range
            .arg(self.0.keys.audit_log())
            .arg(end)
            .arg("-")
            .arg("COUNT")
            .arg(limit);
        let told = self
            .mended(self.trips(vec![(self.audit_log_slot(), range)], 1).await)
            .await;
        Ok(told?.pop().unwrap_or_default())
    }

    fn audit_log_slot(&self) -> Slot {
        Slot::for_key(self.0.keys.audit_log())
    }

    /// Reports whether the store can be reached right now, as far as its connections know.
    pub fn is_reachable(&self) -> bool {
        self.0.browse.is_up() && self.0.writer.is_up()
    }
}
