use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use prometheus_client::registry::Registry;

use super::*;
use crate::domain::testing::{self, route};
use crate::domain::{RateLimit, TargetRef};
use crate::egress::Publication;
use crate::telemetry::Metrics;

const MIB: usize = 1 << 20;

#[derive(Default)]
struct TroubledLane(AtomicBool);

impl Lane for TroubledLane {
    fn submit_all(&self, _: Vec<Publication>) {}

    fn backlog(&self) -> usize {
        0
    }

    fn trouble(&self) -> Option<String> {
        self.0.load(Ordering::Relaxed).then(|| "away".to_owned())
    }
}

struct CreditFixture {
    lane: Arc<TroubledLane>,
    wake_ups: Vec<Arc<Notify>>,
    metrics: Arc<RouteMetrics>,
    credit: Arc<Credit>,
}

fn credit(per_second: Option<u32>) -> CreditFixture {
    let mut route = Route::clone(&route());
    route.policy.rate = per_second.map(|per_second| RateLimit {
        per_second,
        burst: 0,
    });
    credit_of(route)
}

fn credit_of(route: Route) -> CreditFixture {
    let lane = Arc::<TroubledLane>::default();
    let wake_ups: Vec<Arc<Notify>> = (0..2).map(|_| Arc::default()).collect();
    let name = route.name.clone();
    let metrics = Metrics::new(&mut Registry::default(), [name.clone()])
        .route(&name)
        .cloned()
        .expect("of this route");
    let credit = Credit::new(
        Arc::new(route),
        lane.clone(),
        metrics.clone(),
        Arc::default(),
        wake_ups.clone(),
        Clock::start(),
    );
    CreditFixture {
        lane,
        wake_ups,
        metrics,
        credit,
    }
}

#[test]
fn a_target_in_trouble_holds_few_messages_until_it_works_again() {
    let CreditFixture { lane, credit, .. } = credit(None);
    let most = || {
        let grant = credit.ask(0, 1)?;
        Some(i64::from(grant.messages_each))
    };
    assert_eq!(most(), Some(POLL_MESSAGES));
    lane.0.store(true, Ordering::Relaxed);
    assert_eq!(most(), Some(TROUBLE_MESSAGES));
    let _few = credit.force().hold(TROUBLE_MESSAGES as usize);
    assert_eq!(most(), None);
    lane.0.store(false, Ordering::Relaxed);
    credit.withdraw(0);
    assert_eq!(most(), Some(POLL_MESSAGES), "at once");
    let _rest = credit.force().hold(ROUTE_MESSAGES as usize);
    lane.0.store(true, Ordering::Relaxed);
    assert_eq!(most(), None, "what was claimed before stays claimed");
}

#[test]
fn each_message_gives_its_credit_back_with_its_verdict_and_wakes_who_waits() {
    let CreditFixture {
        wake_ups,
        metrics,
        credit,
        ..
    } = credit(Some(100));
    let mut grant = credit.ask(0, 7).expect("all of it is free");
    assert_eq!((grant.due_sets, grant.messages_each), (1, 200));
    let mut part = grant.part(1);
    drop(grant);
    let mut bundle = part.hold(150);
    drop(part);
    assert_eq!(metrics.in_flight.get(), 150);
    let _other = credit.ask(1, 1).expect("a quarter is free").hold(50);
    assert!(credit.ask(1, 1).is_none());
    bundle.keep(101, 150);
    let woken = || wake_ups[1].notified().now_or_never().is_some();
    assert!(!woken(), "less than a quarter");
    bundle.keep(100, 150);
    assert!(woken());
    assert_eq!(metrics.in_flight.get(), 200, "the claims are as they were");
    bundle.keep(100, 100);
    assert_eq!(metrics.in_flight.get(), 150, "they were divided");
    let offered = credit.ask(1, 1).expect("its turn");
    assert_eq!(offered.messages, 50);
    drop((bundle, offered));
    assert_eq!(metrics.in_flight.get(), 50);
    assert_eq!(credit.ask(0, 1).map(|grant| grant.messages), Some(150));
}

#[test]
fn what_is_set_aside_leaves_its_room_to_the_other_targets() {
    let mut route = Route::clone(&route());
    let other = Arc::new(Target::clone(&route.to));
    route.allow_targets.push(other.clone());
    let own = route.to.clone();
    let CreditFixture { lane, credit, .. } = credit_of(route);
    lane.0.store(true, Ordering::Relaxed);
    let free = || credit.ask(0, 100).map(|grant| grant.messages);
    assert_eq!(free(), Some(ROUTE_MESSAGES), "the other target works");
    let mut hanging = credit.force().hold(TROUBLE_MESSAGES as usize);
    let few = ROUTE_MESSAGES - TROUBLE_MESSAGES;
    assert_eq!(free(), Some(few));
    assert!(!credit.is_full(&own));
    hanging.set_aside(&own);
    hanging.set_aside(&own);
    assert_eq!(free(), Some(ROUTE_MESSAGES));
    assert!(credit.is_full(&own) && !credit.is_full(&other));
    let each = credit.ask(0, 1).map(|grant| grant.messages_each);
    assert_eq!(each, Some(TROUBLE_MESSAGES as u32), "a look behind them");
    hanging.keep(1, 2000);
    assert!(!credit.is_full(&own));
    drop(hanging);
    assert_eq!(credit.state.lock().aside, [0, 0]);
    assert_eq!(free(), Some(ROUTE_MESSAGES));
}

/// A target that hangs costs Redis no more than so much however many bundles wait for it, and others of the route nothing.
#[test]
fn bundles_of_a_full_target_come_back_one_after_another_and_the_others_are_claimed() {
    let mut route = Route::clone(&route());
    let hanging = route.to.clone();
    let other = Arc::new(testing::kafka_target("other"));
    route.allow_targets.push(other.clone());
    let CreditFixture { credit, .. } = credit_of(route);
    let now_us = 7_000_000;
    let mut waits = (0..200_000).map(|_| credit.put_off_at(now_us, &hanging));
    let begin: Vec<u64> = waits.by_ref().take(40_000).collect();
    assert!(begin.is_sorted());
    assert_eq!((begin[0], begin[39_999]), (5000, 24_999), "2,000 a second");
    assert_eq!(waits.fold(0, |_, wait| wait), 60_000);
    assert_eq!(credit.put_off_at(now_us, &other), 5000);
    assert_eq!(credit.put_off_at(now_us + 30_000_000, &hanging), 30_000);
    assert_eq!(credit.put_off_at(now_us + 100_000_000, &hanging), 5000);
    assert!(credit.ask(0, 1).is_some());
}

#[test]
fn each_target_that_is_derived_from_a_topic_is_set_aside_by_itself() {
    let route = Arc::new(testing::route_per_topic("(.*)\\.delayed", "{1}"));
    let CreditFixture { credit, .. } = credit_of(Route::clone(&route));
    let target = |topic: &str| {
        let named = TargetRef::Named(topic.into());
        route.target(&named).expect("a target")
    };
    let [ill, well] = ["ill", "well"].map(target);
    let free = || credit.ask(0, 100).map(|grant| grant.messages);
    let mut hanging = credit.force().hold(TROUBLE_MESSAGES as usize);
    hanging.set_aside(&ill);
    assert_eq!(
        free(),
        Some(ROUTE_MESSAGES),
        "it takes nothing from the others"
    );
    assert!(credit.is_full(&ill) && !credit.is_full(&well));
    drop(hanging);
    assert!(!credit.is_full(&ill));
    assert_eq!(free(), Some(ROUTE_MESSAGES));
}

#[test]
fn an_only_target_has_nothing_set_aside() {
    let CreditFixture { credit, .. } = credit(None);
    let own = credit.route.to.clone();
    let mut hanging = credit.force().hold(TROUBLE_MESSAGES as usize);
    hanging.set_aside(&own);
    assert!(!credit.is_full(&own));
    let free = credit.ask(0, 100).map(|grant| grant.messages);
    assert_eq!(free, Some(ROUTE_MESSAGES - TROUBLE_MESSAGES));
}

#[test]
fn a_claim_counts_on_messages_as_large_as_in_the_one_before() {
    let CreditFixture { credit, .. } = credit(None);
    let cut = |due_sets| {
        let grant = credit.ask(0, due_sets)?;
        Some((grant.due_sets, grant.messages_each))
    };
    assert_eq!(cut(10), Some((10, 1250)), "nothing is known");
    credit.measured([(10, 10 * MIB), (1, MIB / 2)].into_iter());
    assert_eq!(cut(1), Some((1, 64)));
    assert_eq!(cut(100), Some((64, 1)));
    let mut grant = credit.ask(0, 100).expect("room");
    let mut held: Vec<HeldCredit> = (0..64).map(|_| grant.hold(1)).collect();
    let taken = held.iter_mut().all(|held| held.take_bytes(MIB, false));
    assert!(taken && !grant.hold(1).take_bytes(MIB, false), "half of it");
    drop(grant);
    assert_eq!(cut(1), None, "it waits for bytes");
    held.truncate(63);
    assert_eq!(cut(1), Some((1, 1)));
    drop(held);
    credit.measured([(1, 500 * MIB)].into_iter());
    assert_eq!(cut(1), Some((1, 8)), "a large one has another pool");
    credit.measured(std::iter::empty());
    credit.measured([(500, 5000)].into_iter());
    assert_eq!(cut(10), Some((10, 1250)));
}

#[test]
fn a_limited_route_is_claimed_from_as_many_due_sets_as_bundles_are_small() {
    let CreditFixture { credit, .. } = credit(Some(100));
    let due_sets = || credit.ask(0, 32).expect("room").due_sets;
    assert_eq!(due_sets(), 1, "a bundle may be all that may be claimed");
    credit.measured([(1, 100), (2, 100)].into_iter());
    assert_eq!(due_sets(), 32);
    credit.measured([(1, 100), (40, 4000)].into_iter());
    assert_eq!(due_sets(), 5);
    for _ in 0..30 {
        credit.measured([(1, 100)].into_iter());
    }
    assert_eq!(due_sets(), 32, "the large one was long ago");
}
