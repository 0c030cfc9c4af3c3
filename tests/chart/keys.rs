//! Every key of the configuration, asked of the chart: `config` takes it, or the chart says which value stands for it.
//! The keys are those of the configuration's own schema. What the chart does with each is decided here, so a new key fails
//! until somebody has decided.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::pods::{list, string};
use super::tools::{chart, documents, find, template, text};
use crate::support::folders;

/// Keys that `config` hands on as they are: none of them holds a secret, and none must differ from pod to pod. A route may
/// set every key of `defaults`.
const PASSED_ON: &[&str] = &[
    "cluster.heartbeat",
    "cluster.max_clock_skew",
    "defaults.allow_targets",
    "defaults.burst",
    "defaults.commands",
    "defaults.consumer_retry.attempts",
    "defaults.consumer_retry.factor",
    "defaults.consumer_retry.initial",
    "defaults.consumer_retry.max",
    "defaults.copies",
    "defaults.dead_letter_to",
    "defaults.dead_letters.keep",
    "defaults.dead_letters.max",
    "defaults.dead_letters.max_bytes",
    "defaults.dead_letters.max_message",
    "defaults.dedupe",
    "defaults.delay_from",
    "defaults.from.group",
    "defaults.from.prefetch",
    "defaults.from.start",
    "defaults.dialects",
    "defaults.headers.delay",
    "defaults.headers.deliver_at",
    "defaults.headers.expires",
    "defaults.headers.id",
    "defaults.headers.op",
    "defaults.headers.target",
    "defaults.history",
    "defaults.history_max",
    "defaults.jitter",
    "defaults.max_delay",
    "defaults.max_headers",
    "defaults.max_lateness",
    "defaults.max_pending",
    "defaults.max_pending_bytes",
    "defaults.max_size",
    "defaults.on_duplicate",
    "defaults.on_invalid",
    "defaults.on_refused",
    "defaults.on_undecodable",
    "defaults.on_expired",
    "defaults.on_unroutable",
    "defaults.order",
    "defaults.rate",
    "defaults.retry.attempts",
    "defaults.retry.initial",
    "defaults.retry.max",
    "kafka.main.brokers",
    "kafka.main.oauth.aws_region",
    "kafka.main.oauth.ca_file",
    "kafka.main.oauth.client_id",
    "kafka.main.oauth.client_secret_file",
    "kafka.main.oauth.scope",
    "kafka.main.oauth.token_url",
    // The refusals have the properties that are secrets.
    "kafka.main.properties",
    "kafka.main.properties_file",
    "kafka.main.unsafe_tls",
    "log.format",
    "rabbitmq.main.management",
    "rabbitmq.main.tls.ca",
    "rabbitmq.main.tls.certificate",
    "rabbitmq.main.tls.key",
    // The refusals have URLs with a password.
    "rabbitmq.main.url",
    "rabbitmq.main.url_file",
    "rabbitmq.main.urls",
    "redis.durability",
    "redis.growing_bundles",
    "redis.master",
    "redis.nodes",
    "redis.partitions",
    "redis.password_file",
    "redis.prefix",
    "redis.sentinel_password_file",
    "redis.sentinel_username",
    "redis.tls",
    "redis.tls.ca",
    "redis.tls.certificate",
    "redis.tls.key",
    "redis.topology",
    "redis.unsafe",
    "redis.url",
    "redis.url_file",
    "redis.username",
    "redis.wait_replicas",
    "redis.wait_timeout",
    "routes.main.from.kafka",
    "routes.main.from.queue",
    "routes.main.from.rabbitmq",
    "routes.main.from.topic",
    "routes.main.from.topic_pattern",
    "routes.main.from.topics",
    "routes.main.to.exchange",
    "routes.main.to.kafka",
    "routes.main.to.rabbitmq",
    "routes.main.to.routing_key",
    "routes.main.to.topic",
    "timer.claim",
    "timer.lookahead",
    "traces.authorization_file",
    "traces.endpoint",
    "traces.timeout",
    "traces.tls.ca",
];

/// A key that `config` must not hold.
struct OwnedKey {
    path: &'static str,
    /// The value that the refusal names.
    instead: &'static str,
    given: Given,
}

/// How the binary is given what the key says.
enum Given {
    /// These settings put this key and value into the configuration file.
    ByFile(&'static [&'static str], &'static str, &'static str),
    /// By an environment variable that the pod, or a Secret, fills.
    ByEnvironment,
}
use Given::{ByEnvironment, ByFile};

const fn owned(path: &'static str, instead: &'static str, given: Given) -> OwnedKey {
    OwnedKey {
        path,
        instead,
        given,
    }
}

const OWNED: &[OwnedKey] = &[
    owned(
        "admin.listen",
        "listenAddress",
        ByFile(&["listenAddress=0.0.0.0"], "admin.listen", "0.0.0.0:8025"),
    ),
    owned(
        "admin.probe_listen",
        "probePort",
        ByFile(&["probePort=8026"], "admin.probe_listen", "[::]:8026"),
    ),
    owned(
        "admin.tls.certificate",
        "secrets.adminTls.name",
        ByFile(
            &["secrets.adminTls.name=x"],
            "admin.tls.certificate",
            "/run/secrets/postdate/admin/tls.crt",
        ),
    ),
    owned(
        "admin.tls.key",
        "secrets.adminTls.name",
        ByFile(
            &["secrets.adminTls.name=x"],
            "admin.tls.key",
            "/run/secrets/postdate/admin/tls.key",
        ),
    ),
    owned("admin.read_tokens", "secrets.readTokens.name", READ_TOKENS),
    owned(
        "admin.read_tokens_file",
        "secrets.readTokens.name",
        READ_TOKENS,
    ),
    owned(
        "admin.write_tokens",
        "secrets.writeTokens.name",
        WRITE_TOKENS,
    ),
    owned(
        "admin.write_tokens_file",
        "secrets.writeTokens.name",
        WRITE_TOKENS,
    ),
    owned("cluster.name", "extraEnv", ByEnvironment),
    owned(
        "redis.password",
        "secrets.redisPassword.name",
        ByFile(
            &["secrets.redisPassword.name=x"],
            "redis.password_file",
            "/run/secrets/postdate/redis/password",
        ),
    ),
    owned(
        "redis.sentinel_password",
        "secrets.sentinelPassword.name",
        ByFile(
            &["secrets.sentinelPassword.name=x"],
            "redis.sentinel_password_file",
            "/run/secrets/postdate/redis/sentinel_password",
        ),
    ),
    owned(
        "shutdown_timeout",
        "shutdownTimeoutSeconds",
        ByFile(&["shutdownTimeoutSeconds=45"], "shutdown_timeout", "45s"),
    ),
    owned("traces.authorization", "extraEnv", ByEnvironment),
];
const READ_TOKENS: Given = ByFile(
    &["secrets.readTokens.name=x"],
    "admin.read_tokens_file",
    "/run/secrets/postdate/admin/read-tokens",
);
const WRITE_TOKENS: Given = ByFile(
    &["secrets.writeTokens.name=x"],
    "admin.write_tokens_file",
    "/run/secrets/postdate/admin/write-tokens",
);

/// Values that a key is added to: one server, sentinels, and sentinels whose passwords come from no Secret of the chart.
const BASES: [(&str, &[&str]); 3] = [
    ("kafka-values.yaml", &[]),
    ("sentinel-values.yaml", &[]),
    (
        "sentinel-values.yaml",
        &[
            "secrets.redisPassword.name=",
            "secrets.sentinelPassword.name=",
        ],
    ),
];
/// The base that takes the settings of every [`OwnedKey`].
const SENTINELS: &str = "sentinel-values.yaml";
/// Name of the object that the release is.
const NAME: &str = "rel-postdate";

/// Every key of the schema that holds a value, with its form: not the tables, but the table `tls`, which may be `true`.
fn keys() -> BTreeMap<String, Value> {
    let schema: Value = serde_json::from_str(&postdate::config::schema()).expect("JSON");
    let mut keys = BTreeMap::new();
    add_keys(&schema, "", &mut keys);
    keys
}

fn add_keys(form: &Value, table: &str, keys: &mut BTreeMap<String, Value>) {
    for form in list(&form["anyOf"]).chain([form]) {
        for (key, inner) in form["properties"].as_object().into_iter().flatten() {
            let path = if table.is_empty() {
                key.clone()
            } else {
                format!("{table}.{key}")
            };
            let named = &inner["additionalProperties"];
            if named["properties"].is_object() {
                add_keys(named, &format!("{path}.main"), keys);
            } else if inner["properties"].is_object() {
                add_keys(inner, &path, keys);
            } else {
                add_keys(inner, &path, keys);
                keys.insert(path, inner.clone());
            }
        }
    }
}

/// The key that decides for this one: a route's keys that stand in `defaults` too follow those.
fn deciding(path: &str, keys: &BTreeMap<String, Value>) -> String {
    let default = path.strip_prefix("routes.main.");
    let default = default.map(|key| format!("defaults.{key}"));
    default
        .filter(|default| keys.contains_key(default))
        .unwrap_or_else(|| path.to_owned())
}

/// A value of this form.
fn sample(form: &Value) -> Value {
    if let Some(first) = list(&form["anyOf"]).chain(list(&form["enum"])).next() {
        return if form["anyOf"].is_array() {
            sample(first)
        } else {
            first.clone()
        };
    }
    match string(&form["type"]) {
        "string" => json!("sample:1"),
        "boolean" => json!(true),
        "integer" => match form["maximum"].as_u64() {
            Some(maximum) => json!(maximum),
            None => json!(12_345_678),
        },
        "array" => json!(["sample:1"]),
        "object" => json!({ "client.rack": "sample:1" }),
        other => panic!("no sample of the type {other}: {form}"),
    }
}

/// A values file with this key in `config`.
fn file_with(path: &str, value: &Value) -> PathBuf {
    let keys = path.rsplit('.');
    let config = keys.fold(value.clone(), |inner, key| json!({ key: inner }));
    let file = folders::new("key").join("values.yaml");
    std::fs::write(&file, json!({ "config": config }).to_string()).expect("written");
    file
}

/// The value at this path of the configuration that was rendered.
fn configured(all: &[Value], path: &str) -> Value {
    let map = find(all, "ConfigMap", NAME);
    let config: Value =
        serde_saphyr::from_str(string(&map["data"]["postdate.yaml"])).expect("YAML");
    at(&config, path).clone()
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| &value[key])
}

fn base(name: &str) -> PathBuf {
    chart().join("ci").join(name)
}

#[test]
fn somebody_has_decided_on_every_key() {
    let keys = keys();
    assert!(keys.len() > 100, "{keys:?}");
    let mut decided: Vec<&str> = OWNED.iter().map(|key| key.path).collect();
    decided.extend(PASSED_ON);
    let deciding: Vec<_> = keys.keys().map(|path| deciding(path, &keys)).collect();
    for path in &deciding {
        let count = decided.iter().filter(|key| *key == path).count();
        assert_eq!(
            count, 1,
            "the configuration has the key {path}: it belongs into one of PASSED_ON and OWNED, and into \
             templates/_validate.tpl if a pod must not be given it"
        );
    }
    for key in decided {
        assert!(
            deciding.iter().any(|path| path == key),
            "{key} is no key any more"
        );
    }
}

#[test]
fn a_key_that_is_passed_on_arrives() {
    let keys = keys();
    let passed = keys
        .iter()
        .filter(|(path, _)| PASSED_ON.contains(&deciding(path, &keys).as_str()));
    for (path, form) in passed {
        let value = sample(form);
        let added = file_with(path, &value);
        let outputs = BASES
            .iter()
            .map(|(name, set)| template(&[&base(name), &added], set));
        let outputs: Vec<_> = outputs.collect();
        let arrived = outputs
            .iter()
            .filter(|output| output.status.success())
            .any(|output| configured(&documents(output), path) == value);
        let errors = outputs.iter().map(|output| text(&output.stderr));
        assert!(
            arrived,
            "config.{path} does not arrive: {}",
            errors.collect::<String>()
        );
    }
}

#[test]
fn a_key_that_the_chart_owns_is_refused_by_the_value_that_stands_for_it() {
    let keys = keys();
    let values = std::fs::read_to_string(chart().join("values.yaml")).expect("values.yaml");
    let values: Value = serde_saphyr::from_str(&values).expect("YAML");
    for OwnedKey { path, instead, .. } in OWNED {
        assert!(!at(&values, instead).is_null(), "{instead} is no value");
        let added = file_with(path, &sample(&keys[*path]));
        let table = path.rsplit_once('.').map_or(*path, |(table, _)| table);
        for (name, set) in BASES {
            let output = template(&[&base(name), &added], set);
            let error = text(&output.stderr);
            assert!(!output.status.success(), "config.{path} was taken");
            let named = |line: &str| {
                let named = line
                    .strip_prefix("- config.")
                    .and_then(|rest| rest.split(' ').next());
                named.is_some_and(|key| key == *path || key == table) && line.contains(instead)
            };
            assert!(
                error.lines().any(named),
                "config.{path} is not refused by {instead}: {error}"
            );
        }
    }
}

#[test]
fn the_value_that_stands_for_a_key_reaches_the_binary() {
    for OwnedKey { path, given, .. } in OWNED {
        match given {
            ByFile(set, key, expected) => {
                let all = documents(&template(&[&base(SENTINELS)], set));
                assert_eq!(configured(&all, key), *expected, "{path} by {set:?}");
            }
            ByEnvironment => {
                let variable = format!("POSTDATE_{}", path.to_uppercase().replace('.', "__"));
                let file = folders::new("key").join("values.yaml");
                let from = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
                let given = json!({ "name": variable, "valueFrom": from });
                std::fs::write(&file, json!({ "extraEnv": [given] }).to_string()).expect("written");
                let all = documents(&template(&[&base(SENTINELS), Path::new(&file)], &[]));
                let deployment = find(&all, "Deployment", NAME);
                let container = &deployment["spec"]["template"]["spec"]["containers"][0];
                assert!(
                    list(&container["env"]).any(|entry| *entry == given),
                    "{path} by {variable}: {container}"
                );
            }
        }
    }
}
