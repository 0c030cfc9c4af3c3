//! Who is there, as this replica knows it, and what follows for who serves what. Pure: it reads no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::assignment::{Candidate, assign};
use super::owned::Owned;
use crate::domain::{Partition, Partitions};
use crate::store::RegisteredReplica;

/// The others and this replica, from its last beats.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Who counts as alive, by nonce.
    alive: BTreeMap<String, RegisteredReplica>,
    /// Until when (monotonic microseconds) nobody is taken for dead.
    grace_until_us: i64,
    now_us: i64,
    /// `cluster.max_clock_skew`.
    max_skew_ms: i64,
}

/// What a beat brought.
#[derive(Clone, Debug)]
pub(super) struct News {
    /// Everybody in the registry.
    pub(super) members: Vec<RegisteredReplica>,
    /// How long this replica had been silent, ms; `None` where nobody knew of it.
    pub(super) silence_ms: Option<i64>,
    /// Monotonic microseconds of its arrival.
    pub(super) now_us: i64,
}

/// Why a replica may not go on under its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another process of that name was there before and lives.
    #[error(
        "another replica is named {0:?} and lives: give each its own cluster.name (the default is the host name and the port of admin.listen)"
    )]
    Taken(String),
    /// Another process took the name while this one was silent for so long that it counted as dead.
    #[error("another replica took the name {0:?} while this one was silent for {1} ms and counted as dead")]
    Replaced(String, i64),
}

impl View {
    pub(super) fn new(max_skew: Duration) -> Self {
        Self { max_skew_ms: max_skew.as_millis() as i64, ..Self::default() }
    }

    /// Takes in what a beat brought; `me` is this replica's nonce. Says if it must end.
    pub(super) fn hear(&mut self, me: &str, news: News) -> Result<(), Refusal> {
        let own = news.members.iter().find(|m| m.nonce == me).cloned();
        self.now_us = news.now_us;
        if let (Some(own), Some(silence_ms)) = (&own, news.silence_ms) {
            // What kept this one from being answered may have kept the others too: nobody is dead yet.
            if silence_ms > 2 * own.status.heartbeat_ms {
                self.grace_until_us = news.now_us + own.lifetime_ms() * 1000;
            }
        }
        if let Some(own) = &own {
            judge_name(own, news.silence_ms, &news.members)?;
        }
        let living = news.members.into_iter().filter(RegisteredReplica::is_alive);
        let mut alive: BTreeMap<String, RegisteredReplica> = living.map(|m| (m.nonce.clone(), m)).collect();
        if self.in_grace() {
            for (nonce, member) in std::mem::take(&mut self.alive) {
                alive.entry(nonce).or_insert(member);
            }
        }
        self.alive = alive;
        Ok(())
    }

    /// Everybody who counts as alive.
    pub(super) fn alive(&self) -> impl Iterator<Item = &RegisteredReplica> + Clone {
        self.alive.values()
    }

    /// How long until the next one dies if it stays silent, ms.
    pub(super) fn next_death_ms(&self, me: &str) -> Option<i64> {
        let others = self.alive.values().filter(|m| m.nonce != me);
        others.map(|m| m.lifetime_ms() - m.silent_ms).filter(|&ms| ms >= 0).min()
    }

    /// What this replica is to serve.
    pub(super) fn owned(&self, me: &str, partitions: Partitions) -> Owned {
        let candidates = self.candidates();
        let all = mine(me, &candidates, partitions);
        let knows = |m: &RegisteredReplica, route: &String| m.status.routes.contains(route);
        let own_routes = self.alive.get(me).map(|m| m.status.routes.clone()).unwrap_or_default();
        // Routes known to the same replicas are served alike.
        let mut groups: BTreeMap<Vec<&str>, Arc<Vec<bool>>> = BTreeMap::new();
        let routes = own_routes.into_iter().map(|route| {
            let group: Vec<&RegisteredReplica> =
                candidates.iter().copied().filter(|m| knows(m, &route)).collect();
            if group.len() == candidates.len() {
                return (route, all.clone());
            }
            let names = group.iter().map(|m| m.nonce.as_str()).collect();
            let served = groups.entry(names).or_insert_with(|| mine(me, &group, partitions)).clone();
            (route, served)
        });
        let routes = routes.collect();
        Owned::new(all, routes)
    }

    fn in_grace(&self) -> bool {
        self.now_us < self.grace_until_us
    }

    /// Who may serve: of each name the one that came last; none with a shard that hangs, and none whose clock is far
    /// behind (what is theirs would wait until it is overdue). Where that is nobody, everybody.
    fn candidates(&self) -> Vec<&RegisteredReplica> {
        let mut of_name: BTreeMap<&str, &RegisteredReplica> = BTreeMap::new();
        for member in self.alive.values() {
            let last = of_name.entry(&member.status.name).or_insert(member);
            if member.joined() > last.joined() {
                *last = member;
            }
        }
        let mut candidates: Vec<&RegisteredReplica> = of_name.into_values().collect();
        candidates.sort_by(|a, b| a.nonce.cmp(&b.nonce));
        let turns = |m: &&RegisteredReplica| {
            m.slowest_round_ms() <= m.lifetime_ms() && m.status.skew_ms >= -self.max_skew_ms
        };
        if !self.in_grace() && candidates.iter().any(turns) {
            candidates.retain(turns);
        }
        candidates
    }
}

/// Two processes of one name: the one that came later goes, if the earlier one has been heard of since; but one
/// that was silent for so long that it counted as dead has lost its name to whoever took it.
fn judge_name(
    own: &RegisteredReplica,
    silence_ms: Option<i64>,
    members: &[RegisteredReplica],
) -> Result<(), Refusal> {
    let rivals = || members.iter().filter(|m| m.nonce != own.nonce && m.status.name == own.status.name);
    let name = || own.status.name.clone();
    let lifetime_ms = own.lifetime_ms();
    if let Some(silence_ms) = silence_ms.filter(|&ms| ms > lifetime_ms)
        && rivals().any(|m| m.joined() > own.joined() && m.is_alive())
    {
        return Err(Refusal::Replaced(name(), silence_ms));
    }
    let lives =
        |m: &RegisteredReplica| m.joined() < own.joined() && m.heartbeat > own.joined() && m.is_alive();
    if own.status.joining && rivals().any(lives) {
        return Err(Refusal::Taken(name()));
    }
    Ok(())
}

/// Which partitions fall to `me` among these.
fn mine(me: &str, candidates: &[&RegisteredReplica], partitions: Partitions) -> Arc<Vec<bool>> {
    let candidates: Vec<Candidate<'_>> =
        candidates.iter().map(|m| Candidate { id: &m.nonce, held: &m.status.partitions }).collect();
    let owners = assign(partitions, &candidates);
    let mut mine: Vec<bool> = owners.into_iter().map(|c| candidates[c].id == me).collect();
    mine.resize(usize::from(partitions.count()), false);
    Arc::new(mine)
}

/// The partitions of a list of yes and no.
pub(super) fn held(served: &[bool]) -> Vec<Partition> {
    let places = served.iter().enumerate().filter(|(_, served)| **served);
    places.map(|(p, _)| Partition(p as u16)).collect()
}

#[cfg(test)]
mod tests;
