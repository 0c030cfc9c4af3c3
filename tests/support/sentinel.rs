//! A master, two replicas and three sentinels, as child processes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use postdate::store::config::{Address, Login, Topology};
use redis::aio::MultiplexedConnection;

use super::eventually::{PATIENCE, within};
use super::process::{Process, Signal};
use super::redis::{LEAST_LOGIN, client};
use super::{Redis, eventually, folders, ports};

/// Name of the master in the sentinels' configuration.
pub const NAME: &str = "orders";

/// One master, two replicas, three sentinels with `down-after-milliseconds 1000` and a quorum of two.
#[derive(Debug)]
pub struct Sentinel {
    nodes: Vec<Redis>,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    port: u16,
    options: Vec<String>,
    folder: PathBuf,
    process: Process,
}

impl Sentinel {
    /// All of it, once the sentinels know the replicas and each other, and the replicas follow.
    pub async fn start() -> Self {
        Self::start_with("redis-server", &[]).await
    }

    /// The same with another program (`redis::valkey()`), or further options of each node.
    pub async fn start_with(program: &str, options: &[&str]) -> Self {
        let mut nodes = vec![Redis::start_with(program, options).await];
        let master = nodes[0].port().to_string();
        let address = format!("127.0.0.1 {master}");
        let following = [
            options,
            &["--replicaof", &address, "--repl-diskless-sync-delay", "0"],
        ]
        .concat();
        for _ in 0..2 {
            nodes.push(Redis::start_with(program, &following).await);
        }
        let watchers = (0..3)
            .map(|_| Watcher::start(program, &master, options))
            .collect();
        let sentinel = Self { nodes, watchers };
        let master = sentinel.settled(2).await;
        assert_eq!(master, 0, "the sentinels promoted another at once");
        sentinel
    }

    /// The keys of `[redis]` that lead here.
    pub fn lines(&self) -> String {
        let nodes: Vec<_> = self
            .addresses()
            .into_iter()
            .map(|a| format!("\"{a}\""))
            .collect();
        format!(
            "topology = \"sentinel\"\nnodes = [{}]\nmaster = \"{NAME}\"\n{LEAST_LOGIN}",
            nodes.join(", ")
        )
    }

    /// Where the sentinels listen: `127.0.0.1:PORT`.
    pub fn addresses(&self) -> Vec<String> {
        self.watchers
            .iter()
            .map(|w| format!("127.0.0.1:{}", w.port))
            .collect()
    }

    /// The same as the store's own configuration has it.
    pub fn topology(&self) -> Topology {
        let nodes = self
            .addresses()
            .iter()
            .filter_map(|a| Address::parse(a))
            .collect();
        let login = Login::default();
        let sentinel_login = Login::default();
        Topology::Sentinel {
            nodes,
            master: NAME.to_owned(),
            login,
            sentinel_login,
        }
    }

    /// A node: 0 is the first master.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// The node that most sentinels call the master; `None` while they differ or do not answer.
    pub async fn master(&self) -> Option<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for watcher in &self.watchers {
            // One that is stopped does not answer.
            let asked =
                watcher.ask::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
            let told = tokio::time::timeout(Duration::from_millis(500), asked).await;
            let told = told.ok().and_then(Result::ok);
            if let Some(at) =
                told.and_then(|(_, port)| self.nodes.iter().position(|n| n.port() == port))
            {
                votes[at] += 1;
            }
        }
        votes
            .iter()
            .position(|&votes| votes * 2 > self.watchers.len())
    }

    /// Waits until the sentinels have made another node than `old` the master, and answers which.
    pub async fn promoted(&self, old: usize) -> usize {
        eventually("the sentinels promote a replica", async || {
            let master = self
                .master()
                .await
                .filter(|&master| master != old)
                .ok_or("not yet")?;
            let role: redis::Value = self.nodes[master]
                .command(&["ROLE"])
                .await
                .map_err(|_| "no answer")?;
            match role {
                redis::Value::Array(parts)
                    if parts[0] == redis::Value::BulkString(b"master".to_vec()) =>
                {
                    Ok(master)
                }
                _ => Err("it is no master yet"),
            }
        })
        .await
    }

    /// Waits until so many replicas follow the master and are known to every sentinel. Answers which node that is: not
    /// always the last that was promoted, for a busy machine looks like a dead master to the sentinels.
    pub async fn settled(&self, replicas: usize) -> usize {
        let settled = self.settled_within(PATIENCE, replicas).await;
        settled.unwrap_or_else(|last| {
            panic!("{replicas} replicas follow a master: not in time; last: {last}")
        })
    }

    /// The same within this time; `Err` says what is still missing then.
    pub async fn settled_within(&self, limit: Duration, replicas: usize) -> Result<usize, String> {
        within(limit, async || {
            let master = self.master().await.context("the sentinels do not agree")?;
            let info: String = self.nodes[master].command(&["INFO", "replication"]).await?;
            let online = info.matches("state=online").count();
            anyhow::ensure!(info.contains("role:master") && online >= replicas, "{info}");
            for watcher in &self.watchers {
                let known: Vec<String> = watcher.ask(&["SENTINEL", "MASTER", NAME]).await?;
                let number = |name: &str| {
                    let at = known.iter().position(|field| field == name);
                    at.and_then(|at| known[at + 1].parse::<usize>().ok())
                        .unwrap_or(0)
                };
                let others = number("num-other-sentinels") + 1;
                anyhow::ensure!(number("num-slaves") >= replicas && others == 3, "{known:?}");
                let port = self.nodes[master].port();
                anyhow::ensure!(number("port") == usize::from(port), "{known:?}");
            }
            anyhow::Ok(master)
        })
        .await
    }

    /// SIGKILL.
    pub async fn kill9(&mut self, node: usize) {
        self.nodes[node].kill9().await;
    }

    /// Starts a killed node again with its data, as a replica of the present master.
    pub async fn restart(&mut self, node: usize) {
        let master = eventually("a master", async || self.master().await.ok_or("none")).await;
        let follow = format!("127.0.0.1 {}", self.nodes[master].port());
        let options: Vec<String> = self.nodes[node].options().to_vec();
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        if let Some(at) = options.iter().position(|&option| option == "--replicaof") {
            options.drain(at..at + 2);
        }
        if master != node {
            options.extend(["--replicaof", &follow]);
        }
        self.nodes[node].restart_with(&options).await;
    }

    /// SIGSTOP: it hangs with its connections open.
    pub fn stop(&mut self, node: usize) {
        self.nodes[node].stop();
    }

    /// SIGCONT.
    pub fn cont(&mut self, node: usize) {
        self.nodes[node].cont();
    }

    /// Has the sentinels promote a replica now, as an operator would.
    pub async fn failover(&self) -> redis::RedisResult<()> {
        self.watchers[0].ask(&["SENTINEL", "FAILOVER", NAME]).await
    }

    /// A command for a sentinel itself.
    pub async fn ask_sentinel<T: redis::FromRedisValue>(
        &self,
        watcher: usize,
        parts: &[&str],
    ) -> redis::RedisResult<T> {
        self.watchers[watcher].ask(parts).await
    }

    /// SIGKILL of a sentinel.
    pub async fn kill9_sentinel(&mut self, watcher: usize) {
        self.watchers[watcher].process.kill9().await;
    }

    /// SIGSTOP of a sentinel.
    pub fn stop_sentinel(&mut self, watcher: usize) {
        self.watchers[watcher].process.signal(Signal::STOP);
    }
}

impl Watcher {
    fn start(program: &str, master: &str, options: &[&str]) -> Self {
        let port = ports::free();
        let folder = folders::new("sentinel");
        let tls: Vec<_> = options
            .chunks(2)
            .filter(|option| option[0].starts_with("--tls"))
            .collect();
        let listens = if tls.is_empty() {
            "port"
        } else {
            "port 0\ntls-port"
        };
        let tls = tls
            .iter()
            .map(|option| format!("{} {}\n", &option[0][2..], option[1]));
        let tls = tls.collect::<Vec<_>>().concat();
        let text = format!(
            "{tls}{listens} {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 5000\n\
             sentinel parallel-syncs {NAME} 2\n",
            folder.display()
        );
        std::fs::write(folder.join("sentinel.conf"), text).expect("a configuration file");
        let process = Process::start("sentinel", &folder, program, |command| {
            command.args(["sentinel.conf", "--sentinel"]);
        });
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self {
            port,
            options,
            folder,
            process,
        }
    }

    async fn ask<T: redis::FromRedisValue>(&self, parts: &[&str]) -> redis::RedisResult<T> {
        let scheme = if self.options.iter().any(|o| o.starts_with("--tls")) {
            "rediss"
        } else {
            "redis"
        };
        let client = client(format!("{scheme}://127.0.0.1:{}", self.port), &self.options)?;
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(parts[0]);
        command.arg(&parts[1..]);
        command.query_async(&mut connection).await
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.process.end();
        folders::remove(&self.folder);
    }
}
