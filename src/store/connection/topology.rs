//! Which node serves what: one server, the master that the sentinels name, or the masters of a cluster. A
//! watcher publishes it as a [`SlotMap`], and links follow it.

mod cluster;
mod sentinel;

use std::sync::Arc;
use std::time::Duration;

use redis::cluster_routing::Slot;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::cluster::ClusterNodes;
use self::sentinel::Sentinels;
use super::client::{RedisClient, RedisServer};
use super::slot_map::{RedisNode, SlotMap};
use crate::health::NOT_REACHED;
use crate::lifecycle::Tasks;
use crate::store::config::Topology;
use crate::store::{Config, PreflightError};

/// How often the topology is read. It is read at once when a call finds that it has changed.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The slot map, kept up to date. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct WatchedTopology {
    pub(in crate::store) map: watch::Receiver<Arc<SlotMap>>,
    /// Has the topology read at once.
    pub(in crate::store) read_now: Arc<Notify>,
    /// Counts answers that only a server which is no master (any more) gives. Every connection of every role is probed
    /// at each of them: one that only reads never gets such an answer.
    pub(in crate::store) turned: watch::Sender<u64>,
    /// Set if there may be several nodes.
    pub(in crate::store) split: bool,
}

/// The servers that are asked for the topology.
enum TopologyWatcher {
    Nobody,
    Sentinels(Sentinels),
    Nodes(ClusterNodes),
}

impl TopologyWatcher {
    fn new(config: &Config, wanted: &[Slot]) -> Result<Self, PreflightError> {
        Ok(match &config.topology {
            Topology::Standalone(_) => {
                client(config, &RedisNode::Configured)?;
                Self::Nobody
            }
            Topology::Sentinel {
                nodes,
                master,
                sentinel_login,
                ..
            } => Self::Sentinels(Sentinels::new(nodes, master, sentinel_login, config)),
            Topology::Cluster { nodes, .. } => {
                Self::Nodes(ClusterNodes::new(nodes, wanted, config))
            }
        })
    }

    /// Reads the topology once.
    async fn read(&mut self, before: &SlotMap) -> SlotMap {
        match self {
            Self::Nobody => SlotMap::of_one(RedisNode::Configured),
            Self::Sentinels(sentinels) => sentinels.read(before).await,
            Self::Nodes(nodes) => nodes.read(before).await,
        }
    }
}

/// Reads the topology once, without keeping it up to date.
pub(in crate::store) async fn read_once(
    config: &Config,
    wanted: &[Slot],
) -> Result<SlotMap, PreflightError> {
    Ok(TopologyWatcher::new(config, wanted)?
        .read(&SlotMap::default())
        .await)
}

/// Starts to watch the topology. `wanted` are the slots that this store uses.
pub(in crate::store) fn watch(
    config: &Config,
    wanted: &[Slot],
    tasks: &Tasks,
    force: &CancellationToken,
) -> Result<WatchedTopology, PreflightError> {
    let mut watcher = TopologyWatcher::new(config, wanted)?;
    let start = match watcher {
        TopologyWatcher::Nobody => SlotMap::of_one(RedisNode::Configured),
        _ => SlotMap::unknown(NOT_REACHED),
    };
    let (publish, map) = watch::channel(Arc::new(start));
    let read_now = Arc::new(Notify::new());
    let watched = WatchedTopology {
        map,
        read_now: read_now.clone(),
        turned: watch::Sender::new(0),
        split: matches!(watcher, TopologyWatcher::Nodes(_)),
    };
    if matches!(watcher, TopologyWatcher::Nobody) {
        return Ok(watched);
    }
    let force = force.clone();
    tasks.spawn("store:topology", async move {
        let mut ticks = tokio::time::interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = force.cancelled() => return,
                _ = ticks.tick() => {}
                () = read_now.notified() => {}
            }
            let before = publish.borrow().clone();
            let seen = tokio::select! {
                () = force.cancelled() => return,
                seen = watcher.read(&before) => seen,
            };
            if seen != *before {
                let masters: Vec<String> = seen.nodes.iter().map(ToString::to_string).collect();
                tracing::info!(
                    ?masters,
                    trouble = seen.trouble,
                    "the topology of redis has changed"
                );
                publish.send_replace(Arc::new(seen));
            }
        }
    });
    Ok(watched)
}

/// Makes a client for a node.
pub(in crate::store) fn client(
    config: &Config,
    node: &RedisNode,
) -> Result<RedisClient, PreflightError> {
    let server = match (&config.topology, node) {
        (Topology::Standalone(url), _) => RedisServer::Url(url.clone()),
        (
            Topology::Sentinel { login, .. } | Topology::Cluster { login, .. },
            RedisNode::At(address),
        ) => RedisServer::Node(address.clone(), login.clone()),
        (_, RedisNode::Configured) => {
            return Err(PreflightError("a node without an address".to_owned()));
        }
    };
    Ok(RedisClient::new(server, config))
}
