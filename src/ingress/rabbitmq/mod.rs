//! RabbitMQ ingress: a consumer per route, each on a channel of its own over the connection's one
//! consume connection, acknowledged over the resolved prefix only.
//!
//! A queue that is missing, deleted or refused costs its own route only, and is looked for again. A
//! delivery that the client library cannot parse (a header name that is not UTF-8) ends the whole
//! connection each time it comes; the broker then does not say whose it was. After the second such loss
//! every route of the connection gets a connection of its own; the one whose own connection ends so is
//! the one, and is read one by one, so that all before it is stored and acknowledged once; ending so
//! again, its route stops, loudly, and a person must take the message out. The others go on.

mod channel;
mod consumer;
pub mod tail;

use std::sync::Arc;

use tracing::info;

use self::consumer::{Consumer, Setup};
use super::{ReadParts, Sink};
use crate::broker::rabbitmq::Broker;
use crate::domain::{Endpoint, Route};
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::Metrics;

/// What the consumers of a connection work with.
pub struct Surroundings<'a, S> {
    /// Where what they read goes.
    pub sink: Arc<S>,
    /// The routes' numbers.
    pub metrics: &'a Metrics,
    /// How much of the process's memory each queue may fill.
    pub parts: &'a ReadParts,
    /// Where they run.
    pub tasks: &'a Tasks,
    /// When they end.
    pub shutdown: &'a Shutdown,
}

/// Starts a consumer for each of `routes` that reads from this connection. They run until `shutdown`
/// drains: then they take nothing new, wait until what they took is resolved (or all is forced),
/// acknowledge it and close. Tasks: `ingress:rabbitmq:...`.
pub fn start<S: Sink>(broker: &Arc<Broker>, routes: &[Arc<Route>], around: &Surroundings<'_, S>) {
    let task = format!("ingress:rabbitmq:{}", broker.name());
    let links = broker.open("consume", &task, around.tasks, around.shutdown);
    for route in routes {
        let Endpoint::Rabbitmq { connection, queue, prefetch: wanted } = &route.from else {
            continue;
        };
        if connection != broker.name() {
            continue;
        }
        let prefetch = around.parts.prefetch(*wanted, route.policy.max_size);
        if prefetch < *wanted {
            let max_size = route.policy.max_size;
            info!(route = %route.name, queue, prefetch, wanted, max_size, "prefetch is lowered to what fits into memory if each message is as large as max_size; a smaller max_size allows more");
        }
        let consumer = Consumer::new(Setup {
            route: route.clone(),
            queue: queue.clone(),
            prefetch,
            broker: broker.clone(),
            link: links.link(),
            sink: around.sink.clone(),
            metrics: around.metrics.route(&route.name).cloned(),
            tasks: around.tasks.clone(),
            shutdown: around.shutdown.clone(),
        });
        around.tasks.spawn(&format!("{task}:{}", route.name), consumer.run());
    }
}
