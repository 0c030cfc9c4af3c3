//! Request and outcome of an import.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::{Because, Route, UnixMs};
use crate::import::foreign::{ForeignKeys, ForeignServer};

/// Request to import a queue.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// The route that gets the messages.
    pub route: Arc<Route>,
    /// The server that has the queue.
    pub server: ForeignServer,
    /// Name and keys of the queue.
    pub queue: ImportQueue,
    /// The place of a body in an entry.
    pub form: EntryForm,
    /// The unit of the scores.
    pub score: ScoreUnit,
    /// Message key (Kafka) or routing key (RabbitMQ) of every message.
    pub key: Option<String>,
    /// Headers of every message.
    pub headers: Vec<(String, String)>,
    /// True if the import only looks, and writes nothing.
    pub dry_run: bool,
    /// Why it is done, for the audit log.
    pub because: Option<Because>,
}

/// The queue of another program.
#[derive(Clone, Debug)]
pub enum ImportQueue {
    /// Redisson's `RDelayedQueue` of this name.
    Redisson(String),
    /// A sorted set, and the hash that has the bodies.
    Zset {
        /// The key of the set.
        key: String,
        /// The key of the hash.
        hash: Option<String>,
    },
}

impl fmt::Display for ImportQueue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redisson(name) => write!(out, "delayed queue {name}"),
            Self::Zset { key, .. } => write!(out, "sorted set {key}"),
        }
    }
}

impl ImportQueue {
    /// The names that say which queue it is.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (name, hash) = match self {
            Self::Redisson(name) => (name, None),
            Self::Zset { key, hash } => (key, hash.as_deref()),
        };
        std::iter::once(name.as_str()).chain(hash)
    }

    pub(super) fn keys(&self) -> ForeignKeys {
        match self {
            Self::Redisson(name) => ForeignKeys::redisson(name),
            Self::Zset { key, hash } => ForeignKeys::zset(key, hash.as_deref()),
        }
    }
}

/// The place of a message's body in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryForm {
    /// Redisson's element, whose value is decoded.
    Redisson(BodyCodec),
    /// The member is the body.
    Member,
    /// The member is a JSON object, and this field of it is the body.
    JsonField(String),
    /// The member is a field of the hash, whose value is the body.
    Hash,
}

/// How the bytes of Redisson's codec become a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyCodec {
    /// As they are.
    Bytes,
    /// UTF-8 text, as Redisson's `StringCodec` writes it.
    Text,
    /// JSON, as `JsonJacksonCodec` writes it. A JSON string becomes its text.
    Json,
}

/// The unit of a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreUnit {
    /// Unix milliseconds.
    Milliseconds,
    /// Unix seconds.
    Seconds,
}

/// Why an entry stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// No element of Redisson's.
    NotRedisson,
    /// Larger than the route takes.
    TooLarge,
    /// The hash has no body for it.
    NoBody,
    /// In Redisson's list without a due time.
    NoDueTime,
    /// The score is no moment in the unit.
    BadScore,
    /// The value is no UTF-8 text.
    NotText,
    /// The value or member is no JSON of the kind that is needed.
    NotJson,
    /// The route would call the message invalid.
    Invalid,
}

impl RefusalReason {
    /// The sentence for a person: the reason, and what to do.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotRedisson => {
                "no element that Redisson wrote: move such a set with `postdate import zset`, or remove the member with \
                 ZREM"
            }
            Self::TooLarge => {
                "larger than the route's `max_size`: raise it, then run the import again"
            }
            Self::NoBody => {
                "the hash has no field of the member's name: write the body there, or remove the member with ZREM"
            }
            Self::NoDueTime => {
                "in Redisson's list without a due time, so Redisson would never deliver it: look with LRANGE, and send \
                 it with `postdate send` if it is wanted"
            }
            Self::BadScore => "the score is no moment: check --score, and the score with ZSCORE",
            Self::NotText => "no UTF-8 text: leave out --codec to move the bytes as they are",
            Self::NotJson => {
                "no such JSON: see what the member holds, and choose another --codec or --member"
            }
            Self::Invalid => {
                "the route would refuse it: change the route's limits, then run the import again"
            }
        }
    }
}

/// Entries that stay where they are for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedEntries {
    /// How many.
    pub count: u64,
    /// The first of them: the beginning of the member, escaped, and the exact error.
    pub example: String,
}

/// Counts of what an import found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportTally {
    /// Entries stored and removed from the queue; in a dry run those that would be.
    pub moved: u64,
    /// Entries that were due already.
    pub overdue: u64,
    /// Entries that an earlier run had stored, and this one only removed.
    pub resumed: u64,
    /// Entries that their own program took while they were being moved. It has them alone.
    pub taken: u64,
    /// Messages that may arrive twice: taken by their own program, and published before they could be called back; or
    /// stored by an earlier run whose outcome nobody remembers.
    pub repeated: u64,
    /// Entries that stay where they are.
    pub refused: BTreeMap<RefusalReason, RefusedEntries>,
}

impl ImportTally {
    /// Counts an entry that stays where it is.
    pub(super) fn refuse(&mut self, reason: RefusalReason, example: impl FnOnce() -> String) {
        let refused = self.refused.entry(reason).or_default();
        refused.count += 1;
        if refused.count == 1 {
            refused.example = example();
        }
    }

    /// The number of entries that stay where they are.
    pub fn refused_count(&self) -> u64 {
        self.refused.values().map(|refused| refused.count).sum()
    }
}

/// Outcome of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportOutcome {
    /// Counts of what was found and done.
    pub tally: ImportTally,
    /// Entries of the queue at the end.
    pub remaining: u64,
    /// What the queue's own program has delivered, and its consumers have not taken. The import leaves it to them.
    pub delivered: u64,
    /// What a dry run found first and last, if anything can be moved.
    pub preview: Option<ImportPreview>,
}

/// A look at the messages that a queue would become, by due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportPreview {
    /// When the first one would be due.
    pub first_due: UnixMs,
    /// When the last one would be due.
    pub last_due: UnixMs,
    /// The size of the first body, bytes.
    pub first_size: usize,
    /// The beginning of the first body, escaped.
    pub first_body: String,
}

/// Reason why a running import waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportWait {
    /// The route's ingress is paused.
    Paused,
    /// Relays write what became of messages that an earlier run may have stored.
    Trail {
        /// The number of these messages.
        messages: usize,
        /// Length of the wait.
        takes: Duration,
    },
}

/// Is told about the progress of an import.
pub trait ImportWatcher: Send + Sync {
    /// Another import holds the lock, which ends in this time unless it is alive.
    fn locked(&self, ends_in: Duration);
    /// `done` of about `of` entries were looked at.
    fn looked(&self, done: u64, of: u64);
    /// `done` of about `of` entries were moved.
    fn moved(&self, done: u64, of: u64, wait: Option<ImportWait>);
}
