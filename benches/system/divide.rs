//! Measures how work divides over 1, 2 and 4 replicas before one Redis, and over 1, 2 and 3 shards of a Redis Cluster
//! behind two replicas. Bar 17: the work of each node and each replica is within a fifth of its even share.
//!
//! One machine runs everything, so only shares are measured: rates would mean nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;

use crate::load::{Load, fill_topic};
use crate::measure::{MessageCount, Processes, middle, redis_cpu, watch};
use crate::report::{BarLimit, Report};
use crate::servers::{Servers, TOPIC_PARTITIONS, kafka_route};
use crate::support::{Config, Kafka, Redis, Relay, ports};
use crate::{Scale, machine};

/// Delay of each message from its arrival, ms.
const DELAY_MS: u64 = 2_000;
/// Longest time that replicas may take to share ingress and store.
const SHARING_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the sharing is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Slots of a cluster.
const CLUSTER_SLOTS: usize = 16_384;
/// Share by which the work of a node or a replica may differ from an even one.
const MAX_SPREAD: f64 = 0.2;

/// Replicas and shards (none: one server without a cluster), and what it is called.
type Layout = (usize, usize, &'static str);

const LAYOUTS: [Layout; 6] = [
    (1, 0, "1 replica, one Redis"),
    (2, 0, "2 replicas, one Redis"),
    (4, 0, "4 replicas, one Redis"),
    (2, 1, "2 replicas, 1 shard"),
    (2, 2, "2 replicas, 2 shards"),
    (2, 3, "2 replicas, 3 shards"),
];
/// Layouts of a quick run: one without a cluster, one with.
const QUICK_LAYOUTS: &[Layout] = &[LAYOUTS[1], LAYOUTS[4]];

pub async fn bench(servers: &Servers, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let kafka = servers.kafka().await?;
    let layouts = if scale.quick { QUICK_LAYOUTS } else { &LAYOUTS };
    for _ in 0..scale.rounds {
        for &(replicas, shards, what) in layouts {
            let nodes = match shards {
                0 => vec![servers.redis(false).await?],
                _ => cluster(shards).await?,
            };
            let used = run(kafka, &nodes, shards > 0, replicas, scale).await?;
            used.tell(report, what);
        }
    }
    let rows: Vec<(&str, &str)> = layouts.iter().map(|&(_, _, what)| (what, what)).collect();
    report.table(
        "a message, all together",
        &rows,
        &[
            ("commands", "Redis commands"),
            ("redis", "Redis CPU us"),
            ("relays", "relays' CPU us"),
            ("rate", "messages/s"),
        ],
    );
    report.table(
        "furthest from even, %",
        &rows,
        &[
            ("node commands", "commands a node"),
            ("node cpu", "CPU a node"),
            ("replica stored", "stored a replica"),
            ("replica published", "published a replica"),
            ("replica cpu", "CPU a replica"),
        ],
    );
    for &(replicas, shards, what) in layouts {
        let nodes = [
            ("node commands", "Redis commands"),
            ("node cpu", "Redis CPU"),
        ];
        let relays = [
            ("replica published", "messages published"),
            ("replica cpu", "CPU of replicas"),
        ];
        let columns = nodes
            .iter()
            .filter(|_| shards > 1)
            .chain(relays.iter().filter(|_| replicas > 1 && shards == 0));
        for (column, name) in columns {
            let value = report.median(what, column) / 100.0;
            report.bar(
                17,
                &format!("{what}: {name}, furthest from even"),
                value,
                BarLimit::AtMost(MAX_SPREAD),
            );
        }
    }
    Ok(())
}

/// Masters of a cluster that share all slots evenly, in order, as `redis-cli --cluster create` does, which wants
/// three at least.
async fn cluster(masters: usize) -> anyhow::Result<Vec<Redis>> {
    let mut nodes = Vec::new();
    for n in 0..masters {
        let bus = ports::free().to_string();
        let options = [
            "--appendonly",
            "no",
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
        ];
        let node = Redis::start_with("redis-server", &options).await;
        let first = n * CLUSTER_SLOTS / masters;
        let last = (n + 1) * CLUSTER_SLOTS / masters - 1;
        let slots = [first.to_string(), last.to_string()];
        node.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", &slots[0], &slots[1]])
            .await?;
        // Nodes with equal epochs would have to agree on new ones first.
        node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()])
            .await?;
        if n > 0 {
            node.command::<()>(&[
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                &port(&nodes[0]),
                &bus_of(&nodes[0]),
            ])
            .await?;
        }
        nodes.push(node);
    }
    let begin = Instant::now();
    for node in &nodes {
        loop {
            let info: String = node.command(&["CLUSTER", "INFO"]).await?;
            if info.contains("cluster_state:ok")
                && info.contains(&format!("cluster_known_nodes:{masters}\r"))
            {
                break;
            }
            ensure!(
                begin.elapsed() < SHARING_TIMEOUT,
                "the cluster did not come up: {info}"
            );
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
    Ok(nodes)
}

fn port(node: &Redis) -> String {
    node.port().to_string()
}

/// The port of the cluster bus of a node.
fn bus_of(node: &Redis) -> String {
    let options = node.options();
    let at = options.iter().position(|option| option == "--cluster-port");
    at.and_then(|at| options.get(at + 1))
        .cloned()
        .unwrap_or_default()
}

/// Use of each node and replica of a layout.
struct LayoutUse {
    messages: f64,
    per_second: f64,
    /// Commands and CPU seconds of each node.
    nodes: Vec<[f64; 2]>,
    /// Messages stored, messages published and CPU seconds of each replica.
    replicas: Vec<[f64; 3]>,
}

impl LayoutUse {
    fn tell(&self, report: &mut Report, what: &str) {
        let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / self.messages;
        report.add(
            what,
            "commands",
            sum(&mut self.nodes.iter().map(|node| node[0])),
        );
        report.add(
            what,
            "redis",
            sum(&mut self.nodes.iter().map(|node| node[1])) * 1e6,
        );
        report.add(
            what,
            "relays",
            sum(&mut self.replicas.iter().map(|replica| replica[2])) * 1e6,
        );
        report.add(what, "rate", self.per_second);
        for (at, column) in ["node commands", "node cpu"].iter().enumerate() {
            report.add(what, column, uneven(self.nodes.iter().map(|node| node[at])));
        }
        for (at, column) in ["replica stored", "replica published", "replica cpu"]
            .iter()
            .enumerate()
        {
            report.add(
                what,
                column,
                uneven(self.replicas.iter().map(|replica| replica[at])),
            );
        }
        for (n, node) in self.nodes.iter().enumerate() {
            report.add(what, &format!("node {n} commands"), node[0]);
            report.add(what, &format!("node {n} cpu seconds"), node[1]);
        }
        for (n, replica) in self.replicas.iter().enumerate() {
            report.add(what, &format!("replica {n} published"), replica[1]);
            report.add(what, &format!("replica {n} cpu seconds"), replica[2]);
        }
        println!(
            "  {what}: nodes {:.2?}, replicas {:.2?}",
            self.nodes, self.replicas
        );
    }
}

/// The largest distance of a value from the mean, percent.
fn uneven(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let mean = values.clone().sum::<f64>() / values.clone().count().max(1) as f64;
    if mean == 0.0 {
        0.0
    } else {
        values
            .map(|value| (value / mean - 1.0).abs())
            .fold(0.0, f64::max)
            * 100.0
    }
}

async fn run(
    kafka: &Kafka,
    nodes: &[Redis],
    cluster: bool,
    replicas: usize,
    scale: &Scale,
) -> anyhow::Result<LayoutUse> {
    let source = kafka.unique_topic("source", TOPIC_PARTITIONS).await;
    let target = kafka.unique_topic("target", TOPIC_PARTITIONS).await;
    let base = if cluster {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| format!("\"127.0.0.1:{}\"", node.port()))
            .collect();
        Config::stored(&format!(
            "topology = \"cluster\"\nnodes = [{}]",
            nodes.join(", ")
        ))
    } else {
        Config::new(&nodes[0])
    };
    let base = base
        .redis("unsafe = [\"no_persistence\"]")
        .kafka("main", kafka);
    let config = kafka_route(
        base,
        "bench",
        &source,
        &target,
        "max_pending = 1_000_000_000",
    );
    let clocks = machine::ClockCheck::start();
    let mut relays: Vec<Relay> = (0..replicas).map(|_| Relay::spawn(&config, &[])).collect();
    for relay in &mut relays {
        relay.ready().await;
    }
    let tried = shared(kafka, &relays, &source).await?;
    let count = MessageCount::topic(kafka, &target, TOPIC_PARTITIONS);
    let of = Processes::new(relays[0].id(), kafka.id(), None).await?;
    watch(&count, tried, &of).await?;
    let before = read_use(nodes, &relays).await?;
    tokio::task::block_in_place(|| fill_topic(kafka, &source, scale.phase, Load::Equal(DELAY_MS)))?;
    let samples = watch(&count, tried + scale.phase, &of).await?;
    let after = read_use(nodes, &relays).await?;
    clocks.check()?;
    for relay in &mut relays {
        relay.terminate().await;
    }
    kafka.delete_topic(&source).await;
    kafka.delete_topic(&target).await;
    let rate = middle(&samples, tried + scale.phase);
    Ok(LayoutUse {
        messages: scale.phase as f64,
        per_second: rate.per_second,
        nodes: minus(&after.0, &before.0),
        replicas: minus(&after.1, &before.1),
    })
}

fn minus<const N: usize>(after: &[[f64; N]], before: &[[f64; N]]) -> Vec<[f64; N]> {
    let one =
        |(after, before): (&[f64; N], &[f64; N])| std::array::from_fn(|at| after[at] - before[at]);
    after.iter().zip(before).map(one).collect()
}

/// Waits until each replica reads its part of the topic and serves its part of the store; how many messages that
/// took.
async fn shared(kafka: &Kafka, relays: &[Relay], source: &str) -> anyhow::Result<u64> {
    let begin = Instant::now();
    let mut sent = 0;
    loop {
        // One message to each partition, due soon.
        let few = TOPIC_PARTITIONS as u64;
        tokio::task::block_in_place(|| fill_topic(kafka, source, few, Load::Equal(DELAY_MS)))?;
        sent += few;
        tokio::time::sleep(CHECK_INTERVAL).await;
        let metrics = try_join_all(relays.iter().map(Relay::metrics)).await?;
        let each = |name: &str| {
            metrics
                .iter()
                .map(|m| m.sum(name, &[]))
                .collect::<Vec<f64>>()
        };
        let read = each("postdate_admitted_total");
        let owned = each("postdate_partitions_owned");
        let even = owned.iter().sum::<f64>() / owned.len() as f64;
        if read.iter().all(|&n| n > 0.0)
            && owned.iter().all(|n| *n > 0.0 && (n - even).abs() <= 1.0)
        {
            return Ok(sent);
        }
        ensure!(
            begin.elapsed() < SHARING_TIMEOUT,
            "replicas do not share: read {read:?}, partitions {owned:?}"
        );
    }
}

/// Reads what each node and each replica has used so far.
async fn read_use(
    nodes: &[Redis],
    relays: &[Relay],
) -> anyhow::Result<(Vec<[f64; 2]>, Vec<[f64; 3]>)> {
    let mut of_nodes = Vec::new();
    let mut of_relays = Vec::new();
    for node in nodes {
        let info: String = node.command(&["INFO", "stats"]).await?;
        let commands = info
            .lines()
            .find_map(|line| line.trim().strip_prefix("total_commands_processed:"));
        let commands: f64 = commands
            .context("redis does not count its commands")?
            .parse()?;
        of_nodes.push([commands, redis_cpu(node.connection().await?).await?]);
    }
    for relay in relays {
        let metrics = relay.metrics().await?;
        let cpu = machine::cpu(relay.id())
            .context("a relay has ended")?
            .as_secs_f64();
        let sum = |name| metrics.sum(name, &[]);
        of_relays.push([
            sum("postdate_stored_total"),
            sum("postdate_published_total"),
            cpu,
        ]);
    }
    Ok((of_nodes, of_relays))
}
