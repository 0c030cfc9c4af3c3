//! The accounting itself: silent on a perfect run, and loud on each fault that is planted.

use crate::support::accounting::{
    CRC, Delivery, Headers, ID, Id, Ledger, Outcome, Report, Stamp, checksum,
};
use crate::support::relay::Metrics;
use crate::support::{Kafka, QueueKind, Rabbitmq, Run, When, eventually, names};

const COUNT: u64 = 50;

fn stamp(seq: u64) -> Stamp {
    let id = Id {
        run: "run".into(),
        producer: 1,
        seq,
    };
    Stamp {
        id,
        due_ms: 1_000_000 + seq as i64,
        target: "kafka:orders".into(),
        key: Some(format!("key-{seq}")),
    }
}

fn headers(stamp: &Stamp, body: &[u8]) -> Headers {
    let mut headers: Headers = vec![
        (ID.into(), Some(stamp.id.to_string().into_bytes())),
        ("test-binary".into(), Some(vec![0, 255, 128])),
        ("test-null".into(), None),
    ];
    headers.push((CRC.into(), Some(checksum(body, &headers).into_bytes())));
    headers.push(("x-delay-due".into(), Some(b"1000000".to_vec())));
    headers
}

fn delivery(stamp: &Stamp) -> Delivery {
    let body = stamp.body(300);
    Delivery {
        target: stamp.target.clone(),
        received_ms: stamp.due_ms + 2,
        key: stamp.key.clone(),
        headers: headers(stamp, &body),
        body,
    }
}

/// A run in which all went well, but for what `plant` does to a delivery: it may change it, drop it
/// (none) or repeat it.
fn run(plant: impl Fn(u64, Delivery) -> Vec<Delivery>) -> Ledger {
    let mut ledger = Ledger::default();
    let mut deliveries = Vec::new();
    for seq in 0..COUNT {
        let stamp = stamp(seq);
        ledger.attempt(stamp.clone());
        ledger.resolve(&stamp.id, Outcome::Ok);
        deliveries.extend(plant(seq, delivery(&stamp)));
    }
    deliveries.sort_by_key(|delivery| delivery.received_ms);
    for delivery in deliveries {
        ledger.deliver(delivery);
    }
    ledger
}

/// A perfect run but for what `change` does to the seventh delivery.
fn changed(change: impl Fn(&mut Delivery)) -> Report {
    let ledger = run(|seq, mut delivery| {
        if seq == 7 {
            change(&mut delivery);
        }
        vec![delivery]
    });
    ledger.report()
}

/// The one fault, which must be of this kind and name this message.
fn only_fault(report: &Report, kind: &str, names: &str) {
    let faults = report.faults(0);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0].starts_with(kind) && faults[0].contains(names),
        "{faults:?}"
    );
    assert_eq!(report.identity(), Ok(()), "{report}");
}

#[test]
fn a_perfect_run_raises_no_alarm() {
    let ledger = run(|_, delivery| vec![delivery]);
    assert!(ledger.missing().is_empty());
    let report = ledger.report();
    report.assert_accounted(0);
    assert_eq!(
        (report.attempts, report.delivered, report.lateness_ms.2),
        (50, 50, 2)
    );
}

#[test]
fn lateness_is_told_however_large() {
    let report = changed(|delivery| delivery.received_ms += 600_000);
    report.assert_accounted(0);
    assert!(
        (600_000..601_000).contains(&report.lateness_ms.2),
        "{report}"
    );
}

#[test]
fn a_message_that_leaves_after_others_that_were_due_later_is_seen() {
    let late = |late_ms| {
        let ledger = run(|seq, mut delivery| {
            if seq == 7 {
                delivery.received_ms += late_ms;
            }
            vec![delivery]
        });
        let overtaken = ledger.overtaken().iter().filter(|(_, by_ms)| *by_ms > 10);
        let told = overtaken.map(|(id, by_ms)| format!("{id} {by_ms}"));
        told.collect::<Vec<_>>()
    };
    assert!(late(11).is_empty(), "by ten at most");
    assert_eq!(late(12), ["run/1/7 11"]);
    assert_eq!(late(5000), ["run/1/7 42"]);
}

#[test]
fn a_lost_message_is_seen() {
    let ledger = run(|seq, delivery| if seq == 7 { vec![] } else { vec![delivery] });
    assert_eq!(ledger.missing().len(), 1);
    only_fault(&ledger.report(), "lost", "run/1/7");
}

#[test]
fn a_duplicate_is_seen_unless_it_is_explained() {
    let ledger = run(|seq, delivery| vec![delivery; if seq == 7 { 3 } else { 1 }]);
    let report = ledger.report();
    assert_eq!(report.duplicates(), 2);
    only_fault(&report, "duplicates 2, explained 0", "run/1/7 x3");
    assert_eq!(report.faults(1).len(), 1, "one cause does not explain two");
    report.assert_accounted(2);
}

#[test]
fn an_early_message_is_seen_to_the_millisecond() {
    only_fault(
        &changed(|delivery| delivery.received_ms -= 3),
        "early",
        "run/1/7 to kafka:orders at 1000006 by 1 ms",
    );
    assert!(
        changed(|delivery| delivery.received_ms -= 2)
            .faults(0)
            .is_empty(),
        "just due is not early"
    );
}

#[test]
fn a_misrouted_message_is_seen() {
    only_fault(
        &changed(|delivery| delivery.target = "kafka:other".into()),
        "misrouted",
        "run/1/7 to kafka:other",
    );
}

#[test]
fn every_change_of_a_message_is_seen() {
    let set = |delivery: &mut Delivery, name: &str, value: Option<&[u8]>| {
        let header = delivery
            .headers
            .iter_mut()
            .find(|(n, _)| n == name)
            .expect("the header");
        header.1 = value.map(<[u8]>::to_vec);
    };
    only_fault(
        &changed(|d| *d.body.last_mut().expect("a byte") ^= 1),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| d.body.truncate(299)),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| d.headers.retain(|(n, _)| n != "test-null")),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| set(d, "test-null", Some(b""))),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| set(d, "test-binary", Some(b"0"))),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| set(d, CRC, None)),
        "corrupt",
        "run/1/7: checksum",
    );
    only_fault(
        &changed(|d| set(d, ID, Some(b"run/1/8"))),
        "corrupt",
        "run/1/7: id header",
    );
    only_fault(&changed(|d| d.key = None), "corrupt", "run/1/7: key");
    let other_stamp = Stamp {
        due_ms: 1,
        ..stamp(7)
    }
    .body(300);
    only_fault(
        &changed(|d| d.body.clone_from(&other_stamp)),
        "corrupt",
        "run/1/7: stamp",
    );
    let report = changed(|d| d.body = b"something else".to_vec());
    assert_eq!(report.corrupt, [("run/1/7".to_owned(), "body")]);
    assert_eq!(report.lost.len(), 1, "what cannot be read did not arrive");
}

#[test]
fn a_change_of_a_long_body_is_seen_and_of_an_unchanged_one_the_stamp_is_kept() {
    let lengthen = |delivery: &mut Delivery| {
        delivery.body = stamp(7).body(1 << 20);
        delivery.headers = headers(&stamp(7), &delivery.body);
    };
    let ledger = run(|seq, mut delivery| {
        if seq == 7 {
            lengthen(&mut delivery);
        }
        vec![delivery]
    });
    ledger.report().assert_accounted(0);
    assert!(
        ledger.deliveries_from(7)[0].body.len() < 1000,
        "only its stamp is kept"
    );
    let spoilt = changed(|delivery| {
        lengthen(delivery);
        *delivery.body.last_mut().expect("a byte") ^= 1;
    });
    only_fault(&spoilt, "corrupt", "run/1/7: checksum");
}

#[test]
fn what_nobody_produced_is_seen() {
    let mut ledger = run(|_, delivery| vec![delivery]);
    ledger.deliver(delivery(&stamp(COUNT)));
    only_fault(&ledger.report(), "unexpected", "run/1/50");
}

#[test]
fn what_was_refused_must_not_arrive_and_what_is_unknown_may() {
    let mut ledger = run(|_, delivery| vec![delivery]);
    ledger.resolve(&stamp(7).id, Outcome::Fail);
    only_fault(&ledger.report(), "aborted", "run/1/7");
    ledger.resolve(&stamp(7).id, Outcome::Info);
    let report = ledger.report();
    report.assert_accounted(0);
    assert_eq!((report.ok, report.info, report.recovered), (49, 1, 1));
    let mut gone = run(|seq, delivery| if seq == 7 { vec![] } else { vec![delivery] });
    gone.resolve(&stamp(7).id, Outcome::Info);
    gone.report().assert_accounted(0);
}

#[test]
fn a_parked_or_stored_message_is_not_lost_but_must_not_have_arrived_too() {
    for keep in [Ledger::park, Ledger::store] {
        let mut ledger = run(|seq, delivery| if seq == 7 { vec![] } else { vec![delivery] });
        keep(&mut ledger, stamp(7).id);
        assert!(ledger.missing().is_empty());
        ledger.report().assert_accounted(0);
        keep(&mut ledger, stamp(8).id);
        only_fault(&ledger.report(), "delivered, yet kept", "run/1/8");
    }
}

#[test]
#[should_panic(expected = "an id is used once")]
fn an_id_is_never_used_twice() {
    let mut ledger = Ledger::default();
    ledger.attempt(stamp(1));
    ledger.attempt(stamp(1));
}

#[test]
#[should_panic(expected = "not accounted for")]
fn the_assertion_asserts() {
    run(|_, _| vec![]).report().assert_accounted(0);
}

#[test]
#[allow(clippy::float_cmp, reason = "small whole numbers")]
fn metrics_are_read_and_summed_over_the_labels_not_named() {
    let text = "# HELP x y\n# TYPE x counter\n\
        postdate_redelivered_total{route=\"a\",cause=\"claim_expired\"} 2\n\
        postdate_redelivered_total{route=\"a\",cause=\"source_reread\"} 3\n\
        postdate_redelivered_total{route=\"b\",cause=\"source_reread\"} 4 1700000000\n\
        postdate_partitions_owned 64\n# EOF\n";
    let metrics = Metrics::parse(text).expect("samples");
    assert_eq!(metrics.sum("postdate_redelivered_total", &[]), 9.0);
    assert_eq!(
        metrics.sum("postdate_redelivered_total", &[("route", "a")]),
        5.0
    );
    assert_eq!(
        metrics.sum(
            "postdate_redelivered_total",
            &[("route", "a"), ("cause", "source_reread")]
        ),
        3.0
    );
    assert_eq!(metrics.sum("postdate_partitions_owned", &[]), 64.0);
    assert_eq!(metrics.sum("postdate_nothing", &[]), 0.0);
    assert!(Metrics::parse("postdate_broken{route=\"a\"} two").is_err());
}

/// Straight into the targets: whatever the accounting finds here, its own producers or collectors made.
#[tokio::test]
async fn producers_and_collectors_raise_no_alarm_on_real_brokers() {
    let kafka = Kafka::shared().await;
    let rabbitmq = Rabbitmq::shared().await;
    let run = Run::new();
    let topic = kafka.unique_topic("accounted", 3).await;
    let queue = names::unique("accounted");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    run.collect_kafka(kafka, &topic, 3);
    run.collect_rabbitmq(rabbitmq, &queue);
    let messages = |target: &str, key: &str| -> Vec<_> {
        let message = |size| {
            let message = run.message(target, When::Delay(0)).key(key).size(size);
            message
                .header("test-text", Some(b"text"))
                .header("test-bytes", Some(&[0, 255]))
                .header("test-null", None)
        };
        (0..200).map(message).collect()
    };
    run.send_kafka(
        kafka,
        &topic,
        messages(&format!("kafka:{topic}"), "some key"),
    )
    .await;
    run.send_rabbitmq(
        rabbitmq,
        "",
        None,
        messages(&format!("rabbitmq:{queue}"), &queue),
    )
    .await;
    // What a broker refuses is known as refused.
    run.send_kafka(
        kafka,
        "no-such-topic",
        vec![run.message("nowhere", When::Now)],
    )
    .await;
    eventually("all of them arrive", async || {
        match run.ledger().missing() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(format!("{} missing", missing.len())),
        }
    })
    .await;
    let report = run.report();
    report.assert_accounted(0);
    assert_eq!(
        (report.delivered, report.fail, report.info),
        (400, 1, 0),
        "{report}"
    );
}
