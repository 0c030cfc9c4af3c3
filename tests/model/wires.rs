//! What an actor and its master say to each other: calls, answers, and what follows from them.

use super::store::{Grip, Look, Parted, Said, Share};
use super::world::*;

impl Actor {
    pub fn send(&mut self, op: Op) {
        self.number += 1;
        self.wire =
            Some(Wire { op, number: self.number, look: Look::default(), answer: None, lapsed: false });
    }
}

impl World {
    /// Looks at the names of these and sends them.
    pub fn send_writes(&mut self, setting: &Setting, a: usize, writes: Vec<Write>) {
        let names: Vec<_> = writes.iter().flat_map(Write::names).collect();
        let look = self.master_of(a).model.look(&names, setting.ordered);
        self.actor_mut(a).send(Op::Write(writes));
        if let Some(wire) = &mut self.actor_mut(a).wire {
            wire.look = look;
        }
    }

    pub fn execute(&mut self, a: usize) {
        let actor = self.actor(a);
        let (lane, behind) = ((a, actor.life), actor.behind);
        let Some(wire) = actor.wire.clone() else { return };
        let now = self.now;
        let master = match &mut self.old {
            Some(old) if behind => old,
            _ => &mut self.master,
        };
        let answer = master.run(lane, &wire, now);
        if let Some(wire) = &mut self.actor_mut(a).wire {
            wire.answer = Some(answer);
        }
    }

    /// The answer was lost on the way: the call is sent again as it was.
    pub fn again(&mut self, a: usize) {
        if let Some(wire) = &mut self.actor_mut(a).wire {
            wire.answer = None;
        }
    }

    pub fn hear(&mut self, setting: &Setting, a: usize) {
        let Some(wire) = self.actor_mut(a).wire.take() else { return };
        let life = self.actor(a).life;
        let is_late = self.late.as_ref().is_some_and(|(lane, _)| *lane == (a, life));
        if setting.budget.failovers == 0 && !is_late {
            // With one master a call that was answered is never asked for again: forgotten, so that histories
            // that differ in nothing else meet.
            self.master.calls.retain(|(lane, ..)| *lane != (a, life));
            self.actor_mut(a).number = 0;
        }
        let lapsed = wire.lapsed;
        match (wire.op, wire.answer) {
            (Op::Write(writes), Some(Answer::Written(results))) => {
                self.written(setting, a, &writes, &results);
            }
            (Op::Write(writes), Some(Answer::Refused)) => self.send_writes(setting, a, writes),
            (Op::Claim(_), Some(Answer::Taken(taken))) => {
                let t = a - self.ingress.len();
                let drains = self.timers[t].draining;
                for one in taken {
                    let standing = |skip| if skip { Standing::Skip } else { Standing::Open };
                    let slots = one.letters.into_iter().zip(one.skip.into_iter().map(standing)).collect();
                    let (grip, expiries) = (one.grip, one.expiries);
                    let mut hand =
                        Hand { grip, first: grip, slots, expiries, lapsed, lost: false, news: false };
                    if drains {
                        hand.stop();
                    }
                    self.timers[t].hands.push(hand);
                }
            }
            (Op::Settle(grip, _), Some(Answer::Held(_))) => {
                self.timers[a - self.ingress.len()].hands.retain(|hand| hand.grip != grip);
            }
            (Op::Divide(grip, shares, ..), Some(Answer::Parted(parted))) => {
                self.divided(a - self.ingress.len(), grip, &shares, parted, lapsed);
            }
            (Op::Hold(grip, ..), Some(Answer::Held(held))) => {
                let timer = &mut self.timers[a - self.ingress.len()];
                if let Some(hand) = timer.hands.iter_mut().find(|hand| hand.grip == grip) {
                    if held {
                        hand.lapsed &= lapsed;
                    } else {
                        hand.lost = true;
                        hand.stop();
                    }
                }
            }
            _ => {}
        }
    }

    pub fn written(
        &mut self,
        setting: &Setting,
        s: usize,
        writes: &[Write],
        results: &[(Said, Option<u32>)],
    ) {
        let mut results = results.iter();
        let mut result = || *results.next().expect("a result a message or command");
        for write in writes {
            match write {
                Write::Store(letters, _) => {
                    for letter in letters {
                        result();
                        self.owed.insert(record_of(letter.body));
                    }
                }
                Write::Cancel(_) => self.cancelled.extend(result().1),
                Write::Move(_, _, fallback) => {
                    if result().0 == Said::Stored {
                        self.owed.insert(record_of(fallback.body));
                    }
                }
            }
        }
        let ingress = &mut self.ingress[s];
        ingress.answered = ingress.read;
        if setting.has(Fault::CommitBeforeStore) {
            ingress.committed = ingress.answered;
        }
    }

    pub fn divided(&mut self, t: usize, grip: Grip, shares: &[Option<Share>], parted: Parted, lapsed: bool) {
        let hands = &mut self.timers[t].hands;
        let Some(at) = hands.iter().position(|hand| hand.grip == grip) else { return };
        match parted {
            Parted::Done(Some(held)) => {
                let hand = &mut hands[at];
                let mut shares = shares.iter();
                hand.slots.retain(|_| *shares.next().expect("a share each") == Some(Share::Held));
                hand.grip = held;
                hand.lapsed = lapsed;
            }
            Parted::Done(None) => {
                hands.remove(at);
            }
            Parted::Stale => {
                hands[at].lost = true;
                hands[at].stop();
            }
        }
    }
}
