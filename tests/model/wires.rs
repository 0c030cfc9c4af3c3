//! Exchanges calls and answers between an actor and its master, and applies the answers.

use super::store::{Claim, FindResult, Message, SettleOutcome, Share, WriteResult};
use super::world::*;

impl Actor {
    pub fn send(&mut self, op: Op) {
        self.number += 1;
        self.wire = Some(Wire {
            op,
            number: self.number,
            found: FindResult::default(),
            answer: None,
            lapsed: false,
        });
    }
}

impl World {
    /// Finds the names of these writes and sends the writes.
    pub fn send_writes(&mut self, setting: &Setting, a: usize, writes: Vec<Write>) {
        let names: Vec<_> = writes.iter().flat_map(Write::names).collect();
        let found = self.master_of(a).model.find(&names, setting.ordered);
        self.actor_mut(a).send(Op::Write(writes));
        if let Some(wire) = &mut self.actor_mut(a).wire {
            wire.found = found;
        }
    }

    pub fn execute(&mut self, a: usize) {
        let actor = self.actor(a);
        let caller = (a, actor.incarnation);
        let behind = actor.behind;
        let Some(wire) = actor.wire.clone() else {
            return;
        };
        let now = self.now;
        let master = match &mut self.old {
            Some(old) if behind => old,
            _ => &mut self.master,
        };
        let answer = master.run(caller, &wire, now);
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
        let Some(wire) = self.actor_mut(a).wire.take() else {
            return;
        };
        let incarnation = self.actor(a).incarnation;
        let is_late = self
            .late
            .as_ref()
            .is_some_and(|(caller, _)| *caller == (a, incarnation));
        if setting.budget.failovers == 0 && !is_late {
            // With one master a call that was answered is never asked for again: forgotten, so that histories
            // that differ in nothing else meet.
            self.master
                .calls
                .retain(|(caller, ..)| *caller != (a, incarnation));
            self.actor_mut(a).number = 0;
        }
        let lapsed = wire.lapsed;
        match (wire.op, wire.answer) {
            (Op::Write(writes), Some(Answer::Written(results))) => {
                self.written(setting, a, &writes, &results);
            }
            (Op::Write(writes), Some(Answer::Refused)) => self.send_writes(setting, a, writes),
            (Op::Claim(_), Some(Answer::Claimed(taken))) => {
                let t = a - self.ingress.len();
                let drains = self.timers[t].draining;
                for one in taken {
                    let state = |message: Message, skip| {
                        let state = match skip {
                            true => DeliveryState::Skip,
                            false if self.is_stale_when_claimed(setting, &message) => {
                                DeliveryState::Expired
                            }
                            false => DeliveryState::Open,
                        };
                        (message, state)
                    };
                    let messages = one.messages.into_iter().zip(one.skip);
                    let slots = messages
                        .map(|(message, skip)| state(message, skip))
                        .collect();
                    let claim = one.claim;
                    let expiries = one.expiries;
                    let mut claimed = ClaimedBundle {
                        claim,
                        first: claim,
                        slots,
                        expiries,
                        lapsed,
                        lost: false,
                        news: false,
                    };
                    if drains {
                        claimed.stop();
                    }
                    self.timers[t].taken += claimed.unanswered();
                    self.timers[t].claimed_bundles.push(claimed);
                }
            }
            (Op::Settle(claim, _), Some(Answer::Settled(_))) => {
                self.timers[a - self.ingress.len()]
                    .claimed_bundles
                    .retain(|claimed| claimed.claim != claim);
            }
            (Op::Divide(claim, shares, ..), Some(Answer::Divided(outcome))) => {
                self.divided(a - self.ingress.len(), claim, &shares, outcome, lapsed);
            }
            (Op::Extend(claim, ..), Some(Answer::Settled(is_ours))) => {
                let timer = &mut self.timers[a - self.ingress.len()];
                if let Some(claimed) = timer
                    .claimed_bundles
                    .iter_mut()
                    .find(|claimed| claimed.claim == claim)
                {
                    if is_ours {
                        claimed.lapsed &= lapsed;
                    } else {
                        claimed.lost = true;
                        let freed = claimed.stop();
                        if !setting.has(Fault::CreditKept) {
                            timer.taken -= freed;
                        }
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
        results: &[(WriteResult, Option<u32>)],
    ) {
        let mut results = results.iter();
        let mut result = || *results.next().expect("a result a message or command");
        for write in writes {
            match write {
                Write::Store(messages, ..) => {
                    for message in messages {
                        result();
                        self.owed.insert(record_of(message.body));
                    }
                }
                Write::Cancel(_) => self.cancelled.extend(result().1),
                Write::Move(_, _, fallback) => {
                    if result().0 == WriteResult::Stored {
                        self.owed.insert(record_of(fallback.body));
                    }
                }
                Write::Replace(_, message) => {
                    let (result, replaced) = result();
                    self.cancelled.extend(replaced);
                    if result != WriteResult::TooLate {
                        self.owed.insert(record_of(message.body));
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

    pub fn divided(
        &mut self,
        t: usize,
        claim: Claim,
        shares: &[Option<Share>],
        outcome: SettleOutcome,
        lapsed: bool,
    ) {
        let timer = &mut self.timers[t];
        let claimed_bundles = &mut timer.claimed_bundles;
        let Some(at) = claimed_bundles
            .iter()
            .position(|claimed| claimed.claim == claim)
        else {
            return;
        };
        match outcome {
            SettleOutcome::Done(Some(in_flight)) => {
                let claimed = &mut claimed_bundles[at];
                let before = claimed.unanswered();
                let mut shares = shares.iter();
                claimed
                    .slots
                    .retain(|_| *shares.next().expect("a share each") == Some(Share::InFlight));
                claimed.claim = in_flight;
                claimed.lapsed = lapsed;
                timer.taken -= before - claimed.unanswered();
            }
            SettleOutcome::Done(None) => {
                timer.taken -= claimed_bundles.remove(at).unanswered();
            }
            SettleOutcome::Stale => {
                claimed_bundles[at].lost = true;
                timer.taken -= claimed_bundles[at].stop();
            }
        }
    }
}
