//! The messages of the demonstration: sent, and shown as they arrive.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Servers;
use super::support::accounting::{Delivery, Id, Stamp};
use super::support::run::{Message, Run, When};

/// Highest lateness that is still on time, ms.
const TOLERANCE_MS: i64 = 2_000;

/// Sends a few delayed messages through each broker. Returns their ids.
pub(super) async fn send(servers: &Servers, run: &Run) -> BTreeSet<Id> {
    let plan = [
        When::Delay(500),
        When::Delay(1000),
        When::At(1500),
        When::Delay(2000),
        When::At(2500),
    ];
    let messages = |target: &str, key: &str| -> Vec<Message> {
        plan.iter()
            .map(|&when| run.message(target, when).key(key))
            .collect()
    };
    let mail = messages("rabbitmq:mail.welcome", "welcome");
    let orders = servers
        .kafka
        .as_ref()
        .map(|kafka| (kafka, messages("kafka:orders", "customer-7")));
    let all = mail
        .iter()
        .chain(orders.iter().flat_map(|(_, orders)| orders));
    let ids: BTreeSet<_> = all.map(|message| message.id().clone()).collect();
    println!(
        "Sending {} messages, due in 0.5 to 2.5 s, by x-delay and by x-deliver-at:\n",
        ids.len()
    );
    // The default exchange routes by the name of the queue.
    let to_rabbitmq = run.send_rabbitmq(&servers.rabbitmq, "", Some("mail.delayed"), mail);
    let to_kafka = async {
        if let Some((kafka, orders)) = orders {
            run.send_kafka(kafka, "orders.delayed", orders).await;
        }
    };
    tokio::join!(to_rabbitmq, to_kafka);
    ids
}

/// Shows each message as it arrives. Returns true if all came, once, unharmed and on time.
pub(super) async fn arrivals(run: &Run, ids: &BTreeSet<Id>) -> bool {
    let mut shown = 0;
    let mut on_time = true;
    let everything = async {
        while shown < ids.len() {
            let news = run.ledger().deliveries_from(shown);
            shown += news.len();
            for delivery in news {
                on_time &= show(&delivery);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), everything)
        .await
        .is_ok();
    let faults = run.report().faults(0);
    if !in_time || !faults.is_empty() {
        println!(
            "\nNot as it should be:\n{}\n{}",
            faults.join("\n"),
            run.report()
        );
        return false;
    }
    let verdict = if on_time {
        "each on time, none early"
    } else {
        "but not all on time"
    };
    println!("\nAll {shown} have arrived, {verdict}.\n");
    on_time
}

/// Prints one line. Returns true if the message was on time, by the due time that Postdate wrote.
fn show(delivery: &Delivery) -> bool {
    let due = delivery
        .headers
        .iter()
        .find(|(name, _)| name == "x-delay-due");
    let due = due.and_then(|(_, value)| {
        std::str::from_utf8(value.as_deref()?)
            .ok()?
            .parse::<i64>()
            .ok()
    });
    let (Some(due), Some(stamp)) = (due, Stamp::read(&delivery.body)) else {
        println!(
            "  something without x-delay-due, or not one of ours, at {}",
            delivery.target
        );
        return false;
    };
    let late = delivery.received_ms - due;
    println!(
        "  message {:<3} arrived at {:<24} {late:>3} ms after it was due",
        stamp.id.seq, delivery.target
    );
    (0..=TOLERANCE_MS).contains(&late)
}
