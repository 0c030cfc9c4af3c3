//! Messages of producers that are invalid, that go nowhere, or that are too many.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::{late, limit_no_duplicate, named, send};
use crate::load::Way;
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::support::When;
use crate::support::proxy::Mode;

/// Headers that must be refused, whatever carries them.
const CORPUS: &[(&str, &str)] = &[
    ("x-delay", ""),
    ("x-delay", " 5"),
    ("x-delay", "+5"),
    ("x-delay", "-5"),
    ("x-delay", "1e3"),
    ("x-delay", "0x10"),
    ("x-delay", "1_000"),
    ("x-delay", "5\u{0}"),
    ("x-delay", "\u{ff15}"),
    ("x-delay", "NaN"),
    ("x-delay", "99999999999999999999"),
    ("x-delay", "9223372036854775807"),
    ("x-delay", "5 s"),
    ("x-deliver-at", "tomorrow"),
    ("x-deliver-at", "2026-13-01T00:00:00Z"),
    ("x-deliver-at", "9999-12-31T23:59:59Z"),
    ("x-deliver-at", ""),
];

pub(super) async fn corpus(scale: Scale) -> Outcome {
    let mut scenario = Scenario::start(scale, Setup::default()).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let mut sent = 0;
    for _ in 0..5 {
        for way in [&scenario.ways[0], &scenario.ways[3]] {
            let bad = CORPUS
                .iter()
                .map(|(name, value)| named(&scenario, way, When::Now).contract(name, value));
            let bad: Vec<_> = bad.collect();
            sent += bad.len();
            send(&scenario, way, bad).await;
        }
        sleep(Duration::from_millis(500)).await;
    }
    scenario.healed();
    let report = scenario.account().await;
    let invalid = scenario.total("postdate_invalid_total", &[]).await as usize;
    scenario.precondition(invalid > 0, "nothing was invalid");
    scenario.note(format!("{sent} bad messages, {} parked", report.parked));
    scenario.limit(
        report.parked == sent,
        format!("{} of {sent} bad messages were parked", report.parked),
    );
    scenario.limit(!scenario.logged("panicked"), "a replica panicked");
    for replica in scenario.all() {
        let ended = scenario.relays[replica].wait(Duration::ZERO).await;
        scenario.limit(
            ended.is_none(),
            format!("replica {replica} ended: {ended:?}"),
        );
    }
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}

pub(super) async fn bad_targets(scale: Scale) -> Outcome {
    let retry = "attempts = 3, initial = \"100ms\", max = \"200ms\"";
    let routes = format!("retry = {{ {retry} }}");
    let allow_topic = "\"missing-topic\"";
    let allow_queue = "\"/missing-queue\"";
    let mut scenario = Scenario::start(
        scale,
        Setup {
            routes,
            allow_topic,
            allow_queue,
            ..Setup::default()
        },
    )
    .await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let mut sent = 0;
    for _ in 0..10 {
        for (way, target) in [
            (0, "missing-topic"),
            (0, "forbidden"),
            (3, "/missing-queue"),
            (3, "forbidden"),
        ] {
            let way = &scenario.ways[way];
            let message = || {
                named(&scenario, way, When::Now)
                    .contract("x-delay", "200")
                    .contract("x-delay-target", target)
            };
            let bad: Vec<_> = (0..2).map(|_| message()).collect();
            sent += bad.len();
            send(&scenario, way, bad).await;
        }
        sleep(Duration::from_millis(300)).await;
    }
    scenario.healed();
    let report = scenario.account().await;
    let failures = scenario.total("postdate_publish_failures_total", &[]).await;
    scenario.precondition(failures > 0.0, "no publish failed");
    scenario.limit(
        report.parked == sent,
        format!("{} of {sent} with a bad target were parked", report.parked),
    );
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}

/// Many due in one millisecond.
pub(super) async fn burst(scale: Scale) -> Outcome {
    let setup = Setup {
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    let each = scale.rate * 5;
    let ahead = Duration::from_secs(20);
    let due = Instant::now() + ahead;
    for way in &scenario.ways.clone() {
        for _ in 0..each.div_ceil(500) {
            let left = due.saturating_duration_since(Instant::now()).as_millis() as u64;
            let key = if way.to_kafka && !way.from_kafka {
                &way.source
            } else {
                &way.target
            };
            let message = || scenario.run.message(&way.label(), When::At(left)).key(key);
            send(&scenario, way, (0..500).map(|_| message()).collect()).await;
        }
    }
    let in_time = due.saturating_duration_since(Instant::now());
    scenario.precondition(!in_time.is_zero(), "they were due before all were sent");
    tokio::time::sleep_until(
        due.checked_sub(Duration::from_millis(1500))
            .expect("later than that"),
    )
    .await;
    scenario.inject(&scenario.all()).await;
    scenario.healed();
    scenario.account().await;
    let last = |way: &Way| {
        let arrivals = scenario.run.ledger().arrivals();
        let of_way = arrivals
            .iter()
            .filter(|(stamp, _)| stamp.target == way.label());
        of_way
            .map(|(stamp, came)| came - stamp.due_ms)
            .max()
            .unwrap_or(0)
    };
    let times: Vec<i64> = scenario.ways.iter().map(last).collect();
    scenario.note(format!(
        "{each} of each route due at once; its last one came after {times:?} ms"
    ));
    for relay in &scenario.relays {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", relay.id())).unwrap_or_default();
        let peak = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or("unknown");
        scenario
            .outcome
            .notes
            .push(format!("memory of a replica: {peak}"));
    }
    limit_no_duplicate(&mut scenario);
    scenario.close().await
}

/// One target of four is slow.
pub(super) async fn slow_target(scale: Scale) -> Outcome {
    let setup = Setup {
        slow_targets: &["k-k"],
        patience: Duration::from_secs(120),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let proxy = scenario.kafka.get().proxy.clone();
    let before = proxy.hits();
    proxy.set(Mode::Trickle);
    sleep(Duration::from_secs(15)).await;
    proxy.set(Mode::Pass);
    scenario.precondition(proxy.hits() > before, "nothing went slowly");
    scenario.healed();
    scenario.account().await;
    let counts = late(&mut scenario);
    scenario.note(format!(
        "late, by route: {counts:?}; the first is the slow one"
    ));
    scenario.precondition(counts[0] > 0, "nothing of the slow route was late");
    let others = counts[1..].iter().sum::<usize>();
    scenario.limit(
        others == 0,
        format!("{others} messages of the others were late"),
    );
    scenario.close().await
}
