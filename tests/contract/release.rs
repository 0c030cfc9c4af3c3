//! Parts of a release and of its automation, as text; `scripts/test-release` installs it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{files, read, repository};

/// Words with which a workflow may begin a command that is no script of this repository: it prepares the machine.
const PREPARING_COMMANDS: [&str; 4] = ["apt-get ", "git config ", "curl ", "test "];
/// The same of the jobs that make a release: its draft, and what goes to the registry.
const PUBLISHING_COMMANDS: [&str; 6] = [
    "mkdir release",
    "gh release create ",
    "gh release download ",
    "for file in release/*; do\n  gh attestation verify ",
    "docker login ghcr.io ",
    "gh release view ",
];
/// Jobs that may write, each with what it may write; every other one may only read.
const WRITING_JOBS: [(&str, &[&str]); 2] = [
    ("draft", &["attestations", "contents", "id-token"]),
    (
        "publish",
        &["attestations", "contents", "id-token", "packages"],
    ),
];

fn workflows() -> Vec<(String, Value)> {
    let all = files(".github/workflows").into_iter().map(|path| {
        let workflow = serde_saphyr::from_str(&read(&path));
        (
            path.display().to_string(),
            workflow.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
    });
    all.collect()
}

/// Commands of all steps of a workflow, those of its matrix too.
fn commands(workflow: &Value) -> Vec<String> {
    let jobs = workflow["jobs"].as_object().expect("jobs");
    // A job that calls another workflow has none.
    let steps = jobs
        .values()
        .filter_map(|job| job["steps"].as_array())
        .flatten();
    let written = steps.filter_map(|step| step["run"].as_str());
    let matrix = jobs
        .values()
        .filter_map(|job| job["strategy"]["matrix"]["command"].as_array());
    let played = matrix
        .flatten()
        .map(|command| command.as_str().expect("a text"));
    written
        .chain(played)
        .filter(|command| !command.starts_with("${{"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn workflows_call_the_projects_own_scripts() {
    let mut called = Vec::new();
    for (name, workflow) in workflows() {
        for command in commands(&workflow) {
            let program = command.split_whitespace().next().expect("a command");
            if program.starts_with("scripts/") || program == ".ci/run" {
                assert!(
                    repository(program).is_file(),
                    "{name}: there is no {program}"
                );
                called.push(program.to_owned());
                continue;
            }
            let mut allowed = PREPARING_COMMANDS.iter().chain(&PUBLISHING_COMMANDS);
            assert!(
                allowed.any(|begin| command.starts_with(begin)),
                "{name}: {command}"
            );
        }
        assert_eq!(
            workflow["permissions"]["contents"], "read",
            "{name} asks for more than it needs"
        );
        for job in workflow["jobs"].as_object().expect("jobs").values() {
            assert!(
                job["timeout-minutes"].is_u64() || job["uses"].is_string(),
                "{name}: a job without an end"
            );
        }
    }
    for script in [
        ".ci/run",
        "scripts/release",
        "scripts/release-oci",
        "scripts/docs",
        "scripts/chaos",
        "scripts/test-chart",
        "scripts/test-release",
    ] {
        assert!(
            called.iter().any(|name| name == script),
            "no workflow calls {script}"
        );
    }
}

/// A tag of an action may move, and the action with it.
#[test]
fn actions_are_named_by_a_commit() {
    let mut named = 0;
    for path in files(".github/workflows") {
        let text = read(&path);
        let uses = text.lines().filter_map(|line| {
            let line = line.trim_start().trim_start_matches("- ");
            line.strip_prefix("uses: ")
        });
        for action in uses.filter(|action| !action.starts_with("./")) {
            let (_, pin) = action.split_once('@').expect("a version");
            let (commit, version) = pin.split_once(" # v").expect("a version behind the commit");
            assert!(
                commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{}: {action}",
                path.display()
            );
            assert_eq!(
                version.split('.').count(),
                3,
                "{}: {action}",
                path.display()
            );
            named += 1;
        }
    }
    assert!(named > 0, "no workflow uses an action");
}

#[test]
fn only_the_jobs_of_a_release_may_write() {
    let mut writing = Vec::new();
    for (_, workflow) in workflows() {
        assert_eq!(
            workflow["permissions"]
                .as_object()
                .map(serde_json::Map::len),
            Some(1)
        );
        for (name, job) in workflow["jobs"].as_object().expect("jobs") {
            if let Some(permissions) = job["permissions"].as_object() {
                assert!(permissions.values().all(|right| right == "write"), "{name}");
                let mut rights: Vec<_> = permissions.keys().cloned().collect();
                rights.sort();
                writing.push((name.clone(), rights));
            }
        }
    }
    writing.sort();
    let expected = WRITING_JOBS.map(|(name, rights)| {
        let rights: Vec<_> = rights.iter().map(|right| (*right).to_owned()).collect();
        (name.to_owned(), rights)
    });
    assert_eq!(writing, expected);
}

/// A release is made of a commit that has passed CI.
#[test]
fn a_draft_waits_for_all_that_ci_runs() {
    let text = read(repository(".github/workflows/release.yml"));
    let workflow: Value = serde_saphyr::from_str(&text).expect("YAML");
    let needs = workflow["jobs"]["draft"]["needs"].as_array();
    assert!(needs.expect("a list").contains(&Value::from("test")));
    assert_eq!(
        workflow["jobs"]["test"]["uses"],
        "./.github/workflows/ci.yml"
    );
}

/// Fails unless `postdate check` takes the file.
fn assert_right(file: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postdate"));
    let output = command
        .arg("check")
        .arg("--config")
        .arg(file)
        .env_clear()
        .output()
        .expect("the binary runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_package_has_a_configuration_that_is_right() {
    let file = repository("deploy/package/postdate.toml");
    assert_right(&file);
    // So is the part that waits behind comment signs.
    let text = read(&file);
    let (_, commented) = text
        .split_once("# With RabbitMQ:\n")
        .expect("the part for RabbitMQ");
    let lines = commented
        .lines()
        .map(|line| line.trim_start_matches(['#', ' ']));
    let folder = tempfile::tempdir().expect("a folder");
    let url = folder.path().join("url");
    std::fs::write(&url, "amqp://user:password@host:5672/vhost").expect("written");
    let commented = lines.collect::<Vec<_>>().join("\n");
    let commented = commented.replace("/etc/postdate/rabbitmq-url", url.to_str().expect("UTF-8"));
    let file = folder.path().join("postdate.toml");
    std::fs::write(
        &file,
        format!("[redis]\nurl = \"redis://127.0.0.1\"\n{commented}\n"),
    )
    .expect("written");
    assert_right(&file);
}

/// The service ends by the same numbers as the program.
#[test]
fn the_service_knows_the_programs_exit_codes_and_hears_of_its_life() {
    let unit = read(repository("deploy/package/postdate.service"));
    for line in [
        "Type=notify",
        "WatchdogSec=60s",
        "ExecStart=/usr/bin/postdate run --config /etc/postdate/postdate.toml",
        "RestartPreventExitStatus=64",
        "TimeoutStopSec=30s",
        "NoNewPrivileges=yes",
        "LimitCORE=0",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
    ] {
        assert!(unit.lines().any(|of_unit| of_unit == line), "{line}");
    }
}

/// A tag may move: the image is built in the same one each time.
#[test]
fn the_image_is_built_in_one_that_a_digest_names() {
    let dockerfile = read(repository("deploy/docker/Dockerfile"));
    let base = dockerfile
        .lines()
        .find_map(|line| line.strip_prefix("ARG BASE="))
        .expect("a base");
    let (_, digest) = base.split_once("@sha256:").expect("a digest");
    assert!(
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{base}"
    );
    let others = dockerfile.lines().filter(|line| line.starts_with("FROM "));
    assert_eq!(
        others.collect::<Vec<_>>(),
        [
            "FROM --platform=$BUILDPLATFORM ${BASE} AS build",
            "FROM scratch"
        ]
    );
}

/// The archive, CI and the image have one compiler, and it is one that Cargo.toml allows.
#[test]
fn one_compiler_makes_everything_that_is_released() {
    let file = read(repository("rust-toolchain.toml"));
    let pinned = file
        .lines()
        .find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'))
        .expect("a channel");
    let numbers = pinned.split('.').map(str::parse::<u32>);
    let numbers: Vec<_> = numbers.collect::<Result<_, _>>().expect("numbers");
    assert_eq!(numbers.len(), 3, "{pinned} is not one version");
    let dockerfile = read(repository("deploy/docker/Dockerfile"));
    let base = format!("ARG BASE=docker.io/library/rust:{pinned}-bookworm@sha256:");
    assert!(dockerfile.contains(&base), "the Dockerfile: {base}");
    let oldest = env!("CARGO_PKG_RUST_VERSION").split('.').map(str::parse);
    let oldest: Vec<u32> = oldest.collect::<Result<_, _>>().expect("numbers");
    assert!(oldest <= numbers, "{oldest:?} is later than {pinned}");
    for path in files(".github/workflows") {
        for line in read(&path)
            .lines()
            .filter(|line| line.contains("sh.rustup.rs"))
        {
            assert!(
                line.contains("--default-toolchain none") && line.contains("toolchain install"),
                "{}: {line}",
                path.display()
            );
        }
    }
}
