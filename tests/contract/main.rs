//! Tests that need no server: the configuration's examples and refusals, the command line's manners,
//! fresh documents, the layout of the source.

#![allow(clippy::expect_used)] // a test that cannot go on should stop

mod chart;
mod command;
mod dashboards;
mod documents;
mod examples;
mod fuzzing;
mod layout;
mod observability;
mod pages;
mod producers;
mod races;
mod release;
mod site;
mod sizing;
mod terminal;

use std::path::{Path, PathBuf};

/// A path of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A text file of the repository.
fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files under a folder of the repository, in order.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![repository(folder)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
