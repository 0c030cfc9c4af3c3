//! Who asked for a change, and why.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Text;
use super::unsafe_text::is_unsafe;

/// Longest reason, bytes.
pub const MAX_BECAUSE_BYTES: usize = 500;

/// Who asked for a change: a caller of the API, a command line, or a key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The name, as audit, trail and log tell it.
    pub name: Text,
    /// Why, in the words of whoever asked.
    pub because: Option<Because>,
}

impl Actor {
    /// An actor of this name who gave no reason.
    pub fn new(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            because: None,
        }
    }
}

/// Why somebody did something, in his own words: one line of at most 500 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Because(Text);

impl Because {
    /// The words.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for Because {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let is_line = !text.is_empty() && text.len() <= MAX_BECAUSE_BYTES;
        if !is_line || text.chars().any(is_unsafe) {
            return Err(format!(
                "a reason is one line of 1 to {MAX_BECAUSE_BYTES} bytes, without invisible characters"
            ));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Because {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Because> for String {
    fn from(because: Because) -> Self {
        because.as_str().to_owned()
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_that_shows_all_it_says() {
        let longest = "ä".repeat(MAX_BECAUSE_BYTES / 2);
        for text in ["the supplier is down", "  #4711 ", "日本語 ✓", &longest] {
            let because: Because = text.parse().expect("a reason");
            assert_eq!(because.as_str(), text.trim());
            let stored = serde_json::to_string(&because).expect("JSON");
            assert_eq!(serde_json::from_str::<Because>(&stored).ok(), Some(because));
        }
        let too_long = format!("{longest}a");
        for text in [
            "",
            " \t",
            "two\nlines",
            "\u{1b}[31mred",
            "back\u{202e}wards",
            &too_long,
        ] {
            assert!(text.parse::<Because>().is_err(), "{text:?}");
            let json = serde_json::to_string(text).expect("JSON");
            assert!(serde_json::from_str::<Because>(&json).is_err(), "{text:?}");
        }
    }
}
