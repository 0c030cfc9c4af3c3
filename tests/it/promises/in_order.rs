//! Promise: with `order = "key"` the messages of a key leave in the order of their due times, whatever fails. Other tests of
//! it: `order`, `store/ordered.rs`, `flow/ordered.rs`, `topology/ordered.rs`.

use std::collections::BTreeMap;

use anyhow::anyhow;

use crate::flow::fixture::{FlowFixture, Path, Side, config};
use crate::flow::wire::Wire;
use crate::support::run::now_ms;
use crate::support::{Relay, eventually};

const KEYS: usize = 3;
const MESSAGES: usize = 60;

/// Each key's cases in the order in which they are to leave.
type Order = BTreeMap<usize, Vec<String>>;

/// Messages of some keys at random moments, and each key's cases in the order in which they are to leave.
fn random(path: &Path) -> (Vec<(Wire, i64)>, Order) {
    let now = now_ms();
    let mut sent = Vec::new();
    let mut order = BTreeMap::<usize, Vec<(i64, usize)>>::new();
    for n in 0..MESSAGES {
        let key = fastrand::usize(..KEYS);
        // From Kafka some of one moment, and some due when they come; what two replicas read from one queue comes in
        // no order.
        let mut due = now + 3000 + 50 * (n as i64) + [0, 0, 4000, -2500][fastrand::usize(..4)];
        if path.from == Side::Kafka {
            due = if n < 6 {
                now - 1000 + n as i64
            } else {
                due / 256 * 256
            };
        }
        let case = format!("{} {key} {n}", path.route);
        let wire = path.from.plain(&case, &format!("key-{key}"), b"body");
        sent.push((wire.header("x-deliver-at", &due.to_string()), now));
        order.entry(key).or_default().push((due, n));
    }
    let in_order = |(key, mut all): (usize, Vec<(i64, usize)>)| {
        all.sort_unstable();
        (
            key,
            all.into_iter()
                .map(|(_, n)| format!("{} {key} {n}", path.route))
                .collect(),
        )
    };
    (sent, order.into_iter().map(in_order).collect())
}

#[tokio::test]
async fn each_key_arrives_in_order_though_relays_are_killed() {
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("from-kafka", Side::Kafka, Side::Kafka),
        Path::new("from-rabbitmq", Side::Classic, Side::Kafka),
    ];
    fixture.open(&paths).await;
    let config = config(&fixture).section("[timer]\nclaim = \"2s\"");
    let config = paths.iter().fold(config, |config, path| {
        path.configure(config, "order = \"key\"")
    });
    let mut relays = [Relay::start(&config).await, Relay::start(&config).await];
    let mut expected = BTreeMap::new();
    for path in &paths {
        let (sent, order) = random(path);
        fixture.send(path, &sent).await;
        expected.insert(path.route.clone(), order);
    }
    for (count, victim) in [(30, 0), (70, 1)] {
        eventually(&format!("{count} have arrived"), async || {
            match fixture.arrived().len() {
                arrived if arrived >= count => Ok(()),
                arrived => Err(anyhow!("{arrived}")),
            }
        })
        .await;
        relays[victim].kill9().await;
        relays[victim].restart().await;
    }
    let all = expected
        .values()
        .flat_map(BTreeMap::values)
        .flatten()
        .cloned();
    fixture.await_cases(&all.collect::<Vec<_>>()).await;
    for path in &paths {
        for (key, order) in &expected[&path.route] {
            let mut firsts: Vec<String> = Vec::new();
            for case in fixture.order_at(&path.target) {
                if case.starts_with(&format!("{} {key} ", path.route)) && !firsts.contains(&case) {
                    firsts.push(case);
                }
            }
            assert_eq!(firsts, *order, "{} key {key}", path.route);
        }
    }
}
