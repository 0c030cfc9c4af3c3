//! Configuration: from files, environment and `--set` to one checked [`Config`], or all that is wrong.
//!
//! `config/postdate.toml` is the reference and the lowest layer: every default comes from there and from
//! nowhere else. [`load`] reads the layers; [`Loaded::check`] judges them without touching the network and
//! yields what the rooms take; [`Loaded::print`] shows them with their sources, secrets redacted.

mod check;
mod clients;
mod connections;
mod elsewhere;
mod graph;
mod layers;
mod print;
mod problem;
mod routes;
mod section;
mod sources;
mod storage;
mod units;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use problem::{Problem, Problems};
pub use sources::{SEARCHED, Sources, read_secret, variable};

use crate::domain::Route;
use crate::{admin, broker, cluster, store, telemetry, timer};

/// The whole configuration, checked: made of what each room takes.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a drain may take.
    pub shutdown_timeout: Duration,
    /// Where messages wait.
    pub redis: store::Config,
    /// Kafka connections by name.
    pub kafka: BTreeMap<String, broker::kafka::Connection>,
    /// RabbitMQ connections by name.
    pub rabbitmq: BTreeMap<String, broker::rabbitmq::Connection>,
    /// This replica among the others.
    pub cluster: cluster::Config,
    /// How messages leave the store.
    pub timer: timer::Config,
    /// Probes, metrics, API.
    pub admin: admin::Config,
    /// How logs are written.
    pub log: telemetry::Config,
    /// The routes by name, at least one.
    pub routes: Vec<Arc<Route>>,
}

/// The layers of a configuration, read and merged, not judged yet.
pub struct Loaded {
    layers: layers::Layers,
    problems: Vec<Problem>,
    sources: Sources,
}

/// Reads all layers. Fails only if the file cannot be read as what its name says.
pub fn load(sources: Sources) -> Result<Loaded, Problems> {
    let (layers, problems) = layers::Layers::merge(&sources).map_err(|problem| Problems(vec![problem]))?;
    Ok(Loaded { layers, problems, sources })
}

impl Loaded {
    /// Judges everything at once. Reads the files that keys ending in `_file` name, nothing else.
    pub fn check(&self) -> Result<Config, Problems> {
        check::check(&self.layers, &self.sources, self.problems.clone())
    }

    /// The effective configuration as TOML, each value with its source, secrets redacted. Only for one that
    /// was found right: under a misspelt key a secret is not known as one.
    pub fn print(&self) -> String {
        print::print(&self.layers, &self.sources)
    }
}
