//! Targets that refuse single messages, and targets that are away for longer than anybody would try.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use super::common::{late, lateness_p99, lateness_p99_of, limit_recovery, named, send};
use crate::outcome::Outcome;
use crate::scenario::{Broker, Scale, Scenario, Setup};
use crate::servers;
use crate::support::accounting::Stamp;
use crate::support::proxy::Mode;
use crate::support::{QueueKind, When};

/// Bytes that a target's topic takes at most, a body above it, and headers above RabbitMQ's frame of 128 KiB.
const TOPIC_LIMIT: &[(&str, &str)] = &[("max.message.bytes", "100000")];
const LARGE_BODY: usize = 150_000;
const LARGE_HEADER: usize = 140_000;
/// Healthy messages beside each that is refused: of its key, and due with it.
const NEIGHBOURS: usize = 12;
/// How often some are sent that are refused.
const ROUNDS: usize = 12;
/// One in a hundred of all others may be later than this, ms.
const LATE_P99_MS: i64 = 2000;

/// Single messages that a target refuses for what they are, each among healthy ones.
pub(super) async fn content(scale: Scale) -> Outcome {
    let retry = "retry = { attempts = 3, initial = \"100ms\", max = \"200ms\" }";
    let setup = Setup {
        routes: format!("max_headers = \"256KiB\"\n{retry}"),
        target_settings: TOPIC_LIMIT,
        allow_queue: "\"/missing-queue\"",
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let header = "x".repeat(LARGE_HEADER);
    let mut sent = 0;
    for _ in 0..ROUNDS {
        for way in &scenario.ways {
            let when = When::At(800);
            let bad = named(&scenario, way, when);
            let bad = match way.name {
                "k-k" | "r-k" => bad.size(LARGE_BODY).random(),
                "k-r" => bad.header("test-large", Some(header.as_bytes())),
                _ => bad.contract("x-delay-target", "/missing-queue"),
            };
            let key = if way.from_kafka {
                "key"
            } else if way.to_kafka {
                &way.source
            } else {
                &way.target
            };
            let good = || scenario.run.message(&way.label(), when).key(key).size(300);
            let mut messages: Vec<_> = (0..NEIGHBOURS).map(|_| good()).collect();
            messages.insert(NEIGHBOURS / 2, bad);
            sent += 1;
            send(&scenario, way, messages).await;
        }
        scenario.moment(200, 400).await;
    }
    scenario.healed();
    let report = scenario.account().await;
    let refused = scenario.total("postdate_publish_failures_total", &[]).await as usize;
    scenario.precondition(
        refused >= sent,
        format!("{refused} publishes of {sent} were refused"),
    );
    scenario.limit(
        report.parked == sent,
        format!("{} dead letters of {sent} that were refused", report.parked),
    );
    let p99 = lateness_p99(&scenario);
    scenario.note(format!(
        "{sent} refused, {} dead; lateness p99 of the others {p99} ms",
        report.parked
    ));
    scenario.limit(
        p99 <= LATE_P99_MS,
        format!("lateness p99 is {p99} ms, the limit is {LATE_P99_MS}"),
    );
    scenario.close().await
}

/// How long the targets are away: ten times what all attempts of a message together take.
const OUTAGE: Duration = Duration::from_secs(30);
/// The node that is killed, and the partition that only it has.
const LEADERLESS: usize = 2;
/// Messages whose order is judged: due all through the outage, of so many keys.
const ORDERED: u64 = 300;
const KEYS: u64 = 8;

/// All targets are away for longer than a message's attempts would last.
pub(super) async fn outage(scale: Scale) -> Outcome {
    let setup = Setup {
        slow_targets: &["k-k", "k-r", "r-k", "r-r"],
        routes: "retry = { attempts = 3, initial = \"100ms\", max = \"500ms\" }".into(),
        from_kafka: "order = \"key\"".into(),
        patience: Duration::from_secs(90),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    let first = scenario.run.made();
    for way in scenario.ways.iter().filter(|way| way.from_kafka) {
        let message = |n: u64| {
            let when = When::At(5000 + n * (OUTAGE.as_millis() as u64) / ORDERED);
            scenario
                .run
                .message(&way.label(), when)
                .key(&format!("ordered-{}", n % KEYS))
        };
        send(&scenario, way, (0..ORDERED).map(message).collect()).await;
    }
    let ordered = first..scenario.run.made();
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let proxies = [
        scenario.kafka.get().proxy.clone(),
        scenario.rabbitmq.get().proxy.clone(),
    ];
    for proxy in &proxies {
        proxy.set(Mode::Refuse);
        proxy.reset();
    }
    sleep(OUTAGE).await;
    for proxy in &proxies {
        proxy.set(Mode::Pass);
    }
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    let counts = late(&mut scenario);
    scenario.precondition(
        counts.iter().all(|&count| count > 0),
        format!("late, by route: {counts:?}"),
    );
    let dead = scenario.total("postdate_dead_letters_total", &[]).await;
    scenario.limit(
        dead < 1.0,
        format!("{dead} messages became dead letters while their targets were away"),
    );
    let (judged, overtaken) = overtaken(&scenario, &ordered);
    scenario.precondition(
        judged as u64 >= ORDERED,
        format!("only {judged} messages of ordered routes arrived"),
    );
    scenario.limit(
        overtaken == 0,
        format!("{overtaken} of {judged} messages came after a later one of their key"),
    );
    limit_recovery(&mut scenario, 60_000);
    scenario.close().await
}

/// One partition of each Kafka target has no leader, for longer than a message's attempts would last.
pub(super) async fn leaderless(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::three_kafkas(), servers::rabbitmq());
    let setup = Setup {
        scattered_targets: true,
        target_settings: &[("min.insync.replicas", "1")],
        routes: "retry = { attempts = 3, initial = \"100ms\", max = \"500ms\" }".into(),
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let kafka = Broker::Own(kafka);
    let rabbitmq = Broker::Shared(rabbitmq);
    let mut scenario = Scenario::start_on(scale, setup, kafka, rabbitmq).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.kafka.own().kill9_node(LEADERLESS).await;
    sleep(OUTAGE).await;
    let kafka = scenario.kafka.own();
    let mut topics = scenario.ways.iter().filter(|way| way.to_kafka);
    let leaderless = topics.all(|way| kafka.is_led(&way.target, LEADERLESS + 1).is_err());
    let named = scenario.logged(&format!("partition {LEADERLESS} of "));
    scenario.kafka.own().start_again().await;
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    let counts = late(&mut scenario);
    let to_kafka = scenario.ways.iter().zip(&counts);
    let late_to_kafka: usize = to_kafka
        .filter(|(way, _)| way.to_kafka)
        .map(|(_, n)| n)
        .sum();
    scenario.precondition(late_to_kafka > 0, "nothing to Kafka was late");
    scenario.precondition(leaderless, "each partition has a leader");
    scenario.limit(
        named,
        "no line of the log names the partition without a leader".to_owned(),
    );
    let dead = scenario.total("postdate_dead_letters_total", &[]).await;
    scenario.limit(
        dead < 1.0,
        format!("{dead} messages became dead letters while their partition had no leader"),
    );
    limit_recovery(&mut scenario, 60_000);
    scenario.close().await
}

/// The queue that does not confirm, and how long: longer than a publish waits for its confirm.
const ILL: &str = "ill";
const HANGS: Duration = Duration::from_secs(40);
/// Messages for it, of each route to RabbitMQ.
const TO_ILL: usize = 30;

/// One queue of an exchange does not confirm, and the others do.
pub(super) async fn no_confirm(scale: Scale) -> Outcome {
    let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::own_rabbitmq());
    rabbitmq.server.declare_queue(ILL, QueueKind::Classic).await;
    let setup = Setup {
        allow_queue: "\"/ill\"",
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let kafka = Broker::Shared(kafka);
    let rabbitmq = Broker::Own(rabbitmq);
    let mut scenario = Scenario::start_on(scale, setup, kafka, rabbitmq).await;
    let label = format!("rabbitmq:{ILL}");
    scenario
        .run
        .collect_rabbitmq(&scenario.rabbitmq.get().server, ILL);
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    scenario.rabbitmq.own().suspend_queue(ILL).await;
    let first = scenario.run.made();
    for way in scenario.ways.iter().filter(|way| !way.to_kafka) {
        let key = if way.from_kafka { "key" } else { ILL };
        let message = |n: usize| {
            let message = scenario.run.message(&label, When::At(500 + n as u64 * 50));
            message.key(key).contract("x-delay-target", "/ill")
        };
        send(&scenario, way, (0..TO_ILL).map(message).collect()).await;
    }
    let to_ill = first..scenario.run.made();
    sleep(HANGS).await;
    scenario.rabbitmq.own().resume_queue(ILL).await;
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    let unknown = [("reason", "confirm_unknown")];
    let unconfirmed = scenario
        .total("postdate_publish_failures_total", &unknown)
        .await;
    scenario.precondition(unconfirmed > 0.5, "every publish was confirmed in time");
    let repeated = came_twice(&scenario, &to_ill);
    scenario.limit(
        repeated == 0,
        format!("{repeated} messages for other queues came twice"),
    );
    late(&mut scenario);
    let p99 = lateness_p99_of(&scenario, |stamp| stamp.target != label);
    scenario.note(format!("lateness p99 of the others {p99} ms"));
    scenario.limit(
        p99 <= LATE_P99_MS,
        format!("lateness p99 is {p99} ms, the limit is {LATE_P99_MS}"),
    );
    let dead = scenario.total("postdate_dead_letters_total", &[]).await;
    scenario.limit(dead < 1.0, format!("{dead} messages became dead letters"));
    scenario.close().await
}

/// How many messages came more than once, but for these.
fn came_twice(scenario: &Scenario, others: &std::ops::Range<u64>) -> usize {
    let mut times = BTreeMap::<u64, usize>::new();
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else {
            continue;
        };
        if !others.contains(&stamp.id.seq) {
            *times.entry(stamp.id.seq).or_default() += 1;
        }
    }
    times.values().filter(|times| **times > 1).count()
}

/// First deliveries of these messages, and those of them that came after a later one of their key.
fn overtaken(scenario: &Scenario, numbers: &std::ops::Range<u64>) -> (usize, usize) {
    let mut latest = BTreeMap::<(String, Option<String>), i64>::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut overtaken = 0;
    for delivery in scenario.run.ledger().deliveries_from(0) {
        let Some(stamp) = Stamp::read(&delivery.body) else {
            continue;
        };
        if !numbers.contains(&stamp.id.seq) || !seen.insert(stamp.id.seq) {
            continue;
        }
        let last = latest.entry((stamp.target, stamp.key)).or_insert(i64::MIN);
        overtaken += usize::from(stamp.due_ms < *last);
        *last = stamp.due_ms.max(*last);
    }
    (seen.len(), overtaken)
}
