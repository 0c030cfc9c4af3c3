//! Servers that are away, at start and in mid-flow, with the accounting on: nothing lost, early, changed or
//! misrouted; each duplicate has a cause; the relay says what is away and goes on by itself.

#![allow(clippy::print_stdout, reason = "shown when the test fails")]

mod back;
mod brokers;
mod bytes;
mod disk;
mod large_bodies;
mod late;
mod queued_bytes;
mod quotas;
mod ready;
mod redis;
mod refusals;
mod rereads;
mod restarts;

use std::time::Duration;

use crate::fixture::FourRoutesFixture;
use crate::support::{Relay, eventually};

/// How long a server stays away in mid-flow: 10 s, or `POSTDATE_OUTAGE_SECONDS`.
async fn away() {
    let seconds = std::env::var("POSTDATE_OUTAGE_SECONDS")
        .ok()
        .map(|text| text.parse().expect("whole seconds"));
    tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(10))).await;
}

/// Waits for this status of `/readyz`; `/livez` says 200 whatever is away.
async fn health(relay: &Relay, expected: u16) {
    eventually(&format!("/readyz says {expected}"), async || {
        let (live, (ready, body)) = (relay.get("/livez").await?.0, relay.get("/readyz").await?);
        assert_eq!(live, 200, "the process turns");
        if ready == expected {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{ready}: {body}"))
        }
    })
    .await;
}

/// Waits until the log holds these, in this order.
async fn logged(relay: &Relay, expected: &[&str]) {
    eventually(&format!("the log says {expected:?}"), async || {
        let log = relay.log();
        let found = expected.iter().try_fold(log.as_str(), |rest, text| {
            rest.split_once(text).map(|x| x.1)
        });
        found.map(drop).ok_or("it does not yet")
    })
    .await;
}

/// Publishes of this relay that may be repeats, by its own count.
pub(crate) async fn repeats(relay: &Relay) -> usize {
    relay.total("postdate_redelivered_total", &[]).await as usize
}

/// Drains, and compares: every duplicate must have its cause, and causes are no blank cheque.
async fn accounted(fixture: &FourRoutesFixture, relay: &Relay) {
    fixture.run.drain(relay).await;
    let explained = repeats(relay).await;
    let report = fixture.run.report();
    report.assert_accounted(explained);
    // An upper bound: a claim that expires on a busy machine counts, whether its message had left or not.
    assert!(
        explained <= 2 * report.attempts,
        "{explained} repeats of {} messages",
        report.attempts
    );
}
