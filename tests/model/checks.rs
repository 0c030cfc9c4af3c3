//! Checks the rules: those of every state, and those of a world that has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use super::step::show;
use super::world::{ClaimedBundle, Op, READS, Record, Setting, World, Write, record_of};

/// A rule that does not hold, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub rule: &'static str,
    pub what: String,
}

pub fn broken<T>(rule: &'static str, what: String) -> Result<T, Broken> {
    Err(Broken { rule, what })
}

impl World {
    /// Checks the rules of every state; `early`, `cancelled` and `unexplained` are judged where they would happen.
    pub fn check(&self, setting: &Setting) -> Result<(), Broken> {
        let mut live = BTreeSet::new();
        for body in self.master.model.live() {
            if !live.insert(body) {
                return broken(
                    "two places",
                    format!("{} stands twice in the store", show(body)),
                );
            }
        }
        for timer in &self.timers {
            let waits: usize = timer
                .claimed_bundles
                .iter()
                .map(ClaimedBundle::unanswered)
                .sum();
            if timer.taken != waits {
                return broken(
                    "credit",
                    format!("{} are taken, {waits} wait for a verdict", timer.taken),
                );
            }
        }
        if self.master.model.breached {
            return broken(
                "fencing",
                "a call under a lost claim changed what another holds".into(),
            );
        }
        for (source, ingress) in setting.sources.iter().zip(&self.ingress) {
            if source.limit.is_some_and(|limit| ingress.returned > limit) {
                return broken(
                    "spent",
                    format!("one wait sent {} deliveries back", ingress.returned),
                );
            }
        }
        for &record in &self.owed {
            self.accounted(setting, record)?;
        }
        Ok(())
    }

    fn accounted(&self, setting: &Setting, record: usize) -> Result<(), Broken> {
        let tally = self.tally[record];
        let is = |body: u32| record_of(body) == record;
        let model = &self.master.model;
        let stands = model.live().any(is) || model.let_go.iter().any(|&body| is(body));
        if tally.plain > 0 || tally.flagged || stands || self.is_on_its_way(record) {
            return Ok(());
        }
        let (source, at) = setting.place(record);
        broken(
            "lost",
            format!("record {at} of source {source} was accepted and is nowhere"),
        )
    }

    /// Reports whether a live ingress still has the record in a call: only an ingress that acknowledges too early owes a
    /// record that is still in one.
    fn is_on_its_way(&self, record: usize) -> bool {
        let wires = self
            .ingress
            .iter()
            .filter_map(|ingress| ingress.actor.wire.as_ref());
        wires
            .filter_map(|wire| {
                if let Op::Write(writes) = &wire.op {
                    Some(writes)
                } else {
                    None
                }
            })
            .flatten()
            .any(|write| match write {
                Write::Store(messages, ..) => messages.iter().any(|l| record_of(l.body) == record),
                Write::Replace(_, message) => record_of(message.body) == record,
                Write::Cancel(_) | Write::Move(..) => false,
            })
    }

    /// Checks the rules of a world in which nothing goes on by itself any more.
    pub fn at_rest(&self, setting: &Setting) -> Result<(), Broken> {
        if !self.master.model.is_empty() || !self.socket.is_empty() {
            return broken(
                "stuck",
                "messages stand in the store and nobody will ever take them".into(),
            );
        }
        self.each_given_back(setting)?;
        for (s, ingress) in self.ingress.iter().enumerate() {
            if ingress.committed < setting.sources[s].records.len() {
                return broken("stuck", format!("source {s} is not read to its end"));
            }
        }
        if self
            .timers
            .iter()
            .any(|timer| !timer.claimed_bundles.is_empty())
        {
            return broken("stuck", "a timer holds what it will never finish".into());
        }
        // The name of what has died is free.
        let dies = setting.budget.rejections > 0 || setting.wanted_for.is_some();
        let remembers = setting.remembers && !dies;
        if remembers {
            self.each_name_once(setting)
        } else {
            Ok(())
        }
    }

    /// What a consumer gave back came again, unless what it had got came again itself, and could be given back once more.
    fn each_given_back(&self, setting: &Setting) -> Result<(), Broken> {
        for record in 0..self.tally.len() {
            let (source, at) = setting.place(record);
            let Record::Back(name, _, count) = setting.sources[source].records[at] else {
                continue;
            };
            let had_again = count > 1 && self.tally[record - 1].times > 1;
            if self.tally[record].times == 0 && !had_again {
                return broken(
                    "given back",
                    format!("{name} was given back {count} times, and the last time did not come"),
                );
            }
        }
        Ok(())
    }

    /// Where names are remembered: of all records of one name, one came, unless others had let go of it.
    fn each_name_once(&self, setting: &Setting) -> Result<(), Broken> {
        let mut came: BTreeMap<&str, usize> = BTreeMap::new();
        for record in 0..self.tally.len() {
            let (source, at) = setting.place(record);
            let (Record::Put {
                name: Some(name), ..
            }
            | Record::Replace(name, _)) = setting.sources[source].records[at]
            else {
                continue;
            };
            let bodies = record as u32 * READS..(record as u32 + 1) * READS;
            let model = &self.master.model;
            let let_go = bodies.clone().any(|body| model.let_go.contains(&body));
            let tally = self.tally[record];
            if (tally.plain > 0 || tally.flagged)
                && !let_go
                && let Some(other) = came.insert(name, record)
            {
                return broken(
                    "remembered",
                    format!("records {other} and {record} of name {name} both came"),
                );
            }
        }
        Ok(())
    }
}

impl Setting {
    /// A record's source and its place there.
    fn place(&self, mut record: usize) -> (usize, usize) {
        for (s, source) in self.sources.iter().enumerate() {
            if record < source.records.len() {
                return (s, record);
            }
            record -= source.records.len();
        }
        (self.sources.len(), record)
    }
}
