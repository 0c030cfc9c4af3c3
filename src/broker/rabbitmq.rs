//! RabbitMQ connections.

use crate::domain::Secret;

/// A named RabbitMQ connection, checked.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its name.
    pub name: String,
    /// `amqp://user:password@host:port/vhost`
    pub url: Secret,
}
