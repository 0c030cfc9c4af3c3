//! What is not what it should be: keys of the wrong type, which get out of the way, and blobs that were cut or
//! flipped, which are named.

use redis::Value;

use super::{PAGE, Place};
use crate::domain::Partition;
use crate::store::bundle::BundleId;
use crate::store::codec::is_whole;
use crate::store::redis::keys::Keys;
use crate::store::redis::{Store, scripts};
use crate::store::{AuditReport, StoreError};

/// The keys that each partition has, and their types.
const KINDS: [(&str, &str); 13] = [
    ("idx", "zset"),
    ("claims", "zset"),
    ("tokens", "hash"),
    ("gone", "hash"),
    ("done", "hash"),
    ("expiries", "hash"),
    ("opened", "hash"),
    ("names", "hash"),
    ("counts", "hash"),
    ("calls", "hash"),
    ("delivered", "zset"),
    ("sources", "hash"),
    ("rates", "hash"),
];
/// Bytes of blobs that one audit reads to see whether they are what was written.
const READ: usize = 1 << 20;
/// Blobs read in one trip.
const BLOBS: usize = 16;

/// A key's name within its partition, and the type it should have.
pub(super) type Kind = (String, &'static str);

impl Store {
    /// Moves those keys that every partition has out of the way whose type is wrong.
    pub(super) async fn quarantine_fixed(
        &self,
        p: Partition,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let keys = KINDS.map(|(name, kind)| (name.to_owned(), kind));
        self.quarantine(p, &keys, report).await
    }

    /// Moves those of these keys out of the way whose type is wrong.
    pub(super) async fn quarantine(
        &self,
        p: Partition,
        keys: &[Kind],
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        for keys in keys.chunks(PAGE) {
            let mut pipe = redis::Pipeline::with_capacity(keys.len());
            for (name, _) in keys {
                pipe.cmd("TYPE").arg(self.0.keys.of(p, name));
            }
            let found: Vec<String> = self.ask(p, &pipe).await?;
            let wrong = keys.iter().zip(found).filter(|((_, kind), found)| found != "none" && found != kind);
            for ((name, kind), _) in wrong {
                let connected = self.0.side.reach(Keys::slot(p)).await?;
                let mut connection = connected.connection.clone();
                let moved: i64 = scripts::QUARANTINE
                    .key(self.0.keys.of(p, name))
                    .key(self.0.keys.of(p, &format!("quarantine:{name}:{}", self.0.clock.now())))
                    .arg(*kind)
                    .invoke_async(&mut connection)
                    .await
                    .map_err(|error| self.0.side.judge(&connected, &error))?;
                report.quarantined.extend((moved == 1).then(|| name.clone()));
            }
        }
        Ok(())
    }

    /// Reads on through the contents of what is due, a mebibyte at most, and names what is not what was written.
    /// What is claimed its holder reads. Nothing is opened: what kills its readers would kill this one.
    pub(super) async fn read_contents(
        &self,
        p: Partition,
        shelves: &[String],
        (first, skip): Place,
        report: &mut AuditReport,
    ) -> Result<Place, StoreError> {
        let mut read = 0;
        for shelf in shelves.iter().filter(|shelf| **shelf >= first) {
            let mut at = if *shelf == first { skip } else { 0 };
            loop {
                if read >= READ {
                    return Ok((shelf.clone(), at));
                }
                let members = self.members_at(p, &self.0.keys.due(p, shelf), at, BLOBS).await?;
                let ids: Vec<BundleId> = members.iter().filter_map(|id| BundleId::parse(id)).collect();
                if !ids.is_empty() {
                    let mut pipe = redis::Pipeline::with_capacity(ids.len());
                    for id in &ids {
                        pipe.cmd("GET").arg(self.0.keys.blob(p, id));
                    }
                    pipe.ignore_errors();
                    let blobs: Vec<Value> = self.ask(p, &pipe).await?;
                    for (id, blob) in ids.into_iter().zip(blobs) {
                        // What is not there, or no blob, is the other walks' business.
                        let Value::BulkString(blob) = blob else { continue };
                        read += blob.len();
                        if !is_whole(&blob) {
                            report.unreadable.push(id);
                        }
                    }
                }
                at += BLOBS;
                if members.len() < BLOBS {
                    break;
                }
            }
        }
        Ok(Place::default())
    }
}
