//! Keys of a wrong type, which are moved out of the way, and blobs that were cut or flipped, which are named.

use redis::{Pipeline, Value};

use super::due_sets::{DueSet, pages, start_of};
use super::findings::KeyKind;
use super::{PAGE_ENTRIES, SCRUB_ENTRIES, SetPosition};
use crate::domain::Partition;
use crate::store::call::keys::Keys;
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::claim::blobs::GROWING_BYTES;
use crate::store::model::bundle::BundleId;
use crate::store::model::codec::is_whole;
use crate::store::{ScrubReport, Store, StoreError};

/// The keys that each partition has, and their types.
const FIXED_TYPES: [(&str, &str); 16] = [
    ("idx", "zset"),
    ("claims", "zset"),
    ("tokens", "hash"),
    ("gone", "hash"),
    ("done", "hash"),
    ("expiries", "hash"),
    ("names", "hash"),
    ("counts", "hash"),
    ("calls", "hash"),
    ("heads", "zset"),
    ("shelves", "zset"),
    ("delivered", "zset"),
    ("put_back", "zset"),
    ("order", "hash"),
    ("sources", "hash"),
    ("rates", "hash"),
];
/// Bytes of blobs that one scrub verifies.
const VERIFY_BYTES: usize = 1 << 20;
/// Most bytes of blobs that one trip reads, and of the largest blob that is verified.
const TRIP_BYTES: usize = 1 << 18;
const MAX_BLOB_BYTES: usize = 1 << 22;

impl Store {
    /// Moves fixed keys of a partition out of the way if their type is wrong.
    pub(super) async fn quarantine_fixed(
        &self,
        p: Partition,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let keys = FIXED_TYPES.map(|(name, kind)| (name.to_owned(), kind));
        self.quarantine(p, &keys, report).await
    }

    /// Moves keys out of the way if their type is wrong.
    pub(in crate::store) async fn quarantine(
        &self,
        p: Partition,
        keys: &[KeyKind],
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        for keys in keys.chunks(PAGE_ENTRIES) {
            let mut pipe = Pipeline::with_capacity(keys.len());
            for (name, _) in keys {
                pipe.cmd("TYPE").arg(self.0.keys.of(p, name));
            }
            let found: Vec<String> = self.ask(p, &pipe).await?;
            let wrong = keys
                .iter()
                .zip(found)
                .filter(|((_, kind), found)| found != "none" && found != kind);
            for ((name, kind), _) in wrong {
                let connected = self.0.side.reach(Keys::slot(p)).await?;
                let mut connection = connected.connection.clone();
                let moved: i64 = scripts::QUARANTINE
                    .key(self.0.keys.of(p, name))
                    .key(
                        self.0
                            .keys
                            .of(p, &format!("quarantine:{name}:{}", self.0.clock.now())),
                    )
                    .arg(*kind)
                    .invoke_async(&mut connection)
                    .await
                    .map_err(|error| self.0.side.judge(&connected, &error))?;
                report
                    .quarantined
                    .extend((moved == 1).then(|| name.clone()));
            }
        }
        Ok(())
    }

    /// Verifies the contents of due bundles, a mebibyte at most, and names the corrupt ones. The owner of a
    /// claim verifies claimed bundles, and whoever claims a bundle those that are larger than one trip. Nothing
    /// is opened: a bundle that kills its readers would kill this one too.
    pub(super) async fn read_contents(
        &self,
        p: Partition,
        due_sets: &[DueSet],
        place: &SetPosition,
        report: &mut ScrubReport,
    ) -> Result<SetPosition, StoreError> {
        let mut read = 0;
        let mut entries_read = 0;
        for page in pages(due_sets, place, PAGE_ENTRIES) {
            if read >= VERIFY_BYTES || entries_read >= SCRUB_ENTRIES {
                return Ok(start_of(due_sets, &page));
            }
            let members = self
                .page(p, due_sets, &page)
                .await?
                .into_iter()
                .flat_map(|(_, members)| members);
            let ids: Vec<BundleId> = members.filter_map(|id| BundleId::parse(&id)).collect();
            entries_read += ids.len();
            let lengths = self.lengths(p, &ids).await?;
            let mut batch: Vec<BundleId> = Vec::new();
            let mut bytes = 0;
            for (id, length) in ids.into_iter().zip(lengths) {
                if length > MAX_BLOB_BYTES {
                    continue;
                }
                if bytes + length > TRIP_BYTES && !batch.is_empty() {
                    self.read_blobs(p, std::mem::take(&mut batch), report)
                        .await?;
                    bytes = 0;
                }
                bytes += length;
                read += length;
                batch.push(id);
            }
            self.read_blobs(p, batch, report).await?;
        }
        Ok(SetPosition::default())
    }

    /// The lengths of blobs. 0 for a missing blob, or a key of another type: other walks handle those.
    async fn lengths(&self, p: Partition, ids: &[BundleId]) -> Result<Vec<usize>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = Pipeline::with_capacity(ids.len());
        for id in ids {
            pipe.cmd("STRLEN").arg(self.0.keys.blob(p, id));
        }
        pipe.ignore_errors();
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        let length = |(id, length): (&BundleId, &Value)| {
            if id.is_growing() {
                return GROWING_BYTES;
            }
            integer(length).map_or(0, |n| n.max(0) as usize)
        };
        Ok(ids.iter().zip(&found).map(length).collect())
    }

    async fn read_blobs(
        &self,
        p: Partition,
        ids: Vec<BundleId>,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let keys = ids.iter().map(|id| self.0.keys.blob(p, id)).collect();
        let blobs = self.0.side.get_blobs(Keys::slot(p), keys).await?;
        for (id, blob) in ids.into_iter().zip(blobs) {
            if blob.is_some_and(|blob| !is_whole(&blob)) {
                report.unreadable.push(id);
            }
        }
        Ok(())
    }
}
