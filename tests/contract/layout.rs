//! The house's layout: who may use whom, where client libraries may appear, how long a file may be.

use std::collections::BTreeMap;

use super::{files, read, repository};

/// A room and the rooms that it may use (`crate::ROOM`); data flows right. A room may always use itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("backoff", &["domain"]),
    ("credential", &["domain"]),
    ("lifecycle", &["domain"]),
    ("health", &["domain"]),
    ("telemetry", &["domain", "backoff", "credential", "tls"]),
    ("mutants", &[]),
    ("sizing", &[]),
    ("api", &["domain"]),
    ("tls", &["domain"]),
    // A link keeps itself up and reports on itself: it needs tasks and readiness.
    (
        "broker",
        &[
            "domain",
            "backoff",
            "credential",
            "lifecycle",
            "health",
            "telemetry",
            "tls",
        ],
    ),
    (
        "store",
        &[
            "domain",
            "backoff",
            "credential",
            "lifecycle",
            "health",
            "telemetry",
            "tls",
            "mutants",
        ],
    ),
    (
        "egress",
        &[
            "domain",
            "broker",
            "backoff",
            "lifecycle",
            "health",
            "telemetry",
            "mutants",
        ],
    ),
    (
        "publishing",
        &["domain", "health", "telemetry", "store", "egress"],
    ),
    (
        "ingress",
        &[
            "domain",
            "broker",
            "backoff",
            "lifecycle",
            "health",
            "telemetry",
            "mutants",
            "store",
            "egress",
            "publishing",
        ],
    ),
    (
        "cluster",
        &[
            "domain",
            "lifecycle",
            "health",
            "telemetry",
            "backoff",
            "mutants",
            "store",
        ],
    ),
    (
        "timer",
        &[
            "domain",
            "backoff",
            "lifecycle",
            "health",
            "telemetry",
            "mutants",
            "store",
            "cluster",
            "egress",
            "publishing",
        ],
    ),
    (
        "admin",
        &[
            "domain",
            "api",
            "credential",
            "health",
            "lifecycle",
            "telemetry",
            "tls",
            "store",
        ],
    ),
    (
        "config",
        &[
            "domain",
            "admin",
            "broker",
            "cluster",
            "credential",
            "store",
            "telemetry",
            "timer",
            "tls",
        ],
    ),
    (
        "app",
        &[
            "domain",
            "backoff",
            "health",
            "lifecycle",
            "mutants",
            "telemetry",
            "broker",
            "store",
            "egress",
            "publishing",
            "ingress",
            "cluster",
            "timer",
            "admin",
            "config",
        ],
    ),
    // Compiled for the fuzzers alone, who come in by every room's own door.
    (
        "fuzzing",
        &[
            "domain", "broker", "store", "egress", "ingress", "admin", "config",
        ],
    ),
    ("bench", BUILDS_ROOMS),
    // It speaks to another program's Redis beside the rooms that it builds.
    (
        "import",
        &[
            "domain",
            "credential",
            "tls",
            "lifecycle",
            "store",
            "config",
            "app",
            "ingress",
        ],
    ),
    ("plan", &["domain", "broker"]),
    ("replay", BUILDS_ROOMS),
    (
        "cli",
        &[
            "api", "app", "bench", "import", "plan", "replay", "sizing", "config", "domain", "tls",
        ],
    ),
    ("main", &["cli"]),
];

/// Commands that build rooms of their own.
const BUILDS_ROOMS: &[&str] = &[
    "domain",
    "health",
    "lifecycle",
    "telemetry",
    "broker",
    "store",
    "egress",
    "ingress",
    "config",
    "app",
];

/// Of these rooms only the faces below may be used: `config` knows what the rooms take, not what they run.
const CONFIG_FACES: &[&str] = &[
    "credential",
    "admin::Config",
    "admin::config",
    "broker::kafka",
    "broker::rabbitmq",
    "cluster::Config",
    "cluster::config",
    "store::Config",
    "store::config",
    "telemetry::Config",
    "telemetry::LogFormat",
    "telemetry::config",
    "timer::Config",
    "timer::config",
    "tls",
    "domain",
];

/// A client library and the places (prefixes under `src/`) whose business it is. `config/clients.rs` only
/// asks their parsers whether a URL or a property is one.
const CLIENTS: &[(&str, &[&str])] = &[
    ("redis", &["store/", "import/foreign/", "config/clients.rs"]),
    (
        "rdkafka",
        &[
            "broker/kafka",
            "ingress/kafka/",
            "egress/kafka/",
            "config/clients.rs",
        ],
    ),
    (
        "lapin",
        &[
            "broker/rabbitmq",
            "ingress/rabbitmq/",
            "egress/rabbitmq/",
            "config/clients.rs",
        ],
    ),
    ("axum", &["admin/"]),
    ("utoipa", &["api/", "admin/"]),
    (
        "anyhow",
        &["app", "bench", "import", "replay", "cli/", "main.rs"],
    ),
    ("figment", &["config/"]),
    ("clap", &["cli/"]),
    ("prost", &["telemetry/traces/"]),
];

/// Production lines of a file from which on it should be split, and those that it may not exceed.
const LINES: usize = 500;
const WALL: usize = 620;

/// A source file: its path under `src/` and its text without the tests in it.
struct Source {
    path: String,
    text: String,
}

/// Files that show figures to people, and may read metrics for that.
const SHOWS_METRICS: &[&str] = &["admin/routes.rs", "replay.rs"];

#[test]
fn metrics_are_outputs_and_nobody_reads_one_to_decide_anything() {
    let declared = read(repository("src/telemetry/metrics.rs"));
    let fields = declared.lines().filter_map(|line| {
        let (name, of) = line.trim().strip_prefix("pub ")?.split_once(": ")?;
        let is_metric = ["Counter,", "CountGauge,", "SecondsGauge,"].contains(&of);
        is_metric.then(|| format!(".{name}.get()"))
    });
    let reads: Vec<String> = fields.collect();
    assert!(reads.len() > 15, "{reads:?}");
    let mut readers = BTreeMap::new();
    for Source { path, text } in sources() {
        if path.starts_with("telemetry/") || path.contains("/tests") {
            continue;
        }
        for line in code(&text) {
            if let Some(read) = reads.iter().find(|read| line.contains(read.as_str())) {
                readers.insert(path.clone(), read.clone());
            }
        }
    }
    let names: Vec<_> = readers.keys().map(String::as_str).collect();
    assert_eq!(names, SHOWS_METRICS, "{readers:?}: ask crate::health");
}

/// Keys that each line of the log has already. A field of such a name would be there twice as JSON, and most readers keep one.
const LOG_KEYS: [&str; 4] = ["level", "message", "target", "timestamp"];

#[test]
fn no_field_of_the_log_has_the_name_of_a_key_that_each_line_has() {
    let mut calls = 0;
    let mut wrong = Vec::new();
    for Source { path, text } in sources() {
        let code = code(&text).collect::<Vec<_>>().join(" ");
        for level in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
            for call in code.split(level).skip(1) {
                calls += 1;
                // The fields come before the text.
                let fields = call.split(['"', ';']).next().unwrap_or(call);
                for field in fields.split(',') {
                    let name = field
                        .split('=')
                        .next()
                        .unwrap_or(field)
                        .trim()
                        .trim_start_matches(['%', '?']);
                    if LOG_KEYS.contains(&name) {
                        wrong.push(format!("{path}: {level}{fields}"));
                    }
                }
            }
        }
    }
    assert!(calls > 100, "the calls were not found: {calls}");
    assert!(
        wrong.is_empty(),
        "rename these fields, such as `target_name`: {wrong:#?}"
    );
}

/// Test files and a room's contract suite are no production code.
fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    matches!(name, "tests.rs" | "contract.rs") || path.contains("/tests/")
}

fn sources() -> Vec<Source> {
    let root = repository("src");
    let found: Vec<Source> = files("src")
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| {
            (
                file.strip_prefix(&root)
                    .expect("under src")
                    .display()
                    .to_string(),
                read(&file),
            )
        })
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| Source {
            path,
            text: production(&text).to_owned(),
        })
        .collect();
    assert!(found.len() > 30, "the source was not found");
    found
}

/// The text before the inline tests.
fn production(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text)
}

fn room(path: &str) -> &str {
    path.split('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".rs")
}

/// Code without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or(line))
}

/// The paths behind `crate::`, with `{...}` lists of a `use` taken apart.
fn crate_paths(text: &str) -> Vec<String> {
    let code = code(text).collect::<Vec<_>>().join(" ");
    let mut paths = Vec::new();
    for rest in code.split("crate::").skip(1) {
        if let Some(list) = rest.strip_prefix('{') {
            paths.extend(top_level(list).into_iter().map(str::to_owned));
            continue;
        }
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .unwrap_or(rest.len());
        let path = rest[..end].trim_end_matches(':');
        match rest[end..]
            .strip_prefix('{')
            .filter(|_| rest[..end].ends_with("::"))
        {
            Some(list) => paths.extend(
                top_level(list)
                    .into_iter()
                    .map(|item| format!("{path}::{item}")),
            ),
            None => paths.push(path.to_owned()),
        }
    }
    paths
}

/// The items of a `{a, b::{c, d}}` list whose opening brace is behind us, nested ones by their first part.
fn top_level(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut start = 0;
    let mut items = Vec::new();
    for (at, char) in list.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(list[start..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let until_nested = |item: &'_ str| item.find("::{").unwrap_or(item.len());
    items
        .into_iter()
        .filter(|item| !item.is_empty())
        .map(|item| &item[..until_nested(item)])
        .collect()
}

#[test]
fn paths_are_read_whatever_their_form() {
    let text = "use crate::domain::{A, b::{C, D}};\nuse crate::{store, timer::Config};\n// crate::nothing\n\
        fn f() { crate::app::run() }\npub(in crate::config) fn g() {}";
    let paths = [
        "domain::A",
        "domain::b",
        "store",
        "timer::Config",
        "app::run",
        "config",
    ];
    assert_eq!(crate_paths(text), paths);
}

#[test]
fn rooms_use_only_what_the_table_allows() {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.path != "lib.rs") {
        let room = room(&source.path);
        let Some(may) = table.get(room) else {
            wrong.push(format!(
                "src/{}: the room `{room}` has no line in the table",
                source.path
            ));
            continue;
        };
        for path in crate_paths(&source.text) {
            let used = path.split("::").next().unwrap_or(&path);
            if used == room {
                continue;
            }
            if !may.contains(&used) {
                wrong.push(format!(
                    "src/{}: `{room}` may not use `crate::{path}`",
                    source.path
                ));
            } else if room == "config" {
                let face = |face: &&str| {
                    path == **face || path.starts_with(&format!("{face}::")) || path == used
                };
                if !CONFIG_FACES.iter().any(face) {
                    wrong.push(format!(
                        "src/{}: `crate::{path}` is a running part",
                        source.path
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn client_libraries_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (library, places) in CLIENTS {
            let names = |line: &str| {
                line.match_indices(&format!("{library}::")).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    before.is_none_or(|c| !(c.is_alphanumeric() || c == '_' || c == ':'))
                })
            };
            // A room's own module of that name (`store::redis`) is not the library.
            let own = source.text.contains(&format!("\nmod {library};"));
            if !own
                && code(&source.text).any(names)
                && !places.iter().any(|place| source.path.starts_with(place))
            {
                wrong.push(format!(
                    "src/{}: `{library}` has no business here",
                    source.path
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > WALL {
            wrong.push(format!(
                "src/{}: {lines} lines, {WALL} at most",
                source.path
            ));
        } else if lines > LINES {
            println!(
                "src/{}: {lines} lines: split it by meaning when it is in hand",
                source.path
            );
        }
    }
    let main = read(repository("src/main.rs")).lines().count();
    if main >= 60 {
        wrong.push(format!("src/main.rs: {main} lines, fewer than 60 at most"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
