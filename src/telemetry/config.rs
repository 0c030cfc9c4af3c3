//! Configuration of logging, checked.

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
