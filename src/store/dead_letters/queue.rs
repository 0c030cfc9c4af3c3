//! Listing, redriving and dropping dead letters.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use crate::domain::{Actor, Partition, RouteName, Text, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::call::names::{name_key, queues_of};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{behind, shape, text};
use crate::store::call::scripts::{self, ScriptVariant};
use crate::store::model::bundle::partition_in;
use crate::store::model::dead_letter::queue_name;
use crate::store::query::search_bound::{self, SearchBound};
use crate::store::{
    Bundle, DeadBody, DeadFilter, DeadId, DeadMark, DeadOrder, DeadPage, Store, StoreError, encode,
};

/// Most reads that one page takes. Where few dead letters match, a page may be empty and not the last.
const PAGE_READS: usize = 8;
/// Bytes that the dead letters of one read may take when opened. The first comes whatever its size.
const READ_BYTES: usize = 4 << 20;
/// Most dead letters that one drop takes.
const DROP_BATCH: usize = 100;
/// Most dead letters of one queue that a search by message id looks at.
const SEARCH_LIMIT: usize = 2000;

impl Store {
    /// Dead letters over all partitions behind a mark, in the filter's order: at most `limit`. The work is bounded, so a
    /// page of a narrow filter may have fewer, even none, and still not be the last.
    pub async fn dead_page(
        &self,
        filter: &DeadFilter,
        after: Option<&DeadMark>,
        limit: usize,
    ) -> Result<DeadPage, StoreError> {
        let places = self.queues(filter).await?;
        let mut page = DeadPage::default();
        if places.is_empty() || limit == 0 {
            return Ok(page);
        }
        let is_search = !filter.message.is_empty();
        let mut bound = SearchBound::begin(self.0.clock.local());
        // A page that has looked at nothing has no place to go on from, and would be taken for the last.
        let mut is_over = |looked| is_search && looked > 0 && bound.is_reached(looked);
        let mut looked = 0;
        let mut after = after.cloned();
        let mut window = limit * 4 / places.len() + 8;
        for _ in 0..PAGE_READS {
            let reading = self
                .read_queues(&places, filter, after.as_ref(), window)
                .await?;
            if reading.marks.is_empty() && !reading.whole {
                // The window shows only dead letters of one millisecond: widen it.
                window *= 4;
                continue;
            }
            let mut rest = &reading.marks[..];
            while !rest.is_empty() && page.marks.len() < limit && !is_over(looked) {
                for is_selected in self.selected(rest, filter).await? {
                    let Some((mark, later)) = rest.split_first() else {
                        break;
                    };
                    (rest, after, looked) = (later, Some(mark.clone()), looked + 1);
                    page.marks.extend(is_selected.then(|| mark.clone()));
                    if page.marks.len() == limit {
                        break;
                    }
                }
            }
            if reading.whole && rest.is_empty() {
                page.next = None;
                return Ok(page);
            }
            page.next.clone_from(&after);
            if page.marks.len() == limit || is_over(looked) {
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// Whether the filter selects these dead letters, in order; of as many as one read shows, at least of the first.
    async fn selected(
        &self,
        marks: &[DeadMark],
        filter: &DeadFilter,
    ) -> Result<Vec<bool>, StoreError> {
        let has_reason = |mark: &DeadMark| filter.reason.is_none_or(|r| mark.id.reason() == r);
        if filter.message.is_empty() {
            return Ok(marks.iter().map(has_reason).collect());
        }
        let asked = marks.iter().filter(|mark| has_reason(mark));
        let ids: Vec<DeadId> = asked
            .map(|mark| mark.id.clone())
            .take(search_bound::STEP)
            .collect();
        let read = self.read_dead(&ids, filter.message.needs_bodies()).await?;
        let mut read = read.into_iter();
        let mut selected = Vec::with_capacity(marks.len());
        for mark in marks {
            if !has_reason(mark) {
                selected.push(false);
            } else if let Some(body) = read.next() {
                selected.push(body.is_some_and(|body| has_message(&body, filter)));
            } else {
                break;
            }
        }
        Ok(selected)
    }

    /// The dead-letter queues that hold anything which the filter may select.
    async fn queues(&self, filter: &DeadFilter) -> Result<Vec<(Partition, String)>, StoreError> {
        let found = self
            .0
            .side
            .gather_all::<Vec<(String, i64)>>(self.all_counts())
            .await?;
        let mut places = Vec::new();
        for (p, fields) in self.0.partitions.all().zip(found) {
            let queues = fields
                .iter()
                .filter(|(_, n)| *n > 0)
                .filter_map(|(f, _)| f.strip_prefix("d:"));
            places.extend(
                queues
                    .filter(|g| filter.includes_queue(g))
                    .map(|g| (p, g.to_owned())),
            );
        }
        Ok(places)
    }

    /// Reads what these queues hold next after a mark, in order, as far as the result is surely complete.
    async fn read_queues(
        &self,
        places: &[(Partition, String)],
        filter: &DeadFilter,
        after: Option<&DeadMark>,
        window: usize,
    ) -> Result<DeadReading, StoreError> {
        let is_newest_first = filter.order == DeadOrder::NewestFirst;
        let mut min = filter.from.map_or("-inf".to_owned(), |at| at.to_string());
        let mut max = filter.to.map_or("+inf".to_owned(), |at| format!("({at}"));
        // The mark lies between the two.
        let begin = if is_newest_first { &mut max } else { &mut min };
        if let Some(mark) = after {
            *begin = mark.at.to_string();
        }
        let commands = places.iter().map(|(p, queue)| {
            let mut next = redis::cmd("ZRANGE");
            next.arg(self.0.keys.queue(*p, queue));
            if is_newest_first {
                next.arg(&max).arg(&min).arg("BYSCORE").arg("REV");
            } else {
                next.arg(&min).arg(&max).arg("BYSCORE");
            }
            next.arg("LIMIT").arg(0).arg(window).arg("WITHSCORES");
            (Keys::slot(*p), next)
        });
        let found: Vec<Vec<(String, f64)>> = self.0.side.gather_all(commands.collect()).await?;
        // Reports whether the first comes before the second in this order.
        let is_before = |a: UnixMs, b: UnixMs| if is_newest_first { a > b } else { a < b };
        let mut marks: Vec<DeadMark> = Vec::new();
        let mut complete_before: Option<UnixMs> = None;
        for members in found {
            if let Some((_, last)) = members.last().filter(|_| members.len() == window) {
                // Dead letters behind the window are not before this moment.
                let last = UnixMs(*last as i64);
                if complete_before.is_none_or(|at| is_before(last, at)) {
                    complete_before = Some(last);
                }
            }
            marks.extend(members.into_iter().filter_map(|(id, at)| {
                Some(DeadMark {
                    at: UnixMs(at as i64),
                    id: DeadId::parse(&id)?,
                })
            }));
        }
        if let Some(complete_before) = complete_before {
            marks.retain(|mark| is_before(mark.at, complete_before));
        }
        marks.sort_unstable();
        if is_newest_first {
            marks.reverse();
        }
        if let Some(after) = after {
            marks.retain(|mark| {
                if is_newest_first {
                    mark < after
                } else {
                    mark > after
                }
            });
        }
        Ok(DeadReading {
            marks,
            whole: complete_before.is_none(),
        })
    }

    /// The contents of these dead letters, in order. `None` for one that is not there (any more). Answers at
    /// least the first, and as many of the others as [`READ_BYTES`] hold when opened.
    pub async fn dead_letters(&self, ids: &[DeadId]) -> Result<Vec<Option<DeadBody>>, StoreError> {
        self.read_dead(ids, true).await
    }

    /// The same without opening their bodies, which cost nothing then.
    pub async fn dead_outlines(&self, ids: &[DeadId]) -> Result<Vec<Option<DeadBody>>, StoreError> {
        self.read_dead(ids, false).await
    }

    async fn read_dead(
        &self,
        ids: &[DeadId],
        with_bodies: bool,
    ) -> Result<Vec<Option<DeadBody>>, StoreError> {
        let mut bodies = Vec::new();
        let mut budget = READ_BYTES;
        for ids in ids.chunks(DROP_BATCH) {
            let scores = ids.iter().map(|id| {
                let mut score = redis::cmd("ZSCORE");
                score
                    .arg(self.0.keys.queue(id.partition(), &id.queue()))
                    .arg(id.as_str());
                (Keys::slot(id.partition()), score)
            });
            let keys: Vec<(Partition, String)> = ids
                .iter()
                .map(|id| (id.partition(), self.0.keys.dead(id)))
                .collect();
            let scores: Vec<Value> = self.0.side.gather_all(scores.collect()).await?;
            let heads = self.0.browse.measure_blobs_of(&keys).await?;
            let mut wanted = Vec::new();
            let mut places = Vec::new();
            let mut taken = 0;
            for (id, (score, ((p, key), head))) in ids
                .iter()
                .zip(scores.iter().zip(keys.into_iter().zip(heads)))
            {
                let is_known = id.partition().0 < self.0.partitions.count();
                let is_there = is_known && matches!(score, Value::BulkString(_) | Value::Double(_));
                if let Some(head) = head.filter(|_| is_there) {
                    let opened = head.opened_len(with_bodies);
                    if opened > budget && !(bodies.is_empty() && wanted.is_empty()) {
                        budget = 0;
                        break;
                    }
                    budget = budget.saturating_sub(opened);
                    places.push(taken);
                    wanted.push((p, key, head));
                }
                taken += 1;
            }
            let mut found = vec![None; taken];
            for (at, blob) in places
                .into_iter()
                .zip(self.0.browse.read_blobs_of(&wanted).await?)
            {
                let read = if with_bodies {
                    DeadBody::read
                } else {
                    DeadBody::read_outline
                };
                found[at] = blob.as_ref().map(read);
            }
            bodies.append(&mut found);
            if taken < ids.len() {
                break;
            }
        }
        Ok(bodies)
    }

    /// Dead letters of one partition that died before their route's moment, some at a time. Reads only queues
    /// that had any when the counts were last read: mostly there are none.
    pub async fn dead_before(
        &self,
        p: Partition,
        routes: &[(RouteName, UnixMs)],
    ) -> Result<Vec<DeadId>, StoreError> {
        let mut pipe = Pipeline::with_capacity(routes.len() * 2);
        for (route, before) in routes {
            for invalid in [false, true] {
                if !self.counted_no_dead(p, route, invalid) {
                    let queue = queue_name(route.as_str(), invalid);
                    pipe.cmd("ZRANGEBYSCORE").arg(self.0.keys.queue(p, &queue));
                    pipe.arg("-inf")
                        .arg(format!("({before}"))
                        .arg("LIMIT")
                        .arg(0)
                        .arg(DROP_BATCH);
                }
            }
        }
        let found: Vec<Vec<String>> = if pipe.is_empty() {
            Vec::new()
        } else {
            self.ask(p, &pipe).await?
        };
        Ok(found
            .iter()
            .flatten()
            .filter_map(|id| DeadId::parse(id))
            .collect())
    }

    /// The dead letters of a route whose message has this id, among those in the partition that the id names.
    /// Looks at a bounded number of dead letters.
    pub async fn dead_of_message(
        &self,
        route: &RouteName,
        id: &str,
    ) -> Result<Vec<DeadId>, StoreError> {
        let p = match partition_in(id) {
            Some(p) if p.0 < self.0.partitions.count() => p,
            _ if id.starts_with('~') => return Ok(Vec::new()),
            _ if self.0.order.has(route.as_str()) => return self.dead_of_name(route, id).await,
            _ => self.home_of(route, id),
        };
        self.dead_in(p, route, id).await
    }

    /// The same for an ordered route, whose names live with their keys.
    async fn dead_of_name(&self, route: &RouteName, id: &str) -> Result<Vec<DeadId>, StoreError> {
        let filter = DeadFilter {
            route: Some(route.clone()),
            ..DeadFilter::default()
        };
        let places: BTreeSet<Partition> = self
            .queues(&filter)
            .await?
            .into_iter()
            .map(|(p, _)| p)
            .collect();
        let mut found = Vec::new();
        for p in places {
            found.extend(self.dead_in(p, route, id).await?);
        }
        Ok(found)
    }

    /// The same for one partition.
    async fn dead_in(
        &self,
        p: Partition,
        route: &RouteName,
        id: &str,
    ) -> Result<Vec<DeadId>, StoreError> {
        let mut found = Vec::new();
        for invalid in [false, true] {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANGE")
                .arg(self.0.keys.queue(p, &queue_name(route.as_str(), invalid)))
                .arg(0)
                .arg(SEARCH_LIMIT);
            let (members,): (Vec<String>,) = self.ask(p, &pipe).await?;
            let ids: Vec<DeadId> = members.iter().filter_map(|id| DeadId::parse(id)).collect();
            let mut rest = &ids[..];
            while !rest.is_empty() {
                let bodies = self
                    .dead_outlines(&rest[..rest.len().min(DROP_BATCH)])
                    .await?;
                let (read, later) = rest.split_at(bodies.len().max(1).min(rest.len()));
                for (dead, body) in read.iter().zip(bodies) {
                    let bundle = body.and_then(|body| body.bundle.ok());
                    let entry = bundle.as_ref().and_then(|b| b.entries.first());
                    if entry
                        .and_then(|e| e.id.as_ref())
                        .is_some_and(|own| own.as_str() == id)
                    {
                        found.push(dead.clone());
                    }
                }
                rest = later;
            }
        }
        Ok(found)
    }

    /// The time when this became a dead letter. `None` if it is not there (any more).
    pub async fn dead_at(&self, id: &DeadId) -> Result<Option<UnixMs>, StoreError> {
        if id.partition().0 >= self.0.partitions.count() {
            return Ok(None);
        }
        let mut pipe = redis::pipe();
        pipe.cmd("ZSCORE")
            .arg(self.0.keys.queue(id.partition(), &id.queue()))
            .arg(id.as_str());
        let (score,): (Option<f64>,) = self.ask(id.partition(), &pipe).await?;
        Ok(score.map(|at| UnixMs(at as i64)))
    }

    /// Turns a dead letter into a bundle, due at the due time of its first message. The caller made the bundle from
    /// the kept message, or messages. A name that is taken stays with its owner. `false`: the dead letter was not
    /// there (any more).
    pub async fn redrive(&self, id: &DeadId, bundle: &Bundle) -> Result<bool, StoreError> {
        let p = id.partition();
        let keys = &self.0.keys;
        let Some(entry) = bundle
            .entries
            .first()
            .filter(|_| p.0 < self.0.partitions.count())
        else {
            return Ok(false);
        };
        let Some(route) = RouteName::new(id.route()) else {
            return Ok(false);
        };
        // By its `~` id too: that says where the message was, and not where it is now.
        let ids = bundle.entries.iter().enumerate();
        let names: Vec<(String, usize)> = ids
            .filter_map(|(index, entry)| Some((name_key(&route, entry.id.as_ref()?), index)))
            .collect();
        let with = ScriptVariant {
            ordered: self.0.order.has(route.as_str()),
            ..ScriptVariant::default()
        };
        let count = bundle.entries.len();
        loop {
            let fresh = self.0.order.id(&self.0.ids, &route, entry.due, count, None);
            let mut all = keys.fixed_of(p, with);
            all.extend([
                keys.queue(p, &id.queue()),
                keys.dead(id),
                keys.blob(p, &fresh),
                keys.due(p, fresh.due_set()),
            ]);
            let mut args: Vec<ScriptArg> = vec![
                id.as_str().into(),
                id.queue().into(),
                fresh.as_str().into(),
                entry.due.0.into(),
                ScriptArg::Blob(encode(bundle)),
            ];
            if with.ordered {
                let lowest = fresh.sequence();
                args.extend::<[ScriptArg; 2]>([lowest.into(), (lowest + count as u64 - 1).into()]);
            }
            args.push(names.len().into());
            for (name, index) in &names {
                args.extend::<[ScriptArg; 2]>([name.as_str().into(), (*index).into()]);
            }
            let call = ScriptCall {
                script: scripts::REDRIVE.of(with),
                op: "redrive",
                keys: all,
                args,
                blobs: Vec::new(),
            };
            let answer = text(&self.0.deads.run(p, call).await?)?;
            if let Some(given) = behind(&answer)? {
                self.0.order.seen(given);
                continue;
            }
            return match answer.as_str() {
                "o" => {
                    self.0.wake.stored(p, entry.due);
                    Ok(true)
                }
                "u" => Ok(false),
                _ => Err(shape("the answer to a redrive")),
            };
        }
    }

    /// The same, and records it in the trail of a route that has one.
    pub async fn redrive_by(
        &self,
        id: &DeadId,
        bundle: &Bundle,
        by: &Actor,
    ) -> Result<bool, StoreError> {
        // Its delivery, which may be sooner than the answer, comes later in the trail.
        let now = self.0.clock.now();
        let done = self.redrive(id, bundle).await?;
        if let Some(trail) = self.0.trails.named(id.route()).filter(|_| done) {
            let ids = bundle.entries.iter().filter_map(|entry| entry.id.as_ref());
            ids.for_each(|message| trail.redriven(message.as_str(), now, id, by));
        }
        Ok(done)
    }

    /// Drops dead letters of any partition for good. Answers for each, in order, whether it was there.
    pub async fn drop_dead(&self, ids: &[DeadId]) -> Result<Vec<bool>, StoreError> {
        let mut of_partition: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        for (at, id) in ids.iter().enumerate() {
            if id.partition().0 < self.0.partitions.count() {
                of_partition.entry(id.partition()).or_default().push(at);
            }
        }
        let mut dropped = vec![false; ids.len()];
        for (p, places) in of_partition {
            for places in places.chunks(DROP_BATCH) {
                let some: Vec<DeadId> = places.iter().map(|&at| ids[at].clone()).collect();
                let letters = self.drop_some(p, &some).await?;
                if letters.len() != some.len() {
                    return Err(shape("the answer to a drop"));
                }
                for (&at, letter) in places.iter().zip(letters.chars()) {
                    dropped[at] = letter == 'o';
                }
            }
        }
        Ok(dropped)
    }

    /// The same, and records it in the trails of the routes that have one.
    pub async fn drop_dead_by(&self, ids: &[DeadId], by: &Actor) -> Result<Vec<bool>, StoreError> {
        let traced = ids
            .iter()
            .filter(|id| self.0.trails.named(id.route()).is_some());
        let traced: Vec<DeadId> = traced.cloned().collect();
        let names = self.message_ids(&traced).await?;
        let dropped = self.drop_dead(ids).await?;
        let now = self.0.clock.now();
        for (dead, _) in ids.iter().zip(&dropped).filter(|(_, dropped)| **dropped) {
            if let Some((trail, id)) = self.0.trails.named(dead.route()).zip(names.get(dead)) {
                trail.dropped_dead(id.as_str(), now, dead, by);
            }
        }
        Ok(dropped)
    }

    /// The message ids of dead letters. Dead letters that cannot be read, or whose message has no id, are left out.
    async fn message_ids(&self, dead: &[DeadId]) -> Result<BTreeMap<DeadId, Text>, StoreError> {
        let mut ids = BTreeMap::new();
        let mut rest = dead;
        while !rest.is_empty() {
            let bodies = self
                .dead_outlines(&rest[..rest.len().min(DROP_BATCH)])
                .await?;
            let (read, later) = rest.split_at(bodies.len().max(1).min(rest.len()));
            for (dead, body) in read.iter().zip(bodies) {
                let bundle = body.and_then(|body| body.bundle.ok());
                let id = bundle
                    .as_ref()
                    .and_then(|b| b.entries.first())
                    .and_then(|entry| entry.id.clone());
                ids.extend(id.map(|id| (dead.clone(), id)));
            }
            rest = later;
        }
        Ok(ids)
    }

    async fn drop_some(&self, p: Partition, ids: &[DeadId]) -> Result<String, StoreError> {
        let (queues, places) = queues_of(ids);
        let mut keys = self.0.keys.fixed(p);
        keys.extend(queues.iter().map(|queue| self.0.keys.queue(p, queue)));
        keys.extend(ids.iter().map(|id| self.0.keys.dead(id)));
        let mut args: Vec<ScriptArg> = vec![queues.len().into()];
        args.extend(queues.into_iter().map(ScriptArg::Text));
        args.extend(
            ids.iter()
                .zip(places)
                .flat_map(|(id, place)| [id.as_str().into(), place.into()]),
        );
        let call = ScriptCall {
            script: &scripts::DROP_DEAD,
            op: "drop",
            keys,
            args,
            blobs: Vec::new(),
        };
        text(&self.0.deads.run(p, call).await?)
    }
}

/// Reports whether the filter selects a dead letter by its message. None whose message cannot be read.
fn has_message(body: &DeadBody, filter: &DeadFilter) -> bool {
    let Ok(bundle) = &body.bundle else {
        return false;
    };
    let Some(entry) = bundle.entries.first() else {
        return false;
    };
    let id = entry.id.as_ref().map_or("", Text::as_str);
    filter.message.lets_through(id, entry)
}

/// One read of some dead-letter queues.
struct DeadReading {
    marks: Vec<DeadMark>,
    /// Set if the read showed everything.
    whole: bool,
}
