//! Positions of keys in the configuration file, for messages. The values come from elsewhere: this only looks.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use toml::de::{DeTable, DeValue};

use super::values::{join, join_property};

/// A position in a file. Both numbers begin at 1; a column is a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl FilePosition {
    /// The position of a byte of a text.
    pub(super) fn of_byte(text: &str, at: usize) -> Self {
        let before = text.get(..at.min(text.len())).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }

    /// The position that the YAML parser names; `None` if it does not know.
    pub(super) fn of_yaml(location: &Location) -> Option<Self> {
        let position = Self {
            line: location.line() as usize,
            column: location.column() as usize,
        };
        (position.line > 0).then_some(position)
    }
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Positions of the keys of one file, by their names with all sections before them.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyPositions(BTreeMap<String, FilePosition>);

impl KeyPositions {
    /// Positions in a text that is TOML. Of any other text there are none.
    pub(super) fn of_toml(text: &str) -> Self {
        let mut positions = Self::default();
        if let Ok(table) = DeTable::parse(text) {
            positions.add_toml(text, &mut Vec::new(), table.get_ref());
        }
        positions
    }

    fn add_toml(&mut self, text: &str, path: &mut Vec<String>, table: &DeTable<'_>) {
        for (key, value) in table {
            path.push(key.get_ref().clone().into_owned());
            self.add(path, FilePosition::of_byte(text, key.span().start));
            if let DeValue::Table(inner) = value.get_ref() {
                self.add_toml(text, path, inner);
            }
            path.pop();
        }
    }

    /// Positions in a text that is YAML. Of any other text there are none.
    pub(super) fn of_yaml(text: &str) -> Self {
        let mut positions = Self::default();
        let read: Result<YamlKeys, _> = serde_saphyr::from_str(text);
        if let Ok(keys) = read {
            positions.add_yaml(&mut Vec::new(), keys);
        }
        positions
    }

    fn add_yaml(&mut self, path: &mut Vec<String>, keys: YamlKeys) {
        for (key, value) in keys.0 {
            path.push(key.value);
            if let Some(position) = FilePosition::of_yaml(&key.referenced) {
                self.add(path, position);
            }
            self.add_yaml(path, value);
            path.pop();
        }
    }

    fn add(&mut self, path: &[String], position: FilePosition) {
        let path = join_property(path.to_vec(), str::to_owned);
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Some((key, sections)) = parts.split_last() {
            self.0.entry(join(sections, key)).or_insert(position);
        }
    }

    /// The position of a key, or of the nearest section around it that the file has.
    pub(super) fn find(&self, key: &str) -> Option<FilePosition> {
        let mut found: Option<(usize, FilePosition)> = None;
        for (name, position) in &self.0 {
            let is_around = key
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            if is_around && found.is_none_or(|(length, _)| length < name.len()) {
                found = Some((name.len(), *position));
            }
        }
        found.map(|(_, position)| position)
    }
}

/// The keys of a YAML value; a value that is no mapping has none.
#[derive(Default)]
struct YamlKeys(Vec<(Spanned<String>, YamlKeys)>);

impl<'de> Deserialize<'de> for YamlKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = YamlKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlKeys, A::Error> {
        let mut keys = Vec::new();
        while let Some(entry) = map.next_entry()? {
            keys.push(entry);
        }
        Ok(YamlKeys(keys))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlKeys, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(YamlKeys::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_i128<E>(self, _: i128) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_u128<E>(self, _: u128) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }

    fn visit_unit<E>(self) -> Result<YamlKeys, E> {
        Ok(YamlKeys::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(positions: &KeyPositions, key: &str) -> Option<(usize, usize)> {
        positions
            .find(key)
            .map(|position| (position.line, position.column))
    }

    #[test]
    fn a_key_of_toml_is_found_in_each_form() {
        let text = "a = 1\n[kafka.main]\nbrokers = \"x\"\nproperties = { sasl.password = \"p\" }\n\
            [routes.orders]\nto = { kafka = \"ä\", topic = \"t\" }\nretry.max = \"1s\"\n";
        let positions = KeyPositions::of_toml(text);
        for (key, expected) in [
            ("a", Some((1, 1))),
            ("kafka.main.brokers", Some((3, 1))),
            ("kafka.main.properties.\"sasl.password\"", Some((4, 21))),
            ("routes.orders.to.topic", Some((6, 21))),
            ("routes.orders.retry.max", Some((7, 7))),
            ("routes.orders.from", Some((5, 9))),
            ("routes.orders2", Some((5, 2))),
            ("timer.claim", None),
        ] {
            assert_eq!(found(&positions, key), expected, "{key}");
        }
    }

    #[test]
    fn a_key_of_yaml_is_found() {
        let text = "routes:\n  orders:\n    to: { topic: t, kafka: main }\n    max_pending: 5\nlist: [a, b]\nlog:\n";
        let positions = KeyPositions::of_yaml(text);
        for (key, expected) in [
            ("routes.orders.to.kafka", Some((3, 21))),
            ("routes.orders.max_pending", Some((4, 5))),
            ("routes.orders.from", Some((2, 3))),
            ("list", Some((5, 1))),
            ("log.format", Some((6, 1))),
            ("timer", None),
        ] {
            assert_eq!(found(&positions, key), expected, "{key}");
        }
    }
}
