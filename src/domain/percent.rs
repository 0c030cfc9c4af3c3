//! Percent-encoding of text for a URL.

/// A text for a segment of a URL's path or for a query: percent-encoded, but for the characters that RFC 3986 never
/// encodes.
pub fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_url_gives_a_meaning_is_encoded() {
        assert_eq!(percent_encoded("aZ9-._~"), "aZ9-._~");
        assert_eq!(percent_encoded("/ ?#%é\n"), "%2F%20%3F%23%25%C3%A9%0A");
    }
}
