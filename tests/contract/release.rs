//! Parts of a release and of its automation, as text; `scripts/test-release` installs it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{files, read, repository};

/// Words with which a workflow may begin a command that is no script of this repository: it prepares the machine.
const PREPARING_COMMANDS: [&str; 4] = ["apt-get ", "git config ", "curl ", "test "];
/// The same of the job that makes the draft of a release.
const PUBLISHING_COMMANDS: [&str; 2] = ["mkdir release", "gh release create "];

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
    let steps = jobs
        .values()
        .flat_map(|job| job["steps"].as_array().expect("steps"));
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
                job["timeout-minutes"].is_u64(),
                "{name}: a job without an end"
            );
        }
    }
    for script in [
        ".ci/run",
        "scripts/release",
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
