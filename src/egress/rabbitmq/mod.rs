//! Egress to RabbitMQ: one lane per exchange of a connection, all over one publish connection.
//!
//! Each lane has a channel of its own, driven by *one* task: the client library acks the wrong publish when several
//! threads share a channel. The task publishes with `mandatory` and hundreds of confirms in flight, and judges each
//! publication by its own confirm (`window`). A routing key whose queue does not confirm holds no more than its share of
//! what is in flight (`key_shares`); its further messages wait, and those of other streams pass them (`queue`). A lane has
//! one channel, not two: messages that pass through keep their order.
//!
//! A message that closes the channel harms its neighbours only once: those that the broker may not have read before are
//! `Unknown`, and when they are submitted again each is published alone, where a refusal of the broker is about this
//! message (`suspects`). Time in which the broker blocks the connection (its alarm of memory or disk) does not count towards
//! [`super::CONFIRM_DEADLINE`]: no answer can come in that time.

mod channel;
mod driver;
mod key_shares;
mod lane;
pub mod mapping;
mod pump;
mod queue;
mod suspects;
mod validate;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use self::lane::ExchangeLane;
#[cfg(feature = "fuzzing")]
pub(in crate::egress) use self::validate::checked;
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
    /// Opens the publish connection, which stays up until `shutdown` drains. Then messages that wait in lanes are
    /// `NotTried`, and confirms of published ones are awaited until `shutdown` is forced. Tasks: `egress:rabbitmq:...`.
    pub fn new(broker: Arc<Broker>, clock: Clock, tasks: Tasks, shutdown: Shutdown) -> Self {
        let name = format!("egress:rabbitmq:{}", broker.name());
        let links = broker.open("publish", &name, &tasks, &shutdown);
        Self {
            broker,
            clock,
            tasks,
            shutdown,
            links,
            lanes: Mutex::default(),
        }
    }

    /// The lane to an exchange; an empty name is the default exchange.
    pub fn lane(&self, exchange: &str) -> Arc<dyn Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(exchange) {
            return lane.clone();
        }
        let lane = Arc::new(ExchangeLane::default());
        let name = format!("egress:rabbitmq:{}:{exchange}", self.broker.name());
        let driver = driver::LaneDriver::new(driver::LaneSetup {
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
