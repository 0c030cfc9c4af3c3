//! What replicas say of themselves, and what the store says of itself to them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::{Partition, UnixMs};
use crate::telemetry::FollowNews;

/// Beats that a replica may miss before it counts as dead.
const MISSED: i64 = 3;

/// What a replica says of itself with each beat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Presence {
    /// Its name: `cluster.name`.
    pub name: String,
    /// Its version of Postdate.
    pub version: String,
    /// Its `cluster.heartbeat`, ms.
    pub heartbeat_ms: i64,
    /// The number of its first beat; 0 in that one.
    pub joined: u64,
    /// Whether it has joined so lately that its name is not surely its own.
    pub probation: bool,
    /// Whether it is willing to take work.
    pub ready: bool,
    /// The routes that it knows.
    pub routes: Vec<String>,
    /// The partitions that it serves, ascending.
    #[serde(serialize_with = "write_ranges", deserialize_with = "read_ranges")]
    pub held: Vec<Partition>,
    /// For each of its timer shards, how long ago it last finished a claim round, ms. Partition `p` is in shard
    /// `p` modulo their number.
    pub rounds: Vec<i64>,
    /// Its wall clock minus Redis's, ms.
    pub skew_ms: i64,
    /// What it follows, watches and saw ending for `send --wait`; mostly nothing.
    #[serde(skip_serializing_if = "FollowNews::is_empty")]
    pub follow: FollowNews,
    /// By route, when the oldest message was to be delivered that it has claimed and that is overdue, Unix ms.
    pub overdue: BTreeMap<String, i64>,
}

/// A replica as the store knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Which process it is: names come again, this does not.
    pub nonce: String,
    /// The number of its last beat: all replicas' are counted together.
    pub beat: u64,
    /// How long ago that was, by Redis's clock, ms.
    pub silent_ms: i64,
    /// What it said.
    pub presence: Presence,
}

impl Member {
    /// How long it may be silent, ms.
    pub fn lifetime_ms(&self) -> i64 {
        self.presence.heartbeat_ms * MISSED
    }

    /// Whether it was heard of lately enough.
    pub fn is_alive(&self) -> bool {
        self.silent_ms <= self.lifetime_ms()
    }

    /// The number of its first beat: of two replicas with one name the one with the higher number came later.
    pub fn joined(&self) -> u64 {
        if self.presence.joined == 0 { self.beat } else { self.presence.joined }
    }

    /// How long ago the timer shard that serves a partition finished a claim round, ms, as of the last beat.
    pub fn round_ms(&self, p: Partition) -> Option<i64> {
        let rounds = &self.presence.rounds;
        rounds.get(usize::from(p.0).checked_rem(rounds.len())?).copied()
    }

    /// How long ago the slowest of its timer shards finished a claim round, ms, as of its last beat.
    pub fn slowest_round_ms(&self) -> i64 {
        self.presence.rounds.iter().copied().max().unwrap_or(0)
    }
}

/// What a replica knows of the store from its last beat; at first nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The store's generation, made once, when the store was first used.
    pub generation: Option<String>,
    /// The number of its last beat.
    pub beat: u64,
    /// When the store was last found to have gone back.
    pub changed: UnixMs,
}

/// The answer to a beat.
#[derive(Clone, Debug, PartialEq)]
pub enum Beaten {
    /// It is the store that it was, or an older copy of it, which `known.changed` says.
    Here {
        /// What is to be known from here on.
        known: Known,
        /// Redis's time, ms.
        now: UnixMs,
        /// How long the caller had been silent, ms; `None` if nobody knew of it (any more).
        silence_ms: Option<i64>,
        /// Everybody, the caller included, the dead of the last minute too.
        members: Vec<Member>,
    },
    /// Another one, whose generation this is, or an empty one. Nothing was written.
    Strange(Option<String>),
}

/// `0-20,33`
fn write_ranges<S: Serializer>(held: &[Partition], to: S) -> Result<S::Ok, S::Error> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &Partition(p) in held {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == p => *last = p,
            _ => ranges.push((p, p)),
        }
    }
    let texts = ranges.iter().map(
        |(first, last)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        },
    );
    to.serialize_str(&texts.collect::<Vec<_>>().join(","))
}

fn read_ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Partition>, D::Error> {
    let text = String::deserialize(from)?;
    let mut held = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds: Option<(u16, u16)> = first.parse().ok().zip(last.parse().ok());
        let (first, last) = bounds.ok_or_else(|| serde::de::Error::custom("no range of partitions"))?;
        held.extend((first..=last).map(Partition));
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_written_as_ranges() {
        for (held, text) in
            [(vec![], ""), (vec![3], "3"), (vec![0, 1, 2], "0-2"), (vec![0, 1, 5, 7, 8], "0-1,5,7-8")]
        {
            let presence =
                Presence { held: held.into_iter().map(Partition).collect(), ..Presence::default() };
            let json = serde_json::to_value(&presence).expect("json");
            assert_eq!(json["held"], text);
            assert_eq!(serde_json::from_value::<Presence>(json).expect("read"), presence);
        }
        assert!(serde_json::from_str::<Presence>(r#"{"held":"a-b"}"#).is_err());
    }
}
