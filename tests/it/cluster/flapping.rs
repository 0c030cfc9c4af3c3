//! A replica that comes and goes while two others serve.

use std::time::Duration;

use super::Crew;
use crate::support::process::Signal;
use crate::support::proxy::Mode;
use crate::support::{Proxy, Rabbitmq, Redis, Relay, eventually};

/// How often a replica has seen others come or go. Partitions move then and only then.
fn changes(relay: &Relay) -> usize {
    relay.log().matches("the replicas have changed").count()
}

/// Compares how often the two that stay have seen the others change: each flap is one death and one return at most.
fn bounded(relays: &[Relay], before: &[usize], flaps: usize) {
    for (relay, before) in relays.iter().zip(before) {
        let seen = changes(relay) - before;
        println!("{flaps} flaps, {seen} changes");
        assert!(seen >= 2, "it was never missed");
        assert!(seen <= 2 * flaps, "{seen} changes of {flaps} flaps");
    }
}

/// With the default heartbeat a replica counts as dead after 3.9 s; what it has claimed passes on after 2 s here.
const STOPS_MS: [u64; 6] = [1000, 3800, 4000, 6000, 2500, 5000];

#[tokio::test]
async fn one_that_is_stopped_again_and_again_around_its_lease() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::start(redis, rabbitmq, 3, "[timer]\nclaim = \"2s\"").await;
    let before: Vec<usize> = crew.relays.iter().map(changes).collect();
    let mut flapping = crew.relays.remove(2);
    let flaps = async {
        for ms in STOPS_MS {
            crew.flows(50).await;
            flapping.signal(Signal::STOP);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            flapping.signal(Signal::CONT);
        }
    };
    crew.under_load(rabbitmq, 500, flaps).await;
    crew.relays.push(flapping);
    crew.shared().await;
    crew.accounted(0).await;
    bounded(&crew.relays[..2], &before, STOPS_MS.len());
}

/// Fault of the link, and its length.
const CUTS: [(Mode, u64); 6] = [
    (Mode::Pass, 0),
    (Mode::Hole, 3000),
    (Mode::Refuse, 6000),
    (Mode::Pass, 500),
    (Mode::Hole, 6000),
    (Mode::Trickle, 5000),
];

#[tokio::test]
async fn one_whose_link_to_redis_is_cut_and_mended_in_turns() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "[timer]\nclaim = \"2s\"").await;
    let proxy = Proxy::before(redis.port()).await;
    let config = crew.config.clone();
    for config in [
        config.clone(),
        config.clone(),
        config.through(redis, proxy.port()),
    ] {
        crew.relays.push(Relay::start(&config).await);
    }
    crew.shared().await;
    let before: Vec<usize> = crew.relays.iter().map(changes).collect();
    let mut flapping = crew.relays.remove(2);
    let flaps = async {
        for (mode, ms) in CUTS {
            crew.flows(50).await;
            flapping.ready().await;
            let hits = proxy.hits();
            proxy.set(mode);
            if matches!(mode, Mode::Pass | Mode::Refuse) {
                proxy.reset();
            }
            eventually("the cut meets something", async || {
                if proxy.hits() > hits {
                    Ok(())
                } else {
                    Err("not yet")
                }
            })
            .await;
            tokio::time::sleep(Duration::from_millis(ms)).await;
            proxy.set(Mode::Pass);
        }
    };
    crew.under_load(rabbitmq, 500, flaps).await;
    crew.relays.push(flapping);
    crew.shared().await;
    crew.accounted(0).await;
    bounded(&crew.relays[..2], &before, CUTS.len());
}
