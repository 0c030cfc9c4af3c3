//! The store of a command that works on one route beside the relays, with what its tasks need.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use prometheus_client::registry::Registry;

use crate::config::Config;
use crate::domain::{Clock, Route, RoutePolicy, routes_where};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{self, PreflightFailure, Store};
use crate::telemetry::Metrics;

/// Longest wait for a store that does not answer at the beginning.
const STORE_DEADLINE: Duration = Duration::from_secs(10);

/// The store, and what its tasks need.
pub(crate) struct CommandStore {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) tasks: Tasks,
    pub(crate) shutdown: Shutdown,
}

impl CommandStore {
    /// Checks the store and connects to it. `may_describe` allows the check to write the description of a new store.
    /// `reads_trail` lets the command read the route's trail.
    pub(crate) async fn open(
        config: &Config,
        route: &Arc<Route>,
        may_describe: bool,
        reads_trail: bool,
    ) -> anyhow::Result<Self> {
        let preflight = store::preflight(&config.redis, may_describe);
        match tokio::time::timeout(STORE_DEADLINE, preflight).await {
            Ok(Ok(())) => {}
            Ok(Err(PreflightFailure::Refused(why))) => {
                return Err(why).context("the store may not be used");
            }
            Ok(Err(PreflightFailure::Away(why) | PreflightFailure::Tls(why))) => {
                bail!("the store cannot be used: {why}")
            }
            Err(_) => bail!(
                "the store did not answer within {} s",
                STORE_DEADLINE.as_secs()
            ),
        }
        let clock = Clock::start();
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = Health::default();
        let metrics = Metrics::new(&mut Registry::default(), [route.name.clone()]);
        let routes = std::slice::from_ref(route);
        let store = Store::start(&store::StoreDependencies {
            config: &config.redis,
            clock,
            metrics: metrics.clone(),
            health: &health,
            tasks: &tasks,
            shutdown: &shutdown,
            remembers: [(route.name.clone(), route.policy.dedupe_ms)].into(),
            trails: reads_trail
                .then(|| (route.name.clone(), route.policy.trail))
                .into_iter()
                .collect(),
            ordered: routes_where(routes, |policy| policy.ordered),
            growing: routes_where(routes, RoutePolicy::may_grow),
            shards: 1,
        })?;
        Ok(Self {
            store,
            clock,
            metrics,
            health,
            tasks,
            shutdown,
        })
    }
}
