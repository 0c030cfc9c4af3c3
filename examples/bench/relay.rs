//! `scripts/bench relay`: how fast the relay stores, fires and does both at once, beside plain mirrors, and
//! how late it is, beside plain production and consumption.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::document::{self, Page, Row};
use crate::load::{fill_queue, fill_topic};
use crate::measure::{Count, Processes, Rate, median, middle, watch};
use crate::servers::Servers;
use crate::support::run::now_ms;
use crate::support::{Config, Kafka, QueueKind, Rabbitmq, Redis, Relay, folders, names};
use crate::{Scale, lateness, mirror};

/// Partitions of each topic.
pub const PARTITIONS: usize = 4;
/// The delay of all messages of an in-and-out run, counted from their arrival.
const DELAY: Duration = Duration::from_secs(1);

/// A measured rate, or why there is none.
type Measured = Result<Rate, String>;

/// Runs it all, prints the page, and keeps it where it is to be kept. Returns whether nothing is missing.
pub async fn bench(scale: Scale) -> bool {
    if let Err(error) = std::process::Command::new("redis-server").arg("--version").output() {
        println!("no redis-server here ({error}): nothing measured; run scripts/setup");
        return false;
    }
    let servers = Servers::start().await;
    let mut page = Page::new(&servers, scale);
    match &servers.kafka {
        Ok(kafka) => {
            through_kafka(&servers.redis, kafka, scale, &mut page).await;
            lateness::bench(&servers.redis, kafka, scale, &mut page).await;
        }
        Err(missing) => page.missing("Kafka", missing),
    }
    match &servers.rabbitmq {
        Ok(rabbitmq) => through_rabbitmq(&servers.redis, rabbitmq, scale, &mut page).await,
        Err(missing) => page.missing("RabbitMQ", missing),
    }
    let text = page.text();
    println!("{text}");
    if scale.kept && page.is_whole() {
        document::keep("relay", &text);
    }
    page.is_whole()
}

fn say(what: &str, measured: &Measured) {
    match measured {
        Ok(rate) => println!("{what}: {:.0} a second", rate.per_second),
        Err(why) => println!("{what}: {why}"),
    }
}

/// Collects rounds of one kind.
#[derive(Default)]
struct Rounds(BTreeMap<&'static str, Vec<Measured>>);

impl Rounds {
    fn add(&mut self, what: &'static str, measured: Measured) {
        say(what, &measured);
        self.0.entry(what).or_default().push(measured);
    }

    /// The median of a kind, if all its rounds succeeded.
    fn median(&mut self, what: &str) -> Measured {
        let rounds = self.0.remove(what).unwrap_or_default();
        rounds.into_iter().collect::<Result<Vec<_>, _>>().map(median)
    }
}

async fn through_kafka(redis: &Redis, kafka: &Kafka, scale: Scale, page: &mut Page) {
    let source = kafka.unique_topic("source", PARTITIONS).await;
    let delay = DELAY.as_millis().to_string();
    tokio::task::block_in_place(|| fill_topic(kafka, &source, scale.kafka, ("x-delay", &delay)));
    let mut rounds = Rounds::default();
    for _ in 0..scale.rounds {
        rounds.add("kafka mirror", kafka_mirror(redis, kafka, &source, scale).await);
        let (rate, commands) = kafka_in_and_out(redis, kafka, &source, scale).await;
        rounds.add("kafka in and out", rate);
        page.commands(commands);
        let (store, fire) = kafka_store_and_fire(redis, kafka, scale).await;
        rounds.add("kafka store", store);
        rounds.add("kafka fire", fire);
    }
    kafka.delete_topic(&source).await;
    let mirror = rounds.median("kafka mirror");
    for (key, what) in [
        ("kafka store", "Kafka: store (all due later)"),
        ("kafka fire", "Kafka: fire (all due at one moment)"),
        ("kafka in and out", "Kafka -> Kafka: in and out (each 1 s later)"),
    ] {
        page.row(Row { what, measured: rounds.median(key), beside: mirror.clone().ok() });
    }
    page.row(Row { what: "Kafka -> Kafka: plain mirror", measured: mirror, beside: None });
}

async fn kafka_mirror(redis: &Redis, kafka: &Kafka, source: &str, scale: Scale) -> Measured {
    let target = kafka.unique_topic("target", PARTITIONS).await;
    let count = Count::topic(kafka, &target, PARTITIONS);
    let mut child = mirror::start(&folders::new("mirror"), "kafka", &kafka.bootstrap(), source, &target);
    let of = Processes { moves: child.id(), broker: kafka.id(), redis: redis.id() };
    let looks = watch(&count, scale.kafka, of).await;
    child.assert_running();
    drop(child);
    kafka.delete_topic(&target).await;
    looks.map(|looks| middle(&looks, scale.kafka))
}

/// A relay with one route between two topics.
pub fn kafka_route(redis: &Redis, kafka: &Kafka, source: &str, target: &str) -> Relay {
    let from = format!(r#"{{ kafka = "main", topic = "{source}", group = "{target}" }}"#);
    let to = format!(r#"{{ kafka = "main", topic = "{target}" }}"#);
    let config = Config::new(redis).kafka("main", kafka);
    Relay::spawn(&config.route("bench", &from, &to, "delay_from = \"arrival\""), &[])
}

/// From the first message stored to the last one published, the delay subtracted.
async fn in_and_out(relay: &Relay, out: &Count<'_>, messages: u64, of: Processes) -> Measured {
    let begin = watch(&Count::stored(relay), 1, of).await?;
    let (begin, looks) = (begin[begin.len() - 1], watch(out, messages, of).await?);
    let end = looks[looks.len() - 1];
    let seconds = end.at.duration_since(begin.at).saturating_sub(DELAY).as_secs_f64().max(0.001);
    Ok(Rate::between(&begin, &end, seconds, messages))
}

async fn kafka_in_and_out(
    redis: &Redis,
    kafka: &Kafka,
    source: &str,
    scale: Scale,
) -> (Measured, Vec<Command>) {
    let target = kafka.unique_topic("target", PARTITIONS).await;
    let count = Count::topic(kafka, &target, PARTITIONS);
    reset_commands(redis).await;
    let mut relay = kafka_route(redis, kafka, source, &target);
    let of = Processes { moves: relay.id(), broker: kafka.id(), redis: redis.id() };
    let rate = in_and_out(&relay, &count, scale.kafka, of).await;
    let commands = commands(redis, scale.kafka).await;
    relay.terminate().await;
    kafka.delete_topic(&target).await;
    (rate, commands)
}

/// All are due at one moment, which comes after the last of them has been stored.
async fn kafka_store_and_fire(redis: &Redis, kafka: &Kafka, scale: Scale) -> (Measured, Measured) {
    let source = kafka.unique_topic("source", PARTITIONS).await;
    let target = kafka.unique_topic("target", PARTITIONS).await;
    let count = Count::topic(kafka, &target, PARTITIONS);
    // For filling, starting and storing together; a slower machine is told so below.
    let due_ms = now_ms() + 8_000 + scale.kafka as i64 / 20;
    let due = due_ms.to_string();
    tokio::task::block_in_place(|| fill_topic(kafka, &source, scale.kafka, ("x-deliver-at", &due)));
    let mut relay = kafka_route(redis, kafka, &source, &target);
    let of = Processes { moves: relay.id(), broker: kafka.id(), redis: redis.id() };
    let stored = watch(&Count::stored(&relay), scale.kafka, of).await;
    let in_time = now_ms() < due_ms - 250;
    let fired = match &stored {
        Ok(_) if in_time => {
            let wait = (due_ms - now_ms() - 250).max(0) as u64;
            tokio::time::sleep(Duration::from_millis(wait)).await;
            watch(&count, scale.kafka, of).await
        }
        Ok(_) => Err("was not stored before it fell due: too slow here for this count".to_owned()),
        Err(why) => Err(why.clone()),
    };
    relay.terminate().await;
    kafka.delete_topic(&source).await;
    kafka.delete_topic(&target).await;
    let middle = |looks: Vec<_>| middle(&looks, scale.kafka);
    (stored.map(middle), fired.map(middle))
}

async fn through_rabbitmq(redis: &Redis, rabbitmq: &Rabbitmq, scale: Scale, page: &mut Page) {
    let mut rounds = Rounds::default();
    for _ in 0..scale.rounds {
        rounds.add("rabbitmq mirror", rabbitmq_run(redis, rabbitmq, scale, false).await);
        rounds.add("rabbitmq in and out", rabbitmq_run(redis, rabbitmq, scale, true).await);
    }
    let mirror = rounds.median("rabbitmq mirror");
    let what = "RabbitMQ -> RabbitMQ: in and out (each 1 s later)";
    let measured = rounds.median("rabbitmq in and out");
    page.row(Row { what, measured, beside: mirror.clone().ok() });
    page.row(Row { what: "RabbitMQ -> RabbitMQ: plain mirror", measured: mirror, beside: None });
}

async fn rabbitmq_run(redis: &Redis, rabbitmq: &Rabbitmq, scale: Scale, delayed: bool) -> Measured {
    let (source, target) = (names::unique("source"), names::unique("target"));
    rabbitmq.declare_queue(&source, QueueKind::Classic).await;
    rabbitmq.declare_queue(&target, QueueKind::Classic).await;
    fill_queue(rabbitmq, &source, scale.rabbitmq, DELAY).await;
    let count = Count::queue(rabbitmq, &target).await;
    let of = |moves| Processes { moves, broker: rabbitmq.id(), redis: redis.id() };
    let rate = if delayed {
        let from = format!(r#"{{ rabbitmq = "main", queue = "{source}" }}"#);
        let to = format!(r#"{{ rabbitmq = "main", exchange = "", routing_key = "{target}" }}"#);
        let config = Config::new(redis).rabbitmq("main", rabbitmq).route("bench", &from, &to, "");
        let mut relay = Relay::spawn(&config, &[]);
        let rate = in_and_out(&relay, &count, scale.rabbitmq, of(relay.id())).await;
        relay.terminate().await;
        rate
    } else {
        let mut child = mirror::start(&folders::new("mirror"), "rabbitmq", &rabbitmq.url(), &source, &target);
        let looks = watch(&count, scale.rabbitmq, of(child.id())).await;
        child.assert_running();
        looks.map(|looks| middle(&looks, scale.rabbitmq))
    };
    rabbitmq.delete_queue(&source).await;
    rabbitmq.delete_queue(&target).await;
    rate
}

/// A command of Redis in a run: its name, calls for a thousand messages, microseconds of a call.
pub type Command = (String, f64, f64);

async fn reset_commands(redis: &Redis) {
    let mut connection = redis.connection().await.expect("a connection");
    redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut connection).await.expect("redis answers");
}

/// Those that took most, first.
async fn commands(redis: &Redis, messages: u64) -> Vec<Command> {
    let mut connection = redis.connection().await.expect("a connection");
    let text: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.expect("redis answers");
    let mut commands: Vec<Command> = text.lines().filter_map(|line| command(line, messages)).collect();
    commands.sort_by(|a, b| (b.1 * b.2).total_cmp(&(a.1 * a.2)));
    commands
}

/// `cmdstat_set:calls=12,usec=34,usec_per_call=2.83,...`
fn command(line: &str, messages: u64) -> Option<Command> {
    let (name, values) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let value = |name: &str| {
        let found = values.split(',').find_map(|value| value.strip_prefix(name)?.strip_prefix('='));
        found.and_then(|number| number.parse::<f64>().ok())
    };
    Some((name.to_owned(), value("calls")? * 1000.0 / messages as f64, value("usec_per_call")?))
}
