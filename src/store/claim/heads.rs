//! Looks at what is due: of each route and partition the earliest shelf, and of routes that can be served the next
//! ones. What a look costs grows with the routes that have something due, not with their shelves: a route that
//! nobody serves shows one shelf a partition, however much of it is overdue.

use std::collections::BTreeMap;

use redis::cluster_routing::Slot;
use redis::{Cmd, Value};

use crate::domain::{Partition, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{shelf_at, slice_of, slice_start};
use crate::store::model::heads::Past;
use crate::store::{Head, Looked, Store, StoreError, Unserved};

/// Shelves of one route and partition that one look shows at most: most of a day.
const SHELVES: usize = 64;

/// What a look shows.
pub struct Looking<'a> {
    /// Of an open route everything that is due by then, in a second trip where it has more than one slice by then.
    pub until: UnixMs,
    /// Of each route the earliest shelf, if it is due by then.
    pub later: UnixMs,
    /// Heads due before this moment are read again only when they have changed, where most are not served.
    pub past: UnixMs,
    /// Whether something of what a head stands for can be claimed now.
    pub open: &'a (dyn Fn(&Head) -> bool + Sync),
    /// Whether a look has to show a head.
    pub served: &'a (dyn Fn(&Head) -> bool + Sync),
}

impl Store {
    /// The earliest shelf of every route in these partitions, if it is due by `until`: one trip a node for all of
    /// them. In a cluster those of a node that is away are left out; `Err` if none can be had.
    pub async fn heads(&self, partitions: &[Partition], until: UnixMs) -> Result<Vec<Head>, StoreError> {
        self.look(partitions, until, until, &|_| false).await.map(|looked| looked.heads)
    }

    /// The same of what is due by `later`; and what of an `open` route is due by `until`: its earliest shelves, in a
    /// second trip where it has more than one slice by then.
    pub async fn look(
        &self,
        partitions: &[Partition],
        until: UnixMs,
        later: UnixMs,
        open: &(dyn Fn(&Head) -> bool + Sync),
    ) -> Result<Looked, StoreError> {
        let looking = Looking { until, later, past: UnixMs(i64::MIN), open, served: &|_| true };
        self.look_past(partitions, &looking, &mut Unserved::default()).await
    }

    /// The same without what is `unserved` and has not changed.
    pub async fn look_past(
        &self,
        partitions: &[Partition],
        looking: &Looking<'_>,
        unserved: &mut Unserved,
    ) -> Result<Looked, StoreError> {
        let mut seen = self.changed_heads(partitions, looking, unserved).await?;
        let again: Vec<Partition> =
            seen.iter().filter(|(_, heads)| heads.is_none()).map(|(p, _)| *p).collect();
        if !again.is_empty() {
            seen.retain(|_, heads| heads.is_some());
            let commands = again.iter().map(|&p| self.heads_between(p, None, looking.later));
            let found: Vec<Option<Vec<(String, f64)>>> =
                in_part(self.0.side.gather(commands.collect()).await)?;
            for (p, list) in again.into_iter().zip(found) {
                let Some(list) = list else { continue };
                let heads = heads_of(p, list);
                unserved.learn(p, &heads, looking.past, looking.served);
                seen.insert(p, Some(heads));
            }
        }
        let (mut looked, mut longer) = (Looked::default(), Vec::new());
        for (partition, heads) in seen {
            looked.partitions.insert(partition);
            for head in heads.into_iter().flatten() {
                if head.due > looking.until || slice_of(head.due) >= slice_of(looking.until) {
                    looked.heads.push(head);
                } else if (looking.open)(&head) {
                    longer.push(head);
                } else {
                    looked.beyond.insert(head.line(), slice_start(slice_of(head.due) + 1));
                    looked.heads.push(head);
                }
            }
        }
        if !longer.is_empty() {
            self.look_on(longer, looking.until, &mut looked).await?;
        }
        Ok(looked)
    }

    /// By partition the heads that a look has to show, of those whose unserved heads are as they were; `None` for
    /// those that have to be read as a whole. Those of a node that is away are left out.
    async fn changed_heads(
        &self,
        partitions: &[Partition],
        looking: &Looking<'_>,
        unserved: &Unserved,
    ) -> Result<BTreeMap<Partition, Option<Vec<Head>>>, StoreError> {
        let (known, unknown): (Vec<Partition>, Vec<Partition>) =
            partitions.iter().partition(|&&p| unserved.of(p).is_some());
        let mut seen: BTreeMap<_, _> = unknown.into_iter().map(|p| (p, None)).collect();
        let known: Vec<(Partition, &Past)> =
            known.into_iter().filter_map(|p| unserved.of(p).map(|past| (p, past))).collect();
        if known.is_empty() {
            return Ok(seen);
        }
        let mut commands = Vec::with_capacity(known.len() * 2);
        for (p, past) in &known {
            let mut count = redis::cmd("ZCOUNT");
            count.arg(self.0.keys.of(*p, "heads")).arg("-inf").arg(format!("({}", past.until.0));
            commands.push((Keys::slot(*p), count));
            commands.push(self.heads_between(*p, Some(past.until), looking.later));
            let served = past.served.iter().map(|head| self.shelves_of(head, past.until, 1));
            commands.extend(served.map(|shelf| (Keys::slot(*p), shelf)));
        }
        let mut answers = in_part::<Value>(self.0.side.gather(commands).await)?.into_iter();
        for (p, past) in known {
            let of_partition: Vec<Option<Value>> = answers.by_ref().take(2 + past.served.len()).collect();
            let Some(answers) = of_partition.into_iter().collect() else { continue };
            seen.insert(p, unchanged(p, past, answers)?);
        }
        Ok(seen)
    }

    fn heads_between(&self, p: Partition, from: Option<UnixMs>, later: UnixMs) -> (Slot, Cmd) {
        let mut earliest = redis::cmd("ZRANGEBYSCORE");
        earliest.arg(self.0.keys.of(p, "heads"));
        earliest.arg(from.map_or_else(|| "-inf".to_owned(), |from| from.0.to_string()));
        earliest.arg(later.0).arg("WITHSCORES");
        (Keys::slot(p), earliest)
    }

    /// The shelves that are due by `until` of the routes and partitions of these heads.
    async fn look_on(&self, heads: Vec<Head>, until: UnixMs, looked: &mut Looked) -> Result<(), StoreError> {
        let commands =
            heads.iter().map(|head| (Keys::slot(head.partition), self.shelves_of(head, until, SHELVES + 1)));
        let found: Vec<Option<Vec<String>>> = in_part(self.0.side.gather(commands.collect()).await)?;
        for (head, places) in heads.into_iter().zip(found) {
            let Some(places) = places else {
                // Its node has just gone away: nothing is known of what else is due there.
                looked.partitions.remove(&head.partition);
                continue;
            };
            let mut shelves = places.iter().filter_map(|place| shelf_at(place));
            let shown = shelves.by_ref().take(SHELVES);
            looked.heads.extend(shown.map(|(shelf, due)| Head { shelf, due, ..head.clone() }));
            if let Some((_, due)) = shelves.next() {
                looked.beyond.insert(head.line(), due);
            }
        }
        Ok(())
    }

    /// The first shelves of a head's route and partition that are due by `until`.
    fn shelves_of(&self, head: &Head, until: UnixMs, most: usize) -> Cmd {
        let mut shelves = redis::cmd("ZRANGEBYLEX");
        shelves.arg(self.0.keys.of(head.partition, "shelves"));
        shelves.arg(format!("[{}/", head.route()));
        shelves.arg(format!("({}/{:016}", head.route(), until.0.saturating_add(1)));
        shelves.arg("LIMIT").arg(0).arg(most);
        shelves
    }
}

fn heads_of(partition: Partition, list: Vec<(String, f64)>) -> Vec<Head> {
    let head = |(shelf, due)| Head { partition, shelf, due: UnixMs(due as i64) };
    list.into_iter().map(head).collect()
}

/// What a look has to show of a partition by its answers: how many heads are due before the moment, those that are
/// due later, and the first shelf of each served route that was due before. `None` if something has changed among
/// what is due before.
fn unchanged(p: Partition, past: &Past, answers: Vec<Value>) -> Result<Option<Vec<Head>>, StoreError> {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil);
    let count: usize = read(next())?;
    let mut heads = heads_of(p, read(next())?);
    for head in &past.served {
        let places: Vec<String> = read(next())?;
        let first = places.first().and_then(|place| shelf_at(place));
        let Some((shelf, due)) = first.filter(|(_, due)| *due < past.until) else { return Ok(None) };
        heads.push(Head { shelf, due, ..head.clone() });
    }
    Ok((count == past.count).then_some(heads))
}

/// Lists of those that could be asked; `Err` if nobody could.
fn in_part<T: redis::FromRedisValue>(
    answers: Vec<Result<Value, StoreError>>,
) -> Result<Vec<Option<T>>, StoreError> {
    if let (true, Some(Err(why))) = (answers.iter().all(Result::is_err), answers.first()) {
        return Err(why.clone());
    }
    answers.into_iter().map(|answer| answer.ok().map(read).transpose()).collect()
}
