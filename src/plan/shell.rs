//! Commands of `rabbitmqadmin` for a shell. Names are the broker's users' words: each is one quoted word.

use serde_json::{Map, Value};

use crate::broker::rabbitmq::BindingDefinition;
use crate::domain::unsafe_text::is_unsafe;

/// Why a command cannot be written.
const UNSAFE_WORD: &str = "a name, a routing key or an argument holds control or invisible characters: declare its successors by hand";

/// Writes commands for one virtual host.
pub(super) struct DeclareCommand<'a> {
    pub(super) vhost: &'a str,
}

impl DeclareCommand<'_> {
    fn line(
        &self,
        verb: &str,
        words: &[(&str, &str)],
        arguments: &Map<String, Value>,
    ) -> Result<String, String> {
        let mut parts = vec!["rabbitmqadmin".to_owned()];
        if self.vhost != "/" {
            parts.push(format!("--vhost={}", word(self.vhost)?));
        }
        parts.push(verb.to_owned());
        for (name, value) in words {
            parts.push(format!("{name}={}", word(value)?));
        }
        if !arguments.is_empty() {
            let arguments = Value::Object(arguments.clone()).to_string();
            parts.push(format!("arguments={}", word(&arguments)?));
        }
        Ok(parts.join(" "))
    }

    pub(super) fn exchange(
        &self,
        name: &str,
        kind: &str,
        arguments: &Map<String, Value>,
    ) -> Result<String, String> {
        self.line(
            "declare exchange",
            &[("name", name), ("type", kind), ("durable", "true")],
            arguments,
        )
    }

    pub(super) fn queue(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<String, String> {
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
    ) -> Result<String, String> {
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
        self.line("delete binding", &words, &Map::new())
    }

    pub(super) fn removal(&self, exchange: &str) -> Result<String, String> {
        self.line("delete exchange", &[("name", exchange)], &Map::new())
    }
}

/// One word of a shell. No command names what could hide in it, or command the terminal that it is pasted into.
fn word(text: &str) -> Result<String, String> {
    match shlex::try_quote(text) {
        Ok(word) if !text.contains(is_unsafe) => Ok(word.into_owned()),
        _ => Err(UNSAFE_WORD.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Pairs of all visible ASCII characters, and a few texts beyond.
    #[test]
    fn a_word_is_one_word_whatever_is_in_it() {
        let visible = || (' '..='~').chain(['\u{e9}', '\u{1f600}']);
        let pairs = visible().flat_map(|a| visible().map(move |b| format!("{a}{b}")));
        let known = ["", "bills.#", "it's", "$(reboot)", "'\"'^'\\"].map(str::to_owned);
        let texts: Vec<String> = pairs.chain(known).collect();
        let words = texts.iter().map(|text| word(text).expect("a word"));
        let script = format!("printf '%s\\n' {}", words.collect::<Vec<_>>().join(" "));
        let mut shell = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut stdin = shell.stdin.take().expect("piped");
        stdin.write_all(script.as_bytes()).expect("written");
        drop(stdin);
        let output = shell.wait_with_output().expect("it ends");
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(printed.lines().eq(&texts), "{printed}");
        for text in ["a\0", "a\nb", "\u{1b}[2J", "\u{200b}", "\u{202e}"] {
            assert_eq!(word(text), Err(UNSAFE_WORD.to_owned()), "{text:?}");
        }
    }
}
