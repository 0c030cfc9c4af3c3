//! Hostile producers beside four routes that must not notice: floods of good messages and of badly shaped ones, with
//! the memory limit that the chart sets.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::common::lateness_p99_between;
use crate::outcome::Outcome;
use crate::scenario::{Scale, Scenario, Setup};
use crate::servers;
use crate::support::producers::kafka_producer;
use crate::support::relay::binary;
use crate::support::run::now_ms;
use crate::support::{MemoryLimit, QueueKind, Rabbitmq, eventually, names};

/// The chart's default limit.
const MEMORY: u64 = 512 << 20;
/// Time of the routes alone, whose lateness is the measure.
const CALM: Duration = Duration::from_secs(30);
const FLOOD: Duration = Duration::from_secs(120);
/// A flood comes in batches of so many messages, so often.
const BATCH: u64 = 8;
const PERIOD: Duration = Duration::from_millis(100);
const PARTITIONS: usize = 3;
/// A record that opens to this, from a batch of a few KB.
const BOMB: usize = 60 << 20;
/// How often headers come that nest.
const NESTED_PERIOD: Duration = Duration::from_secs(20);
/// Windows of the flood whose lateness is told apart: a burst shows in one of them alone.
const WINDOW_MS: i64 = 10_000;
/// Connections of the scanner of the admin port.
const SCANS: usize = 20;

/// A header's name and value, and a body.
struct Hostile {
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// What the hostile producers write to, and how.
struct Flood {
    topic: String,
    queue: String,
    producer: FutureProducer,
    channel: Channel,
    begun_ms: i64,
}

/// Good messages that cost as much as they can: large when opened, due in a month, all in one millisecond, named, in
/// groups of their own.
pub(super) async fn good(scale: Scale) -> Outcome {
    let kinds = |n: u64, begun_ms: i64| {
        let text = |name: &str, value: String| (name.to_owned(), value.into_bytes());
        let at_once = text("x-deliver-at", (begun_ms + 60_000).to_string());
        let far = text("x-delay", format!("{}s", 86_400 * 20 + n * 7));
        let (headers, size) = match n % 5 {
            0 => (vec![text("x-delay", "5s".to_owned())], 512 << 10),
            1 => (vec![far], 700),
            2 => (vec![at_once], 64 << 10),
            3 => (vec![far, text("x-delay-id", format!("flood-{n}"))], 100),
            _ => (
                vec![text("x-delay", format!("{}ms", 1000 + n % 60_000))],
                10,
            ),
        };
        Hostile {
            headers,
            body: vec![0; size],
        }
    };
    play(scale, kinds, async |_, _| {}).await
}

/// Badly shaped messages: headers that are no delays, too large, too many or nested without end; records that open to
/// far more than they are; and garbage on the admin port.
pub(super) async fn bad(scale: Scale) -> Outcome {
    let kinds = |n: u64, _: i64| {
        let text = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let (headers, size) = match n % 6 {
            0 => (vec![text("x-delay", "soon")], 2000),
            1 => (
                vec![
                    text("x-delay", "-1"),
                    ("large".to_owned(), vec![b'x'; 60_000]),
                ],
                10,
            ),
            2 => (
                (0..1000)
                    .map(|i| text(&format!("h{i}"), "v"))
                    .chain([text("x-delay", "")])
                    .collect(),
                10,
            ),
            3 => (vec![text("x-deliver-at", "9999-12-31T23:59:59Z")], 10),
            4 => (
                vec![
                    text("x-delay", "1s"),
                    ("x-delay-id".to_owned(), vec![0xff; 300]),
                ],
                10,
            ),
            _ => (
                vec![text("x-delay", "1s"), text("x-delay-target", "elsewhere")],
                900 << 10,
            ),
        };
        Hostile {
            headers,
            body: vec![0; size],
        }
    };
    play(scale, kinds, async |flood, ends| {
        let rabbitmq = &servers::rabbitmq().await.server;
        flood.bomb().await;
        while Instant::now() < ends {
            // The tool that publishes them takes a core for a second.
            nested(rabbitmq, &flood.queue).await;
            sleep_until((Instant::now() + NESTED_PERIOD).min(ends)).await;
        }
    })
    .await
}

/// Plays a flood of these messages, and `beside` until it ends.
async fn play(
    scale: Scale,
    message: impl Fn(u64, i64) -> Hostile,
    beside: impl AsyncFnOnce(&Flood, Instant),
) -> Outcome {
    let mut flood = Flood::open().await;
    let setup = Setup {
        replicas: 2,
        sections: flood.routes(),
        ..Setup::default()
    };
    let mut scenario = Scenario::start(scale, setup).await;
    let limits: Vec<MemoryLimit> = scenario
        .relays
        .iter()
        .filter_map(|relay| {
            let limit = MemoryLimit::new(MEMORY)?;
            limit.hold(relay.id());
            Some(limit)
        })
        .collect();
    scenario.under_load().await;
    let calm_ms = now_ms();
    sleep(CALM).await;
    scenario.inject(&scenario.all()).await;
    flood.begun_ms = now_ms();
    let ends = Instant::now() + FLOOD;
    let addresses = scenario
        .relays
        .iter()
        .map(|relay| admin_address(&relay.url()));
    let scanner = scan(addresses.collect(), ends);
    let (sent, (), ()) = tokio::join!(flood.send(message, ends), beside(&flood, ends), scanner);
    let flood_ends_ms = now_ms();
    scenario.healed();
    let kills: u64 = limits.iter().map(MemoryLimit::kills).sum();
    let peaks: Vec<u64> = limits.iter().map(|limit| limit.peak() >> 20).collect();
    scenario.limit(
        kills == 0,
        format!("{kills} replicas were killed for their memory"),
    );
    if kills > 0 {
        return scenario.close().await;
    }
    flood.clear(&scenario.relays[0].url()).await;
    scenario.account().await;

    scenario.precondition(
        limits.len() == scenario.relays.len(),
        "no limit on memory could be set",
    );
    scenario.precondition(sent > 1000, format!("only {sent} messages flooded"));
    for replica in scenario.all() {
        let ended = scenario.relays[replica].wait(Duration::ZERO).await;
        scenario.limit(
            ended.is_none(),
            format!("replica {replica} ended: {ended:?}"),
        );
    }
    let calm = lateness_p99_between(&scenario, calm_ms, flood.begun_ms);
    let flooded = lateness_p99_between(&scenario, flood.begun_ms, flood_ends_ms);
    let windows = (flood.begun_ms..flood_ends_ms).step_by(WINDOW_MS as usize);
    let by_window: Vec<_> = windows
        .map(|from| lateness_p99_between(&scenario, from, (from + WINDOW_MS).min(flood_ends_ms)))
        .collect();
    scenario.note(format!(
        "{sent} hostile messages; lateness p99 of the others {calm} ms before and {flooded} ms meanwhile, each {} s {by_window:?}; \
         memory at most {peaks:?} MiB",
        WINDOW_MS / 1000
    ));
    scenario.limit(
        flooded <= 2 * calm,
        format!("lateness p99 is {flooded} ms, and was {calm} ms without the flood"),
    );
    scenario.close().await
}

impl Flood {
    /// Makes the flooded topic and queue, their targets, and the ways to write to them.
    async fn open() -> Self {
        let (kafka, rabbitmq) = tokio::join!(servers::kafka(), servers::rabbitmq());
        let topic = names::unique("flooded");
        let queue = names::unique("flooded");
        // As docs/security.md advises for producers that nobody trusts: the broker opens what they compress.
        let uncompressed = [("compression.type", "uncompressed")];
        kafka
            .server
            .create_topic_with(&topic, PARTITIONS, &uncompressed)
            .await;
        kafka
            .server
            .create_topic(&format!("{topic}-bombed"), 1)
            .await;
        kafka
            .server
            .create_topic(&format!("{topic}-to"), PARTITIONS)
            .await;
        rabbitmq
            .server
            .declare_queue(&queue, QueueKind::Quorum)
            .await;
        rabbitmq
            .server
            .declare_queue(&format!("{queue}-to"), QueueKind::Classic)
            .await;
        let mut client = kafka.server.client();
        client
            .set("compression.type", "zstd")
            .set("message.max.bytes", "100000000");
        let connection = rabbitmq.server.connect().await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        Self {
            topic,
            queue,
            producer: kafka_producer(client),
            channel,
            begun_ms: 0,
        }
    }

    /// The sections of the flooded routes.
    fn routes(&self) -> String {
        let Self { topic, queue, .. } = self;
        let bombed = self.bombed();
        let bounds =
            "max_pending = 5000\nmax_pending_bytes = \"64MiB\"\ndead_letters = { max = 1000 }";
        format!(
            "[routes.flooded-k]\nfrom = {{ kafka = \"main\", topic = \"{topic}\", group = \"{topic}\" }}\n\
             to = {{ kafka = \"main\", topic = \"{topic}-to\" }}\n{bounds}\n\
             [routes.flooded-b]\nfrom = {{ kafka = \"main\", topic = \"{bombed}\", group = \"{bombed}\" }}\n\
             to = {{ kafka = \"main\", topic = \"{topic}-to\" }}\n{bounds}\n\
             [routes.flooded-r]\nfrom = {{ rabbitmq = \"main\", queue = \"{queue}\" }}\n\
             to = {{ rabbitmq = \"main\", exchange = \"\", routing_key = \"{queue}-to\" }}\n{bounds}\n"
        )
    }

    /// Sends to both until the end, and returns how many.
    async fn send(&self, message: impl Fn(u64, i64) -> Hostile, ends: Instant) -> u64 {
        let mut sent = 0;
        let mut tick = tokio::time::interval(PERIOD);
        let mut produced = JoinSet::new();
        while Instant::now() < ends {
            tick.tick().await;
            for n in sent..sent + BATCH {
                let hostile = message(n, self.begun_ms);
                if n.is_multiple_of(4) {
                    self.publish(&hostile).await;
                } else {
                    let producer = self.producer.clone();
                    let topic = self.topic.clone();
                    let partition = (n % PARTITIONS as u64) as i32;
                    produced.spawn(
                        async move { produce(&producer, &topic, partition, &hostile).await },
                    );
                }
            }
            sent += BATCH;
            // A broker that is slower than this slows the flood.
            while produced.len() > 10 * BATCH as usize {
                drop(produced.join_next().await);
            }
        }
        drop(produced.join_all().await);
        sent
    }

    async fn publish(&self, hostile: &Hostile) {
        let mut headers = FieldTable::default();
        for (name, value) in &hostile.headers {
            headers.insert(
                name.as_str().into(),
                AMQPValue::LongString(value.clone().into()),
            );
        }
        let properties = BasicProperties::default().with_headers(headers);
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish(
            "".into(),
            self.queue.as_str().into(),
            options,
            &hostile.body,
            properties,
        );
        drop(sent.await.expect("published").await);
    }

    /// The topic that takes what its producers compress.
    fn bombed(&self) -> String {
        format!("{}-bombed", self.topic)
    }

    /// Sends a record of zeros that stops its partition.
    async fn bomb(&self) {
        let body = vec![0; BOMB];
        let topic = self.bombed();
        let record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&topic).payload(&body[..]);
        self.producer
            .send(record, Duration::from_secs(30))
            .await
            .expect("a bomb that Kafka takes");
    }

    /// Takes away what the flooded routes hold, so that the accounts of the others can be closed.
    async fn clear(&self, url: &str) {
        for route in ["flooded-k", "flooded-b", "flooded-r"] {
            postdate(url, &["pause", route, "--only", "ingress"]).await;
            eventually("nothing of the flooded route is in the store", async || {
                postdate(url, &["purge", "--route", route, "--yes"]).await;
                postdate(url, &["dead", "drop", "--route", route, "--yes"]).await;
                let listed = postdate(url, &["pending", "--route", route]).await;
                if listed.lines().count() <= 1 {
                    Ok(())
                } else {
                    Err(listed)
                }
            })
            .await;
        }
    }
}

async fn produce(producer: &FutureProducer, topic: &str, partition: i32, hostile: &Hostile) {
    let headers = hostile
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: Some(value),
            })
        });
    let record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic)
        .payload(&hostile.body[..])
        .headers(headers)
        .partition(partition);
    if let Err((error, _)) = producer.send(record, Duration::from_secs(30)).await {
        println!("a message of the flood was not taken: {error}");
    }
}

/// Publishes headers that nest deep enough to end a careless reader, and names that are no text: from inside of the
/// broker, because no client of ours can.
async fn nested(rabbitmq: &Rabbitmq, queue: &str) {
    let publish = |properties: &str| {
        format!(
            "rabbit_basic:publish(rabbit_misc:r(<<\"/\">>, exchange, <<>>), <<\"{queue}\">>, {properties}, <<\"m\">>)"
        )
    };
    let deep = |depth: u32| {
        publish(&format!(
            "[{{headers, [(fun() -> {{T, C}} = lists:foldl(fun(_, V) -> {{array, [V]}} end, {{void, undefined}}, \
             lists:seq(1, {depth})), {{<<\"h\">>, T, C}} end)()]}}]"
        ))
    };
    let all = [
        deep(129),
        deep(1_500),
        deep(20_000),
        publish("[{headers, [{<<255>>, longstr, <<\"x\">>}]}]"),
    ];
    rabbitmq
        .ctl(&["eval", &format!("{}.", all.join(", "))])
        .await;
}

/// Runs a command against a relay, and returns what it prints.
async fn postdate(url: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(arguments).env("POSTDATE_URL", url);
    let ran = tokio::task::spawn_blocking(move || command.output()).await;
    let ran = ran.expect("not cancelled").expect("the command line");
    format!(
        "{}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    )
}

fn admin_address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://")
        .parse()
        .expect("the admin address")
}

/// Connects to the admin port again and again, and says what nobody understands.
async fn scan(addresses: Vec<SocketAddr>, ends: Instant) {
    let mut scans = JoinSet::new();
    for n in 0..SCANS {
        let address = addresses[n % addresses.len()];
        scans.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(n as u64);
            while Instant::now() < ends {
                if let Ok(mut connection) = TcpStream::connect(address).await {
                    let garbage: Vec<u8> = (0..rng.usize(1..4096)).map(|_| rng.u8(..)).collect();
                    // The relay may cut it off in the middle.
                    drop(connection.write_all(&garbage).await);
                    sleep(Duration::from_millis(rng.u64(10..500))).await;
                } else {
                    sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }
    sleep_until(ends).await;
    scans.join_all().await;
}
