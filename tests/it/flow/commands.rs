//! Cancel, reschedule, replace and duplicates, end to end: what was cancelled or replaced never arrives, what was
//! rescheduled arrives at its new moment, all of it judged in order of delivery.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lapin::types::AMQPValue;
use postdate::domain::{Partitions, RouteName};

use super::fixture::{FlowFixture, PARTITIONS, Path, Side, await_metric, config};
use super::wire::{Amqp, Arrival, Record, Wire, bytes, table, text};
use crate::support::run::now_ms;
use crate::support::{Relay, names};

/// Ends of the routes with each policy.
const ENDS: [(&str, &[(Side, Side)]); 3] = [
    ("keep", &OFTEN),
    ("replace", &OFTEN),
    (
        ORDERED,
        &[(Side::Kafka, Side::Kafka), (Side::Quorum, Side::Kafka)],
    ),
];
const OFTEN: [(Side, Side); 4] = [
    (Side::Kafka, Side::Kafka),
    (Side::Kafka, Side::Quorum),
    (Side::Classic, Side::Kafka),
    (Side::Quorum, Side::Classic),
];
/// Keys leave in order, `keep` for duplicates, and each command has another key than its message: it is to be found
/// where that key is, although it is read in the same batch.
const ORDERED: &str = "ordered";

/// One message or command of a script: case, name, headers.
type Step = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// All in one batch, in this order. What a command concerns lies some seconds ahead: it must not be due
/// before the command is read.
const SCRIPT: [Step; 23] = [
    ("cancelled", "a", &[("x-delay", "6000")]),
    ("cancel 1", "a", &[("x-delay-op", "cancel")]),
    ("cancelled again", "b", &[("x-delay", "6000")]),
    // The same message once more with the command on it; its delay asks for nothing then.
    (
        "cancel 2",
        "b",
        &[("x-delay", "6000"), ("x-delay-op", "cancel")],
    ),
    ("cancel 3", "b", &[("x-delay-op", "cancel")]),
    ("the name is free again", "b", &[("x-delay", "1200")]),
    ("sooner", "c", &[("x-delay", "1800000")]),
    (
        "reschedule 1",
        "c",
        &[("x-delay-op", "reschedule"), ("x-delay", "1000")],
    ),
    ("later", "d", &[("x-delay", "6000")]),
    (
        "reschedule 2",
        "d",
        &[("x-delay-op", "reschedule"), ("x-delay", "8s")],
    ),
    ("now", "e", &[("x-delay", "1800000")]),
    (
        "reschedule 3",
        "e",
        &[("x-delay-op", "reschedule"), ("x-delay", "0")],
    ),
    ("twice moved", "f", &[("x-delay", "7s")]),
    (
        "reschedule 4",
        "f",
        &[("x-delay-op", "reschedule"), ("x-delay", "1800000")],
    ),
    (
        "reschedule 5",
        "f",
        &[("x-delay-op", "reschedule"), ("x-delay", "1300")],
    ),
    (
        "a command becomes a message",
        "g",
        &[("x-delay-op", "reschedule"), ("x-delay", "1100")],
    ),
    ("replaced", "j", &[("x-delay", "1800000"), ("old", "1")]),
    (
        "its replacement",
        "j",
        &[("x-delay-op", "replace"), ("x-delay", "1200")],
    ),
    (
        "a replacement of nothing",
        "l",
        &[("x-delay-op", "replace"), ("x-delay", "1100")],
    ),
    ("overtaken", "h", &[("x-delay-op", "cancel")]),
    ("after its cancel", "h", &[("x-delay", "1000")]),
    ("first", "i", &[("x-delay", "6s")]),
    ("second", "i", &[("x-delay", "7s")]),
];
/// Cases that must arrive, and when: ms after the base. `first` and `second` depend on the policy.
const ARRIVES: [(&str, &str, i64); 9] = [
    ("the name is free again", "b", 1200),
    ("sooner", "c", 1000),
    ("later", "d", 8000),
    ("now", "e", 0),
    ("twice moved", "f", 1300),
    ("a command becomes a message", "g", 1100),
    ("its replacement", "j", 1200),
    ("a replacement of nothing", "l", 1100),
    ("after its cancel", "h", 1000),
];
/// `op`, `result`, how often a script makes it.
const RESULTS: [(&str, &str, u32); 6] = [
    ("cancel", "cancelled", 2),
    ("cancel", "unknown", 2),
    ("reschedule", "rescheduled", 5),
    ("reschedule", "stored", 1),
    ("replace", "replaced", 1),
    ("replace", "stored", 1),
];
const SENTINEL: &str = "sentinel";

fn message(path: &Path, case: &str, name: &str, headers: &[(&str, &str)]) -> Wire {
    let is_command = headers.iter().any(|(name, _)| *name == "x-delay-op");
    let key = if is_command && path.route.ends_with(ORDERED) {
        case
    } else {
        name
    };
    let plain = path.from.plain(case, key, case.as_bytes());
    let named = plain.header("x-delay-id", name);
    headers
        .iter()
        .fold(named, |message, (name, value)| message.header(name, value))
}

/// The script on one path, and a sentinel that is due when all of it was.
fn script(path: &Path, base_ms: i64) -> Vec<(Wire, i64)> {
    let case = |step: &str| format!("{} | {step}", path.route);
    let steps = SCRIPT
        .iter()
        .map(|(step, name, headers)| message(path, &case(step), name, headers));
    let last = message(path, &case(SENTINEL), "z", &[("x-delay", "9s")]);
    steps.chain([last]).map(|wire| (wire, base_ms)).collect()
}

/// Arrivals that one path must have: case, name, due.
fn expected(path: &Path, policy: &str) -> Vec<(String, String, i64)> {
    let twice = if policy == "replace" {
        ("second", "i", 7000)
    } else {
        ("first", "i", 6000)
    };
    let all = ARRIVES.iter().chain([&twice, &(SENTINEL, "z", 9000)]);
    all.map(|(case, name, due)| (format!("{} | {case}", path.route), (*name).to_owned(), *due))
        .collect()
}

fn judge(path: &Path, name: &str, due_ms: i64, arrival: &Arrival) -> Option<String> {
    let (stamp, _) = arrival.wire.clone().take_stamp();
    if stamp.id.as_deref() != Some(name) || stamp.attempt.is_some() {
        return Some(format!("stamped {stamp:?}"));
    }
    let at = stamp.due_ms.unwrap_or_default();
    let right = if path.from == Side::Kafka {
        at == due_ms
    } else {
        at >= due_ms
    };
    if !right || arrival.received_ms < at || arrival.at != path.target {
        return Some(format!("due {at}, not {due_ms}: {arrival:?}"));
    }
    None
}

#[tokio::test]
async fn commands_and_duplicates_in_order_of_delivery() {
    let fixture = FlowFixture::new().await;
    let mut paths = Vec::new();
    for (policy, ends) in ENDS {
        for &(from, to) in ends {
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
            let policy = match *policy {
                ORDERED => "order = \"key\"".to_owned(),
                policy => format!("on_duplicate = \"{policy}\""),
            };
            path.configure(config, &policy)
        });
    let mut relay = Relay::start(&config).await;

    // Their consumers have joined once something has come through.
    let joined = |path: &Path| format!("{} | joined", path.route);
    for (_, path) in &paths {
        // An id alone asks for nothing: it passes through.
        fixture
            .send(path, &[(message(path, &joined(path), "k", &[]), now_ms())])
            .await;
    }
    fixture
        .await_cases(
            &paths
                .iter()
                .map(|(_, path)| joined(path))
                .collect::<Vec<_>>(),
        )
        .await;

    let mut wanted = Vec::new();
    for (policy, path) in &paths {
        let base_ms = now_ms();
        fixture.send(path, &script(path, base_ms)).await;
        let all = expected(path, policy).into_iter();
        wanted.extend(all.map(|(case, name, due)| (path, case, name, base_ms + due)));
    }
    fixture
        .await_cases(
            &wanted
                .iter()
                .map(|(_, case, ..)| case.clone())
                .collect::<Vec<_>>(),
        )
        .await;
    for (_, path) in &paths {
        for (op, result, count) in RESULTS {
            let labels = [
                ("route", path.route.as_str()),
                ("op", op),
                ("result", result),
            ];
            await_metric(&relay, "commands_total", &labels, count).await;
        }
        await_metric(&relay, "commands_total", &[("route", &path.route)], 12).await;
        await_metric(&relay, "duplicates_total", &[("route", &path.route)], 1).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
        await_metric(&relay, "published_total", &[("route", &path.route)], 11).await;
    }
    assert!(relay.terminate().await.success(), "a clean end");

    let arrived = fixture.arrived();
    let mut wrong = Vec::new();
    for (path, case, name, due_ms) in &wanted {
        let judged = judge(path, name, *due_ms, &arrived[case][0]);
        wrong.extend(judged.map(|why| format!("{case}: {why}")));
    }
    for (case, arrivals) in &arrived {
        let known =
            wanted.iter().any(|(_, wanted, ..)| wanted == case) || case.ends_with("| joined");
        if arrivals.len() != 1 || !known {
            wrong.push(format!("{case}: arrived {} times", arrivals.len()));
        }
    }
    println!("{} scripts of {} steps", paths.len(), SCRIPT.len());
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn headers_by_other_names_and_delays_that_count_from_elsewhere() {
    let fixture = FlowFixture::new().await;
    let kafka = Path::new("from-arrival", Side::Kafka, Side::Kafka);
    let rabbitmq = Path::new("from-produced", Side::Classic, Side::Classic);
    fixture.open(&[kafka.clone(), rabbitmq.clone()]).await;
    let renamed = "headers = { delay = \"wait\", deliver_at = \"at\", id = \"name\", op = \"op\", target = \"to\" }";
    let config = kafka.configure(
        config(&fixture),
        &format!("delay_from = \"arrival\"\n{renamed}"),
    );
    let config = rabbitmq.configure(config, &format!("delay_from = \"produced\"\n{renamed}"));
    let relay = Relay::start(&config).await;

    // A record of an hour ago still waits from now on.
    let base_ms = now_ms();
    let old = Record {
        key: bytes("k"),
        value: bytes("an old record"),
        headers: vec![],
    }
    .header("Wait", "600")
    .header("name", "order-7")
    .header("to", &kafka.other)
    .header("x-delay", "ordinary");
    fixture
        .send(&kafka, &[(Wire::Kafka(old), base_ms - 3_600_000)])
        .await;
    // The whole second of its timestamp may have lasted 999 ms longer.
    let seconds = (base_ms / 1000) as u64 - 10;
    let mut old = Amqp {
        body: b"an old message".to_vec(),
        ..Amqp::default()
    };
    old.properties = old.properties.with_timestamp(seconds);
    old.headers = table([
        ("wait", AMQPValue::LongInt(11_000)),
        ("x-delay", text("ordinary")),
    ]);
    fixture.send(&rabbitmq, &[(Wire::Amqp(old), 0)]).await;
    fixture
        .await_cases(&["an old record".to_owned(), "an old message".to_owned()])
        .await;

    let arrived = fixture.arrived();
    let record = &arrived["an old record"][0];
    let (stamp, wire) = record.wire.clone().take_stamp();
    let plain = Record {
        key: bytes("k"),
        value: bytes("an old record"),
        headers: vec![],
    };
    assert_eq!(wire, Wire::Kafka(plain.header("x-delay", "ordinary")));
    assert_eq!(
        (stamp.id.as_deref(), &record.at),
        (Some("order-7"), &kafka.other)
    );
    assert!(
        stamp
            .due_ms
            .is_some_and(|due| (base_ms + 600..=record.received_ms).contains(&due)),
        "{record:?}"
    );

    let message = &arrived["an old message"][0];
    let (stamp, wire) = message.wire.clone().take_stamp();
    let Wire::Amqp(amqp) = wire else {
        panic!("{message:?}")
    };
    assert_eq!(amqp.headers, table([("x-delay", text("ordinary"))]));
    assert_eq!(stamp.due_ms, Some(seconds as i64 * 1000 + 999 + 11_000));
    assert!(
        stamp.due_ms.is_some_and(|due| due <= message.received_ms),
        "{message:?}"
    );
    drop(relay);
}

#[tokio::test]
async fn a_name_without_a_delay_passes_as_it_came_and_leaves_its_namesake_pending() {
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("from-kafka", Side::Kafka, Side::Kafka),
        Path::new("from-rabbitmq", Side::Quorum, Side::Classic),
    ];
    fixture.open(&paths).await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, path| path.configure(config, ""));
    let mut relay = Relay::start(&config).await;
    for path in &paths {
        let case = |step: &str| format!("{} | {step}", path.route);
        let named = |step: &str, headers: &[(&str, &str)]| message(path, &case(step), "a", headers);
        let passes = named("passes", &[]);
        let waits = named("waits", &[("x-delay", "1h")]);
        fixture
            .send(path, &[(waits, now_ms()), (passes.clone(), now_ms())])
            .await;
        fixture.await_cases(&[case("passes")]).await;
        let came = fixture.arrived()[&case("passes")][0].wire.clone();
        assert_eq!(
            came.comparable(true),
            passes.comparable(true),
            "its id stays, and nothing is added"
        );
        await_metric(&relay, "pending", &[("route", &path.route)], 1).await;
        fixture
            .send(
                path,
                &[(named("cancel", &[("x-delay-op", "cancel")]), now_ms())],
            )
            .await;
        let labels = [
            ("route", path.route.as_str()),
            ("op", "cancel"),
            ("result", "cancelled"),
        ];
        await_metric(&relay, "commands_total", &labels, 1).await;
        await_metric(&relay, "duplicates_total", &[("route", &path.route)], 0).await;
    }
    assert!(relay.terminate().await.success(), "a clean end");
}

/// Keys of a route in three partitions of the store, and one more in the partition of the second.
fn keys_apart(route: &str) -> [String; 4] {
    let partitions = Partitions::new(PARTITIONS).expect("a count");
    let route = RouteName::new(route).expect("a name");
    let mut keys = BTreeMap::<_, Vec<String>>::new();
    loop {
        let key = format!("key {}", keys.values().map(Vec::len).sum::<usize>());
        let partition = partitions.of_key(&route, key.as_bytes());
        keys.entry(partition).or_default().push(key);
        let mut all: Vec<_> = keys.values().collect();
        all.sort_by_key(|keys| Reverse(keys.len()));
        if let [two, first, third, ..] = &all[..]
            && let [second, beside, ..] = &two[..]
        {
            return [&first[0], second, &third[0], beside].map(String::clone);
        }
    }
}

/// On a route that keeps the order of keys a command means the message of its own key first, whatever the store has answered
/// until then, and then any of its name.
#[tokio::test]
async fn of_two_messages_of_a_name_a_command_means_that_of_its_key() {
    let fixture = FlowFixture::new().await;
    let path = Path::new(names::unique("two"), Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let config = path.configure(config(&fixture), "order = \"key\"");
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let keys = keys_apart(&path.route);
    let [first, second, third, beside] = keys.each_ref().map(String::as_str);
    let wire = |case: &str, name: &str, key: &str, header: (&str, &str)| {
        let plain = path.from.plain(case, key, case.as_bytes());
        let wire = plain.header("x-delay-id", name).header(header.0, header.1);
        (wire, now_ms())
    };
    let (delay, cancel) = (("x-delay", "4s"), ("x-delay-op", "cancel"));
    // Each name has an older message of another key. Once the newer one is cancelled a command of any key means that one.
    let followers = [("b", third), ("e", second), ("f", beside)];
    let older = followers.map(|(name, _)| wire("stored before", name, first, ("x-delay", "1h")));
    fixture.send(&path, &older).await;
    await_metric(&relay, "pending", &[("route", &path.route)], 3).await;
    let mut batch = vec![
        wire("cancelled by its key", "a", first, delay),
        wire("of another key", "a", second, delay),
        wire("cancel 1", "a", first, cancel),
        wire("cancelled by no key of its own", "c", first, delay),
        wire("cancel 2", "c", third, cancel),
        wire("replaced", "d", first, ("x-delay", "1h")),
        wire("cancel 3", "d", first, cancel),
        wire("new", "d", second, delay),
    ];
    for (name, follower) in followers {
        batch.extend([
            wire("cancelled at once", name, second, delay),
            wire("cancels the newer", name, second, cancel),
            wire("cancels the older", name, follower, cancel),
            wire("finds none", name, follower, cancel),
        ]);
    }
    fixture.send(&path, &batch).await;
    let arrive = ["of another key", "new"].map(str::to_owned);
    fixture.await_cases(&arrive).await;
    for (result, count) in [("cancelled", 9), ("unknown", 3)] {
        let labels = [
            ("route", path.route.as_str()),
            ("op", "cancel"),
            ("result", result),
        ];
        await_metric(&relay, "commands_total", &labels, count).await;
    }
    await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
    let arrived: Vec<String> = fixture.arrived().into_keys().collect();
    assert_eq!(arrived.len(), 2, "{arrived:?}");
}
