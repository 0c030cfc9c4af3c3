//! Measures the cost of browsing: lateness beside a backlog, with four browsers that page through it at full speed and
//! without any, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use crate::backlog::{check_room, grow};
use crate::lateness::{Late, Stream, When, run};
use crate::report::{Report, number};
use crate::servers::{PARTITIONS, Servers, config, kafka_route};
use crate::support::Relay;
use crate::{Scale, machine};

/// Messages that wait, unless `--pending` asks for fewer.
const PENDING: u64 = 1_000_000;
const BROWSERS: usize = 4;
/// Messages of one page: the most that the API gives.
const PAGE: usize = 1000;

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    let scale = Scale { backlog: scale.backlog.min(PENDING), ..scale.clone() };
    check_room(&redis, &scale).await?;
    let kafka = servers.kafka().await?;
    let mut topics = Vec::new();
    for kind in ["waits", "nowhere", "source", "target"] {
        topics.push(kafka.unique_topic(kind, PARTITIONS).await);
    }
    let base = config(&redis).kafka("main", kafka);
    let base = kafka_route(base, "waits", &topics[0], &topics[1], "max_pending = 1_000_000_000");
    grow(kafka, &redis, &base, &topics[0], (0, scale.backlog)).await?;
    let mut relay = Relay::start(&kafka_route(base, "late", &topics[2], &topics[3], "")).await;
    let rate = 1000.0;
    let seconds = scale.stream;
    let stream = Stream { kafka, from: &topics[2], to: &topics[3], rate, seconds, when: When::Due };
    for _ in 0..scale.rounds {
        let clocks = machine::Clocks::start();
        let alone = run(&stream)?;
        let browsers = Browsers::start(&relay.url());
        let browsed = run(&stream);
        let pages = browsers.stop()?;
        let browsed = browsed?;
        clocks.check()?;
        ensure!(alone.early + browsed.early == 0, "some came early");
        add(report, "alone", &alone);
        add(report, "browsed", &browsed);
        report.add("browsed", "pages", pages as f64 / scale.stream);
        report.add("browsed", "ratio", browsed.at(0.99) as f64 / alone.at(0.99) as f64);
    }
    relay.terminate().await;
    let what = format!("1,000/s with {} pending, due to consumed, us", number(scale.backlog as f64));
    let rows = [("alone", "nobody looks"), ("browsed", "four browsers")];
    let columns = [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")];
    report.table(&what, &rows, &columns);
    let columns = [("ratio", "p99 to nobody's"), ("pages", "pages a second")];
    report.table("four browsers", &rows[1..], &columns);
    Ok(())
}

fn add(report: &mut Report, row: &str, late: &Late) {
    for (column, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        report.add(row, column, late.at(quantile) as f64);
    }
    println!("  {row}: p50 {} p99 {} us", late.at(0.5), late.at(0.99));
}

/// Threads that page through all that waits, over and over.
struct Browsers {
    stop: Arc<AtomicBool>,
    pages: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Browsers {
    fn start(url: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let pages = Arc::new(AtomicU64::new(0));
        let threads = (0..BROWSERS).map(|_| {
            let url = url.to_owned();
            let stop = stop.clone();
            let pages = pages.clone();
            std::thread::spawn(move || look(&url, &stop, &pages))
        });
        let threads = threads.collect();
        Self { stop, pages, threads }
    }

    /// Ends them; how many pages they have seen.
    fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().expect("a browser does not panic")?;
        }
        Ok(self.pages.load(Ordering::Acquire))
    }
}

fn look(url: &str, stop: &AtomicBool, pages: &AtomicU64) -> anyhow::Result<()> {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(30))).build().into();
    let mut cursor = String::new();
    while !stop.load(Ordering::Acquire) {
        let page = agent.get(format!("{url}/api/v1/messages?limit={PAGE}{cursor}")).call()?;
        let page: Value = serde_json::from_str(&page.into_body().read_to_string()?)?;
        pages.fetch_add(1, Ordering::AcqRel);
        cursor = page["next"].as_str().map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    Ok(())
}
