//! A master runs calls.

use super::store::{Flaw, Moment, Said};
use super::world::*;

impl Master {
    /// Runs a call, or answers it as the first time.
    pub fn run(&mut self, lane: Lane, wire: &Wire, now: Moment) -> Answer {
        let numbered = !matches!(wire.op, Op::Hold(..) | Op::GiveBack(_) | Op::Sweep);
        let unnumbered = self.model.flaw == Some(Flaw::Unnumbered) && !matches!(wire.op, Op::Mark(..));
        let known = self.calls.iter().position(|(of, ..)| *of == lane);
        if let Some((_, number, answer)) = known.map(|at| &self.calls[at])
            && numbered
            && !unnumbered
            && *number >= wire.number
        {
            return if *number == wire.number { answer.clone() } else { Answer::Overtaken };
        }
        self.model.now = now;
        let refused = matches!(&wire.op, Op::Write(writes) if {
            let names: Vec<_> = writes.iter().flat_map(Write::names).collect();
            !self.model.is_as_seen(&names, &wire.look)
        });
        let answer = if refused { Answer::Refused } else { self.apply(lane, &wire.op) };
        let forgets = refused && self.model.flaw == Some(Flaw::RefusalForgotten);
        if numbered && !forgets {
            let entry = (lane, wire.number, answer.clone());
            match known {
                Some(at) => self.calls[at] = entry,
                None => self.calls.push(entry),
            }
        }
        answer
    }

    pub fn apply(&mut self, lane: Lane, op: &Op) -> Answer {
        let model = &mut self.model;
        match op {
            Op::Mark(source, read) => {
                self.marks[*source] = self.marks[*source].max(*read);
                Answer::Marked
            }
            Op::Write(writes) => Answer::Written(writes.iter().flat_map(|write| self.write(write)).collect()),
            Op::Claim(until) => {
                let who = (lane.0 * 8 + usize::from(lane.1)) as u32;
                Answer::Taken(model.claim(*until, false, who))
            }
            Op::Settle(grip, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Held(model.settle(*grip))
            }
            Op::Divide(grip, shares, back_at, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Parted(model.divide(*grip, shares, *back_at))
            }
            Op::Hold(grip, confirmed, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Held(model.extend(*grip, false, confirmed))
            }
            Op::GiveBack(all) => {
                for (grip, confirmed, delivered) in all {
                    model.remember(delivered.iter().copied());
                    model.give_back(*grip, confirmed);
                }
                Answer::Held(true)
            }
            Op::Sweep => {
                model.sweep();
                Answer::Swept
            }
        }
    }

    pub fn write(&mut self, write: &Write) -> Vec<(Said, Option<u32>)> {
        let model = &mut self.model;
        match write {
            Write::Store(letters, replace) => {
                model.store(letters.clone(), *replace).into_iter().map(|said| (said, None)).collect()
            }
            Write::Cancel(name) => {
                let meant = model.meanings().get(name).copied();
                let said = model.cancel(name);
                vec![(said, meant.filter(|_| said == Said::Cancelled))]
            }
            Write::Move(name, due, fallback) => vec![(model.reschedule(name, *due, *fallback), None)],
        }
    }
}
