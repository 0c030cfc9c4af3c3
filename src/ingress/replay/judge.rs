//! The judgement of one record that is replayed: its request, as the relay understood it when the record first
//! came.

use std::sync::Arc;

use super::stored::content_of;
use crate::domain::{
    DelayRequest, InvalidReason, KafkaPosition, Message, OnInvalid, Route, Target, Text, UnixMs,
};
use crate::ingress::admit::{Admission, admit, credible, on_invalid};
use crate::ingress::jitter::SourceJitter;

/// A record of the topic.
#[derive(Debug)]
pub struct ReplayRecord {
    /// Partition and offset.
    pub position: KafkaPosition,
    /// The message as the producer sent it, with all of its headers.
    pub message: Message,
    /// The reason why the client library could not read the headers.
    pub malformed: Option<Text>,
    /// The record's timestamp.
    pub produced: Option<UnixMs>,
}

/// A record with its request.
#[derive(Debug)]
pub struct JudgedRecord {
    /// Partition and offset.
    pub position: KafkaPosition,
    /// The time at which the record came, as far as its timestamp says.
    pub at: Option<UnixMs>,
    pub(in crate::ingress) request: RecordRequest,
    /// What a message, a reschedule or a replace asked for.
    pub(in crate::ingress) asked: Option<DelayRequest>,
    /// Hash that tells this record from another one with the same position: see [`content_of`].
    pub(super) content: u32,
    pub(in crate::ingress) message: Message,
    pub(in crate::ingress) target: Option<Arc<Target>>,
}

/// The request of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingress) enum RecordRequest {
    /// A message to be published at once, which never was in the store.
    Passing,
    Delayed {
        id: Option<Text>,
        due: UnixMs,
    },
    Replace {
        id: Text,
        due: UnixMs,
    },
    Cancel {
        id: Text,
    },
    Reschedule {
        id: Text,
        due: UnixMs,
    },
    /// A message that consumers had given back too often.
    Spent {
        id: Option<Text>,
    },
    Invalid {
        reason: InvalidReason,
        error: Text,
        unreadable: bool,
        /// The route keeps the message as a dead letter.
        kept: bool,
    },
}

impl RecordRequest {
    /// The name of the message that it is or speaks of.
    pub(in crate::ingress) fn id(&self) -> Option<&Text> {
        match self {
            Self::Delayed { id, .. } | Self::Spent { id } => id.as_ref(),
            Self::Cancel { id } | Self::Reschedule { id, .. } | Self::Replace { id, .. } => {
                Some(id)
            }
            Self::Passing | Self::Invalid { .. } => None,
        }
    }
}

impl JudgedRecord {
    /// The bytes that the record takes in memory, roughly.
    pub fn size(&self) -> usize {
        256 + self.message.size()
    }
}

/// Judges the records of one partition.
pub struct RecordJudge {
    route: Arc<Route>,
    jitter: SourceJitter,
    now: UnixMs,
}

impl RecordJudge {
    /// A judge of one partition. `source` is the name under which the ingress reads the partition: it decides
    /// placement and jitter. `now` is the time at which the replay began.
    pub fn new(route: &Arc<Route>, source: &str, now: UnixMs) -> Self {
        Self {
            route: route.clone(),
            jitter: SourceJitter::new(route, source),
            now,
        }
    }

    /// Judges a record by the present rules of the route, and by the time at which it came: its own timestamp
    /// if that can be true.
    pub fn judge(&mut self, record: ReplayRecord) -> JudgedRecord {
        let Self { route, jitter, now } = self;
        let now = *now;
        let ReplayRecord {
            position,
            message,
            malformed,
            produced,
        } = record;
        let arrival = credible(produced, now).unwrap_or(now);
        let unreadable = malformed.is_some();
        let (admission, mut message) = admit(message, malformed, produced, route, arrival.into());
        let (request, asked, target) = match admission {
            Admission::PassThrough { .. } => (RecordRequest::Passing, None, None),
            Admission::Spent {
                id,
                request,
                target,
            } => (RecordRequest::Spent { id }, Some(request), Some(target)),
            Admission::Delayed { asked, id, target } => {
                let (due, asked) = jitter.apply(asked, id.as_ref(), Some(position));
                let request = RecordRequest::Delayed { id, due };
                (request, Some(asked), Some(target))
            }
            Admission::Cancel { id } => {
                // Nobody needs the content of a cancel. Its key says where its message is, as a rule.
                message = Message {
                    body: None,
                    headers: Vec::new(),
                    properties: None,
                    ..message
                };
                (RecordRequest::Cancel { id }, None, None)
            }
            Admission::Change {
                replaces,
                id,
                asked,
                target,
            } => {
                let (due, asked) = jitter.apply(asked, Some(&id), Some(position));
                let request = if replaces {
                    RecordRequest::Replace { id, due }
                } else {
                    RecordRequest::Reschedule { id, due }
                };
                (request, Some(asked), Some(target))
            }
            Admission::Invalid { reason, error } => {
                let kept = on_invalid(route, unreadable) == OnInvalid::DeadLetter;
                let request = RecordRequest::Invalid {
                    reason,
                    error,
                    unreadable,
                    kept,
                };
                (request, None, None)
            }
        };
        let content = content_of(&message, route);
        JudgedRecord {
            position,
            at: credible(produced.map(|at| at.min(now)), now),
            request,
            asked,
            content,
            message,
            target,
        }
    }
}
