//! Actions of a timer on its claimed bundles.

use super::checks::{Broken, broken};
use super::step::show;
use super::store::Message;
use super::world::*;

impl Timer {
    /// A lease goes by without an expiry, or what has expired comes back.
    pub fn sweep(&mut self, setting: &Setting) {
        if setting.suspends_expiry(self.withheld) {
            self.withheld += 1;
        } else {
            self.actor.send(Op::Sweep);
        }
    }
}

impl World {
    /// Reports whether a timer with a planted fault calls a message stale that it has just claimed.
    pub fn is_stale_when_claimed(&self, setting: &Setting, message: &Message) -> bool {
        setting.has(Fault::ExpiryAtClaim) && setting.is_past(self.now, message.last)
    }

    pub fn hand_over(&mut self, setting: &Setting, t: usize, h: usize) -> Result<(), Broken> {
        let timer = &mut self.timers[t];
        let claimed = &mut timer.claimed_bundles[h];
        let incarnation = timer.actor.incarnation;
        let Some(index) = claimed.next_open() else {
            return Ok(());
        };
        let (message, state) = &mut claimed.slots[index];
        if claimed.lapsed {
            *state = DeliveryState::NotTried;
            timer.taken -= 1;
            return Ok(());
        }
        if message.due > self.now.min(setting.own_clock(self.now)) {
            return broken(
                "early",
                format!("{} is due at {}", show(message.body), message.due),
            );
        }
        if self.cancelled.contains(&message.body) {
            return broken(
                "cancelled",
                format!(
                    "{} goes out after its cancel was answered",
                    show(message.body)
                ),
            );
        }
        let now = self.now;
        if !setting.has(Fault::ExpiryAtClaim) && setting.is_past(now, message.last) {
            *state = DeliveryState::Expired;
            timer.taken -= 1;
            return Ok(());
        }
        if message.last.is_some_and(|last| last < now) {
            return broken(
                "stale",
                format!("{} was wanted until {:?}", show(message.body), message.last),
            );
        }
        let message = *message;
        let flagged = message.repeat || claimed.expiries > 0;
        *state = DeliveryState::Handed;
        if setting.has(Fault::SettleBeforeConfirm) {
            *state = DeliveryState::Confirmed;
            timer.taken -= 1;
        }
        self.socket.push(Publication {
            message,
            flagged,
            timer: t,
            incarnation,
            first: claimed.first,
        });
        Ok(())
    }

    pub fn finish(&mut self, setting: &Setting, t: usize, h: usize) {
        let draining = self.timers[t].draining;
        let claimed = &self.timers[t].claimed_bundles[h];
        if claimed.lost {
            if claimed.news {
                self.note(t, h);
            }
            self.timers[t].claimed_bundles.remove(h);
        } else if claimed.is_clean() {
            let op = Op::Settle(claimed.claim, claimed.delivered());
            self.timers[t].actor.send(op);
        } else if draining && claimed.only_untried() {
            let back = (claimed.claim, claimed.confirmed(), claimed.delivered());
            self.timers[t].actor.send(Op::GiveBack(vec![back]));
            self.timers[t].claimed_bundles.remove(h);
        } else {
            self.divide(setting, t, h);
        }
    }

    pub fn divide(&mut self, setting: &Setting, t: usize, h: usize) {
        let claimed = &self.timers[t].claimed_bundles[h];
        let op = Op::Divide(
            claimed.claim,
            claimed.shares(setting),
            self.now,
            claimed.delivered(),
        );
        self.timers[t].actor.send(op);
    }

    pub fn note(&mut self, t: usize, h: usize) {
        let claimed = &mut self.timers[t].claimed_bundles[h];
        claimed.news = false;
        let op = Op::Extend(claimed.claim, claimed.confirmed(), claimed.delivered());
        self.timers[t].actor.send(op);
    }
}
