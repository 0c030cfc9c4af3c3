//! Moments that a user writes on the command line.

use crate::domain::{Clock, UnixMs, duration, moment};

/// Reads a moment: Unix milliseconds, RFC 3339 with an offset, or a duration before or after `now` (`-2h`, `+30m`).
/// The error is a sentence for the user.
pub(super) fn parse(text: &str, now: UnixMs) -> Result<UnixMs, String> {
    if let Some(span) = text.strip_prefix('-') {
        return relative(text, span, -1, now);
    }
    if let Some(span) = text.strip_prefix('+') {
        return relative(text, span, 1, now);
    }
    if let Ok(ms) = text.parse::<u64>() {
        return i64::try_from(ms)
            .map(UnixMs)
            .map_err(|error| format!("`{text}`: {error}"));
    }
    moment::parse(text).map_err(|error| {
        format!("`{text}` is no moment: {error}; write 2030-01-01T00:00:00Z, Unix milliseconds, or -2h for two hours ago")
    })
}

/// The same, as of this moment.
pub(super) fn parse_now(text: &str) -> Result<UnixMs, String> {
    parse(text, Clock::start().wall())
}

fn relative(text: &str, span: &str, sign: i64, now: UnixMs) -> Result<UnixMs, String> {
    let ms = duration::parse_setting(span).map_err(|error| format!("`{text}`: {error}"))?;
    Ok(now.plus(sign * ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_absolute_or_relative_to_now() {
        let now = UnixMs(1_000_000_000_000);
        let parsed = |text: &str| parse(text, now).map(|moment| moment.0);
        assert_eq!(parsed("1700000000000"), Ok(1_700_000_000_000));
        assert_eq!(parsed("2001-09-09T01:46:40Z"), Ok(1_000_000_000_000));
        assert_eq!(parsed("-2h"), Ok(now.0 - 7_200_000));
        assert_eq!(parsed("+1m30s"), Ok(now.0 + 90_000));
        for wrong in [
            "2026-11-23T19:00:00",
            "yesterday",
            "-2",
            "-",
            "+x",
            "99999999999999999999",
        ] {
            let error = parsed(wrong).expect_err(wrong);
            assert!(
                error.contains(&format!("`{wrong}`")) && !error.contains("%2B"),
                "{error}"
            );
        }
    }
}
