//! The page of producers: it leads to the programs of `tests/clients`, and its table is what the last run of each noted.
//! `UPDATE_DOCS=1 cargo test --test contract` puts both into the page, `scripts/test-clients --record` makes the record,
//! `scripts/docs` puts the programs themselves into the site.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::{read, repository};

#[path = "../clients/table.rs"]
mod table;

use table::{BrokerKind, CLIENT_PROGRAMS, ClientProgram};

/// Begin and end of a part of the page that is made.
const CUT_BEGIN: &str = "<!-- cut from ";
const TABLE_BEGIN: &str = "<!-- made from docs/producers.json -->";
const PART_END: &str = "<!-- end -->";

/// Part of a program that the site leaves out: what only a test of it does.
const TEST_BEGIN: &str = "[test]";
const TEST_END: &str = "[/test]";

type Record = BTreeMap<String, BTreeMap<String, String>>;

fn record() -> Record {
    let value: Value =
        serde_json::from_str(&read(repository("docs/producers.json"))).expect("JSON");
    serde_json::from_value(value).expect("docs/producers.json: an object for each client")
}

/// Word of a code block for a program.
fn fence_word(program: &ClientProgram) -> &'static str {
    match program
        .source
        .rsplit_once('.')
        .map(|(_, extension)| extension)
    {
        Some("java") => "java",
        Some("py") => "python",
        Some("go") => "go",
        Some("js") => "javascript",
        Some("cs") => "csharp",
        Some("php") => "php",
        Some("rb") => "ruby",
        Some("rs") => "rust",
        other => panic!("{other:?}: which language is that?"),
    }
}

/// Link to a program, in whose place the site has the program itself, and a line before it if nobody has run it.
fn snippet(program: &ClientProgram, record: &Record) -> String {
    let path = program.path();
    let has_run = record.contains_key(&program.name());
    let note = if has_run {
        ""
    } else {
        "**Not run:** its toolchain or its library was not at hand.\n\n"
    };
    format!("{note}The whole program: [`{path}`](../{path}).")
}

/// Table of the clients, each with its last run.
fn client_table(record: &Record) -> String {
    let mut made = String::from(
        "| client | run on | with | `x-delay` of 2000 goes out as | `x-deliver-at` as |\n|---|---|---|---|---|\n",
    );
    for program in CLIENT_PROGRAMS {
        let broker = match program.broker {
            BrokerKind::Kafka => "Kafka",
            BrokerKind::Rabbitmq => "RabbitMQ",
        };
        let row = if let Some(run) = record.get(&program.name()) {
            let client = format!("{} ({})", run["library"], run["toolchain"]);
            format!(
                "{client} | {} | {} | {} | {}",
                run["date"], run["broker"], run["delay"], run["moment"]
            )
        } else {
            let language = if program.language == "dotnet" {
                ".NET"
            } else {
                fence_word(program)
            };
            format!("{language}, {broker} | not run | | |")
        };
        writeln!(made, "| {row} |").expect("a String");
    }
    made.trim_end().to_owned()
}

/// The page with each of its made parts made anew.
fn page(text: &str, record: &Record) -> String {
    let mut made = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(made, "{line}").expect("a String");
        let part = if line == TABLE_BEGIN {
            client_table(record)
        } else if let Some(path) = line
            .strip_prefix(CUT_BEGIN)
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            let program = CLIENT_PROGRAMS
                .iter()
                .find(|program| program.path() == path);
            snippet(
                program.unwrap_or_else(|| panic!("{path} is no client's program")),
                record,
            )
        } else {
            continue;
        };
        assert!(
            lines.by_ref().any(|line| line == PART_END),
            "no {PART_END} behind {line}"
        );
        writeln!(made, "{part}\n{PART_END}").expect("a String");
    }
    made
}

#[test]
fn the_page_of_producers_is_fresh() {
    let path = repository("docs/producers.md");
    let text = read(&path);
    let made = page(&text, &record());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    assert!(
        read(path) == made,
        "docs/producers.md is not fresh: UPDATE_DOCS=1 cargo test --test contract"
    );
    for program in CLIENT_PROGRAMS {
        let begin = format!("{CUT_BEGIN}{} -->", program.path());
        assert_eq!(
            made.matches(&begin).count(),
            1,
            "{}: once on the page",
            program.path()
        );
    }
    for name in record().keys() {
        assert!(
            CLIENT_PROGRAMS
                .iter()
                .any(|program| program.name() == *name),
            "{name} is no client"
        );
    }
}

#[test]
fn what_only_a_test_does_has_a_beginning_and_an_end_in_each_program() {
    for program in CLIENT_PROGRAMS {
        let text = read(repository(&program.path()));
        let marks = text
            .lines()
            .map(|line| {
                line.trim_start()
                    .trim_start_matches(['/', '#'])
                    .trim_start()
            })
            .filter(|mark| [TEST_BEGIN, TEST_END].contains(mark));
        for (number, mark) in marks.enumerate() {
            let expected = [TEST_BEGIN, TEST_END][number % 2];
            assert_eq!(mark, expected, "{}", program.path());
        }
        assert_eq!(
            text.matches(TEST_BEGIN).count(),
            text.matches(TEST_END).count()
        );
    }
}
