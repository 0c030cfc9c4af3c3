//! Names that are remembered once their messages were delivered: taken from the first store to the end of the
//! time after the confirm, without a gap.

use anyhow::anyhow;
use postdate::domain::{DelayRequest, Entry, RequestedTime};
use postdate::store::{ClaimProgress, SettleAnswer, SweepOutcome, WriteResult};

use super::fixture::*;
use super::proxy::Proxy;
use crate::support::{Redis, eventually};

async fn delivered(fixture: &StoreFixture) -> Vec<String> {
    fixture
        .command(&["ZRANGE", &fixture.key("delivered"), "0", "-1"])
        .await
}

#[tokio::test]
async fn a_name_is_taken_while_it_waits_in_flight_and_once_delivered() {
    for op in [keep, replace] {
        let fixture = StoreFixture::remembering().await;
        let again = async || {
            fixture
                .write(vec![op(vec![named("a", past(), "second")])])
                .await[0][0]
        };
        fixture
            .keep(vec![named("a", past(), "first"), named("b", past(), "b")])
            .await;
        let claimed = fixture.claim(LONG).await.remove(0);
        assert_eq!(again().await, WriteResult::Duplicate, "in flight");
        assert_eq!(fixture.cancel("a").await, WriteResult::InFlight);
        assert_eq!(
            fixture.reschedule("a", far(), "moved").await,
            WriteResult::TooLate
        );
        fixture.settle(&claimed).await;
        assert_eq!(again().await, WriteResult::Duplicate, "delivered");
        assert_eq!(fixture.cancel("a").await, WriteResult::Published);
        assert_eq!(
            fixture.reschedule("a", far(), "moved").await,
            WriteResult::TooLate
        );
        assert_eq!(fixture.cancel("c").await, WriteResult::Unknown);
        let left = fixture.check().await;
        assert!(
            left.bundles.is_empty() && left.passing.is_empty(),
            "nothing was stored: {left:?}"
        );
        assert_eq!(
            left.delivered.keys().collect::<Vec<_>>(),
            ["orders/a", "orders/b"]
        );
        assert_eq!(fixture.counts().await.messages, 0);
    }
}

#[tokio::test]
async fn what_waits_goes_before_what_is_remembered() {
    let fixture = StoreFixture::remembering().await;
    fixture.keep(vec![named("a", far(), "first")]).await;
    fixture
        .command::<i64>(&[
            "ZADD",
            &fixture.key("delivered"),
            "9000000000000",
            "orders/a",
        ])
        .await;
    let second = vec![replace(vec![named("a", far(), "second")])];
    assert_eq!(fixture.write(second).await[0][0], WriteResult::Replaced);
    assert_eq!(
        fixture.reschedule("a", far().plus(1), "moved").await,
        WriteResult::Rescheduled
    );
    assert_eq!(fixture.cancel("a").await, WriteResult::Cancelled);
    assert_eq!(fixture.cancel("a").await, WriteResult::Published);
}

#[tokio::test]
async fn a_route_that_does_not_remember_asks_nothing() {
    let fixture = StoreFixture::shared().await;
    fixture
        .command::<i64>(&[
            "ZADD",
            &fixture.key("delivered"),
            "9000000000000",
            "orders/a",
        ])
        .await;
    assert_eq!(
        fixture.keep(vec![named("a", past(), "a")]).await,
        [WriteResult::Stored]
    );
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        fixture.keep(vec![named("a", far(), "second")]).await,
        [WriteResult::Stored],
        "in flight is free"
    );
    fixture.settle(&claimed).await;
    assert_eq!(delivered(&fixture).await, ["orders/a"], "as it was");
}

#[tokio::test]
async fn only_what_was_delivered_is_remembered() {
    let fixture = StoreFixture::remembering().await;
    let names = ["cancelled", "dead", "back", "delivered"];
    fixture
        .keep(names.map(|name| named(name, past(), name)).to_vec())
        .await;
    assert_eq!(fixture.cancel("cancelled").await, WriteResult::Cancelled);
    let claimed = fixture.claim(LONG).await.remove(0);
    let all = entries(&claimed).to_vec();
    let back = bundle(vec![all[2].clone()]);
    let fresh = postdate::store::NewBundle {
        route: route(),
        bundle: back,
    };
    let division = postdate::store::Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false, false, false, true],
        delivered: vec!["delivered".into()],
        freed: vec![("dead".into(), 1), ("delivered".into(), 3)],
        remainders: vec![postdate::store::Remainder {
            new_bundle: fresh,
            from: vec![2],
            lease_ms: None,
            expiries: 0,
            sequence: None,
        }],
        dead: vec![dead_letter(all[1].clone())],
        held_keys: Vec::new(),
    };
    assert_eq!(
        fixture.divide(division).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(delivered(&fixture).await, ["orders/delivered"]);
    let again = names.map(|name| named(name, far(), name)).to_vec();
    let s = WriteResult::Stored;
    let d = WriteResult::Duplicate;
    assert_eq!(fixture.keep(again).await, [s, s, d, d]);
    fixture.check().await;
}

#[tokio::test]
async fn a_holder_that_dies_between_the_confirm_and_its_note_leaves_no_gap() {
    let fixture = StoreFixture::remembering().await;
    let again = async || fixture.keep(vec![named("a", past(), "again")]).await[0];
    fixture.keep(vec![named("a", past(), "a")]).await;
    let dead = fixture.claim(0).await.remove(0);
    // Its broker has it; nobody else will ever hear so.
    assert_eq!(again().await, WriteResult::Duplicate);
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome {
            expired: 1,
            clamped: 0
        })
    );
    assert_eq!(again().await, WriteResult::Duplicate);
    let next = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        live(&next),
        ["a"],
        "published once more, as a repeat with its cause"
    );
    assert_eq!(again().await, WriteResult::Duplicate);
    fixture.settle(&next).await;
    assert_eq!(again().await, WriteResult::Duplicate);
    // The dead one was only slow.
    assert_eq!(fixture.settle(&dead).await, SettleAnswer::Stale);
    fixture.check().await;
}

#[tokio::test]
async fn calls_whose_replies_are_lost_remember_and_answer_as_the_first_time() {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis).await;
    let fixture = proxy.fixture_with(redis, LONG as i64).await;
    let progress = |claimed: &postdate::store::ClaimAnswer| ClaimProgress {
        claim: claimed.claim.clone(),
        confirmed: Some(vec![true]),
        delivered: vec!["a".into()],
    };
    // Once without loss: the server knows the scripts then.
    fixture.keep(vec![named("warm", past(), "warm")]).await;
    let warm = fixture.claim(LONG).await.remove(0);
    fixture
        .store
        .extend(
            P,
            LONG,
            &[ClaimProgress {
                delivered: vec!["warm".into()],
                ..progress(&warm)
            }],
        )
        .await
        .expect("held");
    fixture.settle(&warm).await;
    fixture.reschedule("warm", far(), "warm").await;

    proxy.lose_next_reply();
    assert_eq!(
        fixture.keep(vec![named("a", past(), "a")]).await,
        [WriteResult::Stored],
        "not a duplicate of itself"
    );
    let call = proxy.last_call();
    let claimed = fixture.claim(LONG).await.remove(0);
    proxy.lose_next_reply();
    let extended = fixture.store.extend(P, LONG, &[progress(&claimed)]).await;
    assert!(
        matches!(extended, Err(postdate::store::StoreError::Unavailable(_))),
        "{extended:?}"
    );
    assert_eq!(
        delivered(&fixture).await,
        ["orders/warm", "orders/a"],
        "applied all the same, the last to end last"
    );
    assert_eq!(
        fixture.store.extend(P, LONG, &[progress(&claimed)]).await,
        Ok(vec![SettleAnswer::Applied(vec![])])
    );
    proxy.lose_next_reply();
    assert_eq!(
        fixture.settle(&claimed).await,
        SettleAnswer::Applied(vec![])
    );
    proxy.lose_next_reply();
    assert_eq!(
        fixture.keep(vec![named("a", far(), "again")]).await,
        [WriteResult::Duplicate]
    );
    proxy.lose_next_reply();
    assert_eq!(
        fixture.reschedule("a", far(), "moved").await,
        WriteResult::TooLate
    );
    assert_eq!(proxy.played(), 5);
    // A store that comes once more after its message was delivered, to a server that has forgotten the call.
    fixture
        .command::<i64>(&["DEL", &fixture.key("calls")])
        .await;
    assert!(
        proxy.send_again(&call).await.contains("$1\r\nd\r\n"),
        "known by its name"
    );
    let left = fixture.check().await;
    assert!(
        left.bundles.is_empty() && left.passing.is_empty(),
        "{left:?}"
    );
}

#[tokio::test]
async fn what_is_confirmed_of_an_open_bundle_is_noted_and_remembered_in_one_step() {
    let fixture = StoreFixture::remembering().await;
    fixture
        .keep(vec![named("a", past(), "a"), named("b", past(), "b")])
        .await;
    let claimed = fixture.claim(0).await.remove(0);
    let first = ClaimProgress {
        claim: claimed.claim.clone(),
        confirmed: Some(vec![true, false]),
        delivered: vec!["a".into()],
    };
    assert_eq!(
        fixture.store.extend(P, 0, &[first]).await,
        Ok(vec![SettleAnswer::Applied(vec![])])
    );
    let noted = fixture.check().await;
    assert_eq!(noted.done.values().collect::<Vec<_>>(), ["10"]);
    assert_eq!(noted.delivered.keys().collect::<Vec<_>>(), ["orders/a"]);
    assert_eq!(fixture.cancel("a").await, WriteResult::Published);
    assert_eq!(fixture.cancel("b").await, WriteResult::InFlight);
    // Its holder dies; the next one gives the rest back and its news with it, the dead one's late word counts too.
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    let next = fixture.claim(LONG).await.remove(0);
    assert_eq!(live(&next), ["b"]);
    let late = ClaimProgress {
        claim: claimed.claim.clone(),
        confirmed: Some(vec![true, true]),
        delivered: vec!["a".into(), "b".into()],
    };
    assert_eq!(
        fixture.store.extend(P, LONG, &[late]).await,
        Ok(vec![SettleAnswer::Stale])
    );
    assert_eq!(delivered(&fixture).await, ["orders/a", "orders/b"]);
    assert_eq!(fixture.settle(&next).await, SettleAnswer::Applied(vec![]));
    assert_eq!(
        fixture.keep(vec![named("b", far(), "again")]).await,
        [WriteResult::Duplicate]
    );
}

/// Once redriven, a message comes back with the counts that it had before.
#[tokio::test]
async fn what_was_given_back_is_taken_until_it_is_delivered() {
    let fixture = StoreFixture::remembering().await;
    let keep = async |count| {
        let request = DelayRequest {
            received: past(),
            time: RequestedTime::Delay(0),
            expires: None,
            given_back: count,
        };
        let entry = Entry {
            request: Some(request),
            ..named("a", past(), "a")
        };
        fixture.keep(vec![entry]).await[0]
    };
    for round in ["first", "redriven"] {
        for count in 1..=3 {
            let said = format!("{round} round, {count}");
            assert_eq!(keep(count).await, WriteResult::Stored, "{said}");
            assert_eq!(keep(count).await, WriteResult::Duplicate, "{said}: waits");
            let claimed = fixture.claim(LONG).await.remove(0);
            assert_eq!(
                keep(count).await,
                WriteResult::Duplicate,
                "{said}: in flight"
            );
            fixture.settle(&claimed).await;
        }
    }
    assert!(delivered(&fixture).await.is_empty());
}

#[tokio::test]
async fn a_name_is_free_once_its_time_is_over() {
    let fixture = StoreFixture::remembering().await;
    let short = fixture.another_with(1);
    short.keep(vec![named("a", past(), "a")]).await;
    let claimed = short.claim(LONG).await.remove(0);
    short.settle(&claimed).await;
    eventually("the name is free", async || {
        match fixture.keep(vec![named("a", far(), "again")]).await[0] {
            WriteResult::Stored => Ok(()),
            other => Err(anyhow!("{other:?}")),
        }
    })
    .await;
    assert_eq!(
        delivered(&fixture).await,
        ["orders/a"],
        "it still takes memory"
    );
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    assert!(delivered(&fixture).await.is_empty(), "until the next sweep");
}

#[tokio::test]
async fn trimming_takes_what_is_over_and_nothing_else() {
    let fixture = StoreFixture::remembering().await;
    let key = fixture.key("delivered");
    let mut pipe = redis::pipe();
    for n in 0..4500 {
        pipe.cmd("ZADD")
            .arg(&key)
            .arg(1_700_000_000_000_i64 + n)
            .arg(format!("orders/{n}"))
            .ignore();
    }
    pipe.cmd("ZADD")
        .arg(&key)
        .arg(9_000_000_000_000_i64)
        .arg("orders/stays")
        .ignore();
    pipe.exec_async(&mut fixture.raw.clone())
        .await
        .expect("added");
    assert_eq!(fixture.store.forget_names(P).await, Ok(4500));
    assert_eq!(delivered(&fixture).await, ["orders/stays"]);
    assert_eq!(fixture.store.forget_names(P).await, Ok(0));
}

#[tokio::test]
async fn a_remembered_name_takes_what_the_reference_says() {
    const NAMES: usize = 100_000;
    let fixture = StoreFixture::remembering().await;
    let key = fixture.key("delivered");
    for chunk in 0..100 {
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(&key);
        for n in 0..NAMES / 100 {
            let n = chunk * (NAMES / 100) + n;
            zadd.arg(1_790_000_000_000_i64 + n as i64)
                .arg(format!("orders/order-{n:012}"));
        }
        zadd.query_async::<i64>(&mut fixture.raw.clone())
            .await
            .expect("added");
    }
    let bytes: usize = fixture
        .command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"])
        .await;
    println!("{} bytes a name of 18 bytes on a route of 6", bytes / NAMES);
    assert!(bytes / NAMES < 160, "{bytes} bytes for {NAMES} names");
}
