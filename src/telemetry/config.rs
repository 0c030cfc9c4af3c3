//! Configuration of logs and traces, checked.

use std::time::Duration;

use crate::credential::Credential;
use crate::tls::ClientFiles;

/// Format and filter of logs, which go to stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The form of a line.
    pub format: LogFormat,
    /// A tracing filter (`POSTDATE_LOG`); `None` is `info` with the client libraries kept quiet.
    pub filter: Option<String>,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

/// Traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// The collector; `None`: traces are off.
    pub collector: Option<Collector>,
}

/// The collector of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// URL to which spans are posted.
    pub endpoint: String,
    /// Value of the header `authorization`, if the collector wants one.
    pub authorization: Option<Credential>,
    /// Authorities of the collector's certificate.
    pub tls: ClientFiles,
    /// Longest wait for the collector's answer.
    pub timeout: Duration,
}
