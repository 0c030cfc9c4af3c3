//! Runs calls on a master of the store.

use super::store::{Moment, StoreFault, WriteResult};
use super::world::*;

impl Master {
    /// Runs a call, or answers it as the first time.
    pub fn run(&mut self, caller: Caller, wire: &Wire, now: Moment) -> Answer {
        let numbered = !matches!(wire.op, Op::Extend(..) | Op::GiveBack(_) | Op::Sweep);
        let unnumbered =
            self.model.fault == Some(StoreFault::Unnumbered) && !matches!(wire.op, Op::Mark(..));
        let known = self.calls.iter().position(|(of, ..)| *of == caller);
        if let Some((_, number, answer)) = known.map(|at| &self.calls[at])
            && numbered
            && !unnumbered
            && *number >= wire.number
        {
            return if *number == wire.number {
                answer.clone()
            } else {
                Answer::Overtaken
            };
        }
        self.model.now = now;
        let refused = matches!(&wire.op, Op::Write(writes) if {
            let names: Vec<_> = writes.iter().flat_map(Write::names).collect();
            !self.model.is_as_seen(&names, &wire.found)
        });
        let answer = if refused {
            Answer::Refused
        } else {
            self.apply(caller, &wire.op)
        };
        let forgets = refused && self.model.fault == Some(StoreFault::RefusalForgotten);
        if numbered && !forgets {
            let entry = (caller, wire.number, answer.clone());
            match known {
                Some(at) => self.calls[at] = entry,
                None => self.calls.push(entry),
            }
        }
        answer
    }

    pub fn apply(&mut self, caller: Caller, op: &Op) -> Answer {
        let model = &mut self.model;
        match op {
            Op::Mark(source, read) => {
                self.marks[*source] = self.marks[*source].max(*read);
                Answer::Marked
            }
            Op::Write(writes) => {
                let results = writes.iter().flat_map(|write| self.write(caller, write));
                Answer::Written(results.collect())
            }
            Op::Claim(until) => Answer::Claimed(model.claim(*until, false, number_of(caller))),
            Op::Spread(bundle, seen) => Answer::Settled(model.spread(*bundle, seen)),
            Op::Settle(claim, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Settled(model.settle(*claim))
            }
            Op::Divide(claim, shares, back_at, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Divided(model.divide(*claim, shares, *back_at))
            }
            Op::Extend(claim, confirmed, delivered) => {
                model.remember(delivered.iter().copied());
                Answer::Settled(model.extend(*claim, false, confirmed))
            }
            Op::GiveBack(all) => {
                for (claim, confirmed, delivered) in all {
                    model.remember(delivered.iter().copied());
                    model.give_back(*claim, confirmed);
                }
                Answer::Settled(true)
            }
            Op::Sweep => {
                model.sweep();
                Answer::Swept
            }
        }
    }

    fn write(&mut self, caller: Caller, write: &Write) -> Vec<(WriteResult, Option<u32>)> {
        let model = &mut self.model;
        match write {
            Write::Store(messages, replace, grows) => {
                let results = if *grows {
                    model.store_growing(messages.clone(), *replace, number_of(caller))
                } else {
                    model.store(messages.clone(), *replace)
                };
                results.into_iter().map(|result| (result, None)).collect()
            }
            Write::Cancel(name) => {
                let meant = model.meanings().get(name).copied();
                let result = model.cancel(name);
                vec![(result, meant.filter(|_| result == WriteResult::Cancelled))]
            }
            Write::Move(name, due, fallback) => {
                vec![(model.reschedule(name, *due, *fallback), None)]
            }
            Write::Replace(name, message) => {
                let meant = model.meanings().get(name).copied();
                let result = model.replace(name, *message);
                vec![(result, meant.filter(|_| result == WriteResult::Replaced))]
            }
        }
    }
}

/// A number below 64 of its own for each process.
fn number_of(caller: Caller) -> u32 {
    (caller.0 * 8 + usize::from(caller.1)) as u32
}
