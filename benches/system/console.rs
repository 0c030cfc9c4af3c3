//! Measures what it costs that people look: lateness and rate at 10,000 messages a second, with the console open in ten tabs
//! and without any, in turns. A tab is a stream of overviews that is read to the end and opened again, as the page does.

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::ensure;

use crate::lateness::{CountedFrom, LatenessSamples, MessageStream, run};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, config, kafka_route};
use crate::support::Relay;
use crate::{Scale, machine};

/// Tabs that are open at once.
const TABS: usize = 10;
/// Messages a second.
const RATE: f64 = 10_000.0;

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let redis = servers.redis(false).await?;
    let kafka = servers.kafka().await?;
    let from = kafka.unique_topic("source", TOPIC_PARTITIONS).await;
    let to = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let base = config(&redis).kafka("main", kafka);
    let mut relay = Relay::start(&kafka_route(base, "watched", &from, &to, "")).await;
    let seconds = scale.stream;
    let stream = MessageStream {
        kafka,
        from: &from,
        to: &to,
        rate: RATE,
        seconds,
        when: CountedFrom::Due,
    };
    for _ in 0..scale.rounds {
        let clocks = machine::ClockCheck::start();
        let alone = run(&stream)?;
        let tabs = OpenTabs::open(&relay.url());
        let watched = run(&stream);
        let events = tabs.close()?;
        let watched = watched?;
        clocks.check()?;
        ensure!(alone.early + watched.early == 0, "some came early");
        add(report, "alone", &alone, seconds);
        add(report, "watched", &watched, seconds);
        report.add("watched", "events", events as f64 / seconds);
        let longer_us = watched.at(0.99) as f64 - alone.at(0.99) as f64;
        report.add("watched", "longer", longer_us / 1e3);
        let rate = watched.samples.len() as f64 / alone.samples.len().max(1) as f64;
        report.add("watched", "share", rate * 100.0);
    }
    relay.terminate().await;
    let rows = [("alone", "nobody looks"), ("watched", "ten tabs")];
    let columns = [
        ("p50", "p50"),
        ("p99", "p99"),
        ("rate", "messages a second"),
    ];
    report.table("10,000/s, due to consumed, us", &rows, &columns);
    let columns = [
        ("longer", "p99 longer by, ms"),
        ("share", "of the rate, %"),
        ("events", "overviews a second"),
    ];
    report.table("ten tabs", &rows[1..], &columns);
    let share = report.median("watched", "share") / 100.0;
    report.bar(
        19,
        "messages a second, with ten tabs to without",
        share,
        BarLimit::AtLeast(0.97),
    );
    let longer = report.median("watched", "longer");
    report.bar(
        20,
        "p99 longer by, ms, with ten tabs",
        longer,
        BarLimit::AtMost(1.0),
    );
    Ok(())
}

fn add(report: &mut Report, row: &str, late: &LatenessSamples, seconds: f64) {
    for (column, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        report.add(row, column, late.at(quantile) as f64);
    }
    report.add(row, "rate", late.samples.len() as f64 / seconds);
    println!("  {row}: p50 {} p99 {} us", late.at(0.5), late.at(0.99));
}

/// Threads that read overviews for as long as they are open.
struct OpenTabs {
    closed: Arc<AtomicBool>,
    events: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl OpenTabs {
    fn open(url: &str) -> Self {
        let closed = Arc::new(AtomicBool::new(false));
        let events = Arc::new(AtomicU64::new(0));
        let threads = (0..TABS).map(|_| {
            let url = format!("{url}/api/v1/overview/stream");
            let closed = closed.clone();
            let events = events.clone();
            std::thread::spawn(move || read_events(&url, &closed, &events))
        });
        let threads = threads.collect();
        Self {
            closed,
            events,
            threads,
        }
    }

    /// Closes them. Returns the number of overviews that they have read.
    fn close(self) -> anyhow::Result<u64> {
        self.closed.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().expect("a tab does not panic")?;
        }
        Ok(self.events.load(Ordering::Acquire))
    }
}

fn read_events(url: &str, closed: &AtomicBool, events: &AtomicU64) -> anyhow::Result<()> {
    while !closed.load(Ordering::Acquire) {
        let answer = ureq::get(url).call()?;
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            if line?.starts_with("event: overview") {
                events.fetch_add(1, Ordering::AcqRel);
            }
            if closed.load(Ordering::Acquire) {
                break;
            }
        }
    }
    Ok(())
}
