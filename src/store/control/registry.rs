//! The registry of replicas: one hash of entries, and beside it what the store knows of itself.

use redis::Value;
use tracing::warn;

use crate::domain::UnixMs;
use crate::store::call::keys::Keys;
use crate::store::call::reply::{Reply, integer, shape, text};
use crate::store::call::scripts;
use crate::store::{Beaten, Known, Member, Presence, Store, StoreError};

/// Entries that were silent for this long (ms) are removed.
const KEEP_MS: u64 = 60_000;

impl Store {
    /// Says that this replica lives, and hears who else does. Where the store has no generation and `known` has
    /// none, this call makes it.
    pub async fn beat(&self, presence: &Presence, known: &Known) -> Result<Beaten, StoreError> {
        let presence = serde_json::to_string(presence).map_err(|_| shape("a replica's presence"))?;
        let mut call = scripts::BEAT.prepare_invoke();
        call.key(self.0.keys.replicas()).key(self.0.keys.store());
        call.arg(&self.0.ids.nonce).arg(known.generation.as_deref().unwrap_or_default());
        call.arg(self.unique()).arg(known.beat).arg(known.changed.0).arg(presence).arg(KEEP_MS);
        let connected = self.0.side.reach(Keys::members()).await?;
        let mut connection = connected.connection.clone();
        let sent = self.0.clock.sending(connected.clock);
        let value = call.invoke_async::<Value>(&mut connection).await;
        let value = self.mended(value.map_err(|error| self.0.side.judge(&connected, &error))).await?;
        // A master that was replaced while it was away may answer for a while.
        self.0.side.still_counts(&connected)?;
        let reply = Reply::read(value)?;
        if self.0.clock.observe(reply.time_us, sent) {
            warn!("the clock of redis stepped back");
        }
        read_answer(&reply)
    }

    /// This process's nonce: its field in the registry.
    pub fn nonce(&self) -> &str {
        &self.0.ids.nonce
    }

    /// Takes this replica out of the registry: the others serve its partitions as soon as they look.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HDEL").arg(self.0.keys.replicas()).arg(&self.0.ids.nonce).ignore();
        self.0.side.pipe(Keys::members(), &pipe).await
    }

    /// Everybody in the registry, the dead of the last minute too, for people who look.
    pub async fn replicas(&self) -> Result<Vec<Member>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.0.keys.replicas());
        let (found,): (Vec<(String, String)>,) = self.0.browse.pipe(Keys::members(), &pipe).await?;
        let now = self.0.clock.now();
        Ok(found.iter().filter_map(|(nonce, entry)| member(nonce, entry, now)).collect())
    }

    /// This machine's wall clock minus that of the master that keeps the registry, microseconds: right to half a
    /// round trip.
    pub async fn skew_us(&self) -> Result<i64, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let before = self.0.clock.local().wall_us();
        let ((seconds, micros),): ((i64, i64),) = self.0.browse.pipe(Keys::members(), &pipe).await?;
        let after = self.0.clock.local().wall_us();
        Ok(before.midpoint(after) - (seconds * 1_000_000 + micros))
    }
}

fn read_answer(reply: &Reply) -> Result<Beaten, StoreError> {
    let now = UnixMs(reply.time_us.div_euclid(1000));
    let Value::Array(parts) = &reply.answer else { return Err(shape("the answer to a beat")) };
    let [word, generation, rest @ ..] = &parts[..] else { return Err(shape("the answer to a beat")) };
    let generation = Some(text(generation)?).filter(|generation| !generation.is_empty());
    if text(word)? == "strange" {
        return Ok(Beaten::Strange(generation));
    }
    let [beat, changed, silence, entries @ ..] = rest else { return Err(shape("the answer to a beat")) };
    let mut members = Vec::with_capacity(entries.len() / 2);
    for pair in entries.chunks_exact(2) {
        members.extend(member(&text(&pair[0])?, &text(&pair[1])?, now));
    }
    Ok(Beaten::Here {
        known: Known { generation, beat: integer(beat)? as u64, changed: UnixMs(integer(changed)?) },
        now,
        silence_ms: Some(integer(silence)?).filter(|&ms| ms >= 0),
        members,
    })
}

/// One entry; `None` for what no version of ours has written.
fn member(nonce: &str, entry: &str, now: UnixMs) -> Option<Member> {
    let mut parts = entry.splitn(3, ' ');
    let (beat, at) = (parts.next()?.parse().ok()?, UnixMs(parts.next()?.parse().ok()?));
    let presence = serde_json::from_str(parts.next()?).ok()?;
    Some(Member { nonce: nonce.to_owned(), beat, silent_ms: now.since(at).max(0), presence })
}
