//! Stores of 100,000 slices and more. Overdue ones of routes that cannot be served: what they cost Redis and the relay,
//! and whether another route is delivered in time beside them. Far ones on a slow link: how soon claims of the dead come
//! back and damage is found. `POSTDATE_BINARY` names an optimised relay, for figures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postdate::domain::{OnDuplicate, RouteName, UnixMs};
use postdate::store::WriteOp;
use redis::aio::MultiplexedConnection;

use crate::store::fixture::{StoreFixture, bundle, unnamed};
use crate::support::eventually::within;
use crate::support::proxy::Mode;
use crate::support::relay::other_binary;
use crate::support::run::now_ms;
use crate::support::{
    Config, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// Overdue slices of all routes together.
const SLICES: usize = 100_000;
/// Partitions of the store.
const PARTITIONS: usize = 64;
/// Operations of one call of the store at most.
const CALL: usize = 48;
/// Share of a core that those slices may cost Redis.
const MOST_OF_REDIS: f64 = 0.02;
/// Share of a core that they may cost an optimised relay.
const MOST_OF_RELAY: f64 = 0.02;
/// Time over which processor time is measured.
const WINDOW: Duration = Duration::from_secs(15);
/// Messages of the route beside, and the time between two of them.
const BESIDE: usize = 200;
const APART: Duration = Duration::from_millis(30);
/// Longest time until lost heads are made again: half of what a round of audits takes.
const COME_BACK: Duration = Duration::from_secs(30);
/// Longest time until claims of the dead are back beside audits of a large store.
const SWEEP_LIMIT: Duration = Duration::from_secs(15);
/// Longest time until all of a large store has been audited over a slow link (docs/store.md).
const AUDIT_LIMIT: Duration = Duration::from_secs(600);
/// Lateness that is no trouble on a busy machine, whatever it was before (ms).
const NO_TROUBLE_MS: i64 = 20;

/// Stores so many messages of these routes, each in a slice of its own among those of its route and partition: the
/// first of them due at a moment, the further ones a slice earlier (-1) or later (1) each.
async fn fill(
    fixture: &StoreFixture,
    routes: &[RouteName],
    slices: usize,
    (first, step): (UnixMs, i64),
) {
    let fills = fixture.store.partitions().all().map(|p| {
        let fixture = fixture.at(p);
        async move {
            let of_partition = (usize::from(p.0)..slices).step_by(PARTITIONS);
            let ops: Vec<WriteOp> = of_partition
                .map(|n| {
                    let at = n / PARTITIONS;
                    let due = first.plus(step * (((at / routes.len()) as i64) << 20));
                    let bundle = bundle(vec![unnamed(due, "x")]);
                    let route = routes[at % routes.len()].clone();
                    WriteOp::Store {
                        route,
                        on_duplicate: OnDuplicate::Keep,
                        bundle,
                    }
                })
                .collect();
            for call in ops.chunks(CALL) {
                fixture.write(call.to_vec()).await;
            }
        }
    });
    join_all(fills).await;
}

/// Processor seconds of Redis and of the relay so far.
async fn used(redis: &MultiplexedConnection, relay: &Relay) -> [f64; 2] {
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut redis.clone())
        .await
        .expect("its account");
    let of_thread = |line: &str| {
        line.split_once("_main_thread:")?
            .1
            .trim()
            .parse::<f64>()
            .ok()
    };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", relay.id())).expect("its account");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    [
        info.lines().filter_map(of_thread).sum(),
        ticks.sum::<f64>() / 100.0,
    ]
}

/// Shares of a core that both use over a while.
async fn shares(redis: &MultiplexedConnection, relay: &Relay) -> [f64; 2] {
    let began = Instant::now();
    let before = used(redis, relay).await;
    tokio::time::sleep(WINDOW).await;
    let after = used(redis, relay).await;
    let took = began.elapsed().as_secs_f64();
    [(after[0] - before[0]) / took, (after[1] - before[1]) / took]
}

/// Time that Redis has spent on each command so far, microseconds.
async fn commands(redis: &MultiplexedConnection) -> BTreeMap<String, u64> {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut redis.clone())
        .await
        .expect("its account");
    let of_command = |line: &str| {
        let (name, account) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let us = account
            .split(',')
            .find_map(|field| field.strip_prefix("usec="))?;
        Some((name.to_owned(), us.parse().ok()?))
    };
    info.lines().filter_map(of_command).collect()
}

/// The commands that took most of Redis's time between two accounts, and how many milliseconds a second each.
fn costliest(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<(String, f64)> {
    let more = |(name, us): (&String, &u64)| {
        let us = us - before.get(name).copied().unwrap_or(0);
        (name.clone(), us as f64 / 1e3 / WINDOW.as_secs_f64())
    };
    let mut all: Vec<(String, f64)> = after.iter().map(more).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(8);
    all
}

/// Sends some messages through the route beside, and answers how late the last of a hundred is, ms.
async fn lateness_ms(rabbitmq: &Rabbitmq, from: &str, to: &str) -> i64 {
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, to);
    for _ in 0..BESIDE {
        let message = run.message(&format!("rabbitmq:{to}"), When::At(600));
        run.send_rabbitmq(rabbitmq, "", Some(from), vec![message])
            .await;
        tokio::time::sleep(APART).await;
    }
    eventually("all have arrived", async || {
        match run.ledger().missing().len() {
            0 => Ok(()),
            missing => Err(format!("{missing} are missing")),
        }
    })
    .await;
    let mut late: Vec<i64> = run
        .ledger()
        .arrivals()
        .iter()
        .map(|(stamp, at_ms)| at_ms - stamp.due_ms)
        .collect();
    late.sort_unstable();
    late[late.len() * 99 / 100]
}

/// Overdue slices of one paused route, one whose target is away, and so many that are not configured.
async fn unserved(strangers: usize) {
    let (rabbitmq, redis) = tokio::join!(Rabbitmq::shared(), Redis::start());
    let far = Proxy::before(rabbitmq.port()).await;
    let fixture = StoreFixture::on(&redis, PARTITIONS as u16).await;
    let raw = redis.connection().await.expect("connected");
    let queues = [(); 4].map(|()| names::unique("scale"));
    let [paused, away, from, to] = &queues;
    for queue in &queues {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let lines = format!("url = \"{}\"", redis.url());
    let source = |queue: &str| format!("{{ rabbitmq = \"main\", queue = \"{queue}\" }}");
    let target = |connection: &str, queue: &str| {
        format!("{{ rabbitmq = \"{connection}\", exchange = \"\", routing_key = \"{queue}\" }}")
    };
    let url = format!("url = \"amqp://guest:guest@127.0.0.1:{}/%2f\"", far.port());
    let config = Config::under(&lines, &fixture.config.prefix)
        .rabbitmq("main", rabbitmq)
        .section(&format!("[rabbitmq.far]\n{url}"))
        .route("paused", &source(paused), &target("main", to), "")
        .route("away", &source(away), &target("far", to), "")
        .route("beside", &source(from), &target("main", to), "");
    let mut relay = Relay::spawn(&config, &[]);
    relay.ready().await;
    let answer = relay
        .request("POST", "/api/v1/routes/paused/pause", None, "{}")
        .await
        .expect("an answer");
    assert_eq!(answer.0, 200, "{answer:?}");
    far.set(Mode::Refuse);
    far.reset();
    let late_before = lateness_ms(rabbitmq, from, to).await;
    let before = shares(&raw, &relay).await;

    let routes: Vec<RouteName> = (0..strangers)
        .map(|n| format!("stranger-{n}"))
        .chain(["paused".to_owned(), "away".to_owned()])
        .map(|name| RouteName::new(&name).expect("a name"))
        .collect();
    let began = Instant::now();
    fill(
        &fixture,
        &routes,
        SLICES,
        (UnixMs(now_ms() - (1 << 20)), -1),
    )
    .await;
    let took = began.elapsed();
    // Rewriting the log of so many writes is not what is measured, nor is what begins with it.
    tokio::time::sleep(WINDOW).await;
    let commands_before = commands(&raw).await;
    let after = shares(&raw, &relay).await;
    let costliest = costliest(&commands_before, &commands(&raw).await);
    let more = [after[0] - before[0], after[1] - before[1]];
    #[allow(clippy::print_stdout, reason = "figures for whoever looks")]
    {
        let percent = |shares: [f64; 2]| shares.map(|share| format!("{:.2} %", share * 100.0));
        println!(
            "| {} routes, filled in {took:.1?} | Redis, relay |",
            routes.len()
        );
        println!("| before | {:?} | p99 {late_before} ms |", percent(before));
        println!("| after | {:?} |", percent(after));
        println!("| more | {:?} |", percent(more));
        println!("| commands, ms a second | {costliest:.1?} |");
    }
    let late_after = lateness_ms(rabbitmq, from, to).await;
    #[allow(clippy::print_stdout, reason = "figures for whoever looks")]
    {
        println!("| after | p99 {late_after} ms |");
    }
    assert!(
        late_after <= 2 * late_before.max(NO_TROUBLE_MS),
        "p99 {late_before} ms, then {late_after} ms"
    );
    assert!(
        more[0] <= MOST_OF_REDIS,
        "Redis: {before:?}, then {after:?}"
    );
    assert!(
        other_binary().is_none() || more[1] <= MOST_OF_RELAY,
        "the relay: {before:?}, then {after:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_heads_of_all_partitions_come_back_within_seconds() {
    let (rabbitmq, redis) = tokio::join!(Rabbitmq::shared(), Redis::start());
    let fixture = StoreFixture::on(&redis, PARTITIONS as u16).await;
    for p in fixture.store.partitions().all() {
        fixture
            .at(p)
            .keep(vec![unnamed(UnixMs(now_ms()), "x")])
            .await;
        let heads = fixture.at(p).key("heads");
        assert_eq!(fixture.command::<i64>(&["DEL", &heads]).await, 1);
    }
    let queues = [(); 2].map(|()| names::unique("scale"));
    let [from, to] = &queues;
    for queue in &queues {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let target = format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{to}\" }}");
    let config = Config::under(
        &format!("url = \"{}\"", redis.url()),
        &fixture.config.prefix,
    )
    .rabbitmq("main", rabbitmq)
    .route(
        "orders",
        &format!("{{ rabbitmq = \"main\", queue = \"{from}\" }}"),
        &target,
        "",
    );
    let relay = Relay::start(&config).await;
    let all = within(COME_BACK, async || {
        let published = relay.metrics().await?.sum("postdate_published_total", &[]) as usize;
        if published == PARTITIONS {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{published} published"))
        }
    });
    all.await
        .unwrap_or_else(|last| panic!("within {COME_BACK:?}: {last}"));
}

/// 64 partitions of 2,000 slices each, Redis 5 ms away, and in every partition a claim of a dead holder, a lost message
/// and lost counts: what comes back when, and whether the counts are right then.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: cargo test --test it scale:: -- --ignored --nocapture"]
async fn a_large_store_on_a_slow_link_is_swept_in_seconds_and_scrubbed_in_minutes() {
    const SLICES_EACH: usize = 2000;
    let (rabbitmq, redis) = tokio::join!(Rabbitmq::shared(), Redis::start());
    let link = Proxy::before(redis.port()).await;
    let fixture = StoreFixture::on(&redis, PARTITIONS as u16).await;
    let [from, to] = ["scale", "scale"].map(names::unique);
    for queue in [&from, &to] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let source = format!("{{ rabbitmq = \"main\", queue = \"{from}\" }}");
    let target = format!("{{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{to}\" }}");
    let config = Config::under(
        &format!("url = \"redis://127.0.0.1:{}\"", link.port()),
        &fixture.config.prefix,
    )
    .rabbitmq("main", rabbitmq)
    .route("far", &source, &target, "");
    let far = [RouteName::new("far").expect("a name")];
    fill(
        &fixture,
        &far,
        PARTITIONS * SLICES_EACH,
        (UnixMs(now_ms() + 86_400_000), 1),
    )
    .await;
    link.set(Mode::Delay(Duration::from_micros(2500)));
    let mut relay = Relay::spawn(&config, &[]);
    relay.ready().await;
    let began = Instant::now();
    for p in fixture.store.partitions().all() {
        let fixture = fixture.at(p);
        // Of a route that is not configured: what comes back stays.
        fixture.keep(vec![unnamed(UnixMs(now_ms()), "x")]).await;
        assert_eq!(fixture.claim(0).await.len(), 1);
        let blobs: Vec<String> = fixture.command(&["KEYS", &fixture.key("b:*")]).await;
        let lost = blobs
            .iter()
            .find(|key| key.contains("b:far/"))
            .expect("a blob");
        fixture.command::<()>(&["DEL", lost]).await;
        fixture
            .command::<()>(&["DEL", &fixture.key("counts")])
            .await;
    }
    let expired = async {
        let all = within(SWEEP_LIMIT, async || {
            let mut left = 0;
            for p in fixture.store.partitions().all() {
                let fixture = fixture.at(p);
                left += fixture
                    .command::<i64>(&["ZCARD", &fixture.key("claims")])
                    .await;
            }
            if left == 0 {
                Ok(began.elapsed())
            } else {
                Err(format!("{left} are still claimed"))
            }
        });
        all.await
            .unwrap_or_else(|last| panic!("within {SWEEP_LIMIT:?}: {last}"))
    };
    let audited = async {
        let all = within(AUDIT_LIMIT, async || {
            let metrics = relay.metrics().await.map_err(|error| error.to_string())?;
            let lost = metrics.sum("postdate_store_damage_total", &[("what", "lost")]) as usize;
            let counted = fixture
                .store
                .counts(&far)
                .await
                .map_err(|error| error.to_string())?;
            let counted = counted[&far[0]].messages;
            let is_right = lost == PARTITIONS && counted == (PARTITIONS * (SLICES_EACH - 1)) as i64;
            if is_right {
                Ok(began.elapsed())
            } else {
                Err(format!("{lost} lost, {counted} counted"))
            }
        });
        all.await
            .unwrap_or_else(|last| panic!("within {AUDIT_LIMIT:?}: {last}"))
    };
    let (expired, audited) = tokio::join!(expired, audited);
    #[allow(clippy::print_stdout, reason = "figures for whoever looks")]
    {
        println!(
            "| claims are back | {expired:.1?} |\n| all damage found, counts right | {audited:.0?} |"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: cargo test --test it scale:: -- --ignored --nocapture"]
async fn a_hundred_thousand_overdue_slices_of_three_routes_that_nobody_serves_cost_little() {
    unserved(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: cargo test --test it scale:: -- --ignored --nocapture"]
async fn a_hundred_thousand_overdue_slices_of_fifteen_hundred_routes_cost_little() {
    unserved(1498).await;
}
