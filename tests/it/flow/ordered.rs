//! `order = "key"` from outside: Kafka and RabbitMQ at the ingress, holders that are killed.

use std::collections::BTreeMap;

use super::site::{Path, Side, Site, await_metric, config};
use super::wire::Wire;
use crate::support::run::now_ms;
use crate::support::{Relay, eventually, names};
use anyhow::anyhow;

const KEYS: usize = 3;
const MESSAGES: usize = 60;

/// Each key's cases in the order in which they are to leave.
type Order = BTreeMap<usize, Vec<String>>;

/// Messages of some keys at random moments, and each key's cases in the order in which they are to leave.
fn random(path: &Path) -> (Vec<(Wire, i64)>, Order) {
    let (now, mut sent, mut order) = (now_ms(), Vec::new(), BTreeMap::<usize, Vec<(i64, usize)>>::new());
    for n in 0..MESSAGES {
        let key = fastrand::usize(..KEYS);
        // From Kafka some of one moment, and some due when they come; what two replicas read from one queue comes in
        // no order.
        let mut due = now + 3000 + 50 * (n as i64) + [0, 0, 4000, -2500][fastrand::usize(..4)];
        if path.from == Side::Kafka {
            due = if n < 6 { now - 1000 + n as i64 } else { due / 256 * 256 };
        }
        let case = format!("{} {key} {n}", path.route);
        let wire = path.from.plain(&case, &format!("key-{key}"), b"body");
        sent.push((wire.header("x-deliver-at", &due.to_string()), now));
        order.entry(key).or_default().push((due, n));
    }
    let in_order = |(key, mut all): (usize, Vec<(i64, usize)>)| {
        all.sort_unstable();
        (key, all.into_iter().map(|(_, n)| format!("{} {key} {n}", path.route)).collect())
    };
    (sent, order.into_iter().map(in_order).collect())
}

#[tokio::test]
async fn each_key_arrives_in_order_though_relays_are_killed() {
    let site = Site::new().await;
    let paths = [
        Path::new("from-kafka", Side::Kafka, Side::Kafka),
        Path::new("from-rabbitmq", Side::Classic, Side::Kafka),
    ];
    site.open(&paths).await;
    let config = config(&site).section("[timer]\nclaim = \"2s\"");
    let config = paths.iter().fold(config, |config, path| path.configure(config, "order = \"key\""));
    let mut relays = [Relay::start(&config).await, Relay::start(&config).await];
    let mut expected = BTreeMap::new();
    for path in &paths {
        let (sent, order) = random(path);
        site.send(path, &sent).await;
        expected.insert(path.route.clone(), order);
    }
    for (count, victim) in [(30, 0), (70, 1)] {
        eventually(&format!("{count} have arrived"), async || match site.arrived().len() {
            arrived if arrived >= count => Ok(()),
            arrived => Err(anyhow!("{arrived}")),
        })
        .await;
        relays[victim].kill9().await;
        relays[victim].restart().await;
    }
    let all = expected.values().flat_map(BTreeMap::values).flatten().cloned();
    site.await_cases(&all.collect::<Vec<_>>()).await;
    for path in &paths {
        for (key, order) in &expected[&path.route] {
            let mut firsts: Vec<String> = Vec::new();
            for case in site.order_at(&path.target) {
                if case.starts_with(&format!("{} {key} ", path.route)) && !firsts.contains(&case) {
                    firsts.push(case);
                }
            }
            assert_eq!(firsts, *order, "{} key {key}", path.route);
        }
    }
}

/// One key's second message is for a topic that is not there, another's for one that takes no records of its size.
#[tokio::test]
async fn what_a_broker_refuses_holds_back_its_own_key_alone_and_only_up_to_its_attempts() {
    let site = Site::new().await;
    let path = Path::new("refusing", Side::Kafka, Side::Kafka);
    site.open(std::slice::from_ref(&path)).await;
    let [missing, small] = ["missing", "small"].map(names::unique);
    site.kafka.create_topic_with(&small, 1, &[("max.message.bytes", "2000")]).await;
    site.collect(Side::Kafka, &small).await;
    let more = format!(
        "allow_targets = [\"{missing}\", \"{small}\"]\norder = \"key\"\n\
         retry = {{ attempts = 4, initial = \"1s\", max = \"1s\" }}"
    );
    let config = config(&site).route(&path.route, &path.source_text(), &path.target_text(), &more);
    let relay = Relay::start(&config).await;
    let (now, large) = (now_ms(), vec![b'x'; 5000]);
    let mut sent = Vec::new();
    for n in 0..5 {
        for (key, target, body) in [
            ("missing", &missing, &b"body"[..]),
            ("small", &small, &large[..]),
            ("well", &path.target, b"body"),
        ] {
            let body = if n == 1 { body } else { b"body" };
            let wire = path.from.plain(&format!("{key} {n}"), key, body);
            let wire = wire.header("x-deliver-at", &(now + 1000 + 20 * n).to_string());
            sent.push((if n == 1 { wire.header("x-delay-target", target) } else { wire }, now));
        }
    }
    site.send(&path, &sent).await;
    let arrive: Vec<String> = ["missing", "small", "well"]
        .iter()
        .flat_map(|key| (0..5).filter(|n| *key == "well" || *n != 1).map(move |n| format!("{key} {n}")))
        .collect();
    site.await_cases(&arrive).await;
    let of = |reason| [("route", path.route.as_str()), ("reason", reason)];
    await_metric(&relay, "dead_letters_total", &of("unknown_target"), 1).await;
    await_metric(&relay, "publish_failures_total", &of("unknown_target"), 4).await;
    await_metric(&relay, "dead_letters_total", &of("too_big_for_target"), 1).await;
    await_metric(&relay, "publish_failures_total", &of("too_big_for_target"), 1).await;
    let order = site.order_at(&path.target);
    for key in ["missing", "small", "well"] {
        let found: Vec<_> = order.iter().filter(|case| case.starts_with(key)).collect();
        let expected: Vec<_> = arrive.iter().filter(|case| case.starts_with(key)).collect();
        assert_eq!(found, expected);
    }
    let place = |case: &str| order.iter().position(|other| other == case).expect("it is there");
    let held = place("missing 2");
    assert!(["small 4", "well 4"].iter().all(|case| place(case) < held), "others do not wait: {order:?}");
}
