//! What a partition's records come to: which of them the store should hold and does not, and which commands
//! it has missed. Pure.
//!
//! A name is followed through the partition as the store would have followed it, by the records' own times:
//! what was cancelled is not stored to be cancelled again, what was moved is stored at its last moment. Only
//! the last message of a name keeps it; an earlier one that fell due long ago goes out without, for it must
//! not take the name from whatever came since.

use std::collections::HashMap;

use super::again::{Again, Asks};
use super::known::{Known, name_hash};
use crate::domain::route::DelayFrom;
use crate::domain::{OnDuplicate, RoutePolicy, UnixMs};
use crate::store::Standing;

/// Which records count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// When the replay was begun.
    pub now: UnixMs,
    /// Records with a later timestamp are not stored again, nor are their commands; what they say of others
    /// is believed.
    pub until: Option<UnixMs>,
    /// What was due and came before this is left out.
    pub due_after: UnixMs,
}

/// What is to be done with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is a message that the store should hold.
    Store {
        /// Its moment.
        due: UnixMs,
        /// Whether it has its name.
        named: bool,
        /// The position of one of its name that it is to take the place of.
        instead_of: Option<i64>,
    },
    /// The message of its name that was read at this offset is cancelled.
    Cancel {
        /// That offset.
        of: i64,
    },
    /// The same, moved to another moment.
    Reschedule {
        /// That offset.
        of: i64,
        /// The moment.
        due: UnixMs,
    },
    /// It is invalid and kept as a dead letter.
    Bury,
}

/// How many records come to what. Each counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that were looked at.
    pub read: u64,
    /// Messages to be stored, those that are due already included.
    pub stored: u64,
    /// Of these: due already, so that they leave at once.
    pub overdue: u64,
    /// Messages to be cancelled in the store.
    pub cancelled: u64,
    /// Messages to be moved in the store.
    pub rescheduled: u64,
    /// Invalid ones to be kept as dead letters.
    pub dead: u64,
    /// The store has them: waiting, in flight or dead.
    pub there: u64,
    /// Cancelled, replaced or repeated later in the topic; commands whose message is here or gone.
    pub settled: u64,
    /// Due before `due_after`.
    pub before: u64,
    /// Later than `until`.
    pub later: u64,
    /// Without a delay, or invalid and not kept: they never were in the store.
    pub passing: u64,
}

impl Tally {
    /// Steps that there are to do.
    pub fn steps(&self) -> u64 {
        self.stored + self.cancelled + self.rescheduled + self.dead
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.read += more.read;
        self.stored += more.stored;
        self.overdue += more.overdue;
        self.cancelled += more.cancelled;
        self.rescheduled += more.rescheduled;
        self.dead += more.dead;
        self.there += more.there;
        self.settled += more.settled;
        self.before += more.before;
        self.later += more.later;
        self.passing += more.passing;
    }
}

/// Why nothing is done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    There,
    Before,
    Later,
    Passing,
}

/// The last message of a name.
#[derive(Clone, Copy, Debug)]
struct Last {
    offset: i64,
    /// By what its records say.
    due: UnixMs,
    /// By what the store says, if it has it.
    there: Option<UnixMs>,
}

/// Follows one partition's records, in order.
pub struct Planner<'a> {
    bounds: Bounds,
    on_duplicate: OnDuplicate,
    dedupe_ms: i64,
    /// Whether a record's due time is the very one that the store was given: it is not where the moment of
    /// arrival counted, which nobody wrote down.
    exact: bool,
    known: &'a Known,
    names: HashMap<u128, Last>,
    steps: HashMap<i64, Planned>,
    /// The highest time of a record so far.
    clock: UnixMs,
    tally: Tally,
    named: u64,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    step: Step,
    at: Option<UnixMs>,
}

/// What is to be done with one partition's records.
#[derive(Debug)]
pub struct Plan {
    bounds: Bounds,
    /// Of those with names; the others are judged one by one.
    steps: HashMap<i64, Step>,
    /// What it comes to.
    pub tally: Tally,
}

impl<'a> Planner<'a> {
    /// Begins with what the store holds from before the records: of a partition, below `from`.
    pub fn new(
        bounds: Bounds,
        policy: &RoutePolicy,
        known: &'a Known,
        (partition, from): (i32, i64),
    ) -> Self {
        let before = known
            .of(partition)
            .iter()
            .filter(|mark| mark.name != 0 && mark.offset < from && mark.standing != Standing::Ended);
        let names = before
            .map(|mark| (mark.name, Last { offset: mark.offset, due: mark.due, there: Some(mark.due) }));
        Self {
            bounds,
            on_duplicate: policy.on_duplicate,
            dedupe_ms: policy.dedupe_ms,
            exact: policy.delay_from == DelayFrom::Produced,
            known,
            names: names.collect(),
            steps: HashMap::new(),
            clock: UnixMs(i64::MIN),
            tally: Tally::default(),
            named: 0,
        }
    }

    /// The next record.
    pub fn take(&mut self, record: &Again) {
        self.tally.read += 1;
        self.clock = self.clock.max(record.at.unwrap_or(self.bounds.now));
        let (name, due) = match &record.asks {
            Asks::Delayed { id: Some(id), due } | Asks::Reschedule { id, due } => (id, Some(*due)),
            Asks::Cancel { id } => (id, None),
            _ => return self.nameless(record),
        };
        let name = name_hash(name.as_str());
        self.named += 1;
        match (due, &record.asks) {
            (None, _) => self.cancel(name, record),
            (Some(due), Asks::Reschedule { .. }) => self.reschedule(name, due, record),
            (Some(due), _) => self.store(name, due, record),
        }
    }

    fn nameless(&mut self, record: &Again) {
        let tally = &mut self.tally;
        match judge(record, &self.bounds, self.known) {
            Ok(Step::Bury) => tally.dead += 1,
            Ok(_) => {
                tally.stored += 1;
                tally.overdue +=
                    u64::from(matches!(record.asks, Asks::Delayed { due, .. } if due <= self.bounds.now));
            }
            Err(Why::There) => tally.there += 1,
            Err(Why::Before) => tally.before += 1,
            Err(Why::Later) => tally.later += 1,
            Err(Why::Passing) => tally.passing += 1,
        }
    }

    fn store(&mut self, name: u128, due: UnixMs, record: &Again) {
        let last = self.names.get(&name).copied();
        if let Some(mark) = self.known.find(record.position, record.content) {
            self.tally.there += 1;
            self.named -= 1;
            if mark.standing == Standing::Ended {
                return;
            }
            // The store gave it the name: it is the one message of that name by now.
            self.forget(last.filter(|last| last.due > self.clock));
            self.names.insert(name, Last { offset: record.position.1, due, there: Some(mark.due) });
            return;
        }
        let mut instead_of = None;
        if let Some(last) = last {
            let waits = last.due > self.clock;
            match self.on_duplicate {
                OnDuplicate::Keep if waits => return,
                OnDuplicate::Replace if waits => {
                    self.forget(Some(last));
                    instead_of = last.there.map(|_| last.offset);
                }
                _ if self.dedupe_ms > 0 && self.clock.since(last.due) < self.dedupe_ms => return,
                _ => {}
            }
        }
        self.plan(record, Step::Store { due, named: true, instead_of });
        self.names.insert(name, Last { offset: record.position.1, due, there: None });
    }

    /// A cancel that came too late is obeyed all the same: nobody waits for what was called off.
    fn cancel(&mut self, name: u128, record: &Again) {
        let last = self.names.remove(&name);
        self.forget(last);
        if let Some(Last { offset, there: Some(_), .. }) = last {
            self.plan(record, Step::Cancel { of: offset });
        }
    }

    fn reschedule(&mut self, name: u128, due: UnixMs, record: &Again) {
        let Some(last) = self.names.get(&name).copied().filter(|last| last.due > self.clock) else {
            // As it was then: the command becomes a message.
            return self.store(name, due, record);
        };
        let own = self.known.find(record.position, record.content);
        let own = own.filter(|mark| mark.standing != Standing::Ended).map(|_| record.position.1);
        let mut moved = Last { due, ..last };
        match last.there {
            None => {
                if let Some(Planned { step: Step::Store { due: at, instead_of, .. }, .. }) =
                    self.steps.get_mut(&last.offset)
                {
                    *at = due;
                    // The store had lost the message by then, and took the command for one.
                    *instead_of = instead_of.or(own);
                }
            }
            Some(there) if !self.is_unmoved(there, last.due, due) => {}
            Some(_) => {
                self.plan(record, Step::Reschedule { of: last.offset, due });
                moved.there = Some(due);
            }
        }
        self.names.insert(name, moved);
    }

    /// Whether the store has yet to hear of a command: it has the moment from before, not the commanded one
    /// nor one that somebody gave it since.
    fn is_unmoved(&self, there: UnixMs, before: UnixMs, commanded: UnixMs) -> bool {
        let to = |at: UnixMs| there.since(at).abs();
        if self.exact { there == before } else { to(before) < to(commanded) }
    }

    /// What was to be stored is not.
    fn forget(&mut self, last: Option<Last>) {
        if let Some(Last { offset, there: None, .. }) = last {
            self.steps.remove(&offset);
        }
    }

    fn plan(&mut self, record: &Again, step: Step) {
        self.steps.insert(record.position.1, Planned { step, at: record.at });
    }

    /// What it comes to.
    pub fn finish(self) -> Plan {
        let Self { bounds, steps: planned, mut tally, named, .. } = self;
        tally.settled = named - planned.len() as u64;
        let mut steps = HashMap::with_capacity(planned.len());
        for (offset, Planned { mut step, at }) in planned {
            if is_later(at, &bounds) {
                tally.later += 1;
                continue;
            }
            match &mut step {
                Step::Store { due, .. } if is_before(*due, at, &bounds) => {
                    tally.before += 1;
                    continue;
                }
                Step::Store { due, named, .. } => {
                    // One that leaves at once has no use for its name, and later ones may want it.
                    *named = *due > bounds.now;
                    tally.stored += 1;
                    tally.overdue += u64::from(!*named);
                }
                Step::Cancel { .. } => tally.cancelled += 1,
                Step::Reschedule { .. } => tally.rescheduled += 1,
                Step::Bury => tally.dead += 1,
            }
            steps.insert(offset, step);
        }
        steps.shrink_to_fit();
        Plan { bounds, steps, tally }
    }
}

impl Plan {
    /// What is to be done with a record of the partition.
    pub fn step(&self, record: &Again, known: &Known) -> Option<Step> {
        match &record.asks {
            Asks::Delayed { id: Some(_), .. } | Asks::Cancel { .. } | Asks::Reschedule { .. } => {
                self.steps.get(&record.position.1).copied()
            }
            _ => judge(record, &self.bounds, known).ok(),
        }
    }
}

/// A record without a name, by itself.
fn judge(record: &Again, bounds: &Bounds, known: &Known) -> Result<Step, Why> {
    let step = match &record.asks {
        Asks::Delayed { due, .. } => Step::Store { due: *due, named: false, instead_of: None },
        Asks::Invalid { kept: true, .. } => Step::Bury,
        _ => return Err(Why::Passing),
    };
    if known.find(record.position, record.content).is_some() {
        return Err(Why::There);
    }
    if is_later(record.at, bounds) {
        return Err(Why::Later);
    }
    match step {
        Step::Store { due, .. } if is_before(due, record.at, bounds) => Err(Why::Before),
        step => Ok(step),
    }
}

fn is_later(at: Option<UnixMs>, bounds: &Bounds) -> bool {
    bounds.until.is_some_and(|until| at.is_some_and(|at| at > until))
}

/// What was due before it came fell due when it came.
fn is_before(due: UnixMs, at: Option<UnixMs>, bounds: &Bounds) -> bool {
    at.map_or(due, |at| at.max(due)) < bounds.due_after
}

#[cfg(test)]
mod tests;
