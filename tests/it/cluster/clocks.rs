//! Clocks that are wrong, and that step.

use std::path::Path;

use super::{Crew, arrived, logged, shared};
use crate::support::names::unique;
use crate::support::{Rabbitmq, Redis, Relay, When, eventually, folders};

const HOUR_MS: i64 = 3_600_000;

fn set(file: &Path, ms: i64) {
    // Replaced as a whole: a half-written number would be a third clock.
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, ms.to_string()).expect("written");
    std::fs::rename(&fresh, file).expect("in its place");
}

#[tokio::test]
async fn a_replica_whose_clock_steps_by_an_hour_strands_nothing_and_alarms() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "").await;
    let file = folders::new("clock").join("offset");
    set(&file, 0);
    crew.relays.push(Relay::start(&crew.config).await);
    let planted = file.to_string_lossy().into_owned();
    crew.relays
        .push(Relay::start_with(&crew.config, &[("POSTDATE_WALL_CLOCK", &planted)]).await);
    crew.shared().await;
    for hours in [-1, 1] {
        let holds = async {
            eventually("it holds claims", async || {
                let held = crew.relays[1]
                    .metrics()
                    .await?
                    .sum("postdate_in_flight", &[]);
                if held > 0.5 {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{held}"))
                }
            })
            .await;
            set(&file, hours * HOUR_MS);
        };
        crew.under_load(rabbitmq, 500, holds).await;
        // Delays too: the clock that has stepped says nothing of their arrival.
        crew.send_when(rabbitmq, 300, |n| When::Delay(1000 + n * 10))
            .await;
        arrived(&crew.run).await;
        logged(
            &crew.relays[1],
            "this replica's clock and redis's differ by more than",
        )
        .await;
        logged(&crew.relays[0], "two replicas' clocks differ by more than").await;
        let skew = crew.relays[1]
            .total("postdate_clock_skew_seconds", &[])
            .await;
        assert!((skew - 3600.0 * hours as f64).abs() < 60.0, "{skew}");
        set(&file, 0);
        eventually("the clocks agree again", async || {
            let skew = crew.relays[1]
                .metrics()
                .await?
                .sum("postdate_clock_skew_seconds", &[]);
            if skew.abs() < 1.0 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{skew}"))
            }
        })
        .await;
        shared(&crew.relays).await;
    }
    crew.accounted(0).await;
}

#[tokio::test]
async fn a_replica_whose_clock_is_ahead_shows_what_moves() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "").await;
    let file = folders::new("clock").join("offset");
    set(&file, 60_000);
    let planted = file.to_string_lossy().into_owned();
    crew.relays
        .push(Relay::start_with(&crew.config, &[("POSTDATE_WALL_CLOCK", &planted)]).await);
    crew.shared().await;
    eventually("the overview shows the flow", async || {
        // A delay would count from the later of the two clocks.
        crew.send(rabbitmq, 5, 500, 1).await;
        let overview = crew.relays[0].read("/api/v1/overview").await;
        let route = &overview["routes"][0];
        let rates = ["rate_in", "rate_out"].map(|rate| route[rate].as_f64());
        if rates.iter().all(|rate| *rate > Some(0.0)) {
            Ok(())
        } else {
            Err(format!("{rates:?}"))
        }
    })
    .await;
    crew.accounted(0).await;
}

#[tokio::test]
async fn redis_whose_clock_steps_by_an_hour_makes_nothing_early_and_strands_nothing() {
    let (redis, rabbitmq) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let mut crew = Crew::plan(redis, rabbitmq, "[timer]\nclaim = \"2s\"").await;
    let key = unique("clock");
    for _ in 0..2 {
        crew.relays
            .push(Relay::start_with(&crew.config, &[("POSTDATE_STORE_CLOCK", &key)]).await);
    }
    crew.shared().await;
    let mut raw = redis.connection().await.expect("connected");
    // On and back again: below what it was, all of them would be an hour late, as they must be; so would be a delay
    // that was counted from an arrival an hour ahead.
    for seconds in [3600, 0] {
        crew.send(rabbitmq, 300, 1000, 10).await;
        redis::cmd("SET")
            .arg(&key)
            .arg(seconds)
            .exec_async(&mut raw)
            .await
            .expect("set");
        crew.send(rabbitmq, 300, 1000, 10).await;
        arrived(&crew.run).await;
    }
    logged(&crew.relays[0], "the clock of redis stepped back").await;
    crew.shared().await;
    crew.accounted(0).await;
}
