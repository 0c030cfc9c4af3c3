//! The pages of reference, which are made from the source: into `target/pages`, from where `scripts/docs` takes them
//! for the site. In `docs/` each of them is a word on where else to read the same.

mod api;
pub(crate) mod metrics;

use std::collections::BTreeSet;
use std::fmt::Write;

use super::chart;
use super::command::help_of;
use super::{read, repository};

type MakePage = fn() -> String;

/// Each page that is made, by its file in `docs/`.
const PAGES: [(&str, MakePage); 5] = [
    ("api.md", || api::page(&api::description())),
    ("cli.md", command_line),
    ("configuration.md", || {
        configuration(&read(repository("config/postdate.toml")))
    }),
    ("metrics.md", metrics::page),
    ("values.md", || {
        chart::values(&read(repository("deploy/helm/postdate/values.yaml")))
    }),
];

/// The text of a page that is made.
pub(super) fn made(file: &str) -> Option<String> {
    let (_, make) = PAGES.iter().find(|(made, _)| *made == file)?;
    Some(make())
}

#[test]
fn the_pages_of_reference_are_made() {
    let folder = repository("target/pages");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (file, make) in PAGES {
        let page = make();
        let kept = read(repository("docs").join(file));
        let title = page.lines().next();
        assert!(title.is_some_and(|title| title.starts_with("# ")), "{file}");
        assert_eq!(title, kept.lines().next(), "docs/{file}");
        assert!(page.split_whitespace().count() > 1000, "{file}: {page}");
        assert!(
            kept.split_whitespace().count() < 100,
            "docs/{file} is no page of its own"
        );
        std::fs::write(folder.join(file), page).expect("written");
    }
}

/// The reference as a page: a chapter for each table, an entry for each key with its default and meaning.
/// Prose stands behind `# `, a key or a table that has no default behind a `#` alone.
fn configuration(reference: &str) -> String {
    let mut page = String::from("# Configuration\n\n`postdate config` prints the same.\n");
    let mut prose: Vec<&str> = Vec::new();
    let mut first_key = true;
    for line in reference.lines() {
        let prose_line = line
            .strip_prefix("# ")
            .or_else(|| (line == "#").then_some(""));
        if let Some(text) = prose_line {
            prose.push(text);
            continue;
        }
        let (key, has_default) = line
            .strip_prefix('#')
            .map_or((line, true), |key| (key, false));
        if let Some(table) = key.strip_prefix('[').and_then(|key| key.strip_suffix(']')) {
            writeln!(page, "\n## `[{table}]`\n\n{}", prose.join("\n")).expect("a String");
            first_key = true;
        } else if let Some((name, value)) = key.split_once(" = ") {
            if std::mem::take(&mut first_key) {
                page.push('\n');
            }
            let value = if has_default {
                format!("`{value}`")
            } else {
                format!("no default; for example `{value}`")
            };
            let prose = prose
                .join("\n")
                .replace('\n', "\n  ")
                .replace("\n  \n", "\n\n");
            writeln!(page, "- **`{name}`**: {value}\n\n  {prose}\n").expect("a String");
        } else if !prose.is_empty() {
            writeln!(page, "\n{}", prose.join("\n")).expect("a String");
        }
        prose.clear();
    }
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    page.trim_end().to_owned() + "\n"
}

fn command_line() -> String {
    let mut page = "# Command line\n\n`postdate COMMAND --help` prints the same.\n".to_owned();
    commands(&mut page, &[]);
    page
}

/// Appends a command's help, then those of its commands.
fn commands(page: &mut String, command: &[&str]) {
    let help = help_of(command);
    let name = [&["postdate"][..], command].concat().join(" ");
    writeln!(page, "\n## `{name}`\n\n```text\n{}\n```", help.trim_end()).expect("a String");
    let list = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, list)| list);
    for line in list.lines().take_while(|line| !line.is_empty()) {
        // The lines of a longer description begin further to the right.
        let Some(line) = line
            .strip_prefix("  ")
            .filter(|line| !line.starts_with(' '))
        else {
            continue;
        };
        let name = line.split(' ').next().expect("a name");
        if name != "help" {
            commands(page, &[command, &[name]].concat());
        }
    }
}

/// An argument can be seen by every user of the machine. No help has an example with a password in one, and each option
/// that takes one says so, or the option behind it that takes a file instead.
#[test]
fn no_help_teaches_passwords_in_arguments() {
    const OPTION: &str = "\n      --";
    let page = command_line();
    let words: Vec<&str> = page.split_whitespace().collect();
    let examples = words.split(|word| *word == "postdate").skip(1);
    for example in examples {
        let arguments = example
            .iter()
            .take_while(|word| !word.ends_with(['.', ':']));
        for argument in arguments {
            let is_login = argument.contains("://") && argument.contains('@');
            assert!(!is_login, "postdate {}", example.join(" "));
        }
    }
    let options: Vec<String> = page
        .split(OPTION)
        .map(|option| option.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut told = BTreeSet::new();
    for (option, next) in options.iter().zip(&options[1..]) {
        let mut words = option.split(' ');
        let name = words.next().unwrap_or_default();
        if matches!(words.next(), Some("<URL>" | "<KEY=VALUE>")) {
            let text = if next.starts_with(&format!("{name}-file ")) {
                next
            } else {
                option
            };
            let warning = "can be seen by every user of the machine";
            assert!(text.contains(warning), "--{option}");
            told.insert(name);
        }
    }
    assert_eq!(told, BTreeSet::from(["management", "redis", "set"]));
}
