//! The way of a replay into the store: the same partitions, bundles, outcomes and gates as for records that are
//! read for the first time. But nothing bypasses the store, and the plan has decided each record's step before.

use std::sync::Arc;

use super::super::{Ledger, Receipt};
use super::{JudgedBatch, ReadMessage, Source};
use crate::domain::{Entry, Flags, KafkaPosition, UnixMs};
use crate::ingress::permits::PermitBatch;
use crate::ingress::replay::{JudgedRecord, RecordRequest, ReplayStep, StoredAt};
use crate::store::{IntendedMessage, WriteOp};

impl Source {
    /// Carries out the steps of a batch, in order. Returns once all of it has its place in the store's order.
    /// Each record's receipt is entered in the ledger, and resolved when its step is done. Waits while the gate
    /// is closed; returns `false` if shutting down began meanwhile, and leaves the rest undone.
    pub async fn replay_batch(
        &mut self,
        mut batch: Vec<(JudgedRecord, Option<ReplayStep>)>,
        ledger: &Arc<Ledger>,
    ) -> bool {
        loop {
            let freely = batch
                .iter()
                .take_while(|(_, step)| !needs_permit(step.as_ref()))
                .count();
            let rest = batch.split_off(freely);
            self.replay_admitted(batch, None, ledger).await;
            batch = rest;
            if batch.is_empty() {
                return true;
            }
            let Some(permits) = self.permits(batch.len()).await else {
                return false;
            };
            let rest = batch.split_off(permits.messages());
            self.replay_admitted(batch, Some(permits), ledger).await;
            batch = rest;
        }
    }

    /// Carries out steps that have their permits, or need none.
    async fn replay_admitted(
        &mut self,
        batch: Vec<(JudgedRecord, Option<ReplayStep>)>,
        mut permits: Option<PermitBatch>,
        ledger: &Arc<Ledger>,
    ) {
        let now = self.intake.store.clock().now();
        let mut judged = JudgedBatch::new(&self.route, now);
        for (record, step) in batch {
            let mut receipt = ledger.enter(record.position.offset);
            let permit = permits
                .as_mut()
                .and_then(|permits| permits.take(record.message.size()));
            if let Some(permit) = permit {
                receipt.attach(permit);
            }
            match step {
                Some(step) => {
                    self.step(record, step, receipt, ledger, now, &mut judged);
                }
                None => receipt.resolve(),
            }
        }
        self.submitter.submit_all(judged.work).await;
    }

    fn step(
        &self,
        record: JudgedRecord,
        step: ReplayStep,
        receipt: Receipt,
        ledger: &Arc<Ledger>,
        now: UnixMs,
        judged: &mut JudgedBatch,
    ) {
        let JudgedRecord {
            position,
            request,
            asked,
            message,
            target,
            ..
        } = record;
        let id = request.id().cloned();
        let mut read = ReadMessage {
            key: self.route.order_key(&message),
            entry: Entry {
                flags: Flags(Flags::SOURCE_REREAD),
                position: Some(position),
                source_topic: self.route.source_topic.clone(),
                request: asked,
                ..Entry::new(now, message)
            },
            receipt,
        };
        let read_at = |StoredAt { offset, .. }| {
            Some(IntendedMessage::ReadAt(KafkaPosition {
                offset,
                ..position
            }))
        };
        match (step, id, request, target) {
            (
                ReplayStep::Store {
                    due,
                    name_at,
                    instead_of,
                },
                id,
                _,
                Some(target),
            ) => {
                read.entry.id.clone_from(&id);
                store_for(due, name_at.is_some(), &mut read.entry);
                self.trace(&mut read);
                if let (Some(of), Some(id)) = (instead_of, id) {
                    let op = self.cancel_op(id, read_at(of));
                    let receipt = ledger.enter(position.offset);
                    judged.work.command(of.partition, op, receipt);
                }
                let at = name_at.unwrap_or_else(|| self.partition_of_message(&read));
                judged.work.store(self.place_at(at, read, &target));
            }
            (ReplayStep::Cancel { of }, Some(id), ..) => {
                let op = self.cancel_op(id, read_at(of));
                judged.work.command(of.partition, op, read.receipt);
            }
            (ReplayStep::Reschedule { of, due }, Some(id), ..) => {
                let op = WriteOp::Reschedule {
                    route: self.route.name.clone(),
                    id,
                    due,
                    fallback: None,
                    of: read_at(of),
                };
                judged.work.command(of.partition, op, read.receipt);
            }
            (
                ReplayStep::DeadLetter,
                _,
                RecordRequest::Invalid {
                    reason,
                    error,
                    unreadable,
                    ..
                },
                _,
            ) => self.invalid(reason, &error, unreadable, read, judged),
            (ReplayStep::DeadLetter, id, RecordRequest::Spent { .. }, Some(target)) => {
                read.entry.id = id;
                self.stop_retrying(self.place(read, &target), judged);
            }
            // A plan has no other steps.
            _ => read.receipt.resolve(),
        }
    }
}

/// Has a message be due at this moment, to which a later command may have moved it.
fn store_for(due: UnixMs, named: bool, entry: &mut Entry) {
    entry.due = due;
    entry.request = entry
        .request
        .map(|asked| asked.moved_to(due).unwrap_or(asked));
    if named {
        entry.flags = entry.flags.with(Flags::NAMED);
    }
}

/// Reports whether a step may add a message to the store.
fn needs_permit(step: Option<&ReplayStep>) -> bool {
    matches!(
        step,
        Some(ReplayStep::Store { .. } | ReplayStep::DeadLetter)
    )
}
