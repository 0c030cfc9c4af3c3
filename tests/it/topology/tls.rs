//! Over TLS: one server, one behind sentinels, a cluster; by an authority that `SSL_CERT_FILE` names.

use super::flow::Flow;
use super::sentinel::BY_ALL;
use crate::support::{
    Cluster, Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, Sentinel, Tls, eventually, names,
    ports,
};

const CHANGED: &str = "the topology of redis has changed";

fn strs(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn behind_sentinels_a_killed_master_costs_no_message() {
    let kafka = Kafka::shared().await;
    let tls = Tls::new();
    let mut sentinel = Sentinel::start_with("redis-server", &strs(&tls.options())).await;
    let lines = format!("{}\ntls = true\n{BY_ALL}", sentinel.lines());
    let mut flow = Flow::start_with(kafka, &lines, &[("SSL_CERT_FILE", &tls.authority())]).await;
    flow.send(kafka, 200, 6000).await;
    flow.stored(200).await;
    assert!(flow.is_under_way(), "the kill must come in mid-flow");
    sentinel.kill9(0).await;
    flow.send(kafka, 100, 1000).await;
    sentinel.promoted(0).await;
    flow.logged(CHANGED, 2).await;
    sentinel.restart(0).await;
    flow.accounted().await;
}

#[tokio::test]
async fn in_a_cluster_a_failover_and_a_moved_slot_cost_no_message() {
    let kafka = Kafka::shared().await;
    let tls = Tls::new();
    let cluster = Cluster::start_as("redis-server", 1, &strs(&tls.options())).await;
    let lines = format!(
        "{}\ntls = true\ndurability = \"replicated\"",
        cluster.lines()
    );
    let mut flow = Flow::start_with(kafka, &lines, &[("SSL_CERT_FILE", &tls.authority())]).await;
    flow.send(kafka, 200, 6000).await;
    flow.stored(200).await;
    assert!(flow.is_under_way(), "the slot must move in mid-flow");
    let slot = cluster.slot("{3}").await;
    let from = cluster.master_of(slot).await;
    cluster.migrate(slot, (from + 1) % 3).await.expect("moved");
    cluster.failover(from, None).await;
    flow.logged(CHANGED, 2).await;
    flow.send(kafka, 100, 1000).await;
    flow.accounted().await;
}

/// Log of a relay that cannot start on this store.
async fn said(lines: &str, authority: Option<&str>) -> String {
    let rabbitmq = Rabbitmq::shared().await;
    let from = names::unique("from");
    let to = names::unique("to");
    for queue in [&from, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let config = Config::stored(lines).rabbitmq("main", rabbitmq).route(
        "one",
        &format!(r#"{{ rabbitmq = "main", queue = "{from}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{to}" }}"#),
        "",
    );
    let environment: Vec<_> = authority
        .map(|authority| ("SSL_CERT_FILE", authority))
        .into_iter()
        .collect();
    let relay = Relay::spawn(&config, &environment);
    eventually("it says why it waits", async || {
        let log = relay.log();
        let line = log
            .lines()
            .find(|line| line.contains("waiting for the store"))
            .map(str::to_owned);
        line.ok_or(log)
    })
    .await
}

/// The three ways to the store of these servers.
fn ways(alone: &Redis, sentinel: &Sentinel, cluster: &Cluster) -> [String; 3] {
    let url = format!("url = \"{}\"", alone.url());
    [
        url,
        format!("{}\ntls = true", sentinel.lines()),
        format!("{}\ntls = true", cluster.lines()),
    ]
}

#[tokio::test]
async fn an_authority_that_is_not_trusted_is_said_in_a_sentence() {
    let tls = Tls::new();
    let other = Tls::new();
    let sentinel = Sentinel::start_with("redis-server", &strs(&tls.options())).await;
    let cluster = Cluster::start_as("redis-server", 0, &strs(&tls.options())).await;
    for lines in ways(sentinel.node(0), &sentinel, &cluster) {
        let log = said(&lines, Some(&other.authority())).await;
        let expected = "its certificate is not from an authority that is trusted here: name the authority's \
                        certificate in `redis.tls.ca`";
        assert!(log.contains(expected), "{log}");
        let log = said(&lines, Some("/none")).await;
        assert!(
            log.contains("the list of trusted authorities, SSL_CERT_FILE, cannot be read"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn what_else_is_wrong_with_tls_is_said_too() {
    let tls = Tls::named("DNS:redis.example");
    let port = ports::free().to_string();
    let options = [&tls.beside()[..], &["--tls-port".to_owned(), port.clone()]].concat();
    let _redis = Redis::start_with("redis-server", &strs(&options)).await;
    let log = said(
        &format!("url = \"rediss://127.0.0.1:{port}\""),
        Some(&tls.authority()),
    )
    .await;
    assert!(
        log.contains("its certificate is for redis.example, not for 127.0.0.1"),
        "{log}"
    );

    let tls = Tls::new();
    let redis = Redis::start_with("redis-server", &strs(&tls.options())).await;
    redis
        .command::<()>(&["CONFIG", "SET", "tls-auth-clients", "yes"])
        .await
        .expect("set");
    let log = said(
        &format!("url = \"{}\"", redis.url()),
        Some(&tls.authority()),
    )
    .await;
    let expected =
        "it wants a certificate of its clients: name one, and its key, in `redis.tls.certificate`";
    assert!(log.contains(expected), "{log}");
}
