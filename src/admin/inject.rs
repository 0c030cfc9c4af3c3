//! The way to a route's own ingress, as `app` provides it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::domain::{InvalidReason, Message, Route, UnixMs};

/// Publishes messages to the topics and queues that routes read.
pub trait Inject: Send + Sync {
    /// What admission would make of a message that arrived now: when it is due at the
    /// latest, or why it would be invalid.
    /// The message carries a delay header and an id, and no `x-delay-op`.
    fn judge(&self, route: &Route, message: &Message) -> Result<UnixMs, Unfit>;

    /// Publishes a message, as it stands, to the topic or queue that the route reads, and waits for the
    /// broker's confirm. On RabbitMQ through the default exchange: the message's key is empty then, and
    /// the queue's name is the routing key. Dropped half-way, the message may have been published.
    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>>;
}

/// Why a message would be invalid on its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The contract's reason.
    pub reason: InvalidReason,
    /// What exactly, for a person.
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
