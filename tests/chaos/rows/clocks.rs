//! Clocks that step, and one that drifts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::bar_recovery;
use crate::outcome::Outcome;
use crate::preload::Clock;
use crate::stage::{Scale, Setup, Stage, WORTH};

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

/// Drifts of the clock of Redis, millionths: of a clock that is slewed, of two poor oscillators, of two good ones.
const DRIFTS_PPM: [i64; 6] = [-500, 500, -100, 100, -20, 20];

/// Several strikes on one stage: what drifts has to add up.
pub(super) async fn drift(scale: Scale) -> Outcome {
    let clock = Arc::new(Clock::new());
    let ppm = DRIFTS_PPM[(scale.seed % DRIFTS_PPM.len() as u64) as usize];
    let program = clock.redis().to_string_lossy().into_owned();
    let mut stage = Stage::start(scale, Setup { redis_program: program, ..Setup::default() }).await;
    let began = Instant::now();
    let drifting = {
        let clock = clock.clone();
        tokio::spawn(async move {
            loop {
                clock.set_us(began.elapsed().as_micros() as i64 * ppm / 1_000_000);
                sleep(Duration::from_millis(1)).await;
            }
        })
    };
    stage.under_load().await;
    let mut blunt = Vec::new();
    for strike in 1..=scale.cycles {
        let victim = [stage.rng.usize(0..3)];
        stage.strike(&victim).await;
        let in_flight = stage.in_flight();
        if in_flight < WORTH {
            blunt.push(format!("strike {strike}: only {in_flight} messages were in flight"));
        }
        stage.relays[victim[0]].kill9().await;
        stage.moment(1000, 6000).await;
        stage.relays[victim[0]].restart().await;
        stage.healed();
        stage.moment(18_000, 24_000).await;
    }
    let (minutes, ms) =
        (began.elapsed().as_secs_f64() / 60.0, began.elapsed().as_millis() as i64 * ppm / 1_000_000);
    stage.note(format!("{ppm} us a second for {minutes:.1} minutes: {ms} ms"));
    stage.account().await;
    let strikes = scale.cycles as usize;
    stage.outcome.blunt = blunt.len().min(strikes - 1);
    stage.outcome.cycles = strikes - stage.outcome.blunt;
    stage.bites(blunt.len() < strikes, blunt.join("; "));
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
