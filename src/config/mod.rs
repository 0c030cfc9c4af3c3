//! Configuration: reads files, environment and `--set` into one checked [`Config`], or lists all problems at once.
//!
//! `config/postdate.toml` is the reference and the lowest layer: every default comes from there and from
//! nowhere else. [`load`] reads the layers. [`LoadedConfig::check`] checks them without touching the network and
//! returns the configuration of each room. [`LoadedConfig::print`] shows each value with its source, secrets redacted.

mod check;
mod clients;
mod connections;
mod elsewhere;
mod ends;
mod graph;
mod key_kinds;
mod layers;
mod overrides;
mod positions;
mod print;
mod problem;
mod routes;
mod schema;
mod secrets;
mod section;
mod sources;
mod storage;
mod tls;
mod units;
mod url_options;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use connections::SameBroker;
pub use graph::{RouteConflict, conflicts as route_conflicts};
pub use layers::REFERENCE_FILE;
pub use positions::FilePosition;
pub use problem::{ConfigProblem, ConfigProblems};
pub use schema::schema;
pub use sources::{ConfigSources, SEARCHED_FILES, variable};

pub use crate::credential::read_secret;

use crate::domain::Route;
use crate::{admin, broker, cluster, store, telemetry, timer};

/// The checked configuration: one part for each room.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a drain may take.
    pub shutdown_timeout: Duration,
    /// The store, in which messages wait.
    pub redis: store::Config,
    /// Kafka connections by name.
    pub kafka: BTreeMap<String, broker::kafka::Connection>,
    /// RabbitMQ connections by name.
    pub rabbitmq: BTreeMap<String, broker::rabbitmq::Connection>,
    /// The place of this replica in the cluster.
    pub cluster: cluster::Config,
    /// Claims: how messages leave the store.
    pub timer: timer::Config,
    /// Probes, metrics, API.
    pub admin: admin::Config,
    /// Format and filter of logs.
    pub log: telemetry::Config,
    /// The collector of traces.
    pub traces: telemetry::config::TracesConfig,
    /// The routes by name, at least one.
    pub routes: Vec<Arc<Route>>,
}

/// The layers of a configuration, read and merged, not checked yet.
pub struct LoadedConfig {
    layers: layers::MergedLayers,
    problems: Vec<ConfigProblem>,
    sources: ConfigSources,
}

/// Reads all layers. Fails only if the file cannot be read in the format of its extension.
pub fn load(sources: ConfigSources) -> Result<LoadedConfig, ConfigProblems> {
    let mut layers =
        layers::MergedLayers::read(&sources).map_err(|problem| ConfigProblems(vec![problem]))?;
    let problems = overrides::apply(&sources, &mut layers);
    Ok(LoadedConfig {
        layers,
        problems,
        sources,
    })
}

impl LoadedConfig {
    /// Checks everything at once. Reads no file but those that keys ending in `_file` and those of `tls` name.
    pub fn check(&self) -> Result<Config, ConfigProblems> {
        check::check(&self.layers, &self.sources, self.problems.clone())
    }

    /// The effective configuration as TOML, each value with its source, secrets redacted. Call it only after a check
    /// without problems: a secret under a misspelt key is not known as one.
    pub fn print(&self) -> String {
        print::print(&self.layers, &self.sources)
    }
}
