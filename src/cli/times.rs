//! Moments that a user writes on the command line.

use crate::domain::moment::MIN_UNIX_MS;
use crate::domain::{Clock, UnixMs, duration, moment};

/// Reads a moment: Unix milliseconds, RFC 3339 with an offset, or a duration before or after `now` (`-2h`, `+30m`).
/// Seconds are refused: as milliseconds they would be long past, and a command would act at once, or on everything. The
/// error is a sentence for the user.
pub(super) fn parse(text: &str, now: UnixMs) -> Result<UnixMs, String> {
    if let Some(span) = text.strip_prefix('-') {
        return relative(text, span, -1, now);
    }
    if let Some(span) = text.strip_prefix('+') {
        return relative(text, span, 1, now);
    }
    if let Ok(ms) = text.parse::<u64>() {
        let ms = i64::try_from(ms).map_err(|error| format!("`{text}`: {error}"))?;
        if ms < MIN_UNIX_MS {
            return Err(format!(
                "`{text}` is too small for Unix milliseconds: are these seconds?"
            ));
        }
        return Ok(UnixMs(ms));
    }
    moment::parse(text).map_err(|error| {
        format!("`{text}` is no moment: {error}; write 2030-01-01T00:00:00Z, Unix milliseconds, or -2h for two hours ago")
    })
}

/// The same, as of this moment.
pub(super) fn parse_now(text: &str) -> Result<UnixMs, String> {
    parse(text, Clock::start().wall())
}

/// A moment as the API reads it: Unix milliseconds, or RFC 3339 where the API would take their number for seconds.
pub(super) fn written(at: UnixMs) -> String {
    let early = (at.0 < MIN_UNIX_MS).then_some(at);
    early
        .and_then(moment::render)
        .unwrap_or_else(|| at.to_string())
}

/// A due time as the API reads it, Unix milliseconds. One before the first that is taken for these is as past as the first.
pub(super) fn due_ms(at: UnixMs) -> i64 {
    at.0.max(MIN_UNIX_MS)
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

    #[test]
    fn a_number_that_must_be_seconds_is_refused() {
        let parsed = |text: &str| parse(text, UnixMs(1_000_000_000_000)).map(|moment| moment.0);
        for seconds in ["0", "7", "1798761600", "99999999999"] {
            let why = format!("`{seconds}` is too small for Unix milliseconds: are these seconds?");
            assert_eq!(parsed(seconds), Err(why));
        }
        assert_eq!(parsed("100000000000"), Ok(100_000_000_000));
        assert_eq!(parsed("1970-01-01T00:00:07Z"), Ok(7000));
    }

    #[test]
    fn the_api_takes_no_moment_for_seconds() {
        let first = UnixMs(MIN_UNIX_MS);
        assert_eq!(
            (written(first).as_str(), due_ms(first)),
            ("100000000000", first.0)
        );
        let early = UnixMs(7000);
        assert_eq!(written(early), "1970-01-01T00:00:07.000Z");
        assert_eq!(due_ms(early), first.0, "both are past");
    }
}
