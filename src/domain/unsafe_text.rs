//! Characters that must not reach a terminal or a log line as they are: they could end the line, move the cursor, give
//! the terminal a command, turn the direction of writing, or show nothing, so that two names look the same.

use std::fmt::{self, Write};

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Reports whether a character controls what is shown around it, or shows nothing of its own. The console escapes the same
/// characters (`lib/text.js`); a test holds both rules together.
pub fn is_unsafe(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Surrogate, Unassigned,
    };
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    matches!(
        c.general_category(),
        Control | Format | PrivateUse | Surrogate | Unassigned | LineSeparator | ParagraphSeparator
    ) || is_blank_letter(c)
}

/// Reports whether a character is a letter or a mark by its category, and shows nothing: the combining grapheme joiner,
/// and the fillers of Hangul and the inherent vowels of Khmer.
fn is_blank_letter(c: char) -> bool {
    matches!(
        c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}'
    )
}

/// Writer that writes every unsafe character as its escape: `\u000a`, `\u{e0001}`. A backslash stays one, so text that was
/// escaped before stays as it is.
#[allow(missing_debug_implementations)] // the inner writer need not have one
pub struct EscapedWriter<'a, W>(pub &'a mut W);

impl<W: Write> Write for EscapedWriter<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut clean = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_unsafe(*c)) {
            self.0.write_str(&text[clean..at])?;
            match u32::from(c) {
                code @ ..=0xffff => write!(self.0, "\\u{code:04x}")?,
                code => write!(self.0, "\\u{{{code:x}}}")?,
            }
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
    fn no_unsafe_character_is_left_and_all_others_are() {
        for c in '\0'..=char::MAX {
            let text = escaped(&format!("a{c}z"));
            assert!(!text.contains(is_unsafe), "{text:?}");
            assert_eq!(text == format!("a{c}z"), !is_unsafe(c), "{text:?}");
        }
    }

    #[test]
    fn what_is_seen_and_changes_nothing_stays() {
        let seen = "order-7 \\ Größe 名前 عربي हिन्दी e\u{301} \u{1f600} \u{fffd}";
        assert_eq!(escaped(seen), seen);
        assert_eq!(
            escaped("a\n\u{1b}[2J\u{9b}\u{202e}\u{e0001}"),
            r"a\u000a\u001b[2J\u009b\u202e\u{e0001}"
        );
        let invisible = "inv\u{200b}is\u{2060}ible\u{feff}\u{ad}\u{3164}";
        assert_eq!(
            escaped(invisible),
            r"inv\u200bis\u2060ible\ufeff\u00ad\u3164"
        );
    }
}
