//! Every key that a partition has, under every kind of damage: found, mended or named, and nothing else touched.

use std::collections::{BTreeMap, BTreeSet};

use postdate::domain::Partition;
use postdate::store::{ScrubReport, SettleAnswer, Settlement};

use super::fixture::*;
use crate::support::Redis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Deleted,
    /// A key of another type stands in its place.
    Overwritten,
    /// Content that no transition writes: each field of a hash, a member more of a set.
    Garbage,
    Cut,
    Flipped,
}
use Damage::{Cut, Deleted, Flipped, Garbage, Overwritten};

/// Kinds of a partition's keys, by the text before the first colon but one.
pub const KEYS: [&str; 22] = [
    "idx",
    "claims",
    "tokens",
    "gone",
    "done",
    "expiries",
    "names",
    "counts",
    "calls",
    "heads",
    "shelves",
    "delivered",
    "put_back",
    "order",
    "sources",
    "rates",
    "due:",
    "b:",
    "dead:",
    "d:",
    "claimed",
    "trail:",
];

/// Reports whether nobody can see the damage: the key is optional, or its content is recorded nowhere else.
fn is_silent(key: &str, damage: Damage) -> bool {
    match damage {
        Deleted => {
            matches!(
                key,
                "done"
                    | "expiries"
                    | "names"
                    | "calls"
                    | "put_back"
                    | "order"
                    | "sources"
                    | "rates"
                    | "tokens"
                    | "trail:"
            )
        }
        Garbage => {
            matches!(
                key,
                "tokens" | "calls" | "order" | "sources" | "rates" | "trail:"
            )
        }
        _ => false,
    }
}

fn makes_sense(key: &str, damage: Damage) -> bool {
    let is_blob = matches!(key, "b:" | "claimed" | "d:");
    match damage {
        Deleted | Overwritten => true,
        Garbage => !is_blob,
        // The contents of dead letters are for people, and of claimed bundles for their holders.
        Cut | Flipped => key == "b:",
    }
}

/// A partition with something under each key; the bodies that must not get lost.
async fn fill(fixture: &StoreFixture) -> BTreeSet<String> {
    fixture
        .keep(vec![named("expired", past(), "e1"), unnamed(past(), "e2")])
        .await;
    fixture.claim(0).await;
    sweep(&fixture.store, fixture.p, LONG, false)
        .await
        .expect("swept");
    let expired = bundle_of(fixture, "expired").await;
    let held = fixture.claim(LONG).await.remove(0);
    fixture
        .extend(&held.claim, LONG, Some(vec![false, true]))
        .await;
    fixture
        .keep(vec![named("a", past(), "a1"), unnamed(past(), "a2")])
        .await;
    fixture
        .keep(vec![named("b", past(), "b1"), named("gone", past(), "b2")])
        .await;
    fixture.cancel("gone").await;
    fixture
        .write(vec![postdate::store::WriteOp::DeadLetter(dead_letter(
            unnamed(past(), "d"),
        ))])
        .await;
    fixture
        .command::<i64>(&["HSET", &fixture.key("sources"), "kafka/x", "7"])
        .await;
    fixture
        .command::<i64>(&["HSET", &fixture.key("rates"), "orders", "7"])
        .await;
    fixture
        .command::<i64>(&["HSET", &fixture.key("order"), "stamp", "7"])
        .await;
    fixture
        .command::<i64>(&["RPUSH", &fixture.key("trail:orders"), "0 0 0 1 PT"])
        .await;
    let ends = far().0.to_string();
    fixture
        .command::<i64>(&["ZADD", &fixture.key("delivered"), &ends, "orders/old"])
        .await;
    fixture
        .command::<i64>(&["HINCRBY", &fixture.key("counts"), "r:orders", "1"])
        .await;
    fixture
        .command::<i64>(&["ZADD", &fixture.key("put_back"), "7", &expired])
        .await;
    ["e1", "e2", "a1", "a2", "b1", "d"]
        .map(str::to_owned)
        .into()
}

async fn bundle_of(fixture: &StoreFixture, name: &str) -> String {
    let place: String = fixture
        .command(&["HGET", &fixture.key("names"), &format!("orders/{name}")])
        .await;
    place.split(' ').next().expect("a place").to_owned()
}

/// Every key of the partition, as it is on the wire.
async fn all(fixture: &StoreFixture) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = fixture.command(&["KEYS", &fixture.key("*")]).await;
    let mut all = BTreeMap::new();
    for key in keys {
        all.insert(key.clone(), fixture.command(&["DUMP", &key]).await);
    }
    all
}

/// The one key of this kind that is damaged, and the bodies that stand or fall with it.
async fn chosen(fixture: &StoreFixture, key: &str) -> (String, Vec<&'static str>) {
    match key {
        "due:" => {
            let id = bundle_of(fixture, "a").await;
            (
                fixture.key(&format!("due:{}", &id[..id.rfind('/').expect("a shelf")])),
                vec![],
            )
        }
        "b:" => (
            fixture.key(&format!("b:{}", bundle_of(fixture, "a").await)),
            vec!["a1", "a2"],
        ),
        "claimed" => {
            let id = bundle_of(fixture, "expired").await;
            // Its holder has died; a living one would keep it as a dead letter.
            fixture
                .command::<i64>(&["ZADD", &fixture.key("claims"), "5", &id])
                .await;
            (fixture.key(&format!("b:{id}")), vec!["e1", "e2"])
        }
        "dead:" => (fixture.key("dead:orders"), vec![]),
        "trail:" => (fixture.key("trail:orders"), vec![]),
        "d:" => {
            let keys: Vec<String> = fixture.command(&["KEYS", &fixture.key("d:*")]).await;
            (keys[0].clone(), vec!["d"])
        }
        fixed => (fixture.key(fixed), vec![]),
    }
}

async fn damage(fixture: &StoreFixture, key: &str, how: Damage) {
    match how {
        Deleted => assert_eq!(fixture.command::<i64>(&["DEL", key]).await, 1),
        Overwritten => {
            fixture.command::<i64>(&["DEL", key]).await;
            if key.ends_with("trail:orders") {
                return fixture.command(&["SET", key, "not ours"]).await;
            }
            fixture.command::<i64>(&["LPUSH", key, "not ours"]).await;
        }
        Garbage => {
            let kind: String = fixture.command(&["TYPE", key]).await;
            if kind == "zset" {
                fixture
                    .command::<i64>(&["ZADD", key, "5", "not ours"])
                    .await;
                return;
            }
            if kind == "list" {
                fixture.command::<i64>(&["RPUSH", key, "not ours"]).await;
                return;
            }
            let fields: Vec<String> = fixture.command(&["HKEYS", key]).await;
            assert!(!fields.is_empty(), "there is something under {key}");
            for field in fields {
                fixture.command::<i64>(&["HSET", key, &field, "?"]).await;
            }
        }
        Cut => {
            let half: Vec<u8> = fixture.command(&["GETRANGE", key, "0", "30"]).await;
            let mut set = redis::cmd("SET");
            set.arg(key)
                .arg(half)
                .query_async::<()>(&mut fixture.raw.clone())
                .await
                .expect("set");
        }
        Flipped => {
            fixture.command::<i64>(&["SETRANGE", key, "20", "?"]).await;
        }
    }
}

/// Audits until nothing is found any more; all that was found.
async fn scrubbed(fixture: &StoreFixture) -> Vec<ScrubReport> {
    let mut reports = Vec::new();
    loop {
        let report = fixture.store.scrub(fixture.p).await.expect("scrubbed");
        let only_unreadable = ScrubReport {
            unreadable: Vec::new(),
            ..report.clone()
        };
        if only_unreadable.is_clean() && (report.is_clean() || !reports.is_empty()) {
            return reports;
        }
        reports.push(report);
        assert!(reports.len() < 5, "it comes to an end: {reports:?}");
    }
}

/// Takes all that is due, and reads the dead letters: every body that is still there.
async fn bodies(fixture: &StoreFixture) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let blobs: Vec<String> = fixture.command(&["KEYS", &fixture.key("d:*")]).await;
    for key in blobs {
        let blob: Vec<u8> = fixture.command(&["GET", &key]).await;
        found.insert(body(
            &postdate::store::decode(&blob.into())
                .expect("a dead letter")
                .entries[0],
        ));
    }
    for claimed in fixture.claim(LONG).await {
        if claimed.bundle.is_ok() {
            let all = entries(&claimed).iter().map(body).zip(&claimed.skip);
            found.extend(all.map(|(body, _)| body));
        }
        let settlement = Settlement {
            claim: claimed.claim,
            names: Vec::new(),
            delivered: Vec::new(),
        };
        assert_eq!(
            fixture.store.settle(fixture.p, &[settlement]).await,
            Ok(vec![SettleAnswer::Applied(Vec::new())])
        );
    }
    found
}

#[tokio::test]
async fn every_key_under_every_damage_is_mended_or_named_and_no_other_is_touched() {
    let redis = Redis::start().await;
    let mut tried = 0;
    for key in KEYS {
        for how in [Deleted, Overwritten, Garbage, Cut, Flipped] {
            if makes_sense(key, how) {
                one(&redis, key, how).await;
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 65);
}

async fn one(redis: &Redis, key: &str, how: Damage) {
    let fixture = StoreFixture::with(redis, &redis.url(), 2, LONG as i64).await;
    let neighbour = fixture.at(Partition(1));
    let mut expected = fill(&fixture).await;
    fill(&neighbour).await;
    fixture.check().await;
    assert_eq!(scrubbed(&fixture).await, [], "nothing is wrong before");
    let before = all(&neighbour).await;
    let (target, stand) = chosen(&fixture, key).await;
    damage(&fixture, &target, how).await;

    let what = format!("{key} {how:?}");
    let reports = scrubbed(&fixture).await;
    assert_eq!(
        reports.is_empty(),
        is_silent(key, how),
        "{what}: {reports:?}"
    );
    let quarantined: Vec<&String> = reports.iter().flat_map(|r| &r.quarantined).collect();
    assert_eq!(
        quarantined.len(),
        usize::from(how == Overwritten),
        "{what}: {quarantined:?}"
    );
    let lost = reports
        .iter()
        .map(|r| r.lost.len() + r.dead_lost.len())
        .sum::<usize>();
    let gone = !stand.is_empty() && matches!(how, Deleted | Overwritten);
    assert_eq!(lost, usize::from(gone), "{what}: {reports:?}");
    let unreadable = reports
        .iter()
        .flat_map(|r| &r.unreadable)
        .collect::<BTreeSet<_>>()
        .len();
    assert_eq!(
        unreadable,
        usize::from(matches!(how, Cut | Flipped)),
        "{what}: {reports:?}"
    );
    assert_eq!(
        all(&neighbour).await,
        before,
        "{what}: the other partition is as it was"
    );

    // Holders whose token was lost wait for their deadline.
    let claimed: Vec<String> = fixture
        .command(&["ZRANGE", &fixture.key("claims"), "0", "-1"])
        .await;
    for id in claimed {
        fixture
            .command::<i64>(&["ZADD", &fixture.key("claims"), "5", &id])
            .await;
    }
    sweep(&fixture.store, fixture.p, LONG, false)
        .await
        .expect("swept");
    expected.retain(|body| !stand.contains(&body.as_str()));
    let mut found = bodies(&fixture).await;
    found.retain(|body| body != "b2");
    assert_eq!(
        found, expected,
        "{what}: all is there that was not named as lost"
    );
    // And it goes on, as if nothing had been.
    assert_eq!(
        fixture.keep(vec![named("new", past(), "n")]).await.len(),
        1,
        "{what}"
    );
    scrubbed(&fixture).await;
    let s = fixture.check().await;
    assert_eq!(s.bundles.len(), 1, "{what}");
}

#[tokio::test]
async fn one_partitions_damage_does_not_stand_before_the_others() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 2).await;
    let other = fixture.at(Partition(1));
    fixture.keep(vec![unnamed(past(), "a")]).await;
    other
        .keep(vec![unnamed(past(), "b"), unnamed(past(), "c")])
        .await;
    for key in ["counts", "heads"] {
        damage(&fixture, &fixture.key(key), Overwritten).await;
    }
    let heads = fixture
        .store
        .heads(&[fixture.p, other.p], far())
        .await
        .expect("heads");
    assert_eq!(
        heads.iter().map(|head| head.partition).collect::<Vec<_>>(),
        [other.p]
    );
    assert_eq!(fixture.counts().await.messages, 2);
    // The damaged one's scrub mends it; the other's goes by.
    assert!(other.store.scrub(other.p).await.is_ok());
    let quarantined: Vec<String> = scrubbed(&fixture)
        .await
        .into_iter()
        .flat_map(|r| r.quarantined)
        .collect();
    assert_eq!(quarantined, ["counts", "heads"]);
    assert_eq!(fixture.counts().await.messages, 3);
    assert_eq!(fixture.heads().await.len(), 1);
    fixture.check().await;
}
