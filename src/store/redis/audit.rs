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
//!
//! A blob without an entry is brought back and not unlinked: whatever ends a bundle unlinks its blob in the
//! same script that removes its entry, and what is on its way in has a time to live, so such a blob is a
//! bundle that lost its entry. Publishing it twice is the lesser evil, and its cause will be told.

mod finds;

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, Value};
use tracing::error;

use self::finds::Finds;
use super::lane::{Arg, Call};
use super::reply::{integer, shape, text};
use super::{Store, scripts};
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
/// Tries to count while nothing moves.
const COUNTS: usize = 3;

/// Where audits go on.
pub(super) struct Audits {
    keyspace: Mutex<u64>,
    partitions: Vec<Mutex<Place>>,
}

#[derive(Clone, Default)]
struct Place {
    /// The shelf, and how many of its entries have been seen.
    due: (String, usize),
    claims: usize,
    beside: [u64; BESIDE.len()],
    names: u64,
}

impl Audits {
    pub(super) fn new(partitions: Partitions) -> Self {
        Self { keyspace: Mutex::default(), partitions: partitions.all().map(|_| Mutex::default()).collect() }
    }
}

impl Store {
    /// Looks through a partition, or through the next part of a large one, and mends what it finds; goes on
    /// through the key space where the last audit of any partition stopped. Bounded; safe at any time, by
    /// anyone, beside everything else.
    pub async fn audit(&self, p: Partition) -> Result<AuditReport, StoreError> {
        let mut report = AuditReport::default();
        let place = self.0.audits.partitions[usize::from(p.0)].lock().clone();
        let mut finds = Finds::default();
        let mut next = Place {
            claims: self.walk_claims(p, place.claims, &mut finds).await?,
            due: self.walk_due(p, place.due, &mut finds).await?,
            ..Place::default()
        };
        for (n, hash) in BESIDE.iter().enumerate() {
            next.beside[n] = self.walk_beside(p, hash, place.beside[n], &mut finds).await?;
        }
        let mut all: BTreeMap<Partition, Finds> = BTreeMap::new();
        all.insert(p, finds);
        self.walk_keys(&mut all).await?;
        let mut graves = BTreeSet::new();
        for (of, mut finds) in all {
            if of == p {
                graves = std::mem::take(&mut finds.graves);
            }
            self.mend(of, finds, &mut report).await?;
        }
        // Names last: those of what was found lost are free now.
        let mut finds = Finds::default();
        next.names = self.walk_names(p, place.names, &mut finds).await?;
        self.mend(p, finds, &mut report).await?;
        self.recount(p, &graves, &mut report).await?;
        *self.0.audits.partitions[usize::from(p.0)].lock() = next;
        for id in &report.lost {
            error!(partition = p.0, %id, messages = id.count(), "a bundle is lost: its content is not in the store");
        }
        for id in &report.restored {
            error!(partition = p.0, %id, messages = id.count(), "a bundle had lost its entry; it is due again");
        }
        Ok(report)
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T, StoreError> {
        let connected = self.0.side.get().await?;
        let mut connection = connected.connection.clone();
        pipe.query_async(&mut connection).await.map_err(|error| self.0.side.judge(&connected, &error))
    }

    async fn shelves(&self, p: Partition) -> Result<Vec<String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGE").arg(self.0.keys.of(p, "idx")).arg(0).arg(SHELVES - 1);
        let (mut shelves,): (Vec<String>,) = self.ask(&pipe).await?;
        shelves.sort_unstable();
        Ok(shelves)
    }

    /// Whether each of these stands in its due zset and in `claims`, and whether its blob is there.
    async fn where_are(&self, p: Partition, ids: &[BundleId]) -> Result<Vec<(bool, bool, bool)>, StoreError> {
        let mut pipe = Pipeline::with_capacity(ids.len() * 3);
        for id in ids {
            pipe.cmd("ZSCORE").arg(self.0.keys.due(p, id.shelf())).arg(id.as_str());
            pipe.cmd("ZSCORE").arg(self.0.keys.of(p, "claims")).arg(id.as_str());
            pipe.cmd("EXISTS").arg(self.0.keys.blob(p, id));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Value> = self.ask(&pipe).await?;
        let there = |value: &Value| !matches!(value, Value::Nil | Value::Int(0));
        Ok(found.chunks(3).map(|c| (there(&c[0]), there(&c[1]), there(&c[2]))).collect())
    }

    async fn walk_claims(&self, p: Partition, from: usize, finds: &mut Finds) -> Result<usize, StoreError> {
        let mut at = from;
        while at < from + ENTRIES {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANGE").arg(self.0.keys.of(p, "claims")).arg(at).arg(at + PAGE - 1);
            let (members,): (Vec<String>,) = self.ask(&pipe).await?;
            let ids = finds.ids(&members, None);
            for (id, (due, _, blob)) in ids.iter().zip(self.where_are(p, &ids).await?) {
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
        (first, skip): (String, usize),
        finds: &mut Finds,
    ) -> Result<(String, usize), StoreError> {
        let shelves = self.shelves(p).await?;
        finds.shelves.extend(shelves.iter().cloned());
        let mut seen = 0;
        for shelf in shelves.into_iter().filter(|shelf| *shelf >= first) {
            let mut at = if shelf == first { skip } else { 0 };
            loop {
                if seen >= ENTRIES {
                    return Ok((shelf, at));
                }
                let mut pipe = redis::pipe();
                pipe.cmd("ZRANGE").arg(self.0.keys.due(p, &shelf)).arg(at).arg(at + PAGE - 1);
                let (members,): (Vec<String>,) = self.ask(&pipe).await?;
                let ids = finds.ids(&members, Some(&shelf));
                for (id, (_, claimed, blob)) in ids.iter().zip(self.where_are(p, &ids).await?) {
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

    async fn walk_beside(
        &self,
        p: Partition,
        hash: &str,
        from: u64,
        finds: &mut Finds,
    ) -> Result<u64, StoreError> {
        let mut cursor = from;
        for _ in 0..STEPS {
            let (next, fields) = self.scan_hash(p, hash, cursor).await?;
            let members: Vec<String> = fields.into_iter().map(|(field, _)| field).collect();
            let ids = finds.ids(&members, None);
            for (id, (due, claimed, _)) in ids.iter().zip(self.where_are(p, &ids).await?) {
                if !claimed && (!due || hash == "tokens") {
                    finds.bundle(id.clone(), None);
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok(cursor)
    }

    async fn walk_names(&self, p: Partition, from: u64, finds: &mut Finds) -> Result<u64, StoreError> {
        let mut cursor = from;
        for _ in 0..STEPS {
            let (next, fields) = self.scan_hash(p, "names", cursor).await?;
            let meant: Vec<_> = fields.iter().map(|(_, place)| super::write::parse_place(place)).collect();
            let ids: Vec<BundleId> = meant.iter().flatten().map(|(id, _)| id.clone()).collect();
            let mut places = self.where_are(p, &ids).await?.into_iter();
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

    async fn scan_hash(
        &self,
        p: Partition,
        hash: &str,
        cursor: u64,
    ) -> Result<(u64, Vec<(String, String)>), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HSCAN").arg(self.0.keys.of(p, hash)).arg(cursor).arg("COUNT").arg(PAGE);
        let (found,): ((u64, Vec<(String, String)>),) = self.ask(&pipe).await?;
        Ok(found)
    }

    /// Counts what stands, and sets the counts to it if nothing moved meanwhile.
    async fn recount(
        &self,
        p: Partition,
        graves: &BTreeSet<String>,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        for _ in 0..COUNTS {
            let call = self.recount_call(p, vec!["look".into()]);
            let look = self.0.settles.run_unnumbered(p, &call).await?;
            let Value::Array(look) = look else { return Err(shape("the answer to a recount")) };
            let [stamp, forgotten] = &look[..] else { return Err(shape("the answer to a recount")) };
            report.lanes += integer(forgotten)? as u32;
            let Some(counted) = self.count(p, graves).await? else { return Ok(()) };
            let mut args: Vec<Arg> = vec!["set".into(), text(stamp)?.into(), counted.len().into()];
            for (field, n) in counted {
                args.extend::<[Arg; 2]>([field.into(), n.into()]);
            }
            let set = self.0.settles.run_unnumbered(p, &self.recount_call(p, args)).await?;
            if text(&set)? != "MOVED" {
                report.counts = Some(integer(&set)? as u32);
                return Ok(());
            }
        }
        Ok(())
    }

    fn recount_call(&self, p: Partition, args: Vec<Arg>) -> Call {
        let keys = self.0.keys.fixed(p);
        Call { script: &scripts::RECOUNT, op: "recount", keys, args, blobs: Vec::new() }
    }

    /// What the counts should be; `None` if there is too much to count.
    async fn count(
        &self,
        p: Partition,
        graves: &BTreeSet<String>,
    ) -> Result<Option<BTreeMap<String, i64>>, StoreError> {
        let shelves = self.shelves(p).await?;
        if shelves.len() == SHELVES {
            return Ok(None);
        }
        let mut zsets: Vec<String> = shelves.iter().map(|shelf| self.0.keys.due(p, shelf)).collect();
        zsets.push(self.0.keys.of(p, "claims"));
        let mut counted: BTreeMap<String, i64> = BTreeMap::new();
        let mut seen = 0;
        for zset in zsets {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANGE").arg(&zset).arg(0).arg(ENTRIES);
            let (members,): (Vec<String>,) = self.ask(&pipe).await?;
            seen += members.len();
            if seen > ENTRIES {
                return Ok(None);
            }
            let ids: Vec<BundleId> = members.iter().filter_map(|id| BundleId::parse(id)).collect();
            for ids in ids.chunks(PAGE) {
                self.count_bundles(p, ids, &mut counted).await?;
            }
        }
        let whole = self.count_dead(p, seen, graves.clone(), &mut counted).await?;
        Ok(whole.then_some(counted))
    }

    async fn count_bundles(
        &self,
        p: Partition,
        ids: &[BundleId],
        counted: &mut BTreeMap<String, i64>,
    ) -> Result<(), StoreError> {
        let mut pipe = Pipeline::with_capacity(ids.len() * 2);
        for id in ids {
            pipe.cmd("STRLEN").arg(self.0.keys.blob(p, id));
            pipe.cmd("HGET").arg(self.0.keys.of(p, "gone")).arg(id.as_str());
        }
        let found: Vec<Value> = self.ask(&pipe).await?;
        for (id, pair) in ids.iter().zip(found.chunks(2)) {
            let gone = match &pair[1] {
                Value::BulkString(bits) => String::from_utf8_lossy(bits).matches('1').count(),
                _ => 0,
            };
            *counted.entry(format!("n:{}", id.route())).or_default() += (id.count() - gone) as i64;
            *counted.entry(format!("b:{}", id.route())).or_default() += integer(&pair[0])?;
        }
        Ok(())
    }
}
