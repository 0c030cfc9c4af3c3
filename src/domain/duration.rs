//! Durations as people and programs write them, and back to text.
//!
//! One grammar, two readers. [`parse_header`] takes durations from producers: whole milliseconds (`1500`), numbers
//! with units (`2h30m`, `1.5s`, `500µs`) and ISO 8601 (`PT1.5S`, `P1DT2H`). [`parse_setting`] takes durations from
//! the configuration: the same with a unit, without fractions. Units are `d h m s ms us µs ns`, descending, each
//! once; only the last number may have a fraction. A duration finer than a millisecond rounds up, so that nothing is
//! ever early. Any doubtful text is an error, never a guess.

use std::fmt;

/// Nanoseconds in a millisecond.
const NS_PER_MS: u128 = 1_000_000;
/// Most digits of one number. A signed 64-bit number needs 19.
const MAX_DIGITS: usize = 19;

/// A unit: its text, and its nanoseconds.
type DurationUnit = (&'static str, u128);

const GO_UNITS: &[DurationUnit] = &[
    ("d", 86_400_000 * NS_PER_MS),
    ("h", 3_600_000 * NS_PER_MS),
    ("m", 60_000 * NS_PER_MS),
    ("s", 1000 * NS_PER_MS),
    ("ms", NS_PER_MS),
    ("us", 1000),
    ("\u{b5}s", 1000),  // the micro sign, as Go writes it
    ("\u{3bc}s", 1000), // the Greek letter that looks the same
    ("ns", 1),
];
const ISO_DATE_UNITS: &[DurationUnit] = &[("D", 86_400_000 * NS_PER_MS)];
const ISO_TIME_UNITS: &[DurationUnit] = &[
    ("H", 3_600_000 * NS_PER_MS),
    ("M", 60_000 * NS_PER_MS),
    ("S", 1000 * NS_PER_MS),
];

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// The text is empty.
    Empty,
    /// An unsigned decimal number is missing.
    NoNumber,
    /// A number lacks the unit that it needs.
    NoUnit,
    /// A unit is unknown, or not allowed in its place.
    UnknownUnit,
    /// Units do not descend, or one appears twice.
    Order,
    /// A number before the last one has a fraction.
    FractionNotLast,
    /// A setting has a fraction.
    Fraction,
    /// A signed 64-bit number does not hold the milliseconds, or a number has more than 19 digits.
    TooLarge,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::NoNumber => "an unsigned number is expected, then its unit, such as 90s or 2h30m",
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

/// Parses a producer's duration to milliseconds. Digits alone are milliseconds.
pub fn parse_header(text: &str) -> Result<i64, DurationError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return i64::try_from(whole(text)?).map_err(|_| DurationError::TooLarge);
    }
    sum(text)?.ms()
}

/// Parses a duration of the configuration to milliseconds. It needs a unit and takes no fraction.
pub fn parse_setting(text: &str) -> Result<i64, DurationError> {
    let sum = sum(text)?;
    if sum.fraction {
        Err(DurationError::Fraction)
    } else {
        sum.ms()
    }
}

/// The text of a duration in milliseconds, which both parsers read back: `1h30m`, `1s300ms`, `0s`. A negative
/// duration has a minus in front, for people only.
pub fn render(ms: i64) -> String {
    let mut text = String::from(if ms < 0 { "-" } else { "" });
    let mut rest = ms.unsigned_abs();
    if rest == 0 {
        return "0s".to_owned();
    }
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if rest >= size {
            text.push_str(&(rest / size).to_string());
            text.push_str(unit);
            rest %= size;
        }
    }
    text
}

/// A length of time for people, without its sign: `31 ms`, `2.4 s`, `4 min 51 s`, `2 h`.
pub fn words(ms: i64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("min", 60_000),
        ("s", 1_000),
    ];
    let ms = ms.unsigned_abs();
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    if ms < 59_950 {
        let tenths = (ms + 50) / 100;
        return match (tenths / 10, tenths % 10) {
            (whole, 0) => format!("{whole} s"),
            (whole, tenth) => format!("{whole}.{tenth} s"),
        };
    }
    // Two units, the second one rounded; that may make one more of the first.
    let second_of = |ms: u64| match ms {
        86_400_000.. => 3_600_000,
        3_600_000.. => 60_000,
        _ => 1_000,
    };
    let rounded = |ms: u64| (ms + second_of(ms) / 2) / second_of(ms) * second_of(ms);
    let mut rest = rounded(rounded(ms));
    let mut shown = Vec::new();
    for (unit, size) in UNITS {
        if rest >= size {
            shown.push(format!("{} {unit}", rest / size));
            rest %= size;
        }
    }
    shown.join(" ")
}

/// The sum of the units read so far. Numbers have at most 19 digits and each unit appears at most once, so the sum is
/// far below the limit of a `u128`.
#[derive(Default)]
struct DurationSum {
    ns: u128,
    fraction: bool,
}

impl DurationSum {
    fn ms(&self) -> Result<i64, DurationError> {
        i64::try_from(self.ns.div_ceil(NS_PER_MS)).map_err(|_| DurationError::TooLarge)
    }

    /// Adds numbers with units of one list, largest unit first.
    fn add(&mut self, mut text: &str, units: &[DurationUnit]) -> Result<(), DurationError> {
        let mut below = u128::MAX;
        while !text.is_empty() {
            if self.fraction {
                return Err(DurationError::FractionNotLast);
            }
            let (number, fraction, rest) = number(text)?;
            let end = rest
                .bytes()
                .position(|b| b.is_ascii_digit())
                .unwrap_or(rest.len());
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

fn sum(text: &str) -> Result<DurationSum, DurationError> {
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut sum = DurationSum::default();
    let Some(iso) = text.strip_prefix('P') else {
        sum.add(text, GO_UNITS)?;
        return Ok(sum);
    };
    let (date, time) = iso
        .split_once('T')
        .map_or((iso, None), |(date, time)| (date, Some(time)));
    if time.unwrap_or(date).is_empty() {
        return Err(DurationError::NoNumber); // `P`, `PT`, `P1DT`
    }
    sum.add(date, ISO_DATE_UNITS)?;
    sum.add(time.unwrap_or_default(), ISO_TIME_UNITS)?;
    Ok(sum)
}

/// Splits the leading number off a text: its whole part, the digits of its fraction, and the rest.
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
    text.split_at(
        text.bytes()
            .position(|b| !b.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

/// The value of ASCII digits.
fn whole(digits: &str) -> Result<u64, DurationError> {
    if digits.len() > MAX_DIGITS {
        return Err(DurationError::TooLarge);
    }
    digits.parse().map_err(|_| DurationError::TooLarge)
}

/// Nanoseconds of a unit's fraction, rounded up. Exact for any number of digits: the quotient and the remainder of
/// each tenth are carried from the last digit to the first.
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
