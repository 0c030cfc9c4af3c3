//! What the contract has and this version does not: refused by name, so that nobody takes it for a slip.

use figment::value::{Dict, Value};

use super::section::quoted;

/// How such a refusal ends.
pub(super) const NOT_YET: &str = "not in this version of Postdate";

const REDIS: [&str; 7] =
    ["topology", "nodes", "master", "wait_replicas", "wait_timeout", "password", "password_file"];
const POLICY: [&str; 1] = ["order"];

/// Whether a key is one of a later version.
pub(super) fn key(path: &[&str]) -> bool {
    match path {
        ["redis", key] => REDIS.contains(key),
        ["cluster", "heartbeat"] => true,
        ["defaults", key] | ["routes", _, key] => POLICY.contains(key),
        _ => false,
    }
}

/// Whether a value of a known key is one of a later version.
pub(super) fn value(key: &str, text: &str) -> bool {
    key == "durability" && ["replicated", "fsynced"].contains(&text)
}

/// The one place where a key of this very name stands, if there is one.
pub(super) fn elsewhere(defaults: &Dict, key: &str) -> Option<String> {
    fn find(dict: &Dict, path: &str, key: &str, found: &mut Vec<String>) {
        for (name, value) in dict {
            let path = if path.is_empty() { quoted(name) } else { format!("{path}.{}", quoted(name)) };
            if name == key {
                found.push(path.clone());
            }
            if let Value::Dict(_, inner) = value {
                find(inner, &path, key, found);
            }
        }
    }
    let mut found = Vec::new();
    find(defaults, "", key, &mut found);
    (found.len() == 1).then(|| found.remove(0))
}
