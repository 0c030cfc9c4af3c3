//! Clocks that do not go alike: the store's and the timers' own.

use super::store::Moment;
use super::world::{Fault, Setting};

/// How the store's clock goes, as the timers' own clocks see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Gain of a timer's clock on the store's in one unit of time: -1, 0 or 1.
    pub gain: Moment,
    /// Each look at the store's clock sees it step back.
    pub steps: bool,
}

/// Clocks get no further apart than this.
const APART: Moment = 2;

/// Leases in a row for which a timer lets nothing expire, at most.
pub const LEASES: u8 = 2;

impl Setting {
    /// A timer's own clock when the store's shows `now`: each unit of time takes them one further apart.
    pub fn own_clock(&self, now: Moment) -> Moment {
        now + self.drift.gain * now.min(APART)
    }

    /// By when both clocks call a message due.
    pub fn reached(&self, now: Moment) -> Moment {
        let own = self.own_clock(now);
        if self.has(Fault::OwnClock) {
            own
        } else {
            own.min(now)
        }
    }

    /// Reports whether one of the two clocks is past the last moment at which a message is wanted.
    pub fn is_past(&self, now: Moment, last: Option<Moment>) -> bool {
        last.is_some_and(|last| self.own_clock(now).max(now) > last)
    }

    /// Reports whether a timer that reads the store's clock now suspends expiry for a lease.
    pub fn suspends_expiry(&self, withheld: u8) -> bool {
        let cause = self.drift.steps || self.has(Fault::DriftIsAStep) && self.drift.gain > 0;
        let endless = self.has(Fault::DriftIsAStep) || self.has(Fault::HoldForEver);
        cause && (endless || withheld < LEASES)
    }

    /// Reports whether the claimer's own deadline can be later than the store's.
    pub fn holder_is_late(&self) -> bool {
        self.drift.gain < 0 && self.has(Fault::NoAllowance)
    }
}
