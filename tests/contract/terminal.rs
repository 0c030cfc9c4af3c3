//! No command writes a character to a terminal that could move its cursor, give it a command, or forge a line: whatever
//! producers have put into ids, reasons and headers, and whatever the caller typed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postdate::domain::unsafe_text::{escaped, is_unsafe};
use serde_json::{Value, json};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::{read, repository};

/// Stands for a nasty text in a command line.
const NASTY: &str = "{nasty}";

/// Command lines that print words of producers, brokers or the caller.
const LINES: &[&[&str]] = &[
    &["status"],
    &["status", "--json"],
    &["pending"],
    &["pending", "--json"],
    &["pending", "--from", NASTY],
    &["top"],
    &["show", "--", NASTY],
    &["show", "--route", "orders", "--", NASTY],
    &["cancel", "--", NASTY],
    &["cancel", "--route", "orders", "--", NASTY, NASTY],
    &["cancel", "--route", "orders", "--json", "--", NASTY],
    &["cancel", "--route", NASTY, "--", NASTY],
    &["reschedule", "--delay", "2s", "--", NASTY],
    &[
        "reschedule",
        "--route",
        "orders",
        "--delay",
        "2s",
        "--json",
        "--",
        NASTY,
    ],
    &["reschedule", "--at", NASTY, "--", "order-7"],
    &["replace", "--body", NASTY, "--", NASTY],
    &["replace", "--header", NASTY, "--", "order-7"],
    &[
        "replace", "--route", "orders", "--body", NASTY, "--json", "--", NASTY,
    ],
    &["pending", "--header", NASTY],
    &["pending", "--contains", NASTY],
    &["send", "--route", "orders", "--id", NASTY],
    &["send", "--route", "orders", "--wait"],
    &["send", "--route", "orders", "--json"],
    &["send", "--route", NASTY],
    &["send", "--route", "orders", "--header", NASTY],
    &["size", "--rate", "1k", "--pending", "1M", "--body", "400B"],
    &["size", "--rate", NASTY, "--pending", "1M", "--body", "400B"],
    &["pause", "orders"],
    &["pause", "orders", "--json"],
    &["pause", "--", NASTY],
    &["resume", "orders"],
    &["purge", "--route", "orders"],
    &["purge", "--route", "orders", "--from", NASTY],
    &["purge", "--route", NASTY, "--yes"],
    &[
        "skip",
        "--route",
        "orders",
        "--partition",
        "0",
        "--offset",
        "7",
    ],
    &[
        "skip",
        "--route",
        "orders",
        "--partition",
        "0",
        "--offset",
        "7",
        "--json",
    ],
    &[
        "skip",
        "--route",
        "orders",
        "--partition",
        "0",
        "--since=-1h",
    ],
    &[
        "skip",
        "--route",
        NASTY,
        "--partition",
        "0",
        "--offset",
        "7",
    ],
    &["resume", "orders", "--only", NASTY],
    &["dead", "list"],
    &["dead", "list", "--json"],
    &["dead", "show", "--", NASTY],
    &["dead", "show", "--json", "--body", "--", NASTY],
    &["dead", "export"],
    &["dead", "redrive", "--", NASTY],
    &["dead", "redrive", "--json", "--", NASTY],
    &["dead", "drop", "--all", "--yes"],
    &["dead", "drop", "--json", "--reason", NASTY, "--yes"],
    &["dead", "list", "--from", NASTY],
    &["dead", NASTY],
    &[NASTY],
    &["check", "--set", NASTY],
    &["check", "--config", NASTY],
    &["graph", "--config", NASTY],
    &["replay", "--route", "orders", "--since", NASTY],
    &["bench", "--route", "orders", "--delay", NASTY],
    &[
        "import", "redisson", "--queue", NASTY, "--redis", NASTY, "--route", NASTY,
    ],
    &[
        "import",
        "zset",
        "--key",
        NASTY,
        "--redis-file",
        NASTY,
        "--route",
        "orders",
        "--score",
        "s",
        "--member",
        "body",
    ],
    &["plan", "rabbitmq-plugin", "--definitions", NASTY],
];

/// Commands that print nothing but their own words before they log or write files.
const OWN_WORDS: [&str; 3] = ["run", "completions", "config"];

/// How the double of the API answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Agrees,
    Refuses,
    KnowsNothing,
    IsAnotherServer,
}

/// Texts as a producer could send them: the first and the last of each run of unsafe characters, and what terminals and
/// readers fall for.
fn corpus() -> Vec<String> {
    let is_next_safe = |c: Option<char>| c.is_none_or(|c| !is_unsafe(c));
    let is_edge = |c: &char| {
        let [before, after] = [u32::from(*c) - 1, u32::from(*c) + 1].map(char::from_u32);
        is_next_safe(before) || is_next_safe(after)
    };
    let edges: String = ('\u{1}'..=char::MAX)
        .filter(|c| is_unsafe(*c))
        .filter(is_edge)
        .collect();
    let known = [
        "inv\u{200b}is\u{2060}ible\u{feff}\u{ad}\u{e0041}\u{e000}",
        "\u{1b}[2J\u{1b}]0;pwned\u{7}\u{1b}P$q\u{1b}\\",
        "a\nforged: cancelled\r\nforged",
        "\u{9b}31m\u{202e}dne\u{2066}\u{2067}\u{61c}\u{200f}",
        "\\u001b[2J \\n \u{1f600}\u{7f}\u{8}",
    ];
    std::iter::once(edges)
        .chain(known.map(str::to_owned))
        .collect()
}

/// An object that has every member which a command reads, each text of them this one.
fn document(nasty: &str, name: &str, result: &str) -> Value {
    let message = json!({
        "route": "orders", "result": result, nasty: nasty, "id": nasty, "dead_id": nasty, "version": nasty,
        "target": nasty, "key": nasty, "body": nasty, "state": nasty, "error": nasty, "reason": nasty,
        "attempt": 1, "failures": 1, "size": 1, "stored_bytes": 1, "left_out": false, "published_at": nasty,
        "lateness_ms": 1.5, "due_ms": 1, "asked_ms": 1, "dead_at_ms": 1,
        "last_error": { "at_ms": 1, "reason": nasty, "error": nasty },
    });
    let parts = json!({
        "headers": [{ "name": nasty, "value": nasty }],
        "history": [{ "at_ms": 1, "reason": nasty, "error": nasty }],
        "trail": [{ "at_ms": 1, "event": nasty, "by": nasty, "because": nasty }],
        "parts": [{ "name": nasty, "state": nasty }],
    });
    let route = json!({
        "name": name, "from": { "kafka": nasty }, "to": { "kafka": nasty }, "allow_targets": [nasty], "policy": {},
        "pending": 1, "in_flight": 1, "dead": 1, "paused": [nasty], "publishing_paused": true, "pauses": [],
        "troubles": [nasty], "oldest_overdue_s": 1.5, "rate_in": 1.5, "rate_out": 1.5,
    });
    let replica = json!({
        "replica": nasty, "this": false, "alive": true, "ready": true, "draining": false, "partitions": 1, "now_ms": 1,
    });
    let action = json!({
        "dry_run": true, "messages": 1, "bytes": 1, "changed": 1, "topic": nasty, "partition": 1,
    });
    let all = [message, parts, route, replica, action].into_iter();
    all.filter_map(|part| part.as_object().cloned())
        .flatten()
        .collect()
}

fn answer(request: &str, nasty: &str, manner: Manner) -> String {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let name = if path.contains("replicas") {
        nasty
    } else {
        "orders"
    };
    let (status, body) = match manner {
        Manner::Agrees => {
            let mut body = document(nasty, name, nasty);
            body["items"] = [nasty, "redriven", "dropped"]
                .map(|result| document(nasty, name, result))
                .into();
            if path.ends_with("/skip") {
                body["next"] = 1.into();
            }
            if path.ends_with("/overview") {
                body["replicas"] = [document(nasty, nasty, nasty)].into();
                body["routes"] = body["items"].clone();
                body["troubles"] = json!([{
                    "part": nasty, "why": nasty, "since": nasty, "follows": [nasty, nasty], "command": nasty,
                    "runbook": nasty,
                }]);
                body["unconfigured_routes"] = json!([nasty]);
            }
            (200, body.to_string())
        }
        Manner::Refuses => (409, json!({ "detail": nasty, "result": nasty }).to_string()),
        Manner::KnowsNothing if path == "/api/v1/routes" => {
            (200, json!({ "items": [{ "name": "orders" }] }).to_string())
        }
        Manner::KnowsNothing => (
            404,
            json!({ "detail": format!("none; did you mean {nasty}") }).to_string(),
        ),
        Manner::IsAnotherServer => (200, nasty.to_owned()),
    };
    format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one request, head and body.
fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut part = vec![0; 65_536];
    loop {
        let read = stream.read(&mut part).unwrap_or(0);
        request.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            assert!(read > 0, "half a request: {text}");
            continue;
        };
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next()?.parse().ok());
        if body.len() >= length.unwrap_or(0) || read == 0 {
            return String::from_utf8_lossy(&request).into_owned();
        }
    }
}

/// A double of the API, which answers until the process ends.
fn start_api(answers: Arc<Mutex<(String, Manner)>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepted");
            let request = read_request(&mut stream);
            let (nasty, manner) = answers.lock().clone();
            // A client that has gone away fails its own assertion.
            stream
                .write_all(answer(&request, &nasty, manner).as_bytes())
                .unwrap_or_default();
        }
    });
    address
}

fn run(line: &[&str], nasty: &str, url: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    Command::new(env!("CARGO_BIN_EXE_postdate"))
        .args(
            line.iter()
                .map(|word| if *word == NASTY { nasty } else { word }),
        )
        .env_clear()
        .env("POSTDATE_URL", url)
        .current_dir(folder.path())
        .output()
        .expect("the binary runs")
}

/// Reports whether a JSON value holds this text as a string of its own.
fn holds(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(items) => items.iter().any(|item| holds(item, text)),
        Value::Object(members) => members.values().any(|item| holds(item, text)),
        _ => false,
    }
}

#[test]
fn no_command_lets_a_word_of_others_command_the_terminal() {
    let answers = Arc::new(Mutex::new((String::new(), Manner::Agrees)));
    let url = format!("http://{}", start_api(answers.clone()));
    for nasty in corpus() {
        for manner in [
            Manner::Agrees,
            Manner::Refuses,
            Manner::KnowsNothing,
            Manner::IsAnotherServer,
        ] {
            *answers.lock() = (nasty.clone(), manner);
            for line in LINES {
                let output = run(line, &nasty, &url);
                let case = format!("{line:?} with {nasty:?}, the API {manner:?}");
                assert!(
                    !(output.stdout.is_empty() && output.stderr.is_empty()),
                    "{case} says nothing"
                );
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    manner != Manner::Agrees || !said.contains("does not answer as"),
                    "{case}: {said}"
                );
                for stream in [&output.stdout, &output.stderr] {
                    let text = String::from_utf8(stream.clone()).expect("UTF-8");
                    let found = text.chars().find(|c| *c != '\n' && is_unsafe(*c));
                    assert_eq!(found, None, "{case}: {text:?}");
                    assert!(
                        !text.lines().any(|line| line.starts_with("forged")),
                        "{case}: {text:?}"
                    );
                }
                let is_json =
                    line.contains(&"--json") || line[..2.min(line.len())] == ["dead", "export"];
                if is_json && manner == Manner::Agrees {
                    let text = String::from_utf8(output.stdout).expect("UTF-8");
                    let first = serde_json::Deserializer::from_str(&text)
                        .into_iter::<Value>()
                        .next();
                    let value = first
                        .expect("a value")
                        .unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert!(holds(&value, &nasty), "{case}: {value}");
                }
            }
        }
    }
    let nasty_url = format!("http://{}", corpus()[2]);
    let output = run(&["status"], "", &nasty_url);
    assert!(
        !String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .contains(is_unsafe)
    );
}

/// The categories and the single characters in the class of the console's regular expression.
fn console_class(class: &str) -> (Vec<GeneralCategory>, Vec<char>) {
    let mut parts = class.split('\\');
    assert_eq!(parts.next(), Some(""), "{class} holds escapes alone");
    let (mut categories, mut characters) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            "p{Cc}" => categories.push(GeneralCategory::Control),
            "p{Cf}" => categories.push(GeneralCategory::Format),
            "p{Cn}" => categories.push(GeneralCategory::Unassigned),
            "p{Co}" => categories.push(GeneralCategory::PrivateUse),
            "p{Cs}" => categories.push(GeneralCategory::Surrogate),
            "p{Zl}" => categories.push(GeneralCategory::LineSeparator),
            "p{Zp}" => categories.push(GeneralCategory::ParagraphSeparator),
            part => {
                let code = part
                    .strip_prefix('u')
                    .map(|hex| u32::from_str_radix(hex, 16));
                let code = code.expect("a code point").expect("hexadecimal");
                characters.push(char::from_u32(code).expect("a character"));
            }
        }
    }
    (categories, characters)
}

/// What a text looks like does not depend on where it is looked at.
#[test]
fn the_console_and_the_terminal_escape_the_same_characters_in_the_same_way() {
    let source = read(repository("src/admin/console/lib/text.js"));
    let (_, class) = source
        .split_once("const HIDDEN = /[")
        .expect("the console's rule");
    // A space at the beginning or the end of a name is the console's own: its names stand in boxes.
    let (class, _) = class.split_once("]|^ | $/gu;").expect("its end");
    let (categories, characters) = console_class(class);
    let is_hidden = |c: char| categories.contains(&c.general_category()) || characters.contains(&c);
    let different: Vec<char> = ('\0'..=char::MAX)
        .filter(|c| is_hidden(*c) != is_unsafe(*c))
        .collect();
    assert!(different.is_empty(), "{different:x?}");
    let form = r"return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, ";
    assert!(source.contains(form), "the console's escapes");
    assert_eq!(escaped("\n\u{200b}\u{e0001}"), r"\u000a\u200b\u{e0001}");
}

/// Command lines that print words of our own, beside those of [`LINES`].
const OWN_LINES: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["help", "dead"],
    &["completions", "bash"],
    &["completions", "zsh"],
    &["completions", "fish"],
    &["config", "--default"],
    &["config", "--schema"],
    &["pending", "--watch"],
    &["status", "--watch"],
];

/// Looks at a command line of the test until it must have ended, and the time between two.
const LOOKS: usize = 4000;
const LOOK: Duration = Duration::from_millis(5);

/// Runs a command line whose standard output is this file. Answers its exit code and what it said on standard error.
fn run_into(line: &[&str], url: &str, output: impl Into<Stdio>) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_postdate"))
        .args(line.iter().map(|word| word.replace(NASTY, "order-7")))
        .env_clear()
        .env("POSTDATE_URL", url)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let status = (0..LOOKS).find_map(|_| {
        let status = child.try_wait().expect("its status");
        if status.is_none() {
            std::thread::sleep(LOOK);
        }
        status
    });
    let status = status.unwrap_or_else(|| panic!("{line:?} does not end"));
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("piped");
    stderr.read_to_string(&mut said).expect("UTF-8");
    (status.code(), said)
}

/// A disk that is full fails the command that writes to it. A reader that has gone away has all that it wanted.
#[test]
fn output_that_cannot_be_written_is_noticed_by_every_command() {
    let answers = Arc::new(Mutex::new(("order-7".to_owned(), Manner::Agrees)));
    let url = format!("http://{}", start_api(answers));
    let repeats = |line: &[&str]| line.contains(&"--watch");
    for line in LINES.iter().chain(OWN_LINES) {
        let printed = if repeats(line) {
            None
        } else {
            let words: Vec<String> = line
                .iter()
                .map(|word| word.replace(NASTY, "order-7"))
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Some(run(&words, "", &url))
        };
        let is_silent = printed
            .as_ref()
            .is_some_and(|printed| printed.stdout.is_empty());
        let usual = printed.map_or(Some(0), |printed| printed.status.code());

        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full");
        let (code, said) = run_into(line, &url, full);
        assert!(!said.contains("panicked"), "{line:?}: {said}");
        if is_silent {
            assert_eq!(code, usual, "{line:?} writes nothing: {said}");
        } else {
            assert!(code != Some(0) && code.is_some(), "{line:?}: {code:?}");
            assert!(said.contains("No space left"), "{line:?}: {said}");
        }

        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let (code, said) = run_into(line, &url, writer);
        assert_eq!(code, usual, "{line:?}: {said}");
        assert!(
            !said.contains("Broken pipe") && !said.contains("panicked"),
            "{line:?}: {said}"
        );
    }
}

#[test]
fn no_command_is_left_out() {
    let help = String::from_utf8(run(&["--help"], "", "").stdout).expect("UTF-8");
    let (_, commands) = help.split_once("Commands:\n").expect("a list of commands");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"dead"), "{help}");
    for command in commands {
        let covered = LINES.iter().any(|line| line[0] == command) || OWN_WORDS.contains(&command);
        assert!(covered, "`{command}` needs a line in this test");
    }
}
