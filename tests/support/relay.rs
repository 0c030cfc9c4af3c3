//! The relay itself, as its users run it: the `postdate` binary with a configuration file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::observer::RelayWatch;
use super::process::{Process, Signal};
use super::{Kafka, Rabbitmq, Redis, eventually, folders, names, ports};

/// How long a SIGTERM may take: the relay's own `shutdown_timeout` is 20 s.
const SHUTDOWN: Duration = Duration::from_secs(40);

/// The variable that names a replica.
pub const NAME: &str = "POSTDATE_CLUSTER__NAME";
/// The variable that plants a fault.
const MUTANT: &str = "POSTDATE_MUTANT";

/// A configuration file in the making.
#[derive(Clone, Debug, Default)]
pub struct Config {
    top: String,
    redis: String,
    sections: String,
}

impl Config {
    /// A store in `redis` under a prefix of its own, as the user with the fewest rights.
    pub fn new(redis: &Redis) -> Self {
        Self::stored(&format!("url = \"{}\"", redis.least_url()))
    }

    /// A store that these lines of `[redis]` say where to find (`Sentinel::lines`, `Cluster::lines`), under a
    /// prefix of its own.
    pub fn stored(lines: &str) -> Self {
        Self::under(lines, &names::unique("postdate"))
    }

    /// The same under this prefix, for replicas that share it.
    pub fn under(lines: &str, prefix: &str) -> Self {
        Self {
            redis: format!("{lines}\nprefix = \"{prefix}\"\n"),
            ..Self::default()
        }
    }

    /// A key before all sections: `shutdown_timeout = "5s"`.
    #[must_use]
    pub fn top(mut self, line: &str) -> Self {
        writeln!(self.top, "{line}").expect("a string grows");
        self
    }

    /// A further key of `[redis]`: `partitions = 8`.
    #[must_use]
    pub fn redis(mut self, line: &str) -> Self {
        writeln!(self.redis, "{line}").expect("a string grows");
        self
    }

    /// The same store by way of a proxy on this port.
    #[must_use]
    pub fn through(mut self, redis: &Redis, port: u16) -> Self {
        let [direct, by_proxy] = [redis.port(), port].map(|port| format!("@127.0.0.1:{port}"));
        assert!(self.redis.contains(&direct), "a store of Config::new");
        self.redis = self.redis.replace(&direct, &by_proxy);
        self
    }

    /// A connection to Kafka.
    #[must_use]
    pub fn kafka(self, name: &str, kafka: &Kafka) -> Self {
        self.section(&format!(
            "[kafka.{name}]\nbrokers = \"{}\"",
            kafka.bootstrap()
        ))
    }

    /// A connection to RabbitMQ.
    #[must_use]
    pub fn rabbitmq(self, name: &str, rabbitmq: &Rabbitmq) -> Self {
        self.section(&format!("[rabbitmq.{name}]\nurl = \"{}\"", rabbitmq.url()))
    }

    /// A route: `from` and `to` are inline tables, `{ kafka = "main", topic = "orders" }`; `more` holds
    /// further lines, or nothing.
    #[must_use]
    pub fn route(self, name: &str, from: &str, to: &str, more: &str) -> Self {
        self.section(&format!(
            "[routes.{name}]\nfrom = {from}\nto   = {to}\n{more}"
        ))
    }

    /// Any section: `[timer]\nclaim = "2s"`.
    #[must_use]
    pub fn section(mut self, text: &str) -> Self {
        writeln!(self.sections, "\n{}", text.trim_end()).expect("a string grows");
        self
    }

    /// The file's text, with the address that the API listens on.
    pub fn text(&self, admin: &str) -> String {
        let gap = if self.top.is_empty() { "" } else { "\n" };
        format!(
            "{}{gap}[redis]\n{}\n[admin]\nlisten = \"{admin}\"\n{}",
            self.top, self.redis, self.sections
        )
    }
}

/// Most bytes of an answer: as many as the command line reads.
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// Longest wait for an answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);

/// A running (or killed) relay. When a test panics while it holds one, the end of its log is printed.
#[derive(Debug)]
pub struct Relay {
    program: PathBuf,
    folder: PathBuf,
    address: String,
    environment: Vec<(String, String)>,
    process: Process,
    /// Counters of earlier lives, as they stood when each was ended by a call here.
    past: Metrics,
    /// None of one that was started some other way.
    watch: Option<Arc<RelayWatch>>,
}

impl Relay {
    /// Starts it and waits until `/readyz` says 200.
    pub async fn start(config: &Config) -> Self {
        Self::start_with(config, &[]).await
    }

    /// The same with environment variables.
    pub async fn start_with(config: &Config, environment: &[(&str, &str)]) -> Self {
        let mut relay = Self::spawn(config, environment);
        relay.ready().await;
        relay
    }

    /// Starts it without waiting: for what is not there yet, and for what must be refused.
    pub fn spawn(config: &Config, environment: &[(&str, &str)]) -> Self {
        Self::spawn_as(binary(), config, environment)
    }

    /// The same with another program in its place.
    pub fn spawn_as(program: PathBuf, config: &Config, environment: &[(&str, &str)]) -> Self {
        let folder = folders::new("relay");
        let address = format!("127.0.0.1:{}", ports::free());
        let text = config.text(&address);
        std::fs::write(folder.join("postdate.toml"), &text).expect("a configuration file");
        let mut environment: Vec<_> = environment
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        // Those of one machine would all have its name; one that is restarted keeps its own.
        if !environment.iter().any(|(name, _)| name == NAME) {
            environment.push((NAME.to_owned(), names::unique("replica")));
        }
        let process = run(&program, &folder, &environment);
        let watch = RelayWatch::start(format!("http://{address}"), process.log_file(), &text);
        // A fault that is planted in the relay itself need not be told by it.
        if environment.iter().any(|(name, _)| name == MUTANT) {
            watch.excuse();
        }
        let past = Metrics::default();
        Self {
            program,
            folder,
            address,
            environment,
            process,
            past,
            watch: Some(watch),
        }
    }

    /// Observes nothing of it, for this reason.
    pub fn unobserved(&self, _why: &str) {
        if let Some(watch) = &self.watch {
            watch.excuse();
        }
    }

    /// Silences so far: messages that were late and no reason was reported.
    pub fn noticed(&self) -> Vec<String> {
        self.watch
            .as_ref()
            .map(|watch| watch.noticed())
            .unwrap_or_default()
    }

    /// Silences so far; ends the observation.
    pub fn silences(&self) -> Vec<String> {
        self.watch
            .as_ref()
            .map(|watch| watch.silences())
            .unwrap_or_default()
    }

    /// One that was started some other way and listens at `address`. It cannot be restarted from here.
    pub fn adopt(process: Process, address: &str) -> Self {
        Self {
            program: binary(),
            folder: folders::new("relay"),
            address: address.to_owned(),
            environment: Vec::new(),
            process,
            past: Metrics::default(),
            watch: None,
        }
    }

    /// Waits until `/readyz` says 200.
    pub async fn ready(&mut self) {
        eventually("the relay is ready", async || {
            self.process.assert_running();
            match self.get("/readyz").await? {
                (200, _) => Ok(()),
                (status, body) => Err(anyhow!("/readyz says {status}: {body}")),
            }
        })
        .await;
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.folder.join("postdate.toml")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Reports whether its process is there.
    pub fn is_alive(&self) -> bool {
        Path::new("/proc").join(self.id().to_string()).exists()
    }

    /// Waits until each of its sources is read. A Kafka group gives the partitions of a killed member to another one only
    /// once the session of the first has ended.
    pub async fn reads_all_sources(&self) {
        eventually("all sources are read", async || {
            let metrics = self.metrics().await.map_err(|error| format!("{error:#}"))?;
            let mut parts = metrics.named("postdate_part_up");
            let waiting = parts.find(|line| {
                let is_source =
                    |&(label, part): &(&str, &str)| label == "part" && part.starts_with("source:");
                labels_of(line).iter().any(is_source) && value(line) == Some(0.0)
            });
            waiting.map_or(Ok(()), |line| Err(line.to_owned()))
        })
        .await;
    }

    /// SIGKILL. Counters are read first, so that [`Relay::total`] still knows them.
    pub async fn kill9(&mut self) {
        self.remember().await;
        self.process.kill9().await;
    }

    /// SIGTERM, waits for its end and returns how it ended.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.remember().await;
        self.process.terminate(SHUTDOWN).await
    }

    /// Any signal, without waiting.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for it to end by itself.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.process.wait(limit).await
    }

    /// Starts it again with the same file and waits until it is ready; kills it first if it still runs.
    pub async fn restart(&mut self) {
        if self.process.ended().is_none() {
            self.kill9().await;
        }
        self.spawn_again();
        self.ready().await;
    }

    /// Has another program run when it is started again.
    pub fn becomes(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// Starts it again with the same file, without waiting; it has ended.
    pub fn spawn_again(&mut self) {
        self.process = run(&self.program, &self.folder, &self.environment);
        if let Some(watch) = &self.watch {
            watch.starts_again();
        }
    }

    /// All that it has logged, over all its lives.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The file that it logs to, the same in all its lives.
    pub fn log_file(&self) -> PathBuf {
        self.process.log_file()
    }

    /// GET: status and body.
    pub async fn get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        self.request("GET", path, None, "").await
    }

    /// The JSON that the API answers with 200. Asks again while the answer is 504 (Redis did not answer in time: ask
    /// again), as on a busy machine.
    pub async fn read(&self, path: &str) -> Value {
        eventually(path, async || match self.get(path).await {
            Ok((200, body)) => Ok(serde_json::from_str(&body).expect("JSON")),
            Ok((504, body)) => Err(body),
            Ok((status, body)) => panic!("{path}: {status} {body}"),
            Err(error) => panic!("{path}: {error:#}"),
        })
        .await
    }

    /// Any request, JSON in and out.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> anyhow::Result<(u16, String)> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url()));
        request = request.header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(body.to_owned())?;
        let answer = tokio::task::spawn_blocking(move || {
            let config = ureq::Agent::config_builder()
                .timeout_global(Some(ANSWER_DEADLINE))
                .http_status_as_error(false)
                .allow_non_standard_methods(true)
                .build();
            let mut response = ureq::Agent::new_with_config(config).run(request)?;
            let body = response
                .body_mut()
                .with_config()
                .limit(MAX_ANSWER_BYTES)
                .read_to_string()?;
            anyhow::Ok((response.status().as_u16(), body))
        });
        answer.await?.with_context(|| format!("{method} {path}"))
    }

    /// Metrics of `/metrics` as they are now.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        match self.get("/metrics").await? {
            (200, text) => Metrics::parse(&text),
            (status, body) => Err(anyhow!("/metrics says {status}: {body}")),
        }
    }

    /// A counter over all lives of this relay: this one's now, and what the earlier ones had when they
    /// were ended by a call here. Labels that are not named are summed over.
    pub async fn total(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let now = self.metrics().await.expect("the relay's metrics");
        now.sum(name, labels) + self.past.sum(name, labels)
    }

    /// A counter over its earlier lives, as they stood when each was ended by a call here.
    pub fn past_total(&self, name: &str) -> f64 {
        self.past.sum(name, &[])
    }

    async fn remember(&mut self) {
        // One that has ended, or does not listen yet, has nothing to remember.
        if let Ok(metrics) = self.metrics().await {
            self.past.text.push_str(&metrics.text);
        }
    }
}

fn run(program: &Path, folder: &Path, environment: &[(String, String)]) -> Process {
    Process::start("postdate", folder, &program.to_string_lossy(), |command| {
        command.args(["run", "--config", "postdate.toml"]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
    })
}

/// Names another relay than the one that was built with the tests: an optimised one, for figures. It cannot have planted
/// faults.
const OTHER_BINARY: &str = "POSTDATE_BINARY";

/// The relay named by `POSTDATE_BINARY`.
pub fn other_binary() -> Option<PathBuf> {
    std::env::var_os(OTHER_BINARY).map(PathBuf::from)
}

/// The binary: the one that is named, or else the one of these tests. Cargo tells tests where it is; an example lies one
/// folder below it.
pub fn binary() -> PathBuf {
    if let Some(named) = other_binary() {
        return named;
    }
    option_env!("CARGO_BIN_EXE_postdate").map_or_else(
        || {
            let example = std::env::current_exe().expect("the path of this program");
            example
                .ancestors()
                .nth(2)
                .expect("target/PROFILE/examples/PROGRAM")
                .join("postdate")
        },
        PathBuf::from,
    )
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.process.log_tail());
        }
        if let Some(watch) = self.watch.take() {
            watch.end();
        }
        self.process.signal(Signal::KILL);
    }
}

/// Samples of the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Reads the text format; label values without escapes, for labels come from configuration.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        for line in samples(text) {
            value(line).ok_or_else(|| anyhow!("not a sample: {line}"))?;
        }
        Ok(Self {
            text: text.to_owned(),
        })
    }

    /// The sum over all samples of this name that have these labels; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |of: &[(&str, &str)]| labels.iter().all(|label| of.contains(label));
        self.named(name)
            .filter(|line| has(&labels_of(line)))
            .filter_map(value)
            .sum()
    }

    /// The lines of a name. Most lines are of others: their labels are not looked at.
    fn named(&self, name: &str) -> impl Iterator<Item = &str> {
        samples(&self.text).filter(move |line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
    }
}

fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
}

fn value(line: &str) -> Option<f64> {
    let value = match line.rsplit_once("} ") {
        Some((_, value)) => value,
        None => line.split_once(' ')?.1,
    };
    value.split(' ').next()?.parse().ok()
}

fn labels_of(line: &str) -> Vec<(&str, &str)> {
    let series = line.rsplit_once("} ").map_or("", |(series, _)| series);
    let labels = series.split_once('{').map_or("", |(_, labels)| labels);
    labels
        .split("\",")
        .filter_map(|pair| pair.split_once("=\""))
        .map(|(label, value)| (label, value.trim_end_matches('"')))
        .collect()
}
