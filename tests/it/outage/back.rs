//! A broker that was away is back: how soon each route flows again, by the relay's own counts.

use std::time::{Duration, Instant};

use super::away;
use crate::fixture::{FourRoutesFixture, four_routes};
use crate::support::eventually::within;
use crate::support::{Kafka, Rabbitmq, Redis, Relay};

/// Time from a broker's first round trip to the first message that passes a route: two seconds, and what a machine may
/// take that runs other tests beside this one. A consumer that had to wait for its session's end would need ten.
const FLOWS_AGAIN: Duration = Duration::from_secs(2 + 6);
const ROUTES: [&str; 4] = ["k-k", "k-r", "r-k", "r-r"];

#[tokio::test(flavor = "multi_thread")]
async fn all_routes_flow_again_soon_after_kafka_is_back() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut kafka = Kafka::start().await;
    let fixture = four_routes(redis, &kafka, rabbitmq).await;
    let relay = Relay::start(&fixture.config).await;
    fixture.send(&kafka, rabbitmq).await;
    fixture.run.drain(&relay).await;
    kafka.kill9().await;
    // For longer than the sessions of the consumers: they join their groups as new members, which know them again.
    away().await;
    kafka.restart().await;
    assert_flows(&fixture, &relay, fixture.send(&kafka, rabbitmq)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_routes_flow_again_soon_after_rabbitmq_is_back() {
    let (redis, kafka) = tokio::join!(Redis::shared(), Kafka::shared());
    let mut rabbitmq = Rabbitmq::start().await;
    let fixture = four_routes(redis, kafka, &rabbitmq).await;
    let relay = Relay::start(&fixture.config).await;
    fixture.send(kafka, &rabbitmq).await;
    fixture.run.drain(&relay).await;
    rabbitmq.kill9().await;
    away().await;
    rabbitmq.restart().await;
    assert_flows(&fixture, &relay, fixture.send(kafka, &rabbitmq)).await;
}

/// Sends to all routes and measures, from now on, when each has let the first message through.
async fn assert_flows(fixture: &FourRoutesFixture, relay: &Relay, send: impl Future<Output = ()>) {
    let passed = async |route: &str| {
        let metrics = relay.metrics().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(metrics.sum("postdate_passed_through_total", &[("route", route)]))
    };
    let mut before = Vec::new();
    for route in ROUTES {
        before.push(passed(route).await.expect("its metrics"));
    }
    let back = Instant::now();
    let first_passes = ROUTES.iter().zip(before).map(|(route, before)| async move {
        let first = within(FLOWS_AGAIN, async || {
            if passed(route).await? > before {
                Ok(back.elapsed())
            } else {
                Err("nothing passes".to_owned())
            }
        });
        (route, first.await)
    });
    let (found, ()) = tokio::join!(futures_util::future::join_all(first_passes), send);
    println!("flows again: {found:?}");
    assert!(found.iter().all(|(_, first)| first.is_ok()), "{found:?}");
    super::accounted(fixture, relay).await;
}
