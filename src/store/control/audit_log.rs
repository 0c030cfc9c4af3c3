//! The audit log: who did what through the API of any replica. Each caller has a bounded stream of its own, so that nobody's
//! entries push out another's.

use std::collections::BTreeMap;

use redis::Value;
use redis::cluster_routing::Slot;

use crate::store::call::keys::Keys;
use crate::store::{Store, StoreError};

/// Entries kept of a caller, or a few more.
const MAX_ENTRIES: usize = 10_000;
/// How long the entries of a caller are kept after its last one, ms.
const KEPT_MS: i64 = 90 * 86_400_000;
/// Callers that are read at most: those who called last.
const MAX_CALLERS: usize = 256;

/// The place of an entry. They grow with time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPlace {
    /// When it was added, Unix ms.
    pub at_ms: u64,
    /// Its number among those of that moment.
    pub number: u64,
    /// The caller.
    pub caller: String,
}

/// An entry, and its fields.
#[derive(Clone, Debug)]
pub struct AuditLogEntry {
    /// Its place.
    pub place: AuditPlace,
    /// Its fields.
    pub fields: BTreeMap<String, String>,
}

/// An entry as a stream has it: its id, and its fields.
type StreamEntry = (String, Vec<(Vec<u8>, Vec<u8>)>);

impl Store {
    /// Adds an entry of a caller. Waits while the store is away.
    pub async fn append_to_audit_log(
        &self,
        caller: &str,
        fields: &[(&str, &str)],
    ) -> Result<(), StoreError> {
        let keys = &self.0.keys;
        let stream = keys.audit_of(caller);
        let mut pipe = redis::pipe();
        pipe.cmd("HSET")
            .arg(keys.audit_callers())
            .arg(caller)
            .arg(self.clock().now().0);
        pipe.cmd("XADD")
            .arg(&stream)
            .arg("MAXLEN")
            .arg("~")
            .arg(MAX_ENTRIES)
            .arg("*")
            .arg(fields);
        for key in [stream, keys.audit_callers()] {
            pipe.cmd("PEXPIRE").arg(key).arg(KEPT_MS);
        }
        let added = self.0.browse.pipe::<Value>(Keys::audit(), &pipe);
        self.mended(added.await).await.map(drop)
    }

    /// The newest entries, newest first. With `before` only older ones.
    pub async fn audit_log(
        &self,
        before: Option<&AuditPlace>,
        limit: usize,
    ) -> Result<Vec<AuditLogEntry>, StoreError> {
        let callers = self.audit_callers().await?;
        let ranges = callers.iter().filter_map(|caller| {
            let mut range = redis::cmd("XREVRANGE");
            range
                .arg(self.0.keys.audit_of(caller))
                .arg(last_of(caller, before)?)
                .arg("-")
                .arg("COUNT")
                .arg(limit);
            Some((caller, (Keys::audit(), range)))
        });
        let (callers, ranges): (Vec<&String>, Vec<(Slot, redis::Cmd)>) = ranges.unzip();
        let read: Vec<Vec<StreamEntry>> = self.mended(self.trips(ranges, 1).await).await?;
        let mut entries: Vec<AuditLogEntry> = callers
            .into_iter()
            .zip(read)
            .flat_map(|(caller, entries)| {
                entries
                    .into_iter()
                    .filter_map(move |entry| read_entry(caller, entry))
            })
            .collect();
        entries.sort_by(|one, other| other.place.cmp(&one.place));
        entries.truncate(limit);
        Ok(entries)
    }

    /// Those whose entries are kept.
    async fn audit_callers(&self) -> Result<Vec<String>, StoreError> {
        let mut all = redis::cmd("HGETALL");
        all.arg(self.0.keys.audit_callers());
        let read: Vec<Vec<(String, i64)>> = self
            .mended(self.trips(vec![(Keys::audit(), all)], 1).await)
            .await?;
        let since = self.clock().now().0 - KEPT_MS;
        let mut callers = read.into_iter().flatten().collect::<Vec<_>>();
        callers.retain(|(_, called_ms)| *called_ms >= since);
        callers.sort_by_key(|(_, called_ms)| std::cmp::Reverse(*called_ms));
        callers.truncate(MAX_CALLERS);
        Ok(callers.into_iter().map(|(caller, _)| caller).collect())
    }

    /// Reports whether the store can be reached right now, as far as its connections know.
    pub fn is_reachable(&self) -> bool {
        self.0.browse.is_up() && self.0.writer.is_up()
    }
}

/// The id of the last entry of a caller that may stand before a place. `None`: there is none.
fn last_of(caller: &str, before: Option<&AuditPlace>) -> Option<String> {
    let Some(before) = before else {
        return Some("+".to_owned());
    };
    let AuditPlace { at_ms, number, .. } = *before;
    if caller < before.caller.as_str() {
        return Some(format!("{at_ms}-{number}"));
    }
    match (at_ms, number) {
        (0, 0) => None,
        // All of that millisecond.
        (_, 0) => Some((at_ms - 1).to_string()),
        _ => Some(format!("{at_ms}-{}", number - 1)),
    }
}

fn read_entry(caller: &str, (id, fields): StreamEntry) -> Option<AuditLogEntry> {
    let (at_ms, number) = id.split_once('-')?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(AuditLogEntry {
        place: AuditPlace {
            at_ms: at_ms.parse().ok()?,
            number: number.parse().ok()?,
            caller: caller.to_owned(),
        },
        fields: fields
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_right_behind_the_one_before_whoever_called() {
        let before = |at_ms, number| AuditPlace {
            at_ms,
            number,
            caller: "m".to_owned(),
        };
        for (caller, place, expected) in [
            ("a", before(7, 2), Some("7-2")),
            ("m", before(7, 2), Some("7-1")),
            ("z", before(7, 2), Some("7-1")),
            ("a", before(7, 0), Some("7-0")),
            ("m", before(7, 0), Some("6")),
            ("a", before(0, 0), Some("0-0")),
            ("m", before(0, 0), None),
        ] {
            assert_eq!(last_of(caller, Some(&place)).as_deref(), expected);
        }
        assert_eq!(last_of("m", None).as_deref(), Some("+"));
    }
}
