//! Helpers that rows share: limits, and checks of deliveries.

use crate::load::Way;
use crate::scenario::Scenario;
use crate::support::When;
use crate::support::accounting::{Delivery, Stamp};
use crate::support::producers::kafka_producer;
use crate::support::run::Message;

/// Limits the time from the healing to the last late message, ms.
pub(super) fn limit_recovery(scenario: &mut Scenario, limit_ms: i64) {
    let recovery = scenario.outcome.recovery_ms.unwrap_or(0);
    scenario.limit(
        recovery <= limit_ms,
        format!("something was late for {recovery} ms, the limit is {limit_ms}"),
    );
}

pub(super) fn limit_no_duplicate(scenario: &mut Scenario) {
    let duplicates = scenario.outcome.duplicates;
    scenario.limit(
        duplicates == 0,
        format!("{duplicates} duplicates, the limit is none"),
    );
}

/// Reports whether the delivery says that it may have been published before.
pub(super) fn says_again(delivery: &Delivery) -> bool {
    delivery
        .headers
        .iter()
        .any(|(name, _)| name == "x-delay-attempt")
}

/// Messages that came more than a second late, by way: those that were due from the fault on.
pub(super) fn late(scenario: &mut Scenario) -> Vec<usize> {
    let struck = scenario.injected_ms();
    let arrivals = scenario.run.ledger().arrivals();
    let mut counts = Vec::new();
    for way in scenario.ways.clone() {
        let label = way.label();
        let mut late = Vec::new();
        for (stamp, came) in arrivals.iter().filter(|(stamp, _)| stamp.target == label) {
            if stamp.due_ms >= struck && came - stamp.due_ms > 1000 {
                late.push((stamp.due_ms - struck, came - stamp.due_ms));
            }
        }
        counts.push(late.len());
        if let (Some(first), Some(last)) = (late.iter().min(), late.iter().max()) {
            let name = way.name;
            let most = late.iter().map(|(_, late)| late).max().unwrap_or(&0);
            let first = first.0;
            let last = last.0;
            scenario.note(format!(
                "{name}: late is what was due from {first} to {last} ms after the fault, by {most} ms at most"
            ));
        }
    }
    counts
}

/// The lateness that one in a hundred of what was due from the fault on exceeded, ms.
pub(super) fn lateness_p99(scenario: &Scenario) -> i64 {
    lateness_p99_between(scenario, scenario.injected_ms(), i64::MAX)
}

/// The same of these messages.
pub(super) fn lateness_p99_of(scenario: &Scenario, is_judged: impl Fn(&Stamp) -> bool) -> i64 {
    let struck = scenario.injected_ms();
    p99(scenario, |stamp| stamp.due_ms >= struck && is_judged(stamp))
}

/// The same of what was due in this time, Unix ms.
pub(super) fn lateness_p99_between(scenario: &Scenario, from_ms: i64, to_ms: i64) -> i64 {
    p99(scenario, |stamp| (from_ms..to_ms).contains(&stamp.due_ms))
}

fn p99(scenario: &Scenario, is_judged: impl Fn(&Stamp) -> bool) -> i64 {
    let arrivals = scenario.run.ledger().arrivals();
    let judged = arrivals.iter().filter(|(stamp, _)| is_judged(stamp));
    let mut lateness: Vec<i64> = judged.map(|(stamp, came)| came - stamp.due_ms).collect();
    lateness.sort_unstable();
    lateness
        .get(lateness.len().saturating_sub(1) * 99 / 100)
        .copied()
        .unwrap_or(0)
}

/// A message by this way that its own id names, so that it is known among the dead letters.
pub(super) fn named(scenario: &Scenario, way: &Way, when: When) -> Message {
    let key = if way.from_kafka { "key" } else { &way.target };
    let message = scenario.run.message(&way.label(), when).key(key);
    let name = message.id().to_string();
    message.contract("x-delay-id", &name)
}

/// Sends by one way, whatever it comes from.
pub(super) async fn send(scenario: &Scenario, way: &Way, messages: Vec<Message>) {
    if way.from_kafka {
        let producer = kafka_producer(scenario.kafka.get().server.client());
        scenario
            .run
            .send_kafka_by(&producer, &way.source, messages)
            .await;
    } else {
        let rabbitmq = &scenario.rabbitmq.get().server;
        scenario
            .run
            .send_rabbitmq(rabbitmq, "", Some(&way.source), messages)
            .await;
    }
}
