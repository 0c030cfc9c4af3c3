//! The connection to another program's delay queue.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use redis::{Script, ScriptInvocation, Value};

use crate::credential::Credential;
use crate::domain::{Secret, Text};
use crate::store::{RESPONSE_TIMEOUT, RedisClient, RedisServer, RedisWire, open_connection};
use crate::tls::{ClientFiles, KeyHints};

/// Most entries of one read.
const READ_ENTRIES: usize = 200;
/// Bytes of entries after which a read ends. The last entry may go beyond them.
const READ_BYTES: usize = 1 << 20;
/// Life of a lock that nobody extends.
const LOCK_LIFE: Duration = Duration::from_secs(10);
/// Life of the mark that tells which entries of the last batch were removed. An import that was cut off is expected to
/// go on within this time.
const MARK_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Redisson's key of what waits.
const REDISSON_TIMEOUTS: &str = "redisson_delay_queue_timeout";
/// Redisson's key of the elements in the order they were added.
const REDISSON_ELEMENTS: &str = "redisson_delay_queue";

/// The server that has the queue.
#[derive(Clone, Debug)]
pub struct ForeignServer {
    /// Its URL: `redis://`, `rediss://` or `unix://`.
    pub url: Secret,
    /// Certificates of the authorities that are trusted, instead of the system's list.
    pub ca: Option<PathBuf>,
}

/// The keys of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKeys {
    /// The sorted set of due times.
    zset: String,
    /// The list or the hash beside it.
    second: SecondKey,
    /// The list to which the program itself moves what is due, for its own consumers.
    destination: Option<String>,
    /// The lock of imports, in the same slot of a cluster.
    lock: String,
    /// The mark of the batch that is moved, in the same slot.
    mark: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SecondKey {
    None,
    List(String),
    Hash(String),
}

impl ForeignKeys {
    /// The keys of Redisson's queue of this name.
    pub fn redisson(queue: &str) -> Self {
        // Redisson puts a name into braces unless it has some.
        let tagged = if queue.contains('{') {
            queue.to_owned()
        } else {
            format!("{{{queue}}}")
        };
        Self {
            zset: format!("{REDISSON_TIMEOUTS}:{tagged}"),
            second: SecondKey::List(format!("{REDISSON_ELEMENTS}:{tagged}")),
            destination: Some(queue.to_owned()),
            lock: format!("postdate_import:{tagged}"),
            mark: format!("postdate_import_mark:{tagged}"),
        }
    }

    /// The keys of a sorted set, with the hash that holds the bodies, if there is one.
    pub fn zset(key: &str, hash: Option<&str>) -> Self {
        let own_key = |name: &str| match hash_tag(key) {
            Some(tag) => format!("{{{tag}}}:{name}:{key}"),
            None => format!("{name}:{{{key}}}"),
        };
        let second = hash.map_or(SecondKey::None, |hash| SecondKey::Hash(hash.to_owned()));
        Self {
            zset: key.to_owned(),
            second,
            destination: None,
            lock: own_key("postdate_import"),
            mark: own_key("postdate_import_mark"),
        }
    }

    fn mode(&self) -> &'static str {
        match self.second {
            SecondKey::None => "zset",
            SecondKey::List(_) => "list",
            SecondKey::Hash(_) => "hash",
        }
    }

    /// The key of the list or hash. Without one it is the set's own, which scripts then leave alone.
    fn second(&self) -> &str {
        match &self.second {
            SecondKey::None => &self.zset,
            SecondKey::List(key) | SecondKey::Hash(key) => key,
        }
    }
}

/// The part of a key in braces that decides its slot, if it has one.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The order in which a queue is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignPhase {
    /// Redisson: in the order of its list, from whose head elements are removed at no cost.
    Elements,
    /// By due time.
    DueTimes,
}

/// One entry of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignEntry {
    /// The member of the sorted set.
    pub member: Bytes,
    /// Its score, as Redis writes it.
    pub score: String,
    /// The body from the hash; empty where there is none.
    pub body: Bytes,
}

/// Why an entry cannot be read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryProblem {
    /// It is larger than the limit.
    TooLarge,
    /// The hash has no field of the member's name.
    NoBody,
    /// The list has an element without a due time.
    NoDueTime,
}

/// The number of entries of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSize {
    /// Members of the sorted set.
    pub due_times: u64,
    /// Elements of the list.
    pub elements: u64,
    /// What the program has delivered to its own consumers, and none of them has taken.
    pub delivered: u64,
}

/// What the server with the queue knows of the batch that an import moved last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchMark {
    /// Identifies the batch; empty where there is no mark.
    pub batch: String,
    /// Names of the entries that were removed from the queue. `None`: the batch was not removed.
    pub removed: Option<BTreeSet<String>>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// The server cannot be reached, or refused.
    #[error("redis at {place}: {why}")]
    Server {
        /// Its URL without secrets.
        place: String,
        /// The reason.
        why: String,
    },
    /// The key holds something else.
    #[error("the key `{key}` is a {found}, and a {wanted} is needed")]
    OtherType {
        /// The key.
        key: String,
        /// Its type.
        found: String,
        /// The type that it must have.
        wanted: &'static str,
    },
    /// Another import holds the lock, or has taken it over.
    #[error("another import of this queue holds its lock")]
    Locked,
}

/// A queue of another program.
#[derive(Clone, Debug)]
pub struct ForeignQueue {
    wire: RedisWire,
    place: String,
    keys: ForeignKeys,
    /// Identifies this import in the lock.
    token: String,
    most_entry_bytes: usize,
    read: Script,
    begin: Script,
    remove: Script,
    lock: Script,
}

impl ForeignQueue {
    /// Connects. Entries of more than `most_entry_bytes` are told apart, and not read.
    pub async fn connect(
        server: &ForeignServer,
        keys: ForeignKeys,
        most_entry_bytes: usize,
    ) -> Result<Self, ForeignError> {
        let place = server.url.redacted_url();
        let url = Credential::inline(server.url.expose());
        let files = ClientFiles {
            ca: server.ca.clone(),
            identity: None,
        };
        let client = RedisClient::with_files(RedisServer::Url(url), files, key_hints());
        let wire = match open_connection(&client, RESPONSE_TIMEOUT).await {
            Ok(wire) => wire,
            Err(fault) => {
                let why = client.explain_silence(fault).await.to_string();
                return Err(ForeignError::Server { place, why });
            }
        };
        Ok(Self {
            wire,
            place,
            keys,
            token: format!("{:032x}", fastrand::u128(..)),
            most_entry_bytes,
            read: Script::new(include_str!("scripts/import_read.lua")),
            begin: Script::new(include_str!("scripts/import_begin.lua")),
            remove: Script::new(include_str!("scripts/import_remove.lua")),
            lock: Script::new(include_str!("scripts/import_lock.lua")),
        })
    }

    /// A text that names the queue: its keys. A server may have several addresses, so none of them is part of it.
    pub fn name(&self) -> String {
        format!("{} {}", self.keys.zset, self.keys.second())
    }

    /// Marks that a batch is being moved, and that nothing of it was removed yet.
    pub async fn begin_batch(&self, batch: &str) -> Result<(), ForeignError> {
        let mut script = self.begin.prepare_invoke();
        script.key(&self.keys.lock).key(&self.keys.mark);
        script
            .arg(&self.token)
            .arg(MARK_LIFE.as_millis() as u64)
            .arg(batch);
        self.under_lock(&script).await
    }

    /// Reads the mark of the batch that an import moved last.
    pub async fn batch_mark(&self) -> Result<BatchMark, ForeignError> {
        let fields: HashMap<String, String> =
            self.ask(redis::cmd("HGETALL").arg(&self.keys.mark)).await?;
        let names = fields.keys().filter_map(|field| field.strip_prefix("n:"));
        let removed = names.map(str::to_owned).collect();
        Ok(BatchMark {
            batch: fields.get("batch").cloned().unwrap_or_default(),
            removed: fields.contains_key("removed").then_some(removed),
        })
    }

    /// Removes the mark, at the end of an import.
    pub async fn forget_mark(&self) -> Result<(), ForeignError> {
        self.ask(redis::cmd("DEL").arg(&self.keys.mark)).await
    }

    /// The phases in which the queue is to be read.
    pub fn phases(&self) -> &'static [ForeignPhase] {
        match self.keys.second {
            SecondKey::List(_) => &[ForeignPhase::Elements, ForeignPhase::DueTimes],
            SecondKey::None | SecondKey::Hash(_) => &[ForeignPhase::DueTimes],
        }
    }

    /// The number of entries, once the keys are of the right types. Keys that do not exist are empty.
    pub async fn size(&self) -> Result<QueueSize, ForeignError> {
        let zset = self.keys.zset.as_str();
        self.expect_type(zset, "zset").await?;
        let due_times = self.ask(redis::cmd("ZCARD").arg(zset)).await?;
        let elements = match &self.keys.second {
            SecondKey::None => 0,
            SecondKey::List(key) => {
                self.expect_type(key, "list").await?;
                self.ask(redis::cmd("LLEN").arg(key)).await?
            }
            SecondKey::Hash(key) => {
                self.expect_type(key, "hash").await?;
                0
            }
        };
        Ok(QueueSize {
            due_times,
            elements,
            delivered: self.delivered().await?,
        })
    }

    /// Elements of the destination. One that is no list has none that could be counted.
    async fn delivered(&self) -> Result<u64, ForeignError> {
        let Some(list) = &self.keys.destination else {
            return Ok(0);
        };
        let found: String = self.ask(redis::cmd("TYPE").arg(list)).await?;
        match found.as_str() {
            "list" => self.ask(redis::cmd("LLEN").arg(list)).await,
            _ => Ok(0),
        }
    }

    async fn expect_type(&self, key: &str, wanted: &'static str) -> Result<(), ForeignError> {
        let found: String = self.ask(redis::cmd("TYPE").arg(key)).await?;
        if found == wanted || found == "none" {
            return Ok(());
        }
        Err(ForeignError::OtherType {
            key: key.to_owned(),
            found,
            wanted,
        })
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, ForeignError> {
        let mut wire = self.wire.clone();
        command
            .query_async(&mut wire)
            .await
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &redis::RedisError) -> ForeignError {
        ForeignError::Server {
            place: self.place.clone(),
            why: error.to_string(),
        }
    }

    /// Reads entries from a rank on. Empty: there are no more.
    pub async fn read(
        &self,
        phase: ForeignPhase,
        rank: usize,
    ) -> Result<Vec<Result<ForeignEntry, (EntryProblem, Bytes)>>, ForeignError> {
        let mode = match (phase, self.keys.mode()) {
            (ForeignPhase::DueTimes, "list") => "zset",
            (_, mode) => mode,
        };
        let mut script = self.read.prepare_invoke();
        script.key(&self.keys.zset).key(self.keys.second());
        script
            .arg(mode)
            .arg(rank)
            .arg(READ_ENTRIES)
            .arg(READ_BYTES)
            .arg(self.most_entry_bytes);
        // The client's wait grows with the bytes that the answer may have.
        let mut wire = self
            .wire
            .asking((READ_BYTES + self.most_entry_bytes) as u64);
        let rows: Vec<(u8, Vec<u8>, String, Vec<u8>)> = script
            .invoke_async(&mut wire)
            .await
            .map_err(|error| self.failed(&error))?;
        let mut entries = Vec::with_capacity(rows.len());
        for (kind, member, score, body) in rows {
            let member = Bytes::from(member);
            entries.push(match kind {
                0 => Ok(ForeignEntry {
                    member,
                    score,
                    body: Bytes::from(body),
                }),
                1 => Err((EntryProblem::TooLarge, member)),
                2 => Err((EntryProblem::NoBody, member)),
                _ => Err((EntryProblem::NoDueTime, member)),
            });
        }
        Ok(entries)
    }

    /// Takes the lock. [`ForeignError::Locked`] if another import has it.
    pub async fn lock(&self) -> Result<(), ForeignError> {
        let mut set = redis::cmd("SET");
        set.arg(&self.keys.lock)
            .arg(&self.token)
            .arg("NX")
            .arg("PX")
            .arg(lock_ms());
        let taken: Value = self.ask(&set).await?;
        if taken == Value::Nil {
            Err(ForeignError::Locked)
        } else {
            Ok(())
        }
    }

    /// The time until another import's lock ends unless it is extended.
    pub async fn locked_for(&self) -> Result<Duration, ForeignError> {
        let ms: i64 = self.ask(redis::cmd("PTTL").arg(&self.keys.lock)).await?;
        Ok(Duration::from_millis(ms.max(0) as u64))
    }

    /// Extends the lock.
    pub async fn extend_lock(&self) -> Result<(), ForeignError> {
        self.set_lock(lock_ms()).await
    }

    /// Ends the lock.
    pub async fn unlock(&self) -> Result<(), ForeignError> {
        self.set_lock(0).await
    }

    async fn set_lock(&self, ms: u64) -> Result<(), ForeignError> {
        let mut script = self.lock.prepare_invoke();
        script.key(&self.keys.lock).arg(&self.token).arg(ms);
        self.under_lock(&script).await
    }

    /// Runs a script that answers whether this import holds the lock.
    async fn under_lock(&self, script: &ScriptInvocation<'_>) -> Result<(), ForeignError> {
        let mut wire = self.wire.clone();
        let is_ours: bool = script
            .invoke_async(&mut wire)
            .await
            .map_err(|error| self.failed(&error))?;
        if is_ours {
            Ok(())
        } else {
            Err(ForeignError::Locked)
        }
    }

    /// Removes the entries of a batch that are there unchanged, and marks their names. Returns, for each entry, whether
    /// it was removed.
    pub async fn remove(
        &self,
        phase: ForeignPhase,
        batch: &str,
        entries: &[(Text, ForeignEntry)],
    ) -> Result<Vec<bool>, ForeignError> {
        // The phases read from opposite ends of Redisson's list: LREM starts near the element.
        let count = if phase == ForeignPhase::Elements {
            1
        } else {
            -1
        };
        let mut script = self.remove.prepare_invoke();
        script
            .key(&self.keys.lock)
            .key(&self.keys.zset)
            .key(self.keys.second())
            .key(&self.keys.mark);
        script
            .arg(self.keys.mode())
            .arg(&self.token)
            .arg(lock_ms())
            .arg(count)
            .arg(MARK_LIFE.as_millis() as u64)
            .arg(batch);
        for (name, entry) in entries {
            script
                .arg(name.as_str())
                .arg(&entry.member[..])
                .arg(&entry.score)
                .arg(&entry.body[..]);
        }
        let mut wire = self.wire.clone();
        let done: Option<Vec<bool>> = script
            .invoke_async(&mut wire)
            .await
            .map_err(|error| self.failed(&error))?;
        done.filter(|done| done.len() == entries.len())
            .ok_or(ForeignError::Locked)
    }
}

/// The options that a sentence about TLS names.
fn key_hints() -> KeyHints {
    KeyHints {
        ca: "--ca".to_owned(),
        certificate: "a certificate of the client's, which an import cannot show".to_owned(),
        with_tls: "`--redis` must begin with rediss://".to_owned(),
        without_tls: "`--redis` must begin with redis://".to_owned(),
    }
}

fn lock_ms() -> u64 {
    LOCK_LIFE.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_queue_are_in_one_slot() {
        let slot = |key: &str| redis::cluster_routing::Slot::for_key(key);
        for name in ["orders", "a{b}c", "a b"] {
            let keys = ForeignKeys::redisson(name);
            assert_eq!(slot(&keys.zset), slot(&keys.lock), "{keys:?}");
            assert_eq!(slot(&keys.zset), slot(&keys.mark), "{keys:?}");
            assert_eq!(slot(&keys.zset), slot(keys.second()), "{keys:?}");
        }
        for key in ["delayed", "jobs:{eu}:delayed", "{jobs}"] {
            let keys = ForeignKeys::zset(key, None);
            assert_eq!(slot(&keys.zset), slot(&keys.lock), "{keys:?}");
            assert_eq!(slot(&keys.zset), slot(&keys.mark), "{keys:?}");
        }
        let redisson = ForeignKeys::redisson("orders");
        assert_eq!(redisson.zset, "redisson_delay_queue_timeout:{orders}");
        assert_eq!(redisson.second(), "redisson_delay_queue:{orders}");
    }
}
