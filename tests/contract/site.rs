//! The documents hang together: each link leads to a file and an anchor that are there, and the table of contents of the
//! site has every page. `scripts/docs` builds the site and follows the links in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::pages::made;
use super::{files, read, repository};

/// Pages outside of `docs/` that have links of their own.
const ROOT_PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benches/README.md",
];

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn pages() -> Vec<PathBuf> {
    let docs = files("docs").into_iter().filter(|path| is_page(path));
    docs.chain(ROOT_PAGES.iter().map(|page| repository(page)))
        .collect()
}

/// Lines of a page outside of its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// Anchor that GitHub and mdbook give a heading.
fn anchor(heading: &str) -> String {
    // A link in a heading counts by its text.
    let mut plain = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let kept = plain
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(text) {
        let Some(heading) = line.strip_prefix('#') else {
            continue;
        };
        let wanted = anchor(heading.trim_start_matches('#'));
        // A heading that stands twice gets a number.
        let numbered = (1..).map(|number| format!("{wanted}-{number}"));
        let mut choices = std::iter::once(wanted.clone()).chain(numbered);
        let free = choices
            .find(|choice| !found.contains(choice))
            .expect("numbers do not end");
        found.insert(free);
    }
    found
}

/// Targets of the links in a page, those to other sites left out.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // What stands between backquotes is no link.
        let plain: String = line.split('`').step_by(2).collect();
        for part in plain.split("](").skip(1) {
            let target = part.split([')', ' ']).next().expect("the first part");
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// A page as readers of the site see it.
fn text(page: &Path) -> String {
    let file = page.strip_prefix(repository("docs")).ok();
    let made = file.and_then(|file| made(file.to_str().expect("UTF-8")));
    made.unwrap_or_else(|| read(page))
}

/// Reason why a link of a page leads nowhere.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (path, wanted) = target
        .split_once('#')
        .map_or((target, None), |(path, wanted)| (path, Some(wanted)));
    let folder = page.parent().expect("a folder");
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        folder.join(path)
    };
    if !file.exists() {
        return Some(format!("{}: {target}: no such file", page.display()));
    }
    let wanted = wanted?;
    (!is_page(&file) || !anchors(&text(&file)).contains(wanted))
        .then(|| format!("{}: {target}: no such heading", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let mut seen = 0;
    let mut faults = Vec::new();
    for page in pages() {
        for target in links(&text(&page)) {
            seen += 1;
            faults.extend(fault(&page, &target));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 300, "{seen} links were found, which cannot be all");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = repository("docs/start.md");
    for target in ["none.md", "headers.md#none", "../LICENSE#none", "#none"] {
        assert!(fault(&page, target).is_some(), "{target}");
    }
    for target in ["headers.md#what-you-send", "#next", "../LICENSE", "adr/"] {
        assert_eq!(fault(&page, target), None);
    }
    assert_eq!(
        links("[a](b.md) and `[c](d.md)` and [e](https://f)\n```\n[g](h.md)\n```\n"),
        ["b.md"]
    );
    assert_eq!(
        anchor("`[redis]`: what [a key](b.md) does"),
        "redis-what-a-key-does"
    );
}

#[test]
fn the_table_of_contents_has_every_page() {
    let contents = read(repository("docs/SUMMARY.md"));
    let patterns: Vec<&str> = contents
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("<!-- pages: ")?
                .strip_suffix(" -->")
        })
        .collect();
    let listed = links(&contents);
    for page in files("docs").into_iter().filter(|path| is_page(path)) {
        let name = page
            .strip_prefix(repository("docs"))
            .expect("below docs")
            .display()
            .to_string();
        let matched = patterns
            .iter()
            .any(|pattern| match pattern.split_once('*') {
                Some((begin, end)) => name.starts_with(begin) && name.ends_with(end),
                None => name == *pattern,
            });
        assert!(
            name == "SUMMARY.md" || listed.contains(&name) || matched,
            "docs/SUMMARY.md lacks a line for {name}"
        );
    }
    let decisions = read(repository("docs/adr/README.md"));
    for page in files("docs/adr") {
        let name = page.file_name().expect("a name").to_str().expect("UTF-8");
        assert!(
            name == "README.md" || decisions.contains(name),
            "docs/adr/README.md lacks {name}"
        );
    }
}

#[test]
fn the_readme_is_one_screen() {
    let lines = read(repository("README.md")).lines().count();
    assert!(
        lines <= 90,
        "README.md has {lines} lines: what is too long for it goes into a page of docs/"
    );
}
