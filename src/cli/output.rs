//! Lines to the terminal. A reader that has gone away (`postdate check --print | head`) is no failure.

use std::io::Write;

/// A line to standard output.
pub(super) fn out(line: &str) {
    // Nobody is left to tell.
    writeln!(std::io::stdout().lock(), "{line}").unwrap_or_default();
}

/// A line to standard error.
pub(super) fn err(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap_or_default();
}
