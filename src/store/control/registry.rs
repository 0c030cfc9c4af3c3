//! The registry of replicas: one hash of entries, and beside it the store's identity.

use redis::Value;
use tracing::warn;

use crate::domain::UnixMs;
use crate::store::call::keys::Keys;
use crate::store::call::reply::{ScriptReply, integer, shape, text};
use crate::store::call::scripts;
use crate::store::{
    HeartbeatReply, KnownStore, RegisteredReplica, ReplicaStatus, Store, StoreError,
};

/// Silence (ms) for which each entry is kept, however short the claims of its replica are.
const KEEP_MS: i64 = 60_000;

impl RegisteredReplica {
    /// Silence after which its claims have ended, ms.
    pub fn claims_end_ms(&self) -> i64 {
        self.lifetime_ms().saturating_add(self.status.claim_ms)
    }

    /// Silence after which its entry is removed, ms: once its claims have ended, and not within a minute. The script
    /// `heartbeat.lua` computes the same.
    pub fn kept_ms(&self) -> i64 {
        self.claims_end_ms().max(KEEP_MS)
    }
}

impl Store {
    /// Reports that this replica is alive, and returns all registered replicas. If neither the store nor
    /// `known` has an identity, this call makes one.
    pub async fn heartbeat(
        &self,
        status: &ReplicaStatus,
        known: &KnownStore,
    ) -> Result<HeartbeatReply, StoreError> {
        let status = serde_json::to_string(status).map_err(|_| shape("a replica's status"))?;
        let mut call = scripts::HEARTBEAT.prepare_invoke();
        call.key(self.0.keys.replicas()).key(self.0.keys.store());
        call.arg(&self.0.ids.nonce)
            .arg(known.identity.as_deref().unwrap_or_default());
        call.arg(self.unique())
            .arg(known.heartbeat)
            .arg(known.rolled_back_at.0)
            .arg(status)
            .arg(KEEP_MS);
        let connected = self.0.side.reach(Keys::members()).await?;
        let mut connection = connected.connection.clone();
        let sent = self.0.clock.sending(connected.clock);
        let value = call.invoke_async::<Value>(&mut connection).await;
        let value = self
            .mended(value.map_err(|error| self.0.side.judge(&connected, &error)))
            .await?;
        // A master that was replaced while it was away may answer for a while.
        self.0.side.still_counts(&connected)?;
        self.0.side.taken();
        let reply = ScriptReply::read(value)?;
        if self.0.clock.observe(reply.time_us, sent) {
            warn!("the clock of redis stepped back");
        }
        read_answer(&reply)
    }

    /// The nonce of this process: its field in the registry.
    pub fn nonce(&self) -> &str {
        &self.0.ids.nonce
    }

    /// Takes this replica out of the registry. The others serve its partitions after their next heartbeat.
    pub async fn unregister(&self) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HDEL")
            .arg(self.0.keys.replicas())
            .arg(&self.0.ids.nonce)
            .ignore();
        self.0.side.pipe(Keys::members(), &pipe).await
    }

    /// All registered replicas for display, with the dead whose entries are kept.
    pub async fn replicas(&self) -> Result<Vec<RegisteredReplica>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.0.keys.replicas());
        let (found,): (Vec<(String, String)>,) = self.0.browse.pipe(Keys::members(), &pipe).await?;
        let now = self.0.clock.now();
        Ok(found
            .iter()
            .filter_map(|(nonce, entry)| registered_replica(nonce, entry, now))
            .collect())
    }

    /// This machine's wall clock minus that of the master that keeps the registry, microseconds. Exact to half
    /// a round trip.
    pub async fn skew_us(&self) -> Result<i64, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let before = self.0.clock.local().wall_us();
        let ((seconds, micros),): ((i64, i64),) =
            self.0.browse.pipe(Keys::members(), &pipe).await?;
        let after = self.0.clock.local().wall_us();
        Ok(before.midpoint(after) - (seconds * 1_000_000 + micros))
    }
}

fn read_answer(reply: &ScriptReply) -> Result<HeartbeatReply, StoreError> {
    let now = UnixMs(reply.time_us.div_euclid(1000));
    let Value::Array(parts) = &reply.answer else {
        return Err(shape("the answer to a heartbeat"));
    };
    let [word, identity, rest @ ..] = &parts[..] else {
        return Err(shape("the answer to a heartbeat"));
    };
    let identity = Some(text(identity)?).filter(|identity| !identity.is_empty());
    if text(word)? == "strange" {
        return Ok(HeartbeatReply::Replaced(identity));
    }
    let [beat, changed, new_master, silence, entries @ ..] = rest else {
        return Err(shape("the answer to a heartbeat"));
    };
    let mut replicas = Vec::with_capacity(entries.len() / 2);
    for pair in entries.chunks_exact(2) {
        replicas.extend(registered_replica(&text(&pair[0])?, &text(&pair[1])?, now));
    }
    Ok(HeartbeatReply::Same {
        known: KnownStore {
            identity,
            heartbeat: integer(beat)? as u64,
            rolled_back_at: UnixMs(integer(changed)?),
            new_master_at: UnixMs(integer(new_master)?),
        },
        now,
        silence_ms: Some(integer(silence)?).filter(|&ms| ms >= 0),
        replicas,
    })
}

/// Reads one entry. `None` for an entry that no version of Postdate has written.
fn registered_replica(nonce: &str, entry: &str, now: UnixMs) -> Option<RegisteredReplica> {
    let mut parts = entry.splitn(3, ' ');
    let heartbeat = parts.next()?.parse().ok()?;
    let at = UnixMs(parts.next()?.parse().ok()?);
    let status = serde_json::from_str(parts.next()?).ok()?;
    Some(RegisteredReplica {
        nonce: nonce.to_owned(),
        heartbeat,
        silent_ms: now.since(at).max(0),
        status,
    })
}
