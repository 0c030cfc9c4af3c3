//! librdkafka properties: those that an operator cannot set, and those that the operator set, in the configuration or in
//! the file that it names.
//!
//! librdkafka takes its properties, and reads the files that they name, only when a client is made. So the file is read
//! again for each new client ([`super::ClientWatch`] tells when a new one is needed).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::credential::read_secret;
use crate::domain::Secret;

/// librdkafka properties (aliases too) that an operator cannot set: guarantees depend on them, or the
/// configuration has a key of its own for them.
pub const OWNED_PROPERTIES: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "fetch.queue.backoff.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.protocol.type",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "linger.ms",
    "log.queue",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "max.poll.interval.ms",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "offset.store.method",
    "partition.assignment.strategy",
    "partitioner",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "session.timeout.ms",
    "statistics.interval.ms",
    "topic.metadata.propagation.max.ms",
    "transaction.timeout.ms",
    "transactional.id",
];

/// Reports whether an operator cannot set a property. librdkafka takes `topic.` before the name of a property of topics,
/// too.
pub fn is_owned(property: &str) -> bool {
    let of_topics = property.strip_prefix("topic.");
    OWNED_PROPERTIES.contains(&property)
        || of_topics.is_some_and(|name| OWNED_PROPERTIES.contains(&name))
}

/// Properties by name, with the file that they stand in, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The properties as they were when the configuration was read.
    configured: BTreeMap<String, Secret>,
    file: Option<PathBuf>,
}

impl Properties {
    /// Properties that stand in the configuration itself.
    pub fn inline<T: Into<String>>(properties: impl IntoIterator<Item = (T, T)>) -> Self {
        let configured = properties
            .into_iter()
            .map(|(name, value)| (name.into(), Secret::new(value)));
        Self {
            configured: configured.collect(),
            file: None,
        }
    }

    /// The properties of a file. The error is a sentence that shows nothing of its text.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        Ok(Self {
            configured: parse(&read_secret(path)?)?,
            file: Some(path.to_owned()),
        })
    }

    /// The properties as they were when the configuration was read.
    pub fn configured(&self) -> &BTreeMap<String, Secret> {
        &self.configured
    }

    /// The properties as they are now: reads their file again. The error is a sentence that names the file.
    pub fn current(&self) -> Result<BTreeMap<String, Secret>, String> {
        match &self.file {
            Some(file) => {
                let text = read_secret(file)?;
                parse(&text).map_err(|why| format!("{}: {why}", file.display()))
            }
            None => Ok(self.configured.clone()),
        }
    }
}

/// Reads lines of `name=value`. The error is a sentence that shows no value.
fn parse(text: &str) -> Result<BTreeMap<String, Secret>, String> {
    let mut properties = BTreeMap::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The message leaves out the line: it may be a secret.
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!(
                "line {} of the file is not `name=value`",
                index + 1
            ));
        };
        let name = name.trim();
        let value = Secret::new(value.trim());
        if properties.insert(name.to_owned(), value).is_some() {
            return Err(format!("{name:?} appears more than once in the file"));
        }
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_properties_file_is_lines_of_names_and_values() {
        let read = parse("# comment\n\nsasl.password = a=b \nclient.rack=x").expect("good");
        assert_eq!(read["sasl.password"].expose(), "a=b");
        assert_eq!(read.len(), 2);
        assert!(parse("hunter2").is_err_and(|error| !error.contains("hunter2")));
        assert!(parse("a=1\na=2").is_err());
    }

    #[test]
    fn a_file_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("properties");
        let password = |text: &str| std::fs::write(&file, text).expect("written");
        password("sasl.password=first");
        let properties = Properties::from_file(&file).expect("read");
        password("sasl.password=second");
        let now = properties.current().expect("read again");
        let configured = &properties.configured()["sasl.password"];
        assert_eq!(
            (configured.expose(), now["sasl.password"].expose()),
            ("first", "second")
        );
        password("second");
        let why = properties.current().expect_err("no property");
        assert!(
            why.contains("properties: line 1") && !why.contains("second"),
            "{why}"
        );
    }
}
