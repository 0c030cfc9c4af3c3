//! Random histories, compared with the model after each step.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::driver::{Driver, SharePlan, Step};
use super::room::{LONG, Room};
use crate::support::Redis;

fn share() -> impl Strategy<Value = SharePlan> {
    use SharePlan::{Back, Confirmed, Dead, Held};
    prop_oneof![Just(Confirmed), Just(Back), Just(Held), Just(Dead)]
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn step() -> impl Strategy<Value = Step> {
    let bundle = prop::collection::vec(prop::option::of(name()), 1..4);
    prop_oneof![
        4 => (bundle, any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(names, replace, due)| Step::Store(names, replace, due)),
        4 => (0..2usize, any::<bool>()).prop_map(|(who, expires)| Step::Claim { who, expires }),
        2 => (0..2usize).prop_map(|who| Step::Settle { who }),
        2 => (0..2usize, any::<bool>()).prop_map(|(who, first_confirmed)| Step::GiveBack { who, first_confirmed }),
        1 => (0..2usize, any::<bool>(), any::<bool>())
            .prop_map(|(who, expires, first_confirmed)| Step::Extend { who, expires, first_confirmed }),
        3 => (0..2usize, [share(), share(), share()]).prop_map(|(who, shares)| Step::Divide { who, shares }),
        3 => name().prop_map(Step::Cancel),
        2 => (name(), any::<bool>()).prop_map(|(name, due)| Step::Reschedule(name, due)),
        2 => Just(Step::Sweep),
        2 => Just(Step::Redrive),
        1 => Just(Step::DropDead),
    ]
}

#[test]
fn random_histories_are_as_in_the_model() {
    histories(150, async || Some(Redis::start().await));
}

/// Where `scripts/setup` could get it.
#[test]
fn random_histories_are_as_in_the_model_on_valkey() {
    histories(50, Redis::start_valkey);
}

fn histories(cases: u32, server: impl AsyncFnOnce() -> Option<Redis>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let Some(server) = runtime.block_on(server()) else { return };
    let server = &*Box::leak(Box::new(server));
    let rooms = runtime.block_on(async {
        [Room::on(server, 1).await, Room::with(server, &server.url(), 1, LONG as i64).await]
    });
    let config = Config { cases, max_shrink_iters: 400, failure_persistence: None, ..Config::default() };
    let history = (any::<bool>(), prop::collection::vec(step(), 1..30));
    let result = TestRunner::new(config).run(&history, |(remembers, history)| {
        let room = &rooms[usize::from(remembers)];
        let run = std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut driver = Driver::new(room);
                for step in &history {
                    driver.step(step).await;
                    driver.compare().await;
                }
            });
        });
        let outcome = std::panic::catch_unwind(run);
        runtime.block_on(room.wipe());
        outcome.map_err(|_| TestCaseError::fail("it differs from the model; the panic above says where"))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
