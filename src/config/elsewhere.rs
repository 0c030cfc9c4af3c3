//! A key that stands in another section: for the sentence about one that is unknown where it was written.

use figment::value::{Dict, Value};

use super::section::quoted;

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
