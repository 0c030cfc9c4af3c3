//! Measures the cost of looking: lateness beside a backlog, with nobody who looks, with four who page through it, and
//! with one who searches it, all at full speed and in turns. Of the searches also how long their first pages take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::Value;

use crate::backlog::{check_room, grow};
use crate::lateness::{CountedFrom, LatenessSamples, MessageStream, run};
use crate::report::{BarLimit, Report, number};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route};
use crate::support::Relay;
use crate::{Scale, machine};

/// Queries of those who page: the most messages that the API returns at once.
const PAGES: [&str; 4] = ["limit=1000"; 4];
/// Queries of the one who searches. What is asked for is of no message: each page looks at as many as it may.
const SEARCHES: [&str; 4] = [
    "id_prefix=nobody",
    "key=nobody",
    "header=type:nobody",
    "contains=nobody",
];

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    check_room(&redis, scale).await?;
    let kafka = servers.kafka().await?;
    let mut topics = Vec::new();
    for kind in ["waits", "nowhere", "source", "target"] {
        topics.push(kafka.unique_topic(kind, TOPIC_PARTITIONS).await);
    }
    let base = config(&redis).kafka("main", kafka);
    let base = kafka_route(
        base,
        "waits",
        &topics[0],
        &topics[1],
        "max_pending = 1_000_000_000",
    );
    grow(kafka, &redis, &base, &topics[0], (0, scale.backlog)).await?;
    let mut relay = Relay::start(&kafka_route(base, "late", &topics[2], &topics[3], "")).await;
    let rate = 1000.0;
    let seconds = scale.stream;
    let stream = MessageStream {
        kafka,
        from: &topics[2],
        to: &topics[3],
        rate,
        seconds,
        when: CountedFrom::Due,
    };
    for _ in 0..scale.rounds {
        let clocks = machine::ClockCheck::start();
        let alone = run(&stream)?;
        let browsers = PAGES.map(|query| Looker::start(&relay.url(), Looks::Through(query)));
        let browsed = run(&stream);
        let pages = browsers.map(Looker::stop);
        let searcher = Looker::start(&relay.url(), Looks::For(&SEARCHES));
        let searched = run(&stream);
        let searches = searcher.stop()?;
        let (browsed, searched) = (browsed?, searched?);
        clocks.check()?;
        for (row, late) in [
            ("alone", &alone),
            ("browsed", &browsed),
            ("searched", &searched),
        ] {
            ensure!(late.early == 0, "some came early");
            add(report, row, late);
            let added_ms = (late.at(0.99) as f64 - alone.at(0.99) as f64) / 1e3;
            report.add(row, "added", added_ms);
        }
        let mut count = 0;
        for pages in pages {
            count += pages?.len();
        }
        report.add("browsed", "pages", count as f64 / scale.stream);
        report.add("searched", "pages", searches.len() as f64 / scale.stream);
        for (n, query) in SEARCHES.iter().enumerate() {
            let of_it = searches.iter().skip(n).step_by(SEARCHES.len());
            let mut took_ms: Vec<f64> = of_it.map(|took| took.as_secs_f64() * 1e3).collect();
            took_ms.sort_by(f64::total_cmp);
            ensure!(!took_ms.is_empty(), "no search for {query} was answered");
            report.add(query, "median", took_ms[took_ms.len() / 2]);
            report.add(query, "longest", took_ms[took_ms.len() - 1]);
        }
    }
    relay.terminate().await;
    let pending = number(scale.backlog as f64);
    let what = format!("1,000/s with {pending} pending, due to consumed, us");
    let rows = [
        ("alone", "nobody looks"),
        ("browsed", "four page through them"),
        ("searched", "one searches them"),
    ];
    let columns = [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")];
    report.table(&what, &rows, &columns);
    let columns = [
        ("added", "p99 above nobody's, ms"),
        ("pages", "pages a second"),
    ];
    report.table("those who look", &rows[1..], &columns);
    let rows = SEARCHES.map(|query| (query, query));
    let columns = [("median", "median"), ("longest", "longest")];
    report.table("first page of a search, ms", &rows, &columns);
    let longest = SEARCHES.map(|query| report.median(query, "longest"));
    let longest = longest.into_iter().fold(0.0, f64::max);
    report.bar(
        23,
        "longest first page of a search, ms",
        longest,
        BarLimit::AtMost(100.0),
    );
    report.bar(
        24,
        "p99 longer by, ms, while one searches",
        report.median("searched", "added"),
        BarLimit::AtMost(2.0),
    );
    Ok(())
}

fn add(report: &mut Report, row: &str, late: &LatenessSamples) {
    for (column, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        report.add(row, column, late.at(quantile) as f64);
    }
    println!("  {row}: p50 {} p99 {} us", late.at(0.5), late.at(0.99));
}

/// What somebody asks for, over and over.
#[derive(Clone, Copy)]
enum Looks {
    /// All pages of a query, one after the other.
    Through(&'static str),
    /// The first pages of these queries, in turns.
    For(&'static [&'static str]),
}

/// A thread that looks at the waiting messages until it is stopped.
struct Looker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Vec<Duration>>>,
}

impl Looker {
    fn start(url: &str, looks: Looks) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (url, stopped) = (url.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || look(&url, looks, &stopped));
        Self { stop, thread }
    }

    /// Ends the thread. Returns how long each page took.
    fn stop(self) -> anyhow::Result<Vec<Duration>> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("it does not panic")
    }
}

fn look(url: &str, looks: Looks, stop: &AtomicBool) -> anyhow::Result<Vec<Duration>> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(30)))
        .build()
        .into();
    let mut took = Vec::new();
    let mut cursor = String::new();
    while !stop.load(Ordering::Acquire) {
        let query = match looks {
            Looks::Through(query) => query,
            Looks::For(queries) => queries[took.len() % queries.len()],
        };
        let began = Instant::now();
        let page = agent
            .get(format!("{url}/api/v1/messages?{query}{cursor}"))
            .call()?;
        let page: Value = serde_json::from_str(&page.into_body().read_to_string()?)?;
        took.push(began.elapsed());
        if let Looks::Through(_) = looks {
            cursor = page["next"]
                .as_str()
                .map(|next| format!("&cursor={next}"))
                .unwrap_or_default();
        }
    }
    Ok(took)
}
