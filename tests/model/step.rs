//! Applies an action to a world.

use super::checks::{Broken, broken};
use super::store::{Claim, Message};
use super::world::*;

impl World {
    /// Does it. `Err` if something that must never be has become true.
    pub fn step(&mut self, setting: &Setting, action: Action) -> Result<(), Broken> {
        match action {
            Action::Read(s) => self.read(setting, s),
            Action::Send(s) => self.send(setting, s),
            Action::Commit(s) | Action::Close(s) | Action::Open(s) | Action::Return(s) => {
                self.gate(s, action);
            }
            Action::Execute(a) => self.execute(a),
            Action::Hear(a) => self.hear(setting, a),
            Action::LoseReply(a) => {
                self.left.lost_replies -= 1;
                self.again(a);
            }
            Action::Resend(a) => {
                self.left.lost_replies -= 1;
                let caller = (a, self.actor(a).incarnation);
                self.late = self.actor(a).wire.clone().map(|wire| (caller, wire));
            }
            Action::Crash(a, late) => {
                self.left.crashes -= 1;
                self.crash(setting, a, late);
            }
            Action::Late => {
                if let Some((caller, wire)) = self.late.take() {
                    self.master.run(caller, &wire, self.now);
                }
            }
            Action::Claim(t) => {
                self.timers[t]
                    .actor
                    .send(Op::Claim(self.now + setting.lookahead));
            }
            Action::ReadGrowing(t, bundle) => {
                let model = &self.master_of(self.ingress.len() + t).model;
                let gone = model.gone(bundle).expect("it stands");
                self.timers[t].growing = Some((bundle, gone));
            }
            Action::Spread(t) => {
                let timer = &mut self.timers[t];
                if let Some((bundle, seen)) = timer.growing.take() {
                    timer.actor.send(Op::Spread(bundle, seen));
                }
            }
            Action::Sweep(t) => self.timers[t].sweep(setting),
            Action::HandOver(t, h) => self.hand_over(setting, t, h)?,
            Action::Finish(t, h) => self.finish(setting, t, h),
            Action::Split(t, h) => {
                self.left.splits -= 1;
                self.divide(setting, t, h);
            }
            Action::Note(t, h) => {
                self.left.notes -= 1;
                self.note(t, h);
            }
            Action::Drain(t) => {
                self.left.drains -= 1;
                let timer = &mut self.timers[t];
                timer.draining = true;
                for claimed in &mut timer.claimed_bundles {
                    timer.taken -= claimed.stop();
                }
            }
            Action::Leave(t) => self.restart(setting, self.ingress.len() + t),
            Action::Deliver(k)
            | Action::DeliverUnheard(k)
            | Action::Vanish(k)
            | Action::Refuse(k)
            | Action::Reject(k) => self.broker(setting, k, action)?,
            Action::Lapse(bundle) => self.lapse(setting, bundle),
            Action::OwnDeadline(t, h) => {
                self.left.pauses -= 1;
                self.timers[t].claimed_bundles[h].lapsed = true;
            }
            Action::Tick => self.now += 1,
            Action::Replicate => self.replica = Some(Box::new(self.master.clone())),
            Action::FailOver => self.fail_over(),
            Action::Notice(a) => {
                self.actor_mut(a).behind = false;
                self.again(a);
                if (0..self.actors()).all(|a| !self.actor(a).behind) {
                    self.old = None;
                }
            }
            Action::Redrive(body) => {
                self.left.redrives -= 1;
                self.master.model.redrive(body, self.now);
            }
        }
        if !setting.wires {
            for a in 0..self.actors() {
                self.execute(a);
                self.hear(setting, a);
            }
        }
        self.check(setting)
    }

    /// Applies an action of the broker to a publication.
    fn broker(&mut self, setting: &Setting, k: usize, action: Action) -> Result<(), Broken> {
        let publication = self.socket.remove(k);
        match action {
            Action::Deliver(_) => {
                return self.deliver(setting, &publication, DeliveryState::Confirmed);
            }
            Action::DeliverUnheard(_) => {
                self.left.unknowns -= 1;
                return self.deliver(setting, &publication, DeliveryState::Unknown);
            }
            Action::Refuse(_) => {
                self.left.refusals -= 1;
                self.judge(&publication, DeliveryState::Refused);
            }
            Action::Reject(_) => {
                self.left.rejections -= 1;
                self.judge(&publication, DeliveryState::Rejected);
            }
            _ => {
                // A publication of a dead actor becomes unknown without using up the budget.
                if self.judge(&publication, DeliveryState::Unknown) {
                    self.left.unknowns -= 1;
                }
            }
        }
        Ok(())
    }

    /// Applies an action of an ingress that needs no store.
    fn gate(&mut self, s: usize, action: Action) {
        let ingress = &mut self.ingress[s];
        match action {
            Action::Close(_) => {
                self.left.closings -= 1;
                (ingress.closed, ingress.returned) = (true, 0);
            }
            Action::Open(_) => ingress.closed = false,
            Action::Return(_) => ingress.give_back(),
            _ => ingress.committed = ingress.answered,
        }
    }

    fn read(&mut self, setting: &Setting, s: usize) {
        let source = &setting.sources[s];
        let there = self.there(setting, s);
        let ingress = &mut self.ingress[s];
        let upto = (ingress.read + source.batch).min(there);
        ingress.marked = upto;
        if self.replica.is_some() || self.old.is_some() {
            ingress.actor.send(Op::Mark(s, upto));
        } else {
            self.master.marks[s] = self.master.marks[s].max(upto);
        }
    }

    fn send(&mut self, setting: &Setting, s: usize) {
        let (from, upto, below) = {
            let ingress = &self.ingress[s];
            (ingress.read, ingress.marked, ingress.below)
        };
        let incarnation = u32::from(self.ingress[s].actor.incarnation);
        let mut writes: Vec<Write> = Vec::new();
        for at in from..upto {
            let (number, record) = setting.record(s, at);
            let body = number as u32 * READS + incarnation;
            let message = |name, due| Message {
                name,
                due,
                last: setting.wanted_for.map(|wanted| due + wanted),
                count: 0,
                body,
                repeat: at < below,
            };
            match record {
                Record::Put { name, due } => {
                    let joins = setting.grows && name.is_some() && due > 0;
                    match writes.last_mut() {
                        Some(Write::Store(messages, _, grows)) if *grows == joins => {
                            messages.push(message(name, due));
                        }
                        _ => {
                            let messages = vec![message(name, due)];
                            writes.push(Write::Store(messages, setting.replace, joins));
                        }
                    }
                }
                Record::Cancel(name) => writes.push(Write::Cancel(name)),
                Record::Move(name, due) => {
                    writes.push(Write::Move(name, due, message(Some(name), due)));
                }
                Record::Replace(name, due) => {
                    writes.push(Write::Replace(name, message(Some(name), due)));
                }
                Record::Back(name, due, count) => {
                    let given_back = Message {
                        count,
                        ..message(Some(name), due)
                    };
                    writes.push(Write::Store(vec![given_back], setting.replace, false));
                }
            }
        }
        let ingress = &mut self.ingress[s];
        ingress.read = upto;
        if setting.has(Fault::CommitBeforeStore) {
            ingress.committed = upto;
            let puts = (from..upto).map(|at| setting.record(s, at));
            self.owed.extend(
                puts.filter(|(_, r)| matches!(r, Record::Put { .. }))
                    .map(|(number, _)| number),
            );
        }
        self.send_writes(setting, s, writes);
    }

    /// A process dies and another takes its place, knowing nothing.
    fn crash(&mut self, setting: &Setting, a: usize, late: bool) {
        let incarnation = self.actor(a).incarnation;
        let wire = self.actor_mut(a).wire.take();
        if late {
            self.late = wire.map(|wire| ((a, incarnation), wire));
        }
        self.restart(setting, a);
    }

    fn restart(&mut self, setting: &Setting, a: usize) {
        let incarnation = self.actor(a).incarnation;
        if self
            .late
            .as_ref()
            .is_none_or(|(caller, _)| *caller != (a, incarnation))
        {
            // Nobody will ever call as this one again.
            self.master
                .calls
                .retain(|(caller, ..)| *caller != (a, incarnation));
        }
        let actor = Actor {
            incarnation: incarnation + 1,
            ..Actor::default()
        };
        if let Some(ingress) = self.ingress.get_mut(a) {
            ingress.give_back();
            (ingress.actor, ingress.below) = (actor, self.master.marks[a]);
        } else {
            self.timers[a - self.ingress.len()] = Timer {
                actor,
                ..Timer::default()
            };
            if setting.has(Fault::SweepAtStart) {
                self.master.model.sweep();
            }
        }
        if (0..self.actors()).all(|a| !self.actor(a).behind) {
            self.old = None;
        }
    }

    fn deliver(
        &mut self,
        setting: &Setting,
        publication: &Publication,
        state: DeliveryState,
    ) -> Result<(), Broken> {
        let body = publication.message.body;
        let flagged = publication.flagged;
        self.judge(publication, state);
        let tally = &mut self.tally[record_of(body)];
        if setting.gives_back() {
            tally.times = 2.min(tally.times + 1);
        }
        if flagged {
            tally.flagged = true;
        } else {
            tally.plain += 1;
        }
        if tally.plain > 1 {
            return broken(
                "unexplained",
                format!("{} came twice, and neither says so", show(body)),
            );
        }
        Ok(())
    }

    /// The verdict reaches its timer if that still lives and holds it; whether it did.
    fn judge(&mut self, publication: &Publication, verdict: DeliveryState) -> bool {
        let timer = &mut self.timers[publication.timer];
        if timer.actor.incarnation != publication.incarnation {
            return false;
        }
        let claimed = timer
            .claimed_bundles
            .iter_mut()
            .find(|claimed| claimed.first == publication.first);
        let Some(claimed) = claimed else { return false };
        let body = publication.message.body;
        let slot = claimed
            .slots
            .iter_mut()
            .find(|(l, s)| l.body == body && *s == DeliveryState::Handed);
        let Some((_, state)) = slot else { return false };
        *state = verdict;
        timer.taken -= 1;
        claimed.news |= verdict == DeliveryState::Confirmed;
        true
    }

    fn lapse(&mut self, setting: &Setting, bundle: usize) {
        let claims = self.master.model.claims();
        let nonce = claims
            .filter(|(b, ..)| *b == bundle)
            .map(|(_, nonce, _)| nonce)
            .next();
        let Some(nonce) = nonce else { return };
        if self.has_holder(bundle, nonce) {
            self.left.pauses -= 1;
        }
        self.master.model.lapse(bundle);
        if setting.holder_is_late() {
            return;
        }
        let is = |claim: &Claim| claim.bundle == bundle && claim.nonce == nonce;
        let waiting: Vec<usize> = (0..self.actors())
            .filter(|&a| self.unheard(a).any(|g| is(&g)))
            .collect();
        for a in waiting {
            if let Some(wire) = &mut self.actor_mut(a).wire {
                wire.lapsed = true;
            }
        }
        for timer in &mut self.timers {
            for claimed in timer
                .claimed_bundles
                .iter_mut()
                .filter(|claimed| is(&claimed.claim))
            {
                claimed.lapsed = true;
                let about = |op: &Op| matches!(op, Op::Extend(claim, ..) if is(claim));
                if let Some(wire) = timer.actor.wire.as_mut().filter(|wire| about(&wire.op)) {
                    wire.lapsed = true;
                }
            }
        }
    }

    /// The replica takes over with what it has; whoever has not noticed goes on with the old master.
    fn fail_over(&mut self) {
        self.left.failovers -= 1;
        let Some(replica) = self.replica.clone() else {
            return;
        };
        let old = std::mem::replace(&mut self.master, *replica);
        // Bundle ids are their makers' own: no two masters ever have the same for two.
        self.master.model.next = old.model.next + 1000;
        self.old = Some(Box::new(old));
        if self.left.failovers == 0 {
            self.replica = None;
        }
        for a in 0..self.actors() {
            self.actor_mut(a).behind = true;
        }
    }
}

impl Ingress {
    /// Returns the records that were taken and not acknowledged to the source, which delivers them again.
    fn give_back(&mut self) {
        self.returned += u8::from(self.closed && self.marked > self.committed);
        (self.read, self.answered, self.marked) = (self.committed, self.committed, self.committed);
    }
}

/// `3` for the first read of the fourth record, `3'` for a later one.
pub fn show(body: u32) -> String {
    format!("{}{}", record_of(body), "'".repeat((body % READS) as usize))
}
