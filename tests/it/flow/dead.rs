//! Dead letters from outside: full ones pause their route and lose nothing, invalid ones give way, all of them
//! end; what is redriven arrives, what is too large stays where it was.

use lapin::ExchangeKind;
use serde_json::{Value, json};

use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::wire::{Stamp, Wire, table, text};
use crate::support::relay::{Relay, binary};
use crate::support::run::now_ms;
use crate::support::{QueueKind, eventually, names};

const HASTY: &str = "retry = { attempts = 2, initial = \"50ms\", max = \"100ms\" }";

async fn post(relay: &Relay, act: &str, body: Value) -> Value {
    let path = format!("/api/v1/dead/{act}");
    let (status, answer) = relay
        .request("POST", &path, None, &body.to_string())
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).expect("JSON")
}

async fn dead(relay: &Relay, query: &str) -> Vec<Value> {
    let page = relay.read(&format!("/api/v1/dead?{query}")).await;
    page["items"].as_array().expect("items").clone()
}

fn results(answer: &Value) -> Vec<&str> {
    let items = answer["items"].as_array().expect("items");
    items
        .iter()
        .map(|item| item["result"].as_str().expect("a result"))
        .collect()
}

#[tokio::test]
async fn full_graves_pause_their_route_lose_nothing_and_redriven_ones_arrive() {
    let fixture = FlowFixture::new().await;
    for (from, to) in [(Side::Kafka, Side::Kafka), (Side::Quorum, Side::Classic)] {
        let path = Path::new(format!("full-{}-to-{}", from.word(), to.word()), from, to);
        let missing = names::unique("missing");
        let target = if to == Side::Kafka {
            missing.clone()
        } else {
            format!("{missing}/key")
        };
        fixture.open(std::slice::from_ref(&path)).await;
        let more = format!("allow_targets = [\"{target}\"]\n{HASTY}\ndead_letters = {{ max = 3 }}");
        let config =
            config(&fixture).route(&path.route, &path.source_text(), &path.target_text(), &more);
        let relay = Relay::start(&config).await;

        let message = |n: u32| {
            let plain = from.plain(&format!("{} | {n}", path.route), "k", b"v");
            plain
                .header("x-delay", "200")
                .header("x-delay-id", &format!("order-{n}"))
        };
        let hopeless: Vec<_> = (0..5)
            .map(|n| (message(n).header("x-delay-target", &target), now_ms()))
            .collect();
        fixture.send(&path, &hopeless).await;
        let route = [("route", path.route.as_str())];
        let paused = [("route", path.route.as_str()), ("reason", "dead_letters")];
        await_metric(&relay, "dead", &route, 3).await;
        await_metric(&relay, "ingress_paused", &paused, 1).await;
        // The other two are tried on, and are not lost.
        let tries = relay.total("postdate_publish_failures_total", &route).await;
        eventually("they are tried again", async || {
            let now = relay.total("postdate_publish_failures_total", &route).await;
            if now > tries + 4.0 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{now} of {tries} and more"))
            }
        })
        .await;
        await_metric(&relay, "dead", &route, 3).await;
        fixture.send(&path, &[(message(5), now_ms())]).await;

        let letters = dead(&relay, &format!("route={}", path.route)).await;
        assert_eq!(letters.len(), 3);
        for letter in &letters {
            assert_eq!(
                (&letter["reason"], &letter["attempt"]),
                (&json!("unknown_target"), &json!(2))
            );
            assert_eq!(
                (&letter["target"], &letter["size"]),
                (&json!(target), &json!(1))
            );
            assert_eq!(letter["history"].as_array().map(Vec::len), Some(2));
        }
        let first = &letters[0]["id"];
        let second = &letters[1]["dead_id"];
        let answer = post(
            &relay,
            "redrive",
            json!({ "ids": [first], "target": "nowhere/else" }),
        )
        .await;
        assert_eq!(results(&answer), ["refused"]);
        let behind = format!("{} | 5", path.route);
        assert!(
            !fixture.arrived().contains_key(&behind),
            "while it is full nothing of the route goes on"
        );

        fixture.make(to, &missing).await;
        fixture.collect(to, &missing).await;
        // While it is full those two cannot die; now they arrive, for they were not lost.
        await_metric(&relay, "published_total", &route, 2).await;
        let answer = post(
            &relay,
            "redrive",
            json!({ "ids": [first, second, "order-77"] }),
        )
        .await;
        assert_eq!(
            results(&answer)
                .iter()
                .filter(|r| **r == "redriven")
                .count(),
            2,
            "{answer}"
        );
        assert_eq!(
            results(&answer).iter().filter(|r| **r == "unknown").count(),
            1,
            "{answer}"
        );
        let rest = json!({ "filter": { "route": path.route, "reason": "unknown_target" } });
        assert_eq!(results(&post(&relay, "redrive", rest).await), ["redriven"]);
        let all: Vec<_> = (0..6).map(|n| format!("{} | {n}", path.route)).collect();
        fixture.await_cases(&all).await;
        await_metric(&relay, "dead", &route, 0).await;
        await_metric(&relay, "ingress_paused", &paused, 0).await;
        await_metric(&relay, "published_total", &route, 6).await;
        let arrived = fixture.arrived();
        let attempts: Vec<i64> = letters
            .iter()
            .map(|letter| {
                let n = letter["id"]
                    .as_str()
                    .and_then(|id| id.strip_prefix("order-"))
                    .expect("its name");
                let arrival = &arrived[&format!("{} | {n}", path.route)];
                assert_eq!(arrival.len(), 1, "each arrives once");
                let (Stamp { id, attempt, .. }, _) = arrival[0].wire.clone().take_stamp();
                assert_eq!(id.as_deref(), letter["id"].as_str());
                attempt.expect("it was tried before")
            })
            .collect();
        assert_eq!(attempts, [3, 3, 3], "x-delay-attempt goes on counting");
    }
}

#[tokio::test]
async fn messages_that_no_target_can_carry_give_way_too_and_pause_nothing() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("unfit", Side::Kafka, Side::Classic);
    fixture.open(std::slice::from_ref(&path)).await;
    let policy = format!("{HASTY}\ndead_letters = {{ max = 3 }}");
    let relay = Relay::start(&path.configure(config(&fixture), &policy)).await;
    // Names of headers that are longer than AMQP allows; half of the messages are delayed.
    let long_name = "n".repeat(300);
    let unfit = |n: u32| {
        let plain = path.from.plain("unfit", "k", b"v").header(&long_name, "v");
        (
            if n.is_multiple_of(2) {
                plain.header("x-delay", "100")
            } else {
                plain
            },
            now_ms(),
        )
    };
    fixture
        .send(&path, &(0..10).map(unfit).collect::<Vec<_>>())
        .await;
    let route = [("route", path.route.as_str())];
    let too_big = [
        ("route", path.route.as_str()),
        ("reason", "too_big_for_target"),
    ];
    await_metric(&relay, "dead_letters_total", &too_big, 10).await;
    let dropped = [
        ("route", path.route.as_str()),
        ("reason", "dead_letters_full"),
    ];
    await_metric(&relay, "dropped_total", &dropped, 7).await;
    await_metric(&relay, "dead", &route, 3).await;
    let well: Vec<String> = (0..5).map(|n| format!("well {n}")).collect();
    let good = well.iter().map(|case| {
        (
            path.from.plain(case, "k", b"v").header("x-delay", "100"),
            now_ms(),
        )
    });
    fixture.send(&path, &good.collect::<Vec<_>>()).await;
    fixture.await_cases(&well).await;
    await_metric(&relay, "ingress_paused", &route, 0).await;
}

#[tokio::test]
async fn invalid_ones_give_way_to_newer_ones_and_pause_nothing() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("giving-way", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let mut relay =
        Relay::start(&path.configure(config(&fixture), "dead_letters = { max = 4 }")).await;
    let invalid = |n: u32| {
        let body = format!("body {n}");
        (
            path.from
                .plain("invalid", "k", body.as_bytes())
                .header("x-delay", "soon"),
            now_ms(),
        )
    };
    fixture
        .send(&path, &(0..4).map(invalid).collect::<Vec<_>>())
        .await;
    let route = [("route", path.route.as_str())];
    await_metric(&relay, "dead", &route, 4).await;
    let before = dead(&relay, "body=true").await;
    assert_eq!(before[0]["history"][0]["reason"], "bad_delay");
    fixture
        .send(&path, &(4..10).map(invalid).collect::<Vec<_>>())
        .await;
    let well = path.from.plain("well", "k", b"v").header("x-delay", "100");
    fixture.send(&path, &[(well, now_ms())]).await;
    fixture.await_cases(&["well".to_owned()]).await;
    let dropped = [
        ("route", path.route.as_str()),
        ("reason", "dead_letters_full"),
    ];
    await_metric(&relay, "dropped_total", &dropped, 6).await;
    await_metric(&relay, "dead", &route, 4).await;
    await_metric(&relay, "ingress_paused", &route, 0).await;
    for letter in dead(&relay, "body=true").await {
        let n: u32 = letter["body"]
            .as_str()
            .and_then(|b| b[5..].parse().ok())
            .expect("its number");
        assert!(n >= 4, "the oldest went first: {letter}");
    }

    // By the command line: look, redrive what can go, drop the rest.
    let postdate = |line: &str| {
        let mut command = std::process::Command::new(binary());
        command
            .args(line.split(' '))
            .env("POSTDATE_URL", relay.url());
        let output = command.output().expect("it runs");
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("UTF-8"),
        )
    };
    let (code, exported) = postdate("dead export --reason bad_delay");
    assert_eq!((code, exported.lines().count()), (Some(0), 4), "{exported}");
    let first: Value =
        serde_json::from_str(exported.lines().next().expect("a line")).expect("JSON");
    let (code, out) = postdate(&format!(
        "dead redrive {}",
        first["dead_id"].as_str().expect("an id")
    ));
    assert_eq!(code, Some(0), "{out}");
    fixture.await_cases(&["invalid".to_owned()]).await;
    assert_eq!(postdate("dead drop --all").0, Some(64), "not without --yes");
    assert_eq!(postdate("dead drop --all --yes").0, Some(0));
    assert_eq!(dead(&relay, "").await.len(), 0);
    assert!(relay.terminate().await.success());
}

#[tokio::test]
async fn dead_letters_end_when_they_were_kept_long_enough() {
    let fixture = FlowFixture::new().await;
    let path = Path::new("short-lived", Side::Kafka, Side::Kafka);
    fixture.open(std::slice::from_ref(&path)).await;
    let relay =
        Relay::start(&path.configure(config(&fixture), "dead_letters = { keep = \"1s\" }")).await;
    let invalid = path
        .from
        .plain("invalid", "k", b"v")
        .header("x-delay", "soon");
    fixture
        .send(&path, &[(invalid.clone(), now_ms()), (invalid, now_ms())])
        .await;
    let labels = [
        ("route", path.route.as_str()),
        ("reason", "dead_letters_keep"),
    ];
    await_metric(&relay, "dropped_total", &labels, 2).await;
    await_metric(&relay, "dead", &[], 0).await;
}

#[tokio::test]
async fn what_is_over_max_message_stays_in_its_topic_or_goes_back_to_its_queue() {
    let fixture = FlowFixture::new().await;
    let more = "max_size = \"1KiB\"\ndead_letters = { max_message = \"2KiB\" }";
    let kafka = Path::new("large-from-kafka", Side::Kafka, Side::Kafka);
    let queue = Path::new("large-from-queue", Side::Classic, Side::Kafka);
    fixture.open(std::slice::from_ref(&kafka)).await;
    // A queue with a dead-letter exchange of its own.
    let graveyard = names::unique("graveyard");
    fixture.make(Side::Classic, &graveyard).await;
    let arguments = table([("x-dead-letter-exchange", text(&*graveyard))]);
    fixture
        .rabbitmq
        .declare_queue_with(&queue.ingress, QueueKind::Classic, arguments)
        .await;
    fixture
        .rabbitmq
        .declare_exchange(&queue.ingress, ExchangeKind::Fanout)
        .await;
    fixture
        .rabbitmq
        .bind(&queue.ingress, &queue.ingress, "")
        .await;
    for name in [&queue.target, &queue.other] {
        fixture.make(queue.to, name).await;
        fixture.collect(queue.to, name).await;
    }
    let config = queue.configure(kafka.configure(config(&fixture), more), more);
    let mut relay = Relay::start(&config).await;
    for path in [&kafka, &queue] {
        let of = |case: &str, bytes| {
            let case = format!("{} | {case}", path.route);
            (
                path.from
                    .plain(&case, "k", &vec![b'x'; bytes])
                    .header("x-delay", "100"),
                now_ms(),
            )
        };
        // Rejected ones at each end and between those that are kept.
        let messages = [
            of("a", 3000),
            of("b", 1),
            of("c", 3000),
            of("d", 1500),
            of("e", 1),
            of("f", 3000),
        ];
        fixture.send(path, &messages).await;
        fixture
            .await_cases(&["b", "e"].map(|case| format!("{} | {case}", path.route)))
            .await;
    }
    eventually("the queue has its own back", async || {
        match fixture.rabbitmq.queue_len(&graveyard).await {
            3 => Ok(()),
            n => Err(anyhow::anyhow!("{n} of 3")),
        }
    })
    .await;
    await_metric(&relay, "dead", &[("route", &queue.route)], 1).await;
    await_metric(&relay, "dead", &[("route", &kafka.route)], 4).await;
    let letters = dead(&relay, &format!("route={}&reason=too_big", kafka.route)).await;
    let left_out: Vec<_> = letters
        .iter()
        .filter(|letter| letter["left_out"] == json!(true))
        .collect();
    let offsets: Vec<_> = left_out
        .iter()
        .map(|letter| letter["position"]["offset"].as_i64())
        .collect();
    assert_eq!(offsets.iter().max(), Some(&Some(5)), "{letters:?}");
    assert_eq!((left_out.len(), letters.len()), (3, 4));
    for letter in letters {
        let answer = post(&relay, "redrive", json!({ "ids": [letter["dead_id"]] })).await;
        assert_eq!(
            results(&answer),
            ["refused"],
            "its body is not there, or too large still"
        );
    }
    assert!(relay.terminate().await.success());
    assert_eq!(
        fixture.rabbitmq.queue_len(&queue.ingress).await,
        0,
        "all of it was answered"
    );
}

#[tokio::test]
async fn what_dies_is_confirmed_by_dead_letter_to_before_it_counts_as_dead() {
    let fixture = FlowFixture::new().await;
    for (from, to) in [(Side::Kafka, Side::Kafka), (Side::Quorum, Side::Classic)] {
        let path = Path::new(format!("told-{}-to-{}", from.word(), to.word()), from, to);
        let [missing, graveyard] = ["missing", "graveyard"].map(names::unique);
        let text = |name: &str| {
            if to == Side::Kafka {
                name.to_owned()
            } else {
                format!("{name}/key")
            }
        };
        fixture.open(std::slice::from_ref(&path)).await;
        let more = format!(
            "allow_targets = [\"{}\"]\ndead_letter_to = \"{}\"\n{HASTY}",
            text(&missing),
            text(&graveyard)
        );
        let config =
            config(&fixture).route(&path.route, &path.source_text(), &path.target_text(), &more);
        let mut relay = Relay::start(&config).await;
        let case = |what: &str| format!("{} | {what}", path.route);
        let plain = |what: &str| from.plain(&case(what), "k", b"v");
        let lost = |what: &str| plain(what).header("x-delay-target", &text(&missing));
        let messages = [
            lost("waited")
                .header("x-delay", "100")
                .header("x-delay-id", "order-7"),
            lost("at once").header("x-delay", "0"),
            plain("invalid").header("x-delay", "soon"),
        ];
        fixture
            .send(&path, &messages.map(|wire| (wire, now_ms())))
            .await;
        let route = [("route", path.route.as_str())];
        // All three wait for the graveyard, and none counts as dead.
        await_metric(&relay, "pending", &route, 3).await;
        let tries = relay.total("postdate_publish_failures_total", &route).await;
        eventually("the graveyard is tried", async || {
            let now = relay.total("postdate_publish_failures_total", &route).await;
            if now > tries + 8.0 {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{now} of {tries} and more"))
            }
        })
        .await;
        await_metric(&relay, "dead", &route, 0).await;
        // They are in the store: a crash loses none.
        relay.restart().await;
        fixture.make(to, &graveyard).await;
        fixture.collect(to, &graveyard).await;
        fixture
            .await_cases(&["waited", "at once", "invalid"].map(case))
            .await;
        await_metric(&relay, "dead", &route, 3).await;
        await_metric(&relay, "pending", &route, 0).await;
        await_metric(&relay, "published_total", &route, 0).await;
        for (what, reason) in [
            ("waited", "unknown_target"),
            ("at once", "unknown_target"),
            ("invalid", "bad_delay"),
        ] {
            let arrival = fixture
                .arrived()
                .remove(&case(what))
                .expect("it arrived")
                .remove(0);
            assert_eq!(arrival.at, graveyard);
            let (stamp, wire) = arrival.wire.take_stamp();
            let named = (what == "waited").then_some("order-7");
            assert!(named.is_none() || stamp.id.as_deref() == named, "{stamp:?}");
            let shown = format!("{wire:?}");
            let told = match &wire {
                Wire::Kafka(record) => record.headers.contains(&(
                    "x-delay-dead-reason".to_owned(),
                    Some(reason.as_bytes().to_vec()),
                )),
                Wire::Amqp(amqp) => amqp
                    .headers
                    .inner()
                    .get("x-delay-dead-reason")
                    .is_some_and(|value| *value == super::wire::text(reason)),
            };
            assert!(told, "{what}: {shown}");
        }
        let letters = dead(&relay, "body=true").await;
        assert_eq!(letters.len(), 3);
        for letter in &letters {
            assert_eq!(letter["body"], "v");
            assert!(
                !letter["headers"].to_string().contains("x-delay-dead"),
                "kept as it came: {letter}"
            );
        }
        // Its name is its own again, and what it was for is there now.
        fixture.make(to, &missing).await;
        fixture.collect(to, &missing).await;
        let answer = post(&relay, "redrive", json!({ "ids": ["order-7"] })).await;
        assert_eq!(results(&answer), ["redriven"]);
        await_metric(&relay, "published_total", &route, 1).await;
        assert!(relay.terminate().await.success());
    }
}

/// A message that is redriven and dies again is a new dead letter. It is not redriven again by the same action, which would
/// never end.
#[tokio::test]
async fn an_action_on_many_redrives_each_once_though_they_die_again() {
    const ALL: u32 = 130;
    let fixture = FlowFixture::new().await;
    let path = Path::new("again".to_owned(), Side::Kafka, Side::Kafka);
    let missing = names::unique("missing");
    fixture.open(std::slice::from_ref(&path)).await;
    let more = format!(
        "allow_targets = [\"{missing}\"]\nretry = {{ attempts = 1, initial = \"50ms\", max = \"100ms\" }}"
    );
    let config =
        config(&fixture).route(&path.route, &path.source_text(), &path.target_text(), &more);
    let mut relay = Relay::start(&config).await;
    let messages: Vec<_> = (0..ALL)
        .map(|n| {
            let plain = Side::Kafka.plain(&format!("{} | {n}", path.route), "k", b"v");
            let message = plain
                .header("x-delay", "200")
                .header("x-delay-target", &missing);
            (message, now_ms())
        })
        .collect();
    fixture.send(&path, &messages).await;
    let route = [("route", path.route.as_str())];
    await_metric(&relay, "dead_letters_total", &route, ALL).await;
    let mut cursor = Value::Null;
    let mut redriven = 0;
    for call in 1.. {
        let mut body = json!({ "filter": { "route": path.route } });
        if cursor != Value::Null {
            body["cursor"] = cursor;
        }
        let answer = post(&relay, "redrive", body).await;
        redriven += results(&answer).len() as u32;
        await_metric(&relay, "dead_letters_total", &route, ALL + redriven).await;
        cursor = answer["next"].clone();
        if cursor == Value::Null {
            assert_eq!((call, redriven), (2, ALL));
            break;
        }
    }
    assert_eq!(
        dead(&relay, &format!("route={}&limit=1000", path.route))
            .await
            .len(),
        ALL as usize
    );
    assert!(relay.terminate().await.success());
}
