//! Gathers the sources of a configuration from the process, and reads the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};

use super::positions::{FilePosition, KeyPositions};
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
    std::env::var_os(name)?
        .into_string()
        .ok()
        .filter(|value| !value.is_empty())
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
        let named = environment
            .iter()
            .find(|(name, value)| name == "POSTDATE_CONFIG" && !value.is_empty());
        let file = config
            .or_else(|| named.map(|(_, value)| value.into()))
            .or_else(|| {
                SEARCHED_FILES
                    .iter()
                    .map(PathBuf::from)
                    .find(|path| path.exists())
            });
        let host_name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Self {
            file,
            environment,
            set,
            host_name,
        }
    }

    /// The value of an environment variable, unless empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .iter()
            .find(|(n, v)| n == name && !v.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// The name of a replica that was given none: its host and the port of its admin listener, so that two replicas on
    /// one host differ. The host alone where the listener is wrong in the configuration.
    pub(super) fn default_replica_name(&self, listen: Option<SocketAddr>) -> String {
        listen.map_or_else(
            || self.host_name.clone(),
            |listen| format!("{}:{}", self.host_name, listen.port()),
        )
    }

    /// The name of the file, for a reader.
    pub(super) fn label(&self) -> String {
        self.file.as_ref().map_or_else(
            || "configuration".to_owned(),
            |file| file.display().to_string(),
        )
    }
}

/// A text that is not in its format.
#[derive(Debug)]
pub(super) struct SyntaxFault {
    pub(super) position: Option<FilePosition>,
    pub(super) message: String,
}

impl From<figment::Error> for SyntaxFault {
    fn from(error: figment::Error) -> Self {
        Self {
            position: None,
            message: error.to_string(),
        }
    }
}

/// Reads a file in the format of its extension: its values, and the positions of its keys. No message quotes its text,
/// which may hold secrets.
pub(super) fn read(path: &Path) -> Result<(Dict, KeyPositions), ConfigProblem> {
    let wrong = |message: String| ConfigProblem::of_source(path.display().to_string(), message);
    let is_toml = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => true,
        Some("yaml" | "yml") => false,
        _ => {
            return Err(wrong(
                "a configuration file ends in .toml, .yaml or .yml".to_owned(),
            ));
        }
    };
    let text =
        std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let value = if is_toml {
        toml_value(&text)
    } else {
        yaml_value(&text)
    };
    let positions = if is_toml {
        KeyPositions::of_toml
    } else {
        KeyPositions::of_yaml
    };
    match value {
        Ok(Value::Dict(_, dict)) => Ok((dict, positions(&text))),
        Ok(Value::Empty(..)) => Ok((Dict::new(), KeyPositions::default())),
        Ok(other) => Err(wrong(format!(
            "holds {} instead of keys and values",
            super::values::kind(&other)
        ))),
        Err(fault) => Err(ConfigProblem {
            position: fault.position,
            ..wrong(fault.message)
        }),
    }
}

pub(super) fn toml_value(text: &str) -> Result<Value, SyntaxFault> {
    let table = text.parse::<toml::Table>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let position = Some(FilePosition::of_byte(text, at));
        SyntaxFault {
            position,
            message: error.message().replace('\n', "; "),
        }
    })?;
    Ok(Value::serialize(table)?)
}

fn yaml_value(text: &str) -> Result<Value, SyntaxFault> {
    // `no` and `007` are texts here, unlike in YAML 1.1. Snippets are off: they would quote the file.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    let value: Option<serde_json::Value> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| {
            // This advice of the library is for programmers.
            let text = error
                .to_string()
                .replace(", set DuplicateKeyPolicy in Options if acceptable", "");
            let position = error.location().as_ref().and_then(FilePosition::of_yaml);
            let told = position.map(|at| format!(" at line {}, column {}", at.line, at.column));
            let text = told.map_or_else(|| text.clone(), |told| text.replace(&told, ""));
            SyntaxFault {
                position,
                message: text.replace('\n', "; "),
            }
        })?;
    Ok(Value::serialize(value)?)
}
