//! Prints the effective configuration as TOML: each value with its source, secrets redacted.

use std::fmt::Write;

use figment::value::{Dict, Value};

use super::layers::MergedLayers;
use super::secrets::is_secret_property;
use super::sources::ConfigSources;
use super::values::{integer, quoted};
use crate::domain::Secret;

const REDACTED_VALUE: &str = "***";

/// Renders all layers.
pub(super) fn print(layers: &MergedLayers, sources: &ConfigSources) -> String {
    let mut out = String::new();
    let mut dict = layers.dict.clone();
    let listen = dict
        .get("admin")
        .and_then(|admin| admin.as_dict()?.get("listen")?.as_str()?.parse().ok());
    let own_name = Value::from(sources.default_replica_name(listen));
    if let Some(Value::Dict(_, cluster)) = dict.get_mut("cluster")
        && cluster.get("name").and_then(Value::as_str) == Some("")
    {
        cluster.insert("name".to_owned(), own_name);
    }
    let defaults = dict
        .remove("defaults")
        .and_then(Value::into_dict)
        .unwrap_or_default();
    let routes = dict
        .remove("routes")
        .and_then(Value::into_dict)
        .unwrap_or_default();
    let mut printer = TomlPrinter {
        layers,
        out: &mut out,
    };
    printer.table(&[], &dict, None);
    for (name, route) in &routes {
        if let Value::Dict(_, route) = route {
            printer.table(
                &["routes", name],
                route,
                Some(&of_its_technology(&defaults, route)),
            );
        } else {
            printer.table(
                &["routes"],
                &Dict::from([(name.clone(), route.clone())]),
                None,
            );
        }
    }
    out
}

/// The defaults of a route: those that go with the technology of its source, and the `delay_from` of that technology.
fn of_its_technology(defaults: &Dict, route: &Dict) -> Dict {
    let mut defaults = defaults.clone();
    let from = route.get("from").and_then(Value::as_dict);
    let kafka = from.is_some_and(|from| from.contains_key("kafka"));
    if let Some(Value::Dict(_, from)) = defaults.get_mut("from") {
        // The others are Kafka's.
        from.retain(|key, _| (key == "prefetch") != kafka);
    }
    if !kafka {
        defaults.remove("on_undecodable");
    }
    let delay_from = if kafka { "produced" } else { "arrival" };
    defaults
        .entry("delay_from".to_owned())
        .or_insert_with(|| Value::from(delay_from));
    defaults
}

struct TomlPrinter<'a> {
    layers: &'a MergedLayers,
    out: &'a mut String,
}

impl TomlPrinter<'_> {
    /// Prints a table: its plain keys first, then the tables in it. `fallback` has the defaults of missing keys.
    fn table(&mut self, path: &[&str], dict: &Dict, fallback: Option<&Dict>) {
        let mut keys: Vec<&str> = dict
            .keys()
            .chain(fallback.into_iter().flat_map(Dict::keys))
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let found = |key: &str| match dict.get(key) {
            Some(value) => Some((value, "")),
            None => Some((fallback?.get(key)?, " [defaults]")),
        };
        let mut headed = path.is_empty();
        for key in &keys {
            let Some((value, note)) =
                found(key).filter(|(value, _)| !matches!(value, Value::Dict(..)))
            else {
                continue;
            };
            if !std::mem::replace(&mut headed, true) {
                let name: Vec<String> = path.iter().copied().map(quoted).collect();
                self.line(&format!("\n[{}]", name.join(".")));
            }
            let source = self.layers.origin(value);
            // A key that names a file replaces the default of the key beside it.
            if replaced(dict, key) && source == super::layers::DEFAULT_ORIGIN {
                continue;
            }
            let path: Vec<&str> = path.iter().copied().chain([*key]).collect();
            self.line(&format!(
                "{} = {}  # {source}{note}",
                quoted(key),
                shown(&path, value)
            ));
        }
        for key in keys {
            if let Some((Value::Dict(_, inner), _)) = found(key) {
                let fallback = fallback.and_then(|fallback| fallback.get(key)?.as_dict());
                let path: Vec<&str> = path.iter().copied().chain([key]).collect();
                if dict.contains_key(key) {
                    self.table(&path, inner, fallback);
                } else {
                    self.table(&path, &Dict::new(), Some(inner));
                }
            }
        }
    }

    fn line(&mut self, line: &str) {
        // Writing to a String cannot fail.
        writeln!(self.out, "{line}").unwrap_or_default();
    }
}

fn replaced(dict: &Dict, key: &str) -> bool {
    dict.contains_key(&format!("{key}_file"))
}

/// A value as TOML writes it, without its secrets.
fn shown(path: &[&str], value: &Value) -> String {
    // Tokens and properties of librdkafka. The items of a list are hidden one by one.
    let is_secret = path
        .last()
        .is_some_and(|name| is_secret_property(name) && !name.ends_with("_file"));
    let has_text = !matches!(value, Value::Array(..)) && value.as_str() != Some("");
    if is_secret && has_text {
        return toml::Value::from(REDACTED_VALUE).to_string();
    }
    match value {
        Value::String(_, text) => toml::Value::from(Secret::new(text).redacted_url()).to_string(),
        Value::Array(_, items) => {
            let items: Vec<String> = items.iter().map(|item| shown(path, item)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Num(_, number) => match integer(*number) {
            Some(whole) => whole.to_string(),
            None => number.to_f64().unwrap_or_default().to_string(),
        },
        Value::Bool(_, truth) => truth.to_string(),
        Value::Char(_, char) => toml::Value::from(char.to_string()).to_string(),
        Value::Empty(..) | Value::Dict(..) => "{}".to_owned(),
    }
}
