//! Moments and delays: as callers write them, and as answers show them.

use super::problem::Problem;
use crate::domain::{UnixMs, moment};

/// The last moment that can be written: the end of the year 9999.
pub(super) const LAST_MOMENT: UnixMs = UnixMs(253_402_300_799_999);

/// Reads a moment of a query: Unix ms, or RFC 3339 with an offset. `name` is the parameter's name, for the error.
pub(super) fn moment(name: &str, text: &str) -> Result<UnixMs, Problem> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let ms = text
            .parse()
            .ok()
            .filter(|ms| *ms <= LAST_MOMENT.0)
            .ok_or_else(|| Problem::bad(format!("`{name}` is beyond the year 9999")))?;
        return unix_ms(name, ms);
    }
    moment::parse(text).map_err(|e| {
        let detail = format!(
            "`{name}` is no moment: {e}; or Unix milliseconds (a `+` is written %2B in a URL)"
        );
        Problem::bad(detail)
    })
}

/// Reads a moment of a call as Unix milliseconds. Seconds are refused: as milliseconds they would be long past, and a call
/// would act at once, or on everything.
pub(super) fn unix_ms(name: &str, ms: i64) -> Result<UnixMs, Problem> {
    if ms < moment::MIN_UNIX_MS {
        return Err(Problem::bad(format!(
            "`{name}`: Unix milliseconds have 12 digits or more (are these seconds?)"
        )));
    }
    Ok(UnixMs(ms))
}

/// Writes a moment as RFC 3339 in UTC; `None` beyond the year 9999.
pub(super) fn rfc3339(moment: UnixMs) -> Option<String> {
    jiff::Timestamp::from_millisecond(moment.0)
        .ok()
        .map(|t| t.to_string())
}
