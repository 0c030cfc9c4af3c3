//! Documents that are made from the source are fresh. `UPDATE_DOCS=1 cargo test --test contract` makes them.

use std::fmt::Write;

use super::{files, read, repository};

#[test]
fn configuration_is_fresh() {
    let made = configuration(&read(repository("config/postdate.toml")));
    let path = repository("docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(repository("docs")).expect("docs");
        std::fs::write(&path, &made).expect("written");
    }
    assert!(
        read(path) == made,
        "docs/configuration.md is not fresh: UPDATE_DOCS=1 cargo test --test contract"
    );
}

/// The reference as a page: a chapter for each table, an entry for each key with its default and meaning.
/// Prose stands behind `# `, a key or a table that has no default behind a `#` alone.
fn configuration(reference: &str) -> String {
    let mut page = String::from(
        "# Configuration\n\n<!-- Made from config/postdate.toml by UPDATE_DOCS=1 cargo test --test contract. -->\n",
    );
    let mut prose: Vec<&str> = Vec::new();
    let mut first_key = true;
    for line in reference.lines() {
        let prose_line = line.strip_prefix("# ").or_else(|| (line == "#").then_some(""));
        if let Some(text) = prose_line {
            prose.push(text);
            continue;
        }
        let (key, has_default) = line.strip_prefix('#').map_or((line, true), |key| (key, false));
        if let Some(table) = key.strip_prefix('[').and_then(|key| key.strip_suffix(']')) {
            writeln!(page, "\n## `[{table}]`\n\n{}", prose.join("\n")).expect("a String");
            first_key = true;
        } else if let Some((name, value)) = key.split_once(" = ") {
            if std::mem::take(&mut first_key) {
                page.push('\n');
            }
            let value =
                if has_default { format!("`{value}`") } else { format!("no default; for example `{value}`") };
            let prose = prose.join("\n").replace('\n', "\n  ").replace("\n  \n", "\n\n");
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

#[test]
fn each_decision_has_a_status() {
    for file in files("docs/adr") {
        let text = read(&file);
        let is_decision = file.file_name().is_some_and(|name| name != "README.md");
        let status = text.lines().find_map(|line| line.strip_prefix("**Status.** "));
        assert!(
            !is_decision
                || status.is_some_and(|is| is.starts_with("Accepted") || is.starts_with("Overtaken by [")),
            "{}: {status:?}",
            file.display()
        );
    }
}
