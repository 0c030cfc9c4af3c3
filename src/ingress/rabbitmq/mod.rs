//! Ingress from RabbitMQ: a consumer per route, each on a channel of its own over the one consume connection.
//! Acknowledges the resolved prefix only.
//!
//! A queue is read in one of two modes, and neither holds more bytes than the queue's part of the read budget. The
//! usual one takes many messages at a time, and no body over `max_size`. The careful one takes few, and any body that
//! can become a dead letter or pass through. A body that is too large for the mode never enters memory: its delivery is
//! given back and read in the careful mode, or, if it is of no use in any mode, becomes invalid without its body.
//!
//! A queue that is missing, deleted or refused costs only its own route, and is looked for again. So does a queue
//! that cannot be a source: a stream, one that is exclusive to another connection, and one that goes with its
//! consumer. Nothing of such a queue is read.

mod channel;
mod consumer;
mod incoming;
mod reading_mode;
mod silence;
pub mod tail;

use std::sync::Arc;

use tracing::info;

use self::consumer::{QueueConsumer, QueueSetup};
use super::{ReadAllocation, Sink};
use crate::broker::rabbitmq::Broker;
use crate::domain::{Endpoint, Route};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::Metrics;

/// The role in which queues are read.
const ROLE: &str = "consume";

/// Everything that the consumers of a connection are built from.
pub struct RabbitmqDependencies<'a, S> {
    /// Takes the deliveries.
    pub sink: Arc<S>,
    /// The metrics of the routes.
    pub metrics: &'a Metrics,
    /// Receives why the queues are not read.
    pub health: &'a Health,
    /// The memory that each queue may fill.
    pub allocation: &'a ReadAllocation,
    /// Runs the consumers.
    pub tasks: &'a Tasks,
    /// Ends the consumers.
    pub shutdown: &'a Shutdown,
}

/// Announces that [`start`] will read from this connection: it is not ready before that.
pub fn announce(broker: &Broker) {
    broker.announce(ROLE);
}

/// Starts a consumer for each of `routes` that reads from this connection. They run until `shutdown` drains:
/// then they take nothing new, wait until every delivery that they took is resolved (or shutdown is forced),
/// acknowledge, and close. Their tasks are named `ingress:rabbitmq:...`.
pub fn start<S: Sink>(
    broker: &Arc<Broker>,
    routes: &[Arc<Route>],
    dependencies: &RabbitmqDependencies<'_, S>,
) {
    let task = format!("ingress:rabbitmq:{}", broker.name());
    let shared = broker.open(ROLE, &task, dependencies.tasks, dependencies.shutdown);
    for route in routes {
        let Endpoint::Rabbitmq {
            connection,
            queue,
            prefetch: wanted,
        } = &route.from
        else {
            continue;
        };
        if connection != broker.name() {
            continue;
        }
        let limits = dependencies.allocation.queue_limits(*wanted, &route.policy);
        let prefetch = limits.usual.prefetch;
        if prefetch < *wanted {
            let max_size = route.policy.max_size;
            info!(route = %route.name, queue, prefetch, wanted, max_size, "prefetch is lowered to what fits into memory if each message is as large as max_size; a smaller max_size allows more");
        }
        let consumer = QueueConsumer::new(QueueSetup {
            route: route.clone(),
            queue: queue.clone(),
            limits,
            broker: broker.clone(),
            connection: shared.handle(),
            sink: dependencies.sink.clone(),
            metrics: dependencies.metrics.route(&route.name).cloned(),
            health: dependencies.health.route(&route.name),
            shutdown: dependencies.shutdown.clone(),
        });
        dependencies
            .tasks
            .spawn(&format!("{task}:{}", route.name), consumer.run());
    }
}
