//! Waiting until what a connection has written is where its tier wants it: `WAIT`, `WAITAOF`.
//!
//! Both speak of the last write of *their own connection*, so they are sent on the connection of the calls that
//! they confirm, and only after those were answered there. One confirms all calls answered before it was sent:
//! callers that come meanwhile share the next. What is not confirmed is no failure of the call: it is made again
//! under its number, and a script that is waited for writes on each of its paths, for a wait after a call that
//! wrote nothing confirms nothing (Valkey then says yes at once).

use std::sync::atomic::{AtomicU64, Ordering};

use super::deadline::Wire;
use redis::RedisError;
use tokio::sync::Mutex;

use crate::mutants::{self, Mutant};
use crate::store::config::{Durability, Wait};

/// What a connection's calls wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum How {
    /// Nothing more than their answer.
    Answered,
    /// `WAIT`: so many replicas have it.
    Replicas(Wait),
    /// `WAITAOF`: the master's disk and those of so many replicas.
    Disks(Wait),
}

/// Why a tier cannot be had of a server.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum NoTier {
    /// It cannot do it.
    #[error("{0}")]
    Unable(&'static str),
    /// It did not answer.
    #[error("{0}")]
    Away(RedisError),
}

impl How {
    /// What this server can do for the tier.
    pub(in crate::store) async fn of(durability: Durability, connection: &mut Wire) -> Result<Self, NoTier> {
        let wait = match durability {
            Durability::Async => return Ok(Self::Answered),
            Durability::Replicated(wait) => return Ok(Self::Replicas(wait)),
            Durability::Fsynced(wait) => wait,
        };
        let mut asked = redis::cmd("WAITAOF");
        asked.arg(0).arg(0).arg(1);
        match asked.query_async::<(u32, u32)>(connection).await {
            Ok(_) => return Ok(Self::Disks(wait)),
            Err(error) if matches!(error.code(), Some("ERR" | "NOPERM")) => {}
            Err(error) => return Err(NoTier::Away(error)),
        }
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg("append*");
        let found: Vec<String> = match asked.query_async(connection).await {
            Ok(found) => found,
            Err(error) if matches!(error.code(), Some("ERR" | "NOPERM")) => Vec::new(),
            Err(error) => return Err(NoTier::Away(error)),
        };
        let is = |name: &str, value: &str| found.chunks(2).any(|pair| pair == [name, value]);
        if !is("appendonly", "yes") || !is("appendfsync", "always") {
            return Err(NoTier::Unable(
                "durability = \"fsynced\" needs WAITAOF, which this server does not have (Redis 7.2 and later and \
                 Valkey do), or appendonly yes with appendfsync always, which it does not say",
            ));
        }
        // Its answer comes after its fsync; only the replicas are still to be waited for.
        Ok(if wait.replicas == 0 { Self::Answered } else { Self::Replicas(wait) })
    }

    async fn wait(self, connection: &mut Wire) -> Result<(), Short> {
        let (wait, disks) = match self {
            Self::Answered => return Ok(()),
            Self::Replicas(wait) => (wait, false),
            Self::Disks(wait) => (wait, true),
        };
        let mut command = redis::cmd(if disks { "WAITAOF" } else { "WAIT" });
        if disks {
            command.arg(1);
        }
        command.arg(wait.replicas).arg(wait.timeout.as_millis() as u64);
        let (local, replicas): (u32, u32) = if disks {
            command.query_async(connection).await?
        } else {
            (1, command.query_async(connection).await?)
        };
        if local >= 1 && replicas >= wait.replicas {
            return Ok(());
        }
        let of = format!("{replicas} of {} replicas", wait.replicas);
        let own = if local == 0 { ", and its own disk did not" } else { "" };
        Err(Short::Few(format!("{of} confirmed within {:?}{own}", wait.timeout)))
    }
}

/// Why something is not confirmed.
#[derive(Clone, Debug)]
pub(in crate::store) enum Short {
    /// Too few have it, so far.
    Few(String),
    /// The connection failed.
    Failed(RedisError),
}

impl From<RedisError> for Short {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

/// The waits of one connection.
#[derive(Debug)]
pub(in crate::store) struct Confirms {
    how: How,
    /// Calls answered on this connection.
    answered: AtomicU64,
    /// The last wait. Held while one is under way: there is one at a time.
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    /// The calls that it spoke of: all up to this.
    upto: u64,
    outcome: Result<(), Short>,
}

impl Confirms {
    pub(in crate::store) fn new(how: How) -> Self {
        Self { how, answered: AtomicU64::new(0), last: Mutex::new(Last { upto: 0, outcome: Ok(()) }) }
    }

    /// Waits until a call that was answered on this connection just now is where the tier wants it.
    pub(in crate::store) async fn confirm(&self, connection: &Wire) -> Result<(), Short> {
        if self.how == How::Answered || mutants::is(Mutant::NoWait) {
            return Ok(());
        }
        let mine = self.answered.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last = self.last.lock().await;
        if last.upto < mine {
            let upto = self.answered.load(Ordering::SeqCst);
            let outcome = self.how.wait(&mut connection.clone()).await;
            *last = Last { upto, outcome };
        }
        last.outcome.clone()
    }
}
