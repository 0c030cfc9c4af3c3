//! Messages as they are seen at the ingress and at the target.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// End of the relay at which a message was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenAt {
    /// Beside the relay, on its way in.
    Ingress,
    /// Behind the relay.
    Target,
}

/// A header as the wire has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireHeader {
    /// Its text, or its number in digits.
    pub(crate) value: String,
    /// Its type: `bytes` on Kafka, the name of an AMQP type on RabbitMQ.
    pub(crate) kind: &'static str,
}

/// One message, seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenMessage {
    pub(crate) at: SeenAt,
    /// Unix ms, by the clock of this machine.
    pub(crate) received_ms: i64,
    /// Unix ms that the producer's library wrote: on Kafka alone.
    pub(crate) produced_ms: Option<i64>,
    pub(crate) body: String,
    pub(crate) headers: BTreeMap<String, WireHeader>,
    /// False for a message that a restart of the broker would lose.
    pub(crate) is_persistent: bool,
}

impl SeenMessage {
    /// Value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|header| header.value.as_str())
    }

    /// Number in a header.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.header(name)?.parse().ok()
    }
}

/// Messages of all clients so far; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenList {
    messages: Arc<Mutex<Vec<SeenMessage>>>,
    is_closed: Arc<AtomicBool>,
}

impl SeenList {
    pub(crate) fn push(&self, message: SeenMessage) {
        self.messages.lock().expect("the list").push(message);
    }

    /// Ends the watching: the servers are about to go.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Reports whether the watching has ended; an error of a watcher says nothing then.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.lock().expect("the list").len()
    }

    /// Messages from this one on.
    pub(crate) fn since(&self, first: usize) -> Vec<SeenMessage> {
        self.messages.lock().expect("the list")[first..].to_vec()
    }
}
