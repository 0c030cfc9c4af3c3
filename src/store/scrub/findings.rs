//! What an audit found suspicious, and the calls that mend.

use std::collections::{BTreeMap, BTreeSet};

use super::corrupt::Kind;
use super::dead_letters::Bones;
use crate::domain::Partition;
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::model::bundle::BundleId;
use crate::store::{AuditReport, Store, StoreError};

/// Finds that one call mends.
const MEND: usize = 100;

/// What looked wrong in one partition.
#[derive(Default)]
pub(super) struct Finds {
    pub(super) shelves: BTreeSet<String>,
    /// With their first due time where it is known.
    bundles: BTreeMap<BundleId, Option<i64>>,
    /// What is no bundle, and the shelf it lies on (`None`: in `claims`).
    pub(super) junk: Vec<(String, Option<String>)>,
    pub(super) names: Vec<(String, String, Option<BundleId>)>,
    /// Keys whose type is wrong.
    pub(super) spoilt: Vec<Kind>,
    pub(super) bones: Bones,
}

impl Finds {
    pub(super) fn bundle(&mut self, id: BundleId, first: Option<i64>) {
        let known = self.bundles.entry(id).or_default();
        *known = known.or(first);
    }

    /// The ids among these members; what is none, or lies on a shelf that is not its own, is noted.
    pub(super) fn ids(&mut self, members: &[String], shelf: Option<&str>) -> Vec<BundleId> {
        let mut ids = Vec::with_capacity(members.len());
        for member in members {
            match BundleId::parse(member) {
                Some(id) if shelf.is_none_or(|shelf| shelf == id.shelf()) => ids.push(id),
                _ => self.junk.push((member.clone(), shelf.map(str::to_owned))),
            }
        }
        ids
    }
}

impl Store {
    /// Has one partition's finds judged and mended, some at a time.
    pub(super) async fn mend(
        &self,
        p: Partition,
        finds: Finds,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let Finds { shelves, bundles, junk, names, spoilt, bones } = finds;
        self.quarantine(p, &spoilt, report).await?;
        self.mend_graves(p, bones, report).await?;
        // Names go with their bundle, so that the script knows whether it stands.
        let mut of_bundle: BTreeMap<BundleId, Vec<(String, String)>> = BTreeMap::new();
        let mut of_none = Vec::new();
        for (name, place, meant) in names {
            match meant {
                Some(id) => of_bundle.entry(id).or_default().push((name, place)),
                None => of_none.push((name, place)),
            }
        }
        let shelves: Vec<String> = shelves.into_iter().collect();
        for shelves in shelves.chunks(MEND) {
            let mut batch = Batch::default();
            batch.shelves.extend_from_slice(shelves);
            self.mend_batch(p, batch, report).await?;
        }
        let bundles: Vec<(BundleId, Option<i64>)> = bundles.into_iter().collect();
        for bundles in bundles.chunks(MEND) {
            let mut batch = Batch::default();
            for (id, first) in bundles {
                batch.bundle(id, *first, of_bundle.remove(id).unwrap_or_default());
            }
            self.mend_batch(p, batch, report).await?;
        }
        for junk in junk.chunks(MEND) {
            let mut batch = Batch::default();
            for (member, shelf) in junk {
                batch.junk(member, shelf.as_deref());
            }
            report.leftovers += junk.len() as u32;
            self.mend_batch(p, batch, report).await?;
        }
        for names in of_none.chunks(MEND) {
            let mut batch = Batch::default();
            for (name, place) in names {
                batch.names.push((name.clone(), place.clone(), 0));
            }
            self.mend_batch(p, batch, report).await?;
        }
        Ok(())
    }

    async fn mend_batch(
        &self,
        p: Partition,
        batch: Batch,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let call = batch.call(self, p);
        let letters = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        let (shelves, bundles) = (batch.shelves.len(), batch.bundles.len());
        if letters.len() != shelves + bundles + batch.names.len() {
            return Err(shape("the answer to an audit"));
        }
        report.indexes += letters[..shelves].matches('i').count() as u32;
        for ((id, ..), letter) in batch.bundles.iter().zip(letters[shelves..].chars()) {
            match letter {
                'l' => report.lost.push(id.clone()),
                'r' => report.restored.push(id.clone()),
                'd' | 's' => report.leftovers += 1,
                _ => {}
            }
        }
        for ((.., means), letter) in batch.names.iter().zip(letters[shelves + bundles..].chars()) {
            // Transitions may leave a name behind when its bundle goes; one that means nothing is no work of theirs.
            match (letter, means) {
                ('f', 0) => report.leftovers += 1,
                ('f', _) => report.freed += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// One call's worth.
#[derive(Default)]
struct Batch {
    shelves: Vec<String>,
    bundles: Vec<(BundleId, usize, Option<i64>)>,
    junk: Vec<(String, usize)>,
    names: Vec<(String, String, usize)>,
}

impl Batch {
    /// The shelf's place, from 1.
    fn shelf(&mut self, shelf: &str) -> usize {
        let at = self.shelves.iter().position(|s| s == shelf).unwrap_or_else(|| {
            self.shelves.push(shelf.to_owned());
            self.shelves.len() - 1
        });
        at + 1
    }

    fn bundle(&mut self, id: &BundleId, first: Option<i64>, names: Vec<(String, String)>) {
        let shelf = self.shelf(id.shelf());
        self.bundles.push((id.clone(), shelf, first));
        let means = self.bundles.len();
        self.names.extend(names.into_iter().map(|(name, place)| (name, place, means)));
    }

    fn junk(&mut self, member: &str, shelf: Option<&str>) {
        let shelf = shelf.map_or(0, |shelf| self.shelf(shelf));
        self.junk.push((member.to_owned(), shelf));
    }

    fn call(&self, store: &Store, p: Partition) -> Call {
        let mut keys = store.0.keys.fixed(p);
        keys.extend(self.shelves.iter().map(|shelf| store.0.keys.due(p, shelf)));
        keys.extend(self.bundles.iter().map(|(id, ..)| store.0.keys.blob(p, id)));
        let mut args: Vec<Arg> = vec![
            self.shelves.len().into(),
            self.bundles.len().into(),
            self.junk.len().into(),
            self.names.len().into(),
        ];
        args.extend(self.shelves.iter().map(|shelf| Arg::from(shelf.as_str())));
        for (id, shelf, first) in &self.bundles {
            let first = first.map(|ms| ms.to_string()).unwrap_or_default();
            args.extend::<[Arg; 3]>([id.as_str().into(), (*shelf).into(), first.into()]);
        }
        for (member, shelf) in &self.junk {
            args.extend::<[Arg; 2]>([member.as_str().into(), (*shelf).into()]);
        }
        for (name, place, means) in &self.names {
            args.extend::<[Arg; 3]>([name.as_str().into(), place.as_str().into(), (*means).into()]);
        }
        Call { script: &scripts::AUDIT, op: "audit", keys, args, blobs: Vec::new() }
    }
}
