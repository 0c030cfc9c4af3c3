//! redis-server (or valkey-server) as a child process, with an append-only file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;

use super::not_tested::not_tested;
use super::process::{Process, Signal};
use super::{eventually, folders, ports};

static SHARED: OnceCell<Redis> = OnceCell::const_new();

/// Name and password of the user with the fewest rights, as whom relays come.
pub const LEAST_USER: &str = "least";
/// The same as keys of `[redis]`.
pub(super) const LEAST_LOGIN: &str = "username = \"least\"\npassword = \"least\"";

/// A Redis with `appendonly yes`, `appendfsync no`, `maxmemory-policy noeviction`, no RDB. What it has answered is in its
/// file, and outlives a kill: with `everysec` it would hold writes back for up to two seconds while the disk is busy, and a
/// kill would take them.
#[derive(Debug)]
pub struct Redis {
    program: String,
    options: Vec<String>,
    port: u16,
    folder: PathBuf,
    process: Process,
}

/// The limits of a test's own connection. Those of the client library, half a second for an answer, are too short for a
/// server that must share two cores.
pub fn patient() -> AsyncConnectionConfig {
    let limit = Some(Duration::from_secs(20));
    AsyncConnectionConfig::new()
        .set_connection_timeout(limit)
        .set_response_timeout(limit)
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
        let Some(program) = valkey() else {
            not_tested("what only Valkey shows", "there is no valkey-server here");
            return None;
        };
        Some(Self::start_with(&program, &[]).await)
    }

    /// One with further options, as on the command line: `&["--maxmemory", "10mb"]`.
    pub async fn start_with(program: &str, options: &[&str]) -> Self {
        let port = ports::free();
        let folder = folders::new("redis");
        let program = program.to_owned();
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let process = run(&program, port, &folder, &options);
        let mut redis = Self {
            program,
            options,
            port,
            folder,
            process,
        };
        redis.ready().await;
        redis
    }

    /// One whose disk can be filled, with further options.
    pub async fn start_fillable(options: &[&str]) -> Self {
        use std::os::unix::fs::PermissionsExt;
        // What meets a limit on files is killed, unless it ignores that signal; what it starts then does, too.
        let program = folders::new("redis-program").join("redis-server");
        std::fs::write(
            &program,
            "#!/bin/sh\ntrap '' XFSZ\nexec redis-server \"$@\"\n",
        )
        .expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .expect("a program");
        Self::start_with(&program.to_string_lossy(), options).await
    }

    /// Fills its disk, or makes room again. Only of one that was started for it.
    pub fn fill_disk(&self, full: bool) {
        self.process.fill_disk(full);
    }

    /// `redis://127.0.0.1:PORT`; `rediss://` of one that was started with the options of a [`Tls`].
    pub fn url(&self) -> String {
        let scheme = if authority(&self.options).is_some() {
            "rediss"
        } else {
            "redis"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The same for the user who has only the rights that `docs/security.md` lists.
    pub fn least_url(&self) -> String {
        self.url()
            .replace("://", &format!("://{LEAST_USER}:{LEAST_USER}@"))
    }

    /// The certificate of the authority that signed its own, if it speaks TLS.
    pub fn authority(&self) -> Option<&str> {
        authority(&self.options)
    }

    /// Its port, for a proxy before it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Options of the start besides the defaults.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Its process id, to read what it used of the machine.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A new connection to it.
    pub async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        client(self.url(), &self.options)?
            .get_multiplexed_async_connection_with_config(&patient())
            .await
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

    /// Copies what it has written so far: a backup.
    pub fn backup(&self) -> PathBuf {
        let copy = folders::new("redis-backup");
        copy_folder(&self.folder, &copy);
        copy
    }

    /// Starts it again with what a backup holds in place of what it has.
    pub async fn restore(&mut self, backup: &Path) {
        self.process.kill9().await;
        std::fs::remove_dir_all(self.folder.join("appendonlydir")).expect("its files go");
        copy_folder(backup, &self.folder);
        self.restart().await;
    }

    /// The same with other options.
    pub async fn restart_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self.restart().await;
    }

    /// A command on a connection of its own.
    pub async fn command<T: redis::FromRedisValue>(&self, parts: &[&str]) -> redis::RedisResult<T> {
        let mut command = redis::cmd(parts[0]);
        command.arg(&parts[1..]);
        command.query_async(&mut self.connection().await?).await
    }

    /// Its folder, with its log and its append-only file.
    pub fn folder(&self) -> &Path {
        &self.folder
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
            redis::cmd("PING")
                .query_async::<()>(&mut self.connection().await?)
                .await
        })
        .await;
    }
}

/// The authority's certificate that a server's options name, if it speaks TLS.
fn authority(options: &[String]) -> Option<&str> {
    let at = options
        .iter()
        .position(|option| option == "--tls-ca-cert-file")?;
    options.get(at + 1).map(String::as_str)
}

/// A client of a server that was started with these options.
pub(super) fn client(url: String, options: &[String]) -> redis::RedisResult<redis::Client> {
    let Some(authority) = authority(options) else {
        return redis::Client::open(url);
    };
    // Fails where it has been chosen already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let root_cert = Some(std::fs::read(authority).expect("the authority's certificate"));
    redis::Client::build_with_tls(
        url,
        redis::TlsCertificates {
            client_tls: None,
            root_cert,
        },
    )
}

/// A valkey-server, where there is one: in the path, or fetched by `scripts/setup --valkey`.
pub fn valkey() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([folders::cache().join("valkey")]);
    let program = folders
        .map(|folder| folder.join("valkey-server"))
        .find(|program| program.exists())?;
    Some(program.to_string_lossy().into_owned())
}

/// The rights that a relay needs, in every topology and tier that this machine's server knows, on all keys: tests
/// choose their own prefixes.
fn least_rules() -> impl Iterator<Item = String> {
    let rules = postdate::store::user_rules("postdate").into_iter();
    let rules = rules.map(|rule| {
        if rule.starts_with('~') {
            "~*".to_owned()
        } else {
            rule
        }
    });
    rules.chain(["+wait", "+cluster|slots"].map(str::to_owned))
}

fn run(program: &str, port: u16, folder: &Path, options: &[String]) -> Process {
    Process::start("redis", folder, program, |command| {
        let port = port.to_string();
        // TLS only, where there is TLS: nothing may come another way.
        match authority(options) {
            None => command.args(["--port", &port]),
            Some(_) => command.args(["--port", "0", "--tls-port", &port]),
        };
        command.args(["--bind", "127.0.0.1", "--save", ""]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "no",
            "--maxmemory-policy",
            "noeviction",
        ]);
        command.args(["--user", LEAST_USER, "on", &format!(">{LEAST_USER}")]);
        command
            .args(least_rules())
            .arg("--dir")
            .arg(folder)
            .args(options);
    })
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.end();
        folders::remove(&self.folder);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let path = entry.path();
        let copy = to.join(entry.file_name());
        if path.is_dir() {
            std::fs::create_dir_all(&copy).expect("a folder");
            copy_folder(&path, &copy);
        } else if path
            .extension()
            .is_some_and(|extension| ["aof", "rdb", "manifest"].iter().any(|e| extension == *e))
        {
            std::fs::copy(&path, &copy).expect("a copy");
        }
    }
}
