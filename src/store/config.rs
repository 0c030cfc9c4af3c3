//! The store's part of the configuration, checked.

use std::fmt;
use std::time::Duration;

use crate::domain::{Partitions, Secret};

/// Where the store is and what it may be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its masters are found.
    pub topology: Topology,
    /// First part of every key.
    pub prefix: String,
    /// Fixed for a store's life.
    pub partitions: Partitions,
    /// What is waited for before something counts as stored.
    pub durability: Durability,
    /// Refusals of the preflight that the operator has overridden, by name.
    pub overrides: Overrides,
}

/// How the masters are found.
#[derive(Clone, Debug)]
pub enum Topology {
    /// One server at this URL: `redis://`, `rediss://` or `unix://`.
    Standalone(Secret),
    /// The master of this name, as these sentinels say.
    Sentinel {
        /// Sentinels.
        nodes: Vec<Address>,
        /// What they call the master.
        master: String,
        /// How to log in at the master.
        login: Login,
        /// How to log in at the sentinels; they are asked over TLS where the master is.
        sentinel_login: Login,
    },
    /// The masters of a Redis Cluster that these nodes belong to.
    Cluster {
        /// Some of its nodes.
        nodes: Vec<Address>,
        /// How to log in at any of them.
        login: Login,
    },
}

/// How to log in.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The ACL user; `None`: the default one.
    pub username: Option<String>,
    /// Its password; `None`: none.
    pub password: Option<Secret>,
    /// Over TLS.
    pub tls: bool,
}

/// Host and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Address {
    /// `host:port`; an IPv6 address stands in brackets. `None` if it is not that.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        let fits = !host.is_empty()
            && host.contains(':') == inner.is_some()
            && !host.contains(|c: char| c.is_whitespace() || "/@[],".contains(c));
        let port = port.parse().ok().filter(|port| *port > 0)?;
        fits.then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// What is waited for before a call counts as done: the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The server's answer.
    Async,
    /// So many replicas have it, at least one (`WAIT`).
    Replicated(Wait),
    /// It is on the master's disk, and on those of so many replicas (`WAITAOF`).
    Fsynced(Wait),
}

impl Durability {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Replicated(_) => "replicated",
            Self::Fsynced(_) => "fsynced",
        }
    }

    /// How many replicas it needs and how long it waits for them; `None`: it waits for nothing.
    pub fn wait(self) -> Option<Wait> {
        match self {
            Self::Async => None,
            Self::Replicated(wait) | Self::Fsynced(wait) => Some(wait),
        }
    }
}

/// How many replicas, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Replicas that must have it.
    pub replicas: u32,
    /// Longest wait for them; then the call is made again.
    pub timeout: Duration,
}

/// `redis.unsafe`: refusals overridden by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `eviction`: an evicting `maxmemory-policy`.
    pub eviction: bool,
    /// `no_persistence`: neither AOF nor RDB.
    pub no_persistence: bool,
    /// `unchecked`: `CONFIG` is denied, so neither can be checked.
    pub unchecked: bool,
}

impl Config {
    /// Where it is, without a secret: for logs and messages.
    pub fn place(&self) -> String {
        let list = |nodes: &[Address]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match &self.topology {
            Topology::Standalone(url) => url.redacted_url(),
            Topology::Sentinel { nodes, master, .. } => format!("{master} by sentinels {}", list(nodes)),
            Topology::Cluster { nodes, .. } => format!("cluster {}", list(nodes)),
        }
    }

    /// The key of the configuration that says where it is.
    pub fn place_key(&self) -> &'static str {
        match self.topology {
            Topology::Standalone(_) => "redis.url",
            Topology::Sentinel { .. } | Topology::Cluster { .. } => "redis.nodes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for text in ["redis:6379", "127.0.0.1:1", "[::1]:6379", "redis-0.redis.default.svc:26379"] {
            assert_eq!(Address::parse(text).map(|a| a.to_string()).as_deref(), Some(text));
        }
        for text in ["", "redis", ":1", "redis:0", "redis:99999", "::1:6379", "redis://h:1", "a b:1", "[h]:1"]
        {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
