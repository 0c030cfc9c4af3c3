//! Lists the actions that are possible in a world.

use super::drift::LEASES;
use super::store::Message;
use super::world::{Action, DeliveryState, Fault, Op, Record, Setting, Timer, World};

impl Setting {
    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Reports whether the answer to this call waits for a replica.
    fn waits(&self, op: &Op) -> bool {
        let waits = match op {
            Op::Mark(..) => !self.has(Fault::MarkWithoutWait),
            Op::Write(_) | Op::Claim(_) => true,
            _ => false,
        };
        self.replicated && waits && !self.has(Fault::NoWait)
    }
}

impl World {
    /// All that can happen next: first what goes on by itself, then what may or may not happen. Answers how
    /// many are of the first kind: where there are none, the world has come to rest.
    pub fn possible(&self, setting: &Setting, all: &mut Vec<Action>) -> usize {
        all.clear();
        self.ingresses_go_on(setting, all);
        self.timers_go_on(setting, all);
        self.calls_go_on(setting, all);
        self.rest_goes_on(setting, all);
        let by_itself = all.len();
        self.faults(setting, all);
        by_itself
    }

    fn ingresses_go_on(&self, setting: &Setting, all: &mut Vec<Action>) {
        for (s, ingress) in self.ingress.iter().enumerate() {
            let taken = ingress.marked > ingress.read;
            let shut = ingress.closed && (taken || !setting.has(Fault::SubscribeWhileWaiting));
            if !shut && ingress.actor.wire.is_none() && ingress.read < self.there(setting, s) {
                all.push(if taken {
                    Action::Send(s)
                } else {
                    Action::Read(s)
                });
            }
            if ingress.closed {
                all.push(Action::Open(s));
            }
            if ingress.committed < ingress.answered {
                all.push(Action::Commit(s));
            }
        }
    }

    /// How many records of a source are there: what consumers give back comes once it was delivered.
    pub fn there(&self, setting: &Setting, s: usize) -> usize {
        let records = &setting.sources[s].records;
        let is_there = |at: usize| match records[at] {
            Record::Back(_, _, count) if count > 1 => {
                let (number, _) = setting.record(s, at - 1);
                self.tally[number].times > 0
            }
            _ => true,
        };
        (0..records.len())
            .find(|&at| !is_there(at))
            .unwrap_or(records.len())
    }

    fn timers_go_on(&self, setting: &Setting, all: &mut Vec<Action>) {
        for (t, timer) in self.timers.iter().enumerate() {
            let free = timer.actor.wire.is_none();
            let model = &self.master_of(self.ingress.len() + t).model;
            if free && !timer.draining {
                let has_credit = timer.taken < setting.credit;
                if has_credit && model.has_due(self.now + setting.lookahead) {
                    all.push(Action::Claim(t));
                }
                let sweeps = !setting.has(Fault::SweepAtStart) && !setting.suspends_expiry(LEASES);
                if sweeps && model.claims().any(|(_, _, expired)| expired) {
                    all.push(Action::Sweep(t));
                }
            }
            if free && !timer.draining {
                match timer.growing {
                    None => all.extend(model.growing().map(|one| Action::ReadGrowing(t, one))),
                    Some(_) => all.push(Action::Spread(t)),
                }
            }
            if free && timer.draining && timer.claimed_bundles.is_empty() {
                all.push(Action::Leave(t));
            }
            for (h, claimed) in timer.claimed_bundles.iter().enumerate() {
                if claimed.lost || claimed.apart() {
                    if free && !claimed.has(DeliveryState::Handed) {
                        all.push(Action::Finish(t, h));
                    }
                    continue;
                }
                let next = claimed.next_open().map(|i| claimed.slots[i].0);
                let goes = |message: Message| {
                    message.due <= setting.reached(self.now) || setting.has(Fault::Early)
                };
                if next.is_some_and(goes) {
                    all.push(Action::HandOver(t, h));
                }
                if free && next.is_none() && !claimed.has(DeliveryState::Handed) {
                    all.push(Action::Finish(t, h));
                }
            }
        }
    }

    fn calls_go_on(&self, setting: &Setting, all: &mut Vec<Action>) {
        for a in 0..self.actors() {
            let actor = self.actor(a);
            let Some(wire) = &actor.wire else { continue };
            if wire.answer.is_none() {
                all.push(Action::Execute(a));
            } else if !setting.waits(&wire.op) || self.is_replicated(a, wire.number) {
                all.push(Action::Hear(a));
            }
        }
        if self
            .replica
            .as_ref()
            .is_some_and(|replica| **replica != self.master)
        {
            all.push(Action::Replicate);
        }
    }

    fn is_replicated(&self, a: usize, number: u8) -> bool {
        let actor = self.actor(a);
        let Some(replica) = &self.replica else {
            return !actor.behind;
        };
        let has = |(caller, n, _): &((usize, u8), u8, _)| {
            *caller == (a, actor.incarnation) && *n >= number
        };
        !actor.behind && replica.calls.iter().any(has)
    }

    fn rest_goes_on(&self, setting: &Setting, all: &mut Vec<Action>) {
        all.extend((0..self.socket.len()).map(Action::Deliver));
        for (bundle, nonce, expired) in self.master.model.claims() {
            if !expired && !self.has_holder(bundle, nonce) {
                all.push(Action::Lapse(bundle));
            }
        }
        let held = self
            .timers
            .iter()
            .flat_map(|t| &t.claimed_bundles)
            .flat_map(|h| &h.slots);
        let open = held
            .filter(|(message, s)| {
                *s == DeliveryState::Open && message.due > setting.reached(self.now)
            })
            .count();
        let waits = self
            .master
            .model
            .next_due(self.now + setting.lookahead)
            .is_some();
        if open > 0 || waits {
            all.push(Action::Tick);
        }
        for a in 0..self.actors() {
            if self.actor(a).behind {
                all.push(Action::Notice(a));
            }
        }
    }

    fn faults(&self, setting: &Setting, all: &mut Vec<Action>) {
        let left = &self.left;
        for a in 0..self.actors() {
            let wire = self.actor(a).wire.as_ref();
            if left.crashes > 0 {
                all.push(Action::Crash(a, false));
                if wire.is_some_and(|wire| wire.answer.is_none()) && self.late.is_none() {
                    all.push(Action::Crash(a, true));
                }
            }
            if left.lost_replies > 0
                && let Some(wire) = wire
            {
                if wire.answer.is_some() {
                    all.push(Action::LoseReply(a));
                } else if self.late.is_none() {
                    all.push(Action::Resend(a));
                }
            }
        }
        if self.late.is_some() {
            all.push(Action::Late);
        }
        for (s, ingress) in self.ingress.iter().enumerate() {
            if left.closings > 0 && !ingress.closed {
                all.push(Action::Close(s));
            }
            let idle = ingress.actor.wire.is_none() && ingress.committed == ingress.answered;
            if ingress.closed && idle && ingress.marked > ingress.committed {
                all.push(Action::Return(s));
            }
        }
        for (t, timer) in self.timers.iter().enumerate() {
            if left.drains > 0 && !timer.draining {
                all.push(Action::Drain(t));
            }
            if timer.actor.wire.is_none() {
                self.optional_calls(t, timer, all);
            }
        }
        for (k, publication) in self.socket.iter().enumerate() {
            let owner = &self.timers[publication.timer];
            let lives = owner.actor.incarnation == publication.incarnation;
            if !lives || left.unknowns > 0 {
                all.push(Action::Vanish(k));
            }
            if lives && left.unknowns > 0 {
                all.push(Action::DeliverUnheard(k));
            }
            if left.refusals > 0 {
                all.push(Action::Refuse(k));
            }
            if left.rejections > 0 {
                all.push(Action::Reject(k));
            }
        }
        if left.pauses > 0 {
            for (bundle, nonce, expired) in self.master.model.claims() {
                if !expired && self.has_holder(bundle, nonce) {
                    all.push(Action::Lapse(bundle));
                }
            }
        }
        if left.pauses > 0 && setting.drift.gain != 0 {
            for (t, timer) in self.timers.iter().enumerate() {
                let claimed_bundles = timer
                    .claimed_bundles
                    .iter()
                    .enumerate()
                    .filter(|(_, claimed)| !claimed.lapsed && !claimed.lost);
                all.extend(claimed_bundles.map(|(h, _)| Action::OwnDeadline(t, h)));
            }
        }
        if left.failovers > 0 {
            all.push(Action::FailOver);
        }
        if left.redrives > 0 {
            all.extend(self.master.model.dead().into_iter().map(Action::Redrive));
        }
    }

    fn optional_calls(&self, t: usize, timer: &Timer, all: &mut Vec<Action>) {
        for (h, claimed) in timer
            .claimed_bundles
            .iter()
            .enumerate()
            .filter(|(_, claimed)| !claimed.lost)
        {
            let handed = claimed.has(DeliveryState::Handed);
            let resolved = claimed
                .slots
                .iter()
                .any(|(_, s)| !matches!(s, DeliveryState::Skip | DeliveryState::Handed));
            if self.left.notes > 0 && claimed.news && (handed || claimed.has(DeliveryState::Open)) {
                all.push(Action::Note(t, h));
            }
            if self.left.splits > 0 && handed && resolved && !claimed.has(DeliveryState::Open) {
                all.push(Action::Split(t, h));
            }
        }
    }
}
