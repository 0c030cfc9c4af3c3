//! Hashes with a field for each bundle, and the names.

use redis::Pipeline;

use super::findings::Findings;
use super::{PAGE_ENTRIES, SCRUB_STEPS};
use crate::domain::Partition;
use crate::store::call::names::parse_place;
use crate::store::model::bundle::BundleId;
use crate::store::{Store, StoreError};

/// Hashes with a field per bundle.
pub(super) const PER_BUNDLE_HASHES: [&str; 5] = ["tokens", "gone", "done", "expiries", "opened"];

/// Highest number that a script takes a count of happenings for: nine digits.
const MAX_TIMES: u32 = 999_999_999;

/// The next cursor, and the fields of a hash with their values.
type ScannedFields = (u64, Vec<(String, String)>);

impl Store {
    /// Walks on through the hashes with a field per bundle. One trip takes a step through each.
    pub(super) async fn walk_per_bundle_hashes(
        &self,
        p: Partition,
        from: [u64; PER_BUNDLE_HASHES.len()],
        findings: &mut Findings,
    ) -> Result<[u64; PER_BUNDLE_HASHES.len()], StoreError> {
        let mut cursors = from;
        let mut open: Vec<usize> = (0..PER_BUNDLE_HASHES.len()).collect();
        for _ in 0..SCRUB_STEPS {
            let places: Vec<_> = open
                .iter()
                .map(|&n| (PER_BUNDLE_HASHES[n], cursors[n]))
                .collect();
            for (&n, (next, fields)) in open.iter().zip(self.scan_hashes(p, &places).await?) {
                self.check_per_bundle_hash(p, PER_BUNDLE_HASHES[n], fields, findings)
                    .await?;
                cursors[n] = next;
            }
            open.retain(|&n| cursors[n] != 0);
            if open.is_empty() {
                break;
            }
        }
        Ok(cursors)
    }

    async fn check_per_bundle_hash(
        &self,
        p: Partition,
        hash: &str,
        fields: Vec<(String, String)>,
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let (members, values): (Vec<String>, Vec<String>) = fields.into_iter().unzip();
        let ids = findings.ids(&members, None);
        let malformed = members
            .iter()
            .zip(&values)
            .filter(|(id, value)| is_malformed(hash, id, value));
        let malformed: Vec<BundleId> = malformed
            .filter_map(|(id, _)| BundleId::parse(id))
            .collect();
        for (id, traces) in ids
            .iter()
            .zip(self.traces_of(p, &ids, &mut findings.wrong_type).await?)
        {
            if !traces.claimed && (!traces.due || hash == "tokens") {
                findings.bundle(id.clone(), None);
            }
        }
        for id in malformed {
            findings.bundle(id, None);
        }
        Ok(())
    }

    pub(super) async fn walk_names(
        &self,
        p: Partition,
        from: u64,
        findings: &mut Findings,
    ) -> Result<u64, StoreError> {
        let mut cursor = from;
        for _ in 0..SCRUB_STEPS {
            let scanned = self.scan_hashes(p, &[("names", cursor)]).await?;
            let Some((next, fields)) = scanned.into_iter().next() else {
                break;
            };
            let meant: Vec<_> = fields.iter().map(|(_, place)| parse_place(place)).collect();
            let ids: Vec<BundleId> = meant.iter().flatten().map(|(id, _)| id.clone()).collect();
            let mut traces = self
                .traces_of(p, &ids, &mut findings.wrong_type)
                .await?
                .into_iter();
            for ((name, place), meant) in fields.into_iter().zip(meant) {
                let Some((id, _)) = meant else {
                    findings.names.push((name, place, None));
                    continue;
                };
                if traces
                    .next()
                    .is_some_and(|traces| !traces.due && !traces.claimed)
                {
                    findings.bundle(id.clone(), None);
                    findings.names.push((name, place, Some(id)));
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(cursor)
    }

    /// Some fields of each of these hashes from its cursor on, and the next cursors.
    async fn scan_hashes(
        &self,
        p: Partition,
        places: &[(&str, u64)],
    ) -> Result<Vec<ScannedFields>, StoreError> {
        let mut pipe = Pipeline::with_capacity(places.len());
        for (hash, cursor) in places {
            pipe.cmd("HSCAN")
                .arg(self.0.keys.of(p, hash))
                .arg(cursor)
                .arg("COUNT")
                .arg(PAGE_ENTRIES);
        }
        self.ask(p, &pipe).await
    }
}

/// Reports whether no transition can have written this value: bitmaps are as long as their bundle, the other
/// values whole numbers.
fn is_malformed(hash: &str, id: &str, value: &str) -> bool {
    match hash {
        "gone" | "done" => {
            let count = BundleId::parse(id).map_or(0, |id| id.count());
            value.len() != count || value.bytes().any(|bit| !matches!(bit, b'0' | b'1'))
        }
        "expiries" | "opened" => !value
            .parse::<u32>()
            .is_ok_and(|n| n <= MAX_TIMES && n.to_string() == value),
        _ => false,
    }
}
