//! What ingress asks of the store, in order: one call a partition at a time, each taking all that has come
//! meanwhile. Batches grow with the load and wait for nothing when it is quiet.
//!
//! Order is what makes names work: a named record or command is judged after every earlier one of its name,
//! because both live in one partition, and a partition's calls are made one after another.

mod cut;
mod plan;
mod reschedule;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::plan::Plan;
use super::call::keys::Keys;
use super::call::numbered::{CallLane, Turn};
use super::call::reply::{shape, text};
use super::claim::dedupe::Memory;
use super::claim::key_order::Order;
use super::connection::link::Link;
use super::handle::Ids;
use super::model::bundle::BundleId;
use super::query::find::Place;
use super::{Bundle, DeadId, DeadLetter, Parts, Store, StoreError, Wake, WriteOp, WriteResult, encode};
use crate::backoff::Backoff;
use crate::domain::{Entry, Flags, Partition, RouteName, Text};

/// A call takes at most so many operations and bytes.
const CALL_OPS: usize = 48;
const CALL_BYTES: usize = 1 << 20;
/// Looks at the names of a call before it is given up: others change them too, but not this often.
const LOOKS: usize = 50;
/// Submissions that may wait for one partition.
const QUEUE: usize = 64;

/// One queue and one task per partition.
pub(super) struct Writer {
    queues: Vec<mpsc::Sender<Submission>>,
    lane: Arc<CallLane>,
    /// For commands of people: they have no place in the order of what is stored, and what frees memory must not wait
    /// behind what there is no memory for.
    commands: Vec<PartitionWriter>,
    force: CancellationToken,
}

struct Submission {
    ops: Vec<WriteOp>,
    done: oneshot::Sender<Vec<Vec<WriteResult>>>,
}

/// The answer to come of operations that have their place in the order.
pub struct Written(oneshot::Receiver<Vec<Vec<WriteResult>>>);

impl Written {
    /// Waits for it: one result a message or command of each operation. `Err` only when shutting down is
    /// forced.
    pub async fn results(self) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        self.0.await.map_err(|_| stopped())
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("shutting down".to_owned())
}

/// A partition's writing end: takes what has come, makes one call of it, answers all.
struct PartitionWriter {
    partition: Partition,
    lane: Arc<CallLane>,
    keys: Keys,
    ids: Ids,
    memory: Memory,
    order: Order,
    wake: Wake,
}

impl Store {
    /// Does these things, in order, in one partition; answers one result a message or command of each
    /// operation once they are in the store. Waits while the store is away or full; `Err` only when
    /// shutting down is forced. Dropped in the middle, it may still be applied.
    pub async fn write(&self, p: Partition, ops: Vec<WriteOp>) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        self.enqueue(p, ops).await?.results().await
    }

    /// Cancels or moves a message for somebody who waits for the answer: beside what is being stored, not behind it.
    /// Works at `maxmemory`. Waits while the store is away; `Err` if shutting down is forced. Dropped in the middle,
    /// it may still be applied.
    pub async fn command(&self, p: Partition, op: WriteOp) -> Result<WriteResult, StoreError> {
        let Writer { commands, force, .. } = &self.0.writer;
        let writer = &commands[usize::from(p.0)];
        let ops = [&op];
        let done = async {
            let mut turn = writer.lane.turn(p).await;
            writer.until_done(&mut turn, &ops).await
        };
        let results = tokio::select! {
            () = force.cancelled() => return Err(stopped()),
            results = done => results,
        };
        results.concat().pop().ok_or_else(|| shape("the answer to a command"))
    }

    /// Takes its place in the partition's order and returns; the answer comes later. Waits only while too
    /// much is waiting already.
    pub async fn enqueue(&self, p: Partition, ops: Vec<WriteOp>) -> Result<Written, StoreError> {
        let (done, answer) = oneshot::channel();
        let queue = &self.0.writer.queues[usize::from(p.0)];
        queue.send(Submission { ops, done }).await.map_err(|_| stopped())?;
        Ok(Written(answer))
    }
}

impl Writer {
    pub(super) fn start(
        (lane, command_lane): (&Arc<CallLane>, &Arc<CallLane>),
        keys: &Keys,
        (memory, order): (&Memory, &Order),
        parts: &Parts<'_>,
        wake: &Wake,
        force: &CancellationToken,
    ) -> Self {
        let writer = |partition, lane: &Arc<CallLane>| PartitionWriter {
            partition,
            lane: lane.clone(),
            keys: keys.clone(),
            ids: Ids::new(),
            memory: memory.clone(),
            order: order.clone(),
            wake: wake.clone(),
        };
        let start = |partition| {
            let (queue, waiting) = mpsc::channel(QUEUE);
            let (writer, force) = (writer(partition, lane), force.clone());
            parts.tasks.spawn("store:writer", async move {
                tokio::select! {
                    () = force.cancelled() => {}
                    () = writer.run(waiting) => {}
                }
            });
            queue
        };
        let partitions = parts.config.partitions;
        Self {
            queues: partitions.all().map(start).collect(),
            lane: lane.clone(),
            commands: partitions.all().map(|p| writer(p, command_lane)).collect(),
            force: force.clone(),
        }
    }

    /// Whether its connection is there.
    pub(super) fn is_up(&self) -> bool {
        self.lane.link().is_up()
    }

    /// Why a call has failed, if one is being made again: the store is full, or not confirmed, or away.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.lane.waits_for()
    }

    /// Its way to the store, on which what was written is waited for.
    pub(super) fn link(&self) -> &Link {
        self.lane.link()
    }
}

impl PartitionWriter {
    async fn run(self, mut waiting: mpsc::Receiver<Submission>) {
        while let Some(first) = waiting.recv().await {
            let mut batch = vec![first];
            let (mut ops, mut bytes) = (batch[0].ops.len(), size(&batch[0].ops));
            while ops < CALL_OPS && bytes < CALL_BYTES {
                let Ok(next) = waiting.try_recv() else { break };
                ops += next.ops.len();
                bytes += size(&next.ops);
                batch.push(next);
            }
            self.serve(batch).await;
        }
    }

    /// Makes the calls of a batch and answers each submission when all of its operations are done.
    async fn serve(&self, batch: Vec<Submission>) {
        let mut turn = self.lane.turn(self.partition).await;
        let all: Vec<&WriteOp> = batch.iter().flat_map(|s| &s.ops).collect();
        let mut results: Vec<Vec<WriteResult>> = Vec::with_capacity(all.len());
        let mut rest = &all[..];
        while !rest.is_empty() {
            let run = if reads_first(rest[0]) { 1 } else { self.run_length(rest).await };
            let (now, later) = rest.split_at(run);
            match now {
                [WriteOp::Store { route, on_duplicate, bundle }] if self.touches_many(now).await => {
                    let mut of_bundle = Vec::with_capacity(bundle.entries.len());
                    for bundle in cut::pieces(bundle) {
                        let (route, on_duplicate) = (route.clone(), *on_duplicate);
                        let piece = WriteOp::Store { route, on_duplicate, bundle };
                        of_bundle.extend(self.until_done(&mut turn, &[&piece]).await.concat());
                    }
                    results.push(of_bundle);
                }
                _ => results.extend(self.until_done(&mut turn, now).await),
            }
            rest = later;
        }
        drop(turn);
        let mut results = results.into_iter();
        for submission in batch {
            let own = results.by_ref().take(submission.ops.len()).collect();
            // A caller that has gone away has dropped its receipts: nothing to tell it.
            drop(submission.done.send(own));
        }
    }

    async fn until_done(&self, turn: &mut Turn<'_>, ops: &[&WriteOp]) -> Vec<Vec<WriteResult>> {
        let mut failures = 0;
        loop {
            let done = match ops {
                [WriteOp::Reschedule { route, id, due, fallback, of }] => {
                    let moved =
                        self.reschedule(turn, (route, id), of.as_ref(), *due, fallback.as_ref()).await;
                    moved.map(|r| vec![vec![r]])
                }
                [WriteOp::Cancel { route, id, of: Some(of) }] => {
                    self.cancel_of(turn, (route, id), of, ops).await.map(|r| vec![vec![r]])
                }
                _ => self.write(turn, ops).await,
            };
            match done {
                Ok(results) => return results,
                Err(why) => {
                    failures += 1;
                    let (p, away) = (self.partition.0, matches!(why, StoreError::Unavailable(_)));
                    // That the store is away is said once, by its connection.
                    if failures == 1 && !away {
                        error!(partition = p, error = %why, "cannot write to this partition; trying on");
                    }
                    tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
                }
            }
        }
    }

    async fn write(
        &self,
        turn: &mut Turn<'_>,
        ops: &[&WriteOp],
    ) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        for _ in 0..LOOKS {
            let meant = self.look_up(ops).await?;
            let plan = Plan::new(self, ops, &meant);
            let answer = turn.run(self.partition, plan.call).await?;
            let letters = text(&answer)?;
            if letters == "CHANGED" {
                continue;
            }
            if let Some(given) = letters.strip_prefix("BEHIND ") {
                self.order.seen(given.parse().map_err(|_| shape("a stamp"))?);
                continue;
            }
            for due in plan.dues {
                self.wake.stored(self.partition, due);
            }
            return split(ops, &letters);
        }
        Err(never_settles())
    }

    /// What the names of these operations mean right now: only to declare the keys behind them.
    async fn look_up(&self, ops: &[&WriteOp]) -> Result<Vec<BundleId>, StoreError> {
        let names: Vec<String> = ops.iter().flat_map(|op| names_of(op)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let places = self.places(&names).await?;
        let mut ids: Vec<BundleId> = places.into_iter().flatten().map(|place| place.bundle).collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// Where these names say that their messages are; a `~` id without an entry says so itself.
    async fn places(&self, names: &[String]) -> Result<Vec<Option<Place>>, StoreError> {
        let connected = self.lane.link().to(Keys::slot(self.partition)).await?;
        let mut connection = connected.connection.clone();
        let mut hmget = redis::cmd("HMGET");
        hmget.arg(self.keys.of(self.partition, "names")).arg(names);
        let found: Vec<Option<String>> = hmget
            .query_async(&mut connection)
            .await
            .map_err(|error| self.lane.link().judge(&connected, &error))?;
        let place =
            |(name, listed): (&String, Option<String>)| Place::of(self.partition, name, listed.as_deref());
        Ok(names.iter().zip(found).map(place).collect())
    }
}

/// What reads before it writes goes alone; the others go together.
fn reads_first(op: &WriteOp) -> bool {
    matches!(op, WriteOp::Reschedule { .. } | WriteOp::Cancel { of: Some(_), .. })
}

/// A name that means something else at every look: only damage does that.
fn never_settles() -> StoreError {
    StoreError::Damaged(format!("a name changed its meaning {LOOKS} times between a look and the call"))
}

/// Cuts the letters of an answer back into results, one list an operation.
fn split(ops: &[&WriteOp], letters: &str) -> Result<Vec<Vec<WriteResult>>, StoreError> {
    let mut letters = letters.chars();
    let mut next = || match letters.next() {
        Some('s') => Ok(WriteResult::Stored),
        Some('d') => Ok(WriteResult::Duplicate),
        Some('r') => Ok(WriteResult::Replaced),
        Some('c') => Ok(WriteResult::Cancelled),
        Some('f') => Ok(WriteResult::InFlight),
        Some('u') => Ok(WriteResult::Unknown),
        Some('p') => Ok(WriteResult::Published),
        _ => Err(shape("the answer to a write")),
    };
    ops.iter()
        .map(|op| match op {
            WriteOp::Store { bundle, .. } => {
                if bundle.entries.iter().any(|e| e.flags.has(Flags::NAMED)) {
                    bundle.entries.iter().map(|_| next()).collect()
                } else {
                    next().map(|result| vec![result; bundle.entries.len()])
                }
            }
            WriteOp::Cancel { .. } => next().map(|result| vec![result]),
            WriteOp::Bury(_) => Ok(vec![WriteResult::Stored]),
            WriteOp::Reschedule { .. } => Err(shape("a batch with a reschedule")),
        })
        .collect()
}

fn names_of(op: &WriteOp) -> Vec<String> {
    match op {
        WriteOp::Store { route, bundle, .. } => bundle
            .entries
            .iter()
            .filter(|e| e.flags.has(Flags::NAMED))
            .filter_map(|e| e.id.as_ref().map(|id| name_key(route, id)))
            .collect(),
        WriteOp::Cancel { route, id, .. } => vec![name_key(route, id)],
        WriteOp::Reschedule { .. } | WriteOp::Bury(_) => Vec::new(),
    }
}

fn size(ops: &[WriteOp]) -> usize {
    ops.iter().map(op_size).sum()
}

fn op_size(op: &WriteOp) -> usize {
    let of = |bundle: &Bundle| bundle.entries.iter().map(Entry::stored_size).sum();
    match op {
        WriteOp::Store { bundle, .. } => of(bundle),
        WriteOp::Bury(letter) => of(&letter.bundle),
        WriteOp::Reschedule { fallback, .. } => fallback.as_ref().map_or(64, of),
        WriteOp::Cancel { .. } => 64,
    }
}

/// A name's field in `names`: `route/id`. Routes hold no slash, so no two routes share one.
pub(super) fn name_key(route: &RouteName, id: &Text) -> String {
    format!("{route}/{id}")
}

/// What is kept of a dead letter.
pub(super) fn dead_blob(letter: &DeadLetter) -> Bytes {
    letter.raw.clone().unwrap_or_else(|| encode(&letter.bundle))
}

/// A dead letter's own id, in the store: route and reason can be read without its body.
pub(super) fn dead_id(letter: &DeadLetter, p: Partition, ids: &Ids) -> DeadId {
    DeadId::new(&letter.route, letter.reason, p, &ids.unique())
}

/// The graves of these, each once, and each one's place among them, from 1.
pub(super) fn graves(ids: &[DeadId]) -> (Vec<String>, Vec<usize>) {
    let mut graves: Vec<String> = Vec::new();
    let places = ids.iter().map(|id| {
        let grave = id.grave();
        let at = graves.iter().position(|g| *g == grave).unwrap_or_else(|| {
            graves.push(grave);
            graves.len() - 1
        });
        at + 1
    });
    let places = places.collect();
    (graves, places)
}

pub(super) fn parse_place(place: &str) -> Option<(BundleId, u32)> {
    let (id, index) = place.rsplit_once(' ')?;
    Some((BundleId::parse(id)?, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::MAX_CALL_NAMES;
    use crate::domain::{OnDuplicate, TargetRef, UnixMs, testing};

    fn store(messages: usize, named: bool) -> WriteOp {
        let route = testing::route().name.clone();
        let mut entry = testing::entry(UnixMs(0), b"");
        if named {
            (entry.id, entry.flags) = (Some("a".into()), entry.flags.with(Flags::NAMED));
        }
        let bundle = Bundle { target: TargetRef::Own, entries: Arc::new(vec![entry; messages]) };
        WriteOp::Store { route, on_duplicate: OnDuplicate::Keep, bundle }
    }

    #[test]
    fn a_call_is_bounded_in_operations_names_and_bytes() {
        let run = |ops: Vec<WriteOp>| cut::run_length(&ops.iter().collect::<Vec<_>>(), MAX_CALL_NAMES);
        let many = |op: &dyn Fn() -> WriteOp| (0..100).map(|_| op()).collect::<Vec<_>>();
        assert_eq!(run(many(&|| store(10, false))), CALL_OPS);
        assert_eq!(run(many(&|| store(100, true))), MAX_CALL_NAMES / 100);
        assert_eq!(run(many(&|| store(MAX_CALL_NAMES + 1, true))), 1, "one bundle goes whatever it brings");
        let bytes = op_size(&store(500, false));
        assert_eq!(run(many(&|| store(500, false))), (CALL_BYTES / bytes).min(CALL_OPS));
        let cancel = || WriteOp::Cancel { route: testing::route().name.clone(), id: "a".into(), of: None };
        assert_eq!(run(vec![store(MAX_CALL_NAMES, true), cancel()]), 1);
        assert_eq!(run(vec![store(1, true), cancel()]), 2);
    }
}
