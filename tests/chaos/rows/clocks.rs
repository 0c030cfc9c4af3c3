//! Clocks that step, and one that drifts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::bar_recovery;
use crate::outcome::Outcome;
use crate::preload::Clock;
use crate::stage::{Scale, Setup, Stage};

/// By how much, ms.
const STEPS_MS: [i64; 4] = [3_600_000, -3_600_000, 500, -500];

pub(super) async fn step(scale: Scale) -> Outcome {
    let (redis, first) = (Clock::new(), Clock::new());
    // Each of the eight in turn.
    let (of_redis, by_ms) = (scale.seed.is_multiple_of(2), STEPS_MS[(scale.seed / 2 % 4) as usize]);
    let program = redis.redis().to_string_lossy().into_owned();
    let setup = Setup { redis_program: program, ..Setup::default() };
    let mut stage = Stage::start(scale, setup).await;
    stage.setup.environment.extend(first.environment());
    stage.relays[0] = stage.spawn(0);
    stage.relays[0].ready().await;
    stage.under_load().await;
    stage.strike(&stage.all()).await;
    let (clock, whose) = if of_redis { (&redis, "Redis") } else { (&first, "one replica") };
    clock.set(by_ms);
    stage.note(format!("the clock of {whose} stepped by {by_ms} ms"));
    sleep(Duration::from_secs(6)).await;
    let metrics = stage.relays[0].metrics().await.expect("a replica that is up");
    let skew = metrics.sum("postdate_clock_skew_seconds", &[]);
    let seen = skew.abs() * 1000.0 > by_ms.abs() as f64 / 2.0;
    stage.bites(seen, format!("the replica sees a skew of {skew} s"));
    clock.set(0);
    stage.healed();
    stage.moment(2000, 2000).await;
    stage.account().await;
    bar_recovery(&mut stage, 20_000);
    stage.close().await
}

/// What the clock of Redis loses, in millionths: some two oscillators do, a clock that is slewed, and the most of these.
const DRIFTS_PPM: [u64; 3] = [20, 100, 500];

pub(super) async fn drift(scale: Scale) -> Outcome {
    let clock = Arc::new(Clock::new());
    let ppm = DRIFTS_PPM[(scale.seed % 3) as usize];
    let program = clock.redis().to_string_lossy().into_owned();
    let mut stage = Stage::start(scale, Setup { redis_program: program, ..Setup::default() }).await;
    let drifting = {
        let (clock, began) = (clock.clone(), Instant::now());
        tokio::spawn(async move {
            loop {
                let lost_us = began.elapsed().as_micros() as u64 * ppm / 1_000_000;
                clock.set_us(-(lost_us as i64));
                sleep(Duration::from_millis(1)).await;
            }
        })
    };
    stage.note(format!("the clock of Redis loses {ppm} us a second"));
    stage.under_load().await;
    let victim = [stage.rng.usize(0..3)];
    stage.strike(&victim).await;
    stage.bites_claims();
    stage.relays[victim[0]].kill9().await;
    stage.moment(1000, 6000).await;
    stage.relays[victim[0]].restart().await;
    stage.healed();
    stage.moment(3000, 3000).await;
    stage.account().await;
    let stepped =
        stage.relays.iter().filter(|relay| relay.log().contains("the clock of redis stepped")).count();
    stage.bar(
        stepped == 0,
        format!("{stepped} replicas say that the clock of Redis stepped, the bar is none"),
    );
    let (takeover, limit) = (stage.outcome.takeover_ms.unwrap_or(0), 13_000);
    stage.bar(takeover <= limit, format!("what was due waited for {takeover} ms, the bar is {limit}"));
    drifting.abort();
    stage.close().await
}
