//! One supervised connection to one node: connect, check that the node is a master, publish the connection, and
//! replace it at the first sign of trouble. While it is down, callers wait for the next one instead of failing
//! one by one. Each call still has its own deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;
use redis::cluster_routing::Slot;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{ConnectFault, RESPONSE_TIMEOUT, RedisClient};
use super::deadline::RedisWire;
use super::durability::{DurabilityWait, DurabilityWaits};
use super::health::RedisHealth;
use super::open::open;
use super::rights::{RightsProbe, is_denied};
use crate::backoff::Backoff;
use crate::lifecycle::{Tasks, tick};
use crate::store::config::Durability;

/// How often a quiet connection is asked whether it is still there, and still to a master.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Numbers the nodes of one process, so that two lives of one address are told apart.
static NODES: AtomicU64 = AtomicU64::new(1);

/// A node's connection, kept up while anybody holds this. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::store) struct NodeLink {
    pub(in crate::store) id: u64,
    current: watch::Receiver<Option<Connected>>,
}

/// A connection as it is now.
#[derive(Clone, Debug)]
pub(in crate::store) struct Connected {
    pub(in crate::store) connection: RedisWire,
    /// The number of the node it leads to.
    pub(in crate::store) node: u64,
    /// The clock that its answers show: the same for all connections to one server.
    pub(in crate::store) clock: u64,
    /// The slot that was asked for. None for a walk over all nodes.
    pub(in crate::store) slot: Option<Slot>,
    /// The number of this connection among those of the node.
    generation: u64,
    broken: watch::Sender<u64>,
    pub(in crate::store) durability: Arc<DurabilityWaits>,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct LinkPurpose {
    /// A word for tasks and logs.
    pub(in crate::store) role: &'static str,
    /// The durability that its calls wait for.
    pub(in crate::store) durability: Durability,
}

/// The way to a node.
#[derive(Clone)]
pub(in crate::store) struct NodeAccess {
    pub(in crate::store) client: RedisClient,
    /// The number of the node's clock.
    pub(in crate::store) clock: u64,
    /// See [`super::topology::WatchedTopology::turned`].
    pub(in crate::store) turned: watch::Sender<u64>,
    /// Tries the user's rights at each new connection. `None` where the store has no keys.
    pub(in crate::store) rights: Option<RightsProbe>,
}

struct ConnectionSupervisor {
    access: NodeAccess,
    purpose: LinkPurpose,
    node: u64,
    health: Arc<RedisHealth>,
    publish: watch::Sender<Option<Connected>>,
    broken: watch::Sender<u64>,
    force: CancellationToken,
}

impl NodeLink {
    pub(in crate::store) fn start(
        access: NodeAccess,
        purpose: LinkPurpose,
        health: &Arc<RedisHealth>,
        tasks: &Tasks,
        force: &CancellationToken,
    ) -> Self {
        let (publish, current) = watch::channel(None);
        let node = NODES.fetch_add(1, Ordering::Relaxed);
        // Announce it before it can report: it may be connected before its role hears of it.
        health.expect((purpose.role, node));
        let health = health.clone();
        let force = force.clone();
        let broken = watch::Sender::new(0);
        let supervisor = ConnectionSupervisor {
            access,
            purpose,
            node,
            health,
            publish,
            broken,
            force,
        };
        tasks.spawn(&format!("store:link:{}", purpose.role), supervisor.run());
        Self { id: node, current }
    }

    /// The connection, as soon as there is one. `None` when its supervisor has ended. Cancel-safe.
    pub(in crate::store) async fn get(&self) -> Option<Connected> {
        let mut current = self.current.clone();
        let connected = current.wait_for(Option::is_some).await.ok()?;
        connected.clone()
    }

    /// The connection, if there is one right now.
    pub(in crate::store) fn now(&self) -> Option<Connected> {
        self.current.borrow().clone()
    }
}

impl Connected {
    /// The same connection, asked for by this slot.
    pub(in crate::store) fn of(self, slot: Slot) -> Self {
        Self {
            slot: Some(slot),
            ..self
        }
    }

    /// Has the connection replaced.
    pub(in crate::store) fn give_up(&self) {
        self.broken.send_if_modified(|generation| {
            let newer = self.generation > *generation;
            *generation = (*generation).max(self.generation);
            newer
        });
    }
}

/// Reports whether an error speaks of the connection, of its user's rights, or of the role of the server behind it.
pub(in crate::store) fn is_broken(error: &RedisError) -> bool {
    error.is_timeout()
        || error.is_io_error()
        || error.is_unrecoverable_error()
        || is_turned(error)
        || matches!(error.code(), Some("LOADING" | "NOAUTH"))
        || is_denied(error)
}

/// Reports whether only a server that is no master (any more) gives such an error.
pub(in crate::store) fn is_turned(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "UNBLOCKED"))
}

/// Connects and checks the role, within a deadline.
pub(in crate::store) async fn connect(
    client: &RedisClient,
    response: Duration,
) -> Result<RedisWire, ConnectFault> {
    let mut connection = open(client, response).await?;
    probe(&mut connection).await?;
    Ok(connection)
}

async fn probe(connection: &mut RedisWire) -> Result<(), String> {
    let role = redis::cmd("ROLE")
        .query_async::<redis::Value>(connection)
        .await;
    match role {
        Ok(redis::Value::Array(parts)) => match parts.first() {
            Some(redis::Value::BulkString(role)) if role.as_slice() == b"master" => Ok(()),
            _ => Err("it is a replica".to_owned()),
        },
        Ok(_) => Err("an unexpected answer to ROLE".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl ConnectionSupervisor {
    async fn run(self) {
        let mut generation = 0u64;
        let mut failures = 0;
        let role = self.purpose.role;
        loop {
            let connected = tokio::select! {
                () = self.unwanted() => return,
                connected = self.connect() => connected,
            };
            match connected {
                Ok((connection, wait)) => {
                    failures = 0;
                    generation += 1;
                    self.publish.send_replace(Some(Connected {
                        connection: connection.clone(),
                        node: self.node,
                        clock: self.access.clock,
                        slot: None,
                        generation,
                        broken: self.broken.clone(),
                        durability: Arc::new(DurabilityWaits::new(wait)),
                    }));
                    self.health.report((role, self.node), None);
                    let watching = watch_over(
                        connection,
                        generation,
                        self.broken.subscribe(),
                        self.access.turned.subscribe(),
                    );
                    let why = tokio::select! {
                        () = self.unwanted() => return,
                        why = watching => why,
                    };
                    self.publish.send_replace(None);
                    self.health.report((role, self.node), Some(&why));
                }
                Err(why) => {
                    failures += 1;
                    self.health.report((role, self.node), Some(&why));
                    tokio::select! {
                        () = self.unwanted() => return,
                        () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<(RedisWire, DurabilityWait), String> {
        let LinkPurpose { durability, .. } = self.purpose;
        let response = RESPONSE_TIMEOUT
            + durability
                .wait()
                .map(|wait| wait.timeout)
                .unwrap_or_default();
        let mut connection = connect(&self.access.client, response).await?;
        if let Some(rights) = &self.access.rights {
            rights.check(&mut connection).await?;
        }
        // Ask each connection: another master may be set up in another way.
        let wait = DurabilityWait::of(durability, &mut connection)
            .await
            .map_err(|why| why.to_string())?;
        Ok((connection, wait))
    }

    /// Waits until nobody uses the node any more, or the process ends.
    async fn unwanted(&self) {
        tokio::select! {
            () = self.force.cancelled() => {}
            () = self.publish.closed() => {}
        }
    }
}

/// Waits until a caller reports this connection as broken.
async fn until_broken(broken: &mut watch::Receiver<u64>, generation: u64) {
    if broken
        .wait_for(|&broken| broken >= generation)
        .await
        .is_err()
    {
        // Nobody is left to report, and the supervisor ends.
        std::future::pending::<()>().await;
    }
}

/// Watches a connection, and returns why it is no longer good.
async fn watch_over(
    mut connection: RedisWire,
    generation: u64,
    mut broken: watch::Receiver<u64>,
    mut turned: watch::Receiver<u64>,
) -> String {
    loop {
        tokio::select! {
            () = until_broken(&mut broken, generation) => return "a call failed".to_owned(),
            () = until_turned(&mut turned) => {}
            () = tick(PROBE_INTERVAL) => {}
        }
        if let Err(why) = probe(&mut connection).await {
            return why;
        }
    }
}

/// Waits until any connection got an answer that only a server which is no master gives.
async fn until_turned(turned: &mut watch::Receiver<u64>) {
    if turned.changed().await.is_err() {
        // Nobody is left to tell.
        std::future::pending::<()>().await;
    }
}
