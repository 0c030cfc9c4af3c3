//! Percent-encoding of text for a URL.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All that a segment of a path encodes. A dot is among it: `.` and `..` would be taken for steps in the path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
/// All but the characters that RFC 3986 never encodes.
const TEXT: &AsciiSet = &SEGMENT.remove(b'.');

/// A text for a query or a form.
pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, TEXT).to_string()
}

/// A text for one segment of a URL's path.
pub fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The text of a percent-encoded part of a URL; `None` if it is none.
pub fn percent_decoded(text: &str) -> Option<String> {
    for code in text.split('%').skip(1) {
        let digits = code.as_bytes().first_chunk::<2>()?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
    }
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_url_gives_a_meaning_is_encoded() {
        assert_eq!(percent_encoded("aZ9-._~"), "aZ9-._~");
        assert_eq!(path_segment("aZ9-._~"), "aZ9-%2E_~");
        let nasty = "/ ?#%é\n";
        assert_eq!(percent_encoded(nasty), "%2F%20%3F%23%25%C3%A9%0A");
        assert_eq!(path_segment(nasty), percent_encoded(nasty));
        assert_eq!(
            percent_decoded(&path_segment(nasty)).as_deref(),
            Some(nasty)
        );
        for wrong in ["%ff", "%zz", "%4", "100%"] {
            assert_eq!(percent_decoded(wrong), None);
        }
    }
}
