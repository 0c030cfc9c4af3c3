//! A late message counts from the moment it was asked for, and the reason is reported within seconds: a part
//! of `/readyz`, the same part as a metric, `status`, and one line of the log when it begins and one when it ends.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{accounted, logged};
use crate::fixture::four_routes;
use crate::support::eventually::within;
use crate::support::proxy::Mode;
use crate::support::run::now_ms;
use crate::support::{
    Config, Kafka, Proxy, QueueKind, Rabbitmq, Redis, Relay, Run, When, eventually, names,
};

/// Longest time until a reason is named, and what a busy machine may need on top.
const NAMED: Duration = Duration::from_secs(5 + 10);
/// By so much the gauge may be behind: a look each second, of a look each second, on a busy machine.
const BEHIND_MS: i64 = 5000;

async fn json(relay: &Relay, path: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&relay.get(path).await?.1)?)
}

/// The part of `/readyz` by this name; up: its `why` is null.
async fn part(relay: &Relay, name: &str) -> anyhow::Result<Value> {
    let ready = json(relay, "/readyz").await?;
    let parts = ready["parts"].as_array().cloned().unwrap_or_default();
    parts
        .into_iter()
        .find(|part| part["name"] == name)
        .ok_or_else(|| anyhow::anyhow!("no part {name}: {ready}"))
}

/// How late the gauge says that a route is, ms, and the API the same.
async fn late_ms(relay: &Relay, route: &str) -> anyhow::Result<i64> {
    let gauge = relay
        .metrics()
        .await?
        .sum("postdate_oldest_overdue_seconds", &[("route", route)]);
    let shown = json(relay, &format!("/api/v1/routes/{route}")).await?["oldest_overdue_s"].as_f64();
    let shown = shown.ok_or_else(|| anyhow::anyhow!("the API does not say"))?;
    anyhow::ensure!(
        (gauge - shown).abs() < 5.0,
        "one figure: {gauge} and {shown}"
    );
    Ok((gauge * 1e3) as i64)
}

/// Waits until a part is named within the time that it may take, and its metric says the same.
async fn named(relay: &Relay, name: &str, words: &str) {
    let found = within(NAMED, async || {
        let part = part(relay, name).await?;
        let why = part["why"].as_str().unwrap_or_default();
        let up = relay
            .metrics()
            .await?
            .sum("postdate_part_up", &[("part", name)]);
        let said = why.contains(words) && part["since"].is_string() && up < 0.5;
        if said {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{part}, part_up {up}"))
        }
    });
    found
        .await
        .unwrap_or_else(|last| panic!("{name} is named with {words:?}: {last}"));
}

/// A source, and a direct exchange to which the queue of the target is not bound yet.
struct Unbound {
    source: String,
    exchange: String,
    target: String,
}

async fn unbound(rabbitmq: &Rabbitmq) -> Unbound {
    let ends = Unbound {
        source: names::unique("q"),
        exchange: names::unique("x"),
        target: names::unique("q"),
    };
    for queue in [&ends.source, &ends.target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    rabbitmq
        .declare_exchange(&ends.exchange, lapin::ExchangeKind::Direct)
        .await;
    ends
}

/// Waits until a part is up again.
async fn up_again(relay: &Relay, name: &str) {
    eventually(&format!("{name} is up again"), async || {
        let part = part(relay, name).await?;
        if part["state"] == "up" {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{part}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_nine_times_counts_from_the_moment_it_was_asked_for() {
    let redis = Redis::shared().await;
    let rabbitmq = Rabbitmq::shared().await;
    let run = Run::new();
    let Unbound {
        source,
        exchange,
        target,
    } = unbound(rabbitmq).await;
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to =
        format!(r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{target}" }}"#);
    let retry = r#"retry = { attempts = 100, initial = "400ms", max = "2s" }"#;
    let config = Config::new(redis)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, retry);
    let mut relay = Relay::start(&config).await;
    run.collect_rabbitmq(rabbitmq, &target);
    let due_ms = now_ms() + 500;
    let message = run
        .message(&format!("rabbitmq:{target}"), When::Delay(500))
        .key(&target);
    run.send_rabbitmq(rabbitmq, "", Some(&source), vec![message])
        .await;

    let name = format!("target:main:{exchange}/{target}");
    named(&relay, &name, "unroutable").await;
    named(&relay, "route:one", "late: target:").await;
    let mut fallen = None;
    eventually("it has failed nine times", async || {
        let late = late_ms(&relay, "one").await?;
        let asked = now_ms() - due_ms;
        if late < asked - BEHIND_MS {
            fallen = Some(format!("{late} ms late, {asked} ms after it was asked for"));
        }
        let failed = relay
            .total("postdate_publish_failures_total", &[("route", "one")])
            .await;
        if failed >= 9.0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{failed} failures"))
        }
    })
    .await;
    assert_eq!(
        fallen, None,
        "the gauge never falls behind the moment that was asked for"
    );
    // A restart hides nothing: the moment stands in the store.
    relay.terminate().await;
    relay.restart().await;
    eventually("it is as late as before", async || {
        let late = late_ms(&relay, "one").await?;
        let asked = now_ms() - due_ms;
        if late >= asked - BEHIND_MS {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{late} of {asked}"))
        }
    })
    .await;

    eventually("what waits says why", async || {
        let waits = json(&relay, "/api/v1/messages?route=one").await?;
        let one = &waits["items"][0];
        let asked = one["asked_ms"].as_i64().unwrap_or(0);
        let said =
            one["last_error"]["reason"] == "unroutable" && one["failures"].as_u64() >= Some(9);
        if said && (asked - due_ms).abs() < 2000 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{waits}"))
        }
    })
    .await;
    let waits = json(&relay, "/api/v1/messages?route=one")
        .await
        .expect("a list");
    let id = waits["items"][0]["id"].as_str().expect("an id").to_owned();
    let mut show = std::process::Command::new(crate::support::relay::binary());
    show.args(["show", "--", &id])
        .env("POSTDATE_URL", relay.url());
    let shown = tokio::task::spawn_blocking(move || show.output())
        .await
        .expect("not cancelled")
        .expect("it runs");
    let shown = String::from_utf8(shown.stdout).expect("UTF-8");
    assert!(
        shown.contains(" publishes failed\nreceived ")
            && shown.contains("\nasked ")
            && shown.contains("\nfailures  "),
        "{shown}"
    );
    assert!(shown.contains(") unroutable: "), "{shown}");
    rabbitmq.bind(&target, &exchange, &target).await;
    accounted_one(&run, &relay).await;
    up_again(&relay, "route:one").await;
    up_again(&relay, &name).await;
    logged(
        &relay,
        &["trouble begins", "publishes failed", "trouble is over"],
    )
    .await;
    let lines = relay.log().matches("trouble begins").count();
    assert!(lines <= 2, "one line a life, not one a failure: {lines}");
}

/// A message of 12 MiB crosses a link of 1.5 MiB/s: nothing fails, and nothing of the route is in the store meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_read_and_does_not_get_into_the_store_is_named() {
    let redis = Redis::start().await;
    let rabbitmq = Rabbitmq::shared().await;
    let run = Run::new();
    let link = Proxy::before(redis.port()).await;
    let source = names::unique("q");
    let target = names::unique("q");
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let lines = format!("url = \"redis://127.0.0.1:{}\"", link.port());
    let config = Config::under(&lines, &names::unique("late"))
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "max_size = \"16MiB\"");
    let relay = Relay::start(&config).await;
    run.collect_rabbitmq(rabbitmq, &target);
    link.set(Mode::Rate(3 << 19));
    let label = format!("rabbitmq:{target}");
    let large = run
        .message(&label, When::Delay(500))
        .size(12 << 20)
        .random();
    let small = run.message(&label, When::Delay(500));
    run.send_rabbitmq(rabbitmq, "", Some(&source), vec![large, small])
        .await;
    named(&relay, "source:one", "neither stored nor published").await;
    // What one look has found and the next one has not is no line of the log.
    logged(&relay, &["trouble begins", "neither stored nor published"]).await;
    link.set(Mode::Pass);
    accounted_one(&run, &relay).await;
    up_again(&relay, "source:one").await;
    logged(
        &relay,
        &[
            "trouble begins",
            "neither stored nor published",
            "trouble is over",
        ],
    )
    .await;
}

async fn accounted_one(run: &Run, relay: &Relay) {
    run.drain(relay).await;
    run.report().assert_accounted(super::repeats(relay).await);
}

/// Both brokers, each stopped (it hangs: no connection is lost) with messages on their way to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_hangs_is_named_and_what_waits_for_it_is_late_from_its_due_time_on() {
    let (redis, mut kafka, mut rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::start(), Rabbitmq::start());
    let fixture = four_routes(redis, &kafka, &rabbitmq).await;
    let relay = Relay::start(&fixture.config).await;
    tokio::join!(
        fixture.send_kafka(&kafka, 120),
        fixture.send_rabbitmq(&rabbitmq, 120)
    );
    let mut sent = 400.0;
    for hangs in ["kafka", "rabbitmq"] {
        // What a broker that hangs keeps back is late too, and no relay can know of it.
        eventually("all of it is read", async || {
            let read = relay.total("postdate_admitted_total", &[]).await;
            if read >= sent {
                Ok(())
            } else {
                Err(format!("{read} of {sent}"))
            }
        })
        .await;
        if hangs == "kafka" {
            kafka.stop();
        } else {
            rabbitmq.stop();
        }
        let stopped = Instant::now();
        let routes = if hangs == "kafka" {
            ["k-k", "r-k"]
        } else {
            ["k-r", "r-r"]
        };
        if hangs == "rabbitmq" {
            assert!(
                !fixture.run.ledger().missing().is_empty(),
                "the stop must come in mid-flow"
            );
        }
        for route in routes {
            named(&relay, &format!("route:{route}"), "late: ").await;
            eventually(&format!("{route} is late since its due time"), async || {
                let late = late_ms(&relay, route).await?;
                let least = stopped.elapsed().as_millis() as i64;
                // Its first message was due within a second of the stop, or before.
                if late >= least - 1000 - BEHIND_MS && late >= 6000 {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{late} of {least}"))
                }
            })
            .await;
        }
        if hangs == "kafka" {
            kafka.cont();
        } else {
            rabbitmq.cont();
        }
        for route in routes {
            up_again(&relay, &format!("route:{route}")).await;
        }
        if hangs == "kafka" {
            fixture.send_rabbitmq(&rabbitmq, 120).await;
            fixture.send_kafka(&kafka, 120).await;
            sent += 400.0;
        }
    }
    accounted(&fixture, &relay).await;
    logged(&relay, &["trouble begins", "trouble is over"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_are_missing_and_publishing_that_is_paused_are_named() {
    let (redis, kafka, rabbitmq) =
        tokio::join!(Redis::shared(), Kafka::shared(), Rabbitmq::shared());
    let topic = names::unique("topic");
    let queue = names::unique("queue");
    let target = names::unique("target");
    let run = Run::new();
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    run.collect_rabbitmq(rabbitmq, &target);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let config = Config::new(redis)
        .kafka("main", kafka)
        .rabbitmq("main", rabbitmq)
        .route(
            "topic",
            &format!(r#"{{ kafka = "main", topic = "{topic}", group = "{topic}" }}"#),
            &to,
            "",
        )
        .route(
            "queue",
            &format!(r#"{{ rabbitmq = "main", queue = "{queue}" }}"#),
            &to,
            "",
        );
    let relay = Relay::start(&config).await;
    named(&relay, "source:topic", &topic).await;
    named(&relay, "source:queue", &queue).await;
    kafka.create_topic(&topic, 1).await;
    rabbitmq.declare_queue(&queue, QueueKind::Classic).await;
    up_again(&relay, "source:topic").await;
    up_again(&relay, "source:queue").await;

    let paused = relay
        .request(
            "POST",
            "/api/v1/routes/queue/pause",
            None,
            r#"{"only":"publishing"}"#,
        )
        .await;
    assert_eq!(paused.expect("paused").0, 200);
    let message = run
        .message(&format!("rabbitmq:{target}"), When::Delay(100))
        .key(&target);
    run.send_rabbitmq(rabbitmq, "", Some(&queue), vec![message])
        .await;
    named(&relay, "route:queue", "publishing is paused").await;
    let resumed = relay
        .request("POST", "/api/v1/routes/queue/resume", None, "{}")
        .await;
    assert_eq!(resumed.expect("resumed").0, 200);
    accounted_one(&run, &relay).await;
    up_again(&relay, "route:queue").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fills_up_is_told_before_it_takes_nothing_in() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let source = names::unique("q");
    let target = names::unique("q");
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
    let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
    let config = Config::new(&redis)
        .rabbitmq("main", rabbitmq)
        .route("one", &from, &to, "");
    let relay = Relay::start(&config).await;
    let mut raw = redis.connection().await.expect("connected");
    let mut limit = async |bytes: u64| {
        let set = redis::cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(bytes)
            .to_owned();
        set.query_async::<()>(&mut raw).await.expect("CONFIG SET");
    };
    let used = eventually("the memory is told", async || {
        let used = relay
            .metrics()
            .await
            .map_err(|e| e.to_string())?
            .sum("postdate_store_memory_bytes", &[]);
        if used > 0.0 {
            Ok(used as u64)
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    limit(used + used / 20).await;
    named(&relay, "store:room", "% of maxmemory").await;
    limit(1).await;
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &target);
    let message = run
        .message(&format!("rabbitmq:{target}"), When::Delay(3000))
        .key(&target);
    run.send_rabbitmq(rabbitmq, "", Some(&source), vec![message])
        .await;
    named(&relay, "source:one", "store").await;
    limit(0).await;
    up_again(&relay, "store:room").await;
    accounted_one(&run, &relay).await;
}

/// The three ways to a target: by the timer, straight from ingress since it was due on arrival, and passing through.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_refuses_is_named_by_whichever_way_its_messages_come() {
    let redis = Redis::shared().await;
    let rabbitmq = Rabbitmq::shared().await;
    let run = Run::new();
    let ways = [
        ("timer", When::Delay(500), ""),
        ("arrival", When::Delay(0), ""),
        ("passing", When::Now, ""),
        ("dropped", When::Now, r#"on_refused = "drop""#),
    ];
    let retry = r#"retry = { attempts = 100, initial = "400ms", max = "2s" }"#;
    let mut config = Config::new(redis).rabbitmq("main", rabbitmq);
    let mut paths = Vec::new();
    for (route, when, policy) in ways {
        let Unbound {
            source,
            exchange,
            target,
        } = unbound(rabbitmq).await;
        let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
        let to = format!(
            r#"{{ rabbitmq = "main", exchange = "{exchange}", routing_key = "{target}" }}"#
        );
        config = config.route(route, &from, &to, &format!("{retry}\n{policy}"));
        paths.push((route, when, source, exchange, target));
    }
    let relay = Relay::start(&config).await;
    for (_, when, source, exchange, target) in &paths {
        let message = run
            .message(&format!("rabbitmq:{target}"), *when)
            .key(target);
        run.send_rabbitmq(rabbitmq, "", Some(source), vec![message])
            .await;
        named(
            &relay,
            &format!("target:main:{exchange}/{target}"),
            "unroutable",
        )
        .await;
    }
    for (route, when, source, exchange, target) in &paths {
        rabbitmq.bind(target, exchange, target).await;
        let message = run
            .message(&format!("rabbitmq:{target}"), *when)
            .key(target);
        run.send_rabbitmq(rabbitmq, "", Some(source), vec![message])
            .await;
        up_again(&relay, &format!("target:main:{exchange}/{target}")).await;
        let failures = relay
            .total("postdate_publish_failures_total", &[("route", route)])
            .await;
        assert!(failures >= 1.0, "{route}");
    }
}

/// Every second and a half come as many messages as may leave in one second.
#[tokio::test]
async fn a_route_is_never_told_to_be_later_than_it_is_however_the_looks_fall() {
    let redis = Redis::start().await;
    let rabbitmq = Rabbitmq::shared().await;
    let [source, target] = ["source", "target"].map(names::unique);
    for queue in [&source, &target] {
        rabbitmq.declare_queue(queue, QueueKind::Classic).await;
    }
    let config = Config::new(&redis).rabbitmq("main", rabbitmq).route(
        "one",
        &format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#),
        &format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#),
        "rate = 50",
    );
    let relay = Relay::start(&config).await;
    relay.reads_all_sources().await;
    let run = Run::new();
    run.collect_rabbitmq(rabbitmq, &target);
    let label = format!("rabbitmq:{target}");
    let message = |n: u64| {
        let due_ms = 1_500 * (1 + n / 50);
        run.message(&label, When::At(due_ms)).key(&target)
    };
    let messages = (0..400).map(message).collect();
    run.send_rabbitmq(rabbitmq, "", Some(&source), messages)
        .await;
    let mut latest_ms = 0;
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        latest_ms = latest_ms.max(late_ms(&relay, "one").await.expect("asked"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    run.drain(&relay).await;
    let (_, _, truly_ms) = run.report().lateness_ms;
    let bound_ms = truly_ms as i64 + 500;
    assert!(
        latest_ms <= bound_ms,
        "told to be {latest_ms} ms late, and was {truly_ms} ms"
    );
}
