//! What stands beside the bundles, in hashes with a field for each, and the names.

use redis::Pipeline;

use super::findings::Finds;
use super::{PAGE, STEPS};
use crate::domain::Partition;
use crate::store::model::bundle::BundleId;
use crate::store::write::parse_place;
use crate::store::{Store, StoreError};

/// Hashes with a field per bundle.
pub(super) const BESIDE: [&str; 5] = ["tokens", "gone", "done", "expiries", "opened"];

/// Where to go on, and the fields of a hash with their values.
type Scanned = (u64, Vec<(String, String)>);

impl Store {
    /// A step through each of the hashes beside the bundles is one trip.
    pub(super) async fn walk_beside(
        &self,
        p: Partition,
        from: [u64; BESIDE.len()],
        finds: &mut Finds,
    ) -> Result<[u64; BESIDE.len()], StoreError> {
        let (mut cursors, mut open): (_, Vec<usize>) = (from, (0..BESIDE.len()).collect());
        for _ in 0..STEPS {
            let places: Vec<_> = open.iter().map(|&n| (BESIDE[n], cursors[n])).collect();
            for (&n, (next, fields)) in open.iter().zip(self.scan_hashes(p, &places).await?) {
                self.look_beside(p, BESIDE[n], fields, finds).await?;
                cursors[n] = next;
            }
            open.retain(|&n| cursors[n] != 0);
            if open.is_empty() {
                break;
            }
        }
        Ok(cursors)
    }

    async fn look_beside(
        &self,
        p: Partition,
        hash: &str,
        fields: Vec<(String, String)>,
        finds: &mut Finds,
    ) -> Result<(), StoreError> {
        let (members, values): (Vec<String>, Vec<String>) = fields.into_iter().unzip();
        let ids = finds.ids(&members, None);
        let crooked = members.iter().zip(&values).filter(|(id, value)| is_crooked(hash, id, value));
        let crooked: Vec<BundleId> = crooked.filter_map(|(id, _)| BundleId::parse(id)).collect();
        for (id, (due, claimed, _)) in ids.iter().zip(self.where_are(p, &ids, &mut finds.spoilt).await?) {
            if !claimed && (!due || hash == "tokens") {
                finds.bundle(id.clone(), None);
            }
        }
        for id in crooked {
            finds.bundle(id, None);
        }
        Ok(())
    }

    pub(super) async fn walk_names(
        &self,
        p: Partition,
        from: u64,
        finds: &mut Finds,
    ) -> Result<u64, StoreError> {
        let mut cursor = from;
        for _ in 0..STEPS {
            let scanned = self.scan_hashes(p, &[("names", cursor)]).await?;
            let Some((next, fields)) = scanned.into_iter().next() else { break };
            let meant: Vec<_> = fields.iter().map(|(_, place)| parse_place(place)).collect();
            let ids: Vec<BundleId> = meant.iter().flatten().map(|(id, _)| id.clone()).collect();
            let mut places = self.where_are(p, &ids, &mut finds.spoilt).await?.into_iter();
            for ((name, place), meant) in fields.into_iter().zip(meant) {
                let Some((id, _)) = meant else {
                    finds.names.push((name, place, None));
                    continue;
                };
                if matches!(places.next(), Some((false, false, _))) {
                    finds.bundle(id.clone(), None);
                    finds.names.push((name, place, Some(id)));
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(cursor)
    }

    /// Some fields of each of these hashes from its cursor on, and where to go on.
    async fn scan_hashes(&self, p: Partition, places: &[(&str, u64)]) -> Result<Vec<Scanned>, StoreError> {
        let mut pipe = Pipeline::with_capacity(places.len());
        for (hash, cursor) in places {
            pipe.cmd("HSCAN").arg(self.0.keys.of(p, hash)).arg(cursor).arg("COUNT").arg(PAGE);
        }
        self.ask(p, &pipe).await
    }
}

/// Whether this cannot be what we wrote beside a bundle: bitmaps are as long as it, the others whole numbers.
fn is_crooked(hash: &str, id: &str, value: &str) -> bool {
    match hash {
        "gone" | "done" => {
            let count = BundleId::parse(id).map_or(0, |id| id.count());
            value.len() != count || value.bytes().any(|bit| !matches!(bit, b'0' | b'1'))
        }
        "expiries" | "opened" => value.parse::<u32>().is_err(),
        _ => false,
    }
}
