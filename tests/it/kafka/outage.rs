//! Brokers away, at start and in mid-flow.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use postdate::domain::Verdict;
use postdate::egress::Ticket;
use postdate::health::PartState;

use super::fixture::{
    EgressFixture, IngressFixture, RecordingSink, commits, message, produce, read_all, text,
};
use crate::support::{Kafka, eventually, names};

fn state(health: &postdate::health::Health) -> PartState {
    health.parts().remove(0).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_at_start_is_waited_for() {
    let mut kafka = Kafka::start().await;
    let topic = kafka.unique_topic("early", 1).await;
    produce(&kafka, &topic, "m", 0..10);
    kafka.terminate().await;
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let reader = IngressFixture::start(&kafka, &group, &[&topic], &memory);
    let writer = EgressFixture::start(&kafka);
    writer.submit(1, &topic, message("m-10"));
    for health in [&reader.health, &writer.health] {
        eventually("it says that it waits", async || match state(health) {
            PartState::Waiting(why) if why != "not reached yet" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        assert!(!health.is_ready());
    }
    kafka.restart().await;
    let verdict = writer.verdicts(1).await.remove(&1).expect("a verdict");
    // Unconfirmed only if the broker took longer to come than a message may wait.
    if !verdict.is_confirmed() {
        assert!(
            verdict.is_unknown() || verdict == Verdict::NotTried,
            "{verdict:?}"
        );
        writer.submit(2, &topic, message("m-10"));
        assert!(writer.verdicts(1).await[&2].is_confirmed());
    }
    memory.has("m", 11).await;
    for health in [&reader.health, &writer.health] {
        eventually("it says that it is up", async || match state(health) {
            PartState::Up => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
    reader.stop().await;
    writer.stop().await;
}

/// The client library forgets brokers that an answer does not name. One client in some ten that have heard of none at
/// all never connects again: here are enough for one of them in nearly every run.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_have_heard_of_no_broker_come_back_once_there_is_one() {
    const EACH: u64 = 8;
    const TOPICS: u64 = 16;
    let mut kafka = Kafka::start().await;
    let from = kafka.unique_topic("from", 1).await;
    let mut to = Vec::new();
    for _ in 0..TOPICS {
        to.push(kafka.unique_topic("to", 1).await);
    }
    let memories: Vec<_> = (0..EACH)
        .map(|_| Arc::new(RecordingSink::default()))
        .collect();
    let readers: Vec<_> = memories
        .iter()
        .map(|memory| IngressFixture::start(&kafka, &names::unique("g"), &[&from], memory))
        .collect();
    let writers: Vec<_> = (0..EACH).map(|_| EgressFixture::start(&kafka)).collect();
    for (number, writer) in writers.iter().enumerate() {
        for (topic, ticket) in to.iter().zip(0..) {
            writer.submit(ticket, topic, message(format!("before-{number}")));
        }
    }
    for writer in &writers {
        writer.verdicts(to.len()).await;
    }
    produce(&kafka, &from, "m", 0..10);
    for memory in &memories {
        memory.has("m", 10).await;
    }

    // Clients ask for each topic that they have something to write to.
    let is_over = Cell::new(false);
    let writing = async {
        let mut next_ticket = TOPICS;
        while !is_over.get() {
            for (topic, ticket) in to.iter().zip(next_ticket..) {
                for writer in &writers {
                    writer.submit(ticket, topic, message("meanwhile"));
                }
            }
            next_ticket += TOPICS;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        next_ticket
    };
    let forgetting = async {
        kafka.forget_brokers().await;
        is_over.set(true);
    };
    let (next_ticket, ()) = tokio::join!(writing, forgetting);
    kafka.restart().await;
    for writer in &writers {
        writer.verdicts((next_ticket - TOPICS) as usize).await;
    }

    produce(&kafka, &from, "m", 10..20);
    for (number, writer) in writers.iter().enumerate() {
        let what = format!("writer {number} writes again");
        eventually(&what, async || {
            writer.submit(next_ticket, &to[0], message("after"));
            let verdict = writer.verdicts(1).await.remove(&next_ticket);
            let verdict = verdict.expect("a verdict");
            if verdict.is_confirmed() {
                Ok(())
            } else {
                Err(format!("{verdict:?}"))
            }
        })
        .await;
    }
    for memory in &memories {
        memory.has("m", 20).await;
    }
    for reader in readers {
        reader.stop().await;
    }
    for writer in writers {
        writer.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_in_mid_flow_loses_nothing() {
    let mut kafka = Kafka::start().await;
    let from = kafka.unique_topic("from", 3).await;
    let to = kafka.unique_topic("to", 1).await;
    let memory = Arc::new(RecordingSink::default());
    let arrived = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let out = names::unique("g");
    let reader = IngressFixture::start(&kafka, &group, &[&from], &memory);
    let check = IngressFixture::start(&kafka, &out, &[&to], &arrived);
    let writer = EgressFixture::start(&kafka);
    produce(&kafka, &from, "m", 0..500);
    memory.has("m", 500).await;
    for i in 0..500 {
        writer.submit(i, &to, message(format!("m-{i}")));
    }
    kafka.kill9().await;
    for i in 500..1000 {
        writer.submit(i, &to, message(format!("m-{i}")));
    }
    eventually("it says that the broker is away", async || {
        match state(&writer.health) {
            PartState::Degraded(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(
        writer.health.is_ready(),
        "a broker lost later leaves health as it is"
    );
    kafka.restart().await;
    let mut unknown = Vec::new();
    let mut unconfirmed = Vec::new();
    for (ticket, verdict) in writer.verdicts(1000).await {
        match verdict {
            Verdict::Confirmed(_) => {}
            Verdict::NotTried => unconfirmed.push(ticket),
            verdict if verdict.is_unknown() => {
                unknown.push(ticket);
                unconfirmed.push(ticket);
            }
            other => panic!("{ticket}: {other:?}"),
        }
    }
    // What is unconfirmed is published again, as the timer would.
    for ticket in &unconfirmed {
        writer.submit(*ticket, &to, message(format!("m-{ticket}")));
    }
    assert!(
        writer
            .verdicts(unconfirmed.len())
            .await
            .values()
            .all(Verdict::is_confirmed)
    );
    arrived.has("m", 1000).await;
    produce(&kafka, &from, "m", 500..1000);
    memory.has("m", 1000).await;
    // Twice at most for what is unknown, never for what was confirmed or not tried.
    for (body, times) in arrived.records() {
        let ticket: u64 = body["m-".len()..].parse().expect("a number");
        assert!(
            times == 1 || unknown.contains(&ticket),
            "{body} came {times} times"
        );
    }
    produce(&kafka, &to, "end", 0..1);
    arrived.has("end", 1).await;
    reader.stop().await;
    check.stop().await;
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_are_committed_again_after_an_outage() {
    let mut kafka = Kafka::start().await;
    let topic = kafka.unique_topic("commits", 1).await;
    let memory = Arc::new(RecordingSink::default()).keeping();
    let group = names::unique("g");
    let reader = IngressFixture::start(&kafka, &group, &[&topic], &memory);
    produce(&kafka, &topic, "m", 0..20);
    memory.has("m", 20).await;
    kafka.kill9().await;
    memory.resolve(|_| true);
    kafka.restart().await;
    eventually("committed, or read again and committed", async || {
        memory.resolve(|_| true);
        let found = super::fixture::committed(&kafka, &group, &topic, 0);
        if found == Some(20) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    produce(&kafka, &topic, "m", 20..30);
    memory.has("m", 30).await;
    memory.resolve(|_| true);
    commits(&kafka, &group, &topic, 30).await;
    reader.stop().await;
}

/// A message that falls due during an outage spends no attempt: it is never given to the client library.
#[tokio::test(flavor = "multi_thread")]
async fn while_no_broker_is_reached_nothing_is_tried_and_then_all_goes_in_order() {
    let mut kafka = Kafka::start().await;
    let topic = kafka.unique_topic("away", 1).await;
    let writer = EgressFixture::start(&kafka);
    writer.submit(0, &topic, message("0"));
    assert!(writer.verdicts(1).await[&0].is_confirmed());
    kafka.kill9().await;
    eventually("it says that the broker is away", async || {
        match state(&writer.health) {
            PartState::Degraded(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for ticket in 1..=10 {
        let late = writer.publication(ticket, &topic, message("late"));
        let soon = writer.clock.mono_us() + 1_000_000;
        late.batch
            .not_after_us
            .store(soon, std::sync::atomic::Ordering::Relaxed);
        writer.lane(&topic).submit(late);
    }
    assert!(
        writer
            .verdicts(10)
            .await
            .values()
            .all(|verdict| *verdict == Verdict::NotTried)
    );
    for ticket in 11..1000 {
        writer.submit(ticket, &topic, message(ticket.to_string()));
    }
    kafka.restart().await;
    let back = writer.clock.mono_us();
    assert!(
        writer
            .verdicts(989)
            .await
            .values()
            .all(Verdict::is_confirmed)
    );
    println!(
        "all confirmed {} ms after the broker answered",
        (writer.clock.mono_us() - back) / 1000
    );
    let read: Vec<_> = read_all(&kafka, &topic, 990).iter().map(text).collect();
    let expected: Vec<_> = std::iter::once(0)
        .chain(11..1000)
        .map(|n: u64| n.to_string())
        .collect();
    assert_eq!(read, expected);
    // Away again while the process stops: nobody waits for it.
    kafka.kill9().await;
    eventually("it says so again", async || match state(&writer.health) {
        PartState::Degraded(_) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    writer.submit(1000, &topic, message("x"));
    let inbox = writer.verdicts.clone();
    writer.stop().await;
    let ticket = Ticket {
        batch: 1000,
        index: 0,
    };
    assert_eq!(inbox.take().await, [(ticket, Verdict::NotTried)]);
}
