//! The plan of a replay: which messages of a partition's records the store should hold and does not, and which
//! commands it has missed. Pure.
//!
//! The planner follows each name through the partition as the store would have followed it, by the records' own
//! times: a cancelled message is not stored to be cancelled again, a rescheduled one is stored at its last due
//! time. Only the last message of a name keeps the name, in its partition of the store. An earlier message that fell
//! due long ago is stored without it, so that it cannot take the name from a later one.

mod tally;

use std::collections::{BTreeMap, HashMap};

pub use self::tally::ReplayTally;

use super::judge::{JudgedRecord, RecordRequest};
use super::stored::{StoredRecord, StoredRecords, name_hash};
use crate::domain::route::DelayFrom;
use crate::domain::{KafkaPosition, OnDuplicate, Partition, Partitions, Route, Text, UnixMs};
use crate::store::ScannedState;

/// The records that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayBounds {
    /// The time at which the replay began.
    pub now: UnixMs,
    /// Records with a later timestamp are not stored again, and their commands are not carried out. Their
    /// effect on other records counts.
    pub until: Option<UnixMs>,
    /// Messages that came and fell due before this are left out.
    pub due_after: UnixMs,
}

/// The action for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayStep {
    /// Store the message: the store should hold it.
    Store {
        /// Its due time.
        due: UnixMs,
        /// The partition of the store where it has its name. `None`: it is stored without its name.
        name_at: Option<Partition>,
        /// The stored message of the same name that it replaces.
        instead_of: Option<StoredAt>,
    },
    /// Cancel this message.
    Cancel {
        /// The message.
        of: StoredAt,
    },
    /// Reschedule this message.
    Reschedule {
        /// The message.
        of: StoredAt,
        /// The new due time.
        due: UnixMs,
    },
    /// Keep the message as a dead letter: it is invalid, or was given back too often.
    DeadLetter,
}

/// A named message that the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// The offset of its record.
    pub offset: i64,
    /// Its partition of the store.
    pub partition: Partition,
}

/// The reason why a record has no step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipReason {
    There,
    Before,
    Later,
    Passing,
}

/// A name in one partition of the store. On a route with key order several partitions may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlacedName {
    hash: u128,
    partition: Partition,
}

/// The last message of a name.
#[derive(Clone, Copy, Debug)]
struct LatestOfName {
    offset: i64,
    /// Due time by its records.
    due: UnixMs,
    /// Due time in the store, if the store has it.
    there: Option<UnixMs>,
    /// How often consumers had given it back.
    given_back: u32,
    /// The moment until which it is wanted, if it says one that does not move with its due time.
    wanted_until: Option<UnixMs>,
}

impl LatestOfName {
    /// Reports whether it is due later than that.
    fn is_ahead(&self, clock: UnixMs) -> bool {
        self.due > clock
    }

    /// Reports whether it may repeat the last message of its name. One that comes back with another count does not: its
    /// consumer had the last one.
    fn is_repeat_of(&self, last: &Self) -> bool {
        self.given_back == 0 || last.given_back == self.given_back
    }
}

/// The moment until which the message of a record is wanted, if its due time does not move it.
fn wanted_until(record: &JudgedRecord) -> Option<UnixMs> {
    let expires = record.asked?.expires?;
    expires.after_ms.is_none().then_some(expires.last)
}

/// Follows the records of one partition, in order.
pub struct ReplayPlanner<'a> {
    bounds: ReplayBounds,
    route: &'a Route,
    partitions: Partitions,
    stored: &'a StoredRecords,
    names: BTreeMap<PlacedName, LatestOfName>,
    steps: HashMap<i64, PlannedStep>,
    /// The latest timestamp of a record so far.
    clock: UnixMs,
    tally: ReplayTally,
    named: u64,
}

#[derive(Clone, Copy, Debug)]
struct PlannedStep {
    step: ReplayStep,
    at: Option<UnixMs>,
}

/// The steps for one partition's records.
#[derive(Debug)]
pub struct ReplayPlan {
    bounds: ReplayBounds,
    /// Steps of records with names. Records without a name are judged one by one.
    steps: HashMap<i64, ReplayStep>,
    /// Numbers of records by their result.
    pub tally: ReplayTally,
}

impl<'a> ReplayPlanner<'a> {
    /// A planner for one partition of the topic, from this record on. Begins with the messages that the store holds from
    /// earlier ones. `partitions`: those of the store.
    pub fn new(
        bounds: ReplayBounds,
        route: &'a Route,
        partitions: Partitions,
        stored: &'a StoredRecords,
        first: KafkaPosition,
    ) -> Self {
        let before = stored.of(first.partition).iter().filter(|stored| {
            stored.name != 0
                && stored.offset < first.offset
                && stored.standing != ScannedState::Ended
        });
        let names = before.map(|stored| {
            (
                PlacedName {
                    hash: stored.name,
                    partition: stored.partition,
                },
                LatestOfName {
                    offset: stored.offset,
                    due: stored.due,
                    there: Some(stored.due),
                    given_back: stored.given_back,
                    // The store itself refuses to move it beyond that moment.
                    wanted_until: None,
                },
            )
        });
        Self {
            bounds,
            route,
            partitions,
            stored,
            names: names.collect(),
            steps: HashMap::new(),
            clock: UnixMs(i64::MIN),
            tally: ReplayTally::default(),
            named: 0,
        }
    }

    /// Takes the next record.
    pub fn take(&mut self, record: &JudgedRecord) {
        self.tally.read += 1;
        self.clock = self.clock.max(record.at.unwrap_or(self.bounds.now));
        let (name, due) = match &record.request {
            RecordRequest::Delayed { id: Some(id), due }
            | RecordRequest::Reschedule { id, due }
            | RecordRequest::Replace { id, due } => (id, Some(*due)),
            RecordRequest::Cancel { id } => (id, None),
            _ => return self.nameless(record),
        };
        let home = self.home(name, record);
        self.named += 1;
        match (due, &record.request) {
            (None, _) => self.cancel(home, record),
            (Some(due), RecordRequest::Reschedule { .. }) => {
                self.reschedule(self.located(home), due, record);
            }
            (Some(due), RecordRequest::Replace { .. }) => {
                self.store(self.located(home), due, OnDuplicate::Replace, record);
            }
            (Some(due), _) => self.store(home, due, self.route.policy.on_duplicate, record),
        }
    }

    /// A record's name where the store keeps what has the record's key.
    fn home(&self, name: &Text, record: &JudgedRecord) -> PlacedName {
        let key = self.route.order_key(&record.message);
        let (partitions, route) = (self.partitions, &self.route.name);
        PlacedName {
            hash: name_hash(name.as_str()),
            partition: partitions.of_named(route, key.as_ref(), name.as_str()),
        }
    }

    /// The name where a command finds it: at home, or else in the first partition where its message waits. One that the
    /// store has by now was there when the command came, however long it was due.
    fn located(&self, home: PlacedName) -> PlacedName {
        let waits = |last: &LatestOfName| last.is_ahead(self.clock) || last.there.is_some();
        if self.names.get(&home).is_some_and(waits) {
            return home;
        }
        let mut waiting = self.found(home).filter(|(_, last)| waits(last));
        waiting.next().map_or(home, |(name, _)| *name)
    }

    /// The last messages of a name in the partitions where a command may find one: all of them on a route with key order.
    fn found(&self, home: PlacedName) -> impl Iterator<Item = (&PlacedName, &LatestOfName)> {
        let at = |partition| PlacedName { partition, ..home };
        let (first, last) = if self.route.policy.ordered {
            (at(Partition(0)), at(Partition(u16::MAX)))
        } else {
            (home, home)
        };
        self.names.range(first..=last)
    }

    fn nameless(&mut self, record: &JudgedRecord) {
        let tally = &mut self.tally;
        match judge(record, &self.bounds, self.stored) {
            Ok(ReplayStep::DeadLetter) => tally.dead += 1,
            Ok(_) => {
                tally.stored += 1;
                tally.overdue += u64::from(
                    matches!(record.request, RecordRequest::Delayed { due, .. } if due <= self.bounds.now),
                );
            }
            Err(SkipReason::There) => tally.there += 1,
            Err(SkipReason::Before) => tally.before += 1,
            Err(SkipReason::Later) => tally.later += 1,
            Err(SkipReason::Passing) => tally.passing += 1,
        }
    }

    fn store(
        &mut self,
        name: PlacedName,
        due: UnixMs,
        on_duplicate: OnDuplicate,
        record: &JudgedRecord,
    ) {
        let mut latest = LatestOfName {
            offset: record.position.offset,
            due,
            there: None,
            given_back: record.asked.map_or(0, |asked| asked.given_back),
            wanted_until: wanted_until(record),
        };
        if let Some(&stored) = self.stored.find(record.position, record.content) {
            latest.there = Some(stored.due);
            return self.stored(name, latest, stored, record);
        }
        let last = self.names.get(&name).copied();
        let last = last.filter(|last| latest.is_repeat_of(last));
        let mut instead_of = None;
        if let Some(last) = last {
            let waits = last.is_ahead(self.clock);
            match on_duplicate {
                OnDuplicate::Keep if waits => return,
                OnDuplicate::Replace if waits => {
                    self.drop_step(Some(last));
                    instead_of = last.there.map(|_| name.at(last.offset));
                }
                _ if latest.given_back == 0
                    && self.route.policy.dedupe_ms > 0
                    && self.clock.since(last.due) < self.route.policy.dedupe_ms =>
                {
                    return;
                }
                _ => {}
            }
        }
        self.plan(
            record,
            ReplayStep::Store {
                due,
                name_at: Some(name.partition),
                instead_of,
            },
        );
        self.names.insert(name, latest);
    }

    /// Takes a message that the store has. It has the name there, so no other one is stored with it. A replacement that the
    /// store has elsewhere than `name`, where no message of its name was, came when the store had lost the one that it was to
    /// replace: that one is stored no more, and cancelled if it is back.
    fn stored(
        &mut self,
        name: PlacedName,
        latest: LatestOfName,
        stored: StoredRecord,
        record: &JudgedRecord,
    ) {
        let own = PlacedName {
            partition: stored.partition,
            ..name
        };
        let mut replaced = None;
        if stored.standing != ScannedState::Ended {
            let found_none = matches!(record.request, RecordRequest::Replace { .. })
                && !self.names.contains_key(&own);
            self.end_repeated(own, &latest);
            if found_none && name != own {
                replaced = self.end_repeated(name, &latest);
            }
            self.names.insert(own, latest);
        }
        if let Some(LatestOfName {
            offset,
            there: Some(_),
            ..
        }) = replaced
        {
            let of = name.at(offset);
            self.plan(record, ReplayStep::Cancel { of });
        } else {
            self.tally.there += 1;
            self.named -= 1;
        }
    }

    /// Ends the message of this name that waits and that this one repeats, and answers it.
    fn end_repeated(&mut self, name: PlacedName, by: &LatestOfName) -> Option<LatestOfName> {
        let last = *self.names.get(&name)?;
        if !last.is_ahead(self.clock) || !by.is_repeat_of(&last) {
            return None;
        }
        self.names.remove(&name);
        self.drop_step(Some(last));
        Some(last)
    }

    /// Plans a cancel. A cancel that came too late counts all the same: nobody waits for a message that was
    /// called off.
    fn cancel(&mut self, home: PlacedName, record: &JudgedRecord) {
        let mut name = self.located(home);
        if !self.names.contains_key(&name) {
            name = self.found(home).next().map_or(home, |(name, _)| *name);
        }
        let last = self.names.remove(&name);
        self.drop_step(last);
        if let Some(LatestOfName {
            offset,
            there: Some(_),
            ..
        }) = last
        {
            let of = name.at(offset);
            self.plan(record, ReplayStep::Cancel { of });
        }
    }

    fn reschedule(&mut self, name: PlacedName, due: UnixMs, record: &JudgedRecord) {
        let Some(last) = self
            .names
            .get(&name)
            .copied()
            .filter(|last| last.is_ahead(self.clock))
        else {
            // The command becomes a message, as it did then.
            return self.store(name, due, self.route.policy.on_duplicate, record);
        };
        if last.wanted_until.is_some_and(|moment| moment <= due) {
            // The command came too late, then as now.
            return;
        }
        let own = self.stored.find(record.position, record.content);
        let own = own
            .filter(|stored| stored.standing != ScannedState::Ended)
            .map(|stored| StoredAt {
                offset: stored.offset,
                partition: stored.partition,
            });
        let mut moved = LatestOfName { due, ..last };
        match last.there {
            None => {
                if let Some(PlannedStep {
                    step:
                        ReplayStep::Store {
                            due: at,
                            instead_of,
                            ..
                        },
                    ..
                }) = self.steps.get_mut(&last.offset)
                {
                    *at = due;
                    // The store had lost the message by then, and took the command for a message.
                    *instead_of = instead_of.or(own);
                }
            }
            Some(there) if !self.is_unmoved(there, last.due, due) => {}
            Some(_) => {
                self.plan(
                    record,
                    ReplayStep::Reschedule {
                        of: name.at(last.offset),
                        due,
                    },
                );
                moved.there = Some(due);
            }
        }
        self.names.insert(name, moved);
    }

    /// Reports whether the store has yet to hear of a command: it has the due time from before, neither the
    /// commanded one nor one that somebody gave it since.
    fn is_unmoved(&self, there: UnixMs, before: UnixMs, commanded: UnixMs) -> bool {
        let to = |at: UnixMs| there.since(at).abs();
        // Where delays count from the arrival, which nobody wrote down, the store was given another time.
        if self.route.policy.delay_from == DelayFrom::Produced {
            there == before
        } else {
            to(before) < to(commanded)
        }
    }

    /// Drops the step of a message that is to be stored.
    fn drop_step(&mut self, last: Option<LatestOfName>) {
        if let Some(LatestOfName {
            offset,
            there: None,
            ..
        }) = last
        {
            self.steps.remove(&offset);
        }
    }

    fn plan(&mut self, record: &JudgedRecord, step: ReplayStep) {
        self.steps.insert(
            record.position.offset,
            PlannedStep {
                step,
                at: record.at,
            },
        );
    }

    /// Ends the plan.
    pub fn finish(self) -> ReplayPlan {
        let Self {
            bounds,
            steps: planned,
            mut tally,
            named,
            ..
        } = self;
        tally.settled = named - planned.len() as u64;
        let mut steps = HashMap::with_capacity(planned.len());
        for (offset, PlannedStep { mut step, at }) in planned {
            if is_later(at, &bounds) {
                tally.later += 1;
                continue;
            }
            match &mut step {
                ReplayStep::Store { due, .. } if is_before(*due, at, &bounds) => {
                    tally.before += 1;
                    continue;
                }
                ReplayStep::Store { due, name_at, .. } => {
                    tally.stored += 1;
                    // A message that leaves at once has no use for its name, and a later one may need it.
                    if *due <= bounds.now {
                        *name_at = None;
                        tally.overdue += 1;
                    }
                }
                ReplayStep::Cancel { .. } => tally.cancelled += 1,
                ReplayStep::Reschedule { .. } => tally.rescheduled += 1,
                ReplayStep::DeadLetter => tally.dead += 1,
            }
            steps.insert(offset, step);
        }
        steps.shrink_to_fit();
        ReplayPlan {
            bounds,
            steps,
            tally,
        }
    }
}

impl PlacedName {
    fn at(self, offset: i64) -> StoredAt {
        StoredAt {
            offset,
            partition: self.partition,
        }
    }
}

impl ReplayPlan {
    /// The step for a record of the partition.
    pub fn step(&self, record: &JudgedRecord, stored: &StoredRecords) -> Option<ReplayStep> {
        match &record.request {
            RecordRequest::Delayed { id: Some(_), .. }
            | RecordRequest::Cancel { .. }
            | RecordRequest::Reschedule { .. }
            | RecordRequest::Replace { .. } => self.steps.get(&record.position.offset).copied(),
            _ => judge(record, &self.bounds, stored).ok(),
        }
    }
}

/// Judges a record without a name by itself.
fn judge(
    record: &JudgedRecord,
    bounds: &ReplayBounds,
    stored: &StoredRecords,
) -> Result<ReplayStep, SkipReason> {
    let step = match &record.request {
        RecordRequest::Delayed { due, .. } => ReplayStep::Store {
            due: *due,
            name_at: None,
            instead_of: None,
        },
        RecordRequest::Invalid { kept: true, .. } | RecordRequest::Spent { .. } => {
            ReplayStep::DeadLetter
        }
        _ => return Err(SkipReason::Passing),
    };
    if stored.find(record.position, record.content).is_some() {
        return Err(SkipReason::There);
    }
    if is_later(record.at, bounds) {
        return Err(SkipReason::Later);
    }
    match step {
        ReplayStep::Store { due, .. } if is_before(due, record.at, bounds) => {
            Err(SkipReason::Before)
        }
        step => Ok(step),
    }
}

fn is_later(at: Option<UnixMs>, bounds: &ReplayBounds) -> bool {
    bounds
        .until
        .is_some_and(|until| at.is_some_and(|at| at > until))
}

/// Reports whether a message came and fell due before `due_after`.
fn is_before(due: UnixMs, at: Option<UnixMs>, bounds: &ReplayBounds) -> bool {
    at.map_or(due, |at| at.max(due)) < bounds.due_after
}

#[cfg(test)]
mod tests;
