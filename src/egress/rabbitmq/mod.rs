//! RabbitMQ lanes: one per exchange of a connection, all over the connection's one publish connection.
//!
//! Each lane has a channel of its own, driven by *one* task: the client library acks the wrong publish
//! when several threads share a channel. The task publishes in the order submitted, with `mandatory`
//! and hundreds of confirms in flight, and judges by what the broker said of the confirmed prefix
//! (`window`). One channel, not two: what passes through keeps its order.
//!
//! A message that closes the channel takes its neighbours with it only once: they are `Unknown`, and
//! when they come again each is published alone on a fresh channel, where the broker's refusal is its
//! own (`suspects`). Time in which the broker blocks the connection (its alarm of memory or disk) does
//! not count towards [`super::CONFIRM_DEADLINE`]: nothing is judged while nobody can answer.

mod channel;
mod driver;
mod lane;
pub mod mapping;
mod pump;
mod quarantine;
mod validate;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use self::lane::ExchangeLane;
use super::Lane;
use crate::broker::rabbitmq::{Broker, SharedConnection};
use crate::domain::Clock;
use crate::lifecycle::{Shutdown, Tasks};

/// The lanes of one RabbitMQ connection, made on demand.
#[derive(Debug)]
pub struct RabbitLanes {
    broker: Arc<Broker>,
    clock: Clock,
    tasks: Tasks,
    shutdown: Shutdown,
    links: SharedConnection,
    /// Lanes by exchange.
    lanes: Mutex<BTreeMap<String, Arc<ExchangeLane>>>,
}

impl RabbitLanes {
    /// Opens the publish connection, which stays up until `shutdown` drains; then what lanes hold is
    /// `NotTried`, what is with the broker is awaited until forced. Tasks: `egress:rabbitmq:...`.
    pub fn new(broker: Arc<Broker>, clock: Clock, tasks: Tasks, shutdown: Shutdown) -> Self {
        let name = format!("egress:rabbitmq:{}", broker.name());
        let links = broker.open("publish", &name, &tasks, &shutdown);
        Self { broker, clock, tasks, shutdown, links, lanes: Mutex::default() }
    }

    /// The lane to an exchange (empty: the default one).
    pub fn lane(&self, exchange: &str) -> Arc<dyn Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(exchange) {
            return lane.clone();
        }
        let lane = Arc::new(ExchangeLane::default());
        let name = format!("egress:rabbitmq:{}:{exchange}", self.broker.name());
        let driver = driver::Driver::new(driver::Setup {
            exchange: exchange.to_owned(),
            own_user: self.broker.user(),
            lane: lane.clone(),
            link: self.links.handle(),
            clock: self.clock,
            shutdown: self.shutdown.clone(),
        });
        self.tasks.spawn(&name, driver.run());
        lanes.insert(exchange.to_owned(), lane.clone());
        lane
    }
}
