//! Libraries that are loaded into other processes: a clock that can be stepped, and a note of what was synced to disk.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::support::folders;

/// The library, built once.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = folders::new("preload");
    let source = folder.join("preload.c");
    let library = folder.join("preload.so");
    std::fs::write(&source, include_str!("preload.c")).expect("a file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(
        built
            .expect("a C compiler, which librdkafka needs as well")
            .success(),
        "preload.c builds"
    );
    library
});

/// A wall clock that can be put off, of all processes that were started with it.
#[derive(Debug)]
pub(crate) struct Clock {
    file: PathBuf,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let file = folders::new("clock").join("offset");
        std::fs::write(&file, 0_i64.to_ne_bytes()).expect("a file");
        Self { file }
    }

    /// Puts it off by so many ms, from now on.
    pub(crate) fn set(&self, by_ms: i64) {
        self.set_us(by_ms * 1000);
    }

    /// The same in microseconds.
    pub(crate) fn set_us(&self, by_us: i64) {
        let file = std::fs::File::options()
            .write(true)
            .open(&self.file)
            .expect("the clock's file");
        file.write_all_at(&by_us.to_ne_bytes(), 0).expect("written");
    }

    /// The environment of a process that has this clock.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        environment("POSTDATE_CLOCK", &self.file)
    }

    /// A redis-server that has this clock, as a program.
    pub(crate) fn redis(&self) -> PathBuf {
        wrapped("redis-server", &self.environment())
    }
}

/// A note of what a redis-server has surely on disk.
#[derive(Debug)]
pub(crate) struct Synced {
    file: PathBuf,
}

impl Synced {
    pub(crate) fn new() -> Self {
        Self {
            file: folders::new("synced").join("log"),
        }
    }

    /// A redis-server that writes it, as a program.
    pub(crate) fn redis(&self) -> PathBuf {
        wrapped("redis-server", &environment("POSTDATE_FSYNC", &self.file))
    }

    /// Cuts the files in a folder back to what was synced of them; how many bytes that took away.
    pub(crate) fn cut(&self, folder: &Path) -> u64 {
        let log = std::fs::read_to_string(&self.file).expect("the note of what was synced");
        let mut lost = 0;
        for file in std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
        {
            let found = std::fs::metadata(&file).expect("a file");
            let inode = format!("{} ", found.ino());
            let last = log.lines().rev().find_map(|line| line.strip_prefix(&inode));
            // A file that was never synced at all is the manifest's, written before and renamed into place.
            let Some(size) = last.and_then(|size| size.parse::<u64>().ok()) else {
                continue;
            };
            if size < found.len() {
                lost += found.len() - size;
                let file = std::fs::File::options()
                    .write(true)
                    .open(&file)
                    .expect("a file of a dead server");
                file.set_len(size).expect("cut");
            }
        }
        lost
    }
}

fn environment(name: &str, file: &Path) -> Vec<(String, String)> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    vec![
        ("LD_PRELOAD".into(), text(&LIBRARY)),
        (name.into(), text(file)),
    ]
}

/// A script that becomes the program with this environment.
fn wrapped(program: &str, environment: &[(String, String)]) -> PathBuf {
    let path = folders::new("wrapped").join(program);
    let set: Vec<_> = environment
        .iter()
        .map(|(name, value)| format!("{name}='{value}'"))
        .collect();
    std::fs::write(
        &path,
        format!("#!/bin/sh\n{} exec {program} \"$@\"\n", set.join(" ")),
    )
    .expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}
