//! Numbers that nobody could have written, in each key of `docs/store.md`, under a running relay: it lives, its other
//! routes deliver, and what is wrong is named, counted and taken away.

use postdate::domain::Partition;

use super::fixture::*;
use crate::support::{Config, QueueKind, Rabbitmq, Redis, Relay, eventually, names};

/// Numbers far beyond what any transition writes.
const NUMBERS: [&str; 7] = [
    "99999999999999999999",
    "1e300",
    "-1",
    "nan",
    "inf",
    "9223372036854775807",
    "3.7e15",
];
/// Counts as they stand at the end of a bundle's id: beyond any bundle, beyond memory, beyond 64 bits, none.
const COUNTS: [&str; 5] = ["dx", "zzzzzz", "zzzzzzzzzz", "3w5e11264sgsf", "0"];

/// What is planted, as commands with `KEY` for the beginning of the partition's keys.
fn plants(slice: &str) -> Vec<Vec<String>> {
    let mut plants: Vec<String> = Vec::new();
    for count in COUNTS {
        let id = format!("orders/{slice}/ad.3.{count}");
        plants.push(format!("ZADD KEYdue:orders/{slice} 5 {id}"));
        plants.push(format!("ZADD KEYclaims 5 {id}"));
        plants.push(format!("HSET KEYnames orders/absurd-{count} {id}_7"));
        for hash in ["tokens", "gone", "done", "expiries"] {
            plants.push(format!("HSET KEY{hash} {id} 1"));
        }
        plants.push(format!("SET KEYb:{id} PB"));
        plants.push(format!("ZADD KEYput_back 5 {id}"));
    }
    let id = format!("orders/{slice}/ad.4.2");
    for number in NUMBERS {
        for hash in ["tokens", "gone", "done", "expiries"] {
            plants.push(format!("HSET KEY{hash} {id} {number}"));
        }
        plants.push(format!(
            "HSET KEYcounts n:orders {number} b:orders {number} d:orders {number}"
        ));
        plants.push(format!("HSET KEYrates orders {number}"));
        plants.push(format!("HSET KEYsources kafka/a/b/c/0 {number}"));
        plants.push(format!("HSET KEYorder stamp {number} h:orders x_{number}"));
        plants.push(format!("HSET KEYnames orders/index {id}_{number}"));
        plants.push(format!("HSET KEYcalls nobody.c {number}_{number}_x"));
        if number.parse::<f64>().is_ok_and(|score| !score.is_nan()) {
            plants.push(format!("ZADD KEYidx {number} orders/{slice}"));
            plants.push(format!("ZADD KEYheads {number} orders/{slice}"));
            plants.push(format!("ZADD KEYclaims {number} {id}"));
            plants.push(format!(
                "ZADD KEYdead:orders {number} orders.attempts.0.n.{}",
                &number[..1]
            ));
        }
        plants.push(format!("ZADD KEYshelves 0 orders/{number}/{slice}"));
    }
    for score in ["-inf", "1.5", "-1e300"] {
        plants.push(format!("ZADD KEYdue:orders/{slice} {score} {id}"));
    }
    // A hundred times as many bits as any bundle has.
    plants.push(format!("HSET KEYgone {id} {}", "1".repeat(50_000)));
    let words = |plant: &String| {
        plant
            .split(' ')
            .map(|word| word.replace('_', " "))
            .collect::<Vec<_>>()
    };
    let spaced =
        |plant: &String| plant.starts_with("HSET KEYnames") || plant.starts_with("HSET KEYcalls");
    let plain = |plant: &String| plant.split(' ').map(str::to_owned).collect::<Vec<_>>();
    plants
        .iter()
        .map(|plant| {
            if spaced(plant) || plant.contains("x_") {
                words(plant)
            } else {
                plain(plant)
            }
        })
        .collect()
}

#[tokio::test]
async fn a_number_that_nobody_could_have_written_ends_nothing_and_is_taken_away() {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::shared());
    let prefix = names::unique("absurd");
    let route = |config: Config, name: &str, queue: &str| {
        let from = format!(r#"{{ rabbitmq = "main", queue = "{queue}-in" }}"#);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{queue}-out" }}"#);
        config.route(name, &from, &to, "")
    };
    let [orders, other] = ["orders", "other"].map(names::unique);
    for queue in [&orders, &other] {
        for end in ["in", "out"] {
            rabbitmq
                .declare_queue(&format!("{queue}-{end}"), QueueKind::Classic)
                .await;
        }
    }
    let config = Config::under(&format!("url = \"{}\"", redis.url()), &prefix)
        .redis("partitions = 2")
        .rabbitmq("main", rabbitmq);
    let relay = Relay::start(&route(route(config, "orders", &orders), "other", &other)).await;
    relay.unobserved("its store is damaged on purpose");
    let fixture = StoreFixture::of(config_of_relay(&redis, &prefix), &redis, 0).await;
    let send = async |route: &str, delay: &str| {
        let path = format!("/api/v1/routes/{route}/messages");
        let sent = relay
            .request("POST", &path, None, &format!(r#"{{"delay":"{delay}"}}"#))
            .await;
        assert_eq!(sent.expect("an answer").0, 202);
    };
    let slice = postdate::store::slice_of(past());
    let slice = (0..13)
        .rev()
        .map(|n| slice / 36u64.pow(n) % 36)
        .skip_while(|digit| *digit == 0);
    let slice: String = slice
        .map(|digit| char::from_digit(digit as u32, 36).expect("a digit"))
        .collect();
    let plants = plants(&slice);
    let (mut planted, mut probes) = (0, 0);
    for group in plants.chunks(plants.len().div_ceil(8)) {
        for plant in group {
            for p in [0, 1] {
                let key = fixture.at(Partition(p)).key("");
                let command: Vec<String> =
                    plant.iter().map(|word| word.replace("KEY", &key)).collect();
                let command: Vec<&str> = command.iter().map(String::as_str).collect();
                let _: redis::Value = fixture.command(&command).await;
                planted += 1;
            }
        }
        for route in ["orders", "other"] {
            send(route, "300ms").await;
        }
        probes += 1;
        for queue in [&orders, &other] {
            eventually("messages go on", async || {
                let arrived = rabbitmq.queue_len(&format!("{queue}-out")).await;
                if arrived >= probes {
                    Ok(())
                } else {
                    Err(format!("{arrived} of {probes}"))
                }
            })
            .await;
        }
    }
    println!("{planted} planted");
    eventually("a scrub has taken them away", async || {
        let mended = relay
            .total("postdate_store_damage_total", &[("what", "mended")])
            .await;
        let named = COUNTS
            .iter()
            .all(|count| relay.log().contains(&format!("ad.3.{count}")));
        let left: i64 = fixture
            .command(&["ZCARD", &fixture.key(&format!("due:orders/{slice}"))])
            .await;
        if mended >= 1.0 && named && left == 0 {
            Ok(())
        } else {
            Err(format!("{mended} {named} {left}"))
        }
    })
    .await;
    for route in ["orders", "other"] {
        let path = format!("/api/v1/messages?route={route}&limit=1000");
        relay.read(&path).await;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.id())).expect("it lives");
    println!(
        "{}",
        status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or("no peak")
    );
}

fn config_of_relay(redis: &Redis, prefix: &str) -> postdate::store::config::Config {
    config(&redis.url(), prefix, 2)
}
