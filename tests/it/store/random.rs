//! Random histories, compared with the model after each step.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::driver::{Driver, SharePlan, Step};
use super::fixture::{LONG, StoreFixture, config_of};
use super::proxy::Proxy;
use crate::support::{Cluster, Redis, names};

fn share() -> impl Strategy<Value = SharePlan> {
    use SharePlan::{Alone, Back, Confirmed, Dead, InFlight, Unsure};
    prop_oneof![
        Just(Confirmed),
        Just(Back),
        Just(Unsure),
        Just(Alone),
        Just(InFlight),
        Just(Dead)
    ]
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn step() -> impl Strategy<Value = Step> {
    let bundle = prop::collection::vec(prop::option::of(name()), 1..4);
    prop_oneof![
        4 => (bundle, any::<bool>(), prop::bool::weighted(0.7))
            .prop_map(|(names, replace, due)| Step::Store(names, replace, due)),
        4 => (0..2usize, any::<bool>()).prop_map(|(who, expires)| Step::Claim { who, expires }),
        2 => (0..2usize).prop_map(|who| Step::Settle { who }),
        2 => (0..2usize, any::<bool>()).prop_map(|(who, first_confirmed)| Step::GiveBack { who, first_confirmed }),
        1 => (0..2usize, any::<bool>(), any::<bool>())
            .prop_map(|(who, expires, first_confirmed)| Step::Extend { who, expires, first_confirmed }),
        3 => (0..2usize, [share(), share(), share()]).prop_map(|(who, shares)| Step::Divide { who, shares }),
        3 => name().prop_map(Step::Cancel),
        2 => (name(), any::<bool>()).prop_map(|(name, due)| Step::Reschedule(name, due)),
        2 => (name(), any::<bool>()).prop_map(|(name, due)| Step::Replace(name, due)),
        2 => (name(), 1..3u32, any::<bool>(), any::<bool>())
            .prop_map(|(name, count, replace, due)| Step::Back(name, count, replace, due)),
        2 => Just(Step::Sweep),
        1 => Just(Step::Spread),
        2 => Just(Step::Redrive),
        1 => Just(Step::DropDead),
    ]
}

#[test]
fn random_histories_are_as_in_the_model() {
    histories(150, async || Some(two_fixtures(Redis::start().await).await));
}

/// What lost its name to a message that was given back has it again when its growing bundle is spread, if nobody has it.
#[tokio::test]
async fn a_name_comes_back_where_it_is_free() {
    for cancelled in [true, false] {
        let fixture = StoreFixture::shared().await;
        let mut driver = Driver::new(&fixture);
        let store = Step::Store(vec![Some("a")], false, false);
        let back = Step::Back("a", 1, false, false);
        let cancel = cancelled.then_some(Step::Cancel("a"));
        for step in [Some(store), Some(back), cancel, Some(Step::Spread)] {
            let Some(step) = step else { continue };
            driver.step(&step).await;
            driver.compare().await;
        }
    }
}

/// Where `scripts/setup` could get it.
#[test]
fn random_histories_are_as_in_the_model_on_valkey() {
    histories(50, async || {
        Some(two_fixtures(Redis::start_valkey().await?).await)
    });
}

/// A call whose reply is lost is sent again, and changes and answers what it would have at first: what the search in
/// `tests/model` takes for granted of the wire.
#[test]
fn random_histories_with_lost_replies_are_as_in_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config = Config {
        cases: 12,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    };
    let history = prop::collection::vec((numbered(), prop::bool::weighted(0.2)), 5..20);
    let (proxy, fixture) = runtime.block_on(async {
        let redis = &*Box::leak(Box::new(Redis::start().await));
        let proxy = Proxy::before(redis).await;
        let fixture = proxy.fixture(redis).await;
        // A script that the server does not know yet is refused first, and that reply would be the lost one.
        known(&fixture).await;
        (proxy, fixture)
    });
    let result = TestRunner::new(config).run(&history, |history| {
        let run = std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut driver = Driver::new(&fixture);
                for (step, loses) in &history {
                    if *loses {
                        proxy.lose_next_reply();
                    }
                    driver.step(step).await;
                    driver.compare().await;
                }
            });
        });
        let outcome = std::panic::catch_unwind(run);
        runtime.block_on(fixture.wipe());
        outcome.map_err(|_| {
            TestCaseError::fail("it differs from the model; the panic above says where")
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(proxy.played() > 0, "replies were lost");
}

/// Steps whose calls are numbered.
fn numbered() -> impl Strategy<Value = Step> {
    step().prop_filter("a call without a number may be run twice", |step| {
        !matches!(
            step,
            Step::Sweep | Step::GiveBack { .. } | Step::Extend { .. }
        )
    })
}

/// One of each numbered call.
async fn known(fixture: &StoreFixture) {
    let mut driver = Driver::new(fixture);
    let shares = [SharePlan::Dead, SharePlan::Confirmed, SharePlan::Back];
    for step in [
        Step::Store(vec![Some("a"), Some("b"), None], false, true),
        Step::Reschedule("a", true),
        Step::Cancel("b"),
        Step::Reschedule("c", true),
        Step::Claim {
            who: 0,
            expires: false,
        },
        Step::Divide { who: 0, shares },
        Step::Redrive,
        Step::Claim {
            who: 0,
            expires: false,
        },
        Step::Settle { who: 0 },
    ] {
        driver.step(&step).await;
    }
    fixture.wipe().await;
}

/// The partition's node is one of three, and what belongs to no partition is on any of them.
#[test]
fn random_histories_are_as_in_the_model_on_a_cluster() {
    histories(50, async || {
        let cluster = &*Box::leak(Box::new(Cluster::start_with("redis-server", 0).await));
        let node = cluster.node(cluster.master_of(cluster.slot("{0}").await).await);
        let config = || config_of(cluster.topology(), &names::unique("store"), 1);
        Some([
            StoreFixture::of(config(), node, 0).await,
            StoreFixture::of(config(), node, LONG as i64).await,
        ])
    });
}

/// One whose route remembers nothing, and one whose does.
async fn two_fixtures(server: Redis) -> [StoreFixture; 2] {
    let server = &*Box::leak(Box::new(server));
    [
        StoreFixture::on(server, 1).await,
        StoreFixture::with(server, &server.url(), 1, LONG as i64).await,
    ]
}

fn histories(cases: u32, fixtures: impl AsyncFnOnce() -> Option<[StoreFixture; 2]>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let Some(fixtures) = runtime.block_on(fixtures()) else {
        return;
    };
    let config = Config {
        cases,
        max_shrink_iters: 400,
        failure_persistence: None,
        ..Config::default()
    };
    let history = (any::<bool>(), prop::collection::vec(step(), 1..30));
    let result = TestRunner::new(config).run(&history, |(remembers, history)| {
        let fixture = &fixtures[usize::from(remembers)];
        let run = std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut driver = Driver::new(fixture);
                for step in &history {
                    driver.step(step).await;
                    driver.compare().await;
                }
            });
        });
        let outcome = std::panic::catch_unwind(run);
        runtime.block_on(fixture.wipe());
        outcome.map_err(|_| {
            TestCaseError::fail("it differs from the model; the panic above says where")
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
