//! The chart, as far as it can be judged without helm: the rest is `scripts/test-chart`'s.

use std::fmt::Write;

use serde_json::Value;

use super::{read, repository};

const CHART: &str = "deploy/helm/postdate";

fn yaml(path: &str) -> Value {
    let text = read(repository(CHART).join(path));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_chart_installs_this_version() {
    let chart = yaml("Chart.yaml");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    // A registry has one chart under a version: each release brings a version of its own.
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
}

/// A row for each key under a comment that begins with `--`: its path, its default, the comment.
pub(super) fn values(values: &str) -> String {
    let mut rows = String::from(
        "# Values of the chart\n\n`helm show values deploy/helm/postdate` prints them with their comments.\n\n\
         | value | default | meaning |\n|---|---|---|\n",
    );
    let defaults = yaml("values.yaml");
    let mut path: Vec<String> = Vec::new();
    let mut meaning = None;
    for line in values.lines() {
        let text = line.trim_start();
        if let Some(comment) = text.strip_prefix("# -- ") {
            meaning = Some(comment.to_owned());
            continue;
        }
        let depth = (line.len() - text.len()) / 2;
        let Some((key, _)) = text
            .split_once(':')
            .filter(|_| !text.starts_with(['#', '-']))
        else {
            continue;
        };
        path.truncate(depth);
        path.push(key.to_owned());
        if let Some(meaning) = meaning.take() {
            let value = path.iter().fold(&defaults, |value, key| &value[key]);
            let value = if value.as_array().is_some_and(|items| !items.is_empty()) {
                "see `values.yaml`".to_owned()
            } else if value.as_object().is_some_and(|keys| !keys.is_empty()) {
                format!("`{value}`").replace('"', "")
            } else {
                format!("`{value}`")
            };
            writeln!(
                rows,
                "| `{}` | {value} | {} |",
                path.join("."),
                meaning.replace('|', "\\|")
            )
            .expect("a String");
        }
    }
    rows
}

/// Each default is in the schema, and each key of the schema has a default: neither is forgotten.
#[test]
fn values_and_schema_know_the_same_keys() {
    let schema: Value =
        serde_json::from_str(&read(repository(CHART).join("values.schema.json"))).expect("JSON");
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .expect("an object")
            .keys()
            .filter(|key| *key != "global")
            .cloned()
            .collect()
    };
    let values = yaml("values.yaml");
    let properties = &schema["properties"];
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    assert_eq!(sorted(keys(&values)), sorted(keys(properties)));
    assert_eq!(schema["additionalProperties"], false);
    for key in [
        "image",
        "secrets",
        "check",
        "autoscaling",
        "keda",
        "evaluationRedis",
        "service",
        "podDisruptionBudget",
        "networkPolicy",
        "serviceMonitor",
        "podMonitor",
        "prometheusRule",
        "dashboards",
        "livenessProbe",
        "readinessProbe",
    ] {
        assert_eq!(properties[key]["additionalProperties"], false, "{key}");
        assert_eq!(
            sorted(keys(&values[key])),
            sorted(keys(&properties[key]["properties"])),
            "{key}"
        );
    }
    for key in ["ingress", "egress"] {
        let schema = &properties["networkPolicy"]["properties"][key];
        assert_eq!(schema["additionalProperties"], false, "{key}");
        assert_eq!(
            sorted(keys(&values["networkPolicy"][key])),
            sorted(keys(&schema["properties"])),
            "{key}"
        );
    }
}
