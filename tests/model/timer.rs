//! What a timer does with what it has in its hands.

use super::checks::{Broken, broken};
use super::step::show;
use super::world::*;

impl Timer {
    /// A lease goes by without an expiry, or what has expired comes back.
    pub fn sweep(&mut self, setting: &Setting) {
        if setting.holds_expiry(self.withheld) {
            self.withheld += 1;
        } else {
            self.actor.send(Op::Sweep);
        }
    }
}

impl World {
    pub fn hand_over(&mut self, setting: &Setting, t: usize, h: usize) -> Result<(), Broken> {
        let timer = &mut self.timers[t];
        let (hand, life) = (&mut timer.hands[h], timer.actor.life);
        let Some(index) = hand.next_open() else { return Ok(()) };
        let (letter, standing) = &mut hand.slots[index];
        if hand.lapsed {
            *standing = Standing::NotTried;
            return Ok(());
        }
        if letter.due > self.now.min(setting.own_clock(self.now)) {
            return broken("early", format!("{} is due at {}", show(letter.body), letter.due));
        }
        if self.cancelled.contains(&letter.body) {
            return broken(
                "cancelled",
                format!("{} goes out after its cancel was answered", show(letter.body)),
            );
        }
        let (letter, flagged) = (*letter, letter.repeat || hand.expiries > 0);
        *standing = Standing::Handed;
        if setting.has(Fault::SettleBeforeConfirm) {
            *standing = Standing::Confirmed;
        }
        self.socket.push(Publication { letter, flagged, timer: t, life, first: hand.first });
        Ok(())
    }

    pub fn finish(&mut self, setting: &Setting, t: usize, h: usize) {
        let draining = self.timers[t].draining;
        let hand = &self.timers[t].hands[h];
        if hand.lost {
            if hand.news {
                self.note(t, h);
            }
            self.timers[t].hands.remove(h);
        } else if hand.is_clean() {
            let op = Op::Settle(hand.grip, hand.delivered());
            self.timers[t].actor.send(op);
        } else if draining && hand.only_untried() {
            let back = (hand.grip, hand.confirmed(), hand.delivered());
            self.timers[t].actor.send(Op::GiveBack(vec![back]));
            self.timers[t].hands.remove(h);
        } else {
            self.divide(setting, t, h);
        }
    }

    pub fn divide(&mut self, setting: &Setting, t: usize, h: usize) {
        let hand = &self.timers[t].hands[h];
        let op = Op::Divide(hand.grip, hand.shares(setting), self.now, hand.delivered());
        self.timers[t].actor.send(op);
    }

    pub fn note(&mut self, t: usize, h: usize) {
        let hand = &mut self.timers[t].hands[h];
        hand.news = false;
        let op = Op::Hold(hand.grip, hand.confirmed(), hand.delivered());
        self.timers[t].actor.send(op);
    }
}
