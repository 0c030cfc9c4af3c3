//! RabbitMQ connections: configuration, a supervised connection per role, faults by their cause, and the
//! conversion between AMQP's types and Postdate's.

mod consume;
mod convert;
mod definitions;
mod examine;
mod fault;
mod frame_guard;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guarded_channels;
mod guarded_connect;
mod header_frame;
mod health;
mod lookup;
mod management;
mod queue_traits;
mod supervisor;

pub use consume::consume;
pub use convert::{TooLong, from_amqp, take_left_out, to_amqp, unreadable_reason, wire_len};
pub use definitions::{BindingDefinition, Definitions, ExchangeDefinition};
pub use examine::{QueueOrExchange, UnusableHosts};
pub use fault::{AmqpFault, FaultKind};
pub use guarded_channels::ReturnCounter;
pub use lookup::{QueueSeen, look_for_exchange, look_for_queue, short_name};
pub use management::{Bindings, Reach};
pub use queue_traits::{QueueTraits, stream_refusal};
pub use supervisor::{
    ANSWER_DEADLINE, Broker, ConnectionHandle, LiveConnection, SharedConnection, within,
};

use crate::credential::Credential;
use crate::tls::{ClientFiles, KeyHints};

/// A named RabbitMQ connection, checked.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The connection's name.
    pub name: String,
    /// `amqp://user:password@host:port/vhost`
    pub url: Credential,
    /// The same of the other hosts of its cluster.
    pub further_urls: Vec<Credential>,
    /// The address of its management API, which tells bindings and the traits of queues.
    pub management: Option<String>,
    /// Authorities and certificate of a connection over TLS.
    pub tls: ClientFiles,
}

impl Connection {
    /// The number of its hosts.
    fn hosts(&self) -> usize {
        1 + self.further_urls.len()
    }

    /// The URL of a host: they come in turn.
    fn url_of(&self, turn: usize) -> &Credential {
        match turn % self.hosts() {
            0 => &self.url,
            further => &self.further_urls[further - 1],
        }
    }

    /// The key that says where its hosts are, for a sentence.
    pub fn place_key(&self) -> String {
        let key = if self.further_urls.is_empty() {
            "url"
        } else {
            "urls"
        };
        format!("rabbitmq.{}.{key}", self.name)
    }

    /// The keys that a sentence about TLS names.
    fn tls_hints(&self) -> KeyHints {
        let key = format!("rabbitmq.{}", self.name);
        let urls = self.place_key();
        KeyHints {
            ca: format!("{key}.tls.ca"),
            certificate: format!("{key}.tls.certificate"),
            with_tls: format!("`{urls}` must begin with amqps://"),
            without_tls: format!("`{urls}` must begin with amqp://"),
        }
    }
}
