//! One key and the others: who waits for whom, and who is freed by what.

use std::time::Duration;

use anyhow::anyhow;
use postdate::domain::{Entry, RouteName, UnixMs, Verdict};
use postdate::store::{StoredState, WriteOp, WriteResult};

use super::fixture::{BrokerRule, OrderFixture, Replica, entry, named, refused};
use crate::support::run::now_ms;
use crate::support::{Redis, eventually};

const CLAIM: Duration = Duration::from_secs(10);

fn all_but(bad: &'static str) -> BrokerRule {
    Box::new(move |_, _, body| {
        if body == bad {
            refused()
        } else {
            Verdict::Confirmed(None)
        }
    })
}

pub(super) async fn arrived(fixture: &OrderFixture, key: &str, expected: &[&str]) {
    eventually(&format!("{expected:?} of {key}"), async || {
        match fixture.broker.firsts().get(key) {
            Some(found) if found.len() >= expected.len() => {
                assert_eq!(found, expected);
                Ok(())
            }
            found => Err(anyhow!("{found:?}")),
        }
    })
    .await;
}

/// Waits until this message waits for its retry, or behind one that does.
pub(super) async fn await_pending(
    replica: &Replica,
    fixture: &OrderFixture,
    name: &str,
    after: UnixMs,
) {
    eventually(&format!("{name} is put off"), async || {
        match replica
            .store
            .find(&fixture.route.name, name)
            .await
            .expect("an answer")
        {
            Some(found) if found.state == StoredState::Pending && found.entry.due > after => Ok(()),
            found => Err(anyhow!("{:?}", found.map(|f| (f.state, f.entry.due)))),
        }
    })
    .await;
}

/// Names of one key, all of them due, each in a bundle of its own.
pub(super) async fn store_named(replica: &Replica, key: &str, names: &[&str]) -> UnixMs {
    let due = UnixMs(now_ms() - 1000);
    for name in names {
        replica.store(key, vec![named(key, name, due)]).await;
    }
    due
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_for_long_holds_its_own_key_alone_until_it_is_dead() {
    let fixture = OrderFixture::new(1, all_but("a1"), |route| {
        route.policy.retry = postdate::domain::RetryPolicy {
            attempts: 3,
            initial_ms: 4000,
            max_ms: 4000,
        };
    })
    .await;
    let replica = fixture.serve(CLAIM);
    let due = store_named(&replica, "a", &["a1", "a2", "a3"]).await;
    await_pending(&replica, &fixture, "a1", due).await;
    await_pending(&replica, &fixture, "a3", due).await;
    let no_key = Entry {
        message: postdate::domain::Message {
            key: None,
            ..entry("", "free", due).message
        },
        ..entry("", "free", due)
    };
    replica
        .store(
            "b",
            vec![entry("b", "b1", due), entry("b", "b2", due), no_key],
        )
        .await;
    arrived(&fixture, "b", &["b1", "b2"]).await;
    arrived(&fixture, "", &["free"]).await;
    // Dead after its third attempt; its followers go on.
    arrived(&fixture, "a", &["a2", "a3"]).await;
    assert_eq!(
        fixture
            .broker
            .log("a")
            .iter()
            .filter(|line| line.contains("a1"))
            .count(),
        3
    );
    let orders = RouteName::new("orders").expect("a name");
    assert_eq!(
        replica.store.counts([&orders]).await.expect("counts")[&orders].dead,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_or_moved_while_it_fails_frees_its_key() {
    let fixture = OrderFixture::new(
        1,
        Box::new(|_, _, body| {
            if body.ends_with('1') {
                refused()
            } else {
                Verdict::Confirmed(None)
            }
        }),
        |route| {
            route.policy.retry = postdate::domain::RetryPolicy {
                attempts: 100,
                initial_ms: 6000,
                max_ms: 6000,
            };
        },
    )
    .await;
    let replica = fixture.serve(CLAIM);
    for key in ["c", "d"] {
        let names = [
            format!("{key}1"),
            format!("{key}2"),
            format!("{key}3"),
            format!("{key}4"),
        ];
        let due = store_named(&replica, key, &names.each_ref().map(String::as_str)).await;
        // The last one's followers have gone behind it too.
        await_pending(&replica, &fixture, &names[3], due).await;
        let route = fixture.route.name.clone();
        let id = names[0].as_str().into();
        let op = if key == "c" {
            WriteOp::Cancel {
                route: route.clone(),
                id,
                of: None,
            }
        } else {
            WriteOp::Reschedule {
                route: route.clone(),
                id,
                due: UnixMs(now_ms() + 86_400_000),
                fallback: None,
                of: None,
            }
        };
        let follower = WriteOp::Cancel {
            route,
            id: names[2].as_str().into(),
            of: None,
        };
        let results = replica
            .store
            .write(replica.home(key), vec![op, follower])
            .await
            .expect("written");
        let first = if key == "c" {
            WriteResult::Cancelled
        } else {
            WriteResult::Rescheduled
        };
        assert_eq!(results, [[first], [WriteResult::Cancelled]]);
        arrived(&fixture, key, &[&names[1], &names[3]]).await;
    }
    replica.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_took_what_was_overdue_of_anothers_gives_the_order_back() {
    let fixture = OrderFixture::new(1, all_but(""), |_| {}).await;
    let helper = fixture.replica();
    // Its time is not over before the test is.
    helper.serve_for_others(&fixture.broker, Duration::from_secs(600));
    store_named(&helper, "a", &["a1"]).await;
    arrived(&fixture, "a", &["a1"]).await;
    let order = format!("{}:{{0}}:order", fixture.config.prefix);
    eventually("nobody holds the order", async || {
        let fields: Vec<String> = Redis::shared().await.command(&["HKEYS", &order]).await?;
        anyhow::ensure!(
            !fields.iter().any(|field| field.starts_with("h:")),
            "{fields:?}"
        );
        anyhow::Ok(())
    })
    .await;
}
