//! The status that replicas report, and what the store answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::{Partition, UnixMs};
use crate::telemetry::{FollowNews, RouteFlows};

/// Heartbeats that a replica may miss before it counts as dead.
const MISSED_HEARTBEATS: i64 = 3;

/// Most partitions that one replica may list: as many as a store can have. A short text can name ranges without end.
const MAX_LISTED: usize = u16::MAX as usize;

/// The status that a replica reports with each heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaStatus {
    /// The replica's name: `cluster.name`.
    pub name: String,
    /// The replica's version of Postdate.
    pub version: String,
    /// The replica's `cluster.heartbeat`, ms.
    pub heartbeat_ms: i64,
    /// The replica's `timer.claim`, ms.
    pub claim_ms: i64,
    /// The number of its first heartbeat. 0 in that one.
    pub joined: u64,
    /// Set if it has joined so lately that its name is not surely its own.
    #[serde(rename = "probation")]
    pub joining: bool,
    /// Set if it is willing to take work.
    pub ready: bool,
    /// The routes that it knows.
    pub routes: Vec<String>,
    /// The partitions that it serves, ascending.
    #[serde(
        rename = "held",
        serialize_with = "write_ranges",
        deserialize_with = "read_ranges"
    )]
    pub partitions: Vec<Partition>,
    /// For each of its timer shards, how long ago it last finished a claim round, ms. Partition `p` is in shard
    /// `p` modulo the number of shards.
    pub rounds: Vec<i64>,
    /// Its wall clock minus Redis's, ms.
    pub skew_ms: i64,
    /// Message ids that it follows, watches and saw ending for `send --wait`. Mostly empty.
    #[serde(skip_serializing_if = "FollowNews::is_empty")]
    pub follow: FollowNews,
    /// By route, the earliest due time of the messages that it has claimed, due or not, Unix ms.
    pub overdue: BTreeMap<String, i64>,
    /// By route, what it moved in its last step of measuring.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flows: RouteFlows,
}

/// A replica as the store knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredReplica {
    /// The process. Names are used again, a nonce is not.
    pub nonce: String,
    /// The number of its last heartbeat. The heartbeats of all replicas are counted together.
    pub heartbeat: u64,
    /// How long ago that was, by Redis's clock, ms.
    pub silent_ms: i64,
    /// The status that it reported.
    pub status: ReplicaStatus,
}

impl RegisteredReplica {
    /// How long it may be silent, ms.
    pub fn lifetime_ms(&self) -> i64 {
        self.status.heartbeat_ms.saturating_mul(MISSED_HEARTBEATS)
    }

    /// Reports whether its last heartbeat is recent enough.
    pub fn is_alive(&self) -> bool {
        self.silent_ms <= self.lifetime_ms()
    }

    /// The number of its first heartbeat. Of two replicas with one name the one with the higher number came
    /// later.
    pub fn joined(&self) -> u64 {
        if self.status.joined == 0 {
            self.heartbeat
        } else {
            self.status.joined
        }
    }

    /// How long ago the timer shard that serves a partition finished a claim round, ms, as of the last
    /// heartbeat.
    pub fn round_ms(&self, p: Partition) -> Option<i64> {
        let rounds = &self.status.rounds;
        rounds
            .get(usize::from(p.0).checked_rem(rounds.len())?)
            .copied()
    }

    /// How long ago the slowest of its timer shards finished a claim round, ms, as of its last heartbeat.
    pub fn slowest_round_ms(&self) -> i64 {
        self.status.rounds.iter().copied().max().unwrap_or(0)
    }
}

/// A replica's knowledge of the store from its last heartbeat. At first nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownStore {
    /// The store's identity, made once, when the store was first used.
    pub identity: Option<String>,
    /// The number of its last heartbeat.
    pub heartbeat: u64,
    /// When the store was last found to have rolled back.
    pub rolled_back_at: UnixMs,
    /// When another server than before was last found to answer as the master: a failover or a restart.
    pub new_master_at: UnixMs,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub enum HeartbeatReply {
    /// The store is the one that it was, or an older copy of it. `known.rolled_back_at` tells them apart.
    Same {
        /// The knowledge for the next heartbeat.
        known: KnownStore,
        /// Redis's time, ms.
        now: UnixMs,
        /// How long the caller had been silent, ms. `None` if it was not registered (any more).
        silence_ms: Option<i64>,
        /// All registered replicas, with the caller and the dead whose claims may not have ended.
        replicas: Vec<RegisteredReplica>,
    },
    /// Another store, with this identity, or an empty one. Nothing was written.
    Replaced(Option<String>),
}

/// Writes partitions as ranges: `0-20,33`.
fn write_ranges<S: Serializer>(partitions: &[Partition], to: S) -> Result<S::Ok, S::Error> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &Partition(p) in partitions {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(p) => *last = p,
            _ => ranges.push((p, p)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    to.serialize_str(&texts.collect::<Vec<_>>().join(","))
}

fn read_ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Partition>, D::Error> {
    let text = String::deserialize(from)?;
    let mut partitions = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds: Option<(u16, u16)> = first.parse().ok().zip(last.parse().ok());
        let (first, last) =
            bounds.ok_or_else(|| serde::de::Error::custom("no range of partitions"))?;
        let more = usize::from(last.saturating_sub(first)) + 1;
        if partitions.len() + more > MAX_LISTED {
            return Err(serde::de::Error::custom("more partitions than a store has"));
        }
        partitions.extend((first..=last).map(Partition));
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_written_as_ranges() {
        for (partitions, text) in [
            (vec![], ""),
            (vec![3], "3"),
            (vec![0, 1, 2], "0-2"),
            (vec![0, 1, 5, 7, 8], "0-1,5,7-8"),
            // No replica has such a list; one that was read must be no trouble to write.
            (vec![u16::MAX, 0], "65535,0"),
        ] {
            let presence = ReplicaStatus {
                partitions: partitions.into_iter().map(Partition).collect(),
                ..ReplicaStatus::default()
            };
            let json = serde_json::to_value(&presence).expect("json");
            assert_eq!(json["held"], text);
            assert_eq!(
                serde_json::from_value::<ReplicaStatus>(json).expect("read"),
                presence
            );
        }
        assert!(serde_json::from_str::<ReplicaStatus>(r#"{"held":"a-b"}"#).is_err());
        let endless = vec!["0-65535"; 1000].join(",");
        assert!(
            serde_json::from_str::<ReplicaStatus>(&format!(r#"{{"held":"{endless}"}}"#)).is_err()
        );
    }
}
