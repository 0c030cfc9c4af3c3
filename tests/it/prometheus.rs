//! Alert rules and dashboards against a real Prometheus that scrapes a real replica at work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use serde_json::Value;

use crate::fixture::four_routes;
use crate::support::prometheus::{self, Prometheus};
use crate::support::{Kafka, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// Parts of queries that find nothing here, and why.
const NOT_PLAYED: &[(&str, &str)] = &[
    (
        "postdate_store_damage_total",
        "damage shows at a scrub; tests/it/store/scrub.rs plays it",
    ),
    (
        "label_values(postdate_build_info, namespace)",
        "only Kubernetes gives targets a namespace",
    ),
];

/// Calls without a token that make the alert fire which tells of them.
const REFUSED_CALLS: usize = 150;

/// A query of a dashboard, with its variables filled in.
#[derive(Debug)]
struct DashboardQuery {
    place: String,
    /// As it stands in the dashboard.
    written: String,
    /// As Grafana would send it.
    sent: String,
    /// Label that the samples must have, of the query of a variable.
    label: Option<String>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// A query with the variables of a dashboard as a user who has chosen all of them.
fn filled_in(query: &str) -> String {
    let variables = [
        ("$__rate_interval", "5m"),
        ("$namespace", ".*"),
        ("$job", prometheus::JOB),
        ("$route", ".+"),
    ];
    let sent = variables
        .iter()
        .fold(query.to_owned(), |query, (name, value)| {
            query.replace(name, value)
        });
    assert!(!sent.contains('$'), "a variable is left in {sent}");
    sent
}

/// All queries of the dashboards: of panels, annotations and variables.
fn dashboard_queries() -> Vec<DashboardQuery> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("deploy/grafana") {
        let json = std::fs::read_to_string(entry.expect("an entry").path()).expect("a dashboard");
        let dashboard: Value = serde_json::from_str(&json).expect("JSON");
        let title = text(&dashboard, "title");
        let mut add = |name: &str, written: &str, label: Option<&str>, query: &str| {
            let place = format!("{title}, {name}");
            let label = label.map(str::to_owned);
            all.push(DashboardQuery {
                place,
                written: written.to_owned(),
                sent: filled_in(query),
                label,
            });
        };
        for panel in list(&dashboard["panels"]) {
            for target in list(&panel["targets"]) {
                let query = text(target, "expr");
                add(text(panel, "title"), query, None, query);
            }
        }
        for annotation in list(&dashboard["annotations"]["list"]) {
            let query = text(annotation, "expr");
            add(text(annotation, "name"), query, None, query);
        }
        for variable in
            list(&dashboard["templating"]["list"]).filter(|variable| variable["type"] == "query")
        {
            let written = text(variable, "definition");
            let inner = written
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = inner
                .and_then(|inner| inner.rsplit_once(", "))
                .expect("label_values(SERIES, LABEL)");
            add(text(variable, "name"), written, Some(label), series);
        }
    }
    assert!(all.len() > 50, "{}", all.len());
    all
}

/// Reports whether a sample has a number, and the label that is asked for.
fn shows_something(sample: &Value, label: Option<&str>) -> bool {
    let number = sample["value"][1]
        .as_str()
        .is_some_and(|value| value != "NaN");
    number && label.is_none_or(|label| sample["metric"][label].is_string())
}

/// Publishes to a queue, by its headers alone.
async fn publish(channel: &Channel, queue: &str, headers: &[(&str, &str)]) {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    let properties = BasicProperties::default().with_headers(table);
    let sent = channel.basic_publish(
        "".into(),
        queue.into(),
        BasicPublishOptions::default(),
        b"body",
        properties,
    );
    assert!(
        sent.await
            .expect("published")
            .await
            .expect("confirmed")
            .is_ack()
    );
}

/// Plays what only trouble shows: a target that is missing, invalid messages, a command, a source that waits.
async fn play_trouble(rabbitmq: &Rabbitmq, broken: &str, strict: &str) {
    let connection = rabbitmq.connect().await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    publish(&channel, strict, &[("x-delay", "soon")]).await;
    publish(&channel, broken, &[("x-delay", "soon")]).await;
    publish(
        &channel,
        broken,
        &[("x-delay-op", "cancel"), ("x-delay-id", "nobody")],
    )
    .await;
    publish(&channel, broken, &[("x-delay", "1")]).await;
    // Without a delay: the source waits for the missing target, so it comes last.
    publish(&channel, broken, &[]).await;
}

async fn await_sample(prometheus: &Prometheus, query: &str) {
    eventually(query, async || {
        let samples = prometheus.query(query).await?;
        if samples.iter().any(|sample| shows_something(sample, None)) {
            Ok(())
        } else {
            Err(anyhow!("nothing"))
        }
    })
    .await;
}

/// Calls the API without a token, so often that an alert fires.
async fn refused_calls(relay: &Relay, prometheus: &Prometheus) {
    let call = async || {
        let (status, _) = relay.get("/api/v1/routes").await.expect("an answer");
        assert_eq!(status, 401);
    };
    call().await;
    // A counter that Prometheus sees for the first time has not increased.
    await_sample(prometheus, "postdate_admin_refused_total").await;
    for _ in 0..REFUSED_CALLS {
        call().await;
    }
    await_sample(
        prometheus,
        r#"ALERTS{alertname="PostdateAdminRefused", alertstate="firing"}"#,
    )
    .await;
    let alerts = prometheus.get("alerts", &[]).await.expect("its alerts");
    let fires = list(&alerts["alerts"])
        .find(|alert| alert["labels"]["alertname"] == "PostdateAdminRefused");
    let annotations = &fires.expect("the alert")["annotations"];
    assert!(
        text(annotations, "description").contains("for the reason unauthorized"),
        "{annotations}"
    );
    assert!(
        text(annotations, "runbook_url").ends_with("/runbooks.md#postdateadminrefused"),
        "{annotations}"
    );
}

/// Waits until each query has shown something. What is in [`NOT_PLAYED`] must show nothing.
#[allow(clippy::print_stdout, reason = "names what is not played")]
async fn each_query_shows_something(prometheus: &Prometheus) {
    let is_played = |query: &DashboardQuery| {
        !NOT_PLAYED
            .iter()
            .any(|(part, _)| query.written.contains(part))
    };
    let (played, not_played): (Vec<_>, Vec<_>) =
        dashboard_queries().into_iter().partition(is_played);
    let mut shown = BTreeSet::new();
    eventually("each query of the dashboards shows something", async || {
        let mut empty = Vec::new();
        for (number, query) in played.iter().enumerate() {
            if shown.contains(&number) {
                continue;
            }
            match prometheus.query(&query.sent).await {
                Ok(samples)
                    if samples
                        .iter()
                        .any(|sample| shows_something(sample, query.label.as_deref())) =>
                {
                    shown.insert(number);
                }
                Ok(_) => empty.push(format!("{}: {}", query.place, query.sent)),
                Err(error) => empty.push(format!("{}: {error:#}", query.place)),
            }
        }
        if empty.is_empty() {
            Ok(())
        } else {
            Err(empty.join("\n"))
        }
    })
    .await;
    for (part, why) in NOT_PLAYED {
        assert!(
            not_played.iter().any(|query| query.written.contains(part)),
            "no dashboard asks for {part}"
        );
        println!("not played: {part}: {why}");
    }
    for query in not_played {
        let samples = prometheus.query(&query.sent).await.expect("a right query");
        let shown = samples
            .iter()
            .any(|sample| shows_something(sample, query.label.as_deref()));
        assert!(!shown, "it is played: {query:?}");
    }
}

/// Waits until each rule has been evaluated, without an error.
async fn each_rule_is_evaluated(prometheus: &Prometheus) {
    let names: BTreeSet<String> = eventually("each rule is evaluated", async || {
        let groups = prometheus.get("rules", &[]).await?;
        let rules: Vec<_> = list(&groups["groups"])
            .flat_map(|group| list(&group["rules"]))
            .collect();
        let health: BTreeMap<_, _> = rules
            .iter()
            .map(|rule| (text(rule, "name"), text(rule, "health")))
            .collect();
        if let Some(ill) = rules.iter().find(|rule| rule["health"] == "err") {
            panic!("{ill}");
        }
        if health.len() > 10 && health.values().all(|health| *health == "ok") {
            Ok(health.into_keys().map(str::to_owned).collect())
        } else {
            Err(anyhow!("{health:?}"))
        }
    })
    .await;
    for expected in [
        "PostdateMessagesOverdue",
        "PostdateReplicaGone",
        "route:postdate_late:ratio_rate1h",
    ] {
        assert!(names.contains(expected), "{names:?}");
    }
}

#[tokio::test]
async fn the_rules_pass_their_own_tests() {
    if !prometheus::available("prometheus: the tests of the alert rules") {
        return;
    }
    let checked = prometheus::promtool(&[
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        "alerts.yaml",
    ])
    .await;
    assert!(checked.contains("rules found"), "{checked}");
    let tested = prometheus::promtool(&["test", "rules", "alerts.test.yaml"]).await;
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_and_each_query_of_the_dashboards_works_on_a_replica_at_work() {
    if !prometheus::available("prometheus: rules and dashboards on a replica at work") {
        return;
    }
    let memory = ["--maxmemory", "512mb"];
    let (redis, kafka, rabbitmq) = tokio::join!(
        Redis::start_with("redis-server", &memory),
        Kafka::shared(),
        Rabbitmq::shared()
    );
    let fixture = four_routes(&redis, kafka, rabbitmq).await;
    let [broken, strict, missing] = ["broken", "strict", "missing"].map(names::unique);
    for queue in [&broken, &strict] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "{missing}", routing_key = "key" }}"#);
    let config = fixture
        .config
        .clone()
        .route("broken", &from(&broken), &to, "");
    let config = config.route("strict", &from(&strict), &to, r#"on_invalid = "drop""#);
    let tokens = [(
        "POSTDATE_ADMIN__WRITE_TOKENS",
        r#"["a-token-of-the-tests"]"#,
    )];
    let relay = Relay::start_with(&config, &tokens).await;
    let prometheus = Prometheus::start(&relay).await;

    fixture.send(kafka, rabbitmq).await;
    fixture.run.drain(&relay).await;
    play_trouble(rabbitmq, &broken, &strict).await;
    refused_calls(&relay, &prometheus).await;
    // A round trip is shown of what the last seconds brought, so messages flow until all is shown.
    let all_shown = AtomicBool::new(false);
    let flow = async {
        while !all_shown.load(Ordering::Relaxed) {
            fixture.send(kafka, rabbitmq).await;
            fixture.run.drain(&relay).await;
        }
    };
    let queries = async {
        each_query_shows_something(&prometheus).await;
        all_shown.store(true, Ordering::Relaxed);
    };
    tokio::join!(flow, queries);
    each_rule_is_evaluated(&prometheus).await;
}
