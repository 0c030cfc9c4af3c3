//! The scrub finds damage that no transition makes, from outside and in bounded steps. One script judges each
//! find again and mends it.
//!
//! | damage | what becomes of it |
//! |---|---|
//! | an index lacks a due set, or has a wrong head | mended |
//! | an entry in `due`, or an expired claim, without its blob | removed, counted, named: it is lost |
//! | a live claim without its blob | left to its owner, who keeps a dead letter `corrupt` |
//! | a blob that no time to live removes, without an entry | due again, as if its claim had expired |
//! | tokens, bitmaps, counters, entries of `put_back` without a bundle, malformed names | removed |
//! | counts | lowered with what is lost; corrected by what was counted: see `recount` |
//! | names whose bundle has gone, held keys of routes that have nothing here | freed; no damage: some
//! transitions leave them |
//! | a dead letter without its blob, or a blob that no queue lists | removed and named; in its queue again |
//! | a key of a wrong type | moved to `quarantine:` and named; its content is lost, and mended as above |
//! | a blob that was cut or flipped | named; it becomes a dead letter when it is due |
//!
//! A bundle of which most messages are gone is no damage: it is made smaller on the way, see `half_dead`.
//!
//! A blob without an entry is brought back and not unlinked. Whatever ends a bundle unlinks its blob in the
//! same script that removes its entry, and a blob on its way in has a time to live. So such a blob belongs to a
//! bundle that lost its entry. Publishing it twice is the lesser evil, and the cause of a repeat is reported.

mod call_answers;
mod corrupt;
mod dead_letters;
mod due_sets;
mod findings;
mod half_dead;
mod held_keys;
mod indexes;
mod keyspace;
mod leftovers;
mod lost_indexes;
mod recount;

use std::collections::BTreeSet;

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, Value};

use self::due_sets::{DueSet, pages, start_of};
use self::findings::{Findings, KeyKind};
use self::keyspace::KeyspaceCursor;
use self::leftovers::PerBundleCursors;
use super::call::keys::Keys;
use super::call::reply::text;
use super::model::bundle::BundleId;
use super::{ScrubReport, Store, StoreError};
use crate::domain::{Partition, Partitions};

/// Entries read in one trip.
const PAGE_ENTRIES: usize = 200;
/// Entries of one partition that one scrub reads. The next scrub goes on behind them.
const SCRUB_ENTRIES: usize = 2000;
/// Trips through each of the keys with a field or a member per bundle, and through the whole key space, in one scrub.
const SCRUB_STEPS: usize = 10;

/// The positions at which the next scrubs go on.
pub(super) struct ScrubPositions {
    /// The walk through the key space. Of several scrubs that meet there one waits for the other, because they
    /// would read the same keys.
    keyspace: tokio::sync::Mutex<KeyspaceCursor>,
    partitions: Vec<Mutex<PartitionPositions>>,
}

/// A position in a due set or a dead-letter queue.
#[derive(Clone, Default)]
struct SetPosition {
    /// Name of the due set or of the dead-letter queue.
    name: String,
    /// Entries of it that have been read.
    skip: usize,
}

/// The positions in one partition. They are saved walk by walk: a scrub that does not come to its end was not
/// for nothing.
#[derive(Clone, Default)]
struct PartitionPositions {
    due: SetPosition,
    contents: SetPosition,
    queues: SetPosition,
    claims: usize,
    beside: PerBundleCursors,
    names: u64,
    held_keys: u64,
    /// Scrubs until a large partition is counted again. `None`: it never was.
    counting: Option<usize>,
    /// Dead-letter queues that a walk through the key space found: the counts may not list them.
    found_queues: BTreeSet<String>,
}

impl ScrubPositions {
    pub(super) fn new(partitions: Partitions) -> Self {
        Self {
            keyspace: tokio::sync::Mutex::default(),
            partitions: partitions.all().map(|_| Mutex::default()).collect(),
        }
    }
}

/// Places in which a bundle was found.
#[derive(Clone, Copy)]
struct BundleTraces {
    /// It is in its due set.
    due: bool,
    /// It is in `claims`.
    claimed: bool,
    /// Its blob exists.
    blob: bool,
}

impl Store {
    /// Reads through a partition, or through the next part of a large one, and mends what it finds. Goes on
    /// through the key space where the last scrub of any partition stopped. Bounded, and safe at any time, by
    /// anyone, beside everything else.
    pub async fn scrub(&self, p: Partition) -> Result<ScrubReport, StoreError> {
        let mut report = ScrubReport::default();
        self.scrub_into(p, &mut report).await?;
        Ok(report)
    }

    /// The same as [`Store::scrub`]. The finds stand in the report, however the scrub ends and wherever it is
    /// dropped. Returns how many due sets and entries it has read.
    pub async fn scrub_into(
        &self,
        p: Partition,
        report: &mut ScrubReport,
    ) -> Result<usize, StoreError> {
        let place = self.0.scrub_positions.partitions[usize::from(p.0)]
            .lock()
            .clone();
        self.quarantine_fixed(p, report).await?;
        let mut findings = Findings::default();
        let due_sets = self.survey(p, &mut findings, report).await?;
        let claims = self.walk_claims(p, place.claims, &mut findings).await?;
        self.mend(p, findings, report).await?;
        self.save(p, |places| places.claims = claims);
        let mut findings = Findings::default();
        let due = self
            .walk_due(p, &due_sets, &place.due, &mut findings)
            .await?;
        self.mend(p, findings, report).await?;
        self.save(p, |places| places.due = due);
        let contents = self
            .read_contents(p, &due_sets, &place.contents, report)
            .await?;
        self.save(p, |places| places.contents = contents);
        let mut findings = Findings::default();
        let beside = self
            .walk_per_bundle_keys(p, place.beside, &mut findings)
            .await?;
        let half_dead = std::mem::take(&mut findings.half_dead);
        self.mend(p, findings, report).await?;
        self.save(p, |places| places.beside = beside);
        self.shrink_half_dead(p, &half_dead).await?;
        self.walk_keys(p, report).await?;
        let mut findings = Findings::default();
        let queues = self.known_queues(p, report).await?;
        let at = self
            .walk_queues(p, &place.queues, &queues, &mut findings.dead, report)
            .await?;
        self.mend(p, findings, report).await?;
        self.save(p, |places| places.queues = at);
        // Names last: names of lost bundles are free now.
        let mut findings = Findings::default();
        let names = self.walk_names(p, place.names, &mut findings).await?;
        self.mend(p, findings, report).await?;
        self.save(p, |places| places.names = names);
        self.recount(p, &due_sets, &queues, report).await?;
        let held_keys = self
            .walk_holds(p, place.held_keys, &due_sets, report)
            .await?;
        self.save(p, |places| places.held_keys = held_keys);
        let entries: usize = due_sets.iter().map(|due_set| due_set.bundles).sum();
        Ok(due_sets.len() + entries.min(SCRUB_ENTRIES))
    }

    /// Mends only the indexes of a partition. Until then some or all of its bundles are not claimed.
    pub async fn mend_indexes(
        &self,
        p: Partition,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut findings = Findings::default();
        self.survey(p, &mut findings, report).await?;
        self.mend(p, findings, report).await
    }

    /// Saves where this partition's next scrub goes on.
    fn save(&self, p: Partition, set: impl FnOnce(&mut PartitionPositions)) {
        set(&mut self.0.scrub_positions.partitions[usize::from(p.0)].lock());
    }

    /// Asks one partition, in one trip.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        p: Partition,
        pipe: &Pipeline,
    ) -> Result<T, StoreError> {
        self.0.side.pipe(Keys::slot(p), pipe).await
    }

    /// Members of a sorted set, `count` from this place on.
    async fn members_at(
        &self,
        p: Partition,
        key: &str,
        at: usize,
        count: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGE").arg(key).arg(at).arg(at + count - 1);
        let (members,): (Vec<String>,) = self.ask(p, &pipe).await?;
        Ok(members)
    }

    /// Reports for each bundle whether it stands in its due set and in `claims`, and whether its blob is there.
    /// Blobs of a wrong type are noted.
    async fn traces_of(
        &self,
        p: Partition,
        ids: &[BundleId],
        wrong_type: &mut Vec<KeyKind>,
    ) -> Result<Vec<BundleTraces>, StoreError> {
        let mut pipe = Pipeline::with_capacity(ids.len() * 3);
        for id in ids {
            pipe.cmd("ZSCORE")
                .arg(self.0.keys.due(p, id.due_set()))
                .arg(id.as_str());
            pipe.cmd("ZSCORE")
                .arg(self.0.keys.of(p, "claims"))
                .arg(id.as_str());
            pipe.cmd("TYPE").arg(self.0.keys.blob(p, id));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        pipe.ignore_errors();
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        let mut traces = Vec::with_capacity(ids.len());
        for (id, answers) in ids.iter().zip(found.chunks(3)) {
            let kind = text(&answers[2])?;
            if kind != "none" && kind != id.kind() {
                wrong_type.push((format!("b:{id}"), id.kind()));
            }
            // If the due set or `claims` itself has a wrong type, nothing can be said of its members: they
            // count as present.
            let stands = |answer: &Value| !matches!(answer, Value::Nil);
            traces.push(BundleTraces {
                due: stands(&answers[0]),
                claimed: stands(&answers[1]),
                blob: kind == id.kind(),
            });
        }
        Ok(traces)
    }

    async fn walk_claims(
        &self,
        p: Partition,
        from: usize,
        findings: &mut Findings,
    ) -> Result<usize, StoreError> {
        let mut at = from;
        let claims = self.0.keys.of(p, "claims");
        while at < from + SCRUB_ENTRIES {
            let members = self.members_at(p, &claims, at, PAGE_ENTRIES).await?;
            let ids = findings.ids(&members, None);
            for (id, traces) in ids
                .iter()
                .zip(self.traces_of(p, &ids, &mut findings.wrong_type).await?)
            {
                if traces.due || !traces.blob {
                    findings.bundle(id.clone(), None);
                }
            }
            if members.len() < PAGE_ENTRIES {
                return Ok(0);
            }
            at += PAGE_ENTRIES;
        }
        Ok(at)
    }

    /// Notes growing bundles without a bitmap: it says which of their places are taken.
    async fn find_lost_bitmaps(
        &self,
        p: Partition,
        ids: &[BundleId],
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let growing: Vec<&BundleId> = ids.iter().filter(|id| id.is_growing()).collect();
        if growing.is_empty() {
            return Ok(());
        }
        let mut pipe = Pipeline::with_capacity(growing.len());
        for id in &growing {
            let gone = self.0.keys.of(p, "gone");
            pipe.cmd("HSTRLEN").arg(gone).arg(id.as_str());
        }
        let lengths: Vec<usize> = self.ask(p, &pipe).await?;
        for (id, length) in growing.into_iter().zip(lengths) {
            if length == 0 {
                findings.bundle(id.clone(), None);
            }
        }
        Ok(())
    }

    async fn walk_due(
        &self,
        p: Partition,
        due_sets: &[DueSet],
        place: &SetPosition,
        findings: &mut Findings,
    ) -> Result<SetPosition, StoreError> {
        let mut seen = 0;
        for page in pages(due_sets, place, PAGE_ENTRIES) {
            if seen >= SCRUB_ENTRIES {
                return Ok(start_of(due_sets, &page));
            }
            let mut ids = Vec::with_capacity(PAGE_ENTRIES);
            for (due_set, members) in self.page(p, due_sets, &page).await? {
                seen += members.len();
                ids.extend(findings.ids(&members, Some(&due_set.name)));
            }
            for (id, traces) in ids
                .iter()
                .zip(self.traces_of(p, &ids, &mut findings.wrong_type).await?)
            {
                if traces.claimed || !traces.blob {
                    findings.bundle(id.clone(), None);
                }
            }
            self.find_lost_bitmaps(p, &ids, findings).await?;
        }
        Ok(SetPosition::default())
    }
}
