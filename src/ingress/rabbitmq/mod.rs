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

use self::consumer::{Consumer, Setup};
use super::Sink;
use crate::broker::rabbitmq::Broker;
use crate::domain::{Endpoint, Route};
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::Metrics;

/// Starts a consumer for each of `routes` that reads from this connection. They run until `shutdown`
/// drains: then they take nothing new, wait until what they took is resolved (or all is forced),
/// acknowledge it and close. Tasks: `ingress:rabbitmq:...`.
pub fn start<S: Sink>(
    broker: &Arc<Broker>,
    routes: &[Arc<Route>],
    sink: &Arc<S>,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
    shutdown: &Shutdown,
) {
    let task = format!("ingress:rabbitmq:{}", broker.name());
    let links = broker.open("consume", &task, tasks, shutdown);
    for route in routes {
        let Endpoint::Rabbitmq { connection, queue, prefetch } = &route.from else {
            continue;
        };
        if connection != broker.name() {
            continue;
        }
        let consumer = Consumer::new(Setup {
            route: route.clone(),
            queue: queue.clone(),
            prefetch: *prefetch,
            broker: broker.clone(),
            link: links.link(),
            sink: sink.clone(),
            metrics: metrics.route(&route.name).cloned(),
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
        });
        tasks.spawn(&format!("{task}:{}", route.name), consumer.run());
    }
}
