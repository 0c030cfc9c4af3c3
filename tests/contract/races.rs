//! The table of known races in `tests/it/store/mod.rs` names tests that there are.

use std::path::PathBuf;

use super::{read, repository};

/// The files that a name of the table can mean, and the beginning of a test in them; `None` for what is no test.
fn meant(name: &str) -> Option<(Vec<PathBuf>, &str)> {
    let (place, test) = name.split_once("::").unwrap_or((name, ""));
    let test = test.trim_end_matches('*');
    if let Some(module) = place.strip_suffix(".rs") {
        return Some((
            vec![
                repository(&format!("tests/it/{module}.rs")),
                repository(&format!("src/{module}.rs")),
            ],
            test,
        ));
    }
    let files = [format!("store/{place}.rs"), format!("{place}/mod.rs")];
    let files: Vec<_> = files
        .iter()
        .map(|file| repository(&format!("tests/it/{file}")))
        .collect();
    (!test.is_empty() || files.iter().any(|file| file.exists())).then_some((files, test))
}

#[test]
fn the_table_of_races_names_tests_that_there_are() {
    let table = read(repository("tests/it/store/mod.rs"));
    let mut seen = 0;
    for line in table.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        // What the model has is compiled with it.
        let of_servers = line.split("model: ").next().unwrap_or_default();
        for name in of_servers.split('`').skip(1).step_by(2) {
            let Some((files, test)) = meant(name) else {
                continue;
            };
            let texts: Vec<String> = files
                .into_iter()
                .filter(|file| file.exists())
                .map(read)
                .collect();
            let there = texts
                .iter()
                .any(|text| test.is_empty() || text.contains(&format!("fn {test}")));
            assert!(there, "{name}: no such test\n{line}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}
