//! Problems of a configuration: all of them at once, each with its source and key.

use std::fmt;

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The source of the value: a file, `environment NAME` or `--set KEY`.
    pub source: String,
    /// The key, its parts joined by dots; empty for a problem of the whole source.
    pub key: String,
    /// A sentence on what is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return write!(f, "{}: {}", self.source, self.message);
        }
        write!(f, "{}: {}: {}", self.source, self.key, self.message)
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
