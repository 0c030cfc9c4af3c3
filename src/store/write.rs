//! Writes of ingress, in order: one call of a partition at a time, each with everything that has come
//! meanwhile. Batches grow with the load and wait for nothing when it is quiet. `write/plan.rs` encodes the bodies into
//! blobs, and `call/numbered.rs` sends them beside `write.lua`, in one `MULTI`.
//!
//! Names need this order: a named record or command is judged after every earlier one of its name. Both live in
//! one partition, and a partition's calls are made one after another.

mod change;
mod cut;
mod growing;
mod names;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::change::Change;
use self::growing::{GrowingBundles, GrowthPlan};
use self::names::names_of;
use self::plan::WritePlan;
use super::call::ids::Ids;
use super::call::keys::Keys;
use super::call::numbered::{CallTurn, NumberedCalls};
use super::call::reply::{behind, shape, text};
use super::claim::dedupe::DeliveredNames;
use super::claim::key_order::KeyOrder;
use super::connection::link::StoreLink;
use super::trail::Trails;
use super::{Bundle, DeadId, Store, StoreDependencies, StoreError, WakeUps, WriteOp, WriteResult};
use crate::backoff::Backoff;
use crate::domain::{Entry, Partition, RouteName, StoreClock, UnixMs};

/// Most operations and bytes of a call.
const CALL_OPS: usize = 48;
const CALL_BYTES: usize = 1 << 20;
/// Attempts to read the names of a call before giving up. Others change them too, but not this often.
const NAME_READS: usize = 50;
/// Submissions that may wait for one partition.
const QUEUE_LEN: usize = 64;

/// One queue and one task per partition.
pub(super) struct StoreWriter {
    queues: Vec<mpsc::Sender<Submission>>,
    calls: Arc<NumberedCalls>,
    /// For commands of people. They have no place in the order of what is stored. A command that frees memory
    /// must not wait behind a write that lacks memory.
    commands: Vec<PartitionWriter>,
    force: CancellationToken,
}

struct Submission {
    ops: Vec<WriteOp>,
    done: oneshot::Sender<Vec<Vec<WriteResult>>>,
}

/// The coming answer to operations that have their place in the order.
pub struct PendingWrite(oneshot::Receiver<Vec<Vec<WriteResult>>>);

impl PendingWrite {
    /// Waits for the answer: one result for each message or command of each operation. `Err` only when shutdown
    /// is forced.
    pub async fn results(self) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        self.0.await.map_err(|_| stopped())
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("shutting down".to_owned())
}

/// The writing end of a partition: takes what has come, makes one call of it, answers all.
struct PartitionWriter {
    partition: Partition,
    calls: Arc<NumberedCalls>,
    keys: Keys,
    ids: Ids,
    delivered_names: DeliveredNames,
    order: KeyOrder,
    wake: WakeUps,
    trails: Trails,
    clock: Arc<StoreClock>,
    growing: Mutex<GrowingBundles>,
    /// The routes whose messages may join growing bundles.
    growing_routes: Arc<BTreeSet<RouteName>>,
}

impl Store {
    /// Applies these operations, in order, in one partition. Answers one result for each message or command of
    /// each operation once they are in the store. Waits while the store is away or full. `Err` only when
    /// shutdown is forced. Dropped in the middle, the write may still be applied.
    pub async fn write(
        &self,
        p: Partition,
        ops: Vec<WriteOp>,
    ) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        self.enqueue(p, ops).await?.results().await
    }

    /// Cancels, moves or replaces a message for somebody who waits for the answer: beside the writes of ingress, not
    /// behind them. A cancel and a move work at `maxmemory`. A replacement is answered [`StoreError::Full`] there. Waits
    /// while the store is away. `Err` if shutdown is forced. Dropped in the middle, the command may still be applied.
    pub async fn command(&self, p: Partition, op: WriteOp) -> Result<WriteResult, StoreError> {
        let results = self.commands(p, &[op]).await?;
        let result = results.into_iter().next();
        result.ok_or_else(|| shape("the answer to a command"))
    }

    /// The same for several messages of a partition, in order: one call of the store, or a few where there are many.
    pub async fn commands(
        &self,
        p: Partition,
        ops: &[WriteOp],
    ) -> Result<Vec<WriteResult>, StoreError> {
        let StoreWriter {
            commands, force, ..
        } = &self.0.writer;
        let writer = &commands[usize::from(p.0)];
        let ops: Vec<&WriteOp> = ops.iter().collect();
        let results = tokio::select! {
            () = force.cancelled() => return Err(stopped()),
            results = writer.carry_out(&ops) => results?,
        };
        Ok(results.concat())
    }

    /// Takes a place in the partition's order and returns. The answer comes later. Waits only while too much is
    /// waiting already.
    pub async fn enqueue(
        &self,
        p: Partition,
        ops: Vec<WriteOp>,
    ) -> Result<PendingWrite, StoreError> {
        let (done, answer) = oneshot::channel();
        let queue = &self.0.writer.queues[usize::from(p.0)];
        queue
            .send(Submission { ops, done })
            .await
            .map_err(|_| stopped())?;
        Ok(PendingWrite(answer))
    }
}

/// Parts of the store that every partition's writing end shares.
pub(super) struct WriteContext<'a> {
    /// Numbered calls of ingress.
    pub(super) calls: &'a Arc<NumberedCalls>,
    /// Numbered calls of people's commands.
    pub(super) command_calls: &'a Arc<NumberedCalls>,
    pub(super) keys: &'a Keys,
    pub(super) delivered_names: &'a DeliveredNames,
    pub(super) order: &'a KeyOrder,
    pub(super) wake: &'a WakeUps,
    pub(super) trails: &'a Trails,
    pub(super) clock: &'a Arc<StoreClock>,
    /// The routes whose messages may join growing bundles.
    pub(super) growing_routes: &'a Arc<BTreeSet<RouteName>>,
}

impl StoreWriter {
    pub(super) fn start(
        context: &WriteContext<'_>,
        dependencies: &StoreDependencies<'_>,
        force: &CancellationToken,
    ) -> Self {
        let writer = |partition, calls: &Arc<NumberedCalls>| PartitionWriter {
            partition,
            calls: calls.clone(),
            keys: context.keys.clone(),
            ids: Ids::new(),
            delivered_names: context.delivered_names.clone(),
            order: context.order.clone(),
            wake: context.wake.clone(),
            trails: context.trails.clone(),
            clock: context.clock.clone(),
            growing: Mutex::default(),
            growing_routes: context.growing_routes.clone(),
        };
        let partitions = dependencies.config.partitions;
        let mut queues = Vec::new();
        for partition in partitions.all() {
            let (queue, waiting) = mpsc::channel(QUEUE_LEN);
            let writer = writer(partition, context.calls);
            let force = force.clone();
            dependencies.tasks.spawn("store:writer", async move {
                tokio::select! {
                    () = force.cancelled() => {}
                    () = writer.run(waiting) => {}
                }
            });
            queues.push(queue);
        }
        Self {
            queues,
            calls: context.calls.clone(),
            commands: partitions
                .all()
                .map(|p| writer(p, context.command_calls))
                .collect(),
            force: force.clone(),
        }
    }

    /// Reports whether the connection is up.
    pub(super) fn is_up(&self) -> bool {
        self.calls.link().is_up()
    }

    /// Why a call has failed, if one is being retried: the store is full, away, or the write is not durable.
    pub(super) fn failure(&self) -> Option<String> {
        self.calls.failure()
    }

    /// The connection of the writes, which also waits for their durability.
    pub(super) fn link(&self) -> &StoreLink {
        self.calls.link()
    }
}

impl PartitionWriter {
    async fn run(self, mut waiting: mpsc::Receiver<Submission>) {
        while let Some(first) = waiting.recv().await {
            let mut batch = vec![first];
            let mut ops = batch[0].ops.len();
            let mut bytes = size(&batch[0].ops);
            while ops < CALL_OPS && bytes < CALL_BYTES {
                let Ok(next) = waiting.try_recv() else { break };
                ops += next.ops.len();
                bytes += size(&next.ops);
                batch.push(next);
            }
            self.serve(batch).await;
        }
    }

    /// Carries out commands of people. A replacement does not wait for room in the store: cancels, which make room, would
    /// wait behind it.
    async fn carry_out(&self, ops: &[&WriteOp]) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        let mut turn = self.calls.turn(self.partition).await;
        let [op @ WriteOp::Replace { .. }] = ops else {
            return Ok(self.in_calls(&mut turn, ops).await);
        };
        turn.waits_for_room = false;
        let mut failures = 0;
        loop {
            match self.attempt(&mut turn, &[op]).await {
                Err(StoreError::Unavailable(_)) => {
                    failures += 1;
                    tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
                }
                answer => return answer,
            }
        }
    }

    /// Makes the calls of a batch and answers each submission when all of its operations are done.
    async fn serve(&self, batch: Vec<Submission>) {
        let mut turn = self.calls.turn(self.partition).await;
        let all: Vec<&WriteOp> = batch.iter().flat_map(|s| &s.ops).collect();
        let mut results = self.in_calls(&mut turn, &all).await.into_iter();
        drop(turn);
        for submission in batch {
            let own = results.by_ref().take(submission.ops.len()).collect();
            // A caller that has gone away has dropped its receipts: there is nobody to tell.
            drop(submission.done.send(own));
        }
    }

    /// Carries out these operations, in order, in as few calls as their bounds allow.
    async fn in_calls(&self, turn: &mut CallTurn<'_>, all: &[&WriteOp]) -> Vec<Vec<WriteResult>> {
        let mut results: Vec<Vec<WriteResult>> = Vec::with_capacity(all.len());
        let mut rest = all;
        while !rest.is_empty() {
            let run = if reads_first(rest[0]) {
                1
            } else {
                self.run_length(rest).await
            };
            let (now, later) = rest.split_at(run);
            match now {
                [
                    WriteOp::Store {
                        route,
                        on_duplicate,
                        bundle,
                    },
                ] if self.touches_many(now).await => {
                    let mut of_bundle = Vec::with_capacity(bundle.entries.len());
                    for bundle in cut::pieces(bundle) {
                        let route = route.clone();
                        let on_duplicate = *on_duplicate;
                        let piece = WriteOp::Store {
                            route,
                            on_duplicate,
                            bundle,
                        };
                        of_bundle.extend(self.until_done(turn, &[&piece]).await.concat());
                    }
                    results.push(of_bundle);
                }
                _ => results.extend(self.until_done(turn, now).await),
            }
            rest = later;
        }
        results
    }

    /// Makes the calls of these operations, again and again until the store has done them.
    async fn until_done(&self, turn: &mut CallTurn<'_>, ops: &[&WriteOp]) -> Vec<Vec<WriteResult>> {
        let mut failures = 0;
        loop {
            match self.attempt(turn, ops).await {
                Ok(results) => return results,
                Err(why) => {
                    failures += 1;
                    let p = self.partition.0;
                    let away = matches!(why, StoreError::Unavailable(_));
                    // The connection itself reports once that the store is away.
                    if failures == 1 && !away {
                        error!(partition = p, error = %why, "writing to a partition failed; retrying");
                    }
                    tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
                }
            }
        }
    }

    /// Makes the calls of these operations. A change reads first, and goes alone.
    async fn attempt(
        &self,
        turn: &mut CallTurn<'_>,
        ops: &[&WriteOp],
    ) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        match ops {
            [
                WriteOp::Reschedule {
                    route,
                    id,
                    due,
                    fallback,
                    of,
                },
            ] => {
                let change = Change::Move {
                    due: *due,
                    fallback: fallback.as_ref(),
                };
                let changed = self.change(turn, route, id, of.as_ref(), change).await;
                changed.map(|r| vec![vec![r]])
            }
            [
                WriteOp::Replace {
                    route,
                    id,
                    bundle,
                    or_store,
                    of,
                },
            ] => {
                let change = Change::Replace {
                    bundle,
                    or_store: *or_store,
                };
                let changed = self.change(turn, route, id, of.as_ref(), change).await;
                changed.map(|r| vec![vec![r]])
            }
            [
                WriteOp::Cancel {
                    route,
                    id,
                    of: Some(of),
                },
            ] => self
                .cancel_of(turn, route, id, of, ops)
                .await
                .map(|r| vec![vec![r]]),
            _ => self.write(turn, ops).await,
        }
    }

    async fn write(
        &self,
        turn: &mut CallTurn<'_>,
        ops: &[&WriteOp],
    ) -> Result<Vec<Vec<WriteResult>>, StoreError> {
        for _ in 0..NAME_READS {
            let meant = self.bundles_of(ops).await?;
            let alike = self.alike(ops).await?;
            let growth = GrowthPlan::new(self, ops);
            let plan = WritePlan::new(self, ops, &meant, &alike, &growth);
            let sent_at = self.clock.now();
            let answer = turn.run(self.partition, plan.call).await;
            let letters = match answer.and_then(|answer| text(&answer)) {
                Ok(letters) => letters,
                Err(why) => {
                    self.growing.lock().refused(&growth);
                    return Err(why);
                }
            };
            if letters == "CHANGED" {
                self.growing.lock().refused(&growth);
                self.free_malformed(&names_of(ops)).await?;
                continue;
            }
            if let Some(given) = behind(&letters)? {
                self.order.seen(given);
                continue;
            }
            self.growing.lock().applied(growth);
            for due in plan.dues {
                self.wake.stored(self.partition, due);
            }
            let results = split(ops, &letters)?;
            self.record_dead(sent_at, ops, &plan.dead_ids);
            return Ok(results);
        }
        Err(never_settles())
    }

    /// True if messages of this route may join growing bundles.
    fn grows(&self, route: &RouteName) -> bool {
        self.growing_routes.contains(route)
    }

    /// Records the dead letters of these operations, which were sent at this moment, in the trails.
    fn record_dead(&self, sent_at: UnixMs, ops: &[&WriteOp], dead_ids: &[DeadId]) {
        let dead_letters = ops.iter().filter_map(|op| match op {
            WriteOp::DeadLetter(dead_letter) => Some(dead_letter),
            _ => None,
        });
        for (dead_letter, dead_id) in dead_letters.zip(dead_ids) {
            self.trails.dead(sent_at, dead_letter, dead_id);
        }
    }
}

/// Reports whether an operation reads before it writes. Such an operation goes alone. The others go together.
fn reads_first(op: &WriteOp) -> bool {
    matches!(
        op,
        WriteOp::Reschedule { .. } | WriteOp::Replace { .. } | WriteOp::Cancel { of: Some(_), .. }
    )
}

/// The error for a name that means something else at every read: only damage does that.
fn never_settles() -> StoreError {
    StoreError::Damaged(format!(
        "a name changed its meaning {NAME_READS} times between a read and the call"
    ))
}

/// Cuts the letters of an answer into results, one list for each operation.
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
                if bundle.entries.iter().any(|e| e.listed_id().is_some()) {
                    bundle.entries.iter().map(|_| next()).collect()
                } else {
                    next().map(|result| vec![result; bundle.entries.len()])
                }
            }
            WriteOp::Cancel { .. } => next().map(|result| vec![result]),
            WriteOp::DeadLetter(_) => Ok(vec![WriteResult::Stored]),
            WriteOp::Reschedule { .. } | WriteOp::Replace { .. } => {
                Err(shape("a batch with an operation that goes alone"))
            }
        })
        .collect()
}

fn size(ops: &[WriteOp]) -> usize {
    ops.iter().map(op_size).sum()
}

fn op_size(op: &WriteOp) -> usize {
    let of = |bundle: &Bundle| bundle.entries.iter().map(Entry::stored_size).sum();
    match op {
        WriteOp::Store { bundle, .. } | WriteOp::Replace { bundle, .. } => of(bundle),
        WriteOp::DeadLetter(dead_letter) => of(&dead_letter.bundle),
        WriteOp::Reschedule { fallback, .. } => fallback.as_ref().map_or(64, of),
        WriteOp::Cancel { .. } => 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::MAX_CALL_NAMES;
    use crate::domain::{Flags, OnDuplicate, TargetRef, UnixMs, testing};

    fn store(messages: usize, named: bool) -> WriteOp {
        let route = testing::route().name.clone();
        let mut entry = testing::entry(UnixMs(0), b"");
        if named {
            entry.id = Some("a".into());
            entry.flags = entry.flags.with(Flags::NAMED);
        }
        let bundle = Bundle {
            target: TargetRef::Own,
            entries: Arc::new(vec![entry; messages]),
        };
        WriteOp::Store {
            route,
            on_duplicate: OnDuplicate::Keep,
            bundle,
        }
    }

    #[test]
    fn a_call_is_bounded_in_operations_names_and_bytes() {
        let run =
            |ops: Vec<WriteOp>| cut::run_length(&ops.iter().collect::<Vec<_>>(), MAX_CALL_NAMES);
        let many = |op: &dyn Fn() -> WriteOp| (0..100).map(|_| op()).collect::<Vec<_>>();
        assert_eq!(run(many(&|| store(10, false))), CALL_OPS);
        assert_eq!(run(many(&|| store(100, true))), MAX_CALL_NAMES / 100);
        assert_eq!(
            run(many(&|| store(MAX_CALL_NAMES + 1, true))),
            1,
            "one bundle goes whatever it brings"
        );
        let bytes = op_size(&store(500, false));
        assert_eq!(
            run(many(&|| store(500, false))),
            (CALL_BYTES / bytes).min(CALL_OPS)
        );
        let cancel = || WriteOp::Cancel {
            route: testing::route().name.clone(),
            id: "a".into(),
            of: None,
        };
        assert_eq!(run(vec![store(MAX_CALL_NAMES, true), cancel()]), 1);
        assert_eq!(run(vec![store(1, true), cancel()]), 2);
    }
}
