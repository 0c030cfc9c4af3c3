//! Loops through two names of one Kafka cluster. The configuration alone compares what is written in it; only the brokers
//! know that two addresses are theirs.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use super::{CHECK_DEADLINE, CheckFinding};
use crate::config::{Config, RouteConflict, SameBroker, route_conflicts};

/// Cluster ids by the name of the Kafka connection.
struct ClusterIds(BTreeMap<String, String>);

impl SameBroker for ClusterIds {
    fn same_kafka(&self, one: &str, other: &str) -> bool {
        one != other
            && self
                .0
                .get(one)
                .zip(self.0.get(other))
                .is_some_and(|(one, other)| one == other)
    }

    // The configuration compares virtual hosts, and AMQP has no word that would tell more.
    fn same_rabbitmq(&self, _: &str, _: &str) -> bool {
        false
    }
}

/// Conflicts between routes that use one cluster by two names.
pub(super) async fn loops(config: &Config) -> Vec<CheckFinding> {
    let used = crate::app::used_connections(&config.routes);
    let used: Vec<_> = config
        .kafka
        .values()
        .filter(|at| used.contains(at.name.as_str()))
        .collect();
    if used.len() < 2 {
        return Vec::new();
    }
    let asked = used.into_iter().map(async |connection| {
        let id = connection.cluster_id(CHECK_DEADLINE).await?;
        Some((connection.name.clone(), id))
    });
    let ids = ClusterIds(join_all(asked).await.into_iter().flatten().collect());
    let conflicts = route_conflicts(&config.routes, &ids).into_iter();
    let findings = conflicts.map(|RouteConflict { route, key, message }| {
        CheckFinding::bad(format!(
            "routes.{route}.{key}: {message}; the Kafka connections lead to one cluster by two names"
        ))
    });
    findings.collect()
}
