//! Output to the terminal. A reader that has gone away (`postdate check --print | head`) is no failure.

use std::io::{IsTerminal, Write};

use crate::config;

/// Reports whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Reports whether standard output takes colours and bold: it is a terminal, and `NO_COLOR` is not set (see
/// no-color.org).
pub(super) fn is_styled() -> bool {
    is_terminal() && config::variable("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The width of the terminal in columns; `None` if standard output is no terminal.
pub(super) fn width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// Writes a screenful over the one before. The rest of the old one is cleared, and nothing flickers.
pub(super) fn screen(text: &str) {
    let lines = text.replace('\n', "\x1b[K\n");
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H{lines}\x1b[K\n\x1b[J").and_then(|()| out.flush()).unwrap_or_default();
}

/// Writes a line to standard output.
pub(super) fn out(line: &str) {
    // If this fails, nobody is left to tell.
    writeln!(std::io::stdout().lock(), "{line}").unwrap_or_default();
}

/// Writes a line to standard error.
pub(super) fn err(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap_or_default();
}

/// Writes over the terminal's current line, on standard error, without ending it.
pub(super) fn over(line: &str) {
    let mut err = std::io::stderr().lock();
    write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush()).unwrap_or_default();
}
