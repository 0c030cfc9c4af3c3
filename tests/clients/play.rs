//! One run: servers, the relay, and the programs one after the other.

use std::path::PathBuf;
use std::time::Duration;

use super::arrivals::{SeenAt, SeenList};
use super::judge::{ARRIVAL_COUNT, Judgement, LONGEST_DELAY_MS, judge};
use super::record::Record;
use super::support::eventually::within;
use super::support::process::Process;
use super::support::{Config, Kafka, Rabbitmq, Redis, Relay, folders, run};
use super::table::{BrokerKind, ClientProgram};
use super::{kafka_side, rabbitmq_side};

/// Longest run of a program: a virtual machine starts within it, beside other work.
const PROGRAM_LIMIT: Duration = Duration::from_secs(90);
/// Longest wait for what must arrive, after a program's end.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(15);
/// Time after the longest delay in which what must not arrive would have.
const SILENCE_MS: i64 = 1_000;

/// Servers and the relay, with what is seen at its ends.
struct ClientFixture {
    // Dropped in this order: the relay before its servers.
    relay: Relay,
    kafka: Kafka,
    rabbitmq: Rabbitmq,
    _redis: Redis,
    at_kafka: SeenList,
    at_rabbitmq: SeenList,
    folder: PathBuf,
}

/// Runs the programs. Returns true if each did what the page says, and went out as the record says.
pub(crate) async fn all(chosen: &[ClientProgram], is_recorded: bool) -> bool {
    let mut fixture = ClientFixture::start().await;
    let mut record = Record::read();
    let mut is_good = true;
    for program in chosen {
        let mut judgement = fixture.play(program).await;
        if is_recorded {
            record.note(program, &judgement);
        } else {
            judgement
                .faults
                .extend(record.differences(program, &judgement));
        }
        let name = program.name();
        if judgement.faults.is_empty() {
            let Judgement {
                late_ms,
                delay_kind,
                moment_kind,
                ..
            } = judgement;
            println!(
                "{name:<16} good: at most {late_ms} ms late; x-delay as {delay_kind}, x-deliver-at as {moment_kind}"
            );
        } else {
            is_good = false;
            println!("{name:<16} WRONG: {}", judgement.faults.join("; "));
        }
    }
    if is_recorded && is_good {
        record.write();
    }
    fixture.at_kafka.close();
    fixture.at_rabbitmq.close();
    let is_clean = fixture.relay.terminate().await.success();
    if !is_clean {
        println!("the relay did not stop cleanly");
    }
    if !(is_good && is_clean) {
        println!("{}", fixture.relay.log());
    }
    is_good && is_clean
}

impl ClientFixture {
    async fn start() -> Self {
        let (redis, rabbitmq, kafka) =
            tokio::join!(Redis::start(), Rabbitmq::start(), Kafka::start());
        let at_kafka = SeenList::default();
        let at_rabbitmq = SeenList::default();
        kafka_side::watch(&kafka, &at_kafka).await;
        rabbitmq_side::watch(&rabbitmq, &at_rabbitmq).await;
        let config = Config::new(&redis)
            .kafka("main", &kafka)
            .rabbitmq("main", &rabbitmq)
            .route(
                "orders",
                r#"{ kafka = "main", topic = "orders.delayed" }"#,
                r#"{ kafka = "main", topic = "orders" }"#,
                "",
            )
            .route(
                "mail",
                r#"{ rabbitmq = "main", queue = "mail.delayed" }"#,
                r#"{ rabbitmq = "main", exchange = "mail", routing_key = "preserve" }"#,
                "",
            );
        let relay = Relay::start(&config).await;
        let folder = folders::new("clients");
        Self {
            relay,
            kafka,
            rabbitmq,
            _redis: redis,
            at_kafka,
            at_rabbitmq,
            folder,
        }
    }

    async fn play(&self, program: &ClientProgram) -> Judgement {
        let (seen, route) = match program.broker {
            BrokerKind::Kafka => (&self.at_kafka, "orders"),
            BrokerKind::Rabbitmq => (&self.at_rabbitmq, "mail"),
        };
        let first = seen.len();
        let dead_before = self.invalid_delays(route).await;
        let started_ms = run::now_ms();
        let output = match self.run_program(program).await {
            Ok(output) => output,
            Err(fault) => {
                return Judgement {
                    faults: vec![fault],
                    ..Judgement::default()
                };
            }
        };
        let silent_from = run::now_ms() + LONGEST_DELAY_MS + SILENCE_MS;
        let arrived = within(ARRIVAL_LIMIT, async || {
            let arrived = seen
                .since(first)
                .iter()
                .filter(|message| message.at == SeenAt::Target)
                .count();
            let is_over = arrived >= ARRIVAL_COUNT && run::now_ms() >= silent_from;
            if is_over {
                Ok(())
            } else {
                Err(format!("{arrived} of {ARRIVAL_COUNT} arrived"))
            }
        })
        .await;
        let mut judgement = judge(program.broker, started_ms, &seen.since(first));
        judgement.faults.extend(arrived.err());
        let dead = self.invalid_delays(route).await - dead_before;
        if dead != 1 {
            judgement.faults.push(format!(
                "{dead} dead letters `bad_delay` for one invalid delay"
            ));
        }
        let is_returned = output.lines().any(|line| line.contains("returned"));
        if program.broker == BrokerKind::Rabbitmq && !is_returned {
            judgement.faults.push(format!(
                "it did not notice the returned message: {output:?}"
            ));
        }
        if !judgement.faults.is_empty() {
            judgement.faults.push(self.cancels().await);
        }
        judgement
    }

    /// How many cancels the relay has answered so far, and how.
    async fn cancels(&self) -> String {
        let metrics = self.relay.metrics().await.expect("the relay answers");
        let counts = ["cancelled", "in_flight", "published", "unknown"].map(|result| {
            let labels = [("op", "cancel"), ("result", result)];
            let count = metrics.sum("postdate_commands_total", &labels);
            format!("{count} {result}")
        });
        format!("cancels so far: {}", counts.join(", "))
    }

    /// Runs it to its end; returns what it printed, or why it failed.
    async fn run_program(&self, program: &ClientProgram) -> Result<String, String> {
        let home = folders::cache().join("clients").join(program.language);
        let [command, arguments @ ..] = program.command else {
            return Err("no command".to_owned());
        };
        // Built programs lie in the folder that they run in.
        let path = if command.contains('/') {
            home.join(command)
        } else {
            PathBuf::from(command)
        };
        let name = program.name().replace('/', "-");
        let mut process = Process::start(&name, &self.folder, &path.to_string_lossy(), |command| {
            command.args(arguments).current_dir(&home);
            command
                .env("KAFKA_BROKERS", self.kafka.bootstrap())
                .env("AMQP_URL", self.rabbitmq.url());
        });
        match process.wait(PROGRAM_LIMIT).await {
            Some(status) if status.success() => Ok(process.log()),
            Some(status) => Err(format!("it ended: {status}\n{}", process.log_tail())),
            None => Err(format!(
                "it still runs after {PROGRAM_LIMIT:?}\n{}",
                process.log_tail()
            )),
        }
    }

    /// Dead letters of a route whose delay could not be read.
    async fn invalid_delays(&self, route: &str) -> usize {
        let path = format!("/api/v1/dead?route={route}&reason=bad_delay&limit=1000");
        let (status, body) = self.relay.get(&path).await.expect("the relay answers");
        assert_eq!(status, 200, "{body}");
        let page: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        page["items"].as_array().expect("items").len()
    }
}
