//! RabbitMQ connections: configuration, a supervised link per role, faults by what caused them, and the
//! translation between AMQP's types and our own.

mod convert;
mod examine;
mod fault;
mod health;
mod link;
mod look;

pub use convert::{TooLong, from_amqp, to_amqp, wire_len};
pub use examine::Thing;
pub use fault::{Fault, FaultKind};
pub use link::{Broker, DEADLINE, Link, Links, Live, within};
pub use look::{look_for_exchange, look_for_queue, short_name};

use crate::domain::Secret;

/// A named RabbitMQ connection, checked.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its name.
    pub name: String,
    /// `amqp://user:password@host:port/vhost`
    pub url: Secret,
}
