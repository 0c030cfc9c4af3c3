//! One readiness part, and one line of the log, for all connections to Redis.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::lifecycle::{Part, Readiness};
use crate::store::Config;

/// `redis`: up while every connection is up.
pub(super) struct Health {
    part: Part,
    url: String,
    /// Each connection and what is wrong with it, if anything.
    roles: Mutex<BTreeMap<&'static str, Option<String>>>,
}

impl Health {
    pub(super) fn new(config: &Config, readiness: &Readiness) -> Self {
        let part = readiness.part("redis", true);
        Self { part, url: config.url.redacted_url(), roles: Mutex::default() }
    }

    /// Notes how a connection stands; says so when that changes how Redis as a whole does.
    pub(super) fn report(&self, role: &'static str, trouble: Option<&str>) {
        let mut roles = self.roles.lock();
        roles.insert(role, trouble.map(str::to_owned));
        match roles.values().flatten().next() {
            Some(why) => {
                if self.part.down(why.as_str()) {
                    warn!(redis = self.url, error = why, "redis is away; waiting for it");
                }
            }
            None => {
                if self.part.up() {
                    info!(redis = self.url, "connected to redis");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Partitions, Secret};

    #[test]
    fn redis_is_up_only_while_every_connection_is() {
        let readiness = Readiness::default();
        let config = Config {
            url: Secret::new("redis://127.0.0.1:1"),
            prefix: "postdate".into(),
            partitions: Partitions::new(1).expect("a count"),
            overrides: crate::store::config::Overrides::default(),
        };
        let health = Health::new(&config, &readiness);
        health.report("side", Some("not reached yet"));
        health.report("claim", Some("not reached yet"));
        health.report("side", None);
        assert!(!readiness.is_ready(), "one was never up");
        health.report("claim", None);
        assert!(readiness.is_ready());
        health.report("claim", Some("refused"));
        assert!(!readiness.is_ready(), "one is lost");
        health.report("side", Some("refused"));
        health.report("claim", None);
        assert!(!readiness.is_ready(), "the other is");
        health.report("side", None);
        assert!(readiness.is_ready());
    }
}
