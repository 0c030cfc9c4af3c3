//! What a timer has in its hands.

use super::store::{Name, Share};
use super::world::*;

impl Hand {
    pub fn has(&self, standing: Standing) -> bool {
        self.slots.iter().any(|(_, s)| *s == standing)
    }

    /// It expired twice: to be taken apart before anything of it is published.
    pub fn apart(&self) -> bool {
        self.expiries >= 2 && self.slots.len() > 1
    }

    /// The earliest that is open.
    pub fn next_open(&self) -> Option<usize> {
        let open = self.slots.iter().enumerate().filter(|(_, (_, s))| *s == Standing::Open);
        open.min_by_key(|(_, (letter, _))| letter.due).map(|(i, _)| i)
    }

    pub fn stop(&mut self) {
        for (_, s) in self.slots.iter_mut().filter(|(_, s)| *s == Standing::Open) {
            *s = Standing::NotTried;
        }
    }

    pub fn confirmed(&self) -> Vec<bool> {
        self.slots.iter().map(|(_, s)| *s == Standing::Confirmed).collect()
    }

    pub fn delivered(&self) -> Vec<Name> {
        let confirmed = self.slots.iter().filter(|(_, s)| *s == Standing::Confirmed);
        confirmed.filter_map(|(letter, _)| letter.name).collect()
    }

    pub fn is_clean(&self) -> bool {
        self.slots.iter().all(|(_, s)| matches!(s, Standing::Skip | Standing::Confirmed))
    }

    pub fn only_untried(&self) -> bool {
        let untried = |s: &Standing| matches!(s, Standing::Skip | Standing::Confirmed | Standing::NotTried);
        self.slots.iter().all(|(_, s)| untried(s))
    }

    pub fn shares(&self, setting: &Setting) -> Vec<Option<Share>> {
        let repeat = self.expiries > 0 && !setting.has(Fault::ForgetExpiry);
        let share = |s: Standing| match s {
            Standing::Skip => None,
            Standing::Confirmed => Some(Share::Confirmed),
            _ if self.apart() => Some(Share::Alone),
            Standing::Handed => Some(Share::Held),
            Standing::Unknown => Some(Share::Back { repeat: true }),
            Standing::Rejected => Some(Share::Dead { repeat }),
            Standing::Open | Standing::NotTried | Standing::Refused => Some(Share::Back { repeat }),
        };
        self.slots.iter().map(|(_, s)| share(*s)).collect()
    }
}
