//! The fuzzers' crate, which no other test builds.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, read, repository};

/// Versions by the name of a package.
fn locked(path: &str) -> BTreeMap<String, BTreeSet<String>> {
    let lock: toml::Table = read(repository(path)).parse().expect("a lock file");
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in lock["package"].as_array().expect("packages") {
        let text = |key: &str| package[key].as_str().expect("a text").to_owned();
        versions
            .entry(text("name"))
            .or_default()
            .insert(text("version"));
    }
    versions
}

#[test]
fn fuzzers_run_the_versions_that_are_released() {
    let released = locked("Cargo.lock");
    let other: Vec<_> = locked("fuzz/Cargo.lock")
        .into_iter()
        .filter(|(name, versions)| {
            released
                .get(name)
                .is_some_and(|known| !versions.is_subset(known))
        })
        .collect();
    assert!(
        other.is_empty(),
        "{other:?}: cp Cargo.lock fuzz/Cargo.lock && cargo metadata --manifest-path fuzz/Cargo.toml >/dev/null"
    );
}

#[test]
fn every_fuzzer_has_its_entry_point_and_its_row() {
    let page = read(repository("docs/fuzzing.md"));
    let entry_points = read(repository("src/fuzzing.rs"));
    for file in files("fuzz/targets") {
        let target = file
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        assert!(
            read(&file).contains(&format!("postdate::fuzzing::{target}(data)")),
            "{target}"
        );
        assert!(
            entry_points.contains(&target),
            "src/fuzzing.rs has no {target}"
        );
        assert!(
            page.contains(&format!("`{target}`")),
            "docs/fuzzing.md has no row for {target}"
        );
    }
}
