//! `docs/operate.md`

use std::path::PathBuf;
use std::process::Command;

use super::terminal::{TypedTerminal, page};
use crate::support::{Redis, ports};

/// A server that a page starts in the background, which ends with the test.
struct BackgroundServer {
    pid_file: PathBuf,
}

impl Drop for BackgroundServer {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(&self.pid_file) {
            // It has ended if the test went well.
            drop(Command::new("kill").args(["-9", pid.trim()]).output());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_restored_as_it_is_written_where_redis_has_an_append_only_file() {
    let page = page("operate.md");
    let (_, restore) = page.split_once("**Restore.**").expect("how to restore");
    let (restore, _) = restore.split_once("\n3. ").expect("a third step");

    let redis = Redis::start_with("redis-server", &["--appendonly", "yes"]).await;
    let meta = ["HSET", "postdate:meta", "format", "2", "partitions", "64"];
    let _: u32 = redis.command(&meta).await.expect("written");
    let _: String = redis.command(&["SAVE"]).await.expect("a snapshot");

    let port = ports::free().to_string();
    let mut terminal = TypedTerminal::new("operate", &[("6379", port.clone())]);
    let _server = BackgroundServer {
        pid_file: terminal.folder().join("redis.pid"),
    };
    std::fs::copy(
        redis.folder().join("dump.rdb"),
        terminal.folder().join("dump.rdb"),
    )
    .expect("copied");
    terminal.play(restore).await;
    assert!(
        terminal.said().contains("partitions\n64\n"),
        "{}",
        terminal.said()
    );

    // From now on Redis starts as always, and goes by its append-only file.
    std::fs::remove_file(terminal.folder().join("dump.rdb")).expect("removed");
    let always = format!(
        "redis-server --port {port} --appendonly yes --daemonize yes --pidfile redis.pid >/dev/null
         until redis-cli -p {port} ping >/dev/null 2>&1; do sleep 0.1; done
         redis-cli -p {port} HGET postdate:meta partitions
         redis-cli -p {port} SHUTDOWN"
    );
    assert_eq!(
        terminal.types(&always).await.as_deref().map(str::trim),
        Ok("64")
    );
}
