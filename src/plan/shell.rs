//! Commands of `rabbitmqadmin` for a shell. Names are the broker's users' words: each is one quoted word.

use serde_json::{Map, Value};

use crate::broker::rabbitmq::BindingDefinition;

/// Writes commands for one virtual host.
pub(super) struct DeclareCommand<'a> {
    pub(super) vhost: &'a str,
}

impl DeclareCommand<'_> {
    fn line(&self, verb: &str, words: &[(&str, &str)], arguments: &Map<String, Value>) -> String {
        let mut parts = vec!["rabbitmqadmin".to_owned()];
        if self.vhost != "/" {
            parts.push(word(&format!("--vhost={}", self.vhost)));
        }
        parts.push(verb.to_owned());
        parts.extend(
            words
                .iter()
                .map(|(name, value)| word(&format!("{name}={value}"))),
        );
        if !arguments.is_empty() {
            parts.push(word(&format!(
                "arguments={}",
                Value::Object(arguments.clone())
            )));
        }
        parts.join(" ")
    }

    pub(super) fn exchange(
        &self,
        name: &str,
        kind: &str,
        arguments: &Map<String, Value>,
    ) -> String {
        self.line(
            "declare exchange",
            &[("name", name), ("type", kind), ("durable", "true")],
            arguments,
        )
    }

    pub(super) fn queue(&self, name: &str, arguments: &Map<String, Value>) -> String {
        self.line(
            "declare queue",
            &[("name", name), ("durable", "true")],
            arguments,
        )
    }

    pub(super) fn binding(
        &self,
        source: &str,
        destination_type: &str,
        destination: &str,
        key: &str,
        arguments: &Map<String, Value>,
    ) -> String {
        let words = [
            ("source", source),
            ("destination_type", destination_type),
            ("destination", destination),
            ("routing_key", key),
        ];
        self.line("declare binding", &words, arguments)
    }

    /// Removes a binding from an exchange to an exchange. The broker names it by its routing key, `~` if that is empty;
    /// with arguments by a digest that only the broker knows.
    pub(super) fn unbinding(&self, binding: &BindingDefinition) -> Result<String, String> {
        let BindingDefinition {
            source,
            destination,
            routing_key,
            arguments,
            ..
        } = binding;
        let key = match (&binding.properties_key, routing_key.as_str()) {
            (Some(key), _) => key,
            (None, _) if !arguments.is_empty() => {
                return Err(format!(
                    "the binding from `{source}` has arguments, and a definitions file does not hold its name: plan by \
                     --management"
                ));
            }
            (None, "") => "~",
            (None, key) => key,
        };
        let words = [
            ("source", source.as_str()),
            ("destination_type", "exchange"),
            ("destination", destination),
            ("properties_key", key),
        ];
        Ok(self.line("delete binding", &words, &Map::new()))
    }

    pub(super) fn removal(&self, exchange: &str) -> String {
        self.line("delete exchange", &[("name", exchange)], &Map::new())
    }
}

/// One word of a shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.=/:#,@%+".contains(c);
    // A comment begins with `#` at the beginning of a word alone.
    if !text.is_empty() && !text.starts_with('#') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_word_whatever_is_in_it() {
        let nasty = [
            "bills.#",
            "a b",
            "$(reboot)",
            "it's",
            "`id`",
            "",
            "#",
            "\\",
            "a\"b",
            "~",
            "*",
            "x;y&z|w>v",
        ];
        for text in nasty {
            let script = format!("printf %s {}", word(text));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .expect("a shell");
            assert_eq!(String::from_utf8(output.stdout).expect("text"), text);
        }
    }
}
