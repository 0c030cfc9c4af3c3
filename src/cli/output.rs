//! Output to the terminal. A reader that has gone away (`postdate check --print | head`) is no failure; a full disk is one.
//! Whichever write fails first is kept, and [`judged`] makes the exit code of it.
//!
//! Ids, reasons and headers are words of producers and brokers. Everything that is written passes [`SafeText`], so none
//! of them reaches a terminal as a command. No other file of this room writes to standard output or standard error, but for
//! `progress`, whose bars have no words but our own.

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use serde_json::Value;

use crate::domain::unsafe_text::{escaped, is_unsafe};

/// The first write to standard output that failed.
static FAILURE: OnceLock<std::io::Error> = OnceLock::new();

/// Style of the word that begins an error.
const ERROR_STYLE: Style = AnsiColor::Red.on_default().bold();
/// Style of a line that needs attention.
pub(super) const WARNING_STYLE: Style = AnsiColor::Yellow.on_default();
/// Style of a line that says a failure.
pub(super) const FAILURE_STYLE: Style = AnsiColor::Red.on_default();
/// Style of a line that names columns.
pub(super) const HEADER_STYLE: Style = Style::new().bold();

/// Text without a character that a terminal takes for a command, or that hides what is there: control characters, those
/// that turn the direction of writing and those that show nothing are escaped. Text from a `&str` or a `String` is one
/// line; its line ends are escaped too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SafeText(String);

impl From<&str> for SafeText {
    fn from(text: &str) -> Self {
        Self(escaped(text))
    }
}

impl From<String> for SafeText {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl SafeText {
    /// Text of several lines: line ends stay. For text of this program, and of files that the user wrote.
    pub(super) fn lines(text: &str) -> Self {
        Self::joined(text.split('\n').map(Self::from), "\n")
    }

    /// These texts, with `separator` between them.
    pub(super) fn joined(texts: impl IntoIterator<Item = Self>, separator: &'static str) -> Self {
        Self(
            texts
                .into_iter()
                .map(|text| text.0)
                .collect::<Vec<_>>()
                .join(separator),
        )
    }

    /// The text in a style. Streams that take no colours leave the style out.
    pub(super) fn styled(self, style: Style) -> Self {
        if style.is_plain() {
            self
        } else {
            Self(format!("{style}{}{style:#}", self.0))
        }
    }

    /// JSON in one line. Escapes inside its strings are `\uXXXX`: it reads back as the same value.
    pub(super) fn json(value: &Value) -> Self {
        Self::escaped_json(&value.to_string())
    }

    /// An answer that should be JSON, in its own form if it is. Anything else becomes one line.
    pub(super) fn answer(text: &str) -> Self {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if is_json {
            Self::escaped_json(text)
        } else {
            Self::from(text)
        }
    }

    /// Escapes a JSON document. JSON has raw line ends, carriage returns and tabs between its tokens only.
    fn escaped_json(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\r' | '\t' => out.push(' '),
                c if c != '\n' && is_unsafe(c) => {
                    let units = &mut [0; 2];
                    out.extend(
                        c.encode_utf16(units)
                            .iter()
                            .map(|unit| format!("\\u{unit:04x}")),
                    );
                }
                c => out.push(c),
            }
        }
        Self(out)
    }

    /// The text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Writes lines to standard output or, in tests, to a buffer.
pub(super) struct Printer<'a>(pub(super) &'a mut dyn Write);

impl Printer<'_> {
    /// Writes a text and a line end.
    pub(super) fn print(&mut self, text: impl Into<SafeText>) -> std::io::Result<()> {
        writeln!(self.0, "{}", text.into().as_str())
    }
}

/// Runs a command with a printer to standard output.
pub(super) fn with_stdout<T>(command: impl FnOnce(&mut Printer<'_>) -> T) -> T {
    command(&mut Printer(&mut anstream::stdout().lock()))
}

/// Reports whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Reports whether standard output takes colours: by `NO_COLOR`, `CLICOLOR_FORCE` and `TERM`, and whether it is a
/// terminal.
pub(super) fn is_styled() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// The width of the terminal in columns; `None` if standard output is no terminal.
pub(super) fn width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// Writes a screenful over the one before. The rest of the old one is cleared, and nothing flickers.
pub(super) fn screen(text: &SafeText) {
    let plain = (!is_styled()).then(|| anstream::adapter::strip_str(text.as_str()).to_string());
    let lines = plain
        .as_deref()
        .unwrap_or(text.as_str())
        .replace('\n', "\x1b[K\n");
    let mut out = std::io::stdout().lock();
    note(write!(out, "\x1b[H{lines}\x1b[K\n\x1b[J").and_then(|()| out.flush()));
}

/// Writes a text and a line end to standard output.
pub(super) fn out(text: impl Into<SafeText>) {
    note(with_stdout(|printer| printer.print(text)));
}

/// Writes what another program reads, as it is, to standard output.
pub(super) fn bytes(bytes: &[u8]) {
    note(std::io::stdout().lock().write_all(bytes));
}

/// Keeps the failure of a write to standard output.
pub(super) fn note(written: std::io::Result<()>) {
    if let Err(why) = written {
        FAILURE.get_or_init(|| why);
    }
}

/// Reports whether a write to standard output has failed: nobody reads any more, and nothing more need be said.
pub(super) fn has_failed() -> bool {
    FAILURE.get().is_some()
}

/// The exit code of a command that has ended with this one, when all that it wrote is out.
pub(super) fn judged(done: ExitCode) -> ExitCode {
    note(std::io::stdout().lock().flush());
    match FAILURE.get() {
        Some(why) if why.kind() != ErrorKind::BrokenPipe => {
            error(format!("standard output: {why}"));
            if done == ExitCode::SUCCESS {
                ExitCode::FAILURE
            } else {
                done
            }
        }
        _ => done,
    }
}

/// Writes a text and a line end to standard error.
pub(super) fn err(text: impl Into<SafeText>) {
    Printer(&mut anstream::stderr().lock())
        .print(text)
        .unwrap_or_default();
}

/// Writes an error to standard error, with the word `error` before it.
pub(super) fn error(text: impl Into<SafeText>) {
    err(SafeText::joined(
        [SafeText::from("error:").styled(ERROR_STYLE), text.into()],
        " ",
    ));
}

/// Writes a question to standard error, and leaves the line open for its answer.
pub(super) fn prompt(question: impl Into<SafeText>) {
    let mut err = std::io::stderr().lock();
    write!(err, "{}", question.into().as_str())
        .and_then(|()| err.flush())
        .unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_style_is_around_the_text_and_nothing_else_commands_the_terminal() {
        let styled = SafeText::from("a\u{1b}[2J").styled(ERROR_STYLE);
        assert_eq!(
            anstream::adapter::strip_str(styled.as_str()).to_string(),
            "a\\u001b[2J"
        );
        assert!(
            styled.as_str().starts_with("\u{1b}[") && styled.as_str().ends_with("\u{1b}[0m"),
            "{styled:?}"
        );
        assert_eq!(
            SafeText::from("plain").styled(Style::new()).as_str(),
            "plain"
        );
    }

    #[test]
    fn json_reads_back_and_holds_no_unsafe_character() {
        let nasty: String = ('\0'..='\u{2070}')
            .filter(|c| is_unsafe(*c))
            .chain(['\u{1f600}'])
            .collect();
        let value = json!({ "id": nasty, (nasty.clone()): [nasty] });
        let spaced = format!("\t{value}\r\n");
        for text in [SafeText::json(&value), SafeText::answer(&spaced)] {
            assert!(
                !text.as_str().replace('\n', "").contains(is_unsafe),
                "{text:?}"
            );
            assert_eq!(
                serde_json::from_str::<Value>(text.as_str()).expect("JSON"),
                value
            );
        }
        assert_eq!(
            SafeText::answer("no\u{9b} JSON\r\nat all").as_str(),
            "no\\u009b JSON\\u000d\\u000aat all"
        );
    }
}
