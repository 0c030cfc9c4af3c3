//! Publishing into a route's own ingress, as `app` provides it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::domain::{InvalidReason, Message, Route, UnixMs};

/// Publishes messages to the topics and queues that routes read.
pub trait Inject: Send + Sync {
    /// Judges a message as admission would if it arrived now. Answers when it is due at the latest, or why it would be
    /// invalid. The message carries a delay header and an id, and no `x-delay-op`.
    fn judge(&self, route: &Route, message: &Message) -> Result<UnixMs, InvalidMessage>;

    /// Publishes a message, as it is, to the topic or queue that the route reads, and waits for the broker's confirm. On
    /// RabbitMQ it goes through the default exchange: the message's key is empty then, and the queue's name is the routing
    /// key. If the future is dropped half-way, the message may have been published.
    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>>;
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
