//! A queue that does not confirm, among queues of its exchange that do: its process is suspended.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapin::ExchangeKind;
use postdate::domain::Verdict;
use postdate::domain::verdict::Refusal;

use super::{DeliverySink, RabbitmqFixture, Submitter, bodies, message, resolve, stamp};
use crate::support::accounting::Id;
use crate::support::run::Message;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names};

/// Sooner than any wait for a confirm is over, with time for a busy machine.
const BEFORE_TIME_OUT: Duration = Duration::from_secs(15);
/// More messages than a lane has outstanding.
const MANY: u64 = 2000;

/// Declares a queue that hangs and one that works.
async fn two_queues(server: &Rabbitmq) -> [String; 2] {
    let queues = ["ill", "well"].map(names::unique);
    for queue in &queues {
        server.declare_queue(queue, QueueKind::Classic).await;
    }
    queues
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_confirm_delays_no_message_of_another() {
    let server = Rabbitmq::shared().await;
    let [ill, well] = two_queues(server).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    server.suspend_queue(&ill).await;
    let mut submitter = Submitter::default();
    let mut hanging = Submitter::default();
    for ticket in 0..MANY {
        let stamp = |name: &str| Some(stamp(&format!("{name}-{ticket}"), 1));
        hanging.submit(&*lane, ticket, &ill, message("same"), stamp("ill"));
        let key = if ticket % 5 == 0 { "nowhere" } else { &well };
        submitter.submit(&*lane, ticket, key, message("same"), stamp("well"));
    }
    for (ticket, verdict) in submitter.collect(MANY as usize).await {
        match verdict {
            Verdict::Confirmed(None) => assert!(ticket % 5 != 0, "{ticket} went nowhere"),
            Verdict::Refused {
                reason: Refusal::Unroutable,
                ..
            } => assert!(ticket % 5 == 0, "{ticket} was routed"),
            other => panic!("{ticket}: {other:?}"),
        }
    }
    server.resume_queue(&ill).await;
    hanging.collect(MANY as usize).await;
    let confirmed = |v: &&Verdict| matches!(v, Verdict::Confirmed(None) | Verdict::Unknown { .. });
    assert_eq!(
        hanging.got.values().filter(confirmed).count(),
        hanging.got.len()
    );
    eventually("each was published once", async || {
        let there = [server.queue_len(&ill).await, server.queue_len(&well).await].map(u64::from);
        if there == [MANY, MANY / 5 * 4] {
            Ok(())
        } else {
            Err(format!("{there:?}"))
        }
    })
    .await;
    assert_eq!(lane.backlog(), 0);
    fixture.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn passing_messages_of_one_source_keep_their_order_and_hold_up_no_other_source() {
    let server = Rabbitmq::shared().await;
    let [ill, well] = two_queues(server).await;
    let fixture = RabbitmqFixture::new(server);
    let lanes = fixture.lanes();
    let lane = lanes.lane("");
    server.suspend_queue(&ill).await;
    let mut mixed = Submitter::default();
    let mut healthy = Submitter::default();
    // The second half of the mixed source stands behind more messages than its first queue may hold.
    for ticket in 0..2 * MANY {
        let key = if ticket < MANY { &ill } else { &well };
        mixed.submit(
            &*lane,
            ticket,
            key,
            message(format!("mixed-{ticket:05}")),
            None,
        );
    }
    for ticket in 0..MANY {
        let body = format!("healthy-{ticket:05}");
        healthy.submit(&*lane, ticket, &well, message(body), None);
    }
    let verdicts = healthy.collect(MANY as usize).await;
    assert!(verdicts.values().all(Verdict::is_confirmed));
    assert_eq!(u64::from(server.queue_len(&well).await), MANY);
    server.resume_queue(&ill).await;
    mixed.collect(2 * MANY as usize).await;
    for (queue, source, count) in [(&ill, "mixed", MANY), (&well, "mixed", MANY)] {
        let sink = DeliverySink::default();
        fixture.consume(&[queue], 1000, &sink);
        let mut seen = Vec::new();
        while seen.len() < count as usize {
            let caught = sink.catch(1).await;
            seen.extend(
                bodies(&caught)
                    .into_iter()
                    .filter(|body| body.starts_with(source)),
            );
            resolve(caught);
        }
        assert!(seen.is_sorted(), "{seen:?}");
    }
    fixture.drain().await;
}

/// How the two queues are reached.
#[derive(Clone, Copy)]
enum Wiring {
    Default,
    Direct,
    Topic,
}

/// Two queues of one exchange, and the routes to them.
struct Wired {
    ill: String,
    well: String,
    /// Ingress of one route to the healthy queue that allows the other one.
    both: String,
    /// Ingresses of a route to each.
    to_ill: String,
    to_well: String,
    exchange: String,
}

impl Wired {
    async fn new(server: &Rabbitmq, wiring: Wiring) -> Self {
        let [ill, well] = two_queues(server).await;
        let [both, to_ill, to_well, exchange] =
            ["both", "to-ill", "to-well", "x"].map(names::unique);
        for queue in [&both, &to_ill, &to_well] {
            server.declare_queue(queue, QueueKind::Classic).await;
        }
        let kind = match wiring {
            Wiring::Default => None,
            Wiring::Direct => Some(ExchangeKind::Direct),
            Wiring::Topic => Some(ExchangeKind::Topic),
        };
        let exchange = match kind {
            None => String::new(),
            Some(kind) => {
                server.declare_exchange(&exchange, kind).await;
                server.bind(&ill, &exchange, &ill).await;
                server.bind(&well, &exchange, &well).await;
                exchange
            }
        };
        Self {
            ill,
            well,
            both,
            to_ill,
            to_well,
            exchange,
        }
    }

    fn configure(&self, config: Config, n: usize) -> Config {
        let from = |queue: &str| format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#);
        let exchange = &self.exchange;
        let to = |key: &str| {
            format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{key}" }}"#)
        };
        let allow = format!("allow_targets = [\"{exchange}/{}\"]", self.ill);
        let two = "retry = { attempts = 2, initial = \"1s\" }";
        config
            .route(
                &format!("both{n}"),
                &from(&self.both),
                &to(&self.well),
                &allow,
            )
            .route(&format!("ill{n}"), &from(&self.to_ill), &to(&self.ill), "")
            .route(
                &format!("well{n}"),
                &from(&self.to_well),
                &to(&self.well),
                two,
            )
    }

    /// Messages to the healthy queue, by the ingress that they are sent to.
    fn healthy(&self, run: &Run, count: u64) -> Vec<(String, Vec<Message>)> {
        let message = |n: u64| {
            let when = [When::Now, When::Delay(0), When::Delay(500 + n)][n as usize % 3];
            run.message(&format!("rabbitmq:{}", self.well), when)
                .key(&self.well)
        };
        [&self.both, &self.to_well]
            .map(|source| (source.clone(), (0..count).map(message).collect()))
            .into()
    }

    /// A message of each kind to the queue that hangs. A passing one holds up its source, so it has one of its own.
    fn hanging(&self, run: &Run) -> Vec<(String, Vec<Message>)> {
        let message = |when| {
            run.message(&format!("rabbitmq:{}", self.ill), when)
                .key(&self.ill)
        };
        let name = format!("{}/{}", self.exchange, self.ill);
        let allowed = [When::Delay(0), When::Delay(500)]
            .map(|when| message(when).contract("x-delay-target", &name));
        let own = [When::Delay(0), When::Delay(500), When::Now].map(message);
        vec![
            (self.both.clone(), allowed.into()),
            (self.to_ill.clone(), own.into()),
        ]
    }
}

async fn send(run: &Run, server: &Rabbitmq, all: Vec<(String, Vec<Message>)>) {
    for (source, messages) in all {
        run.send_rabbitmq(server, "", Some(&source), messages).await;
    }
}

fn ids(all: &[(String, Vec<Message>)]) -> BTreeSet<Id> {
    let messages = all.iter().flat_map(|(_, messages)| messages);
    messages.map(|message| message.id().clone()).collect()
}

async fn all_arrive(run: &Run, ids: &BTreeSet<Id>) {
    eventually("the healthy queues get theirs", async || {
        let ledger = run.ledger();
        match ids.iter().filter(|id| !ledger.has_seen(id)).count() {
            0 => Ok(()),
            missing => Err(format!("{missing} of {} are missing", ids.len())),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_queue_that_hangs_costs_its_neighbours_nothing() {
    let (redis, server) = tokio::join!(Redis::shared(), Rabbitmq::shared());
    let run = Run::new();
    let mut config = Config::new(redis).rabbitmq("main", server);
    let mut all = Vec::new();
    for (n, wiring) in [Wiring::Default, Wiring::Direct, Wiring::Topic]
        .into_iter()
        .enumerate()
    {
        let wired = Wired::new(server, wiring).await;
        run.collect_rabbitmq(server, &wired.ill);
        run.collect_rabbitmq(server, &wired.well);
        config = wired.configure(config, n);
        all.push(wired);
    }
    let relay = Relay::start(&config).await;
    for wired in &all {
        server.suspend_queue(&wired.ill).await;
    }
    let mut healthy = BTreeSet::new();
    for wired in &all {
        for (messages, is_healthy) in [
            (wired.healthy(&run, 100), true),
            (wired.hanging(&run), false),
            (wired.healthy(&run, 600), true),
        ] {
            if is_healthy {
                healthy.extend(ids(&messages));
            }
            send(&run, server, messages).await;
        }
    }
    let sent = Instant::now();
    all_arrive(&run, &healthy).await;
    let took = sent.elapsed();
    assert!(
        took < BEFORE_TIME_OUT,
        "they waited {took:?}, as long as the confirms that do not come"
    );
    let reason = [("reason", "confirm_unknown")];
    eventually("the wait for the others is over", async || {
        let failures = relay
            .total("postdate_publish_failures_total", &reason)
            .await;
        if failures >= 12.0 {
            Ok(())
        } else {
            Err(format!("{failures}"))
        }
    })
    .await;
    for wired in &all {
        let messages = wired.healthy(&run, 100);
        healthy.extend(ids(&messages));
        send(&run, server, messages).await;
    }
    all_arrive(&run, &healthy).await;
    for wired in &all {
        server.resume_queue(&wired.ill).await;
    }
    run.drain(&relay).await;
    let explained = relay.total("postdate_redelivered_total", &[]).await;
    let report = run.report();
    report.assert_accounted(explained as usize);
    let innocents = report.repeated.keys().filter(|id| healthy.contains(id));
    assert_eq!(innocents.count(), 0, "healthy messages were repeated");
    for n in 0..all.len() {
        let route = format!("well{n}");
        let of_route = [("route", route.as_str())];
        for metric in ["postdate_redelivered_total", "postdate_dead_letters_total"] {
            let counted = relay.total(metric, &of_route).await;
            assert!(counted < 0.5, "{metric} of {route}: {counted}");
        }
    }
}
