//! redis-server (or valkey-server) as a child process, with an append-only file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;

use super::process::{Process, Signal};
use super::{eventually, folders, ports};

static SHARED: OnceCell<Redis> = OnceCell::const_new();

/// A Redis with `appendonly yes`, `appendfsync everysec`, `maxmemory-policy noeviction`, no RDB.
#[derive(Debug)]
pub struct Redis {
    program: String,
    options: Vec<String>,
    port: u16,
    folder: PathBuf,
    process: Process,
}

impl Redis {
    /// The one that this binary's tests share; each uses its own prefix.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    /// One of the caller's own.
    pub async fn start() -> Self {
        Self::start_with("redis-server", &[]).await
    }

    /// A Valkey of the caller's own, where there is one: in the path, or fetched by `scripts/setup --valkey`.
    pub async fn start_valkey() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([folders::cache().join("valkey")]);
        let program = folders.map(|folder| folder.join("valkey-server")).find(|program| program.exists())?;
        Some(Self::start_with(&program.to_string_lossy(), &[]).await)
    }

    /// One with further options, as on the command line: `&["--maxmemory", "10mb"]`.
    pub async fn start_with(program: &str, options: &[&str]) -> Self {
        let (port, folder) = (ports::free(), folders::new("redis"));
        let program = program.to_owned();
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let process = run(&program, port, &folder, &options);
        let mut redis = Self { program, options, port, folder, process };
        redis.ready().await;
        redis
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port, for a proxy before it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id, to read what it used of the machine.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A new connection to it, with 5 s for each answer.
    pub async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let limit = Some(Duration::from_secs(5));
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        redis::Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// SIGKILL; what was written stays in its folder.
    pub async fn kill9(&mut self) {
        self.process.kill9().await;
    }

    /// SIGTERM: a clean stop.
    pub async fn terminate(&mut self) {
        self.process.terminate(Duration::from_secs(30)).await;
    }

    /// Starts it again on the same port and folder; kills it first if it still runs.
    pub async fn restart(&mut self) {
        self.process.kill9().await;
        self.process = run(&self.program, self.port, &self.folder, &self.options);
        self.ready().await;
    }

    /// SIGSTOP: it hangs with its connections open.
    pub fn stop(&mut self) {
        self.process.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        self.process.signal(Signal::CONT);
    }

    async fn ready(&mut self) {
        eventually("redis answers PING", async || {
            self.process.assert_running();
            redis::cmd("PING").query_async::<()>(&mut self.connection().await?).await
        })
        .await;
    }
}

fn run(program: &str, port: u16, folder: &Path, options: &[String]) -> Process {
    Process::start("redis", folder, program, |command| {
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--maxmemory-policy",
            "noeviction",
        ]);
        command.arg("--dir").arg(folder).args(options);
    })
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.signal(Signal::KILL);
        folders::remove(&self.folder);
    }
}
