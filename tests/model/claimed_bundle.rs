//! Claimed bundle of a timer: the delivery state of each message, and the shares of a division.

use super::store::{Name, Share};
use super::world::*;

impl ClaimedBundle {
    pub fn has(&self, state: DeliveryState) -> bool {
        self.slots.iter().any(|(_, s)| *s == state)
    }

    /// Reports whether the bundle expired twice and is to be taken apart before any message of it is published.
    pub fn apart(&self) -> bool {
        self.expiries >= 2 && self.slots.len() > 1
    }

    /// Index of the earliest open message.
    pub fn next_open(&self) -> Option<usize> {
        let open = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, (_, s))| *s == DeliveryState::Open);
        open.min_by_key(|(_, (message, _))| message.due)
            .map(|(i, _)| i)
    }

    /// Hands nothing over any more. Returns the credit of what was not handed over.
    pub fn stop(&mut self) -> usize {
        let mut stopped = 0;
        for (_, s) in self
            .slots
            .iter_mut()
            .filter(|(_, s)| *s == DeliveryState::Open)
        {
            *s = DeliveryState::NotTried;
            stopped += 1;
        }
        stopped
    }

    /// The messages that have no verdict.
    pub fn unanswered(&self) -> usize {
        let waits = |s: &DeliveryState| matches!(s, DeliveryState::Open | DeliveryState::Handed);
        self.slots.iter().filter(|(_, s)| waits(s)).count()
    }

    pub fn confirmed(&self) -> Vec<bool> {
        self.slots
            .iter()
            .map(|(_, s)| *s == DeliveryState::Confirmed)
            .collect()
    }

    pub fn delivered(&self) -> Vec<Name> {
        let confirmed = self
            .slots
            .iter()
            .filter(|(_, s)| *s == DeliveryState::Confirmed);
        confirmed
            .filter_map(|(message, _)| message.remembered())
            .collect()
    }

    pub fn is_clean(&self) -> bool {
        self.slots
            .iter()
            .all(|(_, s)| matches!(s, DeliveryState::Skip | DeliveryState::Confirmed))
    }

    pub fn only_untried(&self) -> bool {
        let untried = |s: &DeliveryState| {
            matches!(
                s,
                DeliveryState::Skip | DeliveryState::Confirmed | DeliveryState::NotTried
            )
        };
        self.slots.iter().all(|(_, s)| untried(s))
    }

    pub fn shares(&self, setting: &Setting) -> Vec<Option<Share>> {
        let repeat = self.expiries > 0 && !setting.has(Fault::ForgetExpiry);
        let share = |s: DeliveryState| match s {
            DeliveryState::Skip => None,
            DeliveryState::Confirmed => Some(Share::Confirmed),
            _ if self.apart() => Some(Share::Alone),
            DeliveryState::Handed => Some(Share::InFlight),
            DeliveryState::Unknown => Some(Share::Back { repeat: true }),
            DeliveryState::Rejected | DeliveryState::Expired => Some(Share::Dead { repeat }),
            DeliveryState::Open | DeliveryState::NotTried | DeliveryState::Refused => {
                Some(Share::Back { repeat })
            }
        };
        self.slots.iter().map(|(_, s)| share(*s)).collect()
    }
}
