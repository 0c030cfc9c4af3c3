//! Gathers the sources of a configuration from the process, and reads the file.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};
use toml::de::{DeInteger, DeTable, DeValue};

use super::positions::{FilePosition, KeyPositions};
use super::problem::ConfigProblem;

/// Paths of the configuration file, tried in order when none is named.
pub const SEARCHED_FILES: [&str; 2] = ["./postdate.toml", "/etc/postdate/postdate.toml"];

/// Beginning of the names of this program's environment variables.
pub(super) const VARIABLE_PREFIX: &str = "POSTDATE_";
/// The variable that names the configuration file.
pub(super) const FILE_VARIABLE: &str = "POSTDATE_CONFIG";
/// The variable that holds the filter of the log.
pub(super) const LOG_VARIABLE: &str = "POSTDATE_LOG";

/// The sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The file; `None` if there is none.
    pub file: Option<PathBuf>,
    /// Environment variables that begin with `POSTDATE_`.
    pub environment: Vec<(String, OsString)>,
    /// `KEY=VALUE` of each `--set`, in order; later ones win.
    pub set: Vec<String>,
    /// The name of this host, with which the default of `cluster.name` begins.
    pub host_name: String,
}

/// The value of an environment variable that is no key of the configuration; `None` if it is empty. Bytes that are not
/// UTF-8 become U+FFFD: no host, no token and no file has it in its name, so the value is refused and not passed over.
pub fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

impl ConfigSources {
    /// Reads the environment and looks for the file, unless one is named.
    pub fn gather(config: Option<PathBuf>, set: Vec<String>) -> Self {
        let environment: Vec<(String, OsString)> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        let named = environment
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
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
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment
            .iter()
            .find(|(n, v)| n == name && !v.is_empty())
            .map(|(_, value)| value.as_os_str())
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
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let position = Some(FilePosition::of_byte(text, at));
        SyntaxFault {
            position,
            message: error.message().replace('\n', "; "),
        }
    })?;
    Ok(toml_table(table.get_ref()))
}

fn toml_table(table: &DeTable<'_>) -> Value {
    let entries = table.iter().map(|(key, value)| {
        let key = key.get_ref().clone().into_owned();
        (key, toml_item(value.get_ref()))
    });
    Value::from(entries.collect::<Dict>())
}

fn toml_item(item: &DeValue<'_>) -> Value {
    match item {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(number) => toml_integer(number),
        // A number beyond the range of floats is infinite, and so is none that any key takes.
        DeValue::Float(number) => Value::from(number.as_str().parse().unwrap_or(f64::INFINITY)),
        DeValue::Boolean(truth) => Value::from(*truth),
        DeValue::Datetime(moment) => Value::from(moment.to_string()),
        DeValue::Array(items) => {
            let items: Vec<Value> = items.iter().map(|item| toml_item(item.get_ref())).collect();
            Value::from(items)
        }
        DeValue::Table(table) => toml_table(table),
    }
}

/// A whole number of any size, so that the check of its key tells its bounds.
fn toml_integer(number: &DeInteger<'_>) -> Value {
    let (text, radix) = (number.as_str(), number.radix());
    if let Ok(number) = i64::from_str_radix(text, radix) {
        return Value::from(number);
    }
    match i128::from_str_radix(text, radix) {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(text.parse().unwrap_or(f64::INFINITY)),
    }
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
            // The library's other messages advise programmers.
            let message = match error.without_snippet() {
                serde_saphyr::Error::MultipleDocuments { .. } => Cow::Borrowed(
                    "a second document begins here, and a configuration is one: take out the `---` before it",
                ),
                error => UserMessageFormatter.format_message(error),
            };
            SyntaxFault {
                position: error.location().as_ref().and_then(FilePosition::of_yaml),
                message: message.replace('\n', "; "),
            }
        })?;
    Ok(Value::serialize(value)?)
}
