//! Names of all Redis keys. A key of a partition reads `{prefix}:{p}:...`. The partition's number is the hash
//! tag, so all keys of one partition live on one node and one script can touch them.

use redis::cluster_routing::Slot;

use super::scripts::ScriptVariant;
use crate::domain::{Partition, Partitions, RouteName, UnixMs};
use crate::store::model::bundle::is_of_growing;
use crate::store::{BundleId, DeadId};

/// Names of the keys that every script gets, in the order of `prelude.lua`. `shelves` is the key that orders
/// the due sets of a route.
const FIXED_NAMES: [&str; 12] = [
    "idx", "claims", "tokens", "gone", "done", "expiries", "put_back", "names", "counts", "calls",
    "heads", "shelves",
];

#[derive(Clone, Debug)]
pub(in crate::store) struct Keys {
    prefix: String,
}

impl Keys {
    pub(in crate::store) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// Hash that describes the store: its format and its number of partitions.
    pub(in crate::store) fn meta(&self) -> String {
        format!("{}:meta", self.prefix)
    }

    /// Hash of the callers in the audit log, with the moment of the last entry of each. It belongs to no partition.
    pub(in crate::store) fn audit_callers(&self) -> String {
        format!("{}:{{audit}}:callers", self.prefix)
    }

    /// Stream of the audit log's entries of a caller.
    pub(in crate::store) fn audit_of(&self, caller: &str) -> String {
        format!("{}:{{audit}}:of:{caller}", self.prefix)
    }

    /// The slot of the audit log.
    pub(in crate::store) fn audit() -> Slot {
        Slot::for_key("audit")
    }

    /// Hash of the registry of replicas. It shares the hash tag `members` with [`Self::store`], so one script
    /// may touch both.
    pub(in crate::store) fn replicas(&self) -> String {
        format!("{}:{{members}}:replicas", self.prefix)
    }

    /// Hash that tells whether this is the store that was used before: its identity, the number of heartbeats,
    /// the last rollback.
    pub(in crate::store) fn store(&self) -> String {
        format!("{}:{{members}}:store", self.prefix)
    }

    /// Hash of what all replicas did on a day, by its number since 1970. It expires.
    pub(in crate::store) fn activity(&self, day: i64) -> String {
        format!("{}:{{members}}:activity:{day}", self.prefix)
    }

    /// Hash of the routes that are paused.
    pub(in crate::store) fn paused(&self) -> String {
        format!("{}:paused", self.prefix)
    }

    /// All keys outside of the partitions, with their names, slots and types. `meta` is left out: the preflight
    /// checks it.
    pub(in crate::store) fn shared(&self) -> [(&'static str, String, Slot, &'static str); 5] {
        let named = |name, key: String, kind| (name, key.clone(), Slot::for_key(key), kind);
        [
            named("paused", self.paused(), "hash"),
            named("replays", self.replays(), "hash"),
            ("audit", self.audit_callers(), Self::audit(), "hash"),
            ("replicas", self.replicas(), Self::members(), "hash"),
            ("store", self.store(), Self::members(), "hash"),
        ]
    }

    /// The key that a shared key of a wrong type is moved to, in the same slot.
    pub(in crate::store) fn quarantined(&self, name: &str, key: &str, now: UnixMs) -> String {
        // The hash tag is that of the key, or the whole key, so that the slot stays the same.
        let tag = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or(key, |(tag, _)| tag);
        format!("{}:quarantine:{{{tag}}}:{name}:{now}", self.prefix)
    }

    /// The slot of the registry and of the store's identity.
    pub(in crate::store) fn members() -> Slot {
        Slot::for_key("members")
    }

    /// Hash of what routes remember of their reading: how far a replay or an import has come, and how the topics were
    /// when a route was first read.
    pub(in crate::store) fn replays(&self) -> String {
        format!("{}:replays", self.prefix)
    }

    /// The slot of a partition's keys in a cluster. The partition's number is their hash tag.
    pub(in crate::store) fn slot(p: Partition) -> Slot {
        Slot::for_key(p.0.to_string())
    }

    /// The slots of all keys.
    pub(in crate::store) fn slots(&self, partitions: Partitions) -> Vec<Slot> {
        let named = [self.meta(), self.paused(), self.replays()]
            .into_iter()
            .map(Slot::for_key)
            .chain([Self::members(), Self::audit()]);
        partitions.all().map(Self::slot).chain(named).collect()
    }

    pub(in crate::store) fn of(&self, p: Partition, name: &str) -> String {
        format!("{}:{{{p}}}:{name}", self.prefix)
    }

    pub(in crate::store) fn fixed(&self, p: Partition) -> Vec<String> {
        FIXED_NAMES.iter().map(|name| self.of(p, name)).collect()
    }

    /// Keys to try rights on: a hash, a sorted set, a string, a stream, another string, and a list. They never last.
    pub(in crate::store) fn scratch(&self, p: Partition) -> [String; 6] {
        ["hash", "zset", "string", "stream", "renamed", "list"]
            .map(|kind| self.of(p, &format!("rights:{kind}")))
    }

    /// The keys of [`Self::fixed`], and those that this variant of a script needs besides.
    pub(in crate::store) fn fixed_of(&self, p: Partition, with: ScriptVariant) -> Vec<String> {
        let mut keys = self.fixed(p);
        if with.remembers {
            keys.push(self.delivered(p));
        }
        if with.ordered {
            keys.push(self.order(p));
        }
        keys
    }

    /// Hash of the key order: the owners of ordered routes, their held keys, and the highest sequence number.
    pub(in crate::store) fn order(&self, p: Partition) -> String {
        self.of(p, "order")
    }

    /// Sorted set of the bundles that were put back after they were due, by the time when they were to be
    /// delivered.
    pub(in crate::store) fn put_back(&self, p: Partition) -> String {
        self.of(p, "put_back")
    }

    /// Sorted set of the delivered names, by the time until which they stay taken.
    pub(in crate::store) fn delivered(&self, p: Partition) -> String {
        self.of(p, "delivered")
    }

    pub(in crate::store) fn due(&self, p: Partition, due_set: &str) -> String {
        format!("{}:{{{p}}}:due:{due_set}", self.prefix)
    }

    pub(in crate::store) fn blob(&self, p: Partition, id: &BundleId) -> String {
        format!("{}:{{{p}}}:b:{id}", self.prefix)
    }

    /// A glob that matches all keys of all partitions.
    pub(in crate::store) fn every(&self) -> String {
        let mut glob = String::new();
        for c in self.prefix.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                glob.push('\\');
            }
            glob.push(c);
        }
        format!("{glob}:{{*}}:*")
    }

    /// Splits a key of a partition into the partition and the name within it.
    pub(in crate::store) fn split<'a>(&self, key: &'a str) -> Option<(Partition, &'a str)> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix(":{")?;
        let (p, name) = rest.split_once("}:")?;
        Some((Partition(p.parse().ok()?), name))
    }

    /// List of the packed events of a route, in the route's home partition.
    pub(in crate::store) fn trail(&self, p: Partition, route: &RouteName) -> String {
        self.of(p, &Self::trail_name(route))
    }

    /// The name of that key within its partition.
    pub(in crate::store) fn trail_name(route: &RouteName) -> String {
        format!("trail:{route}")
    }

    /// The key of a dead letter's blob. The dead letter's id names its partition.
    pub(in crate::store) fn dead(&self, id: &DeadId) -> String {
        format!("{}:{{{}}}:d:{id}", self.prefix, id.partition())
    }

    /// Sorted set of one dead-letter queue: one route's dead letters of one kind.
    pub(in crate::store) fn queue(&self, p: Partition, queue: &str) -> String {
        format!("{}:{{{p}}}:dead:{queue}", self.prefix)
    }
}
/// True for the key of a growing bundle: a list.
pub(in crate::store) fn is_of_growing_bundle(key: &str) -> bool {
    key.rsplit_once("}:b:")
        .and_then(|(_, id)| id.rsplit_once('/'))
        .is_some_and(|(due_set, _)| is_of_growing(due_set))
}
