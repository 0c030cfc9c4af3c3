//! A Java application that uses Redisson's delayed queue, with the library from Maven's central repository.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::anyhow;

use super::eventually::within;
use super::process::Process;
use super::{eventually, folders};

/// The version that `scripts/setup` puts into the cache.
const REDISSON_VERSION: &str = "3.52.0";
/// Longest time of an application that ends by itself.
const APPLICATION_DEADLINE: Duration = Duration::from_secs(180);

/// The application, running or ended.
#[derive(Debug)]
pub struct RedissonApplication {
    process: Process,
}

/// The work of an application.
#[derive(Clone, Copy, Debug)]
pub struct RedissonWork<'a> {
    /// `kryo` (Redisson's default), `string` or `json`.
    pub codec: &'a str,
    /// Prefix of the values, which are numbered from 0.
    pub prefix: &'a str,
    /// Number of the values.
    pub count: usize,
    /// Least delay, ms.
    pub least_ms: u64,
    /// Range of the delays above it, ms.
    pub range_ms: u64,
    /// Pause between two offers, ms.
    pub pause_ms: u64,
    /// Stays, and goes on to move what is due to the destination.
    pub stays: bool,
}

fn jars() -> PathBuf {
    folders::cache().join("redisson").join(REDISSON_VERSION)
}

/// Reports whether the library and a Java compiler are there.
pub fn installed() -> Result<(), String> {
    let jars = jars();
    if !jars
        .join(format!("redisson-{REDISSON_VERSION}.jar"))
        .exists()
    {
        return Err(format!(
            "no Redisson {REDISSON_VERSION} in {}: run scripts/setup --redisson",
            jars.display()
        ));
    }
    let compiler = Command::new("javac").arg("-version").output();
    compiler
        .map(drop)
        .map_err(|error| format!("no javac in the path ({error})"))
}

impl RedissonApplication {
    /// Starts it.
    pub fn start(redis: &str, queue: &str, work: RedissonWork<'_>) -> Self {
        let folder = folders::new("redisson");
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/java/DelayedQueueApplication.java"
        );
        let numbers = [
            work.count as u64,
            work.least_ms,
            work.range_ms,
            work.pause_ms,
        ]
        .map(|n| n.to_string());
        let process = Process::start("redisson", &folder, "java", |command| {
            command.args([
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-Dstdout.encoding=UTF-8",
            ]);
            command
                .args(["-Dsun.jnu.encoding=UTF-8", "-Dfile.encoding=UTF-8"])
                .env("LC_ALL", "C.UTF-8");
            command.arg("-cp").arg(jars().join("*")).arg(source);
            command
                .args([redis, queue, work.codec, work.prefix])
                .args(&numbers);
            command.arg(if work.stays { "stay" } else { "end" });
        });
        Self { process }
    }

    /// Waits until it has offered all.
    pub async fn has_offered_all(&mut self) {
        let offered = within(APPLICATION_DEADLINE, async || {
            let log = self.process.log();
            let failed = self.process.ended().is_some_and(|status| !status.success());
            assert!(!failed, "{}", self.process.log_tail());
            if log.contains("all offered\n") {
                Ok(())
            } else {
                Err(log)
            }
        });
        if let Err(log) = offered.await {
            panic!("not all is offered within {APPLICATION_DEADLINE:?}: {log}");
        }
    }

    /// Waits until it has offered this many.
    pub async fn has_offered(&self, count: usize) {
        eventually("the first are offered", async || {
            let offered = self.offered().len();
            if offered >= count {
                Ok(())
            } else {
                Err(anyhow!("{offered}: {}", self.process.log_tail()))
            }
        })
        .await;
    }

    /// The values offered so far, each with the bytes that its codec wrote, in base64.
    pub fn offered(&self) -> Vec<(String, String)> {
        let log = self.process.log();
        // The last line may be half written.
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        let lines = whole
            .lines()
            .filter_map(|line| line.strip_prefix("offered "));
        lines
            .filter_map(|line| line.split_once(' '))
            .map(|(b, v)| (v.to_owned(), b.to_owned()))
            .collect()
    }

    /// Ends it.
    pub async fn end(&mut self) {
        self.process.kill9().await;
    }
}
