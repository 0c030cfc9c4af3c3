//! Random messages, a target that refuses some, holders that die: each key arrives in its order.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::anyhow;
use postdate::domain::{Entry, UnixMs, Verdict};

use super::fixture::{OrderFixture, Replica, entry, refused};
use crate::support::run::now_ms;
use crate::support::{Redis, eventually};

const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
const CLAIM: Duration = Duration::from_millis(1500);
/// Longer than an answer of Redis may take.
const SILENCE_TIME: Duration = Duration::from_secs(3);

/// Stores random bundles through these in turn; answers each key's bodies in the order in which they are to leave.
pub(super) async fn store_random(
    writers: &[&Replica],
    messages: usize,
    dues: std::ops::Range<i64>,
) -> BTreeMap<String, Vec<String>> {
    let now = now_ms();
    let mut sent: BTreeMap<String, Vec<(UnixMs, usize, String)>> = BTreeMap::new();
    let mut at = 0;
    while at < messages {
        let writer = writers[fastrand::usize(..writers.len())];
        let home = writer.home(KEYS[fastrand::usize(..KEYS.len())]);
        // Bundles lie within 64 ms, and hold keys of one partition.
        let keys: Vec<&str> = KEYS
            .into_iter()
            .filter(|key| writer.home(key) == home)
            .collect();
        let first = now + fastrand::i64(dues.clone());
        let mut bundle: Vec<Entry> = Vec::new();
        for _ in 0..fastrand::usize(1..6) {
            let due = UnixMs((first / 64) * 64 + [0, 0, 20, 63][fastrand::usize(..4)]);
            let key = keys[fastrand::usize(..keys.len())];
            let body = format!("m{at}@{}", due.0 % 100_000);
            bundle.push(entry(key, &body, due));
            sent.entry(key.to_owned())
                .or_default()
                .push((due, at, body));
            at += 1;
        }
        writer.store(keys[0], bundle).await;
    }
    let in_order = |mut of_key: Vec<(UnixMs, usize, String)>| {
        of_key.sort();
        of_key.into_iter().map(|(_, _, body)| body).collect()
    };
    sent.into_iter()
        .map(|(key, of_key)| (key, in_order(of_key)))
        .collect()
}

/// Each key's first arrivals are these, in this order; else says what came of the first key that differs.
pub(super) fn same_order(fixture: &OrderFixture, expected: &BTreeMap<String, Vec<String>>) {
    let found = fixture.broker.firsts();
    for (key, expected) in expected {
        let found = &found[key];
        let differs = expected
            .iter()
            .zip(found)
            .position(|(expected, found)| expected != found);
        let Some(at) = differs else {
            assert_eq!(expected.len(), found.len(), "{key}: as many messages");
            continue;
        };
        let around = |all: &[String]| all[at.saturating_sub(3)..(at + 8).min(all.len())].to_vec();
        let log = fixture.broker.log(key);
        panic!(
            "{key} at {at}: expected {:?}, found {:?}\n{}",
            around(expected),
            around(found),
            log.join("\n")
        );
    }
}

pub(super) async fn arrived(fixture: &OrderFixture, count: usize) {
    eventually(
        &format!("{count} messages arrive"),
        async || match fixture.broker.count() {
            found if found >= count => Ok(()),
            found => Err(anyhow!("{found}")),
        },
    )
    .await;
}

pub(super) fn every_third() -> super::fixture::BrokerRule {
    Box::new(|number, _, _| {
        if number % 3 == 0 {
            refused()
        } else {
            Verdict::Confirmed(None)
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_arrive_in_order_from_a_target_that_refuses_every_third() {
    let fixture = OrderFixture::new(2, every_third(), |_| ()).await;
    let writers = [fixture.replica(), fixture.replica()];
    let expected = store_random(&[&writers[0], &writers[1]], 300, -1000..1500).await;
    let replica = fixture.serve(CLAIM);
    arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
    replica.drain().await;
}

/// Kafka has it, and nobody heard.
fn unknown() -> Verdict {
    Verdict::Unknown {
        error: "no word".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_arrive_in_order_though_holders_are_killed() {
    let rule = |number: usize, _: &str, _: &str| match number % 12 {
        3 | 7 => refused(),
        11 => unknown(),
        _ => Verdict::Confirmed(None),
    };
    let fixture = OrderFixture::new(2, Box::new(rule), |_| ()).await;
    let writer = fixture.replica();
    let expected = store_random(&[&writer], 240, -500..2000).await;
    let mut serving = fixture.serve(CLAIM);
    for killed_after in [40, 110, 180] {
        // One is there already and waits for its turn; it must see all that the other held.
        let next = fixture.serve(CLAIM);
        arrived(&fixture, killed_after).await;
        std::mem::replace(&mut serving, next).kill();
    }
    arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_hands_keys_over_in_order() {
    let fixture = OrderFixture::new(2, every_third(), |_| ()).await;
    let writer = fixture.replica();
    let expected = store_random(&[&writer], 200, -500..1500).await;
    // Claims that no test outlives: who waits for their end waits too long.
    let mut serving = fixture.serve(Duration::from_secs(600));
    for stopped_after in [30, 90, 150] {
        arrived(&fixture, stopped_after).await;
        serving.drain().await;
        serving = fixture.serve(Duration::from_secs(600));
    }
    arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_hands_keys_over_though_redis_says_nothing_for_seconds() {
    let mut redis = Redis::start().await;
    let fixture = OrderFixture::on(&redis, 2, every_third(), |_| ());
    let writer = fixture.replica();
    let expected = store_random(&[&writer], 200, -500..1500).await;
    // Claims that no test outlives: who waits for their end waits too long.
    let mut serving = fixture.serve(Duration::from_secs(600));
    for stopped_after in [30, 90] {
        arrived(&fixture, stopped_after).await;
        redis.stop();
        let silent = async {
            tokio::time::sleep(SILENCE_TIME).await;
            redis.cont();
        };
        tokio::join!(serving.drain(), silent);
        serving = fixture.serve(Duration::from_secs(600));
    }
    arrived(&fixture, expected.values().map(Vec::len).sum()).await;
    same_order(&fixture, &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_while_others_wait_takes_its_place() {
    let fixture = OrderFixture::new(1, Box::new(|_, _, _| Verdict::Confirmed(None)), |_| ()).await;
    let replica = fixture.serve(CLAIM);
    let mut expected = Vec::new();
    // Each comes after the one before and is due before it.
    let end = now_ms() + 10_000;
    for n in 0..20 {
        let due = end - 100 * n;
        let body = format!("m{n}");
        replica
            .store("k0", vec![entry("k0", &body, UnixMs(due))])
            .await;
        assert!(now_ms() < due, "this machine is too slow for this test");
        expected.insert(0, body);
    }
    arrived(&fixture, expected.len()).await;
    same_order(&fixture, &[("k0".to_owned(), expected)].into());
}
