//! Planted damage of each kind: found, mended, told; and nothing else touched.

use std::time::Duration;

use postdate::store::{DeadFilter, ScrubReport, SettleAnswer, SweepOutcome, WriteResult};
use tokio_util::sync::CancellationToken;

use super::fixture::*;
use crate::support::Redis;
use crate::support::proxy::{Mode, Proxy as SlowLink};

fn clean() -> ScrubReport {
    ScrubReport {
        counts: Some(0),
        ..ScrubReport::default()
    }
}

/// A store with something of everything, on a Redis of its own: the key space is small.
async fn full() -> (Redis, StoreFixture) {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture
        .keep(vec![named("a", past(), "a1"), unnamed(past(), "a2")])
        .await;
    fixture
        .keep(vec![named("b", past(), "b1"), unnamed(past(), "b2")])
        .await;
    fixture
        .keep(vec![named("far", far(), "f1"), named("gone", far(), "f2")])
        .await;
    fixture.cancel("gone").await;
    fixture
        .write(vec![postdate::store::WriteOp::DeadLetter(dead_letter(
            unnamed(past(), "d"),
        ))])
        .await;
    assert_eq!(
        scrub(&fixture).await,
        clean(),
        "nothing is wrong with a good store"
    );
    (redis, fixture)
}

async fn scrub(fixture: &StoreFixture) -> ScrubReport {
    fixture.store.scrub(P).await.expect("scrubbed")
}

/// The bundle that holds this name.
async fn bundle_of(fixture: &StoreFixture, name: &str) -> String {
    let place: String = fixture
        .command(&["HGET", &fixture.key("names"), &format!("orders/{name}")])
        .await;
    place.split(' ').next().expect("a place").to_owned()
}

/// Audits to the end, and then there is nothing more to mend and nothing wrong.
async fn mended(fixture: &StoreFixture) -> ScrubReport {
    let report = scrub(fixture).await;
    assert!(!report.is_clean());
    assert_eq!(scrub(fixture).await, clean(), "once is enough: {report:?}");
    fixture.check().await;
    report
}

#[tokio::test]
async fn interleaving_19_a_shelf_that_the_index_lacks_or_has_wrong_is_found() {
    let (_redis, fixture) = full().await;
    let shelf = fixture.heads().await.remove(0).due_set;
    fixture
        .command::<i64>(&["ZREM", &fixture.key("idx"), &shelf])
        .await;
    assert_eq!(
        mended(&fixture).await,
        ScrubReport {
            indexes: 1,
            ..clean()
        }
    );
    fixture
        .command::<i64>(&["ZADD", &fixture.key("idx"), "77", &shelf])
        .await;
    assert_eq!(
        mended(&fixture).await,
        ScrubReport {
            indexes: 1,
            ..clean()
        }
    );
    fixture
        .command::<i64>(&["ZADD", &fixture.key("idx"), "77", "orders/none"])
        .await;
    assert_eq!(
        mended(&fixture).await,
        ScrubReport {
            indexes: 1,
            ..clean()
        }
    );
    assert_eq!(fixture.claim(LONG).await.len(), 2);
}

#[tokio::test]
async fn interleaving_19_an_entry_without_its_blob_is_removed_and_named() {
    let (_redis, fixture) = full().await;
    let id = bundle_of(&fixture, "far").await;
    fixture
        .command::<i64>(&["DEL", &fixture.key(&format!("b:{id}"))])
        .await;
    let report = mended(&fixture).await;
    assert_eq!(
        report
            .lost
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [id]
    );
    assert_eq!(
        (report.indexes, report.counts),
        (0, Some(1)),
        "its bytes; its messages left with it"
    );
    assert_eq!((report.leftovers, report.freed), (0, 1), "its name");
    assert_eq!(
        fixture.keep(vec![named("far", far(), "f")]).await,
        [WriteResult::Stored]
    );
}

#[tokio::test]
async fn a_live_claim_without_its_blob_is_its_holders_and_an_expired_one_is_removed() {
    let (_redis, fixture) = full().await;
    let claimed = fixture.claim(0).await;
    let held = &claimed[0].claim;
    fixture.extend(held, LONG, None).await;
    for c in &claimed {
        fixture
            .command::<i64>(&["DEL", &fixture.key(&format!("b:{}", c.claim.id))])
            .await;
    }
    let report = scrub(&fixture).await;
    assert_eq!(
        report.lost,
        [claimed[1].claim.id.clone()],
        "only the expired one"
    );
    let s: i64 = fixture.command(&["ZCARD", &fixture.key("claims")]).await;
    assert_eq!(s, 1);
    assert_eq!(scrub(&fixture).await.lost, []);
}

#[tokio::test]
async fn a_blob_that_lost_its_entry_is_due_again_at_its_time_and_says_that_it_may_be_a_repeat() {
    let (_redis, fixture) = full().await;
    let far_one = bundle_of(&fixture, "far").await;
    let near = bundle_of(&fixture, "a").await;
    let claimed = fixture.claim(LONG).await;
    for (key, id) in [
        ("claims", &near),
        (
            &*format!("due:{}", &far_one[..far_one.rfind('/').expect("/")]),
            &far_one,
        ),
    ] {
        assert_eq!(
            fixture
                .command::<i64>(&["ZREM", &fixture.key(key), id])
                .await,
            1
        );
    }
    let report = scrub(&fixture).await;
    let mut restored: Vec<_> = report.restored.iter().map(ToString::to_string).collect();
    let mut expected = vec![far_one.clone(), near.clone()];
    restored.sort();
    expected.sort();
    assert_eq!(restored, expected);
    let s = fixture.check().await;
    assert_eq!((s.due[&far_one], s.due[&near]), (far().0, past().0));
    assert_eq!(s.expiries[&near], 1);
    assert_eq!(s.gone.len(), 1, "what was cancelled stays so");
    let again = fixture.claim(LONG).await;
    assert_eq!(
        (again.len(), live(&again[0])),
        (1, vec!["a1".to_owned(), "a2".to_owned()])
    );
    let holder = claimed
        .iter()
        .find(|c| c.claim.id.as_str() == near)
        .expect("claimed");
    assert_eq!(
        fixture.settle(holder).await,
        postdate::store::SettleAnswer::Stale
    );
    fixture.check().await;
}

#[tokio::test]
async fn what_stands_beside_a_bundle_that_lost_its_entry_waits_for_it_to_be_found() {
    let (_redis, fixture) = full().await;
    // Too many keys for one scrub to pass by all of them.
    for n in 0..20 {
        let mut mset = redis::cmd("MSET");
        for m in 0..1000 {
            mset.arg(format!("foreign:{n}:{m}")).arg("x");
        }
        mset.query_async::<()>(&mut fixture.raw.clone())
            .await
            .expect("set");
    }
    let id = bundle_of(&fixture, "far").await;
    let due = fixture.key(&format!("due:{}", &id[..id.rfind('/').expect("a shelf")]));
    fixture.command::<i64>(&["ZREM", &due, &id]).await;
    let mut scrubs = 0;
    while scrub(&fixture).await.restored.is_empty() {
        scrubs += 1;
        assert!(scrubs < 30, "found within a round through the key space");
    }
    let s = fixture.check().await;
    assert_eq!(s.gone[&id], "01", "what was cancelled stays so");
    assert_eq!(
        fixture.cancel("far").await,
        WriteResult::Cancelled,
        "and its name means it"
    );
    scrub(&fixture).await;
    fixture.check().await;
}

#[tokio::test]
async fn a_blob_on_its_way_in_is_left_alone() {
    let (_redis, fixture) = full().await;
    let id = bundle_of(&fixture, "a").await;
    let other = id.replacen('.', ".z", 1);
    let from = fixture.key(&format!("b:{id}"));
    let to = fixture.key(&format!("b:{other}"));
    fixture.command::<i64>(&["COPY", &from, &to]).await;
    fixture.command::<i64>(&["EXPIRE", &to, "100"]).await;
    assert_eq!(scrub(&fixture).await, clean());
    assert_eq!(fixture.check().await.passing.len(), 1);
}

#[tokio::test]
async fn what_stands_beside_nothing_is_removed() {
    let (_redis, fixture) = full().await;
    let nowhere = bundle_of(&fixture, "a").await.replacen('.', ".z", 1);
    let standing = bundle_of(&fixture, "b").await;
    for hash in ["gone", "done", "expiries", "tokens"] {
        fixture
            .command::<i64>(&["HSET", &fixture.key(hash), &nowhere, "11"])
            .await;
    }
    // A token of a bundle that nobody has claimed.
    fixture
        .command::<i64>(&["HSET", &fixture.key("tokens"), &standing, "t 5"])
        .await;
    let names = fixture.key("names");
    fixture
        .command::<i64>(&[
            "HSET",
            &names,
            "orders/x",
            &format!("{nowhere} 0"),
            "orders/y",
            "not a place",
        ])
        .await;
    let report = mended(&fixture).await;
    assert_eq!(
        report,
        ScrubReport {
            leftovers: 3,
            freed: 1,
            ..clean()
        }
    );
    let s = fixture.check().await;
    assert_eq!(s.names.len(), 3);
}

#[tokio::test]
async fn what_is_no_bundle_or_stands_twice_is_removed_once() {
    let (_redis, fixture) = full().await;
    let far_one = bundle_of(&fixture, "far").await;
    let due = fixture.key(&format!(
        "due:{}",
        &far_one[..far_one.rfind('/').expect("a shelf")]
    ));
    let when = far().plus(1).0.to_string();
    fixture
        .command::<i64>(&["ZADD", &due, &when, "no bundle", &when, "mail/x/n.1.1"])
        .await;
    fixture
        .command::<i64>(&["ZADD", &fixture.key("claims"), "5", "no bundle either"])
        .await;
    let claimed = fixture.claim(LONG).await;
    // One claimed bundle is due as well.
    let claim = &claimed[0].claim;
    let due = fixture.key(&format!("due:{}", claim.id.due_set()));
    fixture
        .command::<i64>(&["ZADD", &due, &past().0.to_string(), claim.id.as_str()])
        .await;
    assert_eq!(
        mended(&fixture).await,
        ScrubReport {
            leftovers: 4,
            indexes: 1,
            ..clean()
        }
    );
    let s = fixture.check().await;
    assert_eq!((s.due.len(), s.claims.len()), (1, 2));
    assert_eq!(
        fixture.settle(&claimed[0]).await,
        postdate::store::SettleAnswer::Applied(vec![]),
        "it is its holder's"
    );
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_19_counts_are_set_right_while_others_work() {
    let (redis, fixture) = full().await;
    let good = fixture.counts().await;
    fixture
        .command::<i64>(&["HINCRBY", &fixture.key("counts"), "n:orders", "1000"])
        .await;
    fixture
        .command::<i64>(&["HINCRBY", &fixture.key("counts"), "b:gone", "5"])
        .await;
    fixture
        .command::<i64>(&["HDEL", &fixture.key("counts"), "d:orders"])
        .await;
    assert_eq!(
        mended(&fixture).await,
        ScrubReport {
            counts: Some(3),
            ..clean()
        }
    );
    assert_eq!(fixture.counts().await, good);

    // Beside a store that never rests, counts may stay unchecked but are never set wrong.
    let busy = StoreFixture::through(&redis, &redis.url(), 1).await;
    let other = busy.another();
    let working = tokio::spawn(async move {
        for n in 0..150 {
            other
                .keep(vec![unnamed(past(), "x"), unnamed(past().plus(n), "y")])
                .await;
            for claimed in other.claim(LONG).await {
                if n % 3 == 0 {
                    other.give_back(&claimed.claim, None).await;
                } else {
                    other.settle(&claimed).await;
                }
            }
        }
    });
    let mut rounds = 0;
    while !working.is_finished() {
        let report = scrub(&busy).await;
        assert!(report.is_clean(), "nothing was wrong: {report:?}");
        rounds += 1;
    }
    working.await.expect("worked");
    assert!(rounds > 3);
    busy.check().await;
}

#[tokio::test]
async fn interleaving_19_large_dead_letters_that_come_and_go_during_a_recount_are_no_damage() {
    let redis = Redis::start().await;
    // A recount over this link lasts as long as several dead letters come and go.
    let link = SlowLink::before(redis.port()).await;
    link.set(Mode::Delay(Duration::from_millis(10)));
    let busy =
        StoreFixture::through(&redis, &format!("redis://127.0.0.1:{}", link.port()), 1).await;
    let other = StoreFixture::of(config(&redis.url(), &busy.config.prefix, 1), &redis, 0).await;
    let large: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(4 << 20)
        .collect();
    let keep = move || postdate::store::WriteOp::DeadLetter(dead_letter(unnamed(past(), &large)));
    other.write(vec![keep(), keep()]).await;
    let stop = CancellationToken::new();
    let ends = stop.clone();
    let working = tokio::spawn(async move {
        while !ends.is_cancelled() {
            other.write(vec![keep()]).await;
            let oldest = other
                .store
                .dead_page(&DeadFilter::default(), None, 1)
                .await
                .expect("a page")
                .marks;
            assert_eq!(
                other
                    .store
                    .drop_dead(&[oldest[0].id.clone()])
                    .await
                    .expect("dropped"),
                [true]
            );
        }
    });
    for _ in 0..4 {
        let report = scrub(&busy).await;
        assert!(report.is_clean(), "nothing was wrong: {report:?}");
    }
    stop.cancel();
    working.await.expect("worked");
    busy.check().await;
}

#[tokio::test]
async fn a_large_partition_is_scrubbed_in_parts_until_all_of_it_was_seen() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let ops = |n: i64| {
        (0..48)
            .map(|m| keep(vec![unnamed(past().plus(n * 48 + m), "x")]))
            .collect::<Vec<_>>()
    };
    for n in 0..45 {
        fixture.write(ops(n)).await;
    }
    // The last of 2160 bundles: behind what one scrub looks at.
    let shelf = fixture.heads().await.remove(0).due_set;
    let last: Vec<String> = fixture
        .command(&["ZRANGE", &fixture.key(&format!("due:{shelf}")), "-1", "-1"])
        .await;
    fixture
        .command::<i64>(&["DEL", &fixture.key(&format!("b:{}", last[0]))])
        .await;
    assert_eq!(
        scrub(&fixture).await.lost.len(),
        0,
        "too much for one audit"
    );
    let second = scrub(&fixture).await;
    assert_eq!(
        second
            .lost
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        last
    );
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome::default())
    );
}

/// Cost of a scrub for Redis, for docs/store.md: shown with --nocapture.
#[tokio::test]
async fn a_scrub_is_a_few_commands_a_bundle() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let mut stored = 0;
    let ten = |at: i64| {
        (0..10)
            .map(|n| unnamed(past().plus(at * 10 + n), "body"))
            .collect()
    };
    for bundles in [100, 1000, 2000] {
        while stored < bundles {
            fixture
                .write((0..20).map(|n| keep(ten(stored + n))).collect())
                .await;
            stored += 20;
        }
        fixture.command::<()>(&["CONFIG", "RESETSTAT"]).await;
        assert!(scrub(&fixture).await.is_clean());
        let info: String = fixture.command(&["INFO", "commandstats"]).await;
        let mut calls = 0;
        let mut micros = 0;
        for line in info
            .lines()
            .filter(|line| !line.contains("config") && !line.contains("info"))
        {
            let Some((_, rest)) = line.split_once(":calls=") else {
                continue;
            };
            let (count, rest) = rest.split_once(",usec=").expect("microseconds");
            calls += count.parse::<i64>().expect("a count");
            // Commands of scripts are counted on their own and within the scripts: an upper bound.
            micros += rest
                .split(',')
                .next()
                .expect("a number")
                .parse::<i64>()
                .expect("a number");
        }
        println!("{bundles} bundles of ten: {calls} commands, {micros} us of redis");
        assert!(
            calls < 12 * bundles + 300,
            "{calls} commands for {bundles} bundles"
        );
    }
}

/// The time-out pattern: most messages are cancelled long before they are due.
#[tokio::test]
async fn a_bundle_of_which_most_is_cancelled_gives_its_bytes_back_and_loses_nothing() {
    const ALL: usize = 200;
    const LEFT: usize = 20;
    for is_claimed in [false, true] {
        let fixture = StoreFixture::shared().await;
        let name = |n: usize| format!("order-{n}");
        let body = |n: usize| {
            (0..6).fold(n.to_string(), |text, _| {
                text + &fastrand::u128(..).to_string()
            })
        };
        let bodies: Vec<String> = (0..ALL).map(body).collect();
        let entries = (0..ALL).map(|n| named(&name(n), past(), &bodies[n]));
        fixture.keep(entries.collect()).await;
        let before = fixture.counts().await;
        for n in LEFT..ALL {
            assert_eq!(fixture.cancel(&name(n)).await, WriteResult::Cancelled);
        }
        assert_eq!(
            fixture.counts().await.bytes,
            before.bytes,
            "a cancel alone frees nothing"
        );
        let claimed = if is_claimed {
            fixture.claim(LONG).await
        } else {
            Vec::new()
        };
        let report = scrub(&fixture).await;
        assert!(report.is_clean(), "{report:?}");
        let after = fixture.counts().await;
        assert!(
            after.bytes < before.bytes / 3,
            "{} of {}",
            after.bytes,
            before.bytes
        );
        assert_eq!(after.messages, LEFT as i64);
        let report = scrub(&fixture).await;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(fixture.counts().await.bytes, after.bytes, "once");
        // Whoever claimed it before has it whole; whoever claims it from now on finds what is left.
        let claimed = if is_claimed {
            claimed
        } else {
            assert_eq!(fixture.cancel(&name(0)).await, WriteResult::Cancelled);
            assert_eq!(fixture.cancel(&name(1)).await, WriteResult::Cancelled);
            fixture.claim(LONG).await
        };
        let [claimed] = &claimed[..] else {
            panic!("one bundle: {claimed:?}");
        };
        let read = claimed.bundle.as_ref().expect("it is read");
        let first = if is_claimed { 0 } else { 2 };
        for (n, (entry, skip)) in read.entries.iter().zip(&claimed.skip).enumerate() {
            assert_eq!(*skip, !(first..LEFT).contains(&n), "{n}");
            if !skip {
                assert_eq!(*entry, named(&name(n), past(), &bodies[n]));
            }
        }
        assert_eq!(fixture.settle(claimed).await, SettleAnswer::Applied(vec![]));
        let left = fixture.counts().await;
        assert_eq!((left.messages, left.bytes), (0, 0));
        let report = scrub(&fixture).await;
        assert!(report.is_clean(), "{report:?}");
    }
}
