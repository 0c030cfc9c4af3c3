//! Reads what is due: the earliest due set of each route and partition, and for routes that can be served the
//! following due sets. The cost grows with the number of routes that have something due, not with the number of
//! due sets. A route that nobody serves shows one due set a partition, however much of it is overdue.

use std::collections::BTreeMap;

use redis::cluster_routing::Slot;
use redis::{Cmd, Value};

use crate::domain::{Partition, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::model::bundle::{due_set_at, slice_of, slice_start};
use crate::store::model::heads::PastHeads;
use crate::store::{Head, HeadsSeen, Store, StoreError, UnservedHeads};

/// Most due sets of one route and partition that one read shows: most of a day.
const ROUTE_DUE_SETS: usize = 64;

/// Limits and filters of a read of due sets.
pub struct HeadsQuery<'a> {
    /// Due sets of an open route that are due by this moment are all shown, in a second trip if there is more
    /// than one.
    pub until: UnixMs,
    /// The earliest due set of each route is shown if it is due by this moment.
    pub later: UnixMs,
    /// Heads due before this moment are read again only when they have changed, if most of them are not served.
    pub past: UnixMs,
    /// Reports whether anything behind a head can be claimed now.
    pub open: &'a (dyn Fn(&Head) -> bool + Sync),
    /// Reports whether a read has to show a head.
    pub served: &'a (dyn Fn(&Head) -> bool + Sync),
}

impl Store {
    /// The earliest due set of every route in these partitions, if it is due by `until`. One trip a node. In a
    /// cluster, partitions of a node that is away are left out. `Err` if no node answers.
    pub async fn heads(
        &self,
        partitions: &[Partition],
        until: UnixMs,
    ) -> Result<Vec<Head>, StoreError> {
        self.due_heads(partitions, until, until, &|_| false)
            .await
            .map(|result| result.heads)
    }

    /// The earliest due set of every route that is due by `later`. Of each `open` route also the following due
    /// sets that are due by `until`, in a second trip if there is more than one.
    pub async fn due_heads(
        &self,
        partitions: &[Partition],
        until: UnixMs,
        later: UnixMs,
        open: &(dyn Fn(&Head) -> bool + Sync),
    ) -> Result<HeadsSeen, StoreError> {
        let query = HeadsQuery {
            until,
            later,
            past: UnixMs(i64::MIN),
            open,
            served: &|_| true,
        };
        self.served_heads(partitions, &query, &mut UnservedHeads::default())
            .await
    }

    /// The same as [`Store::due_heads`], without reading unserved heads that have not changed.
    pub async fn served_heads(
        &self,
        partitions: &[Partition],
        query: &HeadsQuery<'_>,
        unserved: &mut UnservedHeads,
    ) -> Result<HeadsSeen, StoreError> {
        let mut seen = self.changed_heads(partitions, query, unserved).await?;
        let again: Vec<Partition> = seen
            .iter()
            .filter(|(_, heads)| heads.is_none())
            .map(|(p, _)| *p)
            .collect();
        if !again.is_empty() {
            seen.retain(|_, heads| heads.is_some());
            let commands = again
                .iter()
                .map(|&p| self.heads_between(p, None, query.later));
            let found: Vec<Option<Vec<(String, f64)>>> =
                in_part(self.0.side.gather(commands.collect()).await)?;
            for (p, list) in again.into_iter().zip(found) {
                let Some(list) = list else { continue };
                let heads = heads_of(p, list);
                unserved.learn(p, &heads, query.past, query.served);
                seen.insert(p, Some(heads));
            }
        }
        let mut result = HeadsSeen::default();
        let mut longer = Vec::new();
        for (partition, heads) in seen {
            result.partitions.insert(partition);
            for head in heads.into_iter().flatten() {
                if head.due > query.until || slice_of(head.due) >= slice_of(query.until) {
                    result.heads.push(head);
                } else if (query.open)(&head) {
                    longer.push(head);
                } else {
                    result
                        .beyond
                        .insert(head.partition_route(), slice_start(slice_of(head.due) + 1));
                    result.heads.push(head);
                }
            }
        }
        if !longer.is_empty() {
            self.add_due_sets(longer, query.until, &mut result).await?;
        }
        Ok(result)
    }

    /// The heads to show, by partition, where the unserved heads are unchanged. `None` for a partition that has
    /// to be read as a whole. Partitions of a node that is away are left out.
    async fn changed_heads(
        &self,
        partitions: &[Partition],
        query: &HeadsQuery<'_>,
        unserved: &UnservedHeads,
    ) -> Result<BTreeMap<Partition, Option<Vec<Head>>>, StoreError> {
        let (known, unknown): (Vec<Partition>, Vec<Partition>) =
            partitions.iter().partition(|&&p| unserved.of(p).is_some());
        let mut seen: BTreeMap<_, _> = unknown.into_iter().map(|p| (p, None)).collect();
        let known: Vec<(Partition, &PastHeads)> = known
            .into_iter()
            .filter_map(|p| unserved.of(p).map(|past| (p, past)))
            .collect();
        if known.is_empty() {
            return Ok(seen);
        }
        let mut commands = Vec::with_capacity(known.len() * 2);
        for (p, past) in &known {
            let mut count = redis::cmd("ZCOUNT");
            count
                .arg(self.0.keys.of(*p, "heads"))
                .arg("-inf")
                .arg(format!("({}", past.until.0));
            commands.push((Keys::slot(*p), count));
            commands.push(self.heads_between(*p, Some(past.until), query.later));
            let served = past
                .served
                .iter()
                .map(|head| self.due_sets_of(head, past.until, 1));
            commands.extend(served.map(|due_set| (Keys::slot(*p), due_set)));
        }
        let mut answers = in_part::<Value>(self.0.side.gather(commands).await)?.into_iter();
        for (p, past) in known {
            let of_partition: Vec<Option<Value>> =
                answers.by_ref().take(2 + past.served.len()).collect();
            let Some(answers) = of_partition.into_iter().collect() else {
                continue;
            };
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

    /// Adds the due sets that are due by `until` of the routes and partitions of these heads.
    async fn add_due_sets(
        &self,
        heads: Vec<Head>,
        until: UnixMs,
        result: &mut HeadsSeen,
    ) -> Result<(), StoreError> {
        let commands = heads.iter().map(|head| {
            (
                Keys::slot(head.partition),
                self.due_sets_of(head, until, ROUTE_DUE_SETS + 1),
            )
        });
        let found: Vec<Option<Vec<String>>> =
            in_part(self.0.side.gather(commands.collect()).await)?;
        for (head, places) in heads.into_iter().zip(found) {
            let Some(places) = places else {
                // The node has just gone away: nothing is known of what else is due there.
                result.partitions.remove(&head.partition);
                continue;
            };
            let mut due_sets = places.iter().filter_map(|place| due_set_at(place));
            let shown = due_sets.by_ref().take(ROUTE_DUE_SETS);
            result.heads.extend(shown.map(|(due_set, due)| Head {
                due_set,
                due,
                ..head.clone()
            }));
            if let Some((_, due)) = due_sets.next() {
                result.beyond.insert(head.partition_route(), due);
            }
        }
        Ok(())
    }

    /// The command that reads the first due sets of a head's route and partition that are due by `until`.
    fn due_sets_of(&self, head: &Head, until: UnixMs, most: usize) -> Cmd {
        let mut due_sets = redis::cmd("ZRANGEBYLEX");
        due_sets.arg(self.0.keys.of(head.partition, "shelves"));
        due_sets.arg(format!("[{}/", head.route()));
        due_sets.arg(format!(
            "({}/{:016}",
            head.route(),
            until.0.saturating_add(1)
        ));
        due_sets.arg("LIMIT").arg(0).arg(most);
        due_sets
    }
}

fn heads_of(partition: Partition, list: Vec<(String, f64)>) -> Vec<Head> {
    list.into_iter()
        .map(|(due_set, due)| Head {
            partition,
            due_set,
            due: UnixMs(due as i64),
        })
        .collect()
}

/// The heads that a read has to show of a partition. The answers are: how many heads are due before the moment,
/// the heads that are due later, and the first due set of each served route among the earlier ones. `None` if
/// one of the earlier heads has changed.
fn unchanged(
    p: Partition,
    past: &PastHeads,
    answers: Vec<Value>,
) -> Result<Option<Vec<Head>>, StoreError> {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil);
    let count: usize = read(next())?;
    let mut heads = heads_of(p, read(next())?);
    for head in &past.served {
        let places: Vec<String> = read(next())?;
        let first = places.first().and_then(|place| due_set_at(place));
        let Some((due_set, due)) = first.filter(|(_, due)| *due < past.until) else {
            return Ok(None);
        };
        heads.push(Head {
            due_set,
            due,
            ..head.clone()
        });
    }
    Ok((count == past.count).then_some(heads))
}

/// The answers of the nodes that could be asked. `Err` if none could.
fn in_part<T: redis::FromRedisValue>(
    answers: Vec<Result<Value, StoreError>>,
) -> Result<Vec<Option<T>>, StoreError> {
    if let (true, Some(Err(why))) = (answers.iter().all(Result::is_err), answers.first()) {
        return Err(why.clone());
    }
    answers
        .into_iter()
        .map(|answer| answer.ok().map(read).transpose())
        .collect()
}
