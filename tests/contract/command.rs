//! The binary as a user meets it: exit codes, and what goes to which stream.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Output};

use super::repository;

fn postdate(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    Command::new(env!("CARGO_BIN_EXE_postdate"))
        .args(args)
        .env_clear()
        .current_dir(folder.path())
        .output()
        .expect("the binary runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ended by itself")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The long help of a command; fails if there is no such command.
pub(super) fn help_of(command: &[&str]) -> String {
    let output = postdate(&[command, &["--help"]].concat());
    assert_eq!(code(&output), 0, "{command:?}: {}", err(&output));
    out(&output)
}

#[test]
fn a_variable_that_is_not_utf_8_is_refused_by_every_command_that_reads_it() {
    let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    for (command, name, value) in [
        ("check", "POSTDATE_REDIS__URL", &b"redis://h\xff"[..]),
        ("check", "POSTDATE_LOG", b"\xff"),
        ("status", "POSTDATE_URL", b"http://h\xff"),
        ("status", "POSTDATE_URL", b"http://h\xc3:1/"),
        ("status", "POSTDATE_TOKEN", b"\xff"),
        ("status", "POSTDATE_TOKEN_FILE", b"/\xff"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_postdate"))
            .arg(command)
            .env_clear()
            .env(name, bytes(value))
            .current_dir(tempfile::tempdir().expect("a folder").path())
            .output()
            .expect("the binary runs");
        assert_eq!(code(&output), 64, "{name}: {}", err(&output));
        assert!(err(&output).contains(name), "{name}: {}", err(&output));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_postdate"))
        .arg("check")
        .env_clear()
        .env(bytes(b"POSTDATE_REDIS__URL\xff"), "redis://h")
        .output()
        .expect("the binary runs");
    let told = err(&output);
    assert!(
        told.contains("unknown key; did you mean `redis.url`?"),
        "{told}"
    );
}

#[test]
fn help_and_version_are_answers() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["run", "--help"],
        &["check", "-h"],
        &["send", "--help"],
    ] {
        let output = postdate(args);
        assert_eq!(
            (code(&output), err(&output)),
            (0, String::new()),
            "{args:?}"
        );
        assert!(out(&output).contains("Usage: postdate"), "{args:?}");
    }
    for flag in ["-V", "--version"] {
        assert_eq!(
            out(&postdate(&[flag])),
            format!("postdate {}\n", env!("CARGO_PKG_VERSION"))
        );
    }
}

#[test]
fn the_token_comes_from_one_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "a-token\nolder\n").expect("written");
    let missing = folder.path().join("none");
    let status = |variables: &[(&str, &std::path::Path)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postdate"));
        command
            .arg("status")
            .env_clear()
            .env("POSTDATE_URL", "http://127.0.0.1:1");
        command.envs(variables.iter().copied());
        let output = command.output().expect("the binary runs");
        (code(&output), err(&output))
    };
    let (unreachable, said) = status(&[("POSTDATE_TOKEN_FILE", &file)]);
    assert!(
        unreachable == 1 && said.contains("cannot be reached"),
        "{said}"
    );
    let (usage, said) = status(&[("POSTDATE_TOKEN_FILE", &missing)]);
    assert!(
        usage == 64 && said.contains("none cannot be read"),
        "{said}"
    );
    let (usage, said) = status(&[("POSTDATE_TOKEN_FILE", &file), ("POSTDATE_TOKEN", &file)]);
    assert!(
        usage == 64 && said.contains("one of the two must go"),
        "{said}"
    );
}

#[test]
fn man_pages_go_into_a_folder_that_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("new/man1");
    let path = pages.to_str().expect("UTF-8");
    assert_eq!(code(&postdate(&["man", path])), 0);
    assert!(pages.join("postdate-send.1").exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    let refused = postdate(&["man", file.to_str().expect("UTF-8")]);
    assert!(
        code(&refused) == 1 && err(&refused).contains("file"),
        "{}",
        err(&refused)
    );
}

#[test]
fn the_reference_is_printed_as_it_is() {
    let printed = postdate(&["config", "--default"]);
    assert_eq!((code(&printed), err(&printed)), (0, String::new()));
    assert_eq!(
        out(&printed),
        super::read(repository("config/postdate.toml"))
    );
}

#[test]
fn the_routes_are_a_picture_in_two_forms() {
    let example = repository("config/examples/cross-broker.toml");
    let file = example.to_str().expect("text");
    let text = postdate(&["graph", "--config", file]);
    assert_eq!((code(&text), err(&text)), (0, String::new()));
    assert!(out(&text).contains("└─> "), "{}", out(&text));
    let dot = postdate(&["graph", "--format", "dot", "--config", file]);
    assert!(
        out(&dot).starts_with("digraph postdate {\n"),
        "{}",
        out(&dot)
    );
    assert_eq!(code(&postdate(&["graph"])), 64, "without a configuration");
}

#[test]
fn wrong_usage_is_64_and_says_so_on_stderr() {
    let cases: [&[&str]; 9] = [
        &[],
        &["config"],
        &["rnu"],
        &["run", "--confg", "x"],
        &["check", "extra"],
        &["send"],
        &[
            "send",
            "--route",
            "r",
            "--delay",
            "1s",
            "--at",
            "2030-01-01T00:00:00Z",
        ],
        &["send", "--route", "r", "--header", "nameless"],
        &["send", "--route", "r", "--body", "a", "--file", "b"],
    ];
    for args in cases {
        let output = postdate(args);
        assert_eq!(
            (code(&output), out(&output)),
            (64, String::new()),
            "{args:?}"
        );
        assert!(!err(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn an_import_says_what_it_lacks_before_it_connects() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("postdate.toml");
    let text = r#"
        redis.url = "redis://127.0.0.1:1"
        rabbitmq.main.url = "amqp://127.0.0.1:1/%2f"
        [routes.mail]
        from = { rabbitmq = "main", queue = "mail.delayed" }
        to = { rabbitmq = "main", exchange = "mail", routing_key = "preserve" }
    "#;
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let import = |line: &str| {
        let words = ["import"]
            .into_iter()
            .chain(line.split(' '))
            .chain(["--config", file]);
        let output = postdate(&words.collect::<Vec<_>>());
        (code(&output), err(&output))
    };
    let queue = "redisson --queue q --redis redis://127.0.0.1:1";
    let set = "zset --key k --redis redis://127.0.0.1:1";
    for (line, said) in [
        (format!("{queue} --route mial"), "did you mean mail?"),
        (format!("{queue} --route mail"), "give --message-key"),
        (
            format!("{queue} --route mail --message-key k --header X-Delay=1"),
            "`X-Delay` is set by the import",
        ),
        (
            "redisson --queue q --route mail --message-key k".to_owned(),
            "--redis <URL>",
        ),
        (
            format!("{set} --score s --member bodies --route mail"),
            "`body`, `json:FIELD` or `hash:KEY`",
        ),
        (
            format!("{set} --score us --member body --route mail"),
            "possible values: ms, s",
        ),
        (
            "zset --key postdate:{3}:due:a --redis redis://127.0.0.1:1 --score ms --member body --route mail \
             --message-key k"
                .to_owned(),
            "`postdate:{3}:due:a` is a key of Postdate's own store",
        ),
        (
            "zset --key k --redis redis://127.0.0.1:1 --score ms --member hash:postdate:meta --route mail \
             --message-key k"
                .to_owned(),
            "`postdate:meta` is a key of Postdate's own store",
        ),
        (
            "redisson --queue q --redis-file /nowhere --route mail --message-key k".to_owned(),
            "--redis-file: ",
        ),
    ] {
        let (exit, error) = import(&line);
        assert!(exit == 64 && error.contains(said), "{line}: {exit} {error}");
    }
    let (exit, error) = import(&format!("{queue} --route mail --message-key k"));
    assert!(
        exit == 1 && error.contains("the store cannot be used"),
        "{exit} {error}"
    );
}

#[test]
fn a_wrong_configuration_is_64_before_anything_is_bound() {
    for command in ["run", "check"] {
        let missing = postdate(&[command, "--config", "nowhere.toml"]);
        assert_eq!(code(&missing), 64);
        assert!(
            err(&missing).starts_with("error: nowhere.toml: cannot be read: No such file"),
            "{}",
            err(&missing)
        );

        // With an installed configuration this would start a relay between the servers that it names.
        let installed = Path::new("/etc/postdate/postdate.toml");
        assert!(
            !installed.exists(),
            "{} is there: tests want a machine without it",
            installed.display()
        );
        let none = postdate(&[command]);
        assert_eq!(code(&none), 64);
        assert!(
            err(&none).contains("looked for ./postdate.toml and /etc/postdate/postdate.toml"),
            "{}",
            err(&none)
        );

        let several = repository("config/rejected/wrong-keys.toml");
        let several = postdate(&[command, "--config", several.to_str().expect("text")]);
        assert_eq!(code(&several), 64);
        assert!(err(&several).ends_with("5 errors\n"), "{}", err(&several));
    }
    // A wrong one is not printed: a secret under a misspelt key is not known as one.
    let wrong = repository("config/rejected/wrong-keys.toml");
    let wrong = postdate(&[
        "check",
        "--print",
        "--config",
        wrong.to_str().expect("text"),
    ]);
    assert_eq!((code(&wrong), out(&wrong)), (64, String::new()));
}

#[test]
fn a_right_configuration_is_0_and_found_where_it_is_said_to_be() {
    let example = repository("config/examples/minimal.toml");
    let named = postdate(&["check", "--config", example.to_str().expect("text")]);
    assert_eq!((code(&named), err(&named)), (0, String::new()));
    let printed = postdate(&[
        "check",
        "--print",
        "--config",
        example.to_str().expect("text"),
    ]);
    assert_eq!(code(&printed), 0);
    assert!(
        out(&printed).contains("[routes.orders.from]"),
        "{}",
        out(&printed)
    );

    let folder = tempfile::tempdir().expect("a folder");
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postdate"));
        command.arg("check").env_clear().current_dir(folder.path());
        command
    };
    let by_environment = check()
        .env("POSTDATE_CONFIG", &example)
        .output()
        .expect("runs");
    assert_eq!(code(&by_environment), 0, "{}", err(&by_environment));
    std::fs::copy(&example, folder.path().join("postdate.toml")).expect("copied");
    let by_place = check().output().expect("runs");
    assert_eq!(code(&by_place), 0, "{}", err(&by_place));
}
