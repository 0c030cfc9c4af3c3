//! Order beside the other rules of a route: rate, names, poison, dead letters and redrive, pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use postdate::domain::{
    Actor, Entry, OnDuplicate, RateLimit, RetryPolicy, RouteParts, UnixMs, Verdict,
};
use postdate::store::{DeadFilter, DeadId, WriteResult};

use super::fixture::{BrokerRule, OrderFixture, Replica, entry, named, refused};
use super::histories::{every_third, same_order, store_random};
use super::keys::{arrived, await_pending, store_named};
use crate::support::run::now_ms;
use crate::support::{Redis, eventually};

const CLAIM: Duration = Duration::from_secs(10);

/// Refuses these bodies until it is mended.
fn broken(bodies: &'static [&'static str]) -> (BrokerRule, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = mended.clone();
    let rule = move |_: usize, _: &str, body: &str| {
        let refuses = bodies.contains(&body) && !is_mended.load(Ordering::Acquire);
        if refuses {
            refused()
        } else {
            Verdict::Confirmed(None)
        }
    };
    (Box::new(rule), mended)
}

fn attempts(attempts: u32, ms: i64) -> RetryPolicy {
    RetryPolicy {
        attempts,
        initial_ms: ms,
        max_ms: ms,
    }
}

/// The same name with another body.
fn with_body(key: &str, name: &str, body: &str, due: UnixMs) -> Entry {
    Entry {
        message: entry(key, body, due).message,
        ..named(key, name, due)
    }
}

async fn all_arrived(fixture: &OrderFixture, count: usize) {
    super::histories::arrived(fixture, count).await;
}

/// The ids of the route's dead letters, once there are so many.
async fn dead(replica: &Replica, fixture: &OrderFixture, count: usize) -> Vec<DeadId> {
    let filter = DeadFilter {
        route: Some(fixture.route.name.clone()),
        ..DeadFilter::default()
    };
    eventually(&format!("{count} are dead"), async || {
        let page = replica
            .store
            .dead_page(&filter, None, 10)
            .await
            .map_err(|why| why.to_string())?;
        let ids: Vec<DeadId> = page.marks.into_iter().map(|mark| mark.id).collect();
        if ids.len() == count {
            Ok(ids)
        } else {
            Err(format!("{ids:?}"))
        }
    })
    .await
}

/// Makes a dead letter due now, as the API does.
async fn redrive(replica: &Replica, id: &DeadId) {
    let body = replica
        .store
        .dead_letters(std::slice::from_ref(id))
        .await
        .expect("read")
        .remove(0);
    let mut bundle = body.expect("it is there").bundle.expect("readable");
    for entry in Arc::make_mut(&mut bundle.entries) {
        (entry.due, entry.asked, entry.failures) = (UnixMs(now_ms()), None, 0);
    }
    assert_eq!(replica.store.redrive(id, &bundle).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_route_keeps_the_order_though_every_third_is_refused() {
    let fixture = OrderFixture::new(2, every_third(), |route| {
        // Far fewer than are due: each waits for its tokens, and so does each that is tried again.
        route.policy.rate = Some(RateLimit {
            per_second: 60,
            burst: 6,
        });
    })
    .await;
    let writer = fixture.replica();
    let expected = store_random(&[&writer], 120, -1000..500).await;
    // Two who share the rate, one of them in the way of the other.
    let one = fixture.serve(CLAIM);
    let other = fixture.serve(CLAIM);
    all_arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
    one.drain().await;
    other.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_replaces_comes_last_and_a_remembered_name_does_not_come_again() {
    let fixture =
        OrderFixture::new(1, every_third(), |route| route.policy.dedupe_ms = 600_000).await;
    let writer = fixture.replica();
    let due = store_named(&writer, "k", &["a", "b", "c"]).await;
    let again = |name: &str, body: &str| vec![with_body("k", name, body, due)];
    assert_eq!(
        writer.store("k", again("b", "kept out")).await,
        [WriteResult::Duplicate]
    );
    let replaced = writer
        .store_as("k", again("a", "a2"), OnDuplicate::Replace)
        .await;
    assert_eq!(replaced, [WriteResult::Replaced]);
    writer.serve(&fixture.broker, CLAIM);
    // Of one moment: its place is that of its own coming.
    arrived(&fixture, "k", &["b", "c", "a2"]).await;
    eventually("all of them are remembered", async || {
        match &writer
            .store_as("k", again("c", "c2"), OnDuplicate::Replace)
            .await[..]
        {
            [WriteResult::Duplicate] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    writer.store("k", vec![named("k", "d", due)]).await;
    arrived(&fixture, "k", &["b", "c", "a2", "d"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_message_that_is_replaced_frees_its_key_and_comes_last() {
    let (rule, _) = broken(&["a1"]);
    let fixture =
        OrderFixture::new(1, rule, |route| route.policy.retry = attempts(100, 6000)).await;
    let replica = fixture.serve(CLAIM);
    let due = store_named(&replica, "a", &["a1", "a2", "a3"]).await;
    await_pending(&replica, &fixture, "a1", due).await;
    await_pending(&replica, &fixture, "a3", due).await;
    let instead = vec![with_body("a", "a1", "another", due)];
    assert_eq!(
        replica.store_as("a", instead, OnDuplicate::Replace).await,
        [WriteResult::Replaced]
    );
    // It is due before them, but they came while it was not here, and wait behind what was.
    arrived(&fixture, "a", &["a2", "a3", "another"]).await;
}

/// A bundle whose claims expired twice is taken apart, and what comes back of it keeps its place before what came
/// later; a message whose claims expired fifty times is dead, and its followers go.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_apart_or_buried_as_poison_keeps_its_keys_in_order() {
    let fixture = OrderFixture::new(1, every_third(), |_| ()).await;
    let writer = fixture.replica();
    let mut redis = Redis::shared().await.connection().await.expect("connected");
    let due = UnixMs(now_ms() - 1000);
    let of_partition = |key: &str| format!("{}:{{0}}:{key}", fixture.config.prefix);
    for (first, expiries) in [("p", 50), ("a", 2)] {
        let bundle = match first {
            "p" => vec![entry("p", "poison", due)],
            _ => vec![
                entry("a", "a1", due),
                entry("b", "b1", due),
                entry("a", "a2", due),
            ],
        };
        writer.store(first, bundle).await;
        let blobs: Vec<String> = redis::cmd("KEYS")
            .arg(of_partition("b:*"))
            .query_async(&mut redis)
            .await
            .expect("its blob");
        // As if so many claims had expired on all that is there.
        for blob in blobs {
            let id = blob.rsplit(":b:").next().expect("an id");
            redis::cmd("HSETNX")
                .arg((of_partition("expiries"), id, expiries))
                .query_async::<i64>(&mut redis)
                .await
                .expect("set");
        }
    }
    writer
        .store(
            "a",
            vec![
                entry("a", "a3", due),
                entry("b", "b2", due),
                entry("p", "after", due),
            ],
        )
        .await;
    writer.serve(&fixture.broker, CLAIM);
    arrived(&fixture, "a", &["a1", "a2", "a3"]).await;
    arrived(&fixture, "b", &["b1", "b2"]).await;
    arrived(&fixture, "p", &["after"]).await;
    let [id] = &dead(&writer, &fixture, 1).await[..] else {
        panic!("one is dead")
    };
    assert_eq!(id.reason().as_str(), "crashes");
    writer.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_message_takes_its_place_as_one_that_has_just_come() {
    let (rule, mended) = broken(&["a1", "a3"]);
    let fixture = OrderFixture::new(1, rule, |route| route.policy.retry = attempts(2, 50)).await;
    let replica = fixture.serve(CLAIM);
    store_named(&replica, "a", &["a1", "a2"]).await;
    arrived(&fixture, "a", &["a2"]).await;
    let ids = dead(&replica, &fixture, 1).await;
    // One that is due later waits for its own moment; it is redriven while that is still to come.
    let later = UnixMs(now_ms() + 10_000);
    replica.store("a", vec![named("a", "later", later)]).await;
    mended.store(true, Ordering::Release);
    redrive(&replica, &ids[0]).await;
    assert!(now_ms() < later.0, "this machine is too slow for this test");
    arrived(&fixture, "a", &["a2", "a1", "later"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_message_waits_behind_one_of_its_key_that_fails() {
    let dies = Arc::new(AtomicBool::new(true));
    let fails = Arc::new(AtomicBool::new(true));
    let a1_dies = dies.clone();
    let a2_fails = fails.clone();
    let rule = move |_: usize, _: &str, body: &str| match body {
        "a1" if a1_dies.load(Ordering::Acquire) => Verdict::Refused {
            reason: postdate::domain::Refusal::TooBig,
            error: "hopeless".into(),
        },
        "a2" if a2_fails.load(Ordering::Acquire) => refused(),
        _ => Verdict::Confirmed(None),
    };
    let fixture = OrderFixture::new(1, Box::new(rule), |route| {
        route.policy.retry = attempts(1000, 1000);
    })
    .await;
    let replica = fixture.serve(CLAIM);
    let due = store_named(&replica, "a", &["a1", "a2"]).await;
    let ids = dead(&replica, &fixture, 1).await;
    await_pending(&replica, &fixture, "a2", due).await;
    dies.store(false, Ordering::Release);
    redrive(&replica, &ids[0]).await;
    // Put behind the one that fails: pending again, under its next moment.
    let redriven = UnixMs(now_ms());
    await_pending(&replica, &fixture, "a1", redriven).await;
    fails.store(false, Ordering::Release);
    arrived(&fixture, "a", &["a2", "a1"]).await;
    replica.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pause_catches_goes_on_in_order() {
    let fixture = OrderFixture::new(2, every_third(), |_| ()).await;
    let mut redis = Redis::shared().await.connection().await.expect("connected");
    let writer = fixture.replica();
    let expected = store_random(&[&writer], 240, -500..2000).await;
    let replica = fixture.serve(CLAIM);
    let route = &fixture.route.name;
    let what = RouteParts {
        publishing: true,
        ..RouteParts::default()
    };
    let seen = async |may: bool| {
        eventually("the pause or its end is seen", async || {
            if replica.store.pauses().may_publish(route.as_str()) == may {
                Ok(())
            } else {
                Err("not yet")
            }
        })
        .await;
    };
    for after in [30, 90, 150] {
        all_arrived(&fixture, after).await;
        replica
            .store
            .pause(route, what, &Actor::new("ann"))
            .await
            .expect("paused");
        seen(false).await;
        // Nothing is held any more: what was claimed is done or in the store again.
        eventually("nothing is claimed", async || {
            let mut claimed = 0;
            for p in 0..2 {
                let claims = format!("{}:{{{p}}}:claims", fixture.config.prefix);
                claimed += redis::cmd("ZCARD")
                    .arg(claims)
                    .query_async::<i64>(&mut redis)
                    .await?;
            }
            if claimed == 0 {
                Ok(())
            } else {
                Err(anyhow!("{claimed}"))
            }
        })
        .await;
        replica.store.resume(route, what).await.expect("resumed");
        seen(true).await;
    }
    all_arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
    replica.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_one_that_died_is_free_again_and_its_key_is_not_held() {
    let (rule, _) = broken(&["a1"]);
    let fixture = OrderFixture::new(1, rule, |route| route.policy.retry = attempts(2, 50)).await;
    let replica = fixture.serve(CLAIM);
    let due = store_named(&replica, "a", &["a1", "a2"]).await;
    arrived(&fixture, "a", &["a2"]).await;
    dead(&replica, &fixture, 1).await;
    let again = || vec![with_body("a", "a1", "again", due)];
    assert_eq!(replica.store("a", again()).await, [WriteResult::Stored]);
    arrived(&fixture, "a", &["a2", "again"]).await;
    assert_eq!(
        dead(&replica, &fixture, 1).await.len(),
        1,
        "the dead letter stays beside it"
    );
    replica.drain().await;
}
