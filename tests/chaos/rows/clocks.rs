//! Clocks that step, and one that drifts.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::common::limit_recovery;
use crate::outcome::Outcome;
use crate::preload::Clock;
use crate::scenario::{MIN_IN_FLIGHT, Scale, Scenario, Setup};

/// Sizes of a clock step, ms.
const STEPS_MS: [i64; 4] = [3_600_000, -3_600_000, 500, -500];

pub(super) async fn step(scale: Scale) -> Outcome {
    let redis = Clock::new();
    let first = Clock::new();
    // Each of the eight in turn.
    let of_redis = scale.seed.is_multiple_of(2);
    let by_ms = STEPS_MS[(scale.seed / 2 % 4) as usize];
    let program = redis.redis().to_string_lossy().into_owned();
    let setup = Setup {
        redis_program: program,
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    scenario.setup.environment.extend(first.environment());
    scenario.relays[0] = scenario.spawn(0);
    scenario.relays[0].ready().await;
    scenario.under_load().await;
    scenario.inject(&scenario.all()).await;
    let (clock, whose) = if of_redis {
        (&redis, "Redis")
    } else {
        (&first, "one replica")
    };
    clock.set(by_ms);
    scenario.note(format!("the clock of {whose} stepped by {by_ms} ms"));
    sleep(Duration::from_secs(6)).await;
    let metrics = scenario.relays[0]
        .metrics()
        .await
        .expect("a replica that is up");
    let skew = metrics.sum("postdate_clock_skew_seconds", &[]);
    let seen = skew.abs() * 1000.0 > by_ms.abs() as f64 / 2.0;
    scenario.precondition(seen, format!("the replica sees a skew of {skew} s"));
    clock.set(0);
    scenario.healed();
    scenario.moment(2000, 2000).await;
    scenario.account().await;
    limit_recovery(&mut scenario, 20_000);
    scenario.close().await
}

/// Drifts of the clock of Redis, millionths: of a clock that is slewed, of two poor oscillators, of two good ones.
const DRIFTS_PPM: [i64; 6] = [-500, 500, -100, 100, -20, 20];

/// Injects several faults into one scenario, so that the drift adds up.
pub(super) async fn drift(scale: Scale) -> Outcome {
    let clock = Arc::new(Clock::new());
    let ppm = DRIFTS_PPM[(scale.seed % DRIFTS_PPM.len() as u64) as usize];
    let program = clock.redis().to_string_lossy().into_owned();
    let mut scenario = Scenario::start(
        scale,
        Setup {
            redis_program: program,
            ..Setup::default()
        },
    )
    .await;
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
    scenario.under_load().await;
    let mut unmet_cycles = Vec::new();
    for injection in 1..=scale.cycles {
        let victim = [scenario.rng.usize(0..3)];
        scenario.inject(&victim).await;
        let in_flight = scenario.in_flight();
        if in_flight < MIN_IN_FLIGHT {
            unmet_cycles.push(format!(
                "injection {injection}: only {in_flight} messages were in flight"
            ));
        }
        scenario.relays[victim[0]].kill9().await;
        scenario.moment(1000, 6000).await;
        scenario.relays[victim[0]].restart().await;
        scenario.healed();
        scenario.moment(18_000, 24_000).await;
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let ms = began.elapsed().as_millis() as i64 * ppm / 1_000_000;
    scenario.note(format!(
        "{ppm} us a second for {minutes:.1} minutes: {ms} ms"
    ));
    scenario.account().await;
    let injections = scale.cycles as usize;
    scenario.outcome.unmet_cycles = unmet_cycles.len().min(injections - 1);
    scenario.outcome.cycles = injections - scenario.outcome.unmet_cycles;
    scenario.precondition(unmet_cycles.len() < injections, unmet_cycles.join("; "));
    let stepped = scenario
        .relays
        .iter()
        .filter(|relay| relay.log().contains("the clock of redis stepped"))
        .count();
    scenario.limit(
        stepped == 0,
        format!("{stepped} replicas say that the clock of Redis stepped, the limit is none"),
    );
    let takeover = scenario.outcome.takeover_ms.unwrap_or(0);
    let limit = 13_000;
    scenario.limit(
        takeover <= limit,
        format!("what was due waited for {takeover} ms, the limit is {limit}"),
    );
    drifting.abort();
    scenario.close().await
}
