//! Parses durations and sizes of the configuration, with messages for its author.

use crate::domain::duration::parse_setting;

/// Longest duration, 100 years in milliseconds. It keeps every sum of a moment and a delay far from overflow.
const MAX_DURATION_MS: i64 = 100 * 365 * 86_400_000;

/// Parses a duration such as `250ms` or `2h30m`, without fractions. Returns milliseconds, rounded up.
pub(super) fn millis(text: &str) -> Result<i64, String> {
    let not = |why: String| {
        format!("{text:?} is not a duration such as \"250ms\", \"20s\" or \"2h30m\": {why}")
    };
    match parse_setting(text) {
        Ok(millis) if millis <= MAX_DURATION_MS => Ok(millis),
        Ok(_) => Err(not("it is longer than 100 years".to_owned())),
        Err(error) => Err(not(error.to_string())),
    }
}

/// Parses a size such as `512B`, `64KiB`, `1MiB` or `1GiB`. Returns bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let not = |why: &str| {
        Err(format!(
            "{text:?} is not a size such as \"64KiB\" or \"1MiB\": {why}"
        ))
    };
    let (count, unit) = digits(text);
    let shift = match unit {
        _ if count.is_empty() => return not("it is a whole number and a unit (B, KiB, MiB, GiB)"),
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "" => return not("the number has no unit (B, KiB, MiB, GiB)"),
        _ if unit.starts_with(['.', ',']) => return not("no fractions here; take a smaller unit"),
        _ => return not(&format!("there is no unit {unit:?} (B, KiB, MiB, GiB)")),
    };
    match count
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift))
    {
        Some(bytes) => Ok(bytes),
        None => not("it is too large"),
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_an_end() {
        assert_eq!(millis("36500d"), Ok(MAX_DURATION_MS));
        assert!(millis("36501d").is_err_and(|error| error.contains("100 years")));
        assert!(millis("20").is_err_and(|error| error.contains("\"20\" is not a duration")));
    }

    #[test]
    fn sizes_are_exact_and_strict() {
        for (text, bytes) in [
            ("0B", 0),
            ("512B", 512),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "1",
            "MiB",
            "1MB",
            "1kb",
            "1 MiB",
            "1.5MiB",
            "-1B",
            "18446744073709551615GiB",
            "\u{ff11}B",
        ] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
