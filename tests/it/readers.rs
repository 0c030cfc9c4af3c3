//! Two hundred who look with a read token, and one who acts: nobody waits for the crowd.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use futures_util::future::{join_all, try_join_all};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::support::{Config, Kafka, Redis, Relay, eventually};

const READ: &str = "canary-read-Pa55";
const WRITE: &str = "canary-write-Pa55";
const READERS: u8 = 200;
const WAITING: usize = 20_000;
/// Part of a reader's wait that a crowd may add to an action: on a slow machine both are longer. Where viewers and actors
/// wait in one queue it is all of it.
const SHARE: u32 = 2;

async fn produce(kafka: &Kafka, topic: &str, delay: &str, count: usize) {
    let producer: FutureProducer = kafka.client().create().expect("a producer");
    let send = |n: usize| {
        let id = format!("{delay}-{n}");
        let header = |key, value| Header {
            key,
            value: Some(value),
        };
        let headers = OwnedHeaders::new()
            .insert(header("x-delay", delay))
            .insert(header("x-delay-id", &*id));
        let record = FutureRecord::<(), _>::to(topic)
            .payload("body")
            .headers(headers);
        producer.send_result(record).expect("queued")
    };
    for begin in (0..count).step_by(1000) {
        let sent: Vec<_> = (begin..count.min(begin + 1000)).map(send).collect();
        let sent = try_join_all(sent).await.expect("produced");
        assert!(sent.iter().all(Result::is_ok));
    }
}

/// What the readers wait for an answer, each time.
type Waits = Arc<Mutex<Vec<Duration>>>;

/// Reads the list of what waits, over one connection from an address of its own, until it is told to stop.
async fn read_lists(relay: String, number: u8, waits: Waits, stop: Arc<AtomicBool>) {
    let address = relay
        .trim_start_matches("http://")
        .parse()
        .expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    let own = Ipv4Addr::new(127, 0, 1, number);
    socket.bind((own, 0).into()).expect("bound");
    let mut stream = socket.connect(address).await.expect("connected");
    let request = format!(
        "GET /api/v1/messages?limit=1000 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {READ}\r\n\r\n"
    );
    while !stop.load(Ordering::Acquire) {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("an answer"));
        }
        let head = String::from_utf8(head).expect("UTF-8").to_lowercase();
        let (_, length) = head.split_once("content-length: ").expect("a length");
        let length: usize = length
            .lines()
            .next()
            .expect("a line")
            .parse()
            .expect("a number");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.expect("a body");
        if head.starts_with("http/1.1 200") {
            waits.lock().expect("waits").push(began.elapsed());
        }
    }
}

/// The longest of three tries of each action.
async fn act(relay: &Relay, dead: &[String]) -> Vec<(&'static str, Duration)> {
    let mut longest = Vec::new();
    for (path, body) in [
        ("/routes/orders/purge", json!({ "dry_run": true })),
        ("/dead/redrive", json!({ "ids": dead, "delay": "1h" })),
        ("/routes/orders/pause", json!({ "only": "publishing" })),
        ("/routes/orders/resume", json!({})),
    ] {
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            let began = Instant::now();
            let path = format!("/api/v1{path}");
            let answer = relay
                .request("POST", &path, Some(WRITE), &body.to_string())
                .await;
            let (status, text) = answer.expect("an answer");
            assert_eq!(status, 200, "{path}: {text}");
            took = took.max(began.elapsed());
        }
        longest.push((path, took));
    }
    longest
}

#[tokio::test]
async fn two_hundred_who_look_keep_nobody_from_acting() {
    let kafka = Kafka::shared().await;
    let from = kafka.unique_topic("from", 4).await;
    let to = kafka.unique_topic("to", 1).await;
    let config = Config::new(Redis::shared().await)
        .kafka("main", kafka)
        .route(
            "orders",
            &format!("{{ kafka = \"main\", topic = \"{from}\", group = \"{from}\" }}"),
            &format!("{{ kafka = \"main\", topic = \"{to}\" }}"),
            "",
        );
    let tokens = [
        (
            "POSTDATE_ADMIN__READ_TOKENS",
            &*format!("[\"looker {READ}\"]"),
        ),
        (
            "POSTDATE_ADMIN__WRITE_TOKENS",
            &format!("[\"ann {WRITE}\"]"),
        ),
    ];
    let mut relay = Relay::start_with(&config, &tokens).await;
    produce(kafka, &from, "1h", WAITING).await;
    produce(kafka, &from, "soon", 6).await;
    let read = async |path: &str| -> anyhow::Result<Value> {
        let (_, text) = relay.request("GET", path, Some(READ), "").await?;
        Ok(serde_json::from_str(&text)?)
    };
    let dead: Vec<String> = eventually("all of it is stored", async || {
        let route = read("/api/v1/routes/orders").await?;
        let dead = read("/api/v1/dead").await?;
        let ids = dead["items"].as_array().into_iter().flatten();
        let ids: Vec<String> = ids
            .filter_map(|d| d["dead_id"].as_str().map(str::to_owned))
            .collect();
        if route["pending"] == WAITING && ids.len() == 6 {
            Ok(ids)
        } else {
            Err(anyhow!("{route}"))
        }
    })
    .await;
    let quiet = act(&relay, &dead[..3]).await;

    let (waits, stop) = <(Waits, Arc<AtomicBool>)>::default();
    let readers: Vec<_> = (1..=READERS)
        .map(|number| {
            let reader = read_lists(relay.url(), number, waits.clone(), stop.clone());
            tokio::spawn(reader)
        })
        .collect();
    eventually("the crowd is answered", async || {
        match waits.lock().expect("waits").len() {
            10.. => Ok(()),
            few => Err(anyhow!("{few} answers")),
        }
    })
    .await;
    let crowded = act(&relay, &dead[3..]).await;
    stop.store(true, Ordering::Release);
    let ended = join_all(readers).await;
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    let mut waits = waits.lock().expect("waits").clone();
    waits.sort_unstable();
    let wait = waits[waits.len() / 2];
    println!(
        "quiet {quiet:?}, beside {READERS} readers {crowded:?}; {} answers, of which half took {wait:?}",
        waits.len()
    );
    for ((path, alone), (_, beside)) in quiet.iter().zip(&crowded) {
        assert!(
            *beside <= *alone + wait / SHARE,
            "{path}: {alone:?} alone, {beside:?} beside readers who wait {wait:?}"
        );
    }
    assert!(relay.terminate().await.success());
}
