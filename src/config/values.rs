//! Values of figment in words and in TOML, for messages and for printing.

use figment::value::{Num, Value};

/// The text of a value, or a message that it is none.
pub(super) fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("must be text in quotes, not {}", kind(value)))
}

/// The kind of a value, in words for a reader.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "text",
        Value::Bool(..) => "true or false",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a section",
        Value::Array(..) => "a list",
    }
}

/// A number without a fraction. YAML numbers are unsigned where they can be, TOML numbers are signed.
pub(super) fn integer(number: Num) -> Option<i128> {
    number
        .to_i128()
        .or_else(|| number.to_u128().and_then(|number| number.try_into().ok()))
}

/// A value with its kind, for a message.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("the text {text:?}"),
        Value::Num(_, number) => match (integer(*number), number.to_f64()) {
            (Some(whole), _) => format!("the number {whole}"),
            (None, Some(float)) => format!("the number {float}"),
            (None, None) => kind(value).to_owned(),
        },
        _ => kind(value).to_owned(),
    }
}

/// A key with the path of its section, as TOML writes it.
pub(super) fn join(path: &[&str], key: &str) -> String {
    path.iter()
        .copied()
        .chain([key])
        .map(quoted)
        .collect::<Vec<_>>()
        .join(".")
}

/// A key as TOML writes it.
pub(super) fn quoted(key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare {
        key.to_owned()
    } else {
        toml::Value::from(key).to_string()
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
