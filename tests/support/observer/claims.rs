//! What the store holds claimed, beside what a relay says that it holds.
//!
//! A relay's `in_flight` falls with each verdict, its claims a little later, when they are settled; so it never holds
//! more than is claimed, and no claim outlives its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use postdate::store::BundleId;
use toml::{Table, Value};

use crate::support::relay::Metrics;

/// Time between two looks.
const LOOK_MS: i64 = 1000;
/// For so long, in each of so many looks, a relay must hold more than is claimed; or a claim outlives its lease by that.
const LASTS_MS: i64 = 10_000;
const LOOKS: u32 = 8;
/// How long Redis may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Partitions where the configuration does not say.
const PARTITIONS: i64 = 64;

/// Where a configuration keeps its messages: one server, reached by a plain address.
#[derive(Debug)]
struct StoreAddress {
    client: redis::Client,
    prefix: String,
    partitions: i64,
}

impl StoreAddress {
    fn read(config: &str) -> Option<Self> {
        let config = config.parse::<Table>().ok()?;
        let redis = config.get("redis")?.as_table()?;
        let text = |key: &str| redis.get(key).and_then(Value::as_str);
        // The user of the relay may lack the right; everybody may come as the default user of a test's server.
        let port = text("url")?.strip_prefix("redis://")?.rsplit(':').next()?;
        let port: u16 = port.trim_end_matches('/').parse().ok()?;
        let partitions = redis.get("partitions").and_then(Value::as_integer);
        Some(Self {
            client: redis::Client::open(("127.0.0.1", port)).ok()?,
            prefix: text("prefix").unwrap_or("postdate").to_owned(),
            partitions: partitions.unwrap_or(PARTITIONS),
        })
    }

    /// The claimed bundles of all partitions with their deadlines, and the time, Unix ms by Redis's clock.
    fn claims(&self) -> redis::RedisResult<(Vec<(String, f64)>, i64)> {
        let mut connection = self.client.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        let mut ask = redis::pipe();
        for partition in 0..self.partitions {
            let key = format!("{}:{{{partition}}}:claims", self.prefix);
            ask.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES");
        }
        let claims: Vec<Vec<(String, f64)>> = ask.query(&mut connection)?;
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut connection)?;
        Ok((claims.concat(), seconds * 1000 + micros / 1000))
    }
}

/// Compares one relay with its store.
#[derive(Debug)]
pub(super) struct ClaimsWatch {
    /// `None`: the store is no single server, and nothing is compared.
    address: Option<StoreAddress>,
    looked_ms: i64,
    /// Routes of which more is in flight than is claimed: since when, and in how many looks.
    beyond: BTreeMap<String, (i64, u32)>,
}

impl ClaimsWatch {
    pub(super) fn new(config: &str) -> Self {
        Self {
            address: StoreAddress::read(config),
            looked_ms: 0,
            beyond: BTreeMap::new(),
        }
    }

    /// Forgets what it saw: the relay was away, or another one has taken its place.
    pub(super) fn forget(&mut self) {
        self.beyond.clear();
    }

    /// Looks again if it is time to. Returns the route that does not agree with its claims, since when, and how.
    pub(super) fn look(
        &mut self,
        routes: &[&str],
        metrics: &Metrics,
        now: i64,
    ) -> Option<(String, i64, String)> {
        let address = self.address.as_ref()?;
        if now - self.looked_ms < LOOK_MS {
            return None;
        }
        self.looked_ms = now;
        let Ok((claims, store_ms)) = address.claims() else {
            self.forget();
            return None;
        };
        let mut claimed = BTreeMap::<String, i64>::new();
        for (id, deadline) in claims {
            let Some(bundle) = BundleId::parse(&id) else {
                continue;
            };
            *claimed.entry(bundle.route().to_owned()).or_default() += bundle.count() as i64;
            let over_ms = store_ms - deadline as i64;
            if over_ms > LASTS_MS && routes.contains(&bundle.route()) {
                let what = format!("the claim on {id} has outlived its lease by {over_ms} ms");
                return Some((bundle.route().to_owned(), now - over_ms, what));
            }
        }
        for &route in routes {
            let held = metrics.sum("postdate_in_flight", &[("route", route)]) as i64;
            let claimed = claimed.get(route).copied().unwrap_or_default();
            if held <= claimed {
                self.beyond.remove(route);
                continue;
            }
            let (since, looks) = self.beyond.entry(route.to_owned()).or_insert((now, 0));
            *looks += 1;
            if *looks >= LOOKS && now - *since >= LASTS_MS {
                let what = format!("{held} of {route} are in flight and {claimed} are claimed");
                return Some((route.to_owned(), *since, what));
            }
        }
        None
    }
}
