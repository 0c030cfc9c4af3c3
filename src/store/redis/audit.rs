//! The audit: what no transition makes, found from outside in bounded steps and mended by one script that
//! judges each find again.
//!
//! | damage | what becomes of it |
//! |---|---|
//! | the index lacks a shelf, or has a wrong head | mended |
//! | an entry in `due`, or an expired claim, without its blob | removed, counted, named: it is lost |
//! | a live claim without its blob | left to its holder, who keeps a dead letter `corrupt` |
//! | a blob that no time to live removes, without an entry | due again, as if its claim had expired |
//! | tokens, bitmaps, counters, names of what stands nowhere | removed |
//! | counts | set to what was counted, if nothing moved meanwhile |
//! | a dead letter without its blob, or a blob that no grave tells of | removed and named; in its grave again |
//! | a key of the wrong type | moved to `quarantine:` and named; what was in it is lost, and mended as above |
//! | a blob that was cut or flipped | named; it becomes a dead letter when it is due |
//!
//! A blob without an entry is brought back and not unlinked: whatever ends a bundle unlinks its blob in the
//! same script that removes its entry, and what is on its way in has a time to live, so such a blob is a
//! bundle that lost its entry. Publishing it twice is the lesser evil, and its cause will be told.

mod finds;
mod graves;
mod recount;
mod spoilt;

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, Value};
use tracing::error;

use self::finds::Finds;
use self::spoilt::Kind;
use super::Store;
use super::keys::Keys;
use super::reply::text;
use crate::domain::{Partition, Partitions};
use crate::store::bundle::BundleId;
use crate::store::{AuditReport, StoreError};

/// Entries looked at in one trip.
const PAGE: usize = 200;
/// Entries of one partition that one audit looks at; the next goes on behind them.
const ENTRIES: usize = 2000;
/// Trips through each of the hashes beside the bundles, and through the whole key space, in one audit.
const STEPS: usize = 10;
const SHELVES: usize = 4096;
/// Hashes with a field per bundle.
const BESIDE: [&str; 5] = ["tokens", "gone", "done", "expiries", "opened"];

/// Where audits go on.
pub(super) struct Audits {
    /// The node whose key space is being walked, by its place, and the cursor in it. Of several audits that meet there
    /// one waits for the other: they would look at the same keys.
    keyspace: tokio::sync::Mutex<(usize, u64)>,
    partitions: Vec<Mutex<Places>>,
}

/// Where to go on, and the fields of a hash with their values.
type Scanned = (u64, Vec<(String, String)>);
/// A shelf or a grave, and how many of its entries have been seen.
type Place = (String, usize);

#[derive(Clone, Default)]
struct Places {
    due: Place,
    contents: Place,
    graves: Place,
    claims: usize,
    beside: [u64; BESIDE.len()],
    names: u64,
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
        let place = self.0.audits.partitions[usize::from(p.0)].lock().clone();
        self.quarantine_fixed(p, &mut report).await?;
        let shelves = self.shelves(p).await?;
        let zsets: Vec<Kind> = shelves.iter().map(|shelf| (format!("due:{shelf}"), "zset")).collect();
        self.quarantine(p, &zsets, &mut report).await?;
        let mut finds = Finds::default();
        let mut next = Places {
            claims: self.walk_claims(p, place.claims, &mut finds).await?,
            contents: self.read_contents(p, &shelves, place.contents, &mut report).await?,
            due: self.walk_due(p, shelves, place.due, &mut finds).await?,
            beside: self.walk_beside(p, place.beside, &mut finds).await?,
            ..Places::default()
        };
        let mut all: BTreeMap<Partition, Finds> = BTreeMap::new();
        all.insert(p, finds);
        self.walk_keys(p, &mut all, &mut report).await?;
        let mut graves = BTreeSet::new();
        for (of, mut finds) in all {
            if of == p {
                graves = std::mem::take(&mut finds.graves);
                let (at, bones) = (place.graves.clone(), &mut finds.bones);
                next.graves = self.walk_graves(p, at, &graves, bones, &mut report).await?;
            }
            match self.mend(of, finds, &mut report).await {
                // Another's: its own audit will get out of the way what stands there, and a later walk comes by
                // again once its node is back.
                Err(StoreError::Damaged(_) | StoreError::Unavailable(_)) if of != p => {}
                other => other?,
            }
        }
        // Names last: those of what was found lost are free now.
        let mut finds = Finds::default();
        next.names = self.walk_names(p, place.names, &mut finds).await?;
        self.mend(p, finds, &mut report).await?;
        self.recount(p, &graves, &mut report).await?;
        *self.0.audits.partitions[usize::from(p.0)].lock() = next;
        tell(p, &report);
        Ok(report)
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

    async fn shelves(&self, p: Partition) -> Result<Vec<String>, StoreError> {
        let mut shelves = self.members_at(p, &self.0.keys.of(p, "idx"), 0, SHELVES).await?;
        shelves.sort_unstable();
        Ok(shelves)
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
        shelves: Vec<String>,
        (first, skip): (String, usize),
        finds: &mut Finds,
    ) -> Result<(String, usize), StoreError> {
        finds.shelves.extend(shelves.iter().cloned());
        let mut seen = 0;
        for shelf in shelves.into_iter().filter(|shelf| *shelf >= first) {
            let mut at = if shelf == first { skip } else { 0 };
            loop {
                if seen >= ENTRIES {
                    return Ok((shelf, at));
                }
                let members = self.members_at(p, &self.0.keys.due(p, &shelf), at, PAGE).await?;
                let ids = finds.ids(&members, Some(&shelf));
                for (id, (_, claimed, blob)) in
                    ids.iter().zip(self.where_are(p, &ids, &mut finds.spoilt).await?)
                {
                    if claimed || !blob {
                        finds.bundle(id.clone(), None);
                    }
                }
                at += PAGE;
                seen += PAGE;
                if members.len() < PAGE {
                    break;
                }
            }
        }
        Ok((String::new(), 0))
    }

    /// A step through each of the hashes beside the bundles is one trip.
    async fn walk_beside(
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

    async fn walk_names(&self, p: Partition, from: u64, finds: &mut Finds) -> Result<u64, StoreError> {
        let mut cursor = from;
        for _ in 0..STEPS {
            let scanned = self.scan_hashes(p, &[("names", cursor)]).await?;
            let Some((next, fields)) = scanned.into_iter().next() else { break };
            let meant: Vec<_> = fields.iter().map(|(_, place)| super::write::parse_place(place)).collect();
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

/// Names what is lost, what came back, and what a person should look at.
fn tell(p: Partition, report: &AuditReport) {
    let p = p.0;
    for id in &report.lost {
        error!(partition = p, %id, messages = id.count(), "a bundle is lost: its content is not in the store");
    }
    for id in &report.restored {
        error!(partition = p, %id, messages = id.count(), "a bundle had lost its entry; it is due again");
    }
    for id in &report.unreadable {
        error!(partition = p, %id, messages = id.count(), "a bundle cannot be read; it dies when it is due");
    }
    for id in &report.dead_lost {
        error!(partition = p, %id, "a dead letter is lost: its content is not in the store");
    }
    for key in &report.quarantined {
        error!(partition = p, key, "a key had another type than ours have; it is in quarantine, as it was");
    }
}
