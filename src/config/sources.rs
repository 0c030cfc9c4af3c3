//! Gathers the sources of a configuration from the process, and reads the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};

use super::problem::ConfigProblem;

/// Paths of the configuration file, tried in order when none is named.
pub const SEARCHED_FILES: [&str; 2] = ["./postdate.toml", "/etc/postdate/postdate.toml"];

/// The sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The file; `None` if there is none.
    pub file: Option<PathBuf>,
    /// Environment variables that begin with `POSTDATE_`.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` of each `--set`, in order; later ones win.
    pub set: Vec<String>,
    /// The name of this host, with which the default of `cluster.name` begins.
    pub host_name: String,
}

/// The value of an environment variable that is no key of the configuration; `None` if it is empty or not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)?.into_string().ok().filter(|value| !value.is_empty())
}

impl ConfigSources {
    /// Reads the environment and looks for the file, unless one is named.
    pub fn gather(config: Option<PathBuf>, set: Vec<String>) -> Self {
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("POSTDATE_"))
            // Bytes that are not UTF-8 become U+FFFD, which makes the value of any key wrong.
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
            .collect();
        let named = environment.iter().find(|(name, value)| name == "POSTDATE_CONFIG" && !value.is_empty());
        let file = config
            .or_else(|| named.map(|(_, value)| value.into()))
            .or_else(|| SEARCHED_FILES.iter().map(PathBuf::from).find(|path| path.exists()));
        let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { file, environment, set, host_name }
    }

    /// The value of an environment variable, unless empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, value)| value.as_str())
    }

    /// The name of a replica that was given none: its host and the port of its admin listener, so that two replicas on
    /// one host differ. The host alone where the listener is wrong in the configuration.
    pub(super) fn default_replica_name(&self, listen: Option<SocketAddr>) -> String {
        listen
            .map_or_else(|| self.host_name.clone(), |listen| format!("{}:{}", self.host_name, listen.port()))
    }

    /// The name of the file, for a reader.
    pub(super) fn label(&self) -> String {
        self.file.as_ref().map_or_else(|| "configuration".to_owned(), |file| file.display().to_string())
    }
}

/// Reads a file in the format of its extension. No message quotes its text, which may hold secrets.
pub(super) fn read(path: &Path) -> Result<Dict, ConfigProblem> {
    let wrong = |message| ConfigProblem { source: path.display().to_string(), key: String::new(), message };
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml_value,
        Some("yaml" | "yml") => yaml_value,
        _ => return Err(wrong("a configuration file ends in .toml, .yaml or .yml".to_owned())),
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    match parse(&text).map_err(wrong)? {
        Value::Dict(_, dict) => Ok(dict),
        Value::Empty(..) => Ok(Dict::new()),
        other => Err(wrong(format!("holds {} instead of keys and values", super::values::kind(&other)))),
    }
}

pub(super) fn toml_value(text: &str) -> Result<Value, String> {
    let table = text.parse::<toml::Table>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.lines().last().map_or(0, str::len) + 1;
        format!("line {line}, column {column}: {}", error.message().replace('\n', "; "))
    })?;
    Value::serialize(table).map_err(|error| error.to_string())
}

fn yaml_value(text: &str) -> Result<Value, String> {
    // `no` and `007` are texts here, unlike in YAML 1.1. Snippets are off: they would quote the file.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    let value: Option<serde_json::Value> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            // This advice of the library is for programmers.
            let text = error.to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "");
            text.replace('\n', "; ")
        })?;
    Value::serialize(value).map_err(|error| error.to_string())
}

/// The text of a file with a secret, without one line break at its end.
pub fn read_secret(path: &Path) -> Result<String, String> {
    let mut text =
        std::fs::read_to_string(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(text) }
}
