//! Prometheus as a child process, which scrapes relays and evaluates the alert rules of this repository; and promtool.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::not_tested::not_tested;
use super::process::Process;
use super::{Relay, eventually, folders, ports};

/// Time between two scrapes, and between two evaluations of the rules.
const INTERVAL: &str = "1s";
/// Longest wait for an answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// The name of the job that scrapes the relays.
pub const JOB: &str = "postdate";

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    url: String,
    process: Process,
}

/// The folder with the alert rules and their tests.
fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus")
}

/// Reports whether Prometheus is there; if not, notes that this test did nothing.
pub fn available(test: &str) -> bool {
    let missing = ["prometheus", "promtool"].into_iter().find(|program| {
        let tried = Command::new(program).arg("--version").output();
        !tried.is_ok_and(|output| output.status.success())
    });
    if let Some(program) = missing {
        not_tested(
            test,
            &format!("there is no {program} here (scripts/setup --prometheus)"),
        );
    }
    missing.is_none()
}

/// Runs promtool in the folder of the rules. Returns what it printed; panics if it fails.
pub async fn promtool(args: &[&str]) -> String {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(rules());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output
        .expect("promtool does not panic")
        .expect("promtool starts");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "promtool {args:?}: {printed}");
    printed
}

impl Prometheus {
    /// Starts one that scrapes this relay, and waits until it has.
    pub async fn start(relay: &Relay) -> Self {
        let folder = folders::new("prometheus");
        let address = format!("127.0.0.1:{}", ports::free());
        let target = relay.url().replace("http://", "");
        let rules = rules().join("alerts.yaml").display().to_string();
        let config = format!(
            "global: {{ scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {INTERVAL} }}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: {JOB}\n    static_configs: [{{ targets: [{target:?}] }}]\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).expect("a configuration file");
        let process = Process::start("prometheus", &folder, "prometheus", |command| {
            command.args([
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--log.level=warn",
            ]);
            command.arg(format!("--web.listen-address={address}"));
        });
        let mut prometheus = Self {
            url: format!("http://{address}"),
            process,
        };
        eventually("Prometheus has scraped the relay", async || {
            prometheus.process.assert_running();
            let up = prometheus.query("up == 1").await?;
            if up.is_empty() {
                Err(anyhow!("not yet"))
            } else {
                Ok(())
            }
        })
        .await;
        prometheus
    }

    /// Its answer to a call of its API: `data` of it.
    pub async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Value> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_DEADLINE))
            .http_status_as_error(false)
            .build();
        let call = ureq::Agent::new_with_config(config).get(format!("{}/api/v1/{path}", self.url));
        let call = parameters
            .iter()
            .fold(call, |call, (name, value)| call.query(*name, *value));
        let answer = tokio::task::spawn_blocking(move || {
            anyhow::Ok(call.call()?.body_mut().read_to_string()?)
        });
        let answer = answer
            .await?
            .with_context(|| format!("prometheus: {path}"))?;
        let mut answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
        if answer["status"] == "success" {
            Ok(answer["data"].take())
        } else {
            Err(anyhow!("{path} {parameters:?}: {answer}"))
        }
    }

    /// Samples of a query now, each with its labels in `metric` and time and text in `value`.
    pub async fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let data = self.get("query", &[("query", query)]).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }
}
