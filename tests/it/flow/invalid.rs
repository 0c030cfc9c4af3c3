//! Bad inputs under each `on_invalid`, each with a healthy message right behind it.

use std::collections::BTreeMap;

use lapin::types::FieldTable;
use postdate::domain::{HeaderValue, Message};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::inputs::{self, Bad, MAX_HEADERS, MAX_SIZE};
use super::wire::{CASE, Wire};
use crate::support::relay::{Config, Relay};
use crate::support::run::now_ms;

const POLICIES: [&str; 3] = ["dead_letter", "pass_through", "drop"];
const ENDS: [(Side, Side); 4] = [
    (Side::Kafka, Side::Kafka),
    (Side::Kafka, Side::Classic),
    (Side::Classic, Side::Kafka),
    (Side::Quorum, Side::Quorum),
];
/// Two directions from Kafka, two from RabbitMQ, each under three policies.
const CASES: usize = 3 * (2 * 85 + 2 * 99);

struct Case {
    path: usize,
    policy: &'static str,
    bad: Bad,
}

fn bad(from: Side, case: &str) -> Vec<Bad> {
    if from == Side::Kafka {
        inputs::on_kafka(case)
    } else {
        inputs::on_amqp(case)
    }
}

/// A message with a body of exactly `max_size`.
fn healthy(from: Side, case: &str) -> Wire {
    from.plain(case, "k", &[b'h'; MAX_SIZE])
        .header("x-delay", "300")
}

#[tokio::test]
async fn bad_inputs_under_each_policy_and_a_healthy_message_behind_each() {
    let fixture = FlowFixture::new().await;
    let mut paths = Vec::new();
    for policy in POLICIES {
        for (from, to) in ENDS {
            let name = format!("{}-to-{}-{policy}", from.word(), to.word());
            paths.push((policy, Path::new(name, from, to)));
        }
    }
    fixture
        .open(
            &paths
                .iter()
                .map(|(_, path)| path.clone())
                .collect::<Vec<_>>(),
        )
        .await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, (policy, path)| {
            let limits = format!(
                "max_delay = \"1h\"\nmax_size = \"{MAX_SIZE}B\"\nmax_headers = \"{MAX_HEADERS}B\""
            );
            path.configure(config, &format!("on_invalid = \"{policy}\"\n{limits}"))
        });
    let mut relay = Relay::start(&config).await;

    let mut sent = BTreeMap::new();
    let mut well = BTreeMap::new();
    for (at, (policy, path)) in paths.iter().enumerate() {
        let mut messages = Vec::new();
        let base_ms = now_ms();
        for n in 0..bad(path.from, "").len() {
            let name = format!("{} | {n}", path.route);
            let bad = bad(path.from, &name).swap_remove(n);
            let behind = format!("{name} | healthy");
            messages.push((bad.sent.clone(), base_ms));
            messages.push((healthy(path.from, &behind), base_ms));
            well.insert(behind, (path.target.clone(), base_ms + 300));
            sent.insert(
                name,
                Case {
                    path: at,
                    policy,
                    bad,
                },
            );
        }
        fixture.send(path, &messages).await;
    }
    println!("{} bad inputs on {} routes", sent.len(), paths.len());
    assert_eq!((sent.len(), well.len()), (CASES, CASES));

    let passes = sent
        .iter()
        .filter(|(_, case)| case.policy == "pass_through")
        .map(|(name, _)| name);
    fixture
        .await_cases(&passes.chain(well.keys()).cloned().collect::<Vec<_>>())
        .await;
    await_metric(&relay, "admitted_total", &[], 2 * CASES as u32).await;
    counted(&relay, &paths, &sent).await;
    await_metric(&relay, "published_total", &[], CASES as u32).await;
    await_metric(&relay, "passed_through_total", &[], CASES as u32 / 3).await;
    let kept = dead_letters(&fixture, &config).await;
    assert!(relay.terminate().await.success(), "a clean end");

    let mut wrong = arrivals(&fixture, &paths, &sent, &well);
    for (name, case) in sent.iter().filter(|(_, case)| case.policy == "dead_letter") {
        let (_, path) = &paths[case.path];
        match kept.get(name).map(Vec::as_slice) {
            Some([(reason, message)]) if reason == case.bad.reason => {
                if !intact(message, &case.bad.sent) {
                    wrong.push(format!(
                        "{name}: {:?} is kept as {message:?}",
                        case.bad.sent
                    ));
                }
            }
            kept => wrong.push(format!(
                "{name} on {}: {:?} is kept as {kept:?}",
                path.route, case.bad
            )),
        }
    }
    assert_eq!(kept.len(), CASES / 3, "dead letters");
    let some = &wrong[..wrong.len().min(20)];
    assert!(
        wrong.is_empty(),
        "{} of {CASES} wrong, such as:\n{}",
        wrong.len(),
        some.join("\n")
    );
}

/// Every refusal is counted under its route, reason and policy, and under what became of it.
async fn counted(relay: &Relay, paths: &[(&'static str, Path)], sent: &BTreeMap<String, Case>) {
    let mut counts = BTreeMap::<_, u32>::new();
    for case in sent.values() {
        *counts.entry((case.path, case.bad.reason)).or_default() += 1;
    }
    for ((at, reason), count) in &counts {
        let (policy, path) = &paths[*at];
        let labels = [("route", path.route.as_str()), ("reason", reason)];
        let invalid = [labels[0], labels[1], ("policy", policy)];
        await_metric(relay, "invalid_total", &invalid, *count).await;
        let of = |wanted| if *policy == wanted { *count } else { 0 };
        await_metric(relay, "dead_letters_total", &labels, of("dead_letter")).await;
        await_metric(relay, "dropped_total", &labels, of("drop")).await;
    }
    for (at, (policy, path)) in paths.iter().enumerate() {
        let all: u32 = counts
            .iter()
            .filter(|((of, _), _)| *of == at)
            .map(|(_, count)| count)
            .sum();
        let dead = if *policy == "dead_letter" { all } else { 0 };
        await_metric(relay, "dead", &[("route", &path.route)], dead).await;
    }
}

/// Lists wrong arrivals: healthy messages must arrive once and on time, bad ones once and untouched where they
/// pass through, and nowhere else.
fn arrivals(
    fixture: &FlowFixture,
    paths: &[(&'static str, Path)],
    sent: &BTreeMap<String, Case>,
    well: &BTreeMap<String, (String, i64)>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, arrivals) in fixture.arrived() {
        let [arrival] = &arrivals[..] else {
            wrong.push(format!("{name}: arrived {} times", arrivals.len()));
            continue;
        };
        if let Some((target, due_ms)) = well.get(&name) {
            if arrival.at != *target || arrival.received_ms < *due_ms {
                wrong.push(format!("{name}, due {due_ms}: {arrival:?}"));
            }
            continue;
        }
        let case = &sent[&name];
        let (policy, path) = &paths[case.path];
        if *policy != "pass_through" || arrival.at != path.target {
            wrong.push(format!("{name}: {:?} came to {}", case.bad, arrival.at));
        } else if !untouched(path, &case.bad.sent, &arrival.wire) {
            wrong.push(format!("{name}: {:?} came as {:?}", case.bad, arrival.wire));
        }
    }
    wrong
}

/// The same on the same technology; all its headers and its body on the other one.
fn untouched(path: &Path, sent: &Wire, came: &Wire) -> bool {
    match (sent, came) {
        (Wire::Kafka(_), Wire::Kafka(_)) => sent == came,
        (Wire::Amqp(sent), Wire::Amqp(_)) => {
            let mut wanted = sent.clone();
            wanted.routing_key = path.routing_key(&Wire::Amqp(sent.clone()));
            came.clone().comparable(true) == Wire::Amqp(wanted).comparable(true)
        }
        (Wire::Kafka(sent), Wire::Amqp(came)) => {
            let there = |name: &str| came.headers.contains_key(name);
            sent.value.as_deref() == Some(&came.body[..])
                && sent.headers.iter().all(|(name, _)| there(name))
        }
        (Wire::Amqp(sent), Wire::Kafka(came)) => {
            let there = |name: &str| came.headers.iter().filter(|(n, _)| n == name).count() == 1;
            came.value.as_ref() == Some(&sent.body)
                && sent.headers.inner().keys().all(|name| there(name.as_str()))
        }
    }
}

/// Dead letters in the store, by case: the reason, and the message.
async fn dead_letters(
    fixture: &FlowFixture,
    config: &Config,
) -> BTreeMap<String, Vec<(String, Message)>> {
    let text = config.text("");
    let prefix = text
        .lines()
        .find_map(|line| line.strip_prefix("prefix = "))
        .expect("a prefix")
        .trim_matches('"');
    let mut connection = fixture.redis.connection().await.expect("connected");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{prefix}:*:d:*"))
        .query_async(&mut connection)
        .await
        .expect("the dead letters");
    let mut kept = BTreeMap::<_, Vec<_>>::new();
    for key in keys {
        let blob: Vec<u8> = redis::cmd("GET")
            .arg(key)
            .query_async(&mut connection)
            .await
            .expect("a dead letter");
        let bundle = postdate::store::decode(&blob.into()).expect("a bundle");
        let [entry] = &bundle.entries[..] else {
            panic!("dead letters are kept one by one: {bundle:?}")
        };
        let reason = entry
            .history
            .last()
            .map(|failure| failure.reason.to_string())
            .unwrap_or_default();
        let case = entry
            .message
            .headers
            .iter()
            .find(|header| header.name.as_str() == CASE);
        let case = case.map(|header| match &header.value {
            HeaderValue::Bytes(case) | HeaderValue::LongString(case) => {
                String::from_utf8_lossy(case).into_owned()
            }
            other => panic!("{CASE} is {other:?}"),
        });
        kept.entry(case.expect("a case"))
            .or_default()
            .push((reason, entry.message.clone()));
    }
    kept
}

/// Reports whether a dead letter has the message as it was sent, all headers included.
fn intact(kept: &Message, sent: &Wire) -> bool {
    let body = kept.body.as_deref();
    match sent {
        Wire::Kafka(record) => {
            let headers = kept.headers.iter().map(|header| match &header.value {
                HeaderValue::Null => (header.name.to_string(), None),
                HeaderValue::Bytes(value) => (header.name.to_string(), Some(value.to_vec())),
                other => panic!("{other:?} on Kafka"),
            });
            let key = kept.key.as_deref();
            headers.collect::<Vec<_>>() == record.headers
                && body == record.value.as_deref()
                && key == record.key.as_deref()
        }
        Wire::Amqp(amqp) => {
            let names = |table: &FieldTable| {
                table
                    .inner()
                    .keys()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
            };
            let mut kept_names: Vec<_> = kept
                .headers
                .iter()
                .map(|header| header.name.to_string())
                .collect();
            kept_names.sort();
            kept_names == names(&amqp.headers)
                && body == Some(&amqp.body[..])
                && kept.key.as_deref() == Some(b"k")
        }
    }
}
