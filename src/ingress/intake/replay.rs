//! The way of a replay into the store: the same partitions, bundles, outcomes and gates as for records that are
//! read for the first time. But nothing bypasses the store, and the plan has decided each record's step before.

use std::sync::Arc;

use super::super::{Ledger, Receipt};
use super::{JudgedBatch, Source};
use crate::domain::{Entry, Flags, KafkaPosition, UnixMs};
use crate::ingress::permits::PermitBatch;
use crate::ingress::replay::{JudgedRecord, RecordRequest, ReplayStep};
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
            tokio::select! {
                biased;
                () = self.until_open() => {}
                () = self.intake.shutdown.draining() => return false,
            }
            let Some(permits) = self.gate.try_admit(batch.len()) else {
                continue;
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
                Some(step) => self.step(record, step, receipt, ledger, now, &mut judged),
                None => receipt.resolve(),
            }
        }
        self.submitter.submit_all(judged.work).await;
    }

    fn step(
        &self,
        record: JudgedRecord,
        step: ReplayStep,
        mut receipt: Receipt,
        ledger: &Arc<Ledger>,
        now: UnixMs,
        judged: &mut JudgedBatch,
    ) {
        let JudgedRecord {
            position,
            request,
            asked,
            mut message,
            target,
            ..
        } = record;
        if let ReplayStep::Store { due, .. } = &step {
            receipt.trace(self.intake.tracer.admit(&self.route, &mut message, *due));
        }
        let route = self.route.name.clone();
        let key = self.route.order_key(&message);
        let of = |offset| {
            Some(IntendedMessage::ReadAt(KafkaPosition {
                offset,
                ..position
            }))
        };
        let flags = Flags(Flags::SOURCE_REREAD);
        let entry = |due, id, flags| Entry {
            id,
            flags,
            position: Some(position),
            source_topic: self.route.source_topic.clone(),
            request: asked,
            ..Entry::new(due, message)
        };
        let id = request.id().cloned();
        let p = self.partition_of(key.as_ref(), id.as_ref(), Some(position));
        match (step, id, request) {
            (
                ReplayStep::Store {
                    due,
                    named,
                    instead_of,
                },
                id,
                _,
            ) => {
                let Some(target) = target else {
                    return receipt.resolve();
                };
                if let (Some(offset), Some(id)) = (instead_of, id.clone()) {
                    let receipt = ledger.enter(position.offset);
                    judged.work.command(
                        p,
                        WriteOp::Cancel {
                            route,
                            id,
                            of: of(offset),
                        },
                        receipt,
                    );
                }
                let flags = if named {
                    flags.with(Flags::NAMED)
                } else {
                    flags
                };
                judged.work.store(
                    p,
                    self.route.target_ref(&target),
                    entry(due, id, flags),
                    receipt,
                );
            }
            (ReplayStep::Cancel { of: offset }, Some(id), _) => {
                judged.work.command(
                    p,
                    WriteOp::Cancel {
                        route,
                        id,
                        of: of(offset),
                    },
                    receipt,
                );
            }
            (ReplayStep::Reschedule { of: offset, due }, Some(id), _) => {
                let op = WriteOp::Reschedule {
                    route,
                    id,
                    due,
                    fallback: None,
                    of: of(offset),
                };
                judged.work.command(p, op, receipt);
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
            ) => {
                self.invalid(
                    reason,
                    &error,
                    unreadable,
                    entry(now, None, flags),
                    receipt,
                    judged,
                );
            }
            (ReplayStep::DeadLetter, id, RecordRequest::Spent { .. }) => {
                let Some(target) = target else {
                    return receipt.resolve();
                };
                self.stop_retrying(entry(now, id, flags), &target, p, receipt, judged);
            }
            // A plan has no other steps.
            _ => receipt.resolve(),
        }
    }
}

/// Reports whether a step may add a message to the store.
fn needs_permit(step: Option<&ReplayStep>) -> bool {
    !matches!(step, None | Some(ReplayStep::Cancel { .. }))
}
