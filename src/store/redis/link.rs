//! One supervised connection to Redis: connect, check that it is a master, hand it out, and on the first
//! sign of trouble replace it. While it is down, callers wait for the next one instead of failing one by
//! one; each call has its own deadline all the same.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use crate::backoff::Backoff;
use crate::lifecycle::Tasks;
use crate::store::{Config, PreflightError, StoreError};

/// Longest wait for an answer. Redis's own slow scripts are bounded far below this.
const RESPONSE: Duration = Duration::from_secs(2);
/// Longest wait for a connection to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// A quiet connection is asked whether it is still there, and still a master, this often.
const PROBE: Duration = Duration::from_secs(2);

/// A connection that is kept up. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    current: watch::Receiver<Option<Connected>>,
    broken: watch::Sender<u64>,
}

#[derive(Clone)]
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
}

struct Keeper {
    client: Client,
    role: &'static str,
    health: Arc<Health>,
    publish: watch::Sender<Option<Connected>>,
    broken: watch::Receiver<u64>,
    force: CancellationToken,
}

impl Link {
    pub(super) fn start(
        config: &Config,
        role: &'static str,
        health: &Arc<Health>,
        tasks: &Tasks,
        force: &CancellationToken,
    ) -> Result<Self, PreflightError> {
        let client = open(config)?;
        let (publish, current) = watch::channel(None);
        let (broken, hears_broken) = watch::channel(0);
        let health = health.clone();
        let keeper = Keeper { client, role, health, publish, broken: hears_broken, force: force.clone() };
        tasks.spawn(&format!("store:link:{role}"), keeper.run());
        Ok(Self { current, broken })
    }

    /// The connection, as soon as there is one. Waits for ever; callers have their own deadline or are
    /// meant to wait. Cancel-safe.
    pub(super) async fn get(&self) -> Result<Connected, StoreError> {
        let mut current = self.current.clone();
        let connected = current.wait_for(Option::is_some).await;
        let connected = connected.map_err(|_| StoreError::Unavailable("shutting down".to_owned()))?;
        connected.clone().ok_or_else(|| StoreError::Unavailable("not connected".to_owned()))
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Judges an error: one that speaks of the connection or the server's role has it replaced.
    pub(super) fn judge(&self, connected: &Connected, error: &RedisError) -> StoreError {
        let moved =
            matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "LOADING" | "UNBLOCKED" | "NOAUTH"));
        if error.is_timeout() || error.is_io_error() || error.is_unrecoverable_error() || moved {
            self.broken.send_if_modified(|generation| {
                let newer = connected.generation > *generation;
                *generation = (*generation).max(connected.generation);
                newer
            });
        }
        sort(error)
    }
}

/// The client; the URL is checked here, the connection comes later.
pub(super) fn open(config: &Config) -> Result<Client, PreflightError> {
    // Nagle's wait for more and the other side's delayed acknowledgement add up to 40 ms; a peer that is gone
    // without a word is noticed by the probe's deadline or by this one.
    let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(RESPONSE + CONNECT);
    let told = |info: ConnectionInfo| info.set_tcp_settings(tcp);
    (config.url.expose().into_connection_info().map(told).and_then(Client::open))
        .map_err(|error| PreflightError(format!("redis.url {}: {error}", config.url.redacted_url())))
}

/// Connects and checks the role, within a deadline.
pub(super) async fn connect(client: &Client) -> Result<MultiplexedConnection, String> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(RESPONSE));
    let connecting = client.get_multiplexed_async_connection_with_config(&settings);
    let mut connection = tokio::time::timeout(CONNECT * 2, connecting)
        .await
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.to_string())?;
    probe(&mut connection).await?;
    Ok(connection)
}

async fn probe(connection: &mut MultiplexedConnection) -> Result<(), String> {
    let role = redis::cmd("ROLE").query_async::<redis::Value>(connection).await;
    match role {
        Ok(redis::Value::Array(parts)) => match parts.first() {
            Some(redis::Value::BulkString(role)) if role.as_slice() == b"master" => Ok(()),
            _ => Err("it is a replica".to_owned()),
        },
        Ok(_) => Err("an unexpected answer to ROLE".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Keeper {
    async fn run(mut self) {
        let mut generation = 0u64;
        let mut failures = 0;
        loop {
            let force = self.force.clone();
            let connected = tokio::select! {
                () = force.cancelled() => return,
                connected = connect(&self.client) => connected,
            };
            match connected {
                Ok(connection) => {
                    failures = 0;
                    generation += 1;
                    self.publish.send_replace(Some(Connected { connection: connection.clone(), generation }));
                    self.health.report(self.role, None);
                    let why = tokio::select! {
                        () = force.cancelled() => return,
                        why = watch_over(connection, generation, &mut self.broken) => why,
                    };
                    // Nobody uses it any more: the process ends.
                    let Some(why) = why else { return };
                    self.publish.send_replace(None);
                    self.health.report(self.role, Some(&why));
                }
                Err(why) => {
                    failures += 1;
                    self.health.report(self.role, Some(&why));
                    tokio::select! {
                        () = force.cancelled() => return,
                        () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
                    }
                }
            }
        }
    }
}

/// Returns why the connection is no longer good; `None` if nobody uses it any more.
async fn watch_over(
    mut connection: MultiplexedConnection,
    generation: u64,
    broken: &mut watch::Receiver<u64>,
) -> Option<String> {
    loop {
        tokio::select! {
            used = told(broken, generation) => {
                return used.then(|| "a call failed".to_owned());
            }
            () = tokio::time::sleep(PROBE) => {
                if let Err(why) = probe(&mut connection).await {
                    return Some(why);
                }
            }
        }
    }
}

/// Waits until somebody says that this generation is broken; `false` if nobody is left to say so.
async fn told(broken: &mut watch::Receiver<u64>, generation: u64) -> bool {
    broken.wait_for(|&broken| broken >= generation).await.is_ok()
}

/// Sorts a client's error by what is to be done about it.
fn sort(error: &RedisError) -> StoreError {
    let code = error.code().unwrap_or_default();
    let text = error.to_string();
    match code {
        "OOM" => StoreError::Full(text),
        // Inside MULTI every command is refused at `maxmemory`, and EXEC says only that.
        "EXECABORT" if text.contains("OOM") => StoreError::Full(text),
        // A key that is not ours, or a script that fails of itself: asking again would fail again.
        "WRONGTYPE" | "ERR" => StoreError::Damaged(text),
        _ => StoreError::Unavailable(text),
    }
}
