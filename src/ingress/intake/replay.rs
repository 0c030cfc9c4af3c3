//! A replay's way into the store: the same places, bundles, answers and gates as what is read for the first
//! time; but nothing passes the store by, and what is to be done was worked out before.

use std::sync::Arc;

use super::super::replay::{Again, Asks, Step};
use super::super::{Ledger, Receipt};
use super::{Judged, Source};
use crate::domain::{Entry, Flags, UnixMs};
use crate::ingress::permits::Granted;
use crate::store::{Meant, WriteOp};

impl Source {
    /// Whether the route's ingress is open right now.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// Does what is to be done with these, in order. Returns once all of it has its place in the store's
    /// order; each record's receipt is entered in the ledger and resolved when it is done. Waits while the
    /// route's ingress is paused or has no room; `false` if shutting down began meanwhile, then the rest was not done.
    pub async fn again(&mut self, mut batch: Vec<(Again, Option<Step>)>, ledger: &Arc<Ledger>) -> bool {
        loop {
            let freely = batch.iter().take_while(|(_, step)| !needs_room(step.as_ref())).count();
            let rest = batch.split_off(freely);
            self.again_admitted(batch, None, ledger).await;
            batch = rest;
            if batch.is_empty() {
                return true;
            }
            tokio::select! {
                biased;
                () = self.until_open() => {}
                () = self.intake.shutdown.draining() => return false,
            }
            let Some(granted) = self.gate.try_admit(batch.len()) else { continue };
            let rest = batch.split_off(granted.messages());
            self.again_admitted(batch, Some(granted), ledger).await;
            batch = rest;
        }
    }

    /// The same for what the route has room for, or what needs none.
    async fn again_admitted(
        &mut self,
        batch: Vec<(Again, Option<Step>)>,
        granted: Option<Granted>,
        ledger: &Arc<Ledger>,
    ) {
        let now = self.intake.store.clock().now();
        let mut judged = Judged::new(&self.route, now);
        let mut permits = granted.into_iter().flatten();
        for (record, step) in batch {
            let mut receipt = ledger.enter(record.position.1);
            if let Some(permit) = permits.next() {
                receipt.keep(permit);
            }
            match step {
                Some(step) => self.step(record, step, (receipt, ledger), now, &mut judged),
                None => receipt.resolve(),
            }
        }
        self.submitter().submit_all(judged.work).await;
    }

    fn step(
        &self,
        record: Again,
        step: Step,
        (receipt, ledger): (Receipt, &Arc<Ledger>),
        now: UnixMs,
        judged: &mut Judged,
    ) {
        let Again { position, asks, message, target, .. } = record;
        let route = self.route.name.clone();
        let key = self.route.order_key(&message);
        let of = |offset| Some(Meant::ReadAt((position.0, offset)));
        let flags = Flags(Flags::SOURCE_REREAD);
        let entry =
            |due, id, flags| Entry { id, flags, position: Some(position), ..Entry::new(due, message) };
        let (id, asks) = match asks {
            Asks::Delayed { id, .. } => (id, None),
            Asks::Cancel { id } | Asks::Reschedule { id, .. } => (Some(id), None),
            asks => (None, Some(asks)),
        };
        let p = self.place(key.as_ref(), id.as_ref(), Some(position));
        match (step, id, asks) {
            (Step::Store { due, named, instead_of }, id, _) => {
                let Some(target) = target else { return receipt.resolve() };
                if let (Some(offset), Some(id)) = (instead_of, id.clone()) {
                    let receipt = ledger.enter(position.1);
                    judged.work.command(p, WriteOp::Cancel { route, id, of: of(offset) }, receipt);
                }
                let flags = if named { flags.with(Flags::NAMED) } else { flags };
                judged.work.store(p, self.route.target_ref(&target), entry(due, id, flags), receipt);
            }
            (Step::Cancel { of: offset }, Some(id), _) => {
                judged.work.command(p, WriteOp::Cancel { route, id, of: of(offset) }, receipt);
            }
            (Step::Reschedule { of: offset, due }, Some(id), _) => {
                let op = WriteOp::Reschedule { route, id, due, fallback: None, of: of(offset) };
                judged.work.command(p, op, receipt);
            }
            (Step::Bury, _, Some(Asks::Invalid { reason, error, unreadable, .. })) => {
                self.invalid(reason, &error, unreadable, entry(now, None, flags), receipt, judged);
            }
            // A plan has no other steps.
            _ => receipt.resolve(),
        }
    }
}

/// Whether a step may add a message to the store.
fn needs_room(step: Option<&Step>) -> bool {
    !matches!(step, None | Some(Step::Cancel { .. }))
}
