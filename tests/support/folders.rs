//! Folders for the servers' data, all below one of this process, which goes when the process goes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use super::{names, process};

struct Root {
    path: PathBuf,
    /// Waits for the end of its input, which comes when this process ends, and removes the folder: a
    /// static is never dropped, and a killed process drops nothing at all.
    janitor: Option<Child>,
}

static ROOT: LazyLock<Root> = LazyLock::new(|| {
    let path = tempfile::Builder::new()
        .prefix("postdate-test-")
        .tempdir()
        .expect("a temporary folder")
        .keep();
    if std::env::var_os("POSTDATE_TEST_KEEP").is_some() {
        return Root {
            path,
            janitor: None,
        };
    }
    // Servers that were killed a moment ago may still be writing, hence the second and third try.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "cat >/dev/null; for i in 1 2 3 4 5; do rm -rf \"$1\" && exit; sleep 1; done",
        "janitor",
    ]);
    command
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let janitor = process::spawn_surviving(command).expect("sh");
    Root {
        path,
        janitor: Some(janitor),
    }
});

/// A new folder. With `POSTDATE_TEST_KEEP` set it is still there, logs and all, after the process's end.
pub fn new(kind: &str) -> PathBuf {
    let path = ROOT.path.join(names::unique(kind));
    std::fs::create_dir_all(&path).expect("a folder of the test's own");
    path
}

/// Where `scripts/setup` puts what Debian does not have: `POSTDATE_CACHE`, else `.cache` in the repository.
pub fn cache() -> PathBuf {
    std::env::var_os("POSTDATE_CACHE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache"),
        PathBuf::from,
    )
}

/// Removes one before the process's end, for servers that are gone already.
pub fn remove(path: &Path) {
    if ROOT.janitor.is_some()
        && let Err(error) = std::fs::remove_dir_all(path)
    {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::NotFound,
            "{}: {error}",
            path.display()
        );
    }
}
