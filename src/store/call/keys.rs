//! Key names, all of them. `{prefix}:{p}:...`: the partition's number is the hash tag, so that all keys of
//! one partition live on one node and one script can touch them.

use redis::cluster_routing::Slot;

use super::scripts::With;
use crate::domain::{Partition, Partitions, UnixMs};
use crate::store::{BundleId, DeadId};

/// Names of the keys that every script gets, in the order that `prelude.lua` gives them.
const FIXED: [&str; 12] = [
    "idx", "claims", "tokens", "gone", "done", "expiries", "opened", "names", "counts", "calls", "heads",
    "shelves",
];

#[derive(Clone, Debug)]
pub(in crate::store) struct Keys {
    prefix: String,
}

impl Keys {
    pub(in crate::store) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The store's own description: format and partition count.
    pub(in crate::store) fn meta(&self) -> String {
        format!("{}:meta", self.prefix)
    }

    /// The audit's trail; it belongs to no partition.
    pub(in crate::store) fn trail(&self) -> String {
        format!("{}:audit", self.prefix)
    }

    /// Who serves: a hash tag of its own, so that one script may touch both.
    pub(in crate::store) fn replicas(&self) -> String {
        format!("{}:{{members}}:replicas", self.prefix)
    }

    /// What the store knows of itself as it lives: its generation, its beats.
    pub(in crate::store) fn store(&self) -> String {
        format!("{}:{{members}}:store", self.prefix)
    }

    /// Which routes are paused, over all partitions.
    pub(in crate::store) fn paused(&self) -> String {
        format!("{}:paused", self.prefix)
    }

    /// All keys outside of the partitions but `meta`, which is checked at start: their names, where they live, their
    /// types, and where one of another type goes, in the same slot.
    pub(in crate::store) fn shared(&self) -> [(&'static str, String, Slot, &'static str); 5] {
        let whole = |name, key: String, kind| (name, key.clone(), Slot::for_key(key), kind);
        [
            whole("paused", self.paused(), "hash"),
            whole("replays", self.replays(), "hash"),
            whole("audit", self.trail(), "stream"),
            ("replicas", self.replicas(), Self::members(), "hash"),
            ("store", self.store(), Self::members(), "hash"),
        ]
    }

    /// Where such a key goes whose type is wrong.
    pub(in crate::store) fn aside(&self, name: &str, key: &str, now: UnixMs) -> String {
        // The same slot: the hash tag of its key, or all of it.
        let tag = if key.contains("{members}") { "members" } else { key };
        format!("{}:quarantine:{{{tag}}}:{name}:{now}", self.prefix)
    }

    /// Where both of these live.
    pub(in crate::store) fn members() -> Slot {
        Slot::for_key("members")
    }

    /// How far each route's replay has come, over all partitions.
    pub(in crate::store) fn replays(&self) -> String {
        format!("{}:replays", self.prefix)
    }

    /// Where a partition's keys live in a cluster: its number is their hash tag.
    pub(in crate::store) fn slot(p: Partition) -> Slot {
        Slot::for_key(p.0.to_string())
    }

    /// The slots of everything.
    pub(in crate::store) fn slots(&self, partitions: Partitions) -> Vec<Slot> {
        let whole = [self.meta(), self.trail(), self.paused(), self.replays()]
            .into_iter()
            .map(Slot::for_key)
            .chain([Self::members()]);
        partitions.all().map(Self::slot).chain(whole).collect()
    }

    pub(in crate::store) fn of(&self, p: Partition, name: &str) -> String {
        format!("{}:{{{p}}}:{name}", self.prefix)
    }

    pub(in crate::store) fn fixed(&self, p: Partition) -> Vec<String> {
        FIXED.iter().map(|name| self.of(p, name)).collect()
    }

    /// The same and those for what a call concerns besides.
    pub(in crate::store) fn fixed_of(&self, p: Partition, with: With) -> Vec<String> {
        let mut keys = self.fixed(p);
        if with.remembers {
            keys.push(self.delivered(p));
        }
        if with.ordered {
            keys.push(self.order(p));
        }
        keys
    }

    /// Who holds the routes whose keys leave in order, and which keys are held back.
    pub(in crate::store) fn order(&self, p: Partition) -> String {
        self.of(p, "order")
    }

    /// Bundles that were put back after they were due, and when they were to be delivered.
    pub(in crate::store) fn put_back(&self, p: Partition) -> String {
        self.of(p, "put_back")
    }

    /// Names that were delivered, and until when they stay taken.
    pub(in crate::store) fn delivered(&self, p: Partition) -> String {
        self.of(p, "delivered")
    }

    pub(in crate::store) fn due(&self, p: Partition, shelf: &str) -> String {
        format!("{}:{{{p}}}:due:{shelf}", self.prefix)
    }

    pub(in crate::store) fn blob(&self, p: Partition, id: &BundleId) -> String {
        format!("{}:{{{p}}}:b:{id}", self.prefix)
    }

    /// A glob for all keys of all partitions.
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

    /// The partition of a key of ours, and its name there.
    pub(in crate::store) fn split<'a>(&self, key: &'a str) -> Option<(Partition, &'a str)> {
        let rest = key.strip_prefix(&self.prefix)?.strip_prefix(":{")?;
        let (p, name) = rest.split_once("}:")?;
        Some((Partition(p.parse().ok()?), name))
    }

    /// A dead letter's blob; its id says where it lies.
    pub(in crate::store) fn dead(&self, id: &DeadId) -> String {
        format!("{}:{{{}}}:d:{id}", self.prefix, id.partition())
    }

    /// One route's dead letters of one kind.
    pub(in crate::store) fn grave(&self, p: Partition, grave: &str) -> String {
        format!("{}:{{{p}}}:dead:{grave}", self.prefix)
    }
}
