//! Verdicts of lanes when the broker refuses: each message gets its own, its neighbours get theirs.

use std::sync::Arc;

use bytes::Bytes;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use postdate::domain::verdict::Refusal;
use postdate::domain::{Header, HeaderValue, Message, Properties, Verdict};
use postdate::egress::Lane;

use super::{RabbitmqFixture, Submitter, message, patiently, stamp, with_header};
use crate::support::{QueueKind, Rabbitmq, eventually, names};

/// A failure that no other try can change.
const UNPUBLISHABLE: Refusal = Refusal::Unpublishable;

#[tokio::test(flavor = "multi_thread")]
async fn a_nack_is_of_its_own_message() {
    let server = Rabbitmq::shared().await;
    let full = names::unique("q");
    let free = names::unique("q");
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    server
        .declare_queue_with(&full, QueueKind::Classic, arguments)
        .await;
    server.declare_queue(&free, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..200 {
        let queue = if ticket % 2 == 0 { &free } else { &full };
        submitter.submit(&*lane, ticket, queue, message("same"), None);
    }
    let verdicts = submitter.collect(200).await;
    let even = verdicts.iter().filter(|(ticket, _)| *ticket % 2 == 0);
    assert!(even.into_iter().all(|(_, verdict)| verdict.is_confirmed()));
    let nacked =
        |v: &Verdict| matches!(v, Verdict::Unknown { error } if error.as_str().contains("nack"));
    // One fits into the queue; a second may slip in before the limit is seen.
    let nacks = verdicts.values().filter(|verdict| nacked(verdict)).count();
    let kept = server.queue_len(&full).await as usize;
    assert_eq!(nacks + kept, 100);
    assert!(nacks >= 90, "{nacks}");
    fixture.drain().await;
}

/// A fanout to a queue that takes all and one that is full: the broker nacks what the other queue has.
#[tokio::test(flavor = "multi_thread")]
async fn a_nack_of_one_queue_of_several_is_no_refusal() {
    let server = Rabbitmq::shared().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let [exchange, full, free] = ["x", "q", "q"].map(names::unique);
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
        arguments.insert(
            "x-overflow".into(),
            AMQPValue::LongString("reject-publish".into()),
        );
        server
            .declare_exchange(&exchange, ExchangeKind::Fanout)
            .await;
        server
            .declare_queue_with(&full, QueueKind::Classic, arguments)
            .await;
        server.declare_queue(&free, kind).await;
        server.bind(&full, &exchange, "").await;
        server.bind(&free, &exchange, "").await;
        let fixture = RabbitmqFixture::new(server);
        let lanes = fixture.lanes();
        let lane = lanes.lane(&exchange);
        let mut submitter = Submitter::default();
        for ticket in 0..50 {
            submitter.submit(&*lane, ticket, "", message("same"), None);
        }
        let verdicts = submitter.collect(50).await;
        let refused = verdicts
            .values()
            .find(|v| matches!(v, Verdict::Refused { .. }));
        assert_eq!(refused, None, "{kind:?}: the other queue has it");
        assert!(
            verdicts
                .values()
                .any(|v| matches!(v, Verdict::Unknown { .. })),
            "{kind:?}"
        );
        // A quorum queue counts what it has applied, which comes after its place in the log.
        eventually("the other queue has all of it", async || {
            match server.queue_len(&free).await {
                50 => Ok(()),
                count => Err(format!("{kind:?}: {count}")),
            }
        })
        .await;
        fixture.drain().await;
    }
}

/// Publishes until every message has a verdict that is not `Unknown`, as the timer would. Returns the
/// final verdicts and how many were `Unknown` on the way.
async fn settle(lane: &dyn Lane, key: &str, messages: &[Message]) -> (Vec<Verdict>, usize) {
    let mut verdicts: Vec<Option<Verdict>> = vec![None; messages.len()];
    let mut unknown = 0;
    patiently("all are judged", async {
        while verdicts.iter().any(Option::is_none) {
            let mut round = Submitter::default();
            let open: Vec<_> = (0..messages.len())
                .filter(|at| verdicts[*at].is_none())
                .collect();
            for at in &open {
                let stamp = Some(stamp(&format!("id-{at}"), 1));
                round.submit(lane, *at as u64, key, messages[*at].clone(), stamp);
            }
            for (at, verdict) in round.collect(open.len()).await {
                match verdict {
                    Verdict::Unknown { .. } => unknown += 1,
                    known => verdicts[*at as usize] = Some(known.clone()),
                }
            }
        }
    })
    .await;
    (verdicts.into_iter().flatten().collect(), unknown)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_closes_the_channel_takes_its_neighbours_with_it_once_only() {
    let server = Rabbitmq::start().await;
    server
        .ctl(&[
            "eval",
            "application:set_env(rabbit, max_message_size, 100000).",
        ])
        .await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(&server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut messages: Vec<_> = (0..100).map(|n| message(format!("good {n}"))).collect();
    messages[30] = message(Bytes::from(vec![b'x'; 100_001]));
    // RabbitMQ takes delivery modes 1 and 2 and calls any other an invalid message.
    messages[60].properties = Some(Box::new(Properties {
        delivery_mode: Some(9),
        ..Properties::default()
    }));
    let (verdicts, unknown) = settle(&*lane, &queue, &messages).await;
    for (at, verdict) in verdicts.iter().enumerate() {
        match (at, verdict) {
            (
                30,
                Verdict::Refused {
                    reason: Refusal::TooBig,
                    error,
                },
            ) => {
                assert!(error.as_str().contains("max size"), "{error}");
            }
            (
                60,
                Verdict::Refused {
                    reason: UNPUBLISHABLE,
                    ..
                },
            ) => {}
            (30 | 60, other) => panic!("{at}: {other:?}"),
            (_, verdict) => assert_eq!(*verdict, Verdict::Confirmed(None), "{at}"),
        }
    }
    assert!(
        (1..=200).contains(&unknown),
        "each loss of a channel tells of at most a window once: {unknown}"
    );
    // Alone from the first, each gets its own answer at once.
    for at in [30, 60] {
        let (again, unknown) = settle(&*lane, &queue, &messages[at..=at]).await;
        assert_eq!((again.as_slice(), unknown), (&verdicts[at..=at], 0));
    }
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_to_kill_is_refused_before_it_does() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let with = |properties| Message {
        properties: Some(Box::new(properties)),
        ..message("m")
    };
    let huge = Header::new(
        "h",
        HeaderValue::LongString(Bytes::from(vec![b'x'; 140_000])),
    );
    let long = Header::new("n".repeat(256), HeaderValue::Null);
    let foreign = Properties {
        user_id: Some("somebody".into()),
        ..Properties::default()
    };
    let expires = Properties {
        expiration: Some("soon".into()),
        ..Properties::default()
    };
    let kills = [
        (with_header(message("m"), huge), Refusal::TooBig),
        (with_header(message("m"), long), Refusal::TooBig),
        (with(foreign), UNPUBLISHABLE),
        (with(expires), UNPUBLISHABLE),
    ];
    let mut submitter = Submitter::default();
    for ticket in 0..100 {
        let kill = kills.get(ticket / 10).filter(|_| ticket % 10 == 0);
        let message = kill.map_or_else(|| message("good"), |(message, _)| message.clone());
        submitter.submit(&*lane, ticket as u64, &queue, message, None);
    }
    submitter.submit(&*lane, 100, &"k".repeat(256), message("good"), None);
    for (ticket, verdict) in submitter.collect(101).await {
        let expected = match *ticket as usize {
            100 => Some(Refusal::TooBig),
            ticket => kills
                .get(ticket / 10)
                .filter(|_| ticket % 10 == 0)
                .map(|(_, reason)| *reason),
        };
        match (verdict, expected) {
            (Verdict::Confirmed(None), None) => {}
            (Verdict::Refused { reason, .. }, Some(expected)) => {
                assert_eq!(*reason, expected, "{ticket}");
            }
            other => panic!("{ticket}: {other:?}"),
        }
    }
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_may_not_be_written_refuses_each_while_another_lane_flows() {
    let server = Rabbitmq::shared().await;
    let exchange = names::unique("x");
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let connection = server.connect().await.expect("connects");
    let channel = connection.create_channel().await.expect("a channel");
    let options = ExchangeDeclareOptions {
        internal: true,
        ..Default::default()
    };
    let declared = channel.exchange_declare(
        exchange.as_str().into(),
        ExchangeKind::Fanout,
        options,
        FieldTable::default(),
    );
    declared
        .await
        .expect("an internal exchange, which nobody may publish to");
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let bad = lanes.lane(&exchange);
    let good = lanes.lane("");
    let flow = Arc::new(tokio::sync::Notify::new());
    let messages: Vec<_> = (0..50).map(|n| message(format!("{n}"))).collect();
    let (refused, confirmed) = tokio::join!(
        async {
            let refused = settle(&*bad, "k", &messages).await;
            flow.notify_one();
            refused
        },
        async {
            let mut submitter = Submitter::default();
            let mut ticket = 0;
            let over = flow.notified();
            tokio::pin!(over);
            loop {
                submitter.submit(&*good, ticket, &queue, message("m"), None);
                ticket += 1;
                submitter.collect(ticket as usize).await;
                if futures_util::FutureExt::now_or_never(over.as_mut()).is_some() {
                    return submitter;
                }
            }
        }
    );
    let not_allowed = |v: &Verdict| {
        matches!(
            v,
            Verdict::Refused {
                reason: Refusal::NotAllowed,
                ..
            }
        )
    };
    assert!(refused.0.iter().all(not_allowed), "{:?}", refused.0);
    // The other lane has one message at a time on its way. A loss of the connection, which both share, makes that one
    // unknown; a refusal, or a second one, would be the bad lane's doing.
    let others: Vec<_> = confirmed
        .got
        .values()
        .filter(|verdict| !verdict.is_confirmed())
        .collect();
    assert!(
        others.len() <= 1
            && others
                .iter()
                .all(|verdict| matches!(verdict, Verdict::Unknown { .. })),
        "{} of {}: {others:?}",
        others.len(),
        confirmed.got.len()
    );
    assert!(
        bad.trouble()
            .is_some_and(|trouble| trouble.contains("ACCESS_REFUSED"))
    );
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_deleted_in_mid_flow_leaves_nothing_confirmed_that_is_not_there() {
    let server = Rabbitmq::shared().await;
    let exchange = names::unique("x");
    let queue = names::unique("q");
    server
        .declare_exchange(&exchange, ExchangeKind::Fanout)
        .await;
    server.declare_queue(&queue, QueueKind::Classic).await;
    server.bind(&queue, &exchange, "").await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane(&exchange);
    let mut submitter = Submitter::default();
    for ticket in 0..20_000 {
        submitter.submit(&*lane, ticket, "", message("m"), None);
    }
    submitter.collect(1000).await;
    let connection = server.connect().await.expect("connects");
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default())
        .await
        .expect("deleted");
    let verdicts = submitter.collect(20_000).await;
    let count = |of: fn(&Verdict) -> bool| verdicts.values().filter(|verdict| of(verdict)).count();
    let confirmed = count(Verdict::is_confirmed);
    let unknown = count(|v| matches!(v, Verdict::Unknown { .. }));
    let missing = count(|v| {
        matches!(
            v,
            Verdict::Refused {
                reason: Refusal::UnknownTarget,
                ..
            }
        )
    });
    // The broker takes the bindings away before the exchange: what comes in between is returned.
    let returned = count(|v| {
        matches!(
            v,
            Verdict::Refused {
                reason: Refusal::Unroutable,
                ..
            }
        )
    });
    assert_eq!(confirmed + unknown + missing + returned, 20_000);
    assert!(missing > 0, "the flow outlived the exchange");
    let there = server.queue_len(&queue).await as usize;
    assert!(
        (confirmed..=confirmed + unknown).contains(&there),
        "{there}: {confirmed} + at most {unknown}"
    );
    fixture.drain().await;
}
