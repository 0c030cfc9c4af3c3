//! Which node serves what: one server, the master that the sentinels name, or the masters of a cluster. Those who
//! watch say so in a [`Map`]; links follow it.

mod cluster;
mod sentinel;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::cluster::Nodes;
use self::sentinel::Sentinels;
use super::node::{CONNECT, RESPONSE};
use crate::lifecycle::Tasks;
use crate::store::config::{Address, Login, Topology};
use crate::store::{Config, PreflightError};

/// Who serves what is asked this often, and at once when a call says that it has changed.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for one of those that are asked: one that hangs must not put the next look off.
const ANSWER: Duration = Duration::from_millis(800);

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum Node {
    /// Where the URL says.
    Configured,
    /// Where somebody said.
    At(Address),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("as configured"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Node {
    /// A number for its clock, the same for everybody who knows the node.
    pub(in crate::store) fn clock(&self) -> u64 {
        match self {
            Self::Configured => 0,
            Self::At(address) => xxhash_rust::xxh3::xxh3_64(address.to_string().as_bytes()),
        }
    }
}

/// Who serves what, now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::store) struct Map {
    /// The masters.
    pub(in crate::store) nodes: Vec<Node>,
    /// In a cluster: each slot that is served, and by which of them. `None`: the first serves all.
    pub(in crate::store) slots: Option<HashMap<Slot, usize>>,
    /// What is not as it should be.
    pub(in crate::store) trouble: Option<String>,
}

impl Map {
    fn of_one(node: Node) -> Self {
        Self { nodes: vec![node], slots: None, trouble: None }
    }

    fn unknown(why: impl Into<String>) -> Self {
        Self { trouble: Some(why.into()), ..Self::default() }
    }

    /// The place among the nodes of the one that serves this slot.
    pub(in crate::store) fn node_of(&self, slot: Slot) -> Option<usize> {
        match &self.slots {
            None => (!self.nodes.is_empty()).then_some(0),
            Some(slots) => slots.get(&slot).copied(),
        }
    }
}

/// The map, kept up to date. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Watched {
    pub(in crate::store) map: watch::Receiver<Arc<Map>>,
    /// Has it looked at again at once.
    pub(in crate::store) look_now: Arc<Notify>,
    /// Whether there may be several nodes.
    pub(in crate::store) split: bool,
}

/// Those who are asked.
enum Watcher {
    Nobody,
    Sentinels(Sentinels),
    Nodes(Nodes),
}

impl Watcher {
    fn new(config: &Config, wanted: &[Slot]) -> Result<Self, PreflightError> {
        Ok(match &config.topology {
            Topology::Standalone(_) => {
                client(config, &Node::Configured)?;
                Self::Nobody
            }
            Topology::Sentinel { nodes, master, sentinel_login, .. } => {
                Self::Sentinels(Sentinels::new(nodes, master, sentinel_login, config)?)
            }
            Topology::Cluster { nodes, .. } => Self::Nodes(Nodes::new(nodes, wanted, config)),
        })
    }

    /// Asks once.
    async fn look(&mut self, before: &Map) -> Map {
        match self {
            Self::Nobody => Map::of_one(Node::Configured),
            Self::Sentinels(sentinels) => sentinels.look(before).await,
            Self::Nodes(nodes) => nodes.look(before).await,
        }
    }
}

/// Who serves what, asked once.
pub(in crate::store) async fn look_once(config: &Config, wanted: &[Slot]) -> Result<Map, PreflightError> {
    Ok(Watcher::new(config, wanted)?.look(&Map::default()).await)
}

/// Starts to watch who serves what. `wanted` are the slots that this store uses.
pub(in crate::store) fn watch(
    config: &Config,
    wanted: &[Slot],
    tasks: &Tasks,
    force: &CancellationToken,
) -> Result<Watched, PreflightError> {
    let mut watcher = Watcher::new(config, wanted)?;
    let start = match watcher {
        Watcher::Nobody => Map::of_one(Node::Configured),
        _ => Map::unknown("not asked yet"),
    };
    let (publish, map) = watch::channel(Arc::new(start));
    let look_now = Arc::new(Notify::new());
    let watched = Watched { map, look_now: look_now.clone(), split: matches!(watcher, Watcher::Nodes(_)) };
    if matches!(watcher, Watcher::Nobody) {
        return Ok(watched);
    }
    let force = force.clone();
    tasks.spawn("store:topology", async move {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = force.cancelled() => return,
                _ = ticks.tick() => {}
                () = look_now.notified() => {}
            }
            let before = publish.borrow().clone();
            let seen = tokio::select! {
                () = force.cancelled() => return,
                seen = watcher.look(&before) => seen,
            };
            if seen != *before {
                let masters: Vec<String> = seen.nodes.iter().map(ToString::to_string).collect();
                tracing::info!(?masters, trouble = seen.trouble, "who serves the store has changed");
                publish.send_replace(Arc::new(seen));
            }
        }
    });
    Ok(watched)
}

/// A client for a node; what is configured is checked here, the connection comes later.
pub(in crate::store) fn client(config: &Config, node: &Node) -> Result<Client, PreflightError> {
    let refused =
        |error: RedisError| PreflightError(format!("{} {}: {error}", config.place_key(), config.place()));
    let info = match (&config.topology, node) {
        (Topology::Standalone(url), _) => url.expose().into_connection_info().map(told).map_err(refused)?,
        (Topology::Sentinel { login, .. } | Topology::Cluster { login, .. }, Node::At(address)) => {
            at(address, login).map_err(refused)?
        }
        (_, Node::Configured) => return Err(PreflightError("a node without an address".to_owned())),
    };
    Client::open(info).map_err(refused)
}

fn at(address: &Address, login: &Login) -> Result<ConnectionInfo, RedisError> {
    let Address { host, port } = address.clone();
    let mut settings = RedisConnectionInfo::default();
    if let Some(username) = &login.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.expose());
    }
    let place = if login.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    Ok(told(place.into_connection_info()?.set_redis_settings(settings)))
}

/// Nagle's wait for more and the other side's delayed acknowledgement add up to 40 ms; a peer that is gone
/// without a word is noticed by the probe's deadline or by this one.
fn told(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_user_timeout(RESPONSE + CONNECT))
}
