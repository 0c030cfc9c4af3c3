//! Lines to the terminal. A reader that has gone away (`postdate check --print | head`) is no failure.

use std::io::{IsTerminal, Write};

/// Whether standard output is one: only there is colour.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// A line to standard output.
pub(super) fn out(line: &str) {
    // Nobody is left to tell.
    writeln!(std::io::stdout().lock(), "{line}").unwrap_or_default();
}

/// A line to standard error.
pub(super) fn err(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap_or_default();
}

/// Writes over the terminal's present line, on standard error, without ending it.
pub(super) fn over(line: &str) {
    let mut err = std::io::stderr().lock();
    write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush()).unwrap_or_default();
}
