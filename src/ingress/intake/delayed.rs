//! Delayed messages: when each is due, and its way into the store or past it.

use std::sync::Arc;

use super::super::unstored_names::NamedOperation;
use super::{JudgedBatch, ReadMessage, Source};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::{Flags, Partition, Target, UnixMs, Verdict};
use crate::ingress::admit::AskedTime;
use crate::ingress::bundling::PlacedMessage;
use crate::ingress::linger::LingerBuffer;
use crate::ingress::publish_desk::DirectMessage;

impl Source {
    /// Notes on a message when it is due and what it asked for, and begins its trace.
    pub(super) fn schedule(&mut self, read: &mut ReadMessage, asked: AskedTime) {
        let entry = &mut read.entry;
        let (due, request) = self.jitter.apply(asked, entry.id.as_ref(), entry.position);
        entry.due = due;
        entry.request = Some(request);
        if entry.id.is_some() {
            entry.flags = entry.flags.with(Flags::NAMED);
        }
        self.trace(read);
    }

    /// Begins the trace of a message that is to be stored.
    pub(super) fn trace(&self, read: &mut ReadMessage) {
        let ReadMessage { entry, receipt, .. } = read;
        let tracer = &self.intake.tracer;
        receipt.trace(tracer.admit(&self.route, &mut entry.message, entry.due));
    }

    /// Sends a delayed message on its way: past the store if it is due, else into it, perhaps after a wait for others.
    pub(super) fn delay(
        &self,
        read: ReadMessage,
        target: Arc<Target>,
        now: UnixMs,
        judged: &mut JudgedBatch,
    ) {
        let entry = &read.entry;
        let is_named = entry.id.is_some();
        let clock = self.intake.store.clock();
        // Whether a named message replaces one that waits, or is one that was delivered, the store alone knows.
        let wanted = entry.wanted_until().filter(|_| !is_named);
        let is_expired = wanted.is_some_and(|last| clock.is_past(last));
        // What is due is judged by the wheel's own clock, which is not asked about a due time in the future.
        let is_direct =
            !is_named && self.bypasses_store && entry.due <= now && clock.is_due(entry.due);
        if is_expired {
            self.expire(read, target, now, judged);
        } else if is_direct {
            let message = self.direct(read, target, PublishFlow::Delayed);
            judged.direct.push(message);
        } else if !is_named && read.key.is_none() && LingerBuffer::may_linger(entry, now) {
            judged.far_ahead.push(self.place(read, &target));
        } else {
            judged.work.store(self.place(read, &target));
        }
    }

    /// Makes a message that is not wanted any more a dead letter, or drops it.
    fn expire(
        &self,
        read: ReadMessage,
        target: Arc<Target>,
        now: UnixMs,
        judged: &mut JudgedBatch,
    ) {
        let mut message = self.direct(read, target, PublishFlow::Delayed);
        if message.entry.id.is_none() {
            let home = std::iter::once(message.partition);
            message.entry.id = self.intake.store.unique_ids(home).pop();
        }
        let waits = message.carry_out(&Verdict::Expired, &self.submitter, now, &mut judged.work);
        debug_assert!(waits.is_none(), "nothing that is expired waits");
    }

    /// The message on its way into the store.
    pub(super) fn place(&self, read: ReadMessage, target: &Arc<Target>) -> PlacedMessage {
        self.place_at(self.partition_of_message(&read), read, target)
    }

    /// The same, into this partition.
    pub(super) fn place_at(
        &self,
        partition: Partition,
        mut read: ReadMessage,
        target: &Arc<Target>,
    ) -> PlacedMessage {
        if read.entry.flags.has(Flags::NAMED)
            && let Some(id) = &read.entry.id
        {
            let operation = NamedOperation {
                partition,
                is_cancel: false,
            };
            self.note_name(id, operation, &mut read.receipt);
        }
        PlacedMessage {
            partition,
            target: self.route.target_ref(target),
            entry: read.entry,
            receipt: read.receipt,
        }
    }

    /// The message on its way past the store.
    pub(super) fn direct(
        &self,
        read: ReadMessage,
        target: Arc<Target>,
        flow: PublishFlow,
    ) -> DirectMessage {
        DirectMessage {
            partition: self.partition_of_message(&read),
            target,
            entry: read.entry,
            receipt: read.receipt,
            flow,
        }
    }

    pub(super) fn partition_of_message(&self, read: &ReadMessage) -> Partition {
        self.partition_of(
            read.key.as_ref(),
            read.entry.id.as_ref(),
            read.entry.position,
        )
    }
}
