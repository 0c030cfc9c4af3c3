//! `docs/producers.json`: when each client was run last, with which versions, and what it writes on the wire.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use serde_json::{Value, json};

use super::judge::Judgement;
use super::support::{Kafka, Rabbitmq, folders};
use super::table::{BrokerKind, ClientProgram};

/// Results by the clients' names.
#[derive(Debug)]
pub(crate) struct Record(BTreeMap<String, Value>);

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/producers.json")
}

impl Record {
    /// Results so far: none before the first run.
    pub(crate) fn read() -> Self {
        match std::fs::read_to_string(file()) {
            Ok(text) => Self(serde_json::from_str(&text).expect("docs/producers.json")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self(BTreeMap::new()),
            Err(error) => panic!("docs/producers.json: {error}"),
        }
    }

    /// Notes a good run.
    pub(crate) fn note(&mut self, program: &ClientProgram, judgement: &Judgement) {
        let versions = versions(program);
        let broker = match program.broker {
            BrokerKind::Kafka => format!("Kafka {}", Kafka::version()),
            BrokerKind::Rabbitmq => format!("RabbitMQ {}", Rabbitmq::installed().expect("it runs")),
        };
        let result = json!({
            "date": Zoned::now().date().to_string(),
            "toolchain": versions[0],
            "library": versions[1],
            "broker": broker,
            "delay": judgement.delay_kind,
            "moment": judgement.moment_kind,
        });
        self.0.insert(program.name(), result);
    }

    /// Differences between the wire of a run and the record.
    pub(crate) fn differences(
        &self,
        program: &ClientProgram,
        judgement: &Judgement,
    ) -> Option<String> {
        let Some(noted) = self.0.get(&program.name()) else {
            return Some(
                "docs/producers.json does not have it: scripts/test-clients --record".to_owned(),
            );
        };
        let is_same =
            noted["delay"] == judgement.delay_kind && noted["moment"] == judgement.moment_kind;
        (!is_same).then(|| {
            format!(
                "it writes {} and {}, docs/producers.json says {} and {}",
                judgement.delay_kind, judgement.moment_kind, noted["delay"], noted["moment"]
            )
        })
    }

    /// Writes the results; the page is made from them.
    pub(crate) fn write(&self) {
        let text = serde_json::to_string_pretty(&self.0).expect("JSON") + "\n";
        std::fs::write(file(), text).expect("docs/producers.json written");
    }
}

/// Versions that the script noted: of the toolchain, and of the library.
fn versions(program: &ClientProgram) -> [String; 2] {
    let noted = folders::cache()
        .join("clients")
        .join(program.language)
        .join("versions");
    let text = std::fs::read_to_string(&noted)
        .unwrap_or_else(|error| panic!("{}: {error}", noted.display()));
    let toolchain = text.lines().next().expect("a toolchain").to_owned();
    let word = format!("{} ", program.broker.word());
    let library = text
        .lines()
        .find_map(|line| line.strip_prefix(&word))
        .expect("the library's version");
    [toolchain, library.to_owned()]
}
