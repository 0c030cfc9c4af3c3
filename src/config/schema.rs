//! JSON schema of the configuration file, for editors. The check itself tells which keys there are and what each takes: it
//! reads samples that lead it to every key. Meanings and defaults come from the reference file.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::key_kinds::{KeyKind, KeyKinds};
use super::layers::{MergedLayers, NAMED_TABLES, REFERENCE_FILE};
use super::problem::ConfigProblem;
use super::sources::ConfigSources;
use super::{check, connections};

/// Configurations that lead the check to every key, in any of its forms. None of them is right.
const SAMPLES: [&str; 5] = [
    r#"
    redis = { url_file = "x" }
    kafka.main = { brokers = "x", unsafe_tls = true, properties = {}, oauth = { token_url = "x", client_id = "x", client_secret_file = "x", scope = "x", ca_file = "x" } }
    rabbitmq.main = { url = "x", management = "http://x", tls = { ca = "x", certificate = "x", key = "x" } }
    admin = { probe_listen = "x", tls = { certificate = "x", key = "x" } }
    traces = { endpoint = "x", authorization = "x", tls = { ca = "x" } }
    defaults = { delay_from = "arrival", dead_letter_to = "x", consumer_retry = { attempts = 1, initial = "1s", factor = 1, max = "1s" } }
    [routes.main]
    from = { kafka = "main", topic = "x", group = "x", start = "x" }
    to = { kafka = "main", topic = "x" }
    delay_from = "arrival"
    dead_letter_to = "x"
    consumer_retry = { attempts = 1, initial = "1s", factor = 1, max = "1s" }
    "#,
    r#"
    redis = { password_file = "x", sentinel_password_file = "x", tls = { ca = "x", certificate = "x", key = "x" } }
    kafka.main = { brokers = "x", properties_file = "x", oauth = { aws_region = "x" } }
    rabbitmq.main = { url_file = "x" }
    admin = { read_tokens_file = "x", write_tokens_file = "x" }
    traces = { authorization_file = "x" }
    [routes.main]
    from = { rabbitmq = "main", queue = "x", prefetch = 1 }
    to = { rabbitmq = "main", exchange = "x", routing_key = "x" }
    "#,
    r#"
    rabbitmq.main = { urls = ["x"] }
    routes.main.from = { kafka = "main", topics = ["x"] }
    "#,
    r#"
    routes.main.from = { kafka = "main", topic_pattern = "x" }
    "#,
    "",
];

/// Meaning and default of a key, from the reference file.
#[derive(Default)]
struct KeyReference {
    meaning: String,
    default: Option<Value>,
}

/// The schema as JSON.
pub fn schema() -> String {
    let references = references();
    let mut root = Map::new();
    for (path, kinds) in &key_kinds() {
        insert(&mut root, path, kinds, &references);
    }
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of Postdate",
        "type": "object",
        "additionalProperties": false,
        "properties": root,
    });
    for table in NAMED_TABLES {
        let own = schema["properties"][table].take();
        schema["properties"][table] = json!({
            "description": references.get(table).map(|reference| &reference.meaning),
            "type": "object",
            "propertyNames": { "pattern": "^[a-z][a-z0-9_-]{0,63}$", "description": connections::NAME_RULE },
            "additionalProperties": own["properties"]["main"],
        });
    }
    format!("{schema:#}\n")
}

/// All keys and their kinds, over all samples. A route may set every key of `[defaults]`.
pub(super) fn key_kinds() -> KeyKinds {
    let mut all = KeyKinds::new();
    for sample in SAMPLES {
        let kinds = MergedLayers::of_text(sample)
            .map(|layers| check::kinds(&layers, &ConfigSources::default()));
        for (path, kinds) in kinds.unwrap_or_default() {
            let of_routes = path
                .strip_prefix(&["defaults".to_owned()])
                .filter(|path| !path.is_empty());
            let of_routes =
                of_routes.map(|path| [&["routes".to_owned(), "main".to_owned()], path].concat());
            for path in of_routes.into_iter().chain([path]) {
                let known = all.entry(path).or_default();
                for kind in &kinds {
                    if !known.contains(kind) {
                        known.push(kind.clone());
                    }
                }
            }
        }
    }
    all
}

/// Adds a key where its path leads.
fn insert(
    root: &mut Map<String, Value>,
    path: &[String],
    kinds: &[KeyKind],
    all: &BTreeMap<String, KeyReference>,
) {
    let Some((key, tables)) = path.split_last() else {
        return;
    };
    let mut at = root;
    for table in tables {
        let section = at.entry(table.clone()).or_insert_with(section);
        let Some(properties) = open_section(section)["properties"].as_object_mut() else {
            return;
        };
        at = properties;
    }
    let reference = all.get(&path.join("."));
    let forms: Vec<Value> = kinds.iter().map(KeyKind::form).collect();
    let mut form = match &forms[..] {
        [form] => form.clone(),
        _ => json!({ "anyOf": forms }),
    };
    if let Some(KeyReference { meaning, default }) = reference {
        form["description"] = meaning.as_str().into();
        if let Some(default) = default {
            form["default"] = default.clone();
        }
    }
    at.entry(key.clone()).or_insert(form);
}

/// The form of a section among those that a key takes: `tls` takes true and false as well.
fn open_section(form: &mut Value) -> &mut Value {
    let place = form["anyOf"]
        .as_array()
        .and_then(|forms| forms.iter().position(|form| form["type"] == "object"));
    match place {
        Some(place) => &mut form["anyOf"][place],
        None => form,
    }
}

fn section() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

impl KeyKind {
    /// The schema of such values.
    fn form(&self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Duration => {
                json!({ "type": "string", "examples": ["250ms", "20s", "2h30m", "30d"] })
            }
            Self::Size => json!({ "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$" }),
            Self::Integer(range) => {
                json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
            }
            Self::Truth => json!({ "type": "boolean" }),
            Self::Choice(words) => json!({ "enum": words }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::Properties => {
                json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
            }
            Self::Section => section(),
        }
    }
}

/// Meanings and defaults of all keys and tables of the reference file, by path. Those of `[defaults]` stand for the same keys
/// of a route, too.
fn references() -> BTreeMap<String, KeyReference> {
    let mut references = BTreeMap::new();
    let mut table = String::new();
    let mut prose: Vec<&str> = Vec::new();
    for line in REFERENCE_FILE.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            prose.push(text);
            continue;
        }
        let (entry, has_default) = line
            .strip_prefix('#')
            .map_or((line, true), |entry| (entry, false));
        let meaning = prose.join(" ");
        prose.clear();
        if let Some(name) = entry
            .strip_prefix('[')
            .and_then(|entry| entry.strip_suffix(']'))
        {
            let (kind, is_named) = name.split_once('.').map_or((name, false), |(kind, _)| {
                (kind, NAMED_TABLES.contains(&kind))
            });
            table = if is_named {
                format!("{kind}.main")
            } else {
                name.to_owned()
            };
            let place = if is_named {
                kind.to_owned()
            } else {
                table.clone()
            };
            references.insert(
                place,
                KeyReference {
                    meaning,
                    default: None,
                },
            );
        } else if let Some((key, value)) = entry.split_once(" = ") {
            let path = if table.is_empty() {
                key.to_owned()
            } else {
                format!("{table}.{key}")
            };
            let default = has_default.then(|| default_of(value)).flatten();
            if let Some(key) = path.strip_prefix("defaults.") {
                references.insert(
                    format!("routes.main.{key}"),
                    KeyReference {
                        meaning: meaning.clone(),
                        default: None,
                    },
                );
            }
            references.insert(path, KeyReference { meaning, default });
        }
    }
    references
}

/// A value of TOML as JSON.
fn default_of(value: &str) -> Option<Value> {
    let table: toml::Table = format!("value = {value}").parse().ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

impl MergedLayers {
    /// The layers of a text in TOML over the defaults.
    fn of_text(text: &str) -> Result<Self, ConfigProblem> {
        let value = super::sources::toml_value(text)
            .map_err(|fault| ConfigProblem::of_source("sample".to_owned(), fault.message))?;
        Self::of_dict(value.into_dict().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths of all keys of a schema, those that no file sets (sections) apart.
    fn paths(form: &Value, path: &str, found: &mut Vec<String>) {
        for form in form["anyOf"].as_array().into_iter().flatten().chain([form]) {
            for (key, inner) in form["properties"].as_object().into_iter().flatten() {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let named = &inner["additionalProperties"];
                if named["properties"].is_object() {
                    paths(named, &format!("{path}.main"), found);
                } else if inner["type"] == "object" && inner["properties"].is_object() {
                    paths(inner, &path, found);
                } else {
                    found.push(path.clone());
                    paths(inner, &path, found);
                }
            }
        }
    }

    #[test]
    fn the_schema_has_the_keys_of_the_reference_and_no_others() {
        let schema: Value = serde_json::from_str(&schema()).expect("JSON");
        let mut found = Vec::new();
        paths(&schema, "", &mut found);
        for (path, reference) in references() {
            let is_section = found.iter().any(|key| key.starts_with(&format!("{path}.")));
            assert!(
                is_section || found.contains(&path),
                "`{path}` is not in the schema"
            );
            assert!(
                !reference.meaning.is_empty() || is_section || path.ends_with("password"),
                "`{path}` has no meaning"
            );
        }
        let references = references();
        for path in found {
            let inner = ["from.", "to.", "tls.", "oauth.", "consumer_retry."]
                .iter()
                .any(|table| path.contains(table));
            assert!(
                inner || references.contains_key(&path),
                "`{path}` is not in the reference"
            );
        }
    }

    #[test]
    fn kinds_ranges_words_and_defaults_are_told() {
        let schema: Value = serde_json::from_str(&schema()).expect("JSON");
        let redis = &schema["properties"]["redis"]["properties"];
        assert_eq!(redis["partitions"]["minimum"], 1);
        assert_eq!(redis["partitions"]["maximum"], 4096);
        assert_eq!(redis["partitions"]["default"], 64);
        assert_eq!(
            redis["durability"]["enum"],
            json!(["async", "replicated", "fsynced"])
        );
        let tls = redis["tls"]["anyOf"].as_array().expect("two forms");
        assert!(tls.iter().any(|form| form["type"] == "boolean"), "{tls:?}");
        assert!(
            tls.iter()
                .any(|form| form["properties"]["ca"]["type"] == "string"),
            "{tls:?}"
        );
        let route = &schema["properties"]["routes"]["additionalProperties"]["properties"];
        assert_eq!(route["from"]["properties"]["prefetch"]["maximum"], 65_535);
        assert_eq!(route["from"]["properties"]["queue"]["type"], "string");
        assert_eq!(route["retry"]["properties"]["attempts"]["minimum"], 1);
        assert!(
            route["max_delay"]["description"]
                .as_str()
                .is_some_and(|text| text.len() > 20)
        );
    }
}
