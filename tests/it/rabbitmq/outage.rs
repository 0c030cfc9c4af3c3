//! A broker that dies, hangs or chokes in mid-flow.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use postdate::domain::verdict::Refusal;
use postdate::domain::{Flags, Verdict};
use postdate::health::PartState;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::{DeliverySink, RabbitmqFixture, Submitter, body, message, patiently, resolve};
use crate::support::{QueueKind, Rabbitmq, eventually, names};

/// Most publications of one routing key that a lane has with the broker at a time.
const WINDOW: usize = 256;

fn confirmed(verdict: &Verdict) -> bool {
    verdict.is_confirmed()
}

fn lost(verdict: &Verdict) -> bool {
    verdict.is_unknown()
}

fn nacked(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unknown { error } if error.as_str().contains("nack"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_in_mid_flow_has_all_that_was_confirmed() {
    const COUNT: usize = 30_000;
    let mut server = Rabbitmq::start().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let queue = names::unique("q");
        server.declare_queue(&queue, kind).await;
        let fixture = RabbitmqFixture::new(&server);
        let lanes = fixture.lanes();
        let lane = lanes.lane("");
        let mut submitter = Submitter::default();
        let submit = |submitter: &Submitter, tickets: Range<usize>| {
            for ticket in tickets {
                submitter.submit(
                    &*lane,
                    ticket as u64,
                    &queue,
                    message(format!("{ticket}")),
                    None,
                );
            }
        };
        submit(&submitter, 0..COUNT - 2 * WINDOW);
        submitter.collect(2000).await;
        // It may have confirmed them all by now. While it is stopped it confirms nothing: the kill finds a window.
        server.stop();
        submit(&submitter, COUNT - 2 * WINDOW..COUNT);
        server.kill9().await;
        eventually("the lane says so", async || {
            lane.trouble().map(drop).ok_or("no trouble")
        })
        .await;
        let why = eventually("health says so", async || {
            match fixture.health.parts().remove(0).1 {
                PartState::Degraded(why) => Ok(why),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert!(!why.contains("guest"), "no secret: {why}");
        server.restart().await;
        let verdicts = submitter.collect(COUNT).await;
        let cut_off = verdicts.values().filter(|v| lost(v) && !nacked(v));
        let unknown = cut_off.clone().count();
        assert!(
            cut_off.clone().all(|v| !v.spends_attempt()),
            "an outage spends none"
        );
        let sure = verdicts.values().filter(|v| confirmed(v)).count();
        // What waited in the lane waited on. (A quorum queue that has no leader yet nacks; a broker that is still
        // starting may not know its queues.)
        let starting = |v: &Verdict| {
            let Verdict::Refused { reason, .. } = v else {
                return false;
            };
            matches!(reason, Refusal::Unavailable | Refusal::Unroutable)
        };
        let other = verdicts
            .values()
            .find(|v| !confirmed(v) && !starting(v) && !lost(v));
        assert_eq!(other, None, "{kind:?}: {sure} were confirmed");
        assert!(unknown <= WINDOW, "no more than the window: {unknown}");

        // Reading it all back: nothing confirmed is missing.
        let reader = RabbitmqFixture::new(&server);
        let sink = DeliverySink::default();
        reader.consume(&[&queue], 1000, &sink);
        let mut missing: BTreeSet<String> = verdicts
            .iter()
            .filter(|(_, v)| confirmed(v))
            .map(|(t, _)| t.to_string())
            .collect();
        while !missing.is_empty() {
            for delivery in sink.catch(1).await {
                missing.remove(&body(&delivery));
                delivery.receipt.resolve();
            }
        }
        assert_eq!(lane.trouble(), None);
        reader.drain().await;
        fixture.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_while_consuming_delivers_again_all_that_was_not_resolved() {
    const COUNT: usize = 3000;
    let mut server = Rabbitmq::start().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let queue = names::unique("q");
        server.declare_queue(&queue, kind).await;
        let fixture = RabbitmqFixture::new(&server);
        let lanes = fixture.lanes();
        let lane = lanes.lane("");
        let mut submitter = Submitter::default();
        for ticket in 0..COUNT {
            submitter.submit(
                &*lane,
                ticket as u64,
                &queue,
                message(format!("{ticket:05}")),
                None,
            );
        }
        assert!(submitter.collect(COUNT).await.values().all(confirmed));
        let sink = DeliverySink::default();
        fixture.consume(&[&queue], 500, &sink);
        // 0 to 999 are safe; of the next ones nothing is.
        for _ in 0..10 {
            resolve(sink.catch(100).await);
        }
        let held = sink.catch(400).await;
        let known: BTreeSet<String> = held.iter().map(body).collect();
        server.kill9().await;
        server.restart().await;
        // Resolved too late: their channel is gone, nothing of it may be acknowledged on the next one.
        resolve(held);
        let mut seen = BTreeSet::new();
        while seen.len() < COUNT - 1000 {
            for delivery in sink.catch(1).await {
                let body = body(&delivery);
                // No repeat without a cause: what was delivered before says so, and also what was acknowledged, where
                // the broker did not get to it.
                let again = known.contains(&body) || body.as_str() < "01000";
                assert!(
                    !again || delivery.flags.has(Flags::SOURCE_REDELIVERY),
                    "{kind:?}: {body}"
                );
                if body.as_str() >= "01000" {
                    seen.insert(body);
                }
                delivery.receipt.resolve();
            }
        }
        fixture.drain().await;
        assert_eq!(server.queue_len(&queue).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_at_start_is_waited_for() {
    let mut server = Rabbitmq::start().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    server.terminate().await;
    let fixture = RabbitmqFixture::new(&server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    let soon = fixture.clock.mono_us() + 500_000;
    submitter.submit_until(&*lane, 0, &queue, message("expires"), None, soon);
    submitter.submit(&*lane, 1, &queue, message("waits"), None);
    assert_eq!(submitter.collect(1).await[&0], Verdict::NotTried);
    assert!(!fixture.health.is_ready());
    assert!(matches!(
        fixture.health.parts().remove(0).1,
        PartState::Waiting(_)
    ));
    server.restart().await;
    assert_eq!(submitter.collect(2).await[&1], Verdict::Confirmed(None));
    assert!(fixture.health.is_ready());
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_of_memory_pauses_publishing_and_judges_nothing() {
    let server = Rabbitmq::start().await;
    let from = names::unique("q");
    let to = names::unique("q");
    server.declare_queue(&from, QueueKind::Classic).await;
    server.declare_queue(&to, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(&server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..10 {
        submitter.submit(&*lane, ticket, &from, message(format!("{ticket}")), None);
    }
    submitter.collect(10).await;
    server
        .ctl(&["set_vm_memory_high_watermark", "absolute", "1"])
        .await;
    // The broker blocks a connection when it next publishes.
    for ticket in 10..5000 {
        submitter.submit(&*lane, ticket, &to, message("m"), None);
    }
    eventually("the lane says so", async || {
        lane.trouble()
            .filter(|trouble| trouble.contains("blocks"))
            .ok_or("no trouble")
            .map(drop)
    })
    .await;
    // Consuming and acknowledging goes on: it has a connection of its own.
    let sink = DeliverySink::default();
    fixture.consume(&[&from], 5, &sink);
    for _ in 0..2 {
        resolve(sink.catch(5).await);
    }
    let soon = fixture.clock.mono_us() + 300_000;
    submitter.submit_until(&*lane, 5000, &to, message("expires"), None, soon);
    patiently("its deadline passes", async {
        while !submitter.got.contains_key(&5000) {
            let next = submitter.got.len() + 1;
            submitter.collect(next).await;
        }
    })
    .await;
    assert_eq!(submitter.got[&5000], Verdict::NotTried);
    assert!(submitter.got.len() < 5001, "it is blocked");
    server.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
    let verdicts = submitter.collect(5001).await;
    let sure = verdicts
        .values()
        .filter(|verdict| confirmed(verdict))
        .count();
    assert_eq!(sure, 5000, "all but the expired one");
    assert_eq!(lane.trouble(), None);
    assert_eq!(server.queue_len(&to).await, 4990, "each once");
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_is_found_out_by_its_silence() {
    let mut server = Rabbitmq::start().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(&server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    submitter.submit(&*lane, 0, &queue, message("m"), None);
    submitter.collect(1).await;
    server.stop();
    submitter.submit(&*lane, 1, &queue, message("hangs"), None);
    let verdict = submitter.collect(2).await[&1].clone();
    assert!(
        verdict.is_unknown() && !verdict.spends_attempt(),
        "{verdict:?}"
    );
    server.cont();
    submitter.submit(&*lane, 2, &queue, message("again"), None);
    tokio::time::timeout(Duration::from_secs(60), submitter.collect(3))
        .await
        .expect("a verdict");
    assert_eq!(submitter.got[&2], Verdict::Confirmed(None));

    // Told to end while it hangs: what is with the broker is unknown, and no task stays behind.
    let sink = DeliverySink::default();
    fixture.consume(&[&queue], 10, &sink);
    let taken = sink.catch(1).await;
    server.stop();
    submitter.submit(&*lane, 3, &queue, message("hangs"), None);
    fixture.shutdown.begin();
    fixture.shutdown.force();
    fixture.drain().await;
    let verdict = submitter.collect(4).await[&3].clone();
    assert!(
        verdict.is_unknown() || verdict == Verdict::NotTried,
        "{verdict:?}"
    );
    drop(taken);
    server.cont();
}

/// A host takes connections and never says a word. Each attempt ends with its connection, and so with its thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_says_nothing_has_one_connection_at_a_time() {
    let host = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = host.local_addr().expect("its address");
    let fixture = RabbitmqFixture::at(format!("amqp://guest:guest@{address}/%2f"));
    let sink = DeliverySink::default();
    let _metrics = fixture.consume(&["nothing"], 10, &sink);
    for _ in 0..3 {
        let (mut connection, _) = patiently("a connection", host.accept())
            .await
            .expect("it is taken");
        let mut heard = Vec::new();
        patiently("its end", connection.read_to_end(&mut heard))
            .await
            .expect("it is closed");
        assert!(heard.starts_with(b"AMQP"), "{heard:?}");
    }
    fixture.drain().await;
}
