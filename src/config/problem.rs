//! Problems of a configuration: all of them at once, each with its source and key.

use std::fmt;

use super::FilePosition;

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The source of the value: a file, `environment NAME` or `--set KEY`.
    pub source: String,
    /// The position of the key in the file, or of the section around it; `None` where it is not in the file.
    pub position: Option<FilePosition>,
    /// The key, its parts joined by dots; empty for a problem of the whole source.
    pub key: String,
    /// A sentence on what is wrong, and what would be right.
    pub message: String,
}

impl ConfigProblem {
    /// A problem of a whole source.
    pub(super) fn of_source(source: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            position: None,
            key: String::new(),
            message: message.into(),
        }
    }

    /// The source, with line and column behind the name of the file: `postdate.toml:3:1`.
    pub fn place(&self) -> String {
        match self.position {
            Some(position) => format!("{}:{position}", self.source),
            None => self.source.clone(),
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        if self.key.is_empty() {
            return write!(f, "{place}: {}", self.message);
        }
        write!(f, "{place}: {}: {}", self.key, self.message)
    }
}

/// All problems of a configuration, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}
