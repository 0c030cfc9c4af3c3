//! Keys of the wrong type refuse every call that would touch them, before it writes anything.

use std::collections::BTreeMap;

use postdate::domain::{OnDuplicate, RouteName};
use postdate::store::{
    CodecError, DeadId, Division, ScrubReport, Settlement, StoreError, WriteOp, WriteResult,
};

use super::fixture::*;
use crate::support::{Redis, eventually};

/// Every key of the partition, as it is on the wire, but for blobs that will pass and the answers of calls: a refusal is
/// one of these.
pub(super) async fn all(fixture: &StoreFixture) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = fixture.command(&["KEYS", &fixture.key("*")]).await;
    let mut all = BTreeMap::new();
    for key in keys.into_iter().filter(|key| !key.ends_with(":calls")) {
        if fixture.command::<i64>(&["PTTL", &key]).await < 0 {
            all.insert(key.clone(), fixture.command(&["DUMP", &key]).await);
        }
    }
    all
}

async fn damaged<T: std::fmt::Debug>(
    fixture: &StoreFixture,
    what: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) {
    let before = all(fixture).await;
    let answer = call.await;
    assert!(
        matches!(answer, Err(StoreError::Damaged(_))),
        "{what}: {answer:?}"
    );
    assert_eq!(all(fixture).await, before, "{what}: nothing was written");
}

/// A write waits and says so; it goes on when the key is as it should be.
async fn waits(
    fixture: &StoreFixture,
    redis: &Redis,
    what: &str,
    op: postdate::store::WriteOp,
    spoilt: (&str, &str),
) {
    let refused = async || {
        let mut raw = redis.connection().await.expect("connected");
        let info: String = redis::cmd("INFO")
            .arg("errorstats")
            .query_async(&mut raw)
            .await
            .expect("info");
        let count = info
            .lines()
            .find_map(|l| l.strip_prefix("errorstat_WRONGTYPE:count="));
        count.map_or(0, |n| n.trim().parse::<u64>().expect("a number"))
    };
    let before = all(fixture).await;
    let had = refused().await;
    let writing = tokio::spawn({
        let fixture = fixture.at(P);
        async move { fixture.write(vec![op]).await }
    });
    eventually(&format!("{what} refuses a write"), async || {
        if refused().await > had {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    assert_eq!(all(fixture).await, before, "{what}: nothing was written");
    assert!(!writing.is_finished());
    let (bad, saved) = spoilt;
    fixture.command::<i64>(&["DEL", bad]).await;
    if !saved.is_empty() {
        fixture.command::<()>(&["RENAME", saved, bad]).await;
    }
    writing.await.expect("runs");
    fixture.check().await;
}

#[tokio::test]
async fn a_key_of_the_wrong_type_refuses_before_any_write() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let fixed = [
        "idx", "claims", "tokens", "gone", "done", "expiries", "put_back", "names", "counts",
        "calls", "heads", "shelves",
    ];
    for spoilt in fixed {
        fixture.wipe().await;
        fixture
            .keep(vec![named("a", past(), "a"), unnamed(past(), "b")])
            .await;
        let held = fixture.claim(0).await.remove(0);
        fixture
            .keep(vec![named("b", past(), "b"), unnamed(past(), "b")])
            .await;
        let request = fixture.request(LONG).await;
        let key = fixture.key(spoilt);
        let saved = fixture.key(&format!("saved:{spoilt}"));
        let there: i64 = fixture.command(&["EXISTS", &key]).await;
        if there == 1 {
            fixture.command::<()>(&["RENAME", &key, &saved]).await;
        }
        fixture.command::<()>(&["SET", &key, "not ours"]).await;
        let one = [progress(&held.claim, Some(vec![true, false]))];
        damaged(&fixture, spoilt, fixture.store.claim(&request)).await;
        let settlement = Settlement {
            claim: held.claim.clone(),
            names: vec![("a".into(), 0)],
            delivered: vec![],
        };
        damaged(&fixture, spoilt, fixture.store.settle(P, &[settlement])).await;
        damaged(&fixture, spoilt, fixture.store.extend(P, LONG, &one)).await;
        damaged(&fixture, spoilt, fixture.store.give_back(P, &one)).await;
        let division = Division {
            claim: held.claim.clone(),
            confirmed: vec![true, false],
            delivered: vec![],
            freed: vec![],
            remainders: vec![],
            dead: vec![dead_letter(unnamed(past(), "b"))],
            held_keys: Vec::new(),
        };
        damaged(&fixture, spoilt, fixture.store.divide(&division)).await;
        // The scripts check all types before they look for a dead letter: an unknown id will do.
        let id = DeadId::parse("orders.attempts.0.n.1").expect("an id");
        damaged(
            &fixture,
            spoilt,
            fixture
                .store
                .redrive(&id, &bundle(vec![unnamed(past(), "d")])),
        )
        .await;
        damaged(&fixture, spoilt, fixture.store.drop_dead(&[id])).await;
        if spoilt != "claims" {
            damaged(&fixture, spoilt, sweep(&fixture.store, P, LONG, false)).await;
        }
        let saved = if there == 1 { saved } else { String::new() };
        waits(
            &fixture,
            &redis,
            spoilt,
            keep(vec![named("c", past(), "c")]),
            (&key, &saved),
        )
        .await;
    }
}

#[tokio::test]
async fn a_due_zset_or_a_blob_of_the_wrong_type_refuses_before_any_write() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture.keep(vec![named("a", past(), "a")]).await;
    let held = fixture.claim(0).await.remove(0);
    fixture.keep(vec![named("b", past(), "b")]).await;
    let request = fixture.request(LONG).await;
    let due = fixture.key(&format!("due:{}", held.claim.id.due_set()));
    fixture
        .command::<()>(&["RENAME", &due, &fixture.key("saved:due")])
        .await;
    fixture.command::<()>(&["SET", &due, "not ours"]).await;
    let one = [progress(&held.claim, None)];
    damaged(&fixture, "due", fixture.store.claim(&request)).await;
    damaged(&fixture, "due", fixture.store.give_back(P, &one)).await;
    damaged(&fixture, "due", sweep(&fixture.store, P, LONG, false)).await;
    let saved = fixture.key("saved:due");
    waits(
        &fixture,
        &redis,
        "due",
        reschedule("b", past(), "x"),
        (&due, &saved),
    )
    .await;

    let blob = fixture.key(&format!("b:{}", held.claim.id));
    fixture
        .command::<()>(&["RENAME", &blob, &fixture.key("saved:blob")])
        .await;
    fixture.command::<()>(&["LPUSH", &blob, "not ours"]).await;
    let settlement = Settlement {
        claim: held.claim.clone(),
        names: vec![("a".into(), 0)],
        delivered: vec![],
    };
    damaged(&fixture, "blob", fixture.store.settle(P, &[settlement])).await;
    let confirmed = [progress(&held.claim, Some(vec![true]))];
    damaged(&fixture, "blob", fixture.store.extend(P, LONG, &confirmed)).await;
    // Whoever claims it learns that there is nothing to read.
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    let claimed = fixture.claim(LONG).await;
    assert_eq!(
        claimed
            .iter()
            .filter(|c| c.bundle == Err(CodecError::Missing))
            .count(),
        1
    );
}

#[tokio::test]
async fn what_is_no_bundle_does_not_cost_the_others_their_claim() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let shelf = fixture.heads().await.remove(0).due_set;
    fixture
        .command::<i64>(&[
            "ZADD",
            &fixture.key(&format!("due:{shelf}")),
            "5",
            "no bundle",
        ])
        .await;
    fixture
        .command::<i64>(&["ZADD", &fixture.key("idx"), "5", &shelf])
        .await;
    assert_eq!(
        fixture
            .claim(LONG)
            .await
            .iter()
            .flat_map(live)
            .collect::<Vec<_>>(),
        ["a"]
    );
}

#[tokio::test]
async fn a_bundle_that_cannot_be_read_does_not_stop_what_is_written_after_it() {
    use postdate::store::WriteResult;
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![named("a", past(), "a")]).await;
    fixture.keep(vec![named("b", past(), "b")]).await;
    let blob = async |name: &str| {
        let place: String = fixture
            .command(&["HGET", &fixture.key("names"), &format!("orders/{name}")])
            .await;
        fixture.key(&format!("b:{}", place.split(' ').next().expect("a place")))
    };
    fixture
        .command::<i64>(&["SETRANGE", &blob("a").await, "20", "?"])
        .await;
    fixture.command::<i64>(&["DEL", &blob("b").await]).await;
    assert_eq!(
        fixture.reschedule("a", far(), "x").await,
        WriteResult::TooLate
    );
    assert_eq!(
        fixture.reschedule("b", far(), "x").await,
        WriteResult::TooLate
    );
    let mut why: Vec<_> = fixture
        .claim(LONG)
        .await
        .into_iter()
        .map(|c| c.bundle.expect_err("unreadable"))
        .collect();
    why.sort_by_key(|why| *why != CodecError::Missing);
    assert_eq!(why, [CodecError::Missing, CodecError::Checksum]);
}

/// Entries of `names` that no transition writes, and some that one could have: of a bundle that stands, or of none.
fn entries_of_a_name(stands: &str) -> Vec<Vec<u8>> {
    let mut entries: Vec<Vec<u8>> = [
        "",
        " ",
        "?",
        "0",
        " 0",
        "orders/0/a.b.1",
        "orders/0/a.b.1 ",
        "orders/0/a.b.1 -1",
        "orders/0/a.b.1 +0",
        "orders/0/a.b.1 1",
        "orders/0/a.b.1 4294967296",
        "orders/0/a.b.1 99999999999999999999",
        "orders/0/a.b.0 0",
        "orders/0/a.b.zz 0",
        "orders/0/A.b.1 0",
        "orders/zzzzzzzzzzzzzz/a.b.1 0",
        "or__ders/0/a.b.1 0",
        "/0/a.b.1 0",
        "orders/0/a.b.1 0 0",
    ]
    .map(|entry| entry.as_bytes().to_vec())
    .into();
    entries.push(format!("{stands} 1").into());
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let mut entry = format!("{stands} 0").into_bytes();
        for _ in 0..=rng.usize(..2) {
            let at = rng.usize(..entry.len());
            match rng.u8(..3) {
                0 => entry[at] = rng.u8(..),
                1 => drop(entry.remove(at)),
                _ => entry.insert(at, rng.u8(32..127)),
            }
        }
        entries.push(entry);
    }
    // Zeros before the index: the place of the message that stands.
    let zeros = |entry: &Vec<u8>| {
        let index = entry.strip_prefix(format!("{stands} ").as_bytes());
        index.is_some_and(|index| !index.is_empty() && index.iter().all(|byte| *byte == b'0'))
    };
    entries.retain(|entry| !zeros(entry));
    entries
}

#[tokio::test]
async fn an_entry_of_a_name_that_is_no_place_keeps_no_call_waiting() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![named("stands", far(), "stands")]).await;
    let place: String = fixture
        .command(&["HGET", &fixture.key("names"), "orders/stands"])
        .await;
    let stands = place.split(' ').next().expect("a place");
    for entry in entries_of_a_name(stands) {
        let plant = async |name: &str| {
            redis::cmd("HSET")
                .arg(fixture.key("names"))
                .arg(format!("orders/{name}"))
                .arg(&entry[..])
                .query_async::<i64>(&mut fixture.raw.clone())
                .await
                .expect("set");
        };
        let calls = async {
            plant("kept").await;
            // Two names of one call: what one of them means is known to the script when it judges the other.
            let both = vec![named("kept", far(), "x"), named("stands", far(), "y")];
            let kept = fixture.keep(both).await;
            plant("cancelled").await;
            fixture.cancel("cancelled").await;
            plant("moved").await;
            fixture.reschedule("moved", far(), "z").await;
            kept
        };
        let kept = tokio::time::timeout(std::time::Duration::from_secs(20), calls)
            .await
            .unwrap_or_else(|_| panic!("{:?} is waited for", String::from_utf8_lossy(&entry)));
        assert_eq!(
            kept,
            [WriteResult::Stored, WriteResult::Duplicate],
            "{:?}",
            String::from_utf8_lossy(&entry)
        );
        for name in ["kept", "moved"] {
            fixture.cancel(name).await;
        }
        let counts = fixture.counts().await;
        assert_eq!(counts.messages, 1, "only the one that stands");
    }
    fixture.check().await;
}

async fn mend_indexes(fixture: &StoreFixture) {
    let mut report = ScrubReport::default();
    let mended = fixture.store.mend_indexes(P, &mut report).await;
    mended.expect("mended");
}

#[tokio::test]
async fn a_deleted_index_that_writes_have_begun_anew_is_noticed_and_made_whole() {
    let fixture = StoreFixture::shared().await;
    let at = |slice: i64, ms: i64| past().plus((slice << 20) + ms);
    for index in ["idx", "heads", "shelves"] {
        fixture.wipe().await;
        for slice in 0..5 {
            fixture.keep(vec![unnamed(at(slice, 1), "x")]).await;
        }
        let other = WriteOp::Store {
            route: RouteName::new("other").expect("a name"),
            on_duplicate: OnDuplicate::Keep,
            bundle: bundle(vec![unnamed(at(0, 1), "x")]),
        };
        fixture.write(vec![other]).await;
        assert_eq!(fixture.store.lost_indexes(&[P]).await, [], "{index}");
        fixture.command::<i64>(&["DEL", &fixture.key(index)]).await;
        // Earlier than all else in the last slice.
        fixture.keep(vec![unnamed(at(4, 0), "y")]).await;
        let there: i64 = fixture.command(&["EXISTS", &fixture.key(index)]).await;
        assert_eq!(there, 1, "the write has begun {index} anew");
        assert_eq!(fixture.store.lost_indexes(&[P]).await, [P], "{index}");
        mend_indexes(&fixture).await;
        fixture.check().await;
        assert_eq!(fixture.store.lost_indexes(&[P]).await, [], "{index}");
        assert_eq!(fixture.claim(LONG).await.len(), 7, "{index}");
        fixture.check().await;
    }
}

/// Nobody knows in this time what place such a due set had.
#[tokio::test]
async fn a_due_set_that_ends_while_the_index_lacks_it_leaves_no_place_behind() {
    let fixture = StoreFixture::shared().await;
    for slice in 0..6 {
        let due = past().plus(slice << 20);
        fixture
            .keep(vec![named(&format!("n{slice}"), due, "x")])
            .await;
    }
    let mut request = fixture.request(LONG).await;
    request.due_sets.truncate(1);
    fixture.command::<i64>(&["DEL", &fixture.key("idx")]).await;
    assert_eq!(fixture.cancel("n3").await, WriteResult::Cancelled);
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.len(), 1);
    assert_eq!(fixture.store.lost_indexes(&[P]).await, [P]);
    mend_indexes(&fixture).await;
    fixture.check().await;
    assert_eq!(fixture.store.lost_indexes(&[P]).await, []);
    assert_eq!(fixture.claim(LONG).await.len(), 4);
    fixture.check().await;
}
