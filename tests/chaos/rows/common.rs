//! What rows share: bars, and what is told of deliveries.

use crate::load::Way;
use crate::stage::Stage;
use crate::support::When;
use crate::support::accounting::Delivery;
use crate::support::producers::kafka_producer;
use crate::support::run::Message;

/// Nothing is late for longer than this after the healing.
pub(super) fn bar_recovery(stage: &mut Stage, limit_ms: i64) {
    let recovery = stage.outcome.recovery_ms.unwrap_or(0);
    stage.bar(recovery <= limit_ms, format!("something was late for {recovery} ms, the bar is {limit_ms}"));
}

pub(super) fn bar_no_duplicate(stage: &mut Stage) {
    let duplicates = stage.outcome.duplicates;
    stage.bar(duplicates == 0, format!("{duplicates} duplicates, the bar is none"));
}

/// Whether it says that it may have been published before.
pub(super) fn says_again(delivery: &Delivery) -> bool {
    delivery.headers.iter().any(|(name, _)| name == "x-delay-attempt")
}

/// Messages that came more than a second late, by way: those that were due from the fault on.
pub(super) fn late(stage: &mut Stage) -> Vec<usize> {
    let struck = stage.struck_ms();
    let arrivals = stage.run.ledger().arrivals();
    let mut counts = Vec::new();
    for way in stage.ways.clone() {
        let (label, mut late) = (way.label(), Vec::new());
        for (stamp, came) in arrivals.iter().filter(|(stamp, _)| stamp.target == label) {
            if stamp.due_ms >= struck && came - stamp.due_ms > 1000 {
                late.push((stamp.due_ms - struck, came - stamp.due_ms));
            }
        }
        counts.push(late.len());
        if let (Some(first), Some(last)) = (late.iter().min(), late.iter().max()) {
            let (name, most) = (way.name, late.iter().map(|(_, late)| late).max().unwrap_or(&0));
            let (first, last) = (first.0, last.0);
            stage.note(format!(
                "{name}: late is what was due from {first} to {last} ms after the fault, by {most} ms at most"
            ));
        }
    }
    counts
}

/// The lateness that one in a hundred of what was due from the fault on exceeded, ms.
pub(super) fn lateness_p99(stage: &Stage) -> i64 {
    let struck = stage.struck_ms();
    let arrivals = stage.run.ledger().arrivals();
    let due_since = arrivals.iter().filter(|(stamp, _)| stamp.due_ms >= struck);
    let mut lateness: Vec<i64> = due_since.map(|(stamp, came)| came - stamp.due_ms).collect();
    lateness.sort_unstable();
    lateness.get(lateness.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0)
}

/// A message by this way that its own id names, so that it is known among the dead letters.
pub(super) fn named(stage: &Stage, way: &Way, when: When) -> Message {
    let key = if way.from_kafka { "key" } else { &way.target };
    let message = stage.run.message(&way.label(), when).key(key);
    let name = message.id().to_string();
    message.contract("x-delay-id", &name)
}

/// Sends by one way, whatever it comes from.
pub(super) async fn send(stage: &Stage, way: &Way, messages: Vec<Message>) {
    if way.from_kafka {
        let producer = kafka_producer(stage.kafka.get().server.client());
        stage.run.send_kafka_by(&producer, &way.source, messages).await;
    } else {
        let rabbitmq = &stage.rabbitmq.get().server;
        stage.run.send_rabbitmq(rabbitmq, "", Some(&way.source), messages).await;
    }
}
