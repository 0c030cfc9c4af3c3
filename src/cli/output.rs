//! Lines to the terminal. A reader that has gone away (`postdate check --print | head`) is no failure.

use std::io::{IsTerminal, Write};

use crate::config;

/// Whether standard output is one: only there is colour.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Tells whether standard output takes colours and bold: a terminal, unless `NO_COLOR` is set (see no-color.org).
pub(super) fn is_styled() -> bool {
    is_terminal() && config::variable("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The columns of the terminal that standard output is; `None` where it is none.
pub(super) fn width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// A screenful to the terminal, over the one that stands there: what is left of that is cleared, and nothing flickers.
pub(super) fn screen(text: &str) {
    let lines = text.replace('\n', "\x1b[K\n");
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H{lines}\x1b[K\n\x1b[J").and_then(|()| out.flush()).unwrap_or_default();
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
