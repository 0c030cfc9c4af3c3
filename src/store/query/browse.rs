//! Waiting messages in due order over all partitions, a page at a time. Many small reads make a page, so that
//! nothing of the flow waits behind one.
//!
//! A page is made in rounds. Each round takes the due sets that come next by the index and reads their entries.
//! From what it has not read it knows the moment (the *horizon*) up to which it has seen everything. Messages
//! due before the horizon belong to the page, in order. Later messages of a bundle are due within a span of its
//! first, so a round looks that far back. A bundle that was put off stands in its due set behind the due times of its
//! messages: the messages are listed at the place of the bundle. Growing bundles are listed first: what is spread after that
//! is in a bundle that is listed later.

use redis::cluster_routing::Slot;

use super::contents::Listed;
use super::search_bound::{self, SearchBound};
use crate::domain::{Partition, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::model::bundle::{
    BundleId, GROWING_SPAN_MS, first_message_due, from_base36, is_of_growing, is_of_route,
    slice_start,
};
use crate::store::model::codec::read_dues;
use crate::store::{BrowseKey, BrowseQuery, MessagePage, Store, StoreError, StoredMessage};

/// How far behind its bundle's first due time a message may be: the longest span, and that of a retry.
const SPAN_MS: i64 = 8192;
/// For so long from now a bundle may be put off whose messages are overdue.
const LONGEST_PUT_OFF_MS: i64 = 60_000;
/// Commands of one trip: some 100 us of Redis.
pub(super) const TRIP_COMMANDS: usize = 32;
/// Due sets of one partition that one read of the index shows, besides those that have begun.
const COMING_DUE_SETS: usize = 32;
const BEGUN_DUE_SETS: usize = 1024;
/// Due sets that one round reads, besides those that have begun.
const ROUND_DUE_SETS: usize = 64;
/// Entries of one due set that one round reads. If all of them are due at once, it reads up to `MORE_ENTRIES`
/// more in steps of `MORE_STEP`.
const DUE_SET_ENTRIES: usize = 64;
const MORE_ENTRIES: usize = 1 << 16;
const MORE_STEP: usize = 1024;
/// Rounds of one page. Sparse due sets of other routes may use them up. Then the page is short.
const PAGE_ROUNDS: usize = 8;
/// Messages for which a growing bundle is taken until it is read. Nobody knows how many of its places are taken: most hold
/// many, and not all of them are wanted.
const GROWING_MESSAGES: usize = 16;
/// Bytes that the bundles of one page may take when opened, the first message aside; of a search those of one round, of which
/// only what it finds stays. Bodies are not opened, unless a search looks into them.
pub(super) const PAGE_BYTES: usize = 4 << 20;

/// A due set, and the first due time from which on its bundles are read.
struct DueSetRange {
    partition: Partition,
    name: String,
    floor: i64,
}

impl DueSetRange {
    /// The command that reads some bundles whose first message may be due by then.
    fn range(&self, key: &str, to: UnixMs, at: usize, most: usize) -> redis::Cmd {
        let ahead_ms = first_message_due(&self.name, 0).0;
        let until = to.0.saturating_sub(ahead_ms);
        range(key, (self.floor - ahead_ms).to_string(), until, at, most)
    }

    /// The bundles that were read, each with the moment at which its first message may be due.
    fn by_first_message(&self, entries: Vec<(String, f64)>) -> Vec<(String, i64)> {
        entries
            .into_iter()
            .map(|(id, score)| (id, first_message_due(&self.name, score as i64).0))
            .collect()
    }
}

/// A bundle that may have messages for the page.
pub(super) struct Candidate {
    pub(super) partition: Partition,
    pub(super) id: BundleId,
    /// First due time of its messages, Unix ms.
    pub(super) first: i64,
}

impl Candidate {
    /// Messages that it has, about.
    fn messages(&self) -> usize {
        if self.id.is_growing() {
            GROWING_MESSAGES
        } else {
            self.id.count()
        }
    }
}

/// The bundles of one round.
#[derive(Default)]
struct Round {
    growing: Vec<Candidate>,
    others: Vec<Candidate>,
    /// The moment up to which they are complete, Unix ms. `None`: for ever.
    horizon: Option<i64>,
}

impl Store {
    /// The next waiting messages, in the order of [`BrowseKey`]. A page may be short, even empty, while there
    /// is more. Messages that are claimed meanwhile are left out. Waits while the store is away.
    pub async fn browse(&self, query: &BrowseQuery) -> Result<MessagePage, StoreError> {
        let mut from = query
            .after
            .clone()
            .unwrap_or(BrowseKey::start_of(query.from));
        let places = &BrowseQuery {
            to: query.to.max(self.0.clock.now().plus(LONGEST_PUT_OFF_MS)),
            ..query.clone()
        };
        let mut found: Vec<StoredMessage> = Vec::new();
        let mut budget = PAGE_BYTES;
        let mut scanned = 0;
        let is_search = !query.filter.is_empty();
        let mut bound = SearchBound::begin(self.0.clock.local());
        let mut rounds = 0;
        loop {
            let step = if is_search {
                budget = PAGE_BYTES;
                search_bound::STEP
            } else {
                query.limit - found.len()
            };
            let round = self.round(places, query.to, &from, step).await?;
            let horizon = round.horizon;
            // `None`: one was spread since it was listed, and the others were listed before that perhaps. Again, then.
            if let Some(mut listed) = self.growing(places, &from, horizon, round.growing).await? {
                listed.extend(self.messages(places, &from, horizon, round.others).await?);
                listed.sort_by(|a, b| a.key.cmp(&b.key));
                let cut = listed.len() > step;
                listed.truncate(step);
                let taken = self
                    .contents(&listed, query, &mut budget, &mut found)
                    .await?;
                scanned += taken;
                match (listed.get(taken.wrapping_sub(1)), horizon) {
                    (Some(last), _) if cut || taken < listed.len() => from = last.key.clone(),
                    (_, None) => {
                        return Ok(MessagePage {
                            found,
                            next: None,
                            scanned,
                        });
                    }
                    (_, Some(horizon)) => from = BrowseKey::start_of(UnixMs(horizon)),
                }
            }
            rounds += 1;
            let is_over = if is_search {
                bound.is_reached(scanned)
            } else {
                rounds >= PAGE_ROUNDS || budget == 0
            };
            if is_over || found.len() >= query.limit {
                return Ok(MessagePage {
                    found,
                    next: Some(from),
                    scanned,
                });
            }
        }
    }

    /// The next bundles: growing ones, then the others.
    async fn round(
        &self,
        query: &BrowseQuery,
        to: UnixMs,
        from: &BrowseKey,
        wanted: usize,
    ) -> Result<Round, StoreError> {
        let mut round = Round::default();
        let all: Vec<Partition> = self.0.partitions.all().collect();
        let growing = self.growing_due_sets(&all, query.route.as_ref()).await?;
        let floor = from.due.0.saturating_sub(GROWING_SPAN_MS).max(0);
        round.growing = self
            .candidates(query, from, floor, growing, &mut round.horizon)
            .await?;
        let floor = from.due.0.saturating_sub(SPAN_MS).max(0);
        let (mut due_sets, horizon) = self.next_due_sets(query, from.due.0, floor).await?;
        // A bundle that is put off stays in the due set of its first message.
        due_sets.retain(|(_, due_set)| !is_of_growing(due_set) && begins_by(due_set, to));
        round.see_until(horizon);
        round.others = self
            .candidates(query, from, floor, due_sets, &mut round.horizon)
            .await?;
        round.cut(from.due.0, wanted);
        // A whole read of one due set at one moment was not enough. Go on all the same.
        round.horizon = round.horizon.map(|h| h.max(from.due.0 + 1));
        Ok(round)
    }

    /// The bundles of these due sets that come next. Lowers the horizon to the first one that may have been left out.
    async fn candidates(
        &self,
        query: &BrowseQuery,
        from: &BrowseKey,
        floor: i64,
        due_sets: Vec<(Partition, String)>,
        horizon: &mut Option<i64>,
    ) -> Result<Vec<Candidate>, StoreError> {
        let due_sets = due_sets.into_iter().map(|(partition, name)| DueSetRange {
            partition,
            name,
            floor,
        });
        let due_sets: Vec<DueSetRange> = due_sets.collect();
        let mut candidates = Vec::new();
        let mut read = |due_set: &DueSetRange, entries: Vec<(String, i64)>, most| {
            if let Some(&(_, last)) = entries.last().filter(|_| entries.len() == most) {
                *horizon = Some(horizon.map_or(last, |h| h.min(last)));
            }
            candidates.extend(entries.into_iter().filter_map(|(id, first)| {
                let id = BundleId::parse(&id)?;
                // A message alone in its bundle is due when the bundle is.
                (first >= from.due.0 || id.count() > 1).then_some(Candidate {
                    partition: due_set.partition,
                    id,
                    first,
                })
            }));
        };
        let all = self.entries(&due_sets, query.to, DUE_SET_ENTRIES).await?;
        let mut crowded = Vec::new();
        for (due_set, entries) in due_sets.iter().zip(all) {
            let stuck = entries.len() == DUE_SET_ENTRIES
                && entries
                    .last()
                    .is_some_and(|(_, first)| *first <= from.due.0);
            if stuck {
                crowded.push(due_set);
            } else {
                read(due_set, entries, DUE_SET_ENTRIES);
            }
        }
        for due_set in crowded {
            let due = self.0.keys.due(due_set.partition, &due_set.name);
            for at in (0..MORE_ENTRIES).step_by(MORE_STEP) {
                let command = due_set.range(&due, query.to, at, MORE_STEP);
                let command = (Keys::slot(due_set.partition), command);
                let entries: Vec<(String, f64)> = self
                    .trips(vec![command], 1)
                    .await?
                    .pop()
                    .unwrap_or_default();
                let entries = due_set.by_first_message(entries);
                let whole = entries.len() < MORE_STEP;
                let last = at + MORE_STEP >= MORE_ENTRIES;
                let past = entries.last().is_some_and(|(_, first)| *first > from.due.0);
                // An entry can have been left out only where reading stops.
                read(
                    due_set,
                    entries,
                    if past || last { MORE_STEP } else { usize::MAX },
                );
                if whole || past {
                    break;
                }
            }
        }
        Ok(candidates)
    }

    /// The next due sets over all partitions, and the earliest moment of those left out.
    async fn next_due_sets(
        &self,
        query: &BrowseQuery,
        due: i64,
        floor: i64,
    ) -> Result<(Vec<(Partition, String)>, Option<i64>), StoreError> {
        // What was put off stands in the due set of its slice, behind the head of that. Only what is overdue is put off.
        let put_off_until = self.0.clock.now().plus(LONGEST_PUT_OFF_MS);
        let begin = if due <= put_off_until.0 {
            0
        } else {
            (floor >> 20) << 20
        };
        let mut commands = Vec::new();
        for p in self.0.partitions.all() {
            let idx = self.0.keys.of(p, "idx");
            // The latest ones, if there are more.
            let mut begun = redis::cmd("ZRANGE");
            begun
                .arg(&idx)
                .arg(due)
                .arg(begin)
                .arg("BYSCORE")
                .arg("REV");
            begun.arg("LIMIT").arg(0).arg(BEGUN_DUE_SETS);
            begun.arg("WITHSCORES");
            commands.push((Keys::slot(p), begun));
            commands.push((
                Keys::slot(p),
                range(&idx, format!("({due}"), query.to.0, 0, COMING_DUE_SETS),
            ));
        }
        let answers: Vec<Vec<(String, f64)>> = self.trips(commands, TRIP_COMMANDS).await?;
        let mut begun: Vec<(i64, Partition, String)> = Vec::new();
        let mut coming: Vec<(i64, Partition, String)> = Vec::new();
        let mut horizon = None::<i64>;
        for (p, lists) in self.0.partitions.all().zip(answers.chunks(2)) {
            let [now, later] = lists else { continue };
            if let Some((_, last)) = later.last().filter(|_| later.len() == COMING_DUE_SETS) {
                // Other due sets of that very moment may have been cut off.
                horizon = Some(horizon.map_or(*last as i64, |h| h.min(*last as i64)));
            }
            for (list, kept) in [(now, &mut begun), (later, &mut coming)] {
                for (due_set, at) in list {
                    if let Some(route) = &query.route
                        && !is_of_route(due_set, route.as_str())
                    {
                        continue;
                    }
                    kept.push((*at as i64, p, due_set.clone()));
                }
            }
        }
        coming.sort();
        if let Some((first, ..)) = coming.get(ROUND_DUE_SETS) {
            horizon = Some(horizon.map_or(*first, |h| h.min(*first)));
            coming.truncate(ROUND_DUE_SETS);
        }
        begun.extend(coming);
        Ok((
            begun
                .into_iter()
                .map(|(_, p, due_set)| (p, due_set))
                .collect(),
            horizon,
        ))
    }

    async fn entries(
        &self,
        due_sets: &[DueSetRange],
        to: UnixMs,
        most: usize,
    ) -> Result<Vec<Vec<(String, i64)>>, StoreError> {
        let commands = due_sets.iter().map(|due_set| {
            let key = self.0.keys.due(due_set.partition, &due_set.name);
            let command = due_set.range(&key, to, 0, most);
            (Keys::slot(due_set.partition), command)
        });
        let read: Vec<Vec<(String, f64)>> = self.trips(commands.collect(), TRIP_COMMANDS).await?;
        let read = due_sets.iter().zip(read);
        Ok(read
            .map(|(due_set, entries)| due_set.by_first_message(entries))
            .collect())
    }

    /// The messages of these bundles that belong to the page, without those that are gone.
    pub(super) async fn messages(
        &self,
        query: &BrowseQuery,
        from: &BrowseKey,
        horizon: Option<i64>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Listed>, StoreError> {
        let mut commands = Vec::new();
        for c in &candidates {
            let keys = &self.0.keys;
            let p = c.partition;
            let id = c.id.as_str();
            let slot = Keys::slot(p);
            commands.push((slot, command("HGET", &keys.of(p, "gone"), id)));
            commands.push((slot, command("HGET", &keys.of(p, "done"), id)));
            let mut head = redis::cmd("GETRANGE");
            // The index stands before the records, with some bytes for each message.
            let end = match c.id.count() {
                1 => 0,
                count => 1024 + 31 * count as i64,
            };
            head.arg(keys.blob(p, &c.id)).arg(0).arg(end);
            commands.push((slot, head));
        }
        let answers: Vec<Option<Vec<u8>>> = self.trips(commands, TRIP_COMMANDS).await?;
        let mut listed = Vec::new();
        for (c, answer) in candidates.iter().zip(answers.chunks(3)) {
            let [gone, done, head] = answer else { continue };
            let is_set = |map: &Option<Vec<u8>>, i: usize| {
                map.as_ref().is_some_and(|m| m.get(i) == Some(&b'1'))
            };
            let dues = match (c.id.count(), head) {
                (1, _) => vec![UnixMs(c.first)],
                (_, Some(head)) => read_dues(&head.clone().into()).unwrap_or_default(),
                (_, None) => Vec::new(),
            };
            for (index, due) in dues.into_iter().enumerate() {
                if is_set(gone, index) || is_set(done, index) {
                    continue;
                }
                // No message comes before its bundle, which may have been put off.
                let key = c.key(index, due.max(UnixMs(c.first)));
                if belongs(&key, query, from, horizon) {
                    listed.push(Listed { key, content: None });
                }
            }
        }
        Ok(listed)
    }

    /// Sends commands, `most` at a time, and reads all answers.
    pub(in crate::store) async fn trips<T: redis::FromRedisValue>(
        &self,
        commands: Vec<(Slot, redis::Cmd)>,
        most: usize,
    ) -> Result<Vec<T>, StoreError> {
        let mut answers = Vec::with_capacity(commands.len());
        for trip in commands.chunks(most) {
            answers.extend(self.0.browse.gather_all::<T>(trip.to_vec()).await?);
        }
        Ok(answers)
    }
}

impl Candidate {
    pub(super) fn key(&self, index: usize, due: UnixMs) -> BrowseKey {
        BrowseKey {
            due,
            partition: self.partition,
            bundle: self.id.as_str().to_owned(),
            index: index as u32,
        }
    }
}

impl Round {
    /// Nobody has seen what is due at this moment or later.
    fn see_until(&mut self, horizon: Option<i64>) {
        self.horizon = [self.horizon, horizon].into_iter().flatten().min();
    }

    /// Leaves bundles to the next round where enough messages come before them.
    fn cut(&mut self, from: i64, wanted: usize) {
        let mut all: Vec<Candidate> = self
            .growing
            .drain(..)
            .chain(self.others.drain(..))
            .collect();
        all.sort_by_cached_key(|c| (c.first, c.partition, c.id.clone()));
        let mut messages = 0;
        for at in 0..all.len() {
            let first = all[at].first;
            if messages >= wanted && first > from && first > all[at - 1].first {
                self.see_until(Some(first));
                all.truncate(at);
                break;
            }
            messages += if first >= from { all[at].messages() } else { 0 };
        }
        (self.growing, self.others) = all.into_iter().partition(|c| c.id.is_growing());
    }
}

/// Reports whether messages of this due set may be due by then. What is no due set may be anything.
fn begins_by(due_set: &str, to: UnixMs) -> bool {
    let slice = due_set.rsplit('/').next().and_then(from_base36);
    slice.is_none_or(|slice| slice_start(slice) <= to)
}

/// Tells whether a message belongs to what is looked for.
pub(super) fn belongs(
    key: &BrowseKey,
    query: &BrowseQuery,
    from: &BrowseKey,
    horizon: Option<i64>,
) -> bool {
    let in_window = key.due >= query.from && key.due <= query.to;
    in_window && horizon.is_none_or(|h| key.due.0 < h) && key > from
}

fn command(name: &str, key: &str, field: &str) -> redis::Cmd {
    let mut command = redis::cmd(name);
    command.arg(key).arg(field);
    command
}

/// `ZRANGEBYSCORE key min max WITHSCORES LIMIT at most`
pub(in crate::store) fn range(
    key: &str,
    min: String,
    max: i64,
    at: usize,
    most: usize,
) -> redis::Cmd {
    let mut command = redis::cmd("ZRANGEBYSCORE");
    command
        .arg(key)
        .arg(min)
        .arg(max)
        .arg("WITHSCORES")
        .arg("LIMIT")
        .arg(at)
        .arg(most);
    command
}
