//! The audit: what no transition makes, found from outside in bounded steps and mended by one script that
//! judges each find again.
//!
//! | damage | what becomes of it |
//! |---|---|
//! | an index lacks a shelf, or has a wrong head | mended |
//! | an entry in `due`, or an expired claim, without its blob | removed, counted, named: it is lost |
//! | a live claim without its blob | left to its holder, who keeps a dead letter `corrupt` |
//! | a blob that no time to live removes, without an entry | due again, as if its claim had expired |
//! | tokens, bitmaps, counters of what stands nowhere, names that mean nothing | removed |
//! | counts | lowered with what is lost; corrected by what was counted: see `recount` |
//! | names whose bundle has gone, held keys of routes that have nothing here | freed; no damage: some transitions leave them |
//! | a dead letter without its blob, or a blob that no grave tells of | removed and named; in its grave again |
//! | a key of the wrong type | moved to `quarantine:` and named; what was in it is lost, and mended as above |
//! | a blob that was cut or flipped | named; it becomes a dead letter when it is due |
//!
//! A blob without an entry is brought back and not unlinked: whatever ends a bundle unlinks its blob in the
//! same script that removes its entry, and what is on its way in has a time to live, so such a blob is a
//! bundle that lost its entry. Publishing it twice is the lesser evil, and its cause will be told.

mod call_answers;
mod corrupt;
mod dead_letters;
mod due_sets;
mod findings;
mod held_keys;
mod indexes;
mod keyspace;
mod leftovers;
mod recount;

use std::collections::BTreeSet;

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, Value};

use self::corrupt::Kind;
use self::due_sets::{Shelf, pages, start_of};
use self::findings::Finds;
use self::keyspace::Keyspace;
use self::leftovers::BESIDE;
use super::call::keys::Keys;
use super::call::reply::text;
use super::connection::link::read;
use super::model::bundle::BundleId;
use super::{AuditReport, Store, StoreError};
use crate::domain::{Partition, Partitions};

/// Entries looked at in one trip.
const PAGE: usize = 200;
/// Entries of one partition that one audit looks at; the next goes on behind them.
const ENTRIES: usize = 2000;
/// Trips through each of the hashes beside the bundles, and through the whole key space, in one audit.
const STEPS: usize = 10;

/// Where audits go on.
pub(super) struct Audits {
    /// The walk through the key space. Of several audits that meet there one waits for the other: they would look at the
    /// same keys.
    keyspace: tokio::sync::Mutex<Keyspace>,
    partitions: Vec<Mutex<Places>>,
}

/// A shelf or a grave, and how many of its entries have been seen.
type Place = (String, usize);

/// Saved walk by walk: an audit that does not come to its end was not for nothing.
#[derive(Clone, Default)]
struct Places {
    due: Place,
    contents: Place,
    graves: Place,
    claims: usize,
    beside: [u64; BESIDE.len()],
    names: u64,
    holds: u64,
    /// Audits until a large partition is counted again; `None`: it never was.
    counting: Option<usize>,
    /// Graves that a walk through the key space came by: the counts may not tell of them.
    found_graves: BTreeSet<String>,
}

impl Audits {
    pub(super) fn new(partitions: Partitions) -> Self {
        Self {
            keyspace: tokio::sync::Mutex::default(),
            partitions: partitions.all().map(|_| Mutex::default()).collect(),
        }
    }
}

impl Store {
    /// Looks through a partition, or through the next part of a large one, and mends what it finds; goes on
    /// through the key space where the last audit of any partition stopped. Bounded; safe at any time, by
    /// anyone, beside everything else.
    pub async fn audit(&self, p: Partition) -> Result<AuditReport, StoreError> {
        let mut report = AuditReport::default();
        self.audit_into(p, &mut report).await?;
        Ok(report)
    }

    /// The same. What it has found stands in the report, however it ends and wherever it is dropped. Returns how many
    /// shelves and entries it has looked at.
    pub async fn audit_into(&self, p: Partition, report: &mut AuditReport) -> Result<usize, StoreError> {
        let place = self.0.audits.partitions[usize::from(p.0)].lock().clone();
        self.quarantine_fixed(p, report).await?;
        let mut finds = Finds::default();
        let shelves = self.survey(p, &mut finds, report).await?;
        let claims = self.walk_claims(p, place.claims, &mut finds).await?;
        self.mend(p, finds, report).await?;
        self.save(p, |places| places.claims = claims);
        let mut finds = Finds::default();
        let due = self.walk_due(p, &shelves, &place.due, &mut finds).await?;
        self.mend(p, finds, report).await?;
        self.save(p, |places| places.due = due);
        let contents = self.read_contents(p, &shelves, &place.contents, report).await?;
        self.save(p, |places| places.contents = contents);
        let mut finds = Finds::default();
        let beside = self.walk_beside(p, place.beside, &mut finds).await?;
        self.mend(p, finds, report).await?;
        self.save(p, |places| places.beside = beside);
        self.walk_keys(p, report).await?;
        let mut finds = Finds::default();
        let graves = self.known_graves(p, report).await?;
        let at = self.walk_graves(p, place.graves, &graves, &mut finds.bones, report).await?;
        self.mend(p, finds, report).await?;
        self.save(p, |places| places.graves = at);
        // Names last: those of what was found lost are free now.
        let mut finds = Finds::default();
        let names = self.walk_names(p, place.names, &mut finds).await?;
        self.mend(p, finds, report).await?;
        self.save(p, |places| places.names = names);
        self.recount(p, &shelves, &graves, report).await?;
        let holds = self.walk_holds(p, place.holds, &shelves, report).await?;
        self.save(p, |places| places.holds = holds);
        let entries: usize = shelves.iter().map(|shelf| shelf.bundles).sum();
        Ok(shelves.len() + entries.min(ENTRIES))
    }

    /// Which of these partitions lack one of the indexes that stand or are absent together: `idx`, `heads`, `shelves`.
    /// One trip a node; those of a node that is away are left out.
    pub async fn lost_indexes(&self, partitions: &[Partition]) -> Vec<Partition> {
        let commands = partitions.iter().map(|&p| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(["idx", "heads", "shelves"].map(|name| self.0.keys.of(p, name)).as_slice());
            (Keys::slot(p), exists)
        });
        let found = self.0.side.gather(commands.collect()).await.into_iter();
        let is_lost = |answer: Result<Value, StoreError>| {
            answer.and_then(read::<usize>).is_ok_and(|indexes| indexes == 1 || indexes == 2)
        };
        partitions.iter().zip(found).filter_map(|(&p, answer)| is_lost(answer).then_some(p)).collect()
    }

    /// Mends the indexes of a partition alone: until then nothing, or not everything, of it is claimed.
    pub async fn mend_indexes(&self, p: Partition, report: &mut AuditReport) -> Result<(), StoreError> {
        let mut finds = Finds::default();
        self.survey(p, &mut finds, report).await?;
        self.mend(p, finds, report).await
    }

    /// Saves where this partition's next audit goes on.
    fn save(&self, p: Partition, set: impl FnOnce(&mut Places)) {
        set(&mut self.0.audits.partitions[usize::from(p.0)].lock());
    }

    /// Asks one partition, in one trip.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        p: Partition,
        pipe: &Pipeline,
    ) -> Result<T, StoreError> {
        self.0.side.pipe(Keys::slot(p), pipe).await
    }

    /// Some members of a sorted set, from this place on.
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

    /// Whether each of these stands in its due zset and in `claims`, and whether its blob is there; what stands
    /// in a blob's place and is none is noted.
    async fn where_are(
        &self,
        p: Partition,
        ids: &[BundleId],
        spoilt: &mut Vec<Kind>,
    ) -> Result<Vec<(bool, bool, bool)>, StoreError> {
        let mut pipe = Pipeline::with_capacity(ids.len() * 3);
        for id in ids {
            pipe.cmd("ZSCORE").arg(self.0.keys.due(p, id.shelf())).arg(id.as_str());
            pipe.cmd("ZSCORE").arg(self.0.keys.of(p, "claims")).arg(id.as_str());
            pipe.cmd("TYPE").arg(self.0.keys.blob(p, id));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        pipe.ignore_errors();
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        let mut places = Vec::with_capacity(ids.len());
        for (id, answers) in ids.iter().zip(found.chunks(3)) {
            let kind = text(&answers[2])?;
            if kind != "none" && kind != "string" {
                spoilt.push((format!("b:{id}"), "string"));
            }
            // Where the place itself is spoilt nothing can be said of what should stand in it.
            let stands = |answer: &Value| !matches!(answer, Value::Nil);
            places.push((stands(&answers[0]), stands(&answers[1]), kind == "string"));
        }
        Ok(places)
    }

    async fn walk_claims(&self, p: Partition, from: usize, finds: &mut Finds) -> Result<usize, StoreError> {
        let (mut at, claims) = (from, self.0.keys.of(p, "claims"));
        while at < from + ENTRIES {
            let members = self.members_at(p, &claims, at, PAGE).await?;
            let ids = finds.ids(&members, None);
            for (id, (due, _, blob)) in ids.iter().zip(self.where_are(p, &ids, &mut finds.spoilt).await?) {
                if due || !blob {
                    finds.bundle(id.clone(), None);
                }
            }
            if members.len() < PAGE {
                return Ok(0);
            }
            at += PAGE;
        }
        Ok(at)
    }

    async fn walk_due(
        &self,
        p: Partition,
        shelves: &[Shelf],
        place: &Place,
        finds: &mut Finds,
    ) -> Result<Place, StoreError> {
        let mut seen = 0;
        for page in pages(shelves, place, PAGE) {
            if seen >= ENTRIES {
                return Ok(start_of(shelves, &page));
            }
            let mut ids = Vec::with_capacity(PAGE);
            for (shelf, members) in self.page(p, shelves, &page).await? {
                seen += members.len();
                ids.extend(finds.ids(&members, Some(&shelf.name)));
            }
            for (id, (_, claimed, blob)) in ids.iter().zip(self.where_are(p, &ids, &mut finds.spoilt).await?)
            {
                if claimed || !blob {
                    finds.bundle(id.clone(), None);
                }
            }
        }
        Ok(Place::default())
    }
}
