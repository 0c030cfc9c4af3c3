//! UTF-8 text over shared bytes.

use bytes::Bytes;
use bytestring::ByteString;

/// UTF-8 text over shared bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Text(ByteString);

impl Text {
    /// A text that is part of the program. Costs nothing.
    pub const fn from_static(text: &'static str) -> Self {
        Self(ByteString::from_static(text))
    }

    /// A text of these bytes; `None` if they are not valid UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Option<Self> {
        ByteString::try_from(bytes).ok().map(Self)
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bytes of the text, shared.
    pub fn bytes(&self) -> &Bytes {
        self.0.as_bytes()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(ByteString::from(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(ByteString::from(text))
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
