//! Documents that are made from the source are fresh. `UPDATE_DOCS=1 cargo test --test contract` makes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{files, read, repository};

/// The names of librdkafka's properties are those of the version that is built in. Its own page lists them; those that
/// only a program can set are left out.
#[test]
fn the_properties_of_librdkafka_are_fresh() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .arg("--manifest-path")
        .arg(repository("Cargo.toml"))
        .output()
        .expect("cargo");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {complaint}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata");
    let packages = metadata["packages"].as_array().expect("packages");
    let library = packages
        .iter()
        .find(|package| package["name"] == "rdkafka-sys")
        .expect("rdkafka-sys");
    let manifest = Path::new(library["manifest_path"].as_str().expect("a path"));
    let page = read(manifest.with_file_name("librdkafka/CONFIGURATION.md"));
    let rows = page
        .lines()
        .filter(|line| !line.contains("see dedicated API"));
    let names = rows.filter_map(|line| {
        let (name, rest) = line.split_once('|')?;
        let is_row = rest.matches('|').count() >= 4 && !name.starts_with(['-', 'P']);
        is_row.then(|| name.trim())
    });
    let names: BTreeSet<&str> = names.collect();
    let made: String = names.iter().flat_map(|name| [*name, "\n"]).collect();
    let path = repository("src/config/librdkafka_properties.txt");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    assert!(
        names.len() > 100 && read(path) == made,
        "src/config/librdkafka_properties.txt is not fresh: UPDATE_DOCS=1 cargo test --test contract"
    );
}

#[test]
fn each_decision_has_a_status() {
    for file in files("docs/adr") {
        let text = read(&file);
        let is_decision = file.file_name().is_some_and(|name| name != "README.md");
        let status = text
            .lines()
            .find_map(|line| line.strip_prefix("**Status.** "));
        assert!(
            !is_decision
                || status.is_some_and(
                    |is| is.starts_with("Accepted") || is.starts_with("Overtaken by [")
                ),
            "{}: {status:?}",
            file.display()
        );
    }
}

/// Figures that documents state: the document, its words, and the constant that they are taken from.
const FIGURES: &[(&str, &str, &str, &str)] = &[
    (
        "glossary.md",
        "1,048,576 ms",
        "store/model/bundle.rs",
        "const SLICE_BITS: u32 = 20;",
    ),
    (
        "glossary.md",
        "each 400 ms",
        "cluster/heartbeat.rs",
        "const BEAT_INTERVAL: Duration = Duration::from_millis(400);",
    ),
    (
        "glossary.md",
        "three make a replica dead",
        "store/model/members.rs",
        "const MISSED_HEARTBEATS: i64 = 3;",
    ),
    (
        "faults.md",
        "(each 400 ms)",
        "cluster/heartbeat.rs",
        "const BEAT_INTERVAL: Duration = Duration::from_millis(400);",
    ),
    (
        "faults.md",
        "(noted every 250 ms)",
        "timer/settler.rs",
        "const TICK_INTERVAL: Duration = Duration::from_millis(250);",
    ),
    (
        "faults.md",
        "up to eight times",
        "ingress/loops.rs",
        "const MAX_PASSES: u32 = 8;",
    ),
    (
        "faults.md",
        "a record that was read three seconds ago",
        "health/standstill.rs",
        "const STANDSTILL_US: i64 = 3_000_000;",
    ),
    (
        "faults.md",
        "none has failed for ten seconds",
        "health/target_failures.rs",
        "const QUIET_US: i64 = 10_000_000;",
    ),
    (
        "faults.md",
        "not answered for 2.5 s",
        "health/target_failures.rs",
        "const SILENT_US: i64 = 2_500_000;",
    ),
    (
        "faults.md",
        "uses 85 % of its `maxmemory`",
        "ingress/redis_memory.rs",
        "pub const ALL_WAIT_SHARE: f64 = 0.85;",
    ),
    (
        "faults.md",
        "three seconds late or more",
        "health/lateness.rs",
        "const LATE_FROM_S: f64 = 3.0;",
    ),
    (
        "guarantees.md",
        "65,536 records",
        "ingress/kafka/assignment.rs",
        "const WINDOW_RECORDS: usize = 65_536;",
    ),
    (
        "guarantees.md",
        "over all partitions 96 MiB",
        "ingress/read_budget.rs",
        "const READ_BYTES: usize = 96 << 20;",
    ),
    (
        "guarantees.md",
        "20,000 messages or 64 MiB a topic",
        "egress/kafka/partitions.rs",
        "const WINDOW_MESSAGES: usize = 20_000;",
    ),
    (
        "guarantees.md",
        "8 MiB of a route and 16 MiB over all routes",
        "store/trail/record.rs",
        "const ROUTE_BYTES: usize = 8 << 20;\nconst PROCESS_BYTES: usize = 16 << 20;",
    ),
    (
        "guarantees.md",
        "the newest twenty",
        "store/query/trail.rs",
        "const MAX_EVENTS: usize = 20;",
    ),
    (
        "why-it-holds.md",
        "65,536 records",
        "ingress/kafka/assignment.rs",
        "const WINDOW_RECORDS: usize = 65_536;",
    ),
    (
        "why-it-holds.md",
        "each 400 ms",
        "cluster/heartbeat.rs",
        "const BEAT_INTERVAL: Duration = Duration::from_millis(400);",
    ),
    (
        "../README.md",
        "twice a second",
        "timer/claim_scope.rs",
        "const POLL_INTERVAL: Duration = Duration::from_millis(500);",
    ),
];

#[test]
fn figures_in_prose_are_those_of_the_code() {
    for (document, words, file, constant) in FIGURES {
        let text = read(repository("docs").join(document));
        assert!(text.contains(words), "{document} says no longer: {words}");
        let code = read(repository("src").join(file));
        assert!(
            code.contains(constant),
            "src/{file} has no longer: {constant}; {document} says: {words}"
        );
    }
}
