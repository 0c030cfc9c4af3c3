//! The configuration: any text in the place of the file, of options and of environment variables.

use std::fs;
use std::path::PathBuf;

use crate::config::{self, ConfigProblems, ConfigSources};

/// Begins a line that is an option of `--set`. To TOML and YAML it is a comment.
const SET_START: &str = "#--set ";
/// Begins a line that is an environment variable, with the mark of a comment before it.
const VARIABLE_START: &str = "#POSTDATE_";
/// Folders whose files never end or change: a key that names a file may lead there.
const ENDLESS: [&str; 3] = ["/dev/", "/proc/", "/sys/"];

/// Any text is a configuration or gives problems, each with a sentence. One that is right can be printed, and the print is
/// TOML.
///
/// # Panics
/// If the promise is broken.
pub fn configuration(data: &[u8]) {
    judge(data, "toml");
}

/// The same with YAML.
///
/// # Panics
/// If the promise is broken.
pub fn configuration_yaml(data: &[u8]) {
    judge(data, "yaml");
}

fn judge(data: &[u8], format: &str) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if ENDLESS.iter().any(|folder| text.contains(folder)) {
        return;
    }
    let lines = || text.lines().map(str::trim_end);
    let variable = |line: &str| {
        line.split_once('=')
            .map(|(name, value)| (name.to_owned(), value.into()))
    };
    let sources = ConfigSources {
        file: Some(file(data, format)),
        environment: lines()
            .filter(|line| line.starts_with(VARIABLE_START))
            .filter_map(|line| variable(&line[1..]))
            .collect(),
        set: lines()
            .filter_map(|line| line.strip_prefix(SET_START))
            .map(str::to_owned)
            .collect(),
        host_name: "here".to_owned(),
    };
    let loaded = match config::load(sources) {
        Ok(loaded) => loaded,
        Err(problems) => return judge_problems(&problems),
    };
    match loaded.check() {
        Ok(_) => {
            let printed = loaded.print();
            assert!(printed.parse::<toml::Table>().is_ok(), "{printed}");
        }
        Err(problems) => judge_problems(&problems),
    }
}

fn judge_problems(problems: &ConfigProblems) {
    assert!(!problems.0.is_empty());
    for problem in &problems.0 {
        assert!(
            !problem.message.is_empty() && !problem.to_string().is_empty(),
            "{problem:?}"
        );
    }
}

/// Writes the file of this process that the loader reads.
fn file(data: &[u8], format: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("postdate-fuzzing-{}.{format}", std::process::id()));
    if let Err(error) = fs::write(&path, data) {
        panic!("{} cannot be written: {error}", path.display());
    }
    path
}
