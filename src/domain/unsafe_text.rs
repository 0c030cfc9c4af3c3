//! Characters that must not reach a terminal or a log line as they are: they could end the line, move the cursor, give
//! the terminal a command, or turn the direction of writing.

use std::fmt::{self, Write};

/// Reports whether a character is a control character (C0, DEL, C1), ends a line, or turns the direction of writing.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// Writer that writes every unsafe character as its escape: `\n`, `\u{1b}`. A backslash stays one, so text that was
/// escaped before stays as it is.
#[allow(missing_debug_implementations)] // the inner writer need not have one
pub struct EscapedWriter<'a, W>(pub &'a mut W);

impl<W: Write> Write for EscapedWriter<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut clean = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_unsafe(*c)) {
            self.0.write_str(&text[clean..at])?;
            write!(self.0, "{}", c.escape_default())?;
            clean = at + c.len_utf8();
        }
        self.0.write_str(&text[clean..])
    }
}

/// The text with every unsafe character written as its escape.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a String cannot fail.
    EscapedWriter(&mut out).write_str(text).unwrap_or_default();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unsafe_character_is_escaped_and_no_other() {
        let all = ('\0'..='\u{3000}').filter(|c| is_unsafe(*c));
        let ranges = [
            (0..=0x1f),
            (0x7f..=0x9f),
            (0x61c..=0x61c),
            (0x200e..=0x200f),
            (0x2028..=0x202e),
        ];
        let expected = ranges.into_iter().chain([0x2066..=0x2069]).flatten();
        assert!(all.map(u32::from).eq(expected));
        assert_eq!(
            escaped("a\n\u{1b}[2J\u{9b}\u{202e}\\é"),
            r"a\n\u{1b}[2J\u{9b}\u{202e}\é"
        );
        assert_eq!(escaped(&escaped("a\nb")), r"a\nb");
    }
}
