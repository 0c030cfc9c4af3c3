//! Partitions that are large, lie on many slices, or never rest; a way to Redis that is slow: scrubs come to their end,
//! counts come back, and no sweep waits for a scrub.

use std::time::{Duration, Instant};

use postdate::domain::{OnDuplicate, Partition, RouteName, UnixMs};
use postdate::store::{Head, HeadsQuery, ScrubReport, SettleAnswer, UnservedHeads, WriteOp};

use super::fixture::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// A round trip of about five milliseconds.
const SLOW: Mode = Mode::Delay(Duration::from_micros(2500));

/// A round trip of a fifth of a second: a scrub of 1600 slices takes some ten seconds.
const FAR: Mode = Mode::Delay(Duration::from_millis(100));

/// Due so many slices from now on, in a time that no test sees.
fn slice(n: i64) -> UnixMs {
    far().plus(n << 20)
}

/// Stores bundles of one, each due when this says.
async fn fill(fixture: &StoreFixture, count: i64, due: impl Fn(i64) -> UnixMs) {
    for first in (0..count).step_by(48) {
        let ops = (first..count.min(first + 48)).map(|n| keep(vec![unnamed(due(n), "x")]));
        fixture.write(ops.collect()).await;
    }
}

/// How often Redis has read from its clients: at least once a trip.
async fn reads(fixture: &StoreFixture) -> u64 {
    let info: String = fixture.command(&["INFO", "stats"]).await;
    let reads = info
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads
        .expect("of redis 6.0 or later")
        .trim()
        .parse()
        .expect("a number")
}

/// How often Redis was asked for a command since its figures were reset.
async fn calls(fixture: &StoreFixture, command: &str) -> u64 {
    let info: String = fixture.command(&["INFO", "commandstats"]).await;
    let begin = format!("cmdstat_{command}:calls=");
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(&begin))
        .and_then(|rest| rest.split(',').next());
    line.map_or(0, |calls| calls.parse().expect("a number"))
}

async fn scrub(fixture: &StoreFixture) -> ScrubReport {
    fixture.store.scrub(fixture.p).await.expect("scrubbed")
}

#[tokio::test]
async fn interleaving_19_two_thousand_slices_are_scrubbed_in_seconds_over_five_ms() {
    let redis = Redis::start().await;
    let proxy = Proxy::before(redis.port()).await;
    let fixture =
        StoreFixture::through(&redis, &format!("redis://127.0.0.1:{}", proxy.port()), 1).await;
    fill(&fixture, 2000, slice).await;
    proxy.set(SLOW);
    // The last of all slices: a scrub looks at entries, however many slices they lie on.
    let mut shelves: Vec<String> = fixture
        .command(&["ZRANGE", &fixture.key("idx"), "0", "-1"])
        .await;
    shelves.sort();
    let last: Vec<String> = fixture
        .command(&[
            "ZRANGE",
            &fixture.key(&format!("due:{}", shelves[1999])),
            "0",
            "0",
        ])
        .await;
    fixture
        .command::<i64>(&["DEL", &fixture.key(&format!("b:{}", last[0]))])
        .await;
    let began = Instant::now();
    let before = reads(&fixture).await;
    let report = scrub(&fixture).await;
    let took = began.elapsed();
    let reads = reads(&fixture).await - before;
    println!("2000 slices at a round trip of 5 ms: {took:?}, redis read {reads} times");
    assert_eq!(
        report
            .lost
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        last
    );
    // A trip an entry would be 8000.
    assert!(reads < 2000, "redis read {reads} times");
    proxy.set(Mode::Pass);
    assert_eq!(fixture.counts().await.messages, 1999);
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_19_lost_counts_of_a_large_partition_come_back_and_with_them_its_dead_letters()
{
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fill(&fixture, 2100, |n| past().plus(n)).await;
    fixture
        .write(vec![postdate::store::WriteOp::DeadLetter(dead_letter(
            unnamed(past(), "d"),
        ))])
        .await;
    let good = fixture.counts().await;
    fixture
        .command::<i64>(&["DEL", &fixture.key("counts")])
        .await;
    eventually("the counts are back", async || {
        scrub(&fixture).await;
        let counts = fixture.counts().await;
        if counts == good {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_19_what_is_lost_of_a_large_partition_leaves_the_counts_at_once() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fill(&fixture, 2100, |n| past().plus(n)).await;
    while scrub(&fixture).await.counts.is_none() {}
    let shelf = fixture.heads().await.remove(0).due_set;
    let ids: Vec<String> = fixture
        .command(&["ZRANGE", &fixture.key(&format!("due:{shelf}")), "0", "99"])
        .await;
    for id in &ids {
        fixture
            .command::<i64>(&["DEL", &fixture.key(&format!("b:{id}"))])
            .await;
    }
    let mut lost = 0;
    while lost < 100 {
        lost += scrub(&fixture).await.lost.len();
    }
    assert_eq!(fixture.counts().await.messages, 2000);
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_19_lost_counts_come_back_beside_a_partition_that_never_rests() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fill(&fixture, 3000, slice).await;
    fixture
        .write(vec![postdate::store::WriteOp::DeadLetter(dead_letter(
            unnamed(past(), "d"),
        ))])
        .await;
    let other = fixture.another();
    let stop = tokio_util::sync::CancellationToken::new();
    let ends = stop.clone();
    let working = tokio::spawn(async move {
        while !ends.is_cancelled() {
            other
                .keep(vec![unnamed(past(), "x"), unnamed(past(), "y")])
                .await;
            for claimed in other.claim(LONG).await {
                assert_eq!(
                    other.settle(&claimed).await,
                    SettleAnswer::Applied(Vec::new())
                );
            }
        }
    });
    fixture
        .command::<i64>(&["DEL", &fixture.key("counts")])
        .await;
    eventually("they are back, within what moves", async || {
        scrub(&fixture).await;
        let counts = fixture.counts().await;
        let near = (counts.messages - 3000).abs() < 500 && counts.dead == 1;
        if near {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
    stop.cancel();
    working.await.expect("worked");
    eventually("they are right", async || {
        scrub(&fixture).await;
        let counts = fixture.counts().await;
        if counts.messages == 3000 {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
    // Bytes are counted with the messages, once nothing moves.
    while scrub(&fixture).await.counts != Some(0) {}
    fixture.check().await;
}

#[tokio::test]
async fn unserved_heads_are_read_once_and_whatever_comes_among_them_is_seen_at_the_next_look() {
    let fixture = StoreFixture::shared().await;
    let strangers = (0..40).map(|n| RouteName::new(&format!("stranger-{n}")).expect("a name"));
    let of = |route: RouteName, due| WriteOp::Store {
        route,
        on_duplicate: OnDuplicate::Keep,
        bundle: bundle(vec![unnamed(due, "x")]),
    };
    fixture
        .write(strangers.map(|route| of(route, past())).collect())
        .await;
    let is_ours = |head: &Head| head.route() == route().as_str();
    let now = past().plus(10 << 20);
    let looking = HeadsQuery {
        until: now,
        later: now,
        past: now,
        open: &is_ours,
        served: &is_ours,
    };
    let mut unserved = UnservedHeads::default();
    let mut look = async || {
        let looked = fixture
            .store
            .served_heads(&[P], &looking, &mut unserved)
            .await
            .expect("looked");
        assert_eq!(looked.partitions, [P].into());
        let ours = looked
            .heads
            .iter()
            .filter(|head| is_ours(head))
            .map(|head| head.due)
            .collect::<Vec<_>>();
        (looked.heads.len(), ours)
    };
    assert_eq!(look().await, (40, vec![]), "all of them, for once");
    assert_eq!(look().await, (0, vec![]), "nothing has changed");
    let later = past().plus(3 << 20);
    fixture.keep(vec![unnamed(later, "a")]).await;
    assert_eq!(
        look().await,
        (41, vec![later]),
        "another head is there: all are read"
    );
    assert_eq!(look().await, (1, vec![later]));
    // As many heads as before, and an earlier one among them.
    fixture.keep(vec![unnamed(past(), "b")]).await;
    assert_eq!(look().await, (2, vec![past(), later]));
    fixture
        .command::<()>(&["DEL", &fixture.key("heads"), &fixture.key("shelves")])
        .await;
    assert_eq!(fixture.store.lost_indexes(&[P]).await, [P]);
    let mut report = ScrubReport::default();
    fixture
        .store
        .mend_indexes(P, &mut report)
        .await
        .expect("mended");
    assert_eq!(
        (report.indexes, fixture.store.lost_indexes(&[P]).await),
        (42, vec![])
    );
    assert_eq!(look().await, (2, vec![past(), later]));
    assert_eq!(fixture.claim(LONG).await.len(), 42);
    assert_eq!(look().await, (0, vec![]), "fewer than before");
}

#[tokio::test]
async fn a_name_that_a_transition_left_behind_is_freed_and_is_no_damage() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![named("a", past(), "a"), named("b", past(), "b")])
        .await;
    let claimed = fixture.claim(0).await.remove(0);
    fixture
        .extend(&claimed.claim, 0, Some(vec![true, false]))
        .await;
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    fixture.cancel("b").await;
    let names = fixture.key("names");
    assert_eq!(
        fixture.command::<Vec<String>>(&["HKEYS", &names]).await,
        ["orders/a"],
        "left behind"
    );
    let report = scrub(&fixture).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.freed, 1);
    assert_eq!(fixture.command::<i64>(&["HLEN", &names]).await, 0);
    fixture.check().await;
}

#[tokio::test]
async fn answers_of_the_dead_are_forgotten_after_minutes_and_their_lanes_after_a_day() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture.keep(vec![unnamed(past(), "x")]).await;
    let calls = fixture.key("calls");
    let fresh: i64 = fixture.command(&["HLEN", &calls]).await;
    let now: Vec<String> = fixture.command(&["TIME"]).await;
    let now: i64 = now[0].parse().expect("seconds");
    let long = "x".repeat(12_000);
    // As many as a crash loop leaves: more than one call may read.
    for n in 0..300 {
        let ago = [700, 90_000, 60][n % 3];
        let answer = format!("7 {} {long}", now - ago);
        fixture
            .command::<i64>(&["HSET", &calls, &format!("dead{n}.c"), &answer])
            .await;
    }
    fixture
        .command::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"])
        .await;
    assert_eq!(scrub(&fixture).await.callers, 200);
    let slow: i64 = fixture.command(&["SLOWLOG", "LEN"]).await;
    println!("{slow} commands took more than 10 ms, by the clock on the wall");
    assert_eq!(fixture.command::<i64>(&["HLEN", &calls]).await, fresh + 200);
    let kept: Vec<u8> = fixture.command(&["HGET", &calls, "dead0.c"]).await;
    assert!(
        kept.starts_with(format!("7 {} ", now - 700).as_bytes()) && kept.len() < 64,
        "{kept:?}"
    );
    let young: Vec<u8> = fixture.command(&["HGET", &calls, "dead2.c"]).await;
    assert!(
        young.len() > 12_000,
        "it may be a replica that cannot be heard for a moment"
    );
    assert_eq!(scrub(&fixture).await.callers, 0, "once is enough");
    // Its process was only away: it goes on.
    fixture.keep(vec![unnamed(past(), "y")]).await;
    assert_eq!(fixture.store.rollbacks(), 0);
}

#[tokio::test]
async fn a_sweep_that_redis_does_not_answer_says_so_of_each_partition() {
    let redis = Redis::start().await;
    let proxy = Proxy::before(redis.port()).await;
    let fixture =
        StoreFixture::through(&redis, &format!("redis://127.0.0.1:{}", proxy.port()), 2).await;
    fixture.keep(vec![unnamed(past(), "x")]).await;
    fixture.claim(0).await;
    proxy.set(Mode::Hole);
    let both = [fixture.p, Partition(1)];
    let answers = fixture
        .store
        .sweep(&both, LONG, &std::collections::BTreeSet::new(), true)
        .await;
    assert_eq!(answers.iter().map(|(p, _)| *p).collect::<Vec<_>>(), both);
    assert!(
        answers.iter().all(|(_, swept)| swept.is_err()),
        "{answers:?}"
    );
    proxy.set(Mode::Pass);
    eventually("it is swept", async || {
        sweep(&fixture.store, P, LONG, false)
            .await
            .map_err(|why| why.to_string())?;
        if fixture.check().await.claims.is_empty() {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
}

#[tokio::test]
async fn interleaving_16_claims_of_the_dead_come_back_while_scrubs_take_long() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let proxy = Proxy::before(redis.port()).await;
    let prefix = names::unique("store");
    let queue = names::unique("queue");
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    let from = format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
    let to = r#"{ rabbitmq = "main", exchange = "", routing_key = "nowhere" }"#;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let served = Config::under(&format!("url = \"{url}\""), &prefix)
        .redis("partitions = 4")
        .rabbitmq("main", rabbitmq)
        .route("other", &from, to, "")
        .section("[timer]\nclaim = \"2s\"");
    let mut relay = Relay::start(&served).await;
    assert_eq!(relay.terminate().await.code(), Some(0));
    let first = StoreFixture::of(config(&redis.url(), &prefix, 4), &redis, 0).await;
    let fixtures: Vec<StoreFixture> = (0..4).map(|p| first.at(Partition(p))).collect();
    for fixture in &fixtures {
        fill(fixture, 1600, slice).await;
    }
    first.command::<()>(&["CONFIG", "RESETSTAT"]).await;
    proxy.set(FAR);
    relay.restart().await;
    // A scrub begins with the types of hundreds of keys; a start asks for one.
    eventually("the first scrub has begun", async || {
        match calls(&first, "type").await {
            ..100 => Err("not yet"),
            _ => Ok(()),
        }
    })
    .await;
    // Each connection tries its rights with one scan, and one look into the audit, which nothing else here reads.
    let walked = async || calls(&first, "scan").await - calls(&first, "xrevrange").await;
    let before = walked().await;
    let began = Instant::now();
    for fixture in &fixtures {
        fixture.keep(vec![unnamed(past(), "x")]).await;
        assert_eq!(fixture.claim(0).await.len(), 1);
    }
    eventually("all come back", async || {
        let mut left = 0;
        for fixture in &fixtures {
            left += fixture
                .command::<i64>(&["ZCARD", &fixture.key("claims")])
                .await;
        }
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} are still claimed"))
        }
    })
    .await;
    println!("claims are back after {:?}", began.elapsed());
    // The walk through all keys comes after those through a partition's entries.
    assert_eq!(walked().await, before, "the first scrub is not over");
}
