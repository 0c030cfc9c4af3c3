//! Verdicts of lanes on a broker that is well.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use lapin::ExchangeKind;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel};
use postdate::domain::verdict::Refusal;
use postdate::domain::{Flags, Message, Properties, Verdict};

use super::{
    DeliverySink, PATIENCE, RabbitmqFixture, Submitter, bodies, message, patiently, resolve, stamp,
};
use crate::support::{QueueKind, Rabbitmq, eventually, names};

/// A channel of a connection that the test keeps.
async fn channel(connection: &lapin::Connection) -> Channel {
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    channel
}

fn table(fields: Vec<(&str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(name.into(), value);
    }
    table
}

/// Every property and every type of header, nested ones too.
fn everything() -> BasicProperties {
    let inner = table(vec![
        (
            "deep",
            AMQPValue::FieldArray(FieldArray::from(vec![
                AMQPValue::Void,
                AMQPValue::Boolean(false),
            ])),
        ),
        ("empty", AMQPValue::FieldTable(FieldTable::default())),
    ]);
    let headers = table(vec![
        (
            "A",
            AMQPValue::FieldArray(
                vec![AMQPValue::FieldTable(inner.clone()), AMQPValue::LongInt(7)].into(),
            ),
        ),
        (
            "D",
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 12_345,
            }),
        ),
        ("F", AMQPValue::FieldTable(inner)),
        ("I", AMQPValue::LongInt(i32::MIN)),
        ("S", AMQPValue::LongString(vec![0_u8, 255, 10].into())),
        ("T", AMQPValue::Timestamp(1_700_000_000)),
        ("V", AMQPValue::Void),
        ("b", AMQPValue::ShortShortInt(-128)),
        ("d", AMQPValue::Double(0.1)),
        ("f", AMQPValue::Float(0.5)),
        ("i", AMQPValue::LongUInt(u32::MAX)),
        ("l", AMQPValue::LongLongInt(i64::MIN)),
        ("s", AMQPValue::ShortInt(-2)),
        ("t", AMQPValue::Boolean(true)),
        ("u", AMQPValue::ShortUInt(u16::MAX)),
        ("x", AMQPValue::ByteArray(vec![1_u8, 0, 254].into())),
        ("grüße", AMQPValue::LongString("wörld".into())),
    ]);
    BasicProperties::default()
        .with_headers(headers)
        .with_content_type("text/plain".into())
        .with_content_encoding("".into())
        .with_delivery_mode(1)
        .with_priority(9)
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_expiration("3600000".into())
        .with_message_id("m".into())
        .with_timestamp(1_700_000_000)
        .with_type("t".into())
        .with_user_id("guest".into())
        .with_app_id("a".into())
        .with_cluster_id("k".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_property_and_nested_header_comes_out_as_it_went_in() {
    let server = Rabbitmq::shared().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let from = names::unique("in");
        let to = names::unique("out");
        server.declare_queue(&from, kind).await;
        server.declare_queue(&to, kind).await;
        let fixture = RabbitmqFixture::new(server);
        let sink = DeliverySink::default();
        fixture.consume(&[&from], 10, &sink);
        let connection = server.connect().await.expect("connects");
        let channel = channel(&connection).await;
        let sent = everything();
        for (properties, body) in [
            (sent.clone(), &b"body \0\xff"[..]),
            (BasicProperties::default(), b""),
        ] {
            let options = BasicPublishOptions::default();
            let confirm = channel
                .basic_publish("".into(), from.as_str().into(), options, body, properties)
                .await;
            confirm.expect("sent").await.expect("confirmed");
        }
        let [first, second] = <[_; 2]>::try_from(sink.catch(2).await).expect("two");
        assert_eq!(first.message.key.as_deref(), Some(from.as_bytes()));
        assert_eq!(first.produced.map(|at| at.0), Some(1_700_000_000_999));
        assert_eq!((second.produced, second.flags), (None, Flags::default()));

        let lanes = fixture.lanes();
        let lane = lanes.lane("");
        let mut submitter = Submitter::default();
        submitter.submit(&*lane, 1, &to, first.message.clone(), None);
        submitter.submit(&*lane, 2, &to, second.message.clone(), None);
        submitter.submit(&*lane, 3, &to, first.message, Some(stamp("~id", 2)));
        for (ticket, verdict) in submitter.collect(3).await {
            assert_eq!(*verdict, Verdict::Confirmed(None), "{ticket}");
        }
        first.receipt.resolve();
        second.receipt.resolve();

        // Not basic.get: to what that gets, a quorum queue adds a header of its own.
        let options = BasicConsumeOptions {
            no_ack: true,
            ..Default::default()
        };
        let consumer = channel.basic_consume(
            to.as_str().into(),
            "".into(),
            options,
            FieldTable::default(),
        );
        let mut consumer = consumer.await.expect("consumes");
        let mut got = async || {
            patiently("a message", consumer.next())
                .await
                .expect("open")
                .expect("no error")
        };
        let out = got().await;
        assert_eq!(
            (&out.properties, &out.data[..]),
            (&sent, &b"body \0\xff"[..]),
            "{kind:?}"
        );
        let out = got().await;
        assert_eq!(
            (&out.properties, &out.data[..]),
            (&BasicProperties::default(), &b""[..]),
            "{kind:?}"
        );
        let mut stamped = sent.headers().clone().expect("headers");
        stamped.insert("x-delay-id".into(), AMQPValue::LongString("~id".into()));
        stamped.insert(
            "x-delay-due".into(),
            AMQPValue::LongLongInt(1_800_000_000_123),
        );
        stamped.insert("x-delay-attempt".into(), AMQPValue::LongLongInt(2));
        assert_eq!(
            got().await.properties,
            sent.clone().with_headers(stamped),
            "{kind:?}"
        );
        connection.close(200, "done".into()).await.expect("closes");
        fixture.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_unroutable_message_gets_its_own_return_and_no_other() {
    const COUNT: u64 = 4000;
    let server = Rabbitmq::shared().await;
    // Transient messages are confirmed many at once, where the client library mixes the returns up.
    for (kind, delivery_mode) in [
        (QueueKind::Classic, 1),
        (QueueKind::Classic, 2),
        (QueueKind::Quorum, 2),
    ] {
        let exchange = names::unique("x");
        let queue = names::unique("q");
        server
            .declare_exchange(&exchange, ExchangeKind::Direct)
            .await;
        server.declare_queue(&queue, kind).await;
        server.bind(&queue, &exchange, "bound").await;
        let fixture = RabbitmqFixture::new(server);
        let lanes = fixture.lanes();
        let lane = lanes.lane(&exchange);
        let mut submitter = Submitter::default();
        // Equal bodies, with and without a stamp: only the key or the id tells them apart.
        let unroutable = |ticket: u64| ticket.is_multiple_of(7) || ticket.is_multiple_of(64);
        let properties = Properties {
            delivery_mode: Some(delivery_mode),
            ..Properties::default()
        };
        for ticket in 0..COUNT {
            let key = if unroutable(ticket) {
                "nowhere"
            } else {
                "bound"
            };
            let stamp = ticket
                .is_multiple_of(2)
                .then(|| stamp(&format!("id-{ticket}"), 1));
            let message = Message {
                properties: Some(Box::new(properties.clone())),
                ..message("same")
            };
            submitter.submit(&*lane, ticket, key, message, stamp);
        }
        for (ticket, verdict) in submitter.collect(COUNT as usize).await {
            match verdict {
                Verdict::Confirmed(None) => {
                    assert!(!unroutable(*ticket), "{kind:?}: {ticket} went nowhere");
                }
                Verdict::Refused {
                    reason: Refusal::Unroutable,
                    ..
                } => {
                    assert!(unroutable(*ticket), "{ticket}");
                }
                other => panic!("{ticket}: {other:?}"),
            }
        }
        let routed = (0..COUNT).filter(|ticket| !unroutable(*ticket)).count();
        eventually("all routed are there", async || {
            match server.queue_len(&queue).await as usize {
                there if there == routed => Ok(()),
                there => Err(format!("{there} of {routed}")),
            }
        })
        .await;
        assert_eq!(lane.backlog(), 0);
        fixture.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lane_keeps_the_order_of_its_submitter() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..3000 {
        submitter.submit(
            &*lane,
            ticket,
            &queue,
            message(format!("{ticket:05}")),
            None,
        );
    }
    submitter.collect(3000).await;
    let sink = DeliverySink::default();
    fixture.consume(&[&queue], 1000, &sink);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let caught = sink.catch(1000).await;
        seen.extend(bodies(&caught));
        resolve(caught);
    }
    assert!(seen.is_sorted(), "{seen:?}");
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_refuses_at_once_while_another_lane_flows_and_is_found_when_it_is_there()
{
    let server = Rabbitmq::shared().await;
    let missing = names::unique("x");
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let bad = lanes.lane(&missing);
    let good = lanes.lane("");
    let mut refused = Submitter::default();
    let mut confirmed = Submitter::default();
    for ticket in 0..100 {
        refused.submit(&*bad, ticket, "k", message("m"), None);
        confirmed.submit(&*good, ticket, &queue, message("m"), None);
    }
    for verdict in refused.collect(100).await.values() {
        let Verdict::Refused {
            reason: Refusal::UnknownTarget,
            error,
        } = verdict
        else {
            panic!("{verdict:?}");
        };
        assert!(error.as_str().contains(&missing), "{error}");
    }
    assert!(
        confirmed
            .collect(100)
            .await
            .values()
            .all(Verdict::is_confirmed)
    );
    assert!(
        bad.trouble()
            .is_some_and(|trouble| trouble.contains("NOT_FOUND"))
    );
    assert_eq!(good.trouble(), None);
    assert!(fixture.health.is_ready(), "{:?}", fixture.health.parts());

    server
        .declare_exchange(&missing, ExchangeKind::Fanout)
        .await;
    server.bind(&queue, &missing, "").await;
    let mut ticket = 100;
    patiently("the exchange is found", async {
        loop {
            refused.submit(&*bad, ticket, "k", message("m"), None);
            ticket += 1;
            if refused.collect(ticket as usize).await[&(ticket - 1)] == Verdict::Confirmed(None) {
                return;
            }
        }
    })
    .await;
    assert_eq!(bad.trouble(), None);
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_answers_all_and_takes_nothing_more() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..5000 {
        submitter.submit(&*lane, ticket, &queue, message("m"), None);
    }
    submitter.collect(1).await;
    fixture.drain().await;
    submitter.submit(&*lane, 5000, &queue, message("late"), None);
    let verdicts = submitter.collect(5001).await;
    let confirmed = verdicts
        .values()
        .filter(|verdict| verdict.is_confirmed())
        .count();
    let not_tried = verdicts
        .values()
        .filter(|verdict| **verdict == Verdict::NotTried)
        .count();
    assert_eq!(
        confirmed + not_tried,
        5001,
        "what was with the broker was awaited"
    );
    assert_eq!(verdicts[&5000], Verdict::NotTried);
    assert_eq!(server.queue_len(&queue).await as usize, confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_past_its_deadline_is_not_tried() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..10 {
        let not_after_us = if ticket < 5 { -1 } else { i64::MAX };
        submitter.submit_until(&*lane, ticket, &queue, message("m"), None, not_after_us);
    }
    let tried = |verdict: &Verdict| verdict.is_confirmed();
    let tried: BTreeSet<u64> = submitter
        .collect(10)
        .await
        .iter()
        .filter(|(_, v)| tried(v))
        .map(|(t, _)| *t)
        .collect();
    assert_eq!(tried, (5..10).collect());
    assert_eq!(server.queue_len(&queue).await, 5);
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_what_is_missing() {
    let server = Rabbitmq::shared().await;
    let there = names::unique("q");
    let missing = names::unique("gone");
    server.declare_queue(&there, QueueKind::Quorum).await;
    let fixture = RabbitmqFixture::new(server);
    let things = vec![
        postdate::broker::rabbitmq::QueueOrExchange::Queue(there.clone()),
        postdate::broker::rabbitmq::QueueOrExchange::Queue(missing.clone()),
        postdate::broker::rabbitmq::QueueOrExchange::Exchange(String::new()),
        postdate::broker::rabbitmq::QueueOrExchange::Exchange("amq.topic".to_owned()),
        postdate::broker::rabbitmq::QueueOrExchange::Exchange(missing.clone()),
    ];
    let found = fixture
        .broker
        .look_for(things, PATIENCE)
        .await
        .expect("it answers");
    let wrong: Vec<_> = found
        .into_iter()
        .filter_map(|(_, there)| there.err().map(|fault| fault.to_string()))
        .collect();
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(
        wrong[0].contains(&format!("no queue '{missing}'")),
        "{wrong:?}"
    );
    assert!(
        wrong[1].contains(&format!("no exchange '{missing}'")),
        "{wrong:?}"
    );
}
