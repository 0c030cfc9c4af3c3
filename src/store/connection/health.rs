//! One readiness part, and one line of the log, for all connections to Redis.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::refusals::LastRefusal;
use crate::health::NOT_REACHED;
use crate::health::{Health, Part};
use crate::store::Config;

/// A connection: its role, and the number of its node.
type ConnectionKey = (&'static str, u64);

/// The key of a role's way to all nodes. No node has this number.
const WHOLE_ROLE: u64 = 0;

/// Readiness part `redis`: up while every connection to every master is up.
pub(in crate::store) struct RedisHealth {
    part: Part,
    place: String,
    /// Each connection and its trouble, if any.
    connections: Mutex<BTreeMap<ConnectionKey, Option<String>>>,
    /// The reasons that the log has of the trouble that lasts.
    told: Mutex<BTreeSet<String>>,
    /// What servers that are up refuse.
    pub(in crate::store) refusal: LastRefusal,
}

/// Most reasons in the log of one trouble.
const MAX_TOLD: usize = 5;

impl RedisHealth {
    /// Waits for a connection of each role.
    pub(in crate::store) fn new(config: &Config, health: &Health, roles: &[&'static str]) -> Self {
        let part = health.part("redis", true);
        let waiting = roles
            .iter()
            .map(|role| ((*role, WHOLE_ROLE), Some(NOT_REACHED.to_owned())));
        Self {
            part,
            place: config.place(),
            connections: Mutex::new(waiting.collect()),
            told: Mutex::default(),
            refusal: LastRefusal::default(),
        }
    }

    /// Announces a connection that is about to be made, so that its reports count even before its role follows
    /// it.
    pub(in crate::store) fn expect(&self, which: ConnectionKey) {
        self.connections
            .lock()
            .entry(which)
            .or_insert_with(|| Some(NOT_REACHED.to_owned()));
    }

    /// Notes that a role now has connections to these nodes, and to no others.
    pub(in crate::store) fn follow(
        &self,
        role: &'static str,
        nodes: &[u64],
        trouble: Option<&str>,
    ) {
        let mut connections = self.connections.lock();
        connections.retain(|(of, node), _| *of != role || nodes.contains(node));
        for node in nodes {
            connections
                .entry((role, *node))
                .or_insert_with(|| Some(NOT_REACHED.to_owned()));
        }
        let trouble = trouble.map(str::to_owned);
        connections.insert(
            (role, WHOLE_ROLE),
            trouble.or_else(|| nodes.is_empty().then(|| "no master".to_owned())),
        );
        self.tell(&connections);
    }

    /// Notes the state of a connection, and reports it when that changes the state of Redis as a whole.
    pub(in crate::store) fn report(&self, which: ConnectionKey, trouble: Option<&str>) {
        let mut connections = self.connections.lock();
        // A report about a node that was let go of meanwhile is no news.
        if let Some(known) = connections.get_mut(&which) {
            *known = trouble.map(str::to_owned);
            self.tell(&connections);
        }
    }

    fn tell(&self, connections: &BTreeMap<ConnectionKey, Option<String>>) {
        let troubles = || connections.values().flatten();
        if let Some(why) = troubles()
            .find(|why| *why != NOT_REACHED)
            .or_else(|| troubles().next())
        {
            // The first reason is often that a call failed, and the next connection knows why. One that was not reached yet
            // is no news: it becomes a connection, or another trouble.
            let mut told = self.told.lock();
            let is_news = why != NOT_REACHED && told.len() < MAX_TOLD && told.insert(why.clone());
            self.part.down(why.as_str());
            if is_news {
                warn!(
                    redis = self.place,
                    error = why,
                    "redis is away; waiting for it"
                );
            }
        } else {
            self.told.lock().clear();
            if self.part.up() {
                info!(redis = self.place, "connected to redis");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::Credential;
    use crate::domain::Partitions;
    use crate::store::config::{Durability, Overrides, Topology};

    #[test]
    fn redis_is_up_only_while_every_connection_to_every_master_is() {
        let health = Health::default();
        let config = Config {
            topology: Topology::Standalone(Credential::inline("redis://127.0.0.1:1")),
            prefix: "postdate".into(),
            partitions: Partitions::new(1).expect("a count"),
            durability: Durability::Async,
            growing_bundles: false,
            overrides: Overrides::default(),
            tls: crate::tls::ClientFiles::default(),
        };
        let redis = RedisHealth::new(&config, &health, &["side", "claim"]);
        redis.expect(("side", 1));
        redis.report(("side", 1), None);
        redis.follow("side", &[1], None);
        redis.follow("claim", &[2], None);
        assert!(!health.is_ready(), "one was never up");
        redis.report(("claim", 2), None);
        assert!(health.is_ready());
        redis.report(("claim", 2), Some("refused"));
        assert!(!health.is_ready(), "one is lost");
        redis.report(("side", 1), Some("refused"));
        redis.report(("claim", 2), None);
        assert!(!health.is_ready(), "the other is");
        redis.report(("side", 1), None);
        assert!(health.is_ready());
        redis.follow("claim", &[2, 3], None);
        assert!(!health.is_ready(), "a new master is not reached yet");
        redis.follow("claim", &[3], None);
        redis.report(("claim", 2), Some("let go of"));
        redis.report(("claim", 3), None);
        assert!(health.is_ready(), "the old one is nobody's concern");
        redis.expect(("claim", 4));
        redis.report(("claim", 4), None);
        redis.follow("claim", &[3, 4], None);
        assert!(health.is_ready(), "it was up before it was followed");
        redis.follow("claim", &[], None);
        assert!(!health.is_ready(), "nobody is the master");
    }
}
