//! The nodes of the store, and which of them serves which slot.

use std::collections::HashMap;
use std::fmt;

use redis::cluster_routing::Slot;

use super::client::ConnectFault;
use crate::store::config::Address;

/// The location of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum RedisNode {
    /// The location in the configured URL.
    Configured,
    /// An address that a server named.
    At(Address),
}

impl fmt::Display for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("as configured"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl RedisNode {
    /// A number for the node's clock, the same for everybody who knows the node.
    pub(in crate::store) fn clock(&self) -> u64 {
        match self {
            Self::Configured => 0,
            Self::At(address) => xxhash_rust::xxh3::xxh3_64(address.to_string().as_bytes()),
        }
    }
}

/// The nodes that serve the slots, as of now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::store) struct SlotMap {
    /// The masters.
    pub(in crate::store) nodes: Vec<RedisNode>,
    /// In a cluster: each served slot, and the place of its node. `None`: the first node serves all slots.
    pub(in crate::store) slots: Option<HashMap<Slot, usize>>,
    /// The trouble with the topology, if any.
    pub(in crate::store) trouble: Option<String>,
    /// Set if TLS is the reason of the trouble.
    pub(in crate::store) is_tls_trouble: bool,
}

impl SlotMap {
    pub(super) fn of_one(node: RedisNode) -> Self {
        Self {
            nodes: vec![node],
            ..Self::default()
        }
    }

    pub(super) fn unknown(why: impl Into<String>) -> Self {
        Self {
            trouble: Some(why.into()),
            ..Self::default()
        }
    }

    /// No node is known, since no server of those that are asked can be reached. `fault` is that of one of them.
    pub(super) fn unreached(why: &str, fault: Option<&ConnectFault>) -> Self {
        let told = fault.map(ToString::to_string).unwrap_or_default();
        let is_tls_trouble = fault.is_some_and(ConnectFault::is_tls);
        Self {
            is_tls_trouble,
            ..Self::unknown(format!("{why}; {told}"))
        }
    }

    /// The place of the node that serves this slot.
    pub(in crate::store) fn node_of(&self, slot: Slot) -> Option<usize> {
        match &self.slots {
            None => (!self.nodes.is_empty()).then_some(0),
            Some(slots) => slots.get(&slot).copied(),
        }
    }
}
