//! Suspicious finds of a scrub, and the calls that mend them.

use std::collections::{BTreeMap, BTreeSet};

use tracing::warn;

use super::half_dead::GoneMessages;
use crate::domain::Partition;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::model::bundle::BundleId;
use crate::store::{DeadId, ScrubReport, Store, StoreError};

/// Finds that one call mends.
const MEND_FINDS: usize = 100;

/// Members that are no bundle and are named in the log, of those that one scrub removes, and the characters of each that are shown.
const NAMED_JUNK: usize = 20;
const MAX_MEMBER_CHARS: usize = 200;

/// A key's name within its partition, and the type it should have.
pub(in crate::store) type KeyKind = (String, &'static str);

/// Suspicious finds in one partition's dead-letter queues: dead letters, and members that are none.
#[derive(Default)]
pub(super) struct DeadFindings {
    pub(super) ids: BTreeSet<DeadId>,
    pub(super) others: Vec<(String, String)>,
}

impl DeadFindings {
    /// Adds a dead letter to be judged.
    pub(super) fn add(&mut self, id: DeadId) {
        self.ids.insert(id);
    }
}

/// Suspicious finds in one partition.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) due_sets: BTreeSet<String>,
    /// Entries of `shelves` that seem to be stale, each behind its due set.
    pub(super) places: Vec<(String, String)>,
    /// Bundles, with their first due time if it is known.
    bundles: BTreeMap<BundleId, Option<i64>>,
    /// Members that are no bundle, and the due set they lie in (`None`: in `claims`).
    pub(super) junk: Vec<(String, Option<String>)>,
    pub(super) names: Vec<(String, String, Option<BundleId>)>,
    /// Keys of a wrong type.
    pub(super) wrong_type: Vec<KeyKind>,
    pub(super) dead: DeadFindings,
    /// Bundles of which most messages are gone.
    pub(super) half_dead: Vec<GoneMessages>,
}

impl Findings {
    pub(super) fn bundle(&mut self, id: BundleId, first: Option<i64>) {
        let known = self.bundles.entry(id).or_default();
        *known = known.or(first);
    }

    /// The bundle ids among these members. Other members, and bundles in a due set that is not their own, are
    /// noted.
    pub(super) fn ids(&mut self, members: &[String], due_set: Option<&str>) -> Vec<BundleId> {
        let mut ids = Vec::with_capacity(members.len());
        for member in members {
            match BundleId::parse(member) {
                Some(id) if due_set.is_none_or(|due_set| due_set == id.due_set()) => ids.push(id),
                _ => self.junk.push((member.clone(), due_set.map(str::to_owned))),
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
        findings: Findings,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let Findings {
            due_sets,
            places,
            bundles,
            junk,
            names,
            wrong_type,
            dead,
            half_dead: _,
        } = findings;
        self.quarantine(p, &wrong_type, report).await?;
        self.mend_queues(p, dead, report).await?;
        // Names go with their bundle, so that the script knows whether it exists.
        let mut of_bundle: BTreeMap<BundleId, Vec<(String, String)>> = BTreeMap::new();
        let mut of_none = Vec::new();
        for (name, place, meant) in names {
            match meant {
                Some(id) => of_bundle.entry(id).or_default().push((name, place)),
                None => of_none.push((name, place)),
            }
        }
        let due_sets: Vec<String> = due_sets.into_iter().collect();
        for due_sets in due_sets.chunks(MEND_FINDS) {
            let mut batch = MendBatch::default();
            batch.due_sets.extend_from_slice(due_sets);
            self.mend_batch(p, batch, report).await?;
        }
        // A place goes with its due set: the script puts it back if it is right by now.
        for places in places.chunks(MEND_FINDS) {
            let mut batch = MendBatch::default();
            for (due_set, place) in places {
                batch.due_set(due_set);
                batch.junk(place, None);
            }
            self.mend_batch(p, batch, report).await?;
        }
        let bundles: Vec<(BundleId, Option<i64>)> = bundles.into_iter().collect();
        for bundles in bundles.chunks(MEND_FINDS) {
            let mut batch = MendBatch::default();
            for (id, first) in bundles {
                batch.bundle(id, *first, of_bundle.remove(id).unwrap_or_default());
            }
            self.mend_batch(p, batch, report).await?;
        }
        for (member, due_set) in junk.iter().take(NAMED_JUNK) {
            let member: String = member.chars().take(MAX_MEMBER_CHARS).collect();
            warn!(
                partition = p.0,
                member, due_set, "removed what is not the id of a bundle"
            );
        }
        for junk in junk.chunks(MEND_FINDS) {
            let mut batch = MendBatch::default();
            for (member, due_set) in junk {
                batch.junk(member, due_set.as_deref());
            }
            report.leftovers += junk.len() as u32;
            self.mend_batch(p, batch, report).await?;
        }
        for names in of_none.chunks(MEND_FINDS) {
            let mut batch = MendBatch::default();
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
        batch: MendBatch,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let call = batch.call(self, p);
        let letters = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        let due_sets = batch.due_sets.len();
        let bundles = batch.bundles.len();
        if letters.len() != due_sets + bundles + batch.names.len() {
            return Err(shape("the answer to a scrub"));
        }
        report.indexes += letters[..due_sets].matches('i').count() as u32;
        for ((id, ..), letter) in batch.bundles.iter().zip(letters[due_sets..].chars()) {
            match letter {
                'l' => report.lost.push(id.clone()),
                'r' => report.restored.push(id.clone()),
                'd' | 's' => report.leftovers += 1,
                _ => {}
            }
        }
        for ((.., means), letter) in batch
            .names
            .iter()
            .zip(letters[due_sets + bundles..].chars())
        {
            // Transitions may leave a name behind when its bundle goes. They never make a malformed name.
            match (letter, means) {
                ('f', 0) => report.leftovers += 1,
                ('f', _) => report.freed += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The finds of one call.
#[derive(Default)]
struct MendBatch {
    due_sets: Vec<String>,
    bundles: Vec<(BundleId, usize, Option<i64>)>,
    junk: Vec<(String, usize)>,
    names: Vec<(String, String, usize)>,
}

impl MendBatch {
    /// The place of a due set in the call, from 1.
    fn due_set(&mut self, due_set: &str) -> usize {
        let at = self
            .due_sets
            .iter()
            .position(|s| s == due_set)
            .unwrap_or_else(|| {
                self.due_sets.push(due_set.to_owned());
                self.due_sets.len() - 1
            });
        at + 1
    }

    fn bundle(&mut self, id: &BundleId, first: Option<i64>, names: Vec<(String, String)>) {
        let due_set = self.due_set(id.due_set());
        self.bundles.push((id.clone(), due_set, first));
        let means = self.bundles.len();
        self.names
            .extend(names.into_iter().map(|(name, place)| (name, place, means)));
    }

    fn junk(&mut self, member: &str, due_set: Option<&str>) {
        let due_set = due_set.map_or(0, |due_set| self.due_set(due_set));
        self.junk.push((member.to_owned(), due_set));
    }

    fn call(&self, store: &Store, p: Partition) -> ScriptCall {
        let mut keys = store.0.keys.fixed(p);
        keys.extend(
            self.due_sets
                .iter()
                .map(|due_set| store.0.keys.due(p, due_set)),
        );
        keys.extend(self.bundles.iter().map(|(id, ..)| store.0.keys.blob(p, id)));
        let mut args: Vec<ScriptArg> = vec![
            self.due_sets.len().into(),
            self.bundles.len().into(),
            self.junk.len().into(),
            self.names.len().into(),
        ];
        args.extend(
            self.due_sets
                .iter()
                .map(|due_set| ScriptArg::from(due_set.as_str())),
        );
        for (id, due_set, first) in &self.bundles {
            let first = first.map(|ms| ms.to_string()).unwrap_or_default();
            args.extend::<[ScriptArg; 3]>([id.as_str().into(), (*due_set).into(), first.into()]);
        }
        for (member, due_set) in &self.junk {
            args.extend::<[ScriptArg; 2]>([member.as_str().into(), (*due_set).into()]);
        }
        for (name, place, means) in &self.names {
            args.extend::<[ScriptArg; 3]>([
                name.as_str().into(),
                place.as_str().into(),
                (*means).into(),
            ]);
        }
        ScriptCall {
            script: &scripts::SCRUB,
            op: "audit",
            keys,
            args,
            blobs: Vec::new(),
        }
    }
}
