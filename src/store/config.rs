//! The store's part of the configuration, checked.

use std::fmt;
use std::time::Duration;

use crate::credential::Credential;
use crate::domain::Partitions;
use crate::tls::{ClientFiles, KeyHints};

/// Where the store is, and how it is used.
#[derive(Clone, Debug)]
pub struct Config {
    /// How the masters are found.
    pub topology: Topology,
    /// First part of every key.
    pub prefix: String,
    /// Number of partitions, fixed for a store's life.
    pub partitions: Partitions,
    /// The durability that a call waits for before it counts as stored.
    pub durability: Durability,
    /// Named messages that are due much later share bundles until they are near.
    pub growing_bundles: bool,
    /// Preflight refusals that the operator has overridden, by name.
    pub overrides: Overrides,
    /// Authorities and certificate of connections over TLS.
    pub tls: ClientFiles,
}

/// How the masters are found.
#[derive(Clone, Debug)]
pub enum Topology {
    /// One server at this URL: `redis://`, `rediss://` or `unix://`.
    Standalone(Credential),
    /// The master of this name, as these sentinels report it.
    Sentinel {
        /// Sentinels.
        nodes: Vec<Address>,
        /// The name by which the sentinels know the master.
        master: String,
        /// How to log in to the master.
        login: Login,
        /// How to log in to the sentinels. They are asked over TLS if the master is.
        sentinel_login: Login,
    },
    /// The masters of the Redis Cluster that these nodes belong to.
    Cluster {
        /// Some of the cluster's nodes.
        nodes: Vec<Address>,
        /// How to log in to any of them.
        login: Login,
    },
}

/// Credentials for a Redis server.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The ACL user. `None`: the default user.
    pub username: Option<String>,
    /// The user's password. `None`: no password.
    pub password: Option<Credential>,
    /// Connect over TLS.
    pub tls: bool,
}

/// Host and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// A host name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Address {
    /// Parses `host:port`. An IPv6 address stands in brackets. `None` if the text has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        let fits = !host.is_empty()
            && host.contains(':') == inner.is_some()
            && !host.contains(|c: char| c.is_whitespace() || "/@[],".contains(c));
        let port = port.parse().ok().filter(|port| *port > 0)?;
        fits.then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// The tier: what a call waits for before it counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The server's answer.
    Async,
    /// This many replicas have the data, at least one (`WAIT`).
    Replicated(ReplicaWait),
    /// The data is on the master's disk, and on those of this many replicas (`WAITAOF`).
    Fsynced(ReplicaWait),
}

impl Durability {
    /// The name of the tier.
    pub fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Replicated(_) => "replicated",
            Self::Fsynced(_) => "fsynced",
        }
    }

    /// The number of replicas the tier needs, and how long it waits for them. `None`: it waits for nothing.
    pub fn wait(self) -> Option<ReplicaWait> {
        match self {
            Self::Async => None,
            Self::Replicated(wait) | Self::Fsynced(wait) => Some(wait),
        }
    }
}

/// A number of replicas, and how long to wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaWait {
    /// Replicas that must have the data.
    pub replicas: u32,
    /// Longest wait for the replicas. After that the call is made again.
    pub timeout: Duration,
}

/// `redis.unsafe`: refusals that are overridden by name.
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
    /// The location of the store without a secret, for logs and messages.
    pub fn place(&self) -> String {
        let list = |nodes: &[Address]| {
            nodes
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match &self.topology {
            Topology::Standalone(url) => url.configured().redacted_url(),
            Topology::Sentinel { nodes, master, .. } => {
                format!("{master} by sentinels {}", list(nodes))
            }
            Topology::Cluster { nodes, .. } => format!("cluster {}", list(nodes)),
        }
    }

    /// The configuration key that gives the location.
    pub fn place_key(&self) -> &'static str {
        match self.topology {
            Topology::Standalone(_) => "redis.url",
            Topology::Sentinel { .. } | Topology::Cluster { .. } => "redis.nodes",
        }
    }

    /// The keys that a sentence about TLS names.
    pub fn tls_hints(&self) -> KeyHints {
        let (with_tls, without_tls) = match self.topology {
            Topology::Standalone(_) => (
                "`redis.url` must begin with rediss://",
                "`redis.url` must begin with redis://",
            ),
            Topology::Sentinel { .. } | Topology::Cluster { .. } => {
                ("set `redis.tls = true`", "set `redis.tls = false`")
            }
        };
        KeyHints {
            ca: "redis.tls.ca".to_owned(),
            certificate: "redis.tls.certificate".to_owned(),
            with_tls: with_tls.to_owned(),
            without_tls: without_tls.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for text in [
            "redis:6379",
            "127.0.0.1:1",
            "[::1]:6379",
            "redis-0.redis.default.svc:26379",
        ] {
            assert_eq!(
                Address::parse(text).map(|a| a.to_string()).as_deref(),
                Some(text)
            );
        }
        for text in [
            "",
            "redis",
            ":1",
            "redis:0",
            "redis:99999",
            "::1:6379",
            "redis://h:1",
            "a b:1",
            "[h]:1",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
