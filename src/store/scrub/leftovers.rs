//! Keys with a field or a member for each bundle, and the names.

use redis::Pipeline;

use super::findings::Findings;
use super::half_dead::is_mostly_gone;
use super::{PAGE_ENTRIES, SCRUB_STEPS};
use crate::domain::Partition;
use crate::store::call::names::parse_place;
use crate::store::model::bundle::BundleId;
use crate::store::{Store, StoreError};

/// Keys with a field or a member per bundle, and the command that walks through each.
const PER_BUNDLE: [(&str, &str); 5] = [
    ("tokens", "HSCAN"),
    ("gone", "HSCAN"),
    ("done", "HSCAN"),
    ("expiries", "HSCAN"),
    ("put_back", "ZSCAN"),
];
/// The positions of the walks through them.
pub(super) type PerBundleCursors = [u64; PER_BUNDLE.len()];

/// Highest number that a script takes a count of happenings for: nine digits.
const MAX_TIMES: u32 = 999_999_999;

/// The next cursor, and the fields of a hash with their values, or the members of a sorted set with their scores.
type ScannedFields = (u64, Vec<(String, String)>);

impl Store {
    /// Walks on through the keys with a field or a member per bundle. One trip takes a step through each.
    pub(super) async fn walk_per_bundle_keys(
        &self,
        p: Partition,
        from: PerBundleCursors,
        findings: &mut Findings,
    ) -> Result<PerBundleCursors, StoreError> {
        let mut cursors = from;
        let mut open: Vec<usize> = (0..PER_BUNDLE.len()).collect();
        for _ in 0..SCRUB_STEPS {
            let places: Vec<_> = open.iter().map(|&n| (PER_BUNDLE[n], cursors[n])).collect();
            for (&n, (next, fields)) in open.iter().zip(self.scan_keys(p, &places).await?) {
                self.check_per_bundle_key(p, PER_BUNDLE[n].0, fields, findings)
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

    async fn check_per_bundle_key(
        &self,
        p: Partition,
        key: &str,
        fields: Vec<(String, String)>,
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let (members, values): (Vec<String>, Vec<String>) = fields.into_iter().unzip();
        let ids = findings.ids(&members, None);
        let malformed = members
            .iter()
            .zip(&values)
            .filter(|(id, value)| is_malformed(key, id, value));
        let malformed: Vec<BundleId> = malformed
            .filter_map(|(id, _)| BundleId::parse(id))
            .collect();
        for (id, traces) in ids
            .iter()
            .zip(self.traces_of(p, &ids, &mut findings.wrong_type).await?)
        {
            if !traces.claimed && (!traces.due || key == "tokens") {
                findings.bundle(id.clone(), None);
            }
        }
        for id in malformed {
            findings.bundle(id, None);
        }
        if key == "gone" {
            for (id, gone) in members.iter().zip(values) {
                if is_mostly_gone(&gone)
                    && let Some(id) = BundleId::parse(id)
                    // What is gone from a growing bundle takes no bytes.
                    && !id.is_growing()
                {
                    findings.half_dead.push((id, gone));
                }
            }
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
            let scanned = self.scan_keys(p, &[(("names", "HSCAN"), cursor)]).await?;
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

    /// Some fields or members of each of these keys from its cursor on, and the next cursors.
    async fn scan_keys(
        &self,
        p: Partition,
        places: &[((&str, &str), u64)],
    ) -> Result<Vec<ScannedFields>, StoreError> {
        let mut pipe = Pipeline::with_capacity(places.len());
        for ((key, scan), cursor) in places {
            pipe.cmd(scan)
                .arg(self.0.keys.of(p, key))
                .arg(cursor)
                .arg("COUNT")
                .arg(PAGE_ENTRIES);
        }
        self.ask(p, &pipe).await
    }
}

/// Reports whether no transition can have written this value: bitmaps are as long as their bundle, the other
/// values whole numbers.
fn is_malformed(key: &str, id: &str, value: &str) -> bool {
    match key {
        "gone" | "done" => {
            let count = BundleId::parse(id).map_or(0, |id| id.count());
            value.len() != count || value.bytes().any(|bit| !matches!(bit, b'0' | b'1'))
        }
        "expiries" => !value
            .parse::<u32>()
            .is_ok_and(|n| n <= MAX_TIMES && n.to_string() == value),
        _ => false,
    }
}
