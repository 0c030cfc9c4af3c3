//! Policies that delay a route's messages or recognise them, over several replicas: pauses, rates, jitter, names
//! that are remembered.

use std::process::Command;

use anyhow::anyhow;

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::Wire;
use crate::support::run::now_ms;
use crate::support::{Relay, eventually, relay};

pub(crate) fn message(path: &Path, case: &str, headers: &[(&str, &str)]) -> (Wire, i64) {
    let plain = path.from.plain(case, "k", case.as_bytes());
    let wire = headers
        .iter()
        .fold(plain, |message, (name, value)| message.header(name, value));
    (wire, now_ms())
}

/// `postdate VERB ARGS` against this relay: what it printed.
async fn postdate(relay: &Relay, args: &[&str]) -> String {
    let mut command = Command::new(relay::binary());
    command
        .args(args)
        .env_clear()
        .env("POSTDATE_URL", relay.url());
    let output = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    let output = output.await.expect("no panic");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

async fn sum(relay: &Relay, name: &str, labels: &[(&str, &str)]) -> f64 {
    relay
        .metrics()
        .await
        .expect("metrics")
        .sum(&format!("postdate_{name}"), labels)
}

/// Waits until something that was due so long ago still waits.
async fn await_overdue(relay: &Relay, route: &str, seconds: f64) {
    eventually(
        &format!("something of {route} is {seconds} s overdue"),
        async || match sum(relay, "oldest_overdue_seconds", &[("route", route)]).await {
            overdue if overdue >= seconds => Ok(()),
            overdue => Err(anyhow!("{overdue} s")),
        },
    )
    .await;
}

/// Sends a message through each route, and waits until it has arrived and will not be read again.
async fn join(fixture: &FlowFixture, paths: &[Path]) {
    let case = |path: &Path| format!("{} joined", path.route);
    for path in paths {
        fixture.send(path, &[message(path, &case(path), &[])]).await;
    }
    fixture
        .await_cases(&paths.iter().map(case).collect::<Vec<_>>())
        .await;
    fixture.await_committed(paths).await;
}

#[tokio::test]
async fn a_paused_route_stands_still_on_every_replica_and_goes_on_where_it_stood() {
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("from-kafka", Side::Kafka, Side::Kafka),
        Path::new("from-rabbitmq", Side::Quorum, Side::Kafka),
        Path::new("beside", Side::Kafka, Side::Classic),
    ];
    fixture.open(&paths).await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, path| path.configure(config, ""));
    let mut relays = [Relay::start(&config).await, Relay::start(&config).await];
    join(&fixture, &paths).await;

    // Publishing, on one replica; the other one hears of it, and so does one that comes later.
    let held = &paths[..2];
    for path in held {
        let out = postdate(&relays[0], &["pause", &path.route, "--only", "publishing"]).await;
        assert_eq!(
            out,
            format!("{}: ingress running, publishing paused\n", path.route)
        );
        await_metric(
            &relays[1],
            "publishing_paused",
            &[("route", &path.route)],
            1,
        )
        .await;
    }
    relays[0].restart().await;
    for path in held {
        await_metric(
            &relays[0],
            "publishing_paused",
            &[("route", &path.route)],
            1,
        )
        .await;
        let case = |what: &str| format!("{} {what}", path.route);
        let delayed = message(path, &case("delayed"), &[("x-delay", "300")]);
        let due = message(path, &case("due already"), &[("x-delay", "0")]);
        let named = message(
            path,
            &case("named"),
            &[("x-delay", "200"), ("x-delay-id", "a")],
        );
        fixture
            .send(
                path,
                &[delayed, due, named, message(path, &case("passing"), &[])],
            )
            .await;
        for relay in &relays {
            await_metric(relay, "pending", &[("route", &path.route)], 3).await;
        }
    }
    let claims = async || {
        let mut all = 0.0;
        for relay in &relays {
            all += sum(relay, "store_seconds_count", &[("op", "claim")]).await;
        }
        all
    };
    await_overdue(&relays[1], "from-kafka", 1.0).await;
    let before = claims().await;
    await_overdue(&relays[0], "from-rabbitmq", 2.0).await;
    assert!(
        (claims().await - before).abs() < 0.5,
        "nobody tries to claim what is paused"
    );
    let beside = message(&paths[2], "beside goes on", &[("x-delay", "100")]);
    fixture.send(&paths[2], &[beside]).await;
    fixture.await_cases(&["beside goes on".to_owned()]).await;
    for path in held {
        assert_eq!(
            fixture.order_at(&path.target),
            [format!("{} joined", path.route)],
            "nothing leaves"
        );
        postdate(&relays[1], &["resume", &path.route]).await;
    }
    let all = held.iter().flat_map(|path| {
        ["delayed", "due already", "named", "passing"].map(|what| format!("{} {what}", path.route))
    });
    fixture.await_cases(&all.collect::<Vec<_>>()).await;

    // Ingress.
    for path in held {
        let url = format!("/api/v1/routes/{}/pause", path.route);
        let (status, body) = relays[1]
            .request("POST", &url, None, "{\"only\":\"ingress\"}")
            .await
            .expect("an answer");
        let begin = format!("{{\"route\":\"{}\",\"paused\":[\"ingress\"],", path.route);
        assert!(
            status == 200 && body.starts_with(&begin),
            "{status}: {body}"
        );
        for relay in &relays {
            let labels = [("route", path.route.as_str()), ("reason", "paused")];
            await_metric(relay, "ingress_paused", &labels, 1).await;
        }
        fixture
            .send(
                path,
                &[message(
                    path,
                    &format!("{} later", path.route),
                    &[("x-delay", "1")],
                )],
            )
            .await;
    }
    fixture
        .send(
            &paths[2],
            &[message(&paths[2], "beside reads on", &[("x-delay", "1")])],
        )
        .await;
    fixture.await_cases(&["beside reads on".to_owned()]).await;
    for path in held {
        let (_, body) = relays[0]
            .get(&format!("/api/v1/routes/{}", path.route))
            .await
            .expect("a route");
        assert!(body.contains("\"paused\":[\"paused\"]"), "{body}");
        assert_eq!(fixture.order_at(&path.target).len(), 5, "nothing is read");
        postdate(&relays[0], &["resume", &path.route, "--only", "ingress"]).await;
    }
    fixture
        .await_cases(
            &held
                .iter()
                .map(|path| format!("{} later", path.route))
                .collect::<Vec<_>>(),
        )
        .await;
    for (case, arrivals) in fixture.arrived() {
        assert_eq!(arrivals.len(), 1, "{case}");
    }
    for relay in &mut relays {
        assert!(relay.terminate().await.success(), "a clean end");
    }
}

/// Publish times on a path, ms, in order.
fn created(fixture: &FlowFixture, path: &Path) -> Vec<i64> {
    let arrived = fixture.arrived();
    let all = arrived
        .values()
        .flatten()
        .filter(|arrival| arrival.at == path.target);
    let mut created: Vec<i64> = all
        .map(|arrival| arrival.created_ms.expect("from Kafka"))
        .collect();
    created.sort_unstable();
    created
}

#[tokio::test]
async fn a_limited_route_keeps_its_rate_over_all_replicas_and_its_queue_is_the_store() {
    const MESSAGES: usize = 1500;
    const RATE: i64 = 100;
    const BURST: i64 = 20;
    let fixture = FlowFixture::new().await;
    let paths = [
        Path::new("limited", Side::Kafka, Side::Kafka),
        Path::new("limited-from-rabbitmq", Side::Classic, Side::Kafka),
        Path::new("unlimited", Side::Kafka, Side::Kafka),
    ];
    fixture.open(&paths).await;
    let more = format!("rate = {RATE}\nburst = {BURST}");
    let config = paths[..2].iter().fold(config(&fixture), |config, path| {
        path.configure(config, &more)
    });
    let config = paths[2].configure(config, "");
    let mut relays = [Relay::start(&config).await, Relay::start(&config).await];
    // All of them are due in one second; some, nameless ones, on arrival. All overdue messages of an hour's
    // outage look the same. They wait for each other in the store, however long a broker takes to take them.
    for path in &paths[..2] {
        postdate(&relays[0], &["pause", &path.route, "--only", "publishing"]).await;
        await_metric(
            &relays[1],
            "publishing_paused",
            &[("route", &path.route)],
            1,
        )
        .await;
        let headers = |n: usize| match n % 4 {
            0 => vec![("x-delay", "0".to_owned())],
            1 => vec![
                ("x-delay", "500".to_owned()),
                ("x-delay-id", format!("name-{n}")),
            ],
            _ => vec![("x-delay", "600".to_owned())],
        };
        let messages: Vec<_> = (0..MESSAGES)
            .map(|n| {
                let headers = headers(n);
                let headers: Vec<_> = headers
                    .iter()
                    .map(|(name, value)| (*name, value.as_str()))
                    .collect();
                message(path, &format!("{} {n}", path.route), &headers)
            })
            .collect();
        fixture.send(path, &messages).await;
    }
    for path in &paths[..2] {
        await_metric(
            &relays[0],
            "pending",
            &[("route", &path.route)],
            MESSAGES as u32,
        )
        .await;
        await_overdue(&relays[0], &path.route, 0.5).await;
    }
    for path in &paths[..2] {
        postdate(&relays[1], &["resume", &path.route]).await;
        fixture.await_cases(&[format!("{} 0", path.route)]).await;
    }
    let free: Vec<_> = (0..50)
        .map(|n| message(&paths[2], &format!("free {n}"), &[("x-delay", "100")]))
        .collect();
    fixture.send(&paths[2], &free).await;
    fixture
        .await_cases(&(0..50).map(|n| format!("free {n}")).collect::<Vec<_>>())
        .await;
    let waiting = paths[..2]
        .iter()
        .all(|path| created(&fixture, path).len() < MESSAGES);
    assert!(waiting, "what is not limited passes by what is");
    let shards = std::thread::available_parallelism()
        .expect("a number of cores")
        .get() as i64;
    for relay in &relays {
        let held = sum(relay, "in_flight", &[("route", "limited")]).await as i64;
        assert!(
            held <= shards * 3 * RATE,
            "two seconds' worth and a bundle at each shard: {held}"
        );
    }
    let cases = paths[..2]
        .iter()
        .flat_map(|p| (0..MESSAGES).map(move |n| format!("{} {n}", p.route)));
    fixture.await_cases(&cases.collect::<Vec<_>>()).await;

    for path in &paths[..2] {
        let created = created(&fixture, path);
        assert_eq!(created.len(), MESSAGES, "each once");
        // The bucket, and what each replica may have had in hand.
        let most = |window_ms: i64| BURST * 3 + (window_ms + 1) * RATE / 1000 + 1;
        for (from, first) in created.iter().enumerate() {
            for (to, last) in created.iter().enumerate().skip(from) {
                let n = (to - from + 1) as i64;
                let window_ms = last - first;
                assert!(
                    n <= most(window_ms),
                    "{}: {n} within {window_ms} ms",
                    path.route
                );
            }
        }
        let took = created[MESSAGES - 1] - created[0];
        println!(
            "{}: {MESSAGES} messages in {took} ms, the rate asks for {}",
            path.route,
            MESSAGES * 10
        );
    }
    for relay in &mut relays {
        assert!(relay.terminate().await.success(), "a clean end");
    }
}

#[tokio::test]
async fn a_slow_route_whose_head_is_long_due_makes_nobody_spin() {
    const MESSAGES: usize = 6;
    let fixture = FlowFixture::new().await;
    let path = Path::new("slow", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let mut relay = Relay::start(&path.configure(config(&fixture), "rate = 1")).await;
    let case = |n: usize| format!("slow {n}");
    let all: Vec<_> = (0..MESSAGES)
        .map(|n| message(&path, &case(n), &[("x-delay", "100")]))
        .collect();
    fixture.send(&path, &all).await;
    await_overdue(&relay, "slow", 2.0).await;
    fixture
        .await_cases(&(0..MESSAGES).map(case).collect::<Vec<_>>())
        .await;
    await_metric(&relay, "pending", &[("route", "slow")], 0).await;
    // A call each for a bundle, and for what two shards see at the same time; a spin makes thousands.
    let claims = sum(&relay, "store_seconds_count", &[("op", "claim")]).await;
    assert!(claims <= 10.0 * MESSAGES as f64, "{claims} claims");
    let leases = sum(&relay, "store_seconds_count", &[("op", "lease")]).await;
    assert!(leases <= 10.0 * MESSAGES as f64, "{leases} leases");
    assert!(relay.terminate().await.success(), "a clean end");
}

#[tokio::test]
async fn a_replica_that_dies_costs_a_limited_route_no_message_and_no_stop() {
    const MESSAGES: usize = 150;
    let fixture = FlowFixture::new().await;
    let path = Path::new("limited", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let config = path.configure(
        config(&fixture).section("[timer]\nclaim = \"2s\""),
        "rate = 50",
    );
    let mut relays = [Relay::start(&config).await, Relay::start(&config).await];
    let case = |n: usize| format!("limited {n}");
    let all: Vec<_> = (0..MESSAGES)
        .map(|n| message(&path, &case(n), &[("x-delay", "300")]))
        .collect();
    fixture.send(&path, &all).await;
    fixture
        .await_cases(&(0..1).map(case).collect::<Vec<_>>())
        .await;
    for relay in &mut relays {
        relay.kill9().await;
    }
    relays[1].restart().await;
    fixture
        .await_cases(&(0..MESSAGES).map(case).collect::<Vec<_>>())
        .await;
    await_metric(&relays[1], "pending", &[("route", "limited")], 0).await;
}

#[tokio::test]
async fn a_name_is_remembered_after_its_delivery() {
    let fixture = FlowFixture::new().await;
    let paths: Vec<(&str, Path)> = [
        ("keep", Side::Kafka, Side::Kafka),
        ("keep", Side::Quorum, Side::Classic),
        ("replace", Side::Classic, Side::Kafka),
    ]
    .into_iter()
    .map(|(policy, from, to)| {
        (
            policy,
            Path::new(format!("{}-{}-{policy}", from.word(), to.word()), from, to),
        )
    })
    .collect();
    fixture
        .open(
            &paths
                .iter()
                .map(|(_, path)| path.clone())
                .collect::<Vec<_>>(),
        )
        .await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, (policy, path)| {
            path.configure(
                config,
                &format!("dedupe = \"1h\"\non_duplicate = \"{policy}\""),
            )
        });
    let mut relay = Relay::start(&config).await;
    for (_, path) in &paths {
        let case = |what: &str| format!("{} {what}", path.route);
        let first = message(
            path,
            &case("first"),
            &[("x-delay", "300"), ("x-delay-id", "a")],
        );
        fixture.send(path, &[first]).await;
        fixture.await_cases(&[case("first")]).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
        await_metric(&relay, "in_flight", &[("route", &path.route)], 0).await;
    }
    fixture
        .await_committed(paths.iter().map(|(_, path)| path))
        .await;
    // What is remembered is remembered by the store.
    relay.restart().await;
    for (_, path) in &paths {
        let case = |what: &str| format!("{} {what}", path.route);
        let again: [(&str, &[(&str, &str)]); 6] = [
            ("again", &[("x-delay", "200"), ("x-delay-id", "a")]),
            ("due already", &[("x-delay", "0"), ("x-delay-id", "a")]),
            ("cancel", &[("x-delay-op", "cancel"), ("x-delay-id", "a")]),
            (
                "reschedule",
                &[
                    ("x-delay-op", "reschedule"),
                    ("x-delay", "10"),
                    ("x-delay-id", "a"),
                ],
            ),
            ("once more", &[("x-delay", "250"), ("x-delay-id", "a")]),
            ("another", &[("x-delay", "400"), ("x-delay-id", "b")]),
        ];
        let all: Vec<_> = again
            .iter()
            .map(|(what, headers)| message(path, &case(what), headers))
            .collect();
        fixture.send(path, &all).await;
        fixture.await_cases(&[case("another")]).await;
        let of = |op, result| {
            [
                ("route", path.route.as_str()),
                ("op", op),
                ("result", result),
            ]
        };
        await_metric(&relay, "duplicates_total", &[("route", &path.route)], 3).await;
        await_metric(&relay, "commands_total", &of("cancel", "published"), 1).await;
        let by_name = format!("/api/v1/routes/{}/messages/a", path.route);
        let (status, answer) = relay
            .request("DELETE", &by_name, None, "")
            .await
            .expect("an answer");
        assert_eq!(status, 409, "{answer}");
        assert!(answer.contains("\"published\""), "{answer}");
        await_metric(&relay, "commands_total", &of("cancel", "published"), 2).await;
        await_metric(&relay, "commands_total", &of("reschedule", "too_late"), 1).await;
        await_metric(&relay, "stored_total", &[("route", &path.route)], 1).await;
        await_metric(&relay, "pending", &[("route", &path.route)], 0).await;
    }
    assert!(relay.terminate().await.success(), "a clean end");
    let arrived = fixture.arrived();
    let wanted = paths
        .iter()
        .flat_map(|(_, path)| ["another", "first"].map(|w| format!("{} {w}", path.route)));
    let mut wanted: Vec<_> = wanted.collect();
    wanted.sort_unstable();
    assert_eq!(arrived.keys().cloned().collect::<Vec<_>>(), wanted);
    assert!(
        arrived.values().all(|arrivals| arrivals.len() == 1),
        "each once"
    );
}
