//! Moments as text: RFC 3339 with an offset, and back.

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::due::UnixMs;

/// Smallest number that is taken for Unix milliseconds (March 1973). A smaller one is surely seconds, or a delay.
pub const MIN_UNIX_MS: i64 = 100_000_000_000;

const UNIX_EPOCH_DAY: DateTime = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);

/// Why a text is no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentError {
    /// The text does not have the form `2026-11-21T10:00:00Z`.
    Form,
    /// The offset is missing, so the moment is ambiguous.
    NoOffset,
    /// The day or the time of day does not exist. `24:00` and leap seconds are not accepted.
    NoSuchTime,
}

impl fmt::Display for MomentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "RFC 3339 is expected, as in 2026-11-21T10:00:00.5Z",
            Self::NoOffset => "the offset is missing (Z or +01:00)",
            Self::NoSuchTime => "there is no such day or time (nor 24:00, nor leap seconds)",
        })
    }
}

impl std::error::Error for MomentError {}

/// Parses RFC 3339: `2026-11-21T10:00:00Z`, `2026-11-21t10:00:00.123456+01:00`. The offset is required; it may stand
/// without its colon (`+0100`), and a whole minute without its seconds (`2026-11-21T10:00Z`), as Java writes it. Fractions
/// finer than a millisecond round up.
pub fn parse(text: &str) -> Result<UnixMs, MomentError> {
    parse_with(text, None)
}

/// The same, where a text without an offset is in UTC, as Python writes it.
pub fn parse_or_utc(text: &str) -> Result<UnixMs, MomentError> {
    parse_with(text, Some(0))
}

fn parse_with(text: &str, missing_offset_s: Option<i64>) -> Result<UnixMs, MomentError> {
    // Work on bytes, because the form is fixed: a character that is not ASCII fails at its place.
    let mut rest = text.as_bytes();
    let year = number(&mut rest, 4)?;
    literal(&mut rest, b"-")?;
    let month = number(&mut rest, 2)?;
    literal(&mut rest, b"-")?;
    let day = number(&mut rest, 2)?;
    literal(&mut rest, b"Tt")?;
    let hour = number(&mut rest, 2)?;
    literal(&mut rest, b":")?;
    let minute = number(&mut rest, 2)?;
    let (second, ms) = if rest.first() == Some(&b':') {
        literal(&mut rest, b":")?;
        (number(&mut rest, 2)?, fraction(&mut rest)?)
    } else {
        (0, 0)
    };
    let offset_s = match missing_offset_s {
        Some(offset_s) if rest.is_empty() => offset_s,
        _ => offset(&mut rest)?,
    };
    if !rest.is_empty() {
        return Err(MomentError::Form);
    }
    let civil = DateTime::new(
        year,
        month as i8,
        day as i8,
        hour as i8,
        minute as i8,
        second as i8,
        0,
    );
    let civil = civil.map_err(|_| MomentError::NoSuchTime)?;
    let seconds = civil.duration_since(UNIX_EPOCH_DAY).as_secs() - offset_s;
    Ok(UnixMs(seconds * 1000 + ms))
}

/// RFC 3339 in UTC with milliseconds, `2026-11-21T10:00:00.000Z`, which [`parse`] reads back; `None` outside of the
/// years 0 to 9999.
pub fn render(moment: UnixMs) -> Option<String> {
    let civil = UNIX_EPOCH_DAY
        .checked_add(SignedDuration::from_millis(moment.0))
        .ok()
        .filter(|c| c.year() >= 0)?;
    Some(format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        civil.year(),
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second(),
        civil.millisecond(),
    ))
}

/// Takes exactly this many digits.
fn number(rest: &mut &[u8], digits: usize) -> Result<i16, MomentError> {
    let (taken, left) = rest.split_at_checked(digits).ok_or(MomentError::Form)?;
    *rest = left;
    taken.iter().try_fold(0, |value, b| {
        if b.is_ascii_digit() {
            Ok(value * 10 + i16::from(b - b'0'))
        } else {
            Err(MomentError::Form)
        }
    })
}

/// Takes one of these bytes.
fn literal(rest: &mut &[u8], one_of: &[u8]) -> Result<u8, MomentError> {
    let (&first, left) = rest.split_first().ok_or(MomentError::Form)?;
    *rest = left;
    if one_of.contains(&first) {
        Ok(first)
    } else {
        Err(MomentError::Form)
    }
}

/// Takes a fraction of a second if there is one: milliseconds, 0 to 1000, rounded up.
fn fraction(rest: &mut &[u8]) -> Result<i64, MomentError> {
    let Some(behind) = rest.strip_prefix(b".") else {
        return Ok(0);
    };
    let end = behind
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(behind.len());
    let (digits, left) = behind.split_at(end);
    if digits.is_empty() {
        return Err(MomentError::Form);
    }
    *rest = left;
    let ms = (0..3).fold(0, |ms, at| {
        ms * 10 + digits.get(at).map_or(0, |b| i64::from(b - b'0'))
    });
    Ok(ms + i64::from(digits.iter().skip(3).any(|b| *b != b'0')))
}

/// Takes the offset, in seconds east of UTC.
fn offset(rest: &mut &[u8]) -> Result<i64, MomentError> {
    if rest.is_empty() {
        return Err(MomentError::NoOffset);
    }
    let sign = match literal(rest, b"Zz+-")? {
        b'+' => 1,
        b'-' => -1,
        _ => return Ok(0),
    };
    let hours = number(rest, 2)?;
    if let Some(behind) = rest.strip_prefix(b":") {
        *rest = behind;
    }
    let minutes = number(rest, 2)?;
    if hours > 23 || minutes > 59 {
        return Err(MomentError::NoSuchTime);
    }
    Ok(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

#[cfg(test)]
mod tests;
