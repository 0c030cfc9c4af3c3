//! Durations as people and programs write them, and back to text.
//!
//! One grammar, two readers. [`parse_header`] takes what producers send: whole milliseconds
//! (`1500`), numbers with units (`2h30m`, `1.5s`, `500µs`) and ISO 8601 (`PT1.5S`, `P1DT2H`).
//! [`parse_setting`] takes what the configuration holds: the same with a unit, without fractions.
//! Units are `d h m s ms us µs ns`, descending, each once; only the last number may have a fraction.
//! What is finer than a millisecond rounds up, so that nothing is ever early. What is not surely a
//! duration is an error, never a guess.

use std::fmt;

/// Nanoseconds in a millisecond.
const MS: u128 = 1_000_000;
/// Most digits of one number; 19 are what a signed 64-bit number needs.
const DIGITS: usize = 19;

/// A unit: how it is written, and its nanoseconds.
type Unit = (&'static str, u128);

const UNITS: &[Unit] = &[
    ("d", 86_400_000 * MS),
    ("h", 3_600_000 * MS),
    ("m", 60_000 * MS),
    ("s", 1000 * MS),
    ("ms", MS),
    ("us", 1000),
    ("\u{b5}s", 1000),  // the micro sign, as Go writes it
    ("\u{3bc}s", 1000), // the Greek letter that looks the same
    ("ns", 1),
];
const ISO_DATE: &[Unit] = &[("D", 86_400_000 * MS)];
const ISO_TIME: &[Unit] = &[("H", 3_600_000 * MS), ("M", 60_000 * MS), ("S", 1000 * MS)];

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// Nothing there.
    Empty,
    /// Something stands where an unsigned decimal number should.
    NoNumber,
    /// A number without a unit, where one is needed.
    NoUnit,
    /// A unit that is none of ours, or not in this place.
    UnknownUnit,
    /// Units that are not descending, or one twice.
    Order,
    /// A fraction elsewhere than on the last number.
    FractionNotLast,
    /// A fraction in a setting.
    Fraction,
    /// More milliseconds than a signed 64-bit number holds, or a number of more than 19 digits.
    TooLarge,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::NoNumber => "an unsigned number is expected",
            Self::NoUnit => "a number without its unit (d, h, m, s, ms, us, ns)",
            Self::UnknownUnit => "unknown unit (d, h, m, s, ms, us, ns are known)",
            Self::Order => "units must descend, each once",
            Self::FractionNotLast => "only the last number may have a fraction",
            Self::Fraction => "no fraction here: use a smaller unit",
            Self::TooLarge => "it is too large",
        })
    }
}

impl std::error::Error for DurationError {}

/// Milliseconds of a duration as a producer writes it; digits alone are milliseconds.
pub fn parse_header(text: &str) -> Result<i64, DurationError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return i64::try_from(whole(text)?).map_err(|_| DurationError::TooLarge);
    }
    sum(text)?.ms()
}

/// Milliseconds of a duration as the configuration writes it: a unit always, fractions never.
pub fn parse_setting(text: &str) -> Result<i64, DurationError> {
    let sum = sum(text)?;
    if sum.fraction { Err(DurationError::Fraction) } else { sum.ms() }
}

/// The text of so many milliseconds, which both parsers read back: `1h30m`, `1s300ms`, `0s`.
/// A negative span has a minus in front, for people only.
pub fn render(ms: i64) -> String {
    let mut text = String::from(if ms < 0 { "-" } else { "" });
    let mut rest = ms.unsigned_abs();
    if rest == 0 {
        return "0s".to_owned();
    }
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= size {
            text.push_str(&(rest / size).to_string());
            text.push_str(unit);
            rest %= size;
        }
    }
    text
}

/// What was read so far. Numbers have at most 19 digits and each unit stands at most once, so it is far
/// below what a `u128` holds.
#[derive(Default)]
struct Sum {
    ns: u128,
    fraction: bool,
}

impl Sum {
    fn ms(&self) -> Result<i64, DurationError> {
        i64::try_from(self.ns.div_ceil(MS)).map_err(|_| DurationError::TooLarge)
    }

    /// Adds numbers with units of one list, largest unit first.
    fn add(&mut self, mut text: &str, units: &[Unit]) -> Result<(), DurationError> {
        let mut below = u128::MAX;
        while !text.is_empty() {
            if self.fraction {
                return Err(DurationError::FractionNotLast);
            }
            let (number, fraction, rest) = number(text)?;
            let end = rest.bytes().position(|b| b.is_ascii_digit()).unwrap_or(rest.len());
            let (name, rest) = rest.split_at(end);
            if name.is_empty() {
                return Err(DurationError::NoUnit);
            }
            let unit = units.iter().find(|(known, _)| *known == name);
            let &(_, size) = unit.ok_or(DurationError::UnknownUnit)?;
            if size >= below {
                return Err(DurationError::Order);
            }
            below = size;
            self.ns += u128::from(number) * size;
            if let Some(digits) = fraction {
                self.fraction = true;
                self.ns += part(digits, size);
            }
            text = rest;
        }
        Ok(())
    }
}

fn sum(text: &str) -> Result<Sum, DurationError> {
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut sum = Sum::default();
    let Some(iso) = text.strip_prefix('P') else {
        sum.add(text, UNITS)?;
        return Ok(sum);
    };
    let (date, time) = iso.split_once('T').map_or((iso, None), |(date, time)| (date, Some(time)));
    if time.unwrap_or(date).is_empty() {
        return Err(DurationError::NoNumber); // `P`, `PT`, `P1DT`
    }
    sum.add(date, ISO_DATE)?;
    sum.add(time.unwrap_or_default(), ISO_TIME)?;
    Ok(sum)
}

/// The number a text begins with: its whole part, the digits of its fraction, what follows it.
fn number(text: &str) -> Result<(u64, Option<&str>, &str), DurationError> {
    let (digits, rest) = split_digits(text);
    if digits.is_empty() {
        return Err(DurationError::NoNumber);
    }
    let number = whole(digits)?;
    let Some(behind) = rest.strip_prefix('.') else {
        return Ok((number, None, rest));
    };
    let (fraction, rest) = split_digits(behind);
    if fraction.is_empty() {
        return Err(DurationError::NoNumber);
    }
    Ok((number, Some(fraction), rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}

/// The value of ASCII digits.
fn whole(digits: &str) -> Result<u64, DurationError> {
    if digits.len() > DIGITS {
        return Err(DurationError::TooLarge);
    }
    digits.parse().map_err(|_| DurationError::TooLarge)
}

/// Nanoseconds of a unit's fraction, rounded up: exact for any number of digits, since a tenth of a
/// whole number and its remainder are carried from the last digit to the first.
fn part(digits: &str, size: u128) -> u128 {
    let mut ns = 0;
    let mut more = false;
    for digit in digits.bytes().rev() {
        let tenths = u128::from(digit - b'0') * size + ns;
        more |= !tenths.is_multiple_of(10);
        ns = tenths / 10;
    }
    ns + u128::from(more)
}

#[cfg(test)]
mod tests;
