//! All messages of one route, whatever their state: for `postdate replay`, which must not store them again.
//! Small reads, as for all queries of people.

use std::collections::{BTreeMap, BTreeSet};

use redis::cluster_routing::Slot;

use crate::domain::{Entry, FirstStart, Partition, RouteName, Text};
use crate::store::call::keys::Keys;
use crate::store::model::bundle::{BundleId, growing_due_set, is_gone, is_of_growing, is_of_route};
use crate::store::{DeadFilter, DeadId, Store, StoreError, decode};

/// Bundles of one trip: three reads each, one of them of up to 64 KiB.
const TRIP_BUNDLES: usize = 8;
/// Members that one step of a scan reads.
const SCAN_STEP: usize = 500;
/// Dead letters of one page.
const DEAD_PAGE_LEN: usize = 200;
/// Most walks through the bundles of one partition. Where the flow never rests, some bundle moves during each walk.
const WALKS: usize = 3;

/// The state of a scanned message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScannedState {
    /// A dead letter, or only a place in a bundle: cancelled, moved, suppressed or published.
    Ended,
    /// The message is being published, or about to be.
    InFlight,
    /// The message waits.
    Pending,
}

impl Store {
    /// Visits, each with its partition: every message of a route that is there all the time; some of those that come or leave
    /// meanwhile; some twice. Two kinds of messages may be left out: those that change their place during each of three
    /// walks through their partition, and those that die and are redriven between the two reads of the dead letters. The
    /// scan is bounded only by what the route holds, but no read is long. Unreadable messages are left out. Waits while the
    /// store is away.
    ///
    /// `progress` hears how many of how many partitions are done.
    pub async fn scan(
        &self,
        route: &RouteName,
        mut visit: impl FnMut(Partition, &Entry, ScannedState),
        mut progress: impl FnMut(u16, u16),
    ) -> Result<(), StoreError> {
        // Dead letters come first and last: some are redriven meanwhile, and some messages die.
        let mut dead = BTreeSet::new();
        self.scan_dead_letters(route, &mut dead, &mut visit).await?;
        for p in self.0.partitions.all() {
            // Those that grow come first: what is spread meanwhile is seen where it goes to.
            let growing = self.growing_of(p, route).await?;
            for some in growing.chunks(TRIP_BUNDLES) {
                self.open(p, some, &mut visit).await?;
            }
            self.scan_bundles(p, route, &mut visit).await?;
            progress(p.0 + 1, self.0.partitions.count());
        }
        self.scan_dead_letters(route, &mut dead, &mut visit).await
    }

    /// Visits the messages of a route's other bundles of one partition. A bundle that moves during a walk may never be where
    /// the walk looks, and its messages may be in another bundle when it is opened. So another walk follows, which opens the
    /// bundles that no walk before has found.
    async fn scan_bundles(
        &self,
        p: Partition,
        route: &RouteName,
        visit: &mut impl FnMut(Partition, &Entry, ScannedState),
    ) -> Result<(), StoreError> {
        let mut opened = BTreeSet::new();
        let mut before = self.moves(p).await?;
        for _ in 0..WALKS {
            let bundles = self.bundles_of(p, route).await?;
            let new = bundles.into_iter();
            let new: Vec<_> = new.filter(|(id, _)| opened.insert(id.clone())).collect();
            for some in new.chunks(TRIP_BUNDLES) {
                self.open(p, some, visit).await?;
            }
            let after = self.moves(p).await?;
            if before == after {
                break;
            }
            before = after;
        }
        Ok(())
    }

    /// How often something in a partition has changed its place. While the answer does not change, no bundle does.
    async fn moves(&self, p: Partition) -> Result<Option<redis::Value>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.0.keys.of(p, "counts")).arg("moves");
        Ok(self.trips(vec![(Keys::slot(p), get)], 1).await?.pop())
    }

    /// A route's growing bundles of one partition.
    async fn growing_of(
        &self,
        p: Partition,
        route: &RouteName,
    ) -> Result<Vec<(BundleId, ScannedState)>, StoreError> {
        let due_set = growing_due_set(route.as_str());
        let members = self.members(p, &self.0.keys.due(p, &due_set)).await?;
        let ids = members.iter().filter_map(|id| BundleId::parse(id));
        Ok(ids.map(|id| (id, ScannedState::Pending)).collect())
    }

    /// A route's other bundles of one partition. Claims are read before and after the due sets, because bundles move
    /// between the two.
    async fn bundles_of(
        &self,
        p: Partition,
        route: &RouteName,
    ) -> Result<BTreeMap<BundleId, ScannedState>, StoreError> {
        let mut bundles = BTreeMap::new();
        let mut add = |found: Vec<String>, standing| {
            bundles.extend(
                found
                    .iter()
                    .filter(|id| is_of_route(id, route.as_str()))
                    .filter_map(|id| Some((BundleId::parse(id)?, standing))),
            );
        };
        let claims = self.0.keys.of(p, "claims");
        add(self.members(p, &claims).await?, ScannedState::InFlight);
        let due_sets = self.members(p, &self.0.keys.of(p, "idx")).await?;
        for due_set in due_sets {
            if is_of_route(&due_set, route.as_str()) && !is_of_growing(&due_set) {
                add(
                    self.members(p, &self.0.keys.due(p, &due_set)).await?,
                    ScannedState::Pending,
                );
            }
        }
        add(self.members(p, &claims).await?, ScannedState::InFlight);
        Ok(bundles)
    }

    /// The members of a sorted set, a few at a time. A member that is there all the time appears once or more.
    pub(super) async fn members(&self, p: Partition, key: &str) -> Result<Vec<String>, StoreError> {
        let mut members = Vec::new();
        let mut cursor = 0u64;
        loop {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(key).arg(cursor).arg("COUNT").arg(SCAN_STEP);
            let answers: Vec<(u64, Vec<(String, f64)>)> =
                self.trips(vec![(Keys::slot(p), scan)], 1).await?;
            let Some((next, found)) = answers.into_iter().next() else {
                return Ok(members);
            };
            members.extend(found.into_iter().map(|(member, _)| member));
            if next == 0 {
                return Ok(members);
            }
            cursor = next;
        }
    }

    async fn open(
        &self,
        p: Partition,
        bundles: &[(BundleId, ScannedState)],
        visit: &mut impl FnMut(Partition, &Entry, ScannedState),
    ) -> Result<(), StoreError> {
        let mut commands = Vec::with_capacity(bundles.len() * 2);
        for (id, _) in bundles {
            for map in ["gone", "done"] {
                let mut get = redis::cmd("HGET");
                get.arg(self.0.keys.of(p, map)).arg(id.as_str());
                commands.push((Keys::slot(p), get));
            }
        }
        let maps: Vec<Option<Vec<u8>>> = self.trips(commands, TRIP_BUNDLES * 2).await?;
        let keys = bundles
            .iter()
            .map(|(id, _)| self.0.keys.blob(p, id))
            .collect();
        let blobs = self.0.browse.get_blobs(Keys::slot(p), keys).await?;
        for (((_, standing), maps), blob) in bundles.iter().zip(maps.chunks(2)).zip(blobs) {
            let ([gone, done], Some(blob)) = (maps, blob) else {
                continue;
            };
            let Ok(bundle) = decode(&blob) else { continue };
            let is_set = |map: &Option<Vec<u8>>, at: usize| {
                map.as_ref().is_some_and(|m| m.get(at) == Some(&b'1'))
            };
            for (at, entry) in bundle.entries.iter().enumerate() {
                let ended = is_set(gone, at) || is_set(done, at) || is_gone(entry);
                let state = if ended {
                    ScannedState::Ended
                } else {
                    *standing
                };
                visit(p, entry, state);
            }
        }
        Ok(())
    }

    /// Visits a route's dead letters but those that are `known`, and adds them to the known ones.
    async fn scan_dead_letters(
        &self,
        route: &RouteName,
        known: &mut BTreeSet<DeadId>,
        visit: &mut impl FnMut(Partition, &Entry, ScannedState),
    ) -> Result<(), StoreError> {
        let filter = DeadFilter {
            route: Some(route.clone()),
            ..DeadFilter::default()
        };
        let mut after = None;
        loop {
            let page = self
                .dead_page(&filter, after.as_ref(), DEAD_PAGE_LEN)
                .await?;
            let ids = page.marks.into_iter().map(|mark| mark.id);
            let ids: Vec<_> = ids.filter(|id| known.insert(id.clone())).collect();
            let mut rest = &ids[..];
            while !rest.is_empty() {
                let bodies = self.dead_letters(rest).await?;
                for (id, body) in rest.iter().zip(&bodies) {
                    let bundle = body.as_ref().and_then(|body| body.bundle.as_ref().ok());
                    for entry in bundle.iter().flat_map(|bundle| &*bundle.entries) {
                        visit(id.partition(), entry, ScannedState::Ended);
                    }
                }
                // At least the first is answered.
                rest = rest.get(bodies.len().max(1)..).unwrap_or_default();
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// The progress of a replay of this route, as [`Store::note_replay`] wrote it. `topic`: which, if the route reads
    /// several.
    pub async fn replay_note(
        &self,
        route: &RouteName,
        topic: Option<&Text>,
    ) -> Result<Option<String>, StoreError> {
        self.progress_note(&replay_field(route, topic)).await
    }

    /// Notes the progress of a replay. `None` forgets it. The note is kept beside what the replay stores: a
    /// store that is lost again takes both with it.
    pub async fn note_replay(
        &self,
        route: &RouteName,
        topic: Option<&Text>,
        note: Option<&str>,
    ) -> Result<(), StoreError> {
        self.note_progress(&replay_field(route, topic), note).await
    }

    /// The progress of an import from this source, as [`Store::note_import`] wrote it.
    pub async fn import_note(
        &self,
        route: &RouteName,
        source: &str,
    ) -> Result<Option<String>, StoreError> {
        self.progress_note(&import_field(route, source)).await
    }

    /// Notes the progress of an import from this source. `None` forgets it.
    pub async fn note_import(
        &self,
        route: &RouteName,
        source: &str,
        note: Option<&str>,
    ) -> Result<(), StoreError> {
        self.note_progress(&import_field(route, source), note).await
    }

    /// The topics of a source as they were when it was first read. Notes them as they are seen now, if nobody has noted them
    /// yet.
    pub async fn first_start(
        &self,
        source: &str,
        seen: FirstStart,
    ) -> Result<FirstStart, StoreError> {
        let field = format!("start/{source}");
        let mut set = redis::cmd("HSETNX");
        set.arg(self.0.keys.replays())
            .arg(&field)
            .arg(serde_json::to_string(&seen).unwrap_or_default());
        let told = self
            .trips::<redis::Value>(vec![(self.replays_slot(), set)], 1)
            .await;
        self.mended(told).await?;
        let noted = self.progress_note(&field).await?;
        // A note that cannot be read counts as none.
        let noted = noted.and_then(|noted| serde_json::from_str(&noted).ok());
        Ok(noted.unwrap_or(seen))
    }

    async fn progress_note(&self, field: &str) -> Result<Option<String>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.0.keys.replays()).arg(field);
        Ok(self
            .mended(self.trips(vec![(self.replays_slot(), get)], 1).await)
            .await?
            .pop()
            .flatten())
    }

    async fn note_progress(&self, field: &str, note: Option<&str>) -> Result<(), StoreError> {
        let mut command = redis::cmd(if note.is_some() { "HSET" } else { "HDEL" });
        command
            .arg(self.0.keys.replays())
            .arg(field)
            .arg(note.as_slice());
        let told = self
            .trips::<redis::Value>(vec![(self.replays_slot(), command)], 1)
            .await;
        self.mended(told).await.map(drop)
    }

    fn replays_slot(&self) -> Slot {
        Slot::for_key(self.0.keys.replays())
    }
}

/// The field of a replay's progress. A topic's name has no `/`.
fn replay_field(route: &RouteName, topic: Option<&Text>) -> String {
    match topic {
        None => route.to_string(),
        Some(topic) => format!("{route}/{topic}"),
    }
}

/// The field of an import's progress. No route's name has a slash.
fn import_field(route: &RouteName, source: &str) -> String {
    format!("import/{route}/{source}")
}
