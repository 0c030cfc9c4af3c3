//! Figures of the Kafka clients: what waits in them, and how fast each broker answers them. Each client reports its
//! own, every second or few; a scrape shows the last report.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::metrics::descriptions::{self as words, MetricDescription};

/// Brokers of one client that are shown. Larger clusters show those with the lowest ids.
const MAX_BROKERS: usize = 128;

/// The last report of each Kafka client. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct KafkaClients(Arc<Mutex<BTreeMap<KafkaClientKey, KafkaClientReport>>>);

/// A Kafka client: its connection, and its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KafkaClientKey {
    connection: String,
    client: String,
}

/// What a Kafka client says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KafkaClientReport {
    /// Messages that a producer has no answer for, or that a consumer has fetched and nobody has taken.
    pub queued_messages: u64,
    /// Bytes of those messages.
    pub queued_bytes: u64,
    /// Brokers that the client knows by their id.
    pub brokers: BTreeMap<i32, KafkaBrokerReport>,
}

/// What a Kafka client says of a broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KafkaBrokerReport {
    /// Requests that wait to be sent.
    pub unsent_requests: u64,
    /// Requests that were sent and are not answered.
    pub unanswered_requests: u64,
    /// Time of the answers since the last report; `None`: there were none.
    pub round_trip: Option<RoundTrip>,
}

/// Time from a request to its answer, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    /// Half of the answers took at most this long.
    pub median: f64,
    /// 99 % of the answers took at most this long.
    pub p99: f64,
}

/// A sample: its labels and its value.
type LabelledSample<const N: usize> = ([(&'static str, String); N], f64);

impl KafkaClients {
    /// Shows the report of a client until its next one.
    pub fn show(&self, connection: &str, client: &str, mut report: KafkaClientReport) {
        while report.brokers.len() > MAX_BROKERS {
            report.brokers.pop_last();
        }
        let key = KafkaClientKey {
            connection: connection.to_owned(),
            client: client.to_owned(),
        };
        self.0.lock().insert(key, report);
    }

    fn of_clients(&self, read: fn(&KafkaClientReport) -> u64) -> Vec<LabelledSample<2>> {
        self.0
            .lock()
            .iter()
            .map(|(key, report)| (key.labels(), read(report) as f64))
            .collect()
    }

    fn of_brokers(&self, read: fn(&KafkaBrokerReport) -> u64) -> Vec<LabelledSample<3>> {
        let mut samples = Vec::new();
        for (key, report) in &*self.0.lock() {
            for (id, broker) in &report.brokers {
                let [connection, client] = key.labels();
                samples.push((
                    [connection, client, ("broker", id.to_string())],
                    read(broker) as f64,
                ));
            }
        }
        samples
    }

    fn round_trips(&self) -> Vec<LabelledSample<4>> {
        let mut samples = Vec::new();
        for (key, report) in &*self.0.lock() {
            for (id, broker) in &report.brokers {
                let Some(RoundTrip { median, p99 }) = broker.round_trip else {
                    continue;
                };
                for (quantile, seconds) in [("0.5", median), ("0.99", p99)] {
                    let [connection, client] = key.labels();
                    let broker = ("broker", id.to_string());
                    let quantile = ("quantile", quantile.to_owned());
                    samples.push(([connection, client, broker, quantile], seconds));
                }
            }
        }
        samples
    }
}

impl KafkaClientKey {
    fn labels(&self) -> [(&'static str, String); 2] {
        [
            ("connection", self.connection.clone()),
            ("client", self.client.clone()),
        ]
    }
}

impl Collector for KafkaClients {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        encode(
            encoder,
            words::KAFKA_QUEUED_MESSAGES,
            &self.of_clients(|report| report.queued_messages),
        )?;
        encode(
            encoder,
            words::KAFKA_QUEUED_BYTES,
            &self.of_clients(|report| report.queued_bytes),
        )?;
        encode(
            encoder,
            words::KAFKA_UNSENT_REQUESTS,
            &self.of_brokers(|broker| broker.unsent_requests),
        )?;
        let unanswered = self.of_brokers(|broker| broker.unanswered_requests);
        encode(encoder, words::KAFKA_UNANSWERED_REQUESTS, &unanswered)?;
        encode(encoder, words::KAFKA_ROUND_TRIP, &self.round_trips())
    }
}

/// Encodes the samples of a metric, or nothing if there are none.
fn encode<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    words: MetricDescription,
    samples: &[LabelledSample<N>],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let help = format!("{}.", words.meaning);
    let mut metric = encoder.encode_descriptor(words.name, &help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        metric.encode_family(labels)?.encode_gauge(value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    fn exposition(clients: &KafkaClients) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(clients.clone()));
        let mut exposition = String::new();
        text::encode(&mut exposition, &registry).expect("into a string");
        exposition
    }

    fn report(brokers: impl IntoIterator<Item = i32>) -> KafkaClientReport {
        let round_trip = Some(RoundTrip {
            median: 0.25,
            p99: 0.5,
        });
        let broker = KafkaBrokerReport {
            unsent_requests: 3,
            unanswered_requests: 4,
            round_trip,
        };
        let brokers = brokers.into_iter().map(|id| (id, broker.clone())).collect();
        KafkaClientReport {
            queued_messages: 1,
            queued_bytes: 2,
            brokers,
        }
    }

    #[test]
    fn a_scrape_shows_the_last_report_of_each_client_and_nothing_before_the_first() {
        let clients = KafkaClients::default();
        assert_eq!(exposition(&clients), "# EOF\n");
        clients.show("main", "producer", report([1, 2]));
        clients.show("main", "producer", report([2]));
        let lines = exposition(&clients);
        for line in [
            r#"kafka_queued_messages{connection="main",client="producer"} 1"#,
            r#"kafka_queued_bytes{connection="main",client="producer"} 2"#,
            r#"kafka_unsent_requests{connection="main",client="producer",broker="2"} 3"#,
            r#"kafka_unanswered_requests{connection="main",client="producer",broker="2"} 4"#,
            r#"kafka_round_trip_seconds{connection="main",client="producer",broker="2",quantile="0.5"} 0.25"#,
            r#"kafka_round_trip_seconds{connection="main",client="producer",broker="2",quantile="0.99"} 0.5"#,
        ] {
            assert!(
                lines.lines().any(|found| found.starts_with(line)),
                "{line} is missing: {lines}"
            );
        }
        assert!(
            !lines.contains(r#"broker="1""#),
            "a broker that is gone is still shown: {lines}"
        );
    }

    #[test]
    fn a_broker_that_answered_nothing_has_no_round_trip_and_too_many_brokers_are_cut_off() {
        let clients = KafkaClients::default();
        let mut quiet = report([1]);
        quiet.brokers.insert(1, KafkaBrokerReport::default());
        clients.show("main", "producer", quiet);
        assert!(!exposition(&clients).contains("kafka_round_trip_seconds"));
        clients.show("main", "producer", report(0..10 * MAX_BROKERS as i32));
        let shown = exposition(&clients)
            .matches("kafka_unsent_requests{")
            .count();
        assert_eq!(shown, MAX_BROKERS);
    }
}
