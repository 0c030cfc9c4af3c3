//! One record that is read again: what it asks for, as it was understood when it first came.

use std::sync::Arc;

use super::known::content_of;
use crate::domain::{InvalidReason, KafkaPosition, Message, OnInvalid, Origin, Route, Target, Text, UnixMs};
use crate::ingress::admit::{Admitted, admit};
use crate::ingress::jitter::Jitter;

/// A record as it lies in its topic.
#[derive(Debug)]
pub struct Reread {
    /// Partition and offset.
    pub position: KafkaPosition,
    /// What the producer sent, all its headers included.
    pub message: Message,
    /// What the client library could not read of its headers.
    pub malformed: Option<Text>,
    /// Its timestamp.
    pub produced: Option<UnixMs>,
}

/// A record that was judged again.
#[derive(Debug)]
pub struct Again {
    /// Partition and offset.
    pub position: KafkaPosition,
    /// When it came, as far as its record says.
    pub at: Option<UnixMs>,
    pub(in crate::ingress) asks: Asks,
    /// What tells this record from another of the same position: see [`content_of`].
    pub(super) content: u32,
    pub(in crate::ingress) message: Message,
    pub(in crate::ingress) target: Option<Arc<Target>>,
}

/// What it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingress) enum Asks {
    /// To be published at once: it never was in the store.
    Passing,
    Delayed {
        id: Option<Text>,
        due: UnixMs,
    },
    Cancel {
        id: Text,
    },
    Reschedule {
        id: Text,
        due: UnixMs,
    },
    Invalid {
        reason: InvalidReason,
        error: Text,
        unreadable: bool,
        /// Whether the route keeps it as a dead letter.
        kept: bool,
    },
}

impl Again {
    /// Bytes that it takes in memory, roughly.
    pub fn size(&self) -> usize {
        256 + self.message.body_len() + self.message.headers_len()
    }
}

/// Judges the records of one partition.
pub struct Judge {
    route: Arc<Route>,
    jitter: Jitter,
    now: UnixMs,
}

impl Judge {
    /// `source`: the name under which the ingress reads the partition, for messages are placed and spread by
    /// it. `now`: when the replay was begun.
    pub fn new(route: &Arc<Route>, source: &str, now: UnixMs) -> Self {
        Self { route: route.clone(), jitter: Jitter::new(route, source), now }
    }

    /// Judges a record by the route as it is now and the time at which it came: its own timestamp, if that is
    /// past.
    pub fn judge(&mut self, record: Reread) -> Again {
        let Self { route, jitter, now } = self;
        let now = *now;
        let Reread { position, message, malformed, produced } = record;
        let arrival = produced.filter(|at| *at <= now).unwrap_or(now);
        let unreadable = malformed.is_some();
        let (asks, message, target) = match admit(message, malformed, produced, route, arrival.into()) {
            Admitted::PassThrough { message, .. } => (Asks::Passing, message, None),
            Admitted::Delayed { due, id, target, message } => {
                let due = jitter.put_off(due, id.as_ref(), Some(position));
                (Asks::Delayed { id, due }, message, Some(target))
            }
            Admitted::Cancel { id } => (Asks::Cancel { id }, nothing(), None),
            Admitted::Reschedule { id, due, target, message } => {
                let due = jitter.put_off(due, Some(&id), Some(position));
                (Asks::Reschedule { id, due }, message, Some(target))
            }
            Admitted::Invalid { reason, error, message } => {
                let kept = match route.policy.on_invalid {
                    OnInvalid::DeadLetter => true,
                    OnInvalid::PassThrough => unreadable,
                    OnInvalid::Drop => false,
                };
                (Asks::Invalid { reason, error, unreadable, kept }, message, None)
            }
        };
        let content = content_of(&message, route);
        Again { position, at: produced.map(|at| at.min(now)), asks, content, message, target }
    }
}

/// A cancel's own content is nobody's business.
fn nothing() -> Message {
    Message { origin: Origin::Kafka, key: None, body: None, headers: Vec::new(), properties: None }
}
