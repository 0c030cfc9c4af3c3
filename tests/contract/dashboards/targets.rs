//! The brokers that routes publish to, and how they answer.

use super::Dashboard;
use super::panel::{Panel, Row};

pub(super) fn dashboard() -> Dashboard {
    let state = vec![
        Panel::state_timeline("Targets", "Topics and exchanges; red where one replica or more could not publish there, or had no answer for 2.5 s.")
            .query(r#"min by (part) (postdate_part_up{@, part=~"target:.*"})"#, "{{part}}"),
        Panel::state_timeline("Connections", "Connections to brokers; red where one replica or more had none.")
            .query(r#"min by (part) (postdate_part_up{@, part=~"(kafka|rabbitmq):.*"})"#, "{{part}}"),
    ];
    let answers = vec![
        Panel::time_series("Answer of the target, 99 %", "s", "From hand-over to the broker's confirm, by route: 99 % of the publishes took at most this long.")
            .query("histogram_quantile(0.99, sum by (le, route) (rate(postdate_confirm_seconds_bucket{@}[$__rate_interval])))", "{{route}}")
            .leads_to_route()
            .no_value("no messages"),
        Panel::time_series("Answer of the target, mean", "s", "From hand-over to the broker's confirm, by route, on average.")
            .query(
                "sum by (route) (rate(postdate_confirm_seconds_sum{@}[$__rate_interval])) / (sum by (route) (rate(postdate_confirm_seconds_count{@}[$__rate_interval])) > 0)",
                "{{route}}",
            )
            .leads_to_route()
            .no_value("no messages"),
        Panel::time_series("Confirmed by route", "mps", "Delayed messages that their target confirmed.")
            .query("sum by (route) (rate(postdate_published_total{@}[$__rate_interval]))", "{{route}}")
            .leads_to_route(),
        Panel::time_series("In flight by route", "short", "Messages that were claimed and not settled yet. High while nothing is confirmed: the target does not answer.")
            .query("sum by (route) (postdate_in_flight{@})", "{{route}}")
            .leads_to_route(),
    ];
    let failures = vec![
        Panel::time_series("Failed publishes by route and reason", "mps", "Publishes that were refused, returned or not confirmed. `postdate pending` shows the error of each message.")
            .query("sum by (route, reason) (rate(postdate_publish_failures_total{@}[$__rate_interval]))", "{{route}}: {{reason}}")
            .leads_to_route()
            .no_value("none yet"),
        Panel::time_series("Put back by route", "mps", "Messages put back to be tried again. After `retry.attempts` tries they are dead letters.")
            .query("sum by (route) (rate(postdate_retries_total{@}[$__rate_interval]))", "{{route}}")
            .leads_to_route(),
        Panel::state_timeline("Sources that wait for their target", "Routes whose target does not take what passes through, so that their source is not read.")
            .query(r#"max by (route) (postdate_ingress_paused{@, reason="target"})"#, "{{route}}")
            .bad_state(["runs", "waits"])
            .no_value("none yet"),
        Panel::time_series("Publishes without an answer", "mps", "Publishes that repeat one that was never answered: consumers may see it twice.")
            .query(r#"sum by (route) (rate(postdate_redelivered_total{@, cause="confirm_unknown"}[$__rate_interval]))"#, "{{route}}")
            .leads_to_route(),
    ];
    let clients = vec![
        Panel::time_series("Answer of Kafka brokers, 99 %", "s", "From a producer's request to the broker's answer: 99 % took at most this long, of the replica where it took longest.")
            .query(r#"max by (connection, broker) (postdate_kafka_round_trip_seconds{@, client=~".*producer", quantile="0.99"})"#, "{{connection}}: broker {{broker}}")
            .no_value("no Kafka"),
        Panel::time_series("Messages in Kafka clients", "short", "Given to a producer and not answered yet, or fetched by a group's consumer and not taken yet.")
            .query("sum by (connection, client) (postdate_kafka_queued_messages{@})", "{{connection}}: {{client}}")
            .no_value("no Kafka"),
        Panel::time_series("Memory of messages in Kafka clients", "bytes", "The same in bytes, of the replica with the most.")
            .query("max by (connection, client) (postdate_kafka_queued_bytes{@})", "{{connection}}: {{client}}")
            .no_value("no Kafka"),
        Panel::time_series("Requests to Kafka brokers", "short", "Requests of all clients that wait to be sent, and those that wait for the broker's answer. A group always has one or two of the latter: it waits for records.")
            .query("sum by (connection, broker) (postdate_kafka_unsent_requests{@})", "{{connection}}: broker {{broker}}, unsent")
            .query("sum by (connection, broker) (postdate_kafka_unanswered_requests{@})", "{{connection}}: broker {{broker}}, unanswered")
            .no_value("no Kafka"),
    ];
    Dashboard {
        name: "targets",
        title: "Targets",
        description: "The brokers that routes publish to: are they there, how fast do they answer, what do they refuse?",
        one_route: false,
        rows: vec![
            Row {
                title: "Are they there?",
                panels: state,
            },
            Row {
                title: "How do they answer?",
                panels: answers,
            },
            Row {
                title: "What fails?",
                panels: failures,
            },
            Row {
                title: "Kafka's clients",
                panels: clients,
            },
        ],
    }
}
