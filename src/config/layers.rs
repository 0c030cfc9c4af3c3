//! The layers: defaults < file < environment < `--set`. figment merges them and remembers where each
//! value came from; here each source becomes a provider of its own, already in one shape.

use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider};

use super::problem::Problem;
use super::sources::{self, Sources};
use crate::domain::nearest;

/// The reference: the lowest layer.
const REFERENCE: &str = include_str!("../../config/postdate.toml");

/// Label of the lowest layer.
pub(super) const DEFAULT: &str = "default";

/// The tables whose keys are names that the operator chose.
pub(super) const NAMED: [&str; 3] = ["kafka", "rabbitmq", "routes"];

struct Layer {
    label: String,
    dict: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.label.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

/// All layers, merged.
pub(super) struct Layers {
    figment: Figment,
    /// The merged values.
    pub(super) dict: Dict,
    /// The lowest layer alone.
    pub(super) defaults: Dict,
}

impl Layers {
    /// Merges all sources. `Err`: the file cannot be read at all. The problems beside the layers are
    /// those of single variables and `--set`s, which are left out.
    pub(super) fn merge(sources: &Sources) -> Result<(Self, Vec<Problem>), Problem> {
        let defaults = defaults()?;
        let mut problems = Vec::new();
        let mut file = sources.file.as_deref().map(sources::read).transpose()?.unwrap_or_default();
        flatten_properties(&mut file);
        let mut figment = Figment::from(Layer { label: DEFAULT.to_owned(), dict: defaults.clone() })
            .merge(Layer { label: sources.label(), dict: file.clone() });
        for (name, text) in &sources.environment {
            match variable(name, &file) {
                Ok(None) => {}
                Ok(Some(path)) => {
                    let dict = nest(&path, shaped(&defaults, &path, text));
                    figment = figment.merge(Layer { label: format!("environment {name}"), dict });
                }
                Err(message) => {
                    let source = format!("environment {name}");
                    problems.push(Problem { source, key: String::new(), message });
                }
            }
        }
        for set in &sources.set {
            let (key, path) = match option(set) {
                Ok(found) => found,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let text = set.split_once('=').map_or("", |(_, text)| text);
            let dict = nest(&path, shaped(&defaults, &path, text));
            figment = figment.merge(Layer { label: format!("--set {key}"), dict });
        }
        let dict = figment
            .data()
            .ok()
            .and_then(|mut profiles| profiles.remove(&Profile::Default))
            .unwrap_or_default();
        Ok((Self { figment, dict, defaults }, problems))
    }

    /// Where a value came from.
    pub(super) fn origin(&self, value: &Value) -> String {
        self.figment.get_metadata(value.tag()).map_or_else(|| DEFAULT.to_owned(), |m| m.name.to_string())
    }
}

fn defaults() -> Result<Dict, Problem> {
    match sources::toml_value(REFERENCE) {
        Ok(Value::Dict(_, dict)) => Ok(dict),
        Ok(_) => Ok(Dict::new()),
        Err(message) => Err(Problem { source: "config/postdate.toml".into(), key: String::new(), message }),
    }
}

/// The path that an environment variable names; `None` if it is not configuration.
fn variable(name: &str, file: &Dict) -> Result<Option<Vec<String>>, String> {
    let Some(rest) = name.strip_prefix("POSTDATE_").filter(|_| name.contains("__")) else {
        return Ok(None);
    };
    let rest = rest.to_ascii_lowercase();
    // A key of the top level has no other place for its double underscore.
    if let Some(top) = rest.strip_prefix('_').filter(|top| !top.contains("__")) {
        return Ok(Some(vec![top.to_owned()]));
    }
    let mut path: Vec<String> = rest.split("__").map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err("not the name of a key: there is a part without a name".to_owned());
    }
    if NAMED.contains(&path[0].as_str()) && path.len() > 1 {
        path[1] = existing(&path[0], &path[1], file)?;
    }
    Ok(Some(join_property(path, |name| name.replace('_', "."))))
}

/// The file's own name for what the environment calls `name`, where `-` is written `_`.
fn existing(table: &str, name: &str, file: &Dict) -> Result<String, String> {
    let known: Vec<&str> = file
        .get(table)
        .and_then(Value::as_dict)
        .map(|names| names.keys().map(String::as_str).collect())
        .unwrap_or_default();
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    let alike: Vec<&&str> =
        known.iter().filter(|known| known.replace('-', "_") == name.replace('-', "_")).collect();
    match alike[..] {
        [one] => Ok((*one).to_owned()),
        [] => {
            let hint = nearest(name, known)
                .map(|near| format!("; did you mean `{table}.{near}`?"))
                .unwrap_or_default();
            Err(format!(
                "`{table}.{name}` is not in the file, and the environment cannot make new ones{hint}"
            ))
        }
        _ => Err(format!("`{table}.{name}` may be any of {alike:?}")),
    }
}

/// Key and path of a `--set`.
fn option(set: &str) -> Result<(&str, Vec<String>), Problem> {
    let wrong = |key: &str, message: &str| {
        let source = if key.is_empty() { "--set".to_owned() } else { format!("--set {key}") };
        Err(Problem { source, key: String::new(), message: message.to_owned() })
    };
    let Some((key, _)) = set.split_once('=') else {
        // Not quoted whole: it may be a secret that was meant to follow.
        return wrong("", "is written KEY=VALUE, such as `--set redis.partitions=16`");
    };
    let path: Vec<String> = key.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return wrong(key, "not the name of a key: there is a part without a name");
    }
    Ok((key, join_property(path, str::to_owned)))
}

/// Behind `kafka.NAME.properties` the rest is one name.
fn join_property(mut path: Vec<String>, spell: impl Fn(&str) -> String) -> Vec<String> {
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
    path.first().map(|first| Dict::from([(first.clone(), value)])).unwrap_or_default()
}

/// A text in the shape that the key's default has: a text key stays text, whatever it looks like.
fn shaped(defaults: &Dict, path: &[String], text: &str) -> Value {
    let parts: Vec<&str> = match path.first().map(String::as_str) {
        Some("routes") => {
            std::iter::once("defaults").chain(path.iter().skip(2).map(String::as_str)).collect()
        }
        _ => path.iter().map(String::as_str).collect(),
    };
    let shape =
        parts.iter().try_fold(Value::from(defaults.clone()), |at, part| at.as_dict()?.get(*part).cloned());
    let parsed = match shape {
        Some(Value::Num(..)) => text.replace('_', "").parse::<u64>().ok().map(Value::from),
        Some(Value::Array(..)) => match sources::toml_value(&format!("v = {text}")) {
            Ok(Value::Dict(_, mut dict)) => {
                dict.remove("v").filter(|value| matches!(value, Value::Array(..)))
            }
            _ => None,
        },
        _ => None,
    };
    parsed.unwrap_or_else(|| Value::from(text))
}

/// `[kafka.main.properties]` with `sasl.password = "..."` is a table in a table to TOML: one name here.
fn flatten_properties(file: &mut Dict) {
    let Some(Value::Dict(_, kafka)) = file.get_mut("kafka") else { return };
    for connection in kafka.values_mut() {
        let Value::Dict(_, connection) = connection else { continue };
        let Some(Value::Dict(_, properties)) = connection.get_mut("properties") else { continue };
        let mut flat = Dict::new();
        flatten("", std::mem::take(properties), &mut flat);
        *properties = flat;
    }
}

fn flatten(prefix: &str, dict: Dict, flat: &mut Dict) {
    for (key, value) in dict {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Dict(_, inner) => flatten(&key, inner, flat),
            value => {
                flat.insert(key, value);
            }
        }
    }
}
