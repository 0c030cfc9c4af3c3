//! One role's way to the store: a supervised connection to every master, and for each call the one that serves
//! its slot. Follows the topology: a node that is no longer a master is let go of at once, and its later
//! answers do not count.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, Value};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::durability::WaitFailure;
use super::health::RedisHealth;
pub(in crate::store) use super::node::Connected;
use super::node::{LinkPurpose, NodeAccess, NodeLink, is_broken, is_turned};
use super::rights::{RightsProbe, is_denied};
use super::slot_map::{RedisNode, SlotMap};
use super::topology::{WatchedTopology, client};
use crate::domain::{MonoUs, StoreClock};
use crate::lifecycle::Tasks;
use crate::store::{Config, StoreError};

/// A wait that fell short so long ago is over, even if none was made since: whoever it was made for may have given up.
const FORGOTTEN_US: i64 = 30_000_000;

/// One role's connections. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct StoreLink(Arc<LinkInner>);

struct LinkInner {
    purpose: LinkPurpose,
    watched: WatchedTopology,
    routes: watch::Receiver<NodeRoutes>,
    health: Arc<RedisHealth>,
    clock: Arc<StoreClock>,
    /// The last wait for durability, if it fell short.
    not_durable: LastShortfall,
    /// Bounds the bytes that reads of blobs ask for at once, see [`crate::store::claim::blobs`].
    asked: Semaphore,
}

/// The last wait for durability that fell short, and when, until one succeeds or it is forgotten.
#[derive(Default)]
struct LastShortfall(Mutex<Option<(String, MonoUs)>>);

impl LastShortfall {
    /// Notes a wait that fell short. Returns true if the one before did not.
    fn fell_short(&self, why: String, now: MonoUs) -> bool {
        self.0.lock().replace((why, now)).is_none()
    }

    /// Notes a wait that succeeded. Returns true if the one before fell short.
    fn succeeded(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Why the last wait fell short, if it did.
    fn why(&self, now: MonoUs) -> Option<String> {
        let mut last = self.0.lock();
        last.take_if(|(_, met)| now.since(*met) >= FORGOTTEN_US);
        last.as_ref().map(|(why, _)| why.clone())
    }
}

/// The slot map, and a connection to each of its nodes.
#[derive(Clone, Default)]
struct NodeRoutes {
    map: Arc<SlotMap>,
    /// Connections in the map's order. `None`: the address is invalid.
    nodes: Vec<Option<NodeLink>>,
}

impl NodeRoutes {
    fn node_of(&self, slot: Slot) -> Option<&NodeLink> {
        self.nodes.get(self.map.node_of(slot)?)?.as_ref()
    }

    /// The connection to this node, if there is one already.
    fn link_to(&self, node: &RedisNode) -> Option<NodeLink> {
        let at = self.map.nodes.iter().position(|known| known == node)?;
        self.nodes.get(at)?.clone()
    }
}

/// Starts connections as the map asks for them.
struct LinkStarter {
    config: Config,
    purpose: LinkPurpose,
    health: Arc<RedisHealth>,
    clock: Arc<StoreClock>,
    turned: watch::Sender<u64>,
    tasks: Tasks,
    force: CancellationToken,
}

impl StoreLink {
    pub(in crate::store) fn start(
        config: &Config,
        purpose: LinkPurpose,
        watched: &WatchedTopology,
        health: &Arc<RedisHealth>,
        clock: &Arc<StoreClock>,
        tasks: &Tasks,
        force: &CancellationToken,
    ) -> Self {
        let starter = LinkStarter {
            config: config.clone(),
            purpose,
            health: health.clone(),
            clock: clock.clone(),
            turned: watched.turned.clone(),
            tasks: tasks.clone(),
            force: force.clone(),
        };
        let mut map = watched.map.clone();
        let first = starter.follow(&NodeRoutes::default(), &map.borrow_and_update().clone());
        let (publish, routes) = watch::channel(first);
        let force = force.clone();
        tasks.spawn(&format!("store:routes:{}", purpose.role), async move {
            loop {
                tokio::select! {
                    () = force.cancelled() => return,
                    changed = map.changed() => if changed.is_err() {
                        // The map never changes: there is one server.
                        force.cancelled().await;
                        return;
                    },
                }
                let map = map.borrow_and_update().clone();
                publish.send_modify(|routes| *routes = starter.follow(routes, &map));
            }
        });
        let watched = watched.clone();
        let not_durable = LastShortfall::default();
        let asked = Semaphore::new(Self::asked_permits());
        Self(Arc::new(LinkInner {
            purpose,
            watched,
            routes,
            health: health.clone(),
            clock: clock.clone(),
            not_durable,
            asked,
        }))
    }

    /// The permits for bytes that reads of blobs may still ask for.
    pub(in crate::store) fn asked(&self) -> &Semaphore {
        &self.0.asked
    }

    /// The connection to the node that serves this slot, as soon as there is one. Waits for ever: callers have
    /// their own deadline or are meant to wait. Cancel-safe.
    pub(in crate::store) async fn to(&self, slot: Slot) -> Result<Connected, StoreError> {
        let mut routes = self.0.routes.clone();
        loop {
            let node = routes.borrow_and_update().node_of(slot).cloned();
            let connected = async {
                match node {
                    Some(node) => node.get().await,
                    None => None,
                }
            };
            tokio::select! {
                Some(connected) = connected => return Ok(connected.of(slot)),
                changed = routes.changed() => {
                    changed.map_err(|_| StoreError::Unavailable("shutting down".to_owned()))?;
                }
            }
        }
    }

    /// The same as [`Self::to`] without waiting, for callers that must not be held up by a node that is away.
    /// With one node only there is nothing to hold up, and this waits too.
    pub(in crate::store) async fn reach(&self, slot: Slot) -> Result<Connected, StoreError> {
        if !self.0.watched.split {
            return self.to(slot).await;
        }
        let routes = self.0.routes.borrow();
        let node = routes.node_of(slot).ok_or_else(|| {
            StoreError::Unavailable("nobody serves the partition's slot".to_owned())
        })?;
        let connected = node
            .now()
            .ok_or_else(|| StoreError::Unavailable("a node is away".to_owned()))?;
        Ok(connected.of(slot))
    }

    /// A connection to each master that is reachable now.
    pub(in crate::store) fn each(&self) -> Vec<Connected> {
        self.0
            .routes
            .borrow()
            .nodes
            .iter()
            .flatten()
            .filter_map(NodeLink::now)
            .collect()
    }

    /// Reports whether every slot is served and every master can be reached.
    pub(in crate::store) fn is_up(&self) -> bool {
        let routes = self.0.routes.borrow();
        if routes.map.trouble.is_some() || routes.nodes.is_empty() {
            return false;
        }
        routes
            .nodes
            .iter()
            .all(|node| node.as_ref().is_some_and(|node| node.now().is_some()))
    }

    /// Reports whether the answers of this connection still count: its node serves the slot that was asked for.
    pub(in crate::store) fn still_counts(&self, connected: &Connected) -> Result<(), StoreError> {
        let routes = self.0.routes.borrow();
        let node = connected
            .slot
            .and_then(|slot| routes.node_of(slot))
            .map(|node| node.id);
        if connected.slot.is_none() || node == Some(connected.node) {
            return Ok(());
        }
        Err(StoreError::Unavailable(
            "answered by a node that has been replaced".to_owned(),
        ))
    }

    /// Sends commands that belong together, all of one slot, in one trip.
    pub(in crate::store) async fn pipe<T: FromRedisValue>(
        &self,
        slot: Slot,
        pipe: &Pipeline,
    ) -> Result<T, StoreError> {
        let connected = self.reach(slot).await?;
        let answer = pipe.query_async(&mut connected.connection.clone()).await;
        let answer = answer.map_err(|error| self.judge(&connected, &error))?;
        self.still_counts(&connected)?;
        Ok(answer)
    }

    /// Sends each command to the node that serves it, one trip a node, all at once. Answers each command on its
    /// own.
    pub(in crate::store) async fn gather(
        &self,
        commands: Vec<(Slot, Cmd)>,
    ) -> Vec<Result<Value, StoreError>> {
        let mut answers: Vec<Result<Value, StoreError>> = Vec::with_capacity(commands.len());
        let mut trips: BTreeMap<u64, (Connected, Pipeline, Vec<usize>)> = BTreeMap::new();
        let mut only: Option<Connected> = None;
        for (at, (slot, command)) in commands.into_iter().enumerate() {
            let reached = match &only {
                Some(connected) => Ok(connected.clone()),
                None => self.reach(slot).await,
            };
            if !self.0.watched.split {
                only = reached.clone().ok();
            }
            match reached {
                Ok(connected) => {
                    let (_, pipe, places) = trips
                        .entry(connected.node)
                        .or_insert_with(|| (connected.clone(), redis::pipe(), Vec::new()));
                    pipe.add_command(command);
                    places.push(at);
                    answers.push(Ok(Value::Nil));
                }
                Err(why) => answers.push(Err(why)),
            }
        }
        let sent = trips
            .into_values()
            .map(|(connected, mut pipe, places)| async move {
                pipe.ignore_errors();
                let answer: Result<Vec<Value>, RedisError> =
                    pipe.query_async(&mut connected.connection.clone()).await;
                (connected, places, answer)
            });
        for (connected, places, answer) in join_all(sent).await {
            match answer {
                Ok(values) => {
                    for (at, value) in places.into_iter().zip(values) {
                        answers[at] = value
                            .extract_error()
                            .map_err(|error| self.judge(&connected, &error));
                    }
                }
                Err(error) => {
                    let why = self.judge(&connected, &error);
                    for at in places {
                        answers[at] = Err(why.clone());
                    }
                }
            }
        }
        answers
    }

    /// The same as [`Self::gather`], for answers that are of no use in part.
    pub(in crate::store) async fn gather_all<T: FromRedisValue>(
        &self,
        commands: Vec<(Slot, Cmd)>,
    ) -> Result<Vec<T>, StoreError> {
        self.gather(commands)
            .await
            .into_iter()
            .map(|answer| read(answer?))
            .collect()
    }

    /// Waits until a call that this connection has just answered is where the tier wants it. A call that is not
    /// must be made again.
    pub(in crate::store) async fn await_durable(
        &self,
        connected: &Connected,
    ) -> Result<(), StoreError> {
        let role = self.0.purpose.role;
        match connected
            .durability
            .await_durable(&connected.connection)
            .await
        {
            Ok(()) => {
                if self.0.not_durable.succeeded() {
                    debug!(role, "writes are durable again");
                }
                Ok(())
            }
            Err(WaitFailure::Few(why)) => {
                let now = self.0.clock.local().mono();
                if self.0.not_durable.fell_short(why.clone(), now) {
                    let tier = self.0.purpose.durability.name();
                    debug!(
                        role,
                        durability = tier,
                        error = why,
                        "a write is not durable, so it does not count; retrying"
                    );
                }
                Err(StoreError::Unavailable(why))
            }
            Err(WaitFailure::Failed(error)) => Err(self.judge(connected, &error)),
        }
    }

    /// Why the last call that was waited for lately is not durable, if so.
    pub(in crate::store) fn not_durable(&self) -> Option<String> {
        self.0.not_durable.why(self.0.clock.local().mono())
    }

    /// Judges an error. An error of the connection or of the server's role has the connection replaced. An
    /// error about who serves a slot has the topology read again.
    pub(in crate::store) fn judge(&self, connected: &Connected, error: &RedisError) -> StoreError {
        let broken = is_broken(error);
        if broken {
            connected.give_up();
        }
        if is_turned(error) {
            self.0.watched.turned.send_modify(|turns| *turns += 1);
        }
        let text = error.to_string();
        let moved = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];
        let moved = moved.iter().any(|code| text.contains(code));
        if broken || moved {
            self.0.watched.read_now.notify_one();
        } else {
            let now = self.0.clock.local().mono();
            self.0.health.refusal.answered(error, now);
        }
        sort(error, text)
    }

    /// Notes that a server has taken a write.
    pub(in crate::store) fn taken(&self) {
        self.0.health.refusal.taken();
    }

    /// Why a server refuses what it is asked, whichever connection met that.
    pub(in crate::store) fn refusal(&self) -> Option<String> {
        self.0.health.refusal.why(self.0.clock.local().mono())
    }
}

/// Converts an answer to the expected type.
pub(in crate::store) fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    T::from_redis_value(value).map_err(|error| StoreError::Damaged(error.to_string()))
}

impl LinkStarter {
    /// Follows a new map: known nodes keep their connections, new nodes get theirs, and the others' connections
    /// end.
    fn follow(&self, had: &NodeRoutes, map: &Arc<SlotMap>) -> NodeRoutes {
        let nodes: Vec<Option<NodeLink>> = (0..map.nodes.len())
            .map(|at| had.link_to(&map.nodes[at]).or_else(|| self.node(map, at)))
            .collect();
        let ids: Vec<u64> = nodes.iter().flatten().map(|node| node.id).collect();
        self.health
            .follow(self.purpose.role, &ids, map.trouble.as_deref());
        if !map.nodes.is_empty() {
            self.clock
                .follow(&map.nodes.iter().map(RedisNode::clock).collect::<Vec<_>>());
        }
        NodeRoutes {
            map: map.clone(),
            nodes,
        }
    }

    fn node(&self, map: &SlotMap, at: usize) -> Option<NodeLink> {
        let node = &map.nodes[at];
        match client(&self.config, node) {
            Ok(client) => {
                let rights = RightsProbe::of(&self.config.prefix, self.config.partitions, map, at);
                let access = NodeAccess {
                    client,
                    clock: node.clock(),
                    turned: self.turned.clone(),
                    rights,
                };
                Some(NodeLink::start(
                    access,
                    self.purpose,
                    &self.health,
                    &self.tasks,
                    &self.force,
                ))
            }
            Err(error) => {
                // The configuration was checked, so only an address that a server named can be wrong.
                warn!(%node, %error, "the address of a master is invalid");
                None
            }
        }
    }
}

/// Sorts a client's error by what is to be done about it.
fn sort(error: &RedisError, text: String) -> StoreError {
    if is_denied(error) {
        return StoreError::Unavailable(text);
    }
    match error.code().unwrap_or_default() {
        "OOM" => StoreError::Full(text),
        // Inside MULTI every command is refused at `maxmemory`, and EXEC says only that.
        "EXECABORT" if text.contains("OOM") => StoreError::Full(text),
        // A foreign key, or a script that fails by itself: asking again would fail again.
        "WRONGTYPE" | "ERR" => StoreError::Damaged(text),
        // A command of several: its error has no code of its own.
        "" if text.contains("WRONGTYPE") => StoreError::Damaged(text),
        _ => StoreError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_fell_short_counts_until_one_succeeds_or_none_was_made_for_half_a_minute() {
        let last = LastShortfall::default();
        let at = |seconds: i64| MonoUs(seconds * 1_000_000);
        assert_eq!(last.why(at(0)), None);
        assert!(last.fell_short("0 of 1".to_owned(), at(0)));
        assert!(!last.fell_short("0 of 2".to_owned(), at(20)));
        assert_eq!(last.why(at(49)).as_deref(), Some("0 of 2"));
        assert_eq!(last.why(at(50)), None, "whoever waited has given up");
        assert!(!last.succeeded());
        assert!(last.fell_short("0 of 1".to_owned(), at(60)));
        assert!(last.succeeded());
        assert_eq!(last.why(at(60)), None);
    }
}
