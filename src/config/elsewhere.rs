//! Finds the section that a misplaced key belongs to, for the message about an unknown key.

use figment::value::{Dict, Value};

use super::values::quoted;

/// The full name of the key of this name in the reference; `None` if there is none, or more than one.
pub(super) fn elsewhere(defaults: &Dict, key: &str) -> Option<String> {
    fn find(dict: &Dict, path: &str, key: &str, found: &mut Vec<String>) {
        for (name, value) in dict {
            let path = if path.is_empty() {
                quoted(name)
            } else {
                format!("{path}.{}", quoted(name))
            };
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
