//! Looks at what is due: of each route and partition the earliest shelf, and of routes that can be served the next
//! ones. What a look costs grows with the routes that have something due, not with their shelves: a route that
//! nobody serves shows one shelf a partition, however much of it is overdue.

use redis::{Cmd, Value};

use super::Store;
use super::keys::Keys;
use super::link::read;
use crate::domain::{Partition, UnixMs};
use crate::store::bundle::{shelf_at, slice_of, slice_start};
use crate::store::{Head, Looked, StoreError};

/// Shelves of one route and partition that one look shows at most: most of a day.
const SHELVES: usize = 64;

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
        let commands = partitions.iter().map(|&p| {
            let mut earliest = redis::cmd("ZRANGEBYSCORE");
            earliest.arg(self.0.keys.of(p, "heads")).arg("-inf").arg(later.0).arg("WITHSCORES");
            (Keys::slot(p), earliest)
        });
        let found: Vec<Option<Vec<(String, f64)>>> = in_part(self.0.side.gather(commands.collect()).await)?;
        let (mut looked, mut longer) = (Looked::default(), Vec::new());
        for (&partition, list) in partitions.iter().zip(found) {
            let Some(list) = list else { continue };
            looked.partitions.insert(partition);
            for (shelf, due) in list {
                let head = Head { partition, shelf, due: UnixMs(due as i64) };
                if head.due > until || slice_of(head.due) >= slice_of(until) {
                    looked.heads.push(head);
                } else if open(&head) {
                    longer.push(head);
                } else {
                    looked.beyond.insert(head.line(), slice_start(slice_of(head.due) + 1));
                    looked.heads.push(head);
                }
            }
        }
        if !longer.is_empty() {
            self.look_on(longer, until, &mut looked).await?;
        }
        Ok(looked)
    }

    /// The shelves that are due by `until` of the routes and partitions of these heads.
    async fn look_on(&self, heads: Vec<Head>, until: UnixMs, looked: &mut Looked) -> Result<(), StoreError> {
        let commands = heads.iter().map(|head| (Keys::slot(head.partition), self.shelves_of(head, until)));
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

    fn shelves_of(&self, head: &Head, until: UnixMs) -> Cmd {
        let mut shelves = redis::cmd("ZRANGEBYLEX");
        shelves.arg(self.0.keys.of(head.partition, "shelves"));
        shelves.arg(format!("[{}/", head.route()));
        shelves.arg(format!("({}/{:016}", head.route(), until.0.saturating_add(1)));
        shelves.arg("LIMIT").arg(0).arg(SHELVES + 1);
        shelves
    }
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
