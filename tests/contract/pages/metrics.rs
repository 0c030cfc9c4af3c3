//! The registry: the list of metrics that users rely on, and the page of all of them.

use std::fmt::Write;

use postdate::domain::{InvalidReason, RouteName};
use postdate::telemetry::Metrics;
use postdate::telemetry::kafka_clients::{KafkaBrokerReport, KafkaClientReport, RoundTrip};
use postdate::telemetry::metrics::descriptions::{self as words, MetricDescription};
use postdate::telemetry::process::{FIGURES, Figure};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Name in the exposition without `postdate_`, type and labels of each metric. In the order of the contract.
const CONTRACT: &[(&str, &str, &str)] = &[
    ("admitted_total", "counter", "route"),
    ("passed_through_total", "counter", "route"),
    ("invalid_total", "counter", "route,reason,policy"),
    ("stored_total", "counter", "route"),
    ("duplicates_total", "counter", "route"),
    ("commands_total", "counter", "route,op,result"),
    ("published_total", "counter", "route"),
    ("publish_failures_total", "counter", "route,reason"),
    ("retries_total", "counter", "route"),
    ("expired_total", "counter", "route"),
    ("redelivered_total", "counter", "route,cause"),
    ("dead_letters_total", "counter", "route,reason"),
    ("dropped_total", "counter", "route,reason"),
    ("stale_claims_total", "counter", ""),
    ("spans_lost_total", "counter", "cause"),
    ("pending", "gauge", "route"),
    ("in_flight", "gauge", "route"),
    ("dead", "gauge", "route"),
    ("oldest_overdue_seconds", "gauge", "route"),
    ("ingress_paused", "gauge", "route,reason"),
    ("ingress_lag", "gauge", "route"),
    ("ingress_unresolved", "gauge", "route"),
    ("source_lost_total", "counter", "route"),
    ("publishing_paused", "gauge", "route"),
    ("partitions_owned", "gauge", ""),
    ("clock_skew_seconds", "gauge", ""),
    ("build_info", "gauge", "version"),
    ("lateness_seconds", "histogram", "route"),
    ("confirm_seconds", "histogram", "route"),
    ("store_seconds", "histogram", "op"),
    // Not in the list of the contract, but in the design.
    ("store_damage_total", "counter", "what"),
    ("unknown_routes", "gauge", ""),
    ("unknown_versions_total", "counter", ""),
    ("store_changes_total", "counter", ""),
    ("loops_total", "counter", "route"),
    ("trail_lost_total", "counter", "route"),
    ("part_up", "gauge", "part"),
    ("admin_refused_total", "counter", "reason"),
    ("kafka_queued_messages", "gauge", "connection,client"),
    ("kafka_queued_bytes", "gauge", "connection,client"),
    ("kafka_unsent_requests", "gauge", "connection,client,broker"),
    (
        "kafka_unanswered_requests",
        "gauge",
        "connection,client,broker",
    ),
    (
        "kafka_round_trip_seconds",
        "gauge",
        "connection,client,broker,quantile",
    ),
    ("store_memory_bytes", "gauge", ""),
    ("store_memory_limit_bytes", "gauge", ""),
];

/// A metric as a scraper sees it.
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Names, with commas between them.
    pub(crate) labels: String,
    help: String,
}

/// One route that has seen everything once, so that every metric has a sample.
fn exposition() -> String {
    let route = RouteName::new("orders").expect("a name");
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry, [route.clone()]);
    let handles = metrics.route(&route).expect("configured");
    handles.invalid(InvalidReason::BadDelay, "drop");
    handles.command("cancel", "unknown");
    handles.publish_failure("unroutable");
    handles.dead_letter("attempts");
    handles.dropped("bad_delay", 1);
    handles.ingress_paused("store", true);
    metrics.store_op("claim", 0.001);
    metrics.store_damage("mended", 1);
    metrics.part_up("redis".to_owned(), true);
    metrics.admin_refused("unauthorized");
    let round_trip = Some(RoundTrip {
        median: 0.001,
        p99: 0.002,
    });
    let broker = KafkaBrokerReport {
        round_trip,
        ..KafkaBrokerReport::default()
    };
    let report = KafkaClientReport {
        brokers: [(1, broker)].into(),
        ..KafkaClientReport::default()
    };
    metrics.kafka_clients.show("main", "producer", report);
    let mut text = String::new();
    encode(&mut text, &registry).expect("into a string");
    text
}

/// Every metric with the labels that its samples carry.
pub(crate) fn registry() -> Vec<Described> {
    described(&exposition())
}

fn described(exposition: &str) -> Vec<Described> {
    let mut all = Vec::new();
    let mut help = "";
    let mut lines = exposition.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').expect("a type");
            let sample = lines.peek().filter(|l| l.starts_with(family));
            let sample = sample.unwrap_or_else(|| panic!("no sample of {family}"));
            let labels = sample
                .split_once('{')
                .map_or("", |(_, l)| l.split_once('}').expect("closed").0);
            let labels: Vec<_> = labels
                .split(',')
                .filter_map(|l| l.split_once('=').map(|(name, _)| name))
                .filter(|l| *l != "le")
                .collect();
            let suffix = if kind == "counter" { "_total" } else { "" };
            all.push(Described {
                name: format!("{family}{suffix}"),
                kind: kind.to_owned(),
                labels: labels.join(","),
                help: help.to_owned(),
            });
        }
    }
    all
}

#[test]
fn the_registry_holds_exactly_the_contract() {
    let mut found: Vec<_> = registry()
        .into_iter()
        .map(|d| format!("{} {} {}", d.name, d.kind, d.labels))
        .collect();
    let mut wanted: Vec<_> = CONTRACT
        .iter()
        .map(|(name, kind, labels)| format!("postdate_{name} {kind} {labels}"))
        .collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn labels_come_in_the_contracts_order() {
    let text = exposition();
    assert!(
        text.contains(
            r#"postdate_invalid_total{route="orders",reason="bad_delay",policy="drop"} 1"#
        ),
        "{text}"
    );
}

/// Description of the metric with this name in the exposition.
fn words_of(name: &str) -> &'static MetricDescription {
    let plain = name
        .trim_start_matches("postdate_")
        .trim_end_matches("_total");
    words::ALL
        .iter()
        .find(|words| words.name == plain)
        .unwrap_or_else(|| panic!("{name} is not described"))
}

#[test]
fn each_description_belongs_to_one_metric_and_says_what_to_do() {
    let found = registry();
    assert_eq!(found.len(), words::ALL.len());
    for metric in found {
        let words = words_of(&metric.name);
        assert_eq!(
            metric.help,
            format!("{}.", words.meaning),
            "{}",
            metric.name
        );
        assert!(
            words.action.ends_with('.') && !words.runbook.is_empty(),
            "{}",
            metric.name
        );
        let seconds = metric.name.ends_with("_seconds") || metric.kind == "histogram";
        assert_eq!(seconds, words.unit == "seconds", "{}", metric.name);
        assert_eq!(
            metric.name.ends_with("_bytes"),
            words.unit == "bytes",
            "{}",
            metric.name
        );
    }
}

const PREFACE: &str = "# Metrics

`GET /metrics` on `admin.listen`, in OpenMetrics text. Labels come from the configuration and from fixed words, never from messages.
A histogram has the usual `_bucket`, `_sum` and `_count`, with 21 buckets and no native ones ([ADR 0063](adr/0063-traces.md)). That of lateness has exemplars ([traces](traces.md)).
`kafka_` metrics are what the client library says of itself, per `client`: `producer`, `bulk_producer`, `group:NAME`; `broker` is the id of a broker.
A metric with a `reason`, `policy`, `op` or `result` appears with its first event.
`pending`, `dead` and `oldest_overdue_seconds` are figures of the whole installation, which each replica shows: take their maximum.
Counters, histograms, `in_flight`, `ingress_lag` and `ingress_unresolved` are a replica's own: add them up.

Alert rules for Prometheus are in [`deploy/prometheus/alerts.yaml`](../deploy/prometheus/alerts.yaml), dashboards for Grafana in [`deploy/grafana`](../deploy/grafana).
What to do when a metric moves stands in short in the last column, and step by step in the [runbooks](runbooks.md), where its arrow leads.
The words in it are those of the [glossary](glossary.md); `R` is a route, `C` a connection, `T` a target.

| name | type, unit | labels | meaning | when it moves |
|---|---|---|---|---|
";

const PROCESS_PREFACE: &str = "
## Process and runtime

Figures of one replica, read when they are asked for. The first are named as in Prometheus's own client libraries; they are there on Linux.

| name | type | meaning | when it moves |
|---|---|---|---|
";

/// The page: each metric with its labels, its meaning, and what to do when it moves.
pub(super) fn page() -> String {
    let mut page = String::from(PREFACE);
    for Described {
        name,
        kind,
        labels,
        help,
    } in registry()
    {
        let labels: Vec<_> = labels
            .split(',')
            .filter(|l| !l.is_empty())
            .map(|l| format!("`{l}`"))
            .collect();
        let labels = labels.join(", ");
        let words = words_of(&name);
        let kind = if words.unit.is_empty() {
            kind
        } else {
            format!("{kind}, {}", words.unit)
        };
        let action = format!("{} [→](runbooks.md#{})", words.action, words.runbook);
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} | {action} |")
            .expect("into a string");
    }
    page.push_str(PROCESS_PREFACE);
    for Figure {
        name,
        grows,
        help,
        action,
        ..
    } in FIGURES
    {
        let (suffix, kind) = if *grows {
            ("_total", "counter")
        } else {
            ("", "gauge")
        };
        writeln!(page, "| `{name}{suffix}` | {kind} | {help}. | {action} |")
            .expect("into a string");
    }
    page
}
