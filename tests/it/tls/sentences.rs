//! Each failure of TLS has a sentence of its own, with all three servers. The sentences are a table of docs/security.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use futures_util::future::join_all;

use super::fixture::{Ends, Objects, TlsFixture};
use crate::support::{Tls, folders, relay};

/// Lines around the table in docs/security.md.
const BEGIN: &str =
    "<!-- Made by UPDATE_DOCS=1 cargo test --features mutants --test it -- tls::sentences -->\n\n";
const END: &str = "\n<!-- end -->\n";
/// Beginnings of the lines about Redis, RabbitMQ and Kafka.
const SERVERS: [(&str, &str); 3] = [
    ("Redis", "error: redis: "),
    ("RabbitMQ", "error: rabbitmq main: "),
    ("Kafka", "error: kafka main: "),
];
/// Words that mislead where TLS is the reason.
const MISLEADING: [&str; 3] = [
    "is it running",
    "is that the address meant",
    "user and password",
];

/// A way to fail, in the words of the table, and the parts of the three sentences.
struct Case {
    name: &'static str,
    ends: Ends,
    parts: [&'static str; 3],
}

fn cases(fixture: &TlsFixture, other: &Tls) -> Vec<Case> {
    let good = fixture.good();
    let case = |name, ends, parts| Case { name, ends, parts };
    vec![
        case(
            "an unknown authority",
            Ends {
                ca: Some(other.authority()),
                ..good.clone()
            },
            [
                "that is trusted here: name the authority's certificate in `redis.tls.ca`",
                "that is trusted here: name the authority's certificate in `rabbitmq.main.tls.ca`",
                "that is trusted here: name the authority's certificate in `kafka.main.properties.ssl.ca.location`",
            ],
        ),
        case(
            "an expired certificate",
            fixture.expired(),
            ["its certificate has expired"; 3],
        ),
        case(
            "another name",
            fixture.reached_by("localhost"),
            ["its certificate is for 127.0.0.1, not for localhost"; 3],
        ),
        case(
            "no certificate where one is wanted",
            Ends {
                identity: None,
                ..good.clone()
            },
            [
                "it wants a certificate of its clients: name one, and its key, in `redis.tls.certificate`",
                "it wants a certificate of its clients: name one, and its key, in `rabbitmq.main.tls.certificate`",
                "name one, and its key, in `kafka.main.properties.ssl.certificate.location`",
            ],
        ),
        case(
            "TLS to a port without",
            fixture.with_tls_to_plain(),
            [
                "it does not speak TLS there: `redis.url` must begin with redis://",
                "it does not speak TLS there: `rabbitmq.main.url` must begin with amqp://",
                "it ends the connection at the TLS handshake; if it speaks no TLS there: set `security.protocol`",
            ],
        ),
        case(
            "no TLS to a port with it",
            fixture.without_tls(),
            [
                "it speaks TLS there: `redis.url` must begin with rediss://",
                "it speaks TLS there: `rabbitmq.main.url` must begin with amqps://",
                "it speaks TLS there: set `security.protocol` in `kafka.main.properties` to SSL or SASL_SSL",
            ],
        ),
    ]
}

async fn check(ends: &Ends, objects: &Objects) -> Output {
    let file = folders::new("check").join("postdate.toml");
    std::fs::write(&file, ends.config(objects).text("127.0.0.1:0")).expect("a configuration file");
    let run = move || {
        let mut command = Command::new(relay::binary());
        command
            .args(["check", "--connect", "--config"])
            .arg(file)
            .env_clear();
        command.output().expect("the binary runs")
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The sentence in a line: without the server before it, and without the library's words behind it.
fn sentence(line: &str) -> String {
    let (_, sentence) = line
        .split_once(": it")
        .unwrap_or_else(|| panic!("no sentence: {line}"));
    let sentence = sentence
        .split_once(" (")
        .map_or(sentence, |(sentence, _)| sentence);
    let words = sentence.split(' ').map(|word| {
        if word.parse::<u32>().is_ok() {
            "N"
        } else {
            word
        }
    });
    format!("it{}", words.collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn each_failure_has_a_sentence_of_its_own() {
    let fixture = TlsFixture::shared().await;
    let objects = fixture.objects().await;
    let well = check(&fixture.good(), &objects).await;
    assert_eq!(
        well.status.code(),
        Some(0),
        "{}{}",
        text(&well.stdout),
        text(&well.stderr)
    );
    let other = Tls::new();
    let cases = cases(fixture, &other);
    let found = join_all(cases.iter().map(|case| check(&case.ends, &objects))).await;
    let mut table = String::from("| what is wrong | server | sentence |\n|---|---|---|\n");
    for (case, output) in cases.iter().zip(found) {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{}: {said}", case.name);
        for ((server, begin), part) in SERVERS.iter().zip(case.parts) {
            let line = said.lines().find(|line| line.starts_with(begin));
            let line = line.unwrap_or_else(|| panic!("{}: nothing of {server}: {said}", case.name));
            assert!(line.contains(part), "{}: {part}\n{line}", case.name);
            for words in MISLEADING {
                assert!(!line.contains(words), "{}: {line}", case.name);
            }
            assert!(!line.contains("guest:guest"), "{line}");
            let row = format!("| {} | {server} | {} |\n", case.name, sentence(line));
            table += &row;
        }
    }
    let rows: BTreeSet<&str> = table
        .lines()
        .map(|row| row.rsplit(" | ").next().unwrap_or(row))
        .collect();
    assert!(
        rows.len() > cases.len() * 2,
        "sentences of different causes are the same:\n{table}"
    );
    document(&table);
}

/// A certificate that the server refuses is not taken for one that is missing.
#[tokio::test]
async fn a_refused_certificate_is_said_to_be_refused() {
    let fixture = TlsFixture::shared().await;
    let objects = fixture.objects().await;
    let other = Tls::new();
    let ends = Ends {
        identity: Some(other.client()),
        ..fixture.good()
    };
    let said = text(&check(&ends, &objects).await.stderr);
    for part in [
        "it refuses the certificate that `redis.tls.certificate` names (UnknownCA)",
        "it refuses the certificate that `rabbitmq.main.tls.certificate` names (UnknownCA)",
        "look at `security.protocol` and the `ssl.` properties in `kafka.main.properties`",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
}

/// Holds the table in docs/security.md, or makes it.
fn document(table: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md");
    let page = std::fs::read_to_string(&path).expect("docs/security.md");
    let (before, rest) = page.split_once(BEGIN).expect("the table's begin");
    let (_, after) = rest.split_once(END).expect("the table's end");
    let made = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    } else {
        assert!(
            page == made,
            "docs/security.md is not fresh; its table is:\n{table}"
        );
    }
}
