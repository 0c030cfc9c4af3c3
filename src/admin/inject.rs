//! Publishing into a route's own ingress, as `app` provides it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::domain::{DelayRequest, InvalidReason, Message, Route, Target, UnixMs};

/// Publishes messages to the topics and queues that routes read.
pub trait Inject: Send + Sync {
    /// Admits a message as if it had just arrived, or says why it would be invalid. The message has a delay header and no
    /// `x-delay-op`. An expiry is one that it names itself.
    fn admit(&self, route: &Route, message: Message) -> Result<AdmittedMessage, InvalidMessage>;

    /// Publishes a message, as it is, to the topic or queue that the route reads, and waits for the broker's confirm. On
    /// RabbitMQ it goes through the default exchange: the message's key is empty then, and the queue's name is the routing
    /// key. If the future is dropped half-way, the message may have been published.
    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>>;
}

/// A message as its route admits it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmittedMessage {
    /// When it is due, without the route's jitter.
    pub due: UnixMs,
    /// What was asked for.
    pub request: DelayRequest,
    /// Where it goes.
    pub target: Arc<Target>,
    /// The message without its delay headers.
    pub message: Message,
}

/// A message that its route would call invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidMessage {
    /// The contract's reason.
    pub reason: InvalidReason,
    /// The exact error, for a person.
    pub error: String,
}

/// Why a message is not in the route's ingress, or not surely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// The broker is away: the message is not there.
    #[error("the broker cannot be reached: {0}")]
    Unreachable(String),
    /// The broker said no: the message is not there.
    #[error("the broker refused the message: {0}")]
    Refused(String),
    /// No confirm came: the message may be there.
    #[error("the broker did not confirm the message, which may have arrived all the same: {0}")]
    Unconfirmed(String),
}
