//! Lanes: every verdict, and none of them held up by another lane's.

use postdate::domain::verdict::Refusal;
use postdate::domain::{Header, HeaderValue, Message, Text, Verdict};
use postdate::egress::Ticket;
use rdkafka::Message as _;
use rdkafka::message::Headers as _;

use super::fixture::{EgressFixture, message, read_all, text};
use crate::support::run::now_ms;
use crate::support::{Kafka, eventually, names};

fn refused_for(verdict: &Verdict) -> Option<Refusal> {
    match verdict {
        Verdict::Refused { reason, .. } => Some(*reason),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stamped_message_keeps_its_bytes_and_gets_its_stamp() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("stamped", 1).await;
    let writer = EgressFixture::start(kafka);
    let header = |name: &str, value| Header::new(Text::from(name), value);
    let came = Message {
        key: Some("k".into()),
        headers: vec![
            header("a", HeaderValue::Bytes("1".into())),
            header("a", HeaderValue::Null),
        ],
        ..message("body")
    };
    for attempt in [1, 2] {
        writer
            .lane(&topic)
            .submit(writer.stamped(attempt, &topic, came.clone()));
    }
    let verdicts = writer.verdicts(2).await;
    assert!(verdicts.values().all(Verdict::is_confirmed), "{verdicts:?}");
    let expected = [
        ("a", Some("1")),
        ("a", None),
        ("x-delay-id", Some("order-7")),
        ("x-delay-due", Some("1700000000000")),
        ("x-delay-attempt", Some("2")),
    ];
    for (record, expected) in read_all(kafka, &topic, 2)
        .iter()
        .zip([&expected[..4], &expected[..]])
    {
        let headers: Vec<_> = record.headers().expect("headers").iter().collect();
        let found: Vec<_> = headers
            .iter()
            .map(|h| {
                (
                    h.key,
                    h.value.map(|v| std::str::from_utf8(v).expect("text")),
                )
            })
            .collect();
        assert_eq!(found, expected);
        assert_eq!(
            (record.key(), record.payload()),
            (Some(&b"k"[..]), Some(&b"body"[..]))
        );
    }
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_refuses_while_another_flows_and_is_found_when_it_is_made() {
    let kafka = Kafka::shared().await;
    let there = kafka.unique_topic("there", 3).await;
    let missing = names::unique("missing");
    let writer = EgressFixture::start(kafka);
    for ticket in 0..200 {
        writer.submit(
            ticket,
            if ticket % 2 == 0 { &there } else { &missing },
            message("x"),
        );
    }
    for (ticket, verdict) in writer.verdicts(200).await {
        let expected = (ticket % 2 == 1).then_some(Refusal::UnknownTarget);
        assert_eq!(refused_for(&verdict), expected, "{ticket}: {verdict:?}");
    }
    assert!(
        writer
            .lane(&missing)
            .trouble()
            .expect("trouble")
            .contains(&missing)
    );
    assert_eq!(writer.lane(&there).trouble(), None);
    kafka.create_topic(&missing, 1).await;
    // It has nothing to publish meanwhile, and its part of readiness has to become right all the same.
    eventually("the lane finds the topic", async || {
        writer.lane(&missing).trouble().map_or(Ok(()), Err)
    })
    .await;
    writer.submit(1000, &missing, message("late"));
    assert!(writer.verdicts(1).await[&1000].is_confirmed());
    assert_eq!(text(&read_all(kafka, &missing, 1)[0]), "late");
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_deleted_in_mid_flow_refuses_and_a_new_one_of_its_name_takes() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("deleted", 1).await;
    let writer = EgressFixture::start(kafka);
    writer.submit(0, &topic, message("first"));
    assert!(writer.verdicts(1).await[&0].is_confirmed());
    kafka.delete_topic(&topic).await;
    // For a moment the broker may take what comes into the old log.
    let mut ticket = 0;
    eventually("the topic is missed", async || {
        ticket += 1;
        writer.submit(ticket, &topic, message("lost"));
        match writer.verdicts(1).await.remove(&ticket) {
            Some(verdict) if refused_for(&verdict) == Some(Refusal::UnknownTarget) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    kafka.create_topic(&topic, 1).await;
    eventually("the new topic takes", async || {
        ticket += 1;
        writer.submit(ticket, &topic, message("new"));
        match writer.verdicts(1).await.remove(&ticket) {
            Some(Verdict::Confirmed(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_too_large_itself_is_called_too_large() {
    let kafka = Kafka::shared().await;
    let topic = names::unique("small");
    kafka
        .create_topic_with(&topic, 1, &[("max.message.bytes", "2000")])
        .await;
    let writer = EgressFixture::start(kafka);
    // Together they make batches far beyond what the topic takes.
    for ticket in 0..300 {
        let length = if ticket == 150 { 5000 } else { 500 };
        writer.submit(ticket, &topic, message(vec![b'x'; length]));
    }
    for (ticket, verdict) in writer.verdicts(300).await {
        let expected = (ticket == 150).then_some(Refusal::TooBig);
        assert_eq!(refused_for(&verdict), expected, "{ticket}: {verdict:?}");
    }
    assert_eq!(read_all(kafka, &topic, 299).len(), 299);
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_too_late_or_cannot_be_carried_is_never_handed_over() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("late", 1).await;
    let writer = EgressFixture::start(kafka);
    let late = writer.stamped(1, &topic, message("late"));
    late.batch.not_after_us.store(
        writer.clock.mono_us() - 1,
        std::sync::atomic::Ordering::Relaxed,
    );
    writer.lane(&topic).submit(late);
    let nul = Header::new(Text::from("a\0b"), HeaderValue::Null);
    writer.submit(
        2,
        &topic,
        Message {
            headers: vec![nul],
            ..message("nul")
        },
    );
    writer.submit(3, &topic, message("good"));
    let verdicts = writer.verdicts(3).await;
    assert_eq!(verdicts[&1], Verdict::NotTried);
    assert_eq!(refused_for(&verdicts[&2]), Some(Refusal::Unpublishable));
    assert!(verdicts[&3].is_confirmed());
    assert_eq!(text(&read_all(kafka, &topic, 1)[0]), "good");
    assert_eq!(writer.sent.of(1), 0, "what is late counts as no publish");
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lane_keeps_the_order_and_draining_waits_for_every_verdict() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("order", 1).await;
    let writer = EgressFixture::start(kafka);
    // More than the lane's window, so that part of them waits in its queue.
    for ticket in 0..30_000 {
        writer.submit(ticket, &topic, message(ticket.to_string()));
    }
    let lane = writer.lane(&topic);
    let inbox = writer.verdicts.clone();
    writer.stop().await;
    assert_eq!(lane.backlog(), 0);
    let verdicts = inbox.take().await;
    assert_eq!(verdicts.len(), 30_000);
    assert!(verdicts.iter().all(|(_, verdict)| verdict.is_confirmed()));
    for (i, record) in read_all(kafka, &topic, 30_000).iter().enumerate() {
        assert_eq!(text(record), i.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_lane_answers_at_once() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("closed", 1).await;
    let writer = EgressFixture::start(kafka);
    let lane = writer.lane(&topic);
    let inbox = writer.verdicts.clone();
    let publication = writer.publication(1, &topic, message("x"));
    writer.stop().await;
    lane.submit(publication);
    let ticket = Ticket { batch: 1, index: 0 };
    assert_eq!(inbox.take().await, [(ticket, Verdict::NotTried)]);
    assert_eq!(lane.backlog(), 0);
}

/// A broker refuses a whole batch for one record; nothing of it is written, so its neighbours lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_refused_for_its_content_costs_its_neighbours_nothing() {
    let kafka = Kafka::shared().await;
    // One without a key, one in a hundred, every other one.
    for every in [1000, 100, 2] {
        let topic = names::unique("compacted");
        kafka
            .create_topic_with(&topic, 1, &[("cleanup.policy", "compact")])
            .await;
        let writer = EgressFixture::start(kafka);
        let bad = |ticket: u64| ticket % every == every - 1;
        for ticket in 0..1000 {
            let key = (!bad(ticket)).then(|| ticket.to_string().into());
            writer.submit(
                ticket,
                &topic,
                Message {
                    key,
                    ..message(ticket.to_string())
                },
            );
        }
        for (ticket, verdict) in writer.verdicts(1000).await {
            if bad(ticket) {
                assert!(refused_for(&verdict).is_some(), "{ticket}: {verdict:?}");
            } else {
                assert!(verdict.is_confirmed(), "{ticket}");
            }
        }
        let good: Vec<u64> = (0..1000).filter(|ticket| !bad(*ticket)).collect();
        let records = read_all(kafka, &topic, good.len());
        // Other batches of the lane may have been in flight behind the one that was refused.
        let mut read: Vec<u64> = records
            .iter()
            .map(|record| text(record).parse().expect("a number"))
            .collect();
        read.sort_unstable();
        assert_eq!(read, good, "each once");
        writer.stop().await;
    }
}

/// The broker keeps a record by its timestamp: with that of its due time, what waited for long would soon be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_has_the_moment_of_its_publish_as_its_timestamp_not_its_due_time() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("timestamp", 1).await;
    let writer = EgressFixture::start(kafka);
    let before = now_ms();
    writer
        .lane(&topic)
        .submit(writer.stamped(1, &topic, message("due years ago")));
    assert!(writer.verdicts(1).await[&1].is_confirmed());
    let after = now_ms();
    let created = read_all(kafka, &topic, 1)[0].timestamp().to_millis();
    assert!(
        created.is_some_and(|at| (before..=after).contains(&at)),
        "{created:?} of {before} to {after}"
    );
    writer.stop().await;
}
