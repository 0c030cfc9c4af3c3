//! How long one script keeps Redis from everybody else, at the bounds of what one call may carry by default.

use postdate::domain::Entry;
use postdate::store::{
    BundleId, Claim, ClaimProgress, ClaimRequest, DeadFilter, Division, NewBundle, Remainder,
    Settlement, WriteOp,
};
use redis::Pipeline;

use super::fixture::*;
use crate::support::Redis;

/// Longest time of a script, microseconds: 10 ms are aimed at, the rest is for a machine that does much else.
const MOST_US: u64 = 30_000;
/// Tries of each: the quickest is what the script takes by itself.
const TRIES: usize = 4;
/// Messages of a bundle, at most.
const MESSAGES: usize = 500;
/// Bundles that one call claims, settles or extends at most.
const BUNDLES: usize = 200;

struct Bounds {
    fixture: StoreFixture,
    worst: Vec<(&'static str, u64)>,
}

impl Bounds {
    /// Does something at its bound on fresh ground several times; what its longest script took, in the quickest try.
    async fn measure(
        &mut self,
        what: &'static str,
        prepare: impl AsyncFn(&StoreFixture),
        call: impl AsyncFn(&StoreFixture),
    ) {
        let mut best = u64::MAX;
        for _ in 0..TRIES {
            self.fixture.wipe().await;
            prepare(&self.fixture).await;
            self.fixture.command::<()>(&["SLOWLOG", "RESET"]).await;
            let began = busy_us(&self.fixture).await;
            call(&self.fixture).await;
            // Where much else runs on the machine, the clock of the slow log runs on while the server does not.
            let busy = busy_us(&self.fixture).await - began;
            let log: Vec<redis::Value> = self.fixture.command(&["SLOWLOG", "GET", "-1"]).await;
            let took = log
                .iter()
                .filter_map(script_us)
                .max()
                .map(|us| us.min(busy));
            best = best.min(took.unwrap_or_else(|| panic!("{what}: no script was seen")));
        }
        #[allow(clippy::print_stdout, reason = "figures for whoever looks")]
        {
            println!("| {what} | {:.1} |", best as f64 / 1000.0);
        }
        self.worst.push((what, best));
    }
}

/// Processor time of the thread that runs all commands, microseconds.
async fn busy_us(fixture: &StoreFixture) -> u64 {
    let info: String = fixture.command(&["INFO", "cpu"]).await;
    let of_thread = |line: &str| {
        line.split_once("_main_thread:")?
            .1
            .trim()
            .parse::<f64>()
            .ok()
    };
    (info.lines().filter_map(of_thread).sum::<f64>() * 1e6) as u64
}

/// How long an entry of the slow log took, if it is a script's.
fn script_us(entry: &redis::Value) -> Option<u64> {
    let redis::Value::Array(parts) = entry else {
        return None;
    };
    let [_, _, redis::Value::Int(us), redis::Value::Array(words), ..] = &parts[..] else {
        return None;
    };
    let is_script =
        matches!(words.first(), Some(redis::Value::BulkString(word)) if word == b"EVALSHA");
    is_script.then_some(*us as u64)
}

/// The id of the n-th bundle of so many messages, in the slice of `past()`.
fn id(n: usize, messages: usize) -> String {
    let slice = (past().0 >> 20) as u64;
    let digits = |mut n: u64| {
        let mut text = Vec::new();
        while n > 0 || text.is_empty() {
            text.push(char::from_digit((n % 36) as u32, 36).expect("a digit"));
            n /= 36;
        }
        text.iter().rev().collect::<String>()
    };
    format!(
        "orders/{}/test.{}.{}",
        digits(slice),
        digits(n as u64 + 1),
        digits(messages as u64)
    )
}

fn bits(count: usize, is_set: impl Fn(usize) -> bool) -> String {
    (0..count)
        .map(|n| if is_set(n) { '1' } else { '0' })
        .collect()
}

/// Bundles as they stand after much was cancelled and confirmed of them: every third message each. `name` has the first
/// message of each named.
async fn bundles(fixture: &StoreFixture, count: usize, claimed: bool, name: bool) {
    let first = BundleId::parse(&id(0, MESSAGES)).expect("an id");
    let due = fixture.key(&format!("due:{}", first.due_set()));
    let gone = bits(MESSAGES, |n| n % 3 == 1);
    let done = bits(MESSAGES, |n| n % 3 == 2);
    let mut pipe = Pipeline::new();
    for n in 0..count {
        let id = id(n, MESSAGES);
        pipe.cmd("SET")
            .arg(fixture.key(&format!("b:{id}")))
            .arg("not read here")
            .ignore();
        pipe.cmd("HSET")
            .arg(fixture.key("gone"))
            .arg(&id)
            .arg(&gone)
            .ignore();
        pipe.cmd("HSET")
            .arg(fixture.key("done"))
            .arg(&id)
            .arg(&done)
            .ignore();
        pipe.cmd("HSET")
            .arg(fixture.key("expiries"))
            .arg(&id)
            .arg(2)
            .ignore();
        if claimed {
            pipe.cmd("ZADD")
                .arg(fixture.key("claims"))
                .arg(far().0)
                .arg(&id)
                .ignore();
            pipe.cmd("HSET")
                .arg(fixture.key("tokens"))
                .arg(&id)
                .arg(format!("t {}", past().0))
                .ignore();
        } else {
            pipe.cmd("ZADD").arg(&due).arg(past().0).arg(&id).ignore();
        }
        if name {
            let place = format!("{id} 0");
            pipe.cmd("HSET")
                .arg(fixture.key("names"))
                .arg(format!("orders/n{n}"))
                .arg(place)
                .ignore();
        }
    }
    pipe.cmd("ZADD")
        .arg(fixture.key("idx"))
        .arg(past().0)
        .arg(first.due_set())
        .ignore();
    pipe.query_async::<()>(&mut fixture.raw.clone())
        .await
        .expect("made");
}

fn claim_of(n: usize, messages: usize) -> Claim {
    Claim {
        partition: P,
        id: BundleId::parse(&id(n, messages)).expect("an id"),
        token: "t".into(),
    }
}

fn all_named() -> Vec<Entry> {
    (0..MESSAGES)
        .map(|n| named(&format!("n{n}"), past(), "body"))
        .collect()
}

/// A bundle of named messages in flight.
async fn one_claimed(fixture: &StoreFixture) {
    bundles(fixture, 1, true, false).await;
    fixture
        .command::<i64>(&["DEL", &fixture.key("gone"), &fixture.key("done")])
        .await;
}

fn division(remainders: Vec<Remainder>, dead: Vec<Entry>) -> Division {
    Division {
        claim: claim_of(0, MESSAGES),
        confirmed: vec![false; MESSAGES],
        delivered: vec![],
        freed: vec![],
        remainders,
        dead: dead.into_iter().map(dead_letter).collect(),
        held_keys: Vec::new(),
    }
}

fn alone((n, entry): (usize, Entry)) -> Remainder {
    let fresh = NewBundle {
        route: route(),
        bundle: bundle(vec![entry]),
    };
    Remainder {
        new_bundle: fresh,
        from: vec![n as u32],
        lease_ms: None,
        expiries: 2,
        sequence: None,
    }
}

/// The largest message by default, which no codec makes smaller.
fn large(name: &str) -> Entry {
    let body: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(1 << 20)
        .collect();
    let mut entry = named(name, past(), "");
    entry.message.body = Some(body.into());
    entry
}

async fn bundles_at_their_bounds(bounds: &mut Bounds) {
    let nothing = async |_: &StoreFixture| {};
    let replaced = async |fixture: &StoreFixture| bundles(fixture, MESSAGES, false, true).await;
    let replacing =
        async |fixture: &StoreFixture| drop(fixture.write(vec![replace(all_named())]).await);
    bounds
        .measure(
            "write: 500 names, each replaced in another bundle of 500",
            replaced,
            replacing,
        )
        .await;
    let stored = async |fixture: &StoreFixture| drop(fixture.write(vec![keep(all_named())]).await);
    bounds
        .measure("write: 500 names, new", nothing, stored)
        .await;
    let claiming = async |fixture: &StoreFixture| {
        let shelf = claim_of(0, MESSAGES).id.due_set().to_owned();
        let shelves = vec![(shelf, u32::MAX)];
        let request = ClaimRequest {
            partition: P,
            due_sets: shelves,
            lookahead_ms: 0,
            lease_ms: LONG,
            max_bundles: BUNDLES,
        };
        assert_eq!(
            fixture.store.claim(&request).await.expect("claimed").len(),
            BUNDLES
        );
    };
    let waiting = async |fixture: &StoreFixture| bundles(fixture, BUNDLES, false, false).await;
    bounds
        .measure("claim: 200 bundles of 500, expired", waiting, claiming)
        .await;
    let in_flight = async |fixture: &StoreFixture| bundles(fixture, BUNDLES, true, true).await;
    let extending = async |fixture: &StoreFixture| {
        let progress = |n| ClaimProgress {
            claim: claim_of(n, MESSAGES),
            confirmed: Some((0..MESSAGES).map(|n| n % 2 == 0).collect()),
            delivered: vec![],
        };
        let all: Vec<_> = (0..BUNDLES).map(progress).collect();
        drop(fixture.store.extend(P, LONG, &all).await.expect("extended"));
    };
    bounds
        .measure(
            "hold: 200 bundles of 500, bitmaps united",
            in_flight,
            extending,
        )
        .await;
    let settling = async |fixture: &StoreFixture| {
        let settlement = |n: usize| Settlement {
            claim: claim_of(n, MESSAGES),
            names: vec![
                (format!("n{n}").as_str().into(), 0),
                (format!("m{n}").as_str().into(), 1),
            ],
            delivered: vec![],
        };
        let all: Vec<_> = (0..BUNDLES).map(settlement).collect();
        drop(fixture.store.settle(P, &all).await.expect("settled"));
    };
    bounds
        .measure("settle: 200 bundles, 400 names", in_flight, settling)
        .await;
    let sweeping = async |fixture: &StoreFixture| {
        let swept = sweep(&fixture.store, P, 0, false).await.expect("swept");
        assert_eq!(swept.expired as usize, MESSAGES);
    };
    let expired = async |fixture: &StoreFixture| {
        bundles(fixture, MESSAGES, true, false).await;
        let mut pipe = Pipeline::new();
        for n in 0..MESSAGES {
            pipe.cmd("ZADD")
                .arg(fixture.key("claims"))
                .arg(past().0)
                .arg(id(n, MESSAGES))
                .ignore();
        }
        pipe.query_async::<()>(&mut fixture.raw.clone())
            .await
            .expect("made");
    };
    bounds
        .measure("sweep: 500 expired claims", expired, sweeping)
        .await;
}

async fn messages_at_their_bounds(bounds: &mut Bounds) {
    let apart = async |fixture: &StoreFixture| {
        let remainders = all_named().into_iter().enumerate().map(alone).collect();
        drop(fixture.divide(division(remainders, vec![])).await);
    };
    bounds
        .measure(
            "divide: a bundle of 500 taken apart, names moved",
            one_claimed,
            apart,
        )
        .await;
    let dead =
        async |fixture: &StoreFixture| drop(fixture.divide(division(vec![], all_named())).await);
    bounds
        .measure("divide: 500 dead letters", one_claimed, dead)
        .await;
    let body = large("n");
    let back = async |fixture: &StoreFixture| {
        drop(
            fixture
                .divide(division(vec![alone((0, body.clone()))], vec![]))
                .await,
        );
    };
    bounds
        .measure("divide: a message of 1 MiB", one_claimed, back)
        .await;
    let stored = async |fixture: &StoreFixture| drop(fixture.keep(vec![body.clone()]).await);
    let moved = async |fixture: &StoreFixture| {
        fixture.reschedule("n", far(), "x").await;
    };
    bounds
        .measure("reschedule: a message of 1 MiB", stored, moved)
        .await;
    let dead_letter = async |fixture: &StoreFixture| {
        drop(
            fixture
                .write(vec![WriteOp::DeadLetter(dead_letter(body.clone()))])
                .await,
        );
    };
    let redriven = async |fixture: &StoreFixture| {
        let page = fixture
            .store
            .dead_page(&DeadFilter::default(), None, 1)
            .await
            .expect("a page");
        assert_eq!(
            fixture
                .store
                .redrive(&page.marks[0].id, &bundle(vec![body.clone()]))
                .await,
            Ok(true)
        );
    };
    bounds
        .measure("redrive: a message of 1 MiB", dead_letter, redriven)
        .await;
}

#[tokio::test]
async fn no_script_keeps_redis_for_long_at_the_default_limits() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    for (name, value) in [
        ("slowlog-log-slower-than", "0"),
        ("slowlog-max-len", "100000"),
    ] {
        fixture.command::<()>(&["CONFIG", "SET", name, value]).await;
    }
    let mut bounds = Bounds {
        fixture,
        worst: Vec::new(),
    };
    Box::pin(bundles_at_their_bounds(&mut bounds)).await;
    Box::pin(messages_at_their_bounds(&mut bounds)).await;
    let slow: Vec<_> = bounds
        .worst
        .iter()
        .filter(|(_, us)| *us > MOST_US)
        .collect();
    assert!(slow.is_empty(), "microseconds: {slow:?}");
}
