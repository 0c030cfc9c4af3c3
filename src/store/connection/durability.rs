//! Waits until the writes of a connection are where its tier wants them: `WAIT`, `WAITAOF`.
//!
//! Both commands speak of the last write of their own connection. They are sent on the connection of the calls
//! that they cover, after those calls were answered there. One wait covers all calls answered before it was
//! sent, so callers that come meanwhile share the next one. A call that is not covered has not failed: it is
//! made again under its number. A script that is waited for writes on each of its paths, because a wait after a
//! call that wrote nothing proves nothing (Valkey then answers at once).

use std::sync::atomic::{AtomicU64, Ordering};

use super::deadline::RedisWire;
use redis::RedisError;
use tokio::sync::Mutex;

use crate::mutants::{self, Mutant};
use crate::store::config::{Durability, ReplicaWait};

/// The event that a connection's calls wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum DurabilityWait {
    /// The answer alone.
    Answered,
    /// `WAIT`: this many replicas have the write.
    Replicas(ReplicaWait),
    /// `WAITAOF`: the write is on the master's disk and on those of this many replicas.
    Disks(ReplicaWait),
}

/// Refusal of a server on which a `WAITAOF` would wait in vain.
const NEVER_SYNCS: &str = "durability = \"fsynced\" waits until the server has synced its append-only file, and this one never \
                           does: it needs appendonly yes, and appendfsync everysec or always";

/// Why a server cannot provide a tier.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum TierError {
    /// The server lacks the ability.
    #[error("{0}")]
    Unable(&'static str),
    /// The server did not answer.
    #[error("{0}")]
    Away(RedisError),
}

impl DurabilityWait {
    /// The way in which this server can provide the tier.
    pub(in crate::store) async fn of(
        durability: Durability,
        connection: &mut RedisWire,
    ) -> Result<Self, TierError> {
        let wait = match durability {
            Durability::Async => return Ok(Self::Answered),
            Durability::Replicated(wait) => return Self::replicas(wait, connection).await,
            Durability::Fsynced(wait) => wait,
        };
        let mut asked = redis::cmd("WAITAOF");
        asked.arg(0).arg(0).arg(1);
        let has_wait = match asked.query_async::<(u32, u32)>(connection).await {
            Ok(_) => true,
            // The server does not know the command.
            Err(error) if error.code() == Some("ERR") => false,
            Err(error) => return Err(TierError::Away(error)),
        };
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg("append*");
        let found: Vec<String> = match asked.query_async(connection).await {
            Ok(found) => found,
            Err(error) if matches!(error.code(), Some("ERR" | "NOPERM")) => Vec::new(),
            Err(error) => return Err(TierError::Away(error)),
        };
        let is = |name: &str, value: &str| found.chunks(2).any(|pair| pair == [name, value]);
        if has_wait {
            // A server that does not tell its settings may be right.
            let never_syncs = is("appendonly", "no") || is("appendfsync", "no");
            return if never_syncs {
                Err(TierError::Unable(NEVER_SYNCS))
            } else {
                Ok(Self::Disks(wait))
            };
        }
        if !is("appendonly", "yes") || !is("appendfsync", "always") {
            return Err(TierError::Unable(
                "durability = \"fsynced\" needs WAITAOF, which this server does not have (Redis 7.2 and later and \
                 Valkey do), or appendonly yes with appendfsync always, which it does not say",
            ));
        }
        // The server answers after its fsync. Only the replicas are still to be waited for.
        if wait.replicas == 0 {
            Ok(Self::Answered)
        } else {
            Self::replicas(wait, connection).await
        }
    }

    /// The wait for replicas, once the server lets this user wait.
    async fn replicas(wait: ReplicaWait, connection: &mut RedisWire) -> Result<Self, TierError> {
        let mut asked = redis::cmd("WAIT");
        asked.arg(0).arg(1);
        asked
            .query_async::<u32>(connection)
            .await
            .map_err(TierError::Away)?;
        Ok(Self::Replicas(wait))
    }

    async fn wait(self, connection: &mut RedisWire) -> Result<(), WaitFailure> {
        let (wait, disks) = match self {
            Self::Answered => return Ok(()),
            Self::Replicas(wait) => (wait, false),
            Self::Disks(wait) => (wait, true),
        };
        let mut command = redis::cmd(if disks { "WAITAOF" } else { "WAIT" });
        if disks {
            command.arg(1);
        }
        command
            .arg(wait.replicas)
            .arg(wait.timeout.as_millis() as u64);
        let (local, replicas): (u32, u32) = if disks {
            command.query_async(connection).await?
        } else {
            (1, command.query_async(connection).await?)
        };
        if local >= 1 && replicas >= wait.replicas {
            return Ok(());
        }
        let of = format!("{replicas} of {} replicas", wait.replicas);
        let own = if local == 0 {
            ", and its own disk did not"
        } else {
            ""
        };
        Err(WaitFailure::Few(format!(
            "{of} confirmed within {:?}{own}",
            wait.timeout
        )))
    }
}

/// Why a write is not durable yet.
#[derive(Clone, Debug)]
pub(in crate::store) enum WaitFailure {
    /// Too few servers have the write so far.
    Few(String),
    /// The connection failed.
    Failed(RedisError),
}

impl From<RedisError> for WaitFailure {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

/// The waits of one connection.
#[derive(Debug)]
pub(in crate::store) struct DurabilityWaits {
    kind: DurabilityWait,
    /// Calls answered on this connection.
    answered: AtomicU64,
    /// The last wait. The lock is held while a wait is under way, so there is one at a time.
    last: Mutex<LastWait>,
}

#[derive(Debug)]
struct LastWait {
    /// The last call that the wait covers. It covers all calls up to this one.
    upto: u64,
    outcome: Result<(), WaitFailure>,
}

impl DurabilityWaits {
    pub(in crate::store) fn new(kind: DurabilityWait) -> Self {
        Self {
            kind,
            answered: AtomicU64::new(0),
            last: Mutex::new(LastWait {
                upto: 0,
                outcome: Ok(()),
            }),
        }
    }

    /// Waits until a call that was just answered on this connection is where the tier wants it.
    pub(in crate::store) async fn await_durable(
        &self,
        connection: &RedisWire,
    ) -> Result<(), WaitFailure> {
        if self.kind == DurabilityWait::Answered || mutants::is(Mutant::NoWait) {
            return Ok(());
        }
        let mine = self.answered.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last = self.last.lock().await;
        if last.upto < mine {
            let upto = self.answered.load(Ordering::SeqCst);
            let outcome = self.kind.wait(&mut connection.clone()).await;
            *last = LastWait { upto, outcome };
        }
        last.outcome.clone()
    }
}
