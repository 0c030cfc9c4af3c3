//! Merges the layers: defaults < file < environment < `--set`. Each source becomes a provider of figment, with values
//! in one shape. figment merges the providers and remembers the source of each value.

use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider};

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
    file: Dict,
    /// Positions of the keys in the file.
    pub(super) positions: KeyPositions,
}

impl MergedLayers {
    /// The file over the defaults. `Err` if it cannot be read at all.
    pub(super) fn read(sources: &ConfigSources) -> Result<Self, ConfigProblem> {
        let (file, positions) = match &sources.file {
            Some(file) => sources::read(file)?,
            None => (Dict::new(), KeyPositions::default()),
        };
        Self::over_defaults(sources.label(), file, positions)
    }

    /// The layers of these values over the defaults.
    pub(super) fn of_dict(dict: Dict) -> Result<Self, ConfigProblem> {
        Self::over_defaults("sample".to_owned(), dict, KeyPositions::default())
    }

    fn over_defaults(
        label: String,
        mut file: Dict,
        positions: KeyPositions,
    ) -> Result<Self, ConfigProblem> {
        let defaults = defaults()?;
        flatten_properties(&mut file);
        let figment = Figment::from(ConfigLayer {
            label: DEFAULT_ORIGIN.to_owned(),
            dict: defaults.clone(),
        })
        .merge(ConfigLayer {
            label,
            dict: file.clone(),
        });
        Ok(Self {
            dict: merged(&figment),
            figment,
            defaults,
            file,
            positions,
        })
    }

    /// What the file has, without the layers above and below it.
    pub(super) fn file(&self) -> &Dict {
        &self.file
    }

    /// Puts one value over the others. `label` names its source.
    pub(super) fn put(&mut self, label: String, path: &[String], value: Value) {
        let dict = nest(path, value);
        self.figment = std::mem::take(&mut self.figment).merge(ConfigLayer { label, dict });
        self.dict = merged(&self.figment);
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

fn nest(path: &[String], value: Value) -> Dict {
    let mut value = value;
    for key in path.iter().skip(1).rev() {
        value = Value::from(Dict::from([(key.clone(), value)]));
    }
    path.first()
        .map(|first| Dict::from([(first.clone(), value)]))
        .unwrap_or_default()
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
