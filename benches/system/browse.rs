//! Measures the cost of browsing: lateness beside a backlog, with four browsers that page through it at full speed and
//! without any, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use crate::backlog::{check_room, grow};
use crate::lateness::{CountedFrom, LatenessSamples, MessageStream, run};
use crate::report::{Report, number};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route};
use crate::support::Relay;
use crate::{Scale, machine};

/// Messages that wait in the store, unless `--pending` asks for fewer.
const PENDING_MESSAGES: u64 = 1_000_000;
const BROWSER_COUNT: usize = 4;
/// Messages of one page: the most that the API returns.
const PAGE_MESSAGES: usize = 1000;

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    let scale = Scale {
        backlog: scale.backlog.min(PENDING_MESSAGES),
        ..scale.clone()
    };
    check_room(&redis, &scale).await?;
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
        let browsers = BrowserThreads::start(&relay.url());
        let browsed = run(&stream);
        let pages = browsers.stop()?;
        let browsed = browsed?;
        clocks.check()?;
        ensure!(alone.early + browsed.early == 0, "some came early");
        add(report, "alone", &alone);
        add(report, "browsed", &browsed);
        report.add("browsed", "pages", pages as f64 / scale.stream);
        report.add(
            "browsed",
            "ratio",
            browsed.at(0.99) as f64 / alone.at(0.99) as f64,
        );
    }
    relay.terminate().await;
    let what = format!(
        "1,000/s with {} pending, due to consumed, us",
        number(scale.backlog as f64)
    );
    let rows = [("alone", "nobody looks"), ("browsed", "four browsers")];
    let columns = [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")];
    report.table(&what, &rows, &columns);
    let columns = [("ratio", "p99 to nobody's"), ("pages", "pages a second")];
    report.table("four browsers", &rows[1..], &columns);
    Ok(())
}

fn add(report: &mut Report, row: &str, late: &LatenessSamples) {
    for (column, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        report.add(row, column, late.at(quantile) as f64);
    }
    println!("  {row}: p50 {} p99 {} us", late.at(0.5), late.at(0.99));
}

/// Threads that page through all waiting messages, over and over.
struct BrowserThreads {
    stop: Arc<AtomicBool>,
    pages: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl BrowserThreads {
    fn start(url: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let pages = Arc::new(AtomicU64::new(0));
        let threads = (0..BROWSER_COUNT).map(|_| {
            let url = url.to_owned();
            let stop = stop.clone();
            let pages = pages.clone();
            std::thread::spawn(move || browse_pages(&url, &stop, &pages))
        });
        let threads = threads.collect();
        Self {
            stop,
            pages,
            threads,
        }
    }

    /// Ends the threads. Returns the number of pages that they have read.
    fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().expect("a browser does not panic")?;
        }
        Ok(self.pages.load(Ordering::Acquire))
    }
}

fn browse_pages(url: &str, stop: &AtomicBool, pages: &AtomicU64) -> anyhow::Result<()> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(30)))
        .build()
        .into();
    let mut cursor = String::new();
    while !stop.load(Ordering::Acquire) {
        let page = agent
            .get(format!(
                "{url}/api/v1/messages?limit={PAGE_MESSAGES}{cursor}"
            ))
            .call()?;
        let page: Value = serde_json::from_str(&page.into_body().read_to_string()?)?;
        pages.fetch_add(1, Ordering::AcqRel);
        cursor = page["next"]
            .as_str()
            .map(|next| format!("&cursor={next}"))
            .unwrap_or_default();
    }
    Ok(())
}
