//! `check --connect`: tries Redis, the brokers, and every topic, queue and exchange that a route names.
//! Creates and changes nothing; everything at once, so that what is dead costs its own deadline only.

mod kafka;
mod rabbitmq;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::runtime;
use crate::config::Config;
use crate::domain::{Endpoint, Route};
use crate::ingress::ReadAllocation;
use crate::store::{self, PreflightFailure};

/// Longest wait for what does not answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// One thing that was tried: a sentence for a person, without any secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is as it should be.
    pub good: bool,
    /// What was found; of what is not good also what to do.
    pub text: String,
}

impl Finding {
    fn good(text: String) -> Self {
        Self { good: true, text }
    }

    fn bad(text: String) -> Self {
        Self { good: false, text }
    }
}

/// A sentence for each queue that hands over fewer messages at a time than its `prefetch` says.
pub fn lowered_prefetches(routes: &[Arc<Route>]) -> Vec<String> {
    let parts = ReadAllocation::of(routes);
    let lowered = |route: &Arc<Route>| {
        let Endpoint::Rabbitmq { prefetch, .. } = route.from else { return None };
        let fitting = parts.prefetch(prefetch, route.policy.max_size);
        (fitting < prefetch).then(|| {
            format!(
                "note: routes.{}: {fitting} messages at a time instead of prefetch = {prefetch}: more might not fit \
                 into memory, each as large as max_size; a smaller max_size allows more",
                route.name
            )
        })
    };
    routes.iter().filter_map(lowered).collect()
}

/// Tries all of it. Warnings of the rooms themselves go to the log, as text.
pub fn check_connections(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let findings = async { Ok(all(config).await) };
    runtime::run_to_end(&runtime::log_as_text(config, None), findings)
}

async fn all(config: &Config) -> Vec<Finding> {
    let kafka = config.kafka.values().map(|connection| kafka::check(connection, &config.routes));
    let rabbitmq = config.rabbitmq.values().map(|connection| rabbitmq::check(connection, &config.routes));
    let (redis, kafka, rabbitmq) = tokio::join!(redis(&config.redis), join_all(kafka), join_all(rabbitmq));
    std::iter::once(redis).chain(kafka.into_iter().flatten()).chain(rabbitmq.into_iter().flatten()).collect()
}

/// What is wrong with the brokers that one route uses, and with what it names there.
pub(crate) async fn of_route(config: &Config, route: &Arc<Route>) -> Vec<Finding> {
    let routes = std::slice::from_ref(route);
    let used = super::used_connections(routes);
    let kafka = config.kafka.values().filter(|c| used.contains(c.name.as_str()));
    let rabbitmq = config.rabbitmq.values().filter(|c| used.contains(c.name.as_str()));
    let kafka = kafka.map(|connection| kafka::check(connection, routes));
    let rabbitmq = rabbitmq.map(|connection| rabbitmq::check(connection, routes));
    let (kafka, rabbitmq) = tokio::join!(join_all(kafka), join_all(rabbitmq));
    kafka.into_iter().chain(rabbitmq).flatten().filter(|finding| !finding.good).collect()
}

async fn redis(config: &store::Config) -> Finding {
    let (place, key) = (config.place(), config.place_key());
    match tokio::time::timeout(PATIENCE, store::preflight(config, false)).await {
        Ok(Ok(())) => Finding::good(format!("redis: {place} is there and may be used")),
        Ok(Err(PreflightFailure::Refused(why))) => {
            Finding::bad(format!("redis: {place} may not be used: {why}"))
        }
        Ok(Err(PreflightFailure::Away(why))) => Finding::bad(format!(
            "redis: cannot be used: {why}; is it running, and is `{key}` right, user and password included?"
        )),
        Err(_) => Finding::bad(format!(
            "redis: {place} did not answer within {} s; is it running, and is `{key}` right?",
            PATIENCE.as_secs()
        )),
    }
}

/// What a route is to a thing that it names.
fn source(route: &Route) -> String {
    format!("source of route {}", route.name)
}

fn target(route: &Route) -> String {
    format!("target of route {}", route.name)
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
