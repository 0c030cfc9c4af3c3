//! What a client of librdkafka says of itself, in Postdate's words.

use rdkafka::statistics::{Broker, Statistics, Window};

use crate::telemetry::kafka_clients::{KafkaBrokerReport, KafkaClientReport, RoundTrip};

/// The figures in librdkafka's statistics that a metric shows.
pub fn client_report(statistics: &Statistics) -> KafkaClientReport {
    let partitions = statistics
        .topics
        .values()
        .flat_map(|topic| topic.partitions.values());
    let mut report = KafkaClientReport {
        queued_messages: statistics.msg_cnt,
        queued_bytes: statistics.msg_size,
        ..KafkaClientReport::default()
    };
    for partition in partitions {
        report.queued_messages += count(partition.fetchq_cnt);
        report.queued_bytes += partition.fetchq_size;
    }
    // A negative id is no broker of the cluster: a bootstrap address, or another name of one that has an id.
    let brokers = statistics
        .brokers
        .values()
        .filter(|broker| broker.nodeid >= 0);
    report.brokers = brokers
        .map(|broker| (broker.nodeid, broker_report(broker)))
        .collect();
    report
}

fn broker_report(broker: &Broker) -> KafkaBrokerReport {
    KafkaBrokerReport {
        unsent_requests: count(broker.outbuf_cnt),
        unanswered_requests: count(broker.waitresp_cnt),
        round_trip: broker.rtt.as_ref().and_then(round_trip),
    }
}

fn round_trip(window: &Window) -> Option<RoundTrip> {
    let seconds = |us: i64| us as f64 / 1e6;
    (window.cnt > 0).then(|| RoundTrip {
        median: seconds(window.p50),
        p99: seconds(window.p99),
    })
}

fn count(count: i64) -> u64 {
    count.max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rdkafka::statistics::{Partition, Topic};

    use super::*;

    fn broker(nodeid: i32, answers: i64) -> Broker {
        let rtt = Window {
            cnt: answers,
            p50: 1500,
            p99: 250_000,
            ..Window::default()
        };
        Broker {
            nodeid,
            outbuf_cnt: -1,
            waitresp_cnt: 2,
            rtt: Some(rtt),
            ..Broker::default()
        }
    }

    #[test]
    fn queues_add_up_and_only_brokers_with_an_id_are_told() {
        let partition = |fetched| Partition {
            fetchq_cnt: fetched,
            fetchq_size: 100,
            ..Partition::default()
        };
        let topic = Topic {
            partitions: [(0, partition(3)), (1, partition(4))].into(),
            ..Topic::default()
        };
        let statistics = Statistics {
            msg_cnt: 5,
            msg_size: 50,
            topics: [("orders".to_owned(), topic)].into(),
            brokers: [
                ("a".to_owned(), broker(1, 7)),
                ("b".to_owned(), broker(-1, 7)),
                ("c".to_owned(), broker(2, 0)),
            ]
            .into(),
            ..Statistics::default()
        };
        let told = |round_trip| KafkaBrokerReport {
            unsent_requests: 0,
            unanswered_requests: 2,
            round_trip,
        };
        let expected = KafkaClientReport {
            queued_messages: 12,
            queued_bytes: 250,
            brokers: BTreeMap::from([
                (
                    1,
                    told(Some(RoundTrip {
                        median: 0.0015,
                        p99: 0.25,
                    })),
                ),
                (2, told(None)),
            ]),
        };
        assert_eq!(client_report(&statistics), expected);
    }
}
