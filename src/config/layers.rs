//! Merges the layers: defaults < file < environment < `--set`. Each source becomes a provider of figment, with values
//! in one shape. figment merges the providers and remembers the source of each value.

use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider};

use super::overrides::Override;
use super::positions::KeyPositions;
use super::problem::ConfigProblem;
use super::sources::{self, ConfigSources};

/// The reference configuration with every default: the lowest layer.
pub const REFERENCE_FILE: &str = include_str!("../../config/postdate.toml");

/// Label of the lowest layer.
pub(super) const DEFAULT_ORIGIN: &str = "default";

/// Tables with names in them that the operator chose.
pub(super) const NAMED_TABLES: [&str; 3] = ["kafka", "rabbitmq", "routes"];

struct ConfigLayer {
    label: String,
    dict: Dict,
}

impl Provider for ConfigLayer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.label.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

/// All layers, merged into one tree of values.
pub(super) struct MergedLayers {
    figment: Figment,
    /// The merged values.
    pub(super) dict: Dict,
    /// The lowest layer alone.
    pub(super) defaults: Dict,
    /// Positions of the keys in the file.
    pub(super) positions: KeyPositions,
}

impl MergedLayers {
    /// Merges all sources. Returns the problems of single variables and `--set`s beside the layers, which leave those
    /// out. `Err` if the file cannot be read at all.
    pub(super) fn merge(
        sources: &ConfigSources,
    ) -> Result<(Self, Vec<ConfigProblem>), ConfigProblem> {
        let defaults = defaults()?;
        let mut problems = Vec::new();
        let (mut file, positions) = sources
            .file
            .as_deref()
            .map(sources::read)
            .transpose()?
            .unwrap_or_default();
        flatten_properties(&mut file);
        let mut figment = Figment::from(ConfigLayer {
            label: DEFAULT_ORIGIN.to_owned(),
            dict: defaults.clone(),
        })
        .merge(ConfigLayer {
            label: sources.label(),
            dict: file.clone(),
        });
        let variables = sources.environment.iter();
        let variables = variables.map(|(name, value)| Override::of_variable(name, value, &file));
        let options = sources
            .set
            .iter()
            .map(|set| Override::of_option(set, &file));
        for found in variables.chain(options) {
            match found {
                Ok(None) => {}
                Ok(Some(Override { label, path, text })) => {
                    let dict = nest(&path, shaped(&defaults, &path, text));
                    figment = figment.merge(ConfigLayer { label, dict });
                }
                Err(problem) => problems.push(problem),
            }
        }
        let dict = merged(&figment);
        Ok((
            Self {
                figment,
                dict,
                defaults,
                positions,
            },
            problems,
        ))
    }

    /// The layers of these values over the defaults.
    pub(super) fn of_dict(mut dict: Dict) -> Result<Self, ConfigProblem> {
        let defaults = defaults()?;
        flatten_properties(&mut dict);
        let figment = Figment::from(ConfigLayer {
            label: DEFAULT_ORIGIN.to_owned(),
            dict: defaults.clone(),
        })
        .merge(ConfigLayer {
            label: "sample".to_owned(),
            dict,
        });
        let dict = merged(&figment);
        Ok(Self {
            figment,
            dict,
            defaults,
            positions: KeyPositions::default(),
        })
    }

    /// The source of a value, in words.
    pub(super) fn origin(&self, value: &Value) -> String {
        self.figment
            .get_metadata(value.tag())
            .map_or_else(|| DEFAULT_ORIGIN.to_owned(), |m| m.name.to_string())
    }
}

/// The values of all layers together.
fn merged(figment: &Figment) -> Dict {
    figment
        .data()
        .ok()
        .and_then(|mut profiles| profiles.remove(&Profile::Default))
        .unwrap_or_default()
}

fn defaults() -> Result<Dict, ConfigProblem> {
    match sources::toml_value(REFERENCE_FILE) {
        Ok(Value::Dict(_, dict)) => Ok(dict),
        Ok(_) => Ok(Dict::new()),
        Err(fault) => Err(ConfigProblem {
            position: fault.position,
            ..ConfigProblem::of_source("config/postdate.toml", fault.message)
        }),
    }
}

/// Joins the parts of a path after `kafka.NAME.properties` into one name, as librdkafka has dots in its names.
pub(super) fn join_property(mut path: Vec<String>, spell: impl Fn(&str) -> String) -> Vec<String> {
    if path.len() > 3 && path[0] == "kafka" && path[2] == "properties" {
        let name = spell(&path.split_off(3).join("."));
        path.push(name);
    }
    path
}

fn nest(path: &[String], value: Value) -> Dict {
    let mut value = value;
    for key in path.iter().skip(1).rev() {
        value = Value::from(Dict::from([(key.clone(), value)]));
    }
    path.first()
        .map(|first| Dict::from([(first.clone(), value)]))
        .unwrap_or_default()
}

/// Parses a text into the type of the key's default. The value of a text key stays text, even if it looks like a
/// number.
fn shaped(defaults: &Dict, path: &[String], text: &str) -> Value {
    let parts: Vec<&str> = match path.first().map(String::as_str) {
        Some("routes") => std::iter::once("defaults")
            .chain(path.iter().skip(2).map(String::as_str))
            .collect(),
        _ => path.iter().map(String::as_str).collect(),
    };
    let shape = parts
        .iter()
        .try_fold(Value::from(defaults.clone()), |at, part| {
            at.as_dict()?.get(*part).cloned()
        });
    let parsed = match shape {
        Some(Value::Num(..)) => text.replace('_', "").parse::<u64>().ok().map(Value::from),
        Some(Value::Array(..)) => match sources::toml_value(&format!("v = {text}")) {
            Ok(Value::Dict(_, mut dict)) => dict
                .remove("v")
                .filter(|value| matches!(value, Value::Array(..))),
            _ => None,
        },
        _ => None,
    };
    parsed.unwrap_or_else(|| Value::from(text))
}

/// Undoes the nesting of `sasl.password = "..."` in `[kafka.main.properties]`: to TOML it is a table in a table, to
/// librdkafka one name.
fn flatten_properties(file: &mut Dict) {
    let Some(Value::Dict(_, kafka)) = file.get_mut("kafka") else {
        return;
    };
    for connection in kafka.values_mut() {
        let Value::Dict(_, connection) = connection else {
            continue;
        };
        let Some(Value::Dict(_, properties)) = connection.get_mut("properties") else {
            continue;
        };
        let mut flat = Dict::new();
        flatten("", std::mem::take(properties), &mut flat);
        *properties = flat;
    }
}

fn flatten(prefix: &str, dict: Dict, flat: &mut Dict) {
    for (key, value) in dict {
        let key = if prefix.is_empty() {
            key
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            Value::Dict(_, inner) => flatten(&key, inner, flat),
            value => {
                flat.insert(key, value);
            }
        }
    }
}
