//! The logging part of the configuration, checked.

/// How logs are written, to stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The form of a line.
    pub format: Format,
    /// A tracing filter (`POSTDATE_LOG`); `None` is `info` with the client libraries kept quiet.
    pub filter: Option<String>,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}
