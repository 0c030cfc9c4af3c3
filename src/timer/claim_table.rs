//! The table of what a shard holds claimed, and of its ordered routes' lines. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, MutexGuard};

use super::claimed::{Heard, Holding, INDEX_BITS, LineId, Standing};
use super::key_order::rules::{Line, Place};
use crate::domain::{Partition, UnixMs, Verdict};
use crate::mutants::{self, Mutant};

/// All holdings of a shard.
#[derive(Default)]
pub(super) struct Table(Mutex<Slots>);

#[derive(Default)]
pub(super) struct Slots {
    pub(super) holdings: HashMap<u64, Holding>,
    pub(super) lines: BTreeMap<LineId, Line>,
    /// Looks of the claimer that have begun.
    pub(super) looks: u64,
    next: u64,
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock()
    }

    /// A number that no holding had before.
    pub(super) fn slot(&self) -> u64 {
        let mut slots = self.0.lock();
        slots.next += 1;
        slots.next
    }
}

impl Slots {
    /// Enters a verdict. Returns the holding's slot if it has nothing open any more, or something of it has to be
    /// put elsewhere at once.
    pub(super) fn judge(&mut self, ticket: u64, verdict: Verdict, heard: Heard) -> Option<u64> {
        let (slot, entry) = (ticket >> INDEX_BITS, (ticket & ((1 << INDEX_BITS) - 1)) as usize);
        let holding = self.holdings.get_mut(&slot)?;
        let standing = holding.standing.get_mut(entry)?;
        if *standing == Standing::Open {
            *standing = match verdict {
                Verdict::Unknown { .. } if mutants::is(Mutant::UnknownIsConfirmed) => Standing::Confirmed,
                Verdict::Confirmed if holding.flight.dying => {
                    let flight = &holding.flight;
                    flight.served.metrics.target_failures.confirmed(&flight.batch.target, heard.mono_us);
                    Standing::Died
                }
                Verdict::Confirmed => {
                    holding.news = true;
                    holding.flight.confirmed(entry, heard);
                    Standing::Confirmed
                }
                other => Standing::Failed(other),
            };
            holding.open -= 1;
            if holding.flight.keyed(entry as u32).is_some() {
                self.tell_line(slot, entry as u32, heard);
            }
        }
        let holding = self.holdings.get(&slot)?;
        (holding.open == 0 || holding.must_part()).then_some(slot)
    }

    /// What a verdict means for the key of its message.
    fn tell_line(&mut self, slot: u64, entry: u32, heard: Heard) {
        let Some(holding) = self.holdings.get_mut(&slot) else { return };
        let Some((id, keyed)) = holding.line().zip(holding.flight.keyed(entry)) else { return };
        let Some(line) = self.lines.get_mut(&id) else { return };
        let key = keyed.key.clone();
        let standing = &mut holding.standing[entry as usize];
        match standing {
            Standing::Confirmed | Standing::Died => line.done(&key),
            Standing::Failed(Verdict::NotTried) if !line.closing && holding.flight.goes_on(heard.mono_us) => {
                // Its lane had no use for it in time: it goes on waiting, in its place.
                *standing = Standing::Open;
                holding.open += 1;
                keyed.taken.store(false, Ordering::Release);
                line.undo(&key, holding.position(entry), Place { slot, entry });
            }
            // It goes back where it was, and nothing of its key may go before it.
            Standing::Failed(Verdict::NotTried) => line.closing = true,
            _ => holding.moving.push(key),
        }
    }

    /// Counts a look of the claimer, which begins now.
    pub(super) fn begin_look(&mut self) -> u64 {
        self.looks += 1;
        self.looks
    }

    /// Enters a claimed bundle, and its messages into their line.
    pub(super) fn enter(&mut self, slot: u64, holding: Holding) {
        if let Some(line) = holding.line().and_then(|id| self.lines.get_mut(&id)) {
            line.holdings += 1;
            line.dropped = false;
            for (entry, keyed) in (0..).zip(&holding.flight.keyed) {
                let Some(keyed) = keyed else { continue };
                line.enter(keyed.key.clone(), holding.position(entry), Place { slot, entry });
            }
        }
        self.holdings.insert(slot, holding);
    }

    /// Takes a holding out; nothing of it is left to be done.
    pub(super) fn remove(&mut self, slot: u64) -> Option<Holding> {
        let holding = self.holdings.remove(&slot)?;
        if let Some(line) = holding.line().and_then(|id| self.lines.get_mut(&id)) {
            line.holdings -= 1;
        }
        Some(holding)
    }

    /// Has what closing lines hold and have not handed over go back. Returns the holdings that have nothing open any
    /// more because of it.
    pub(super) fn drop_closing(&mut self) -> Vec<u64> {
        let mut finished = Vec::new();
        let Self { holdings, lines, .. } = self;
        for (id, line) in lines.iter_mut().filter(|(_, line)| line.closing && !line.dropped) {
            line.dropped = true;
            for (&slot, holding) in holdings.iter_mut().filter(|(_, h)| h.line().as_ref() == Some(id)) {
                holding.drop_unpublished();
                if holding.open == 0 {
                    finished.push(slot);
                }
            }
        }
        finished
    }

    /// Takes out the lines that have ended, with the names of those holders that have no claim left.
    pub(super) fn ended_lines(&mut self) -> Vec<(LineId, String)> {
        let mut ended = Vec::new();
        self.lines.retain(|id, line| {
            let over = line.closing && line.holdings == 0 && !line.claiming;
            if over && !line.orphans {
                ended.push((id.clone(), std::mem::take(&mut line.holder)));
            }
            !over
        });
        ended
    }

    /// When the next message of an ordered route falls due that only a look can let go.
    pub(super) fn next_look(&self) -> Option<UnixMs> {
        self.lines.values().filter_map(Line::next_look).min()
    }

    /// The partitions in which an ordered route is held here: whoever's they are, its holder goes on looking.
    pub(super) fn partitions_held(&self) -> BTreeSet<Partition> {
        self.lines.keys().map(|(_, p)| *p).collect()
    }

    /// The partitions in which one is due at this moment.
    pub(super) fn partitions_due(&self, now: UnixMs) -> Vec<Partition> {
        let due = self.lines.iter().filter(|(_, line)| line.next_look().is_some_and(|due| due <= now));
        let partitions: BTreeSet<Partition> = due.map(|((_, p), _)| *p).collect();
        partitions.into_iter().collect()
    }
}
