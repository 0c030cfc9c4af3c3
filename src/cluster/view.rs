//! The living replicas as this replica knows them, and the partitions that follow for it. Pure: it reads no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::assignment::{ReplicaCandidate, assign};
use super::owned::OwnedPartitions;
use crate::domain::{Partition, Partitions};
use crate::store::RegisteredReplica;

/// The members of the registry, from the latest heartbeats.
#[derive(Debug, Default)]
pub(super) struct ReplicaView {
    /// The members that count as alive, by nonce.
    alive: BTreeMap<String, RegisteredReplica>,
    /// No member counts as dead before this moment, monotonic microseconds.
    grace_until_us: i64,
    now_us: i64,
    /// `cluster.max_clock_skew`.
    max_skew_ms: i64,
}

/// The registry as one heartbeat found it.
#[derive(Clone, Debug)]
pub(super) struct RegistryNews {
    /// All members of the registry.
    pub(super) members: Vec<RegisteredReplica>,
    /// How long this replica had been silent, ms; `None` if the registry did not know it.
    pub(super) silence_ms: Option<i64>,
    /// Monotonic microseconds at which the answer arrived.
    pub(super) now_us: i64,
}

/// Why a replica may not go on under its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameRefusal {
    /// Another process had this name before, and lives.
    #[error(
        "another replica is named {0:?} and lives: give each its own cluster.name (the default is the host name and the port of admin.listen)"
    )]
    Taken(String),
    /// Another process took the name while this one was silent for so long that it counted as dead.
    #[error(
        "another replica took the name {0:?} while this one was silent for at least {1} ms and counted as dead"
    )]
    Replaced(String, i64),
}

impl ReplicaView {
    pub(super) fn new(max_skew: Duration) -> Self {
        Self {
            max_skew_ms: max_skew.as_millis() as i64,
            ..Self::default()
        }
    }

    /// Takes in the answer to a heartbeat. `me` is this replica's nonce. An error means that this replica has to end.
    pub(super) fn hear(&mut self, me: &str, news: RegistryNews) -> Result<(), NameRefusal> {
        let own = news.members.iter().find(|m| m.nonce == me);
        self.now_us = news.now_us;
        if let Some(own) = own {
            // An entry that was there before was removed by another replica, after a silence of that length at least.
            let was_here = self.alive.contains_key(me);
            let silence_ms = news.silence_ms.or_else(|| was_here.then(|| own.kept_ms()));
            // The cause of this replica's silence may have silenced the others too, so nobody counts as dead yet.
            if silence_ms.is_some_and(|ms| ms > 2 * own.status.heartbeat_ms) {
                self.grace_until_us = news.now_us + own.lifetime_ms() * 1000;
            }
            judge_name(own, silence_ms, &news.members)?;
        }
        let living = news.members.into_iter().filter(RegisteredReplica::is_alive);
        let mut alive: BTreeMap<String, RegisteredReplica> =
            living.map(|m| (m.nonce.clone(), m)).collect();
        if self.in_grace() {
            for (nonce, member) in std::mem::take(&mut self.alive) {
                alive.entry(nonce).or_insert(member);
            }
        }
        self.alive = alive;
        Ok(())
    }

    /// All members that count as alive.
    pub(super) fn alive(&self) -> impl Iterator<Item = &RegisteredReplica> + Clone {
        self.alive.values()
    }

    /// The time until the next member counts as dead if it stays silent, ms.
    pub(super) fn next_death_ms(&self, me: &str) -> Option<i64> {
        let others = self.alive.values().filter(|m| m.nonce != me);
        others
            .map(|m| m.lifetime_ms() - m.silent_ms)
            .filter(|&ms| ms >= 0)
            .min()
    }

    /// The partitions that this replica is to serve.
    pub(super) fn owned(&self, me: &str, partitions: Partitions) -> OwnedPartitions {
        let members = self.members();
        let all = mine(me, &self.candidates(members.clone()), partitions);
        let own_routes = self
            .alive
            .get(me)
            .map(|m| m.status.routes.clone())
            .unwrap_or_default();
        // Routes known to the same replicas are shared alike.
        let mut groups: BTreeMap<Vec<&str>, Arc<Vec<bool>>> = BTreeMap::new();
        let routes = own_routes.into_iter().map(|route| {
            let group: Vec<&RegisteredReplica> = members
                .iter()
                .copied()
                .filter(|m| m.status.routes.contains(&route))
                .collect();
            if group.len() == members.len() {
                return (route, all.clone());
            }
            let names = group.iter().map(|m| m.nonce.as_str()).collect();
            let served = groups
                .entry(names)
                .or_insert_with(|| mine(me, &self.candidates(group), partitions))
                .clone();
            (route, served)
        });
        let routes = routes.collect();
        OwnedPartitions::new(all, routes)
    }

    fn in_grace(&self) -> bool {
        self.now_us < self.grace_until_us
    }

    /// The living members: of each name the one that joined last.
    fn members(&self) -> Vec<&RegisteredReplica> {
        let mut of_name: BTreeMap<&str, &RegisteredReplica> = BTreeMap::new();
        for member in self.alive.values() {
            let last = of_name.entry(&member.status.name).or_insert(member);
            if member.joined() > last.joined() {
                *last = member;
            }
        }
        let mut members: Vec<&RegisteredReplica> = of_name.into_values().collect();
        members.sort_by(|a, b| a.nonce.cmp(&b.nonce));
        members
    }

    /// Those of these members that may serve partitions: all but those with a hanging shard and those whose clock is far
    /// behind (their messages would wait until they are overdue). If that leaves none, all of them.
    fn candidates<'a>(
        &self,
        mut members: Vec<&'a RegisteredReplica>,
    ) -> Vec<&'a RegisteredReplica> {
        let turns = |m: &&RegisteredReplica| {
            m.slowest_round_ms() <= m.lifetime_ms() && m.status.skew_ms >= -self.max_skew_ms
        };
        if !self.in_grace() && members.iter().any(turns) {
            members.retain(turns);
        }
        members
    }
}

/// Judges two processes of one name. The later one has to go if the earlier one was heard of since. A process that
/// was silent for so long that it counted as dead has lost its name to its successor.
fn judge_name(
    own: &RegisteredReplica,
    silence_ms: Option<i64>,
    members: &[RegisteredReplica],
) -> Result<(), NameRefusal> {
    let rivals = || {
        members
            .iter()
            .filter(|m| m.nonce != own.nonce && m.status.name == own.status.name)
    };
    let name = || own.status.name.clone();
    let lifetime_ms = own.lifetime_ms();
    if let Some(silence_ms) = silence_ms.filter(|&ms| ms > lifetime_ms)
        && rivals().any(|m| m.joined() > own.joined() && m.is_alive())
    {
        return Err(NameRefusal::Replaced(name(), silence_ms));
    }
    if own.status.joining
        && rivals().any(|m| m.joined() < own.joined() && m.heartbeat > own.joined() && m.is_alive())
    {
        return Err(NameRefusal::Taken(name()));
    }
    Ok(())
}

/// The partitions that fall to `me` among these members.
fn mine(me: &str, candidates: &[&RegisteredReplica], partitions: Partitions) -> Arc<Vec<bool>> {
    let candidates: Vec<ReplicaCandidate<'_>> = candidates
        .iter()
        .map(|m| ReplicaCandidate {
            id: &m.nonce,
            held: &m.status.partitions,
        })
        .collect();
    let owners = assign(partitions, &candidates);
    let mut mine: Vec<bool> = owners.into_iter().map(|c| candidates[c].id == me).collect();
    mine.resize(usize::from(partitions.count()), false);
    Arc::new(mine)
}

/// The partitions whose flag is set.
pub(super) fn partitions_of(served: &[bool]) -> Vec<Partition> {
    let places = served.iter().enumerate().filter(|(_, served)| **served);
    places.map(|(p, _)| Partition(p as u16)).collect()
}

#[cfg(test)]
mod tests;
