//! Consuming on a broker that is well: what is acknowledged, what comes again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use postdate::domain::Flags;
use prometheus_client::registry::Registry;

use super::{DeliverySink, Gate, OPEN, RabbitmqFixture, Submitter, bodies, body, message, resolve};
use crate::support::{QueueKind, Rabbitmq, eventually, names};

/// Puts numbered messages into a queue.
async fn fill(server: &Rabbitmq, queue: &str, count: u64) {
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    let mut submitter = Submitter::default();
    for ticket in 0..count {
        submitter.submit(&*lane, ticket, queue, message(format!("{ticket:05}")), None);
    }
    submitter.collect(count as usize).await;
    fixture.drain().await;
}

/// Waits until the gauge says that so many are read and not resolved.
async fn unresolved(registry: &Registry, expected: u64) {
    eventually(&format!("{expected} are not resolved"), async || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry)?;
        let line = text
            .lines()
            .find(|line| line.starts_with("postdate_ingress_unresolved{"));
        let line = line.unwrap_or_default();
        anyhow::ensure!(line.ends_with(&format!(" {expected}")), "{line}");
        anyhow::Ok(())
    })
    .await;
}

fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| format!("{n:05}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_resolved_is_acknowledged_and_the_rest_comes_again_flagged() {
    let server = Rabbitmq::shared().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let queue = names::unique("q");
        server.declare_queue(&queue, kind).await;
        fill(server, &queue, 20).await;
        let fixture = RabbitmqFixture::new(server);
        let sink = DeliverySink::default();
        let registry = fixture.consume(&[&queue], 10, &sink);
        let mut caught = sink.catch(10).await;
        assert_eq!(bodies(&caught), numbers(0..10));
        unresolved(&registry, 10).await;
        assert!(
            caught
                .iter()
                .all(|delivery| delivery.flags == Flags::default())
        );
        // 0 to 4 and 6 to 9 are safe, 5 is not: nine are acknowledged, so nine more come.
        let fifth = caught.remove(5);
        resolve(caught);
        let more = sink.catch(9).await;
        assert_eq!(bodies(&more), numbers(10..19));
        // An end by force: 5 and what came since go back.
        fixture.shutdown.force();
        fixture.drain().await;
        unresolved(&registry, 0).await;
        drop((fifth, more));

        let fixture = RabbitmqFixture::new(server);
        let sink = DeliverySink::default();
        fixture.consume(&[&queue], 100, &sink);
        let mut again = sink.catch(11).await;
        again.sort_by_key(body);
        let expected = [numbers(5..6), numbers(10..20)].concat();
        assert_eq!(bodies(&again), expected, "{kind:?}");
        for delivery in again {
            let redelivered = delivery.flags.has(Flags::SOURCE_REDELIVERY);
            assert_eq!(redelivered, *body(&delivery) < *"00019", "{delivery:?}");
            delivery.receipt.resolve();
        }
        fixture.drain().await;
        assert_eq!(server.queue_len(&queue).await, 0, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_waits_for_what_was_taken_and_nothing_comes_twice() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Quorum).await;
    fill(server, &queue, 1000).await;
    let fixture = RabbitmqFixture::new(server);
    let sink = DeliverySink::default();
    fixture.consume(&[&queue], 50, &sink);
    let mut taken = sink.catch(50).await;
    taken.extend(sink.0.deliveries.lock().drain(..));
    let first = bodies(&taken);
    fixture.shutdown.begin();
    // Resolved in reverse, long after the drain has begun: only then may it end.
    let late = fixture
        .tasks
        .ended(std::time::Duration::from_millis(300))
        .await;
    assert!(late.is_err(), "it waits for what it took");
    resolve(taken.into_iter().rev());
    fixture.drain().await;
    assert!(
        sink.is_empty(),
        "nothing was taken after the drain had begun"
    );

    let fixture = RabbitmqFixture::new(server);
    let sink = DeliverySink::default();
    fixture.consume(&[&queue], 1000, &sink);
    let rest = sink.catch(1000 - first.len()).await;
    let mut all: Vec<_> = first.into_iter().chain(bodies(&rest)).collect();
    all.sort();
    assert_eq!(all, numbers(0..1000), "each once");
    resolve(rest);
    fixture.drain().await;
    assert_eq!(server.queue_len(&queue).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_queue_costs_its_own_route_only_and_one_deleted_is_found_again() {
    let server = Rabbitmq::shared().await;
    let gone = names::unique("q");
    let there = names::unique("q");
    server.declare_queue(&there, QueueKind::Classic).await;
    let fixture = RabbitmqFixture::new(server);
    let sink = DeliverySink::default();
    fixture.consume(&[&gone, &there], 10, &sink);
    fill(server, &there, 1).await;
    resolve(sink.catch(1).await);
    for round in 1..=3 {
        server.declare_queue(&gone, QueueKind::Classic).await;
        fill(server, &gone, 2).await;
        let caught = sink.catch(2).await;
        assert_eq!(bodies(&caught), numbers(0..2), "round {round}");
        if round < 3 {
            // Its receipts outlive the channel: they resolve into a ledger that nobody reads.
            server.delete_queue(&gone).await;
        }
        resolve(caught);
    }
    eventually("the last ones are acknowledged", async || {
        match server.queue_len(&gone).await {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
    fill(server, &there, 1).await;
    resolve(sink.catch(1).await);
    let opened = sink.0.opened.lock().clone();
    assert!(
        opened.contains(&format!("rabbitmq/main/{gone}")),
        "{opened:?}"
    );
    fixture.drain().await;
    assert_eq!(server.queue_len(&gone).await, 0);
}

/// RabbitMQ tells a consumer that its queue was deleted, unless it had to delete a quorum queue by force: the leader did
/// not answer, so it could not tell anybody. RabbitMQ 3 does not tell if the new queue is there at once: it moves the
/// consumer there, and then loses what the queue delivers.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_made_anew_is_read_whether_or_not_its_consumer_was_told() {
    let server = Rabbitmq::shared().await;
    let ways = [
        (QueueKind::Classic, false),
        (QueueKind::Quorum, false),
        (QueueKind::Quorum, true),
    ];
    let anew = ways.map(async |(kind, by_force)| {
        let [queue, neighbour] = ["q", "q"].map(names::unique);
        for queue in [&queue, &neighbour] {
            server.declare_queue(queue, kind).await;
        }
        let fixture = RabbitmqFixture::new(server);
        let sink = DeliverySink::default();
        fixture.consume(&[&queue, &neighbour], 10, &sink);
        for queue in [&queue, &neighbour] {
            fill(server, queue, 1).await;
            resolve(sink.catch(1).await);
        }
        if by_force {
            server.suspend_queue(&queue).await;
        }
        server.delete_queue(&queue).await;
        server.declare_queue(&queue, kind).await;
        fill(server, &queue, 3).await;
        let caught = sink.catch(3).await;
        assert_eq!(bodies(&caught), numbers(0..3), "{kind:?}, {by_force}");
        resolve(caught);
        let opened = sink.0.opened.lock().clone();
        let again = opened.iter().filter(|name| name.ends_with(&neighbour));
        assert_eq!(again.count(), 1, "{kind:?}, {by_force}: {opened:?}");
        fixture.drain().await;
    });
    join_all(anew).await;
}

/// While the leader of a quorum queue does not answer, RabbitMQ says that the queue has no message and no consumer.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_leader_hangs_for_a_while_keeps_its_consumer_and_spends_no_delivery() {
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Quorum).await;
    let fixture = RabbitmqFixture::new(server);
    let sink = DeliverySink::default();
    fixture.consume(&[&queue], 10, &sink);
    fill(server, &queue, 1).await;
    resolve(sink.catch(1).await);
    server.suspend_queue(&queue).await;
    // Longer than the time after which the broker is asked.
    tokio::time::sleep(Duration::from_secs(15)).await;
    server.resume_queue(&queue).await;
    fill(server, &queue, 3).await;
    let caught = sink.catch(3).await;
    assert_eq!(bodies(&caught), numbers(0..3));
    for delivery in &caught {
        assert_eq!(delivery.flags, Flags::default(), "delivered once");
    }
    resolve(caught);
    assert_eq!(sink.0.opened.lock().len(), 1, "subscribed to once");
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gathered_under_load_comes_once_and_in_order() {
    const COUNT: u64 = 5000;
    let server = Rabbitmq::shared().await;
    let queue = names::unique("q");
    server.declare_queue(&queue, QueueKind::Classic).await;
    fill(server, &queue, COUNT).await;
    let fixture = RabbitmqFixture::new(server);
    let sink = DeliverySink::default();
    sink.0.has_time.store(true, Ordering::Relaxed);
    fixture.consume(&[&queue], 500, &sink);
    for first in (0..COUNT).step_by(100) {
        let caught = sink.catch(100).await;
        assert_eq!(bodies(&caught), numbers(first..first + 100));
        resolve(caught);
    }
    fixture.drain().await;
    assert!(sink.is_empty());
    assert_eq!(server.queue_len(&queue).await, 0);
}

/// While a route's ingress waits nothing of its queue is delivered again and again: a quorum queue would drop it.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_subscribed_to_only_while_its_route_is_open_and_the_store_takes_in() {
    let server = Rabbitmq::shared().await;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let queue = names::unique("q");
        server.declare_queue(&queue, kind).await;
        fill(server, &queue, 20).await;
        let fixture = RabbitmqFixture::new(server);
        let sink = DeliverySink::default();
        let gate = &sink.0.gate;
        gate.send_replace(Gate {
            ready: false,
            ..OPEN
        });
        fixture.consume(&[&queue], 10, &sink);
        eventually("it waits for the store", async || {
            match sink.0.opened.lock().len() {
                0 => Err("not yet"),
                _ => Ok(()),
            }
        })
        .await;
        assert_eq!(
            server.queue_len(&queue).await,
            20,
            "{kind:?}: nothing is delivered"
        );
        gate.send_replace(OPEN);
        let taken = sink.catch(10).await;
        // Closed for a moment: what was delivered waits with its channel, and is taken when it opens.
        gate.send_replace(Gate {
            open: false,
            ..OPEN
        });
        resolve(taken);
        let left = async |expected: u32| {
            eventually(&format!("{expected} are left"), async || {
                match server.queue_len(&queue).await {
                    left if left == expected => Ok(()),
                    left => Err(left),
                }
            })
            .await;
        };
        left(0).await;
        assert!(sink.is_empty(), "{kind:?}");
        // Closed for long: all goes back, once.
        gate.send_replace(Gate {
            open: false,
            back: true,
            ..OPEN
        });
        left(10).await;
        assert!(sink.is_empty(), "{kind:?}");
        gate.send_replace(OPEN);
        let again = sink.catch(10).await;
        assert_eq!(bodies(&again), numbers(10..20), "{kind:?}");
        assert!(
            again
                .iter()
                .all(|delivery| delivery.flags.has(Flags::SOURCE_REDELIVERY))
        );
        let counts = again.iter().flat_map(|delivery| &delivery.message.headers);
        assert_eq!(
            counts.count(),
            0,
            "{kind:?}: what the queue added stays behind"
        );
        // A drain while it is closed ends at once, and what was delivered goes back.
        gate.send_replace(Gate {
            open: false,
            ..OPEN
        });
        resolve(again);
        left(0).await;
        fill(server, &queue, 5).await;
        left(0).await;
        fixture.drain().await;
        left(5).await;
    }
}
