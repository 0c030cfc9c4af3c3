//! Clocks that step.

use std::time::Duration;

use tokio::time::sleep;

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
