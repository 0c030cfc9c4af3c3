//! A Celery application with its worker, against the relay on a real RabbitMQ: the queue that Postdate reads is the only
//! thing in the application that knows of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::support::eventually::within;
use super::support::process::Process;
use super::support::{Config, Rabbitmq, Redis, Relay, folders};

/// The client's name.
pub(crate) const NAME: &str = "celery/rabbitmq";

/// Longest run of the sender, beside other work.
const SENDER_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait until all has run.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// How late a worker may begin, ms.
const MAX_LATE_MS: i64 = 2000;
/// How long after its due time a cancelled task would have run.
const SILENCE: Duration = Duration::from_secs(5);

/// A task as the sender tells of it.
#[derive(Debug, Deserialize)]
struct Sent {
    what: String,
    id: String,
    /// `None`: it must not run.
    due_ms: Option<i64>,
}

/// A run as the worker tells of it.
#[derive(Debug, Deserialize)]
struct Ran {
    what: String,
    id: String,
    retries: u32,
    ms: i64,
}

/// Plays the application. Returns true if each task ran when it had to, under its id.
pub(crate) async fn play() -> bool {
    let (redis, rabbitmq) = tokio::join!(Redis::start(), Rabbitmq::start());
    let folder = folders::new("celery");
    let runs = folder.join("runs");
    std::fs::write(&runs, "").expect("a file");
    let config = Config::new(&redis).rabbitmq("main", &rabbitmq).route(
        "celery",
        r#"{ rabbitmq = "main", queue = "celery.delayed" }"#,
        r#"{ rabbitmq = "main", exchange = "", routing_key = "celery" }"#,
        "dialects = [\"celery\"]",
    );
    let mut relay = Relay::spawn(&config, &[]);
    let application = Application {
        home: folders::cache().join("clients").join("celery"),
        broker: rabbitmq.url(),
        runs: runs.clone(),
    };
    let mut worker = application.start("celery-worker", &folder, "celery", WORKER);
    let mut sender = application.start("celery-send", &folder, "python", &["send.py"]);
    let faults = match sender.wait(SENDER_LIMIT).await {
        Some(status) if status.success() => judged(&sender.log(), &runs, &relay).await,
        ended => vec![format!(
            "the sender ended: {ended:?}\n{}",
            sender.log_tail()
        )],
    };
    worker.terminate(SENDER_LIMIT).await;
    if faults.is_empty() {
        println!("{NAME:<16} good: tasks ran when they were due, under their own ids");
    } else {
        println!("{NAME:<16} WRONG: {}", faults.join("; "));
        println!("{}\n{}", worker.log_tail(), relay.log());
    }
    relay.terminate().await.success() && faults.is_empty()
}

const WORKER: &[&str] = &[
    "--app",
    "tasks",
    "worker",
    "--pool",
    "solo",
    "--queues",
    "celery",
    "--without-gossip",
    "--without-mingle",
];

struct Application {
    home: PathBuf,
    broker: String,
    runs: PathBuf,
}

impl Application {
    fn start(&self, name: &str, folder: &Path, program: &str, arguments: &[&str]) -> Process {
        let program = self.home.join("venv/bin").join(program);
        Process::start(name, folder, &program.to_string_lossy(), |command| {
            command.args(arguments).current_dir(&self.home);
            command
                .env("BROKER", &self.broker)
                .env("RUNS", &self.runs)
                .env("PYTHONUNBUFFERED", "1");
        })
    }
}

/// What is wrong with what ran.
async fn judged(told: &str, runs: &Path, relay: &Relay) -> Vec<String> {
    let sent: Vec<Sent> = lines(told);
    // The one that is tried again runs three times.
    let expected = sent.iter().filter(|task| task.due_ms.is_some()).count() + 2;
    let ran = within(RUN_LIMIT, async || {
        let ran: Vec<Ran> = lines(&std::fs::read_to_string(runs).unwrap_or_default());
        if ran.len() >= expected {
            Ok(())
        } else {
            Err(format!("{} of {expected} ran", ran.len()))
        }
    });
    let mut faults: Vec<String> = ran.await.err().into_iter().collect();
    tokio::time::sleep(SILENCE).await;
    let mut by_what: BTreeMap<String, Vec<Ran>> = BTreeMap::new();
    for ran in lines::<Ran>(&std::fs::read_to_string(runs).unwrap_or_default()) {
        by_what.entry(ran.what.clone()).or_default().push(ran);
    }
    for task in &sent {
        let ran = by_what.remove(&task.what).unwrap_or_default();
        faults.extend(fault(task, &ran).map(|fault| format!("{}: {fault}", task.what)));
    }
    faults.extend(by_what.keys().map(|what| format!("{what} was never sent")));
    for (metric, labels, count) in [
        (
            "postdate_commands_total",
            &[("op", "cancel"), ("result", "cancelled")][..],
            1.0,
        ),
        ("postdate_dead", &[], 0.0),
    ] {
        let seen = relay
            .metrics()
            .await
            .map(|metrics| metrics.sum(metric, labels));
        if !seen.as_ref().is_ok_and(|seen| (seen - count).abs() < 0.5) {
            faults.push(format!("{metric}{labels:?} is {seen:?}"));
        }
    }
    faults
}

fn fault(task: &Sent, ran: &[Ran]) -> Option<String> {
    let Some(due_ms) = task.due_ms else {
        return (!ran.is_empty()).then(|| format!("it ran: {ran:?}"));
    };
    let tries = if task.what == "stubborn" { 3 } else { 1 };
    if ran.len() != tries {
        return Some(format!("it ran {} times: {ran:?}", ran.len()));
    }
    // A retry is a second after the try before it.
    let mut due_ms = due_ms;
    for (try_number, one) in ran.iter().enumerate() {
        let late_ms = one.ms - due_ms;
        let is_right = one.id == task.id && one.retries as usize == try_number;
        // The sender notes a due time after the send, by up to this much too late.
        if !is_right || !(-500..=MAX_LATE_MS).contains(&late_ms) {
            return Some(format!("{one:?} is {late_ms} ms late, of {task:?}"));
        }
        due_ms = one.ms + 1000;
    }
    None
}

fn lines<T: for<'a> Deserialize<'a>>(text: &str) -> Vec<T> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
