//! Parameters of a cycle, and the setup that a row asks for.

use std::time::Duration;

use crate::servers::Behind;

/// How large a cycle is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) seed: u64,
    /// Messages a second.
    pub(crate) rate: u64,
    /// Cycles that are still wanted. Most rows play one; one that can inject its fault again plays more.
    pub(crate) cycles: u64,
    /// The planted fault of all replicas.
    pub(crate) mutant: Option<&'static str>,
}

/// Setup that a row asks for.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) replicas: usize,
    /// Shortest delay of the load; 0: some messages have none.
    pub(crate) least_ms: u64,
    /// Longest delay of the load.
    pub(crate) longest_ms: u64,
    /// `timer.claim`, seconds.
    pub(crate) claim_s: u64,
    /// Where the store is, as keys of `[redis]`; `None`: in the scenario's own Redis.
    pub(crate) stored: Option<String>,
    /// Program that is started as redis-server.
    pub(crate) redis_program: String,
    /// Further options of it.
    pub(crate) redis: Vec<String>,
    /// A further line of `[redis]`.
    pub(crate) redis_lines: String,
    /// Further sections of the configuration.
    pub(crate) sections: String,
    /// Further lines of each route.
    pub(crate) routes: String,
    /// Further lines of the routes from Kafka.
    pub(crate) from_kafka: String,
    /// The delivery limit of the queues that are sources; `None`: there is none.
    pub(crate) delivery_limit: Option<i32>,
    /// Settings of the topics that are targets.
    pub(crate) target_settings: &'static [(&'static str, &'static str)],
    /// Each partition of a topic that is a target is on one broker of three.
    pub(crate) scattered_targets: bool,
    /// Query of RabbitMQ's URL, such as `?heartbeat=2`.
    pub(crate) rabbitmq_query: &'static str,
    /// Environment variables of the replicas.
    pub(crate) environment: Vec<(String, String)>,
    /// Further targets of the routes to Kafka and of those to RabbitMQ, in quotes.
    pub(crate) allow_topic: &'static str,
    pub(crate) allow_queue: &'static str,
    /// Ways whose target is reached through its broker's proxy, on a connection of its own.
    pub(crate) slow_targets: &'static [&'static str],
    /// The replicas go to the servers through the proxies.
    pub(crate) proxied: bool,
    /// Time for which a drain goes on while a message is missing and nothing arrives.
    pub(crate) patience: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            replicas: 3,
            least_ms: 0,
            longest_ms: 6000,
            claim_s: 4,
            stored: None,
            redis_program: "redis-server".into(),
            redis: Vec::new(),
            redis_lines: String::new(),
            sections: String::new(),
            routes: String::new(),
            from_kafka: String::new(),
            delivery_limit: None,
            target_settings: &[],
            scattered_targets: false,
            rabbitmq_query: "",
            environment: Vec::new(),
            allow_topic: "",
            allow_queue: "",
            slow_targets: &[],
            proxied: false,
            patience: Duration::from_secs(60),
        }
    }
}

/// The brokers: those that all rows share, or a row's own.
#[derive(Debug)]
pub(crate) enum Broker<T: 'static> {
    Shared(&'static Behind<T>),
    Own(Behind<T>),
}

impl<T> Broker<T> {
    pub(crate) fn get(&self) -> &Behind<T> {
        match self {
            Self::Shared(broker) => broker,
            Self::Own(broker) => broker,
        }
    }

    /// The row's own, to be killed or stopped.
    pub(crate) fn own(&mut self) -> &mut T {
        match self {
            Self::Shared(_) => panic!("a row hurts only a broker of its own"),
            Self::Own(broker) => &mut broker.server,
        }
    }
}
