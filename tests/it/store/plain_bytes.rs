//! Contents that compress to nothing: what people read and what timers claim is bounded by what it takes when opened.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lapin::types::FieldTable;
use postdate::domain::{Entry, Header, HeaderValue, Partition, UnixMs};
use postdate::store::WriteOp;
use serde_json::Value;

use super::fixture::*;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

const MIB: usize = 1 << 20;
/// More pages than any list here has.
const ALL: usize = usize::MAX;

/// A message of so many zeros: some hundred bytes in Redis.
fn zeros(due: UnixMs, size: usize) -> Entry {
    let mut entry = unnamed(due, "");
    entry.message.body = Some(Bytes::from(vec![0; size]));
    entry
}

/// A relay with the routes `orders`, whose target forgets what it gets, and `other`, and the store of both.
struct ZerosFixture {
    relay: Relay,
    rabbitmq: &'static Rabbitmq,
    stores: Vec<StoreFixture>,
    other: String,
}

impl ZerosFixture {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with environment variables.
    async fn start_with(environment: &[(&str, &str)]) -> Self {
        let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
        let prefix = names::unique("zeros");
        let [orders, other] = ["orders", "other"].map(names::unique);
        for queue in [&orders, &other] {
            rabbitmq
                .declare_queue(&format!("{queue}-in"), QueueKind::Classic)
                .await;
        }
        let mut forgets = FieldTable::default();
        forgets.insert("x-max-length".into(), 1.into());
        rabbitmq
            .declare_queue_with(&format!("{orders}-out"), QueueKind::Classic, forgets)
            .await;
        rabbitmq
            .declare_queue(&format!("{other}-out"), QueueKind::Classic)
            .await;
        let mut file = Config::under(&format!("url = \"{}\"", redis.url()), &prefix)
            .redis("partitions = 4")
            .rabbitmq("main", rabbitmq);
        for (name, queue) in [("orders", &orders), ("other", &other)] {
            let from = format!(r#"{{ rabbitmq = "main", queue = "{queue}-in" }}"#);
            let to =
                format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}-out" }}"#);
            file = file.route(name, &from, &to, "");
        }
        let relay = Relay::start_with(&file, environment).await;
        relay.unobserved("messages are put into its store that it did not read");
        let first = StoreFixture::of(config(&redis.url(), &prefix, 4), redis, 0).await;
        let stores = (0..4).map(|p| first.at(Partition(p))).collect();
        Self {
            relay,
            rabbitmq,
            stores,
            other,
        }
    }

    /// Stores so many messages over all partitions, made by `make`.
    async fn fill(&self, count: usize, make: impl Fn() -> WriteOp) {
        for n in (0..count).step_by(10) {
            let ops = (0..10).map(|_| make()).collect();
            self.stores[n / 10 % self.stores.len()].write(ops).await;
        }
    }

    async fn get(&self, path: &str) -> Value {
        self.relay.read(path).await
    }

    /// The sizes of all items of a list, page by page, and the number of its pages; at most so many pages.
    async fn all(&self, path: &str, most: usize) -> (Vec<Value>, usize) {
        let mut items = Vec::new();
        let mut pages = 0;
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("{path}{cursor}")).await;
            items.extend(
                page["items"]
                    .as_array()
                    .expect("items")
                    .iter()
                    .map(|item| item["size"].clone()),
            );
            pages += 1;
            let Some(next) = page["next"].as_str().filter(|_| pages < most) else {
                return (items, pages);
            };
            cursor = format!("&cursor={next}");
        }
    }

    /// A figure of the process in kB; `VmHWM` is the peak since [`Self::forget_peak`].
    fn kb(&self, name: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.relay.id())).expect("it lives");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a figure");
        line.split_whitespace()
            .nth(1)
            .expect("a number")
            .parse()
            .expect("a number")
    }

    /// Makes the peak what is resident now, and answers that.
    fn forget_peak(&self) -> u64 {
        std::fs::write(format!("/proc/{}/clear_refs", self.relay.id()), "5").expect("forgotten");
        self.kb("VmRSS")
    }
}

#[tokio::test]
async fn lists_of_what_compresses_to_nothing_cost_what_they_show() {
    let fixture = ZerosFixture::start().await;
    fixture.fill(1000, || keep(vec![zeros(far(), MIB)])).await;
    fixture
        .fill(100, || {
            WriteOp::DeadLetter(dead_letter(zeros(past(), 15 * MIB)))
        })
        .await;
    eventually("the dead letters are listed", async || {
        let (items, _) = fixture.all("/api/v1/dead?limit=1000", ALL).await;
        if items.len() == 100 {
            Ok(())
        } else {
            Err(items.len())
        }
    })
    .await;
    // A page of bodies takes a debug build seconds.
    for (path, most, count, size) in [
        ("/api/v1/messages?limit=1000", ALL, 1000, MIB),
        ("/api/v1/dead?limit=1000", ALL, 100, 15 * MIB),
        ("/api/v1/dead?limit=1000&body=true", 8, 8, 15 * MIB),
    ] {
        let before = fixture.forget_peak();
        let (items, pages) = fixture.all(path, most).await;
        let grown = fixture.kb("VmHWM").saturating_sub(before);
        println!(
            "{path}: {} items on {pages} pages, {grown} kB more",
            items.len()
        );
        assert_eq!(
            items,
            vec![Value::from(size); count],
            "{path}: each is shown, with its size"
        );
        assert!(grown < 100_000, "{path}: {grown} kB more");
    }
}

#[tokio::test]
async fn pages_of_bodies_show_as_many_as_they_may_and_all_of_them_together() {
    let fixture = ZerosFixture::start().await;
    fixture
        .fill(30, || WriteOp::DeadLetter(dead_letter(zeros(past(), MIB))))
        .await;
    let (items, pages) = fixture.all("/api/v1/dead?limit=1000&body=true", ALL).await;
    assert_eq!(items, vec![Value::from(MIB); 30]);
    assert_eq!(
        pages, 10,
        "three of them and their heads are within four mebibytes"
    );
}

/// Most that claims of contents that compress to nothing may have a relay occupy, kB.
const MOST_KB: u64 = 400_000;

fn mebibyte() -> Entry {
    zeros(past(), MIB)
}

/// A message of a thousand headers, which take ten times as much memory as text.
fn headers() -> Entry {
    let header = |n| {
        Header::new(
            format!("h{n}"),
            HeaderValue::LongString(Bytes::from_static(b"v")),
        )
    };
    let mut entry = unnamed(past(), "");
    entry.message.headers = (0..1000).map(header).collect();
    entry
}

/// Has so many such messages fall due at once, and others beside them flow. Returns the peak of what the relay
/// occupied, kB.
#[allow(clippy::print_stdout, reason = "figures for whoever looks")]
async fn due_at_once(count: usize, make: fn() -> Entry, environment: &[(&str, &str)]) -> u64 {
    let fixture = ZerosFixture::start_with(environment).await;
    let ask = async |path: &str, body: &str| {
        let answer = fixture
            .relay
            .request("POST", path, None, body)
            .await
            .expect("an answer");
        assert!(answer.0 < 300, "{answer:?}");
    };
    ask("/api/v1/routes/orders/pause", r#"{"only":"publishing"}"#).await;
    fixture.fill(count, || keep(vec![make()])).await;
    let before = fixture.forget_peak();
    ask("/api/v1/routes/orders/resume", "{}").await;
    let target = format!("{}-out", fixture.other);
    let mut waits = Vec::new();
    let began = Instant::now();
    loop {
        let sent = Instant::now();
        ask("/api/v1/routes/other/messages", r#"{"delay":"100ms"}"#).await;
        eventually("the other route goes on", async || {
            let arrived = fixture.rabbitmq.queue_len(&target).await as usize;
            if arrived > waits.len() {
                Ok(())
            } else {
                Err(arrived)
            }
        })
        .await;
        waits.push(sent.elapsed());
        let published = fixture
            .relay
            .total("postdate_published_total", &[("route", "orders")])
            .await;
        if published >= count as f64 {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(240),
            "{published} of {count}"
        );
    }
    waits.sort_unstable();
    let peak = fixture.kb("VmHWM");
    let worst = waits[(waits.len() - 1) * 99 / 100];
    println!(
        "{count} due at once: {before} kB before, peak {peak} kB, {:?}; {} others of 100 ms meanwhile, p50 {:?}, p99 {worst:?}",
        began.elapsed(),
        waits.len(),
        waits[waits.len() / 2]
    );
    peak
}

#[tokio::test]
async fn what_compresses_to_nothing_is_claimed_by_what_it_takes_when_opened() {
    let peak = due_at_once(1500, mebibyte, &[]).await;
    assert!(peak < MOST_KB, "{peak} kB");
}

#[tokio::test]
async fn three_times_as_much_takes_no_more() {
    let peak = due_at_once(4500, mebibyte, &[]).await;
    assert!(peak < MOST_KB, "{peak} kB");
}

#[tokio::test]
async fn a_budget_of_compressed_bytes_is_caught() {
    let peak = due_at_once(1500, mebibyte, &[("POSTDATE_MUTANT", "compressed_budget")]).await;
    assert!(peak >= MOST_KB, "{peak} kB with a planted fault");
}

#[tokio::test]
async fn messages_of_many_headers_are_claimed_by_what_those_take_when_opened() {
    let peak = due_at_once(5000, headers, &[]).await;
    assert!(peak < MOST_KB, "{peak} kB");
}
