//! Durations and sizes as the configuration writes them: whole numbers with a unit, nothing else.

use std::time::Duration;

const UNITS: [(&str, u64); 9] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ns", 1),
];

/// Beyond this nobody plans: it keeps every sum of a moment and a delay far from overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// `250ms`, `2h30m`: units `d h m s ms us ns`, descending, each once, no fraction.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let not =
        |why: &str| Err(format!("{text:?} is not a duration such as \"250ms\", \"20s\" or \"2h30m\": {why}"));
    let mut rest = text;
    let mut total = Duration::ZERO;
    let mut below = u64::MAX;
    if text.is_empty() {
        return not("it is empty");
    }
    while !rest.is_empty() {
        let (count, after) = digits(rest);
        if count.is_empty() {
            return not("each part is a whole number and a unit (d, h, m, s, ms, us, ns)");
        }
        let unit_ends = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return match unit {
                "" if after.starts_with(['.', ',']) => not("no fractions here; take a smaller unit"),
                "" => not("the number has no unit (d, h, m, s, ms, us, ns)"),
                _ => not(&format!("there is no unit {unit:?} (d, h, m, s, ms, us, ns)")),
            };
        };
        if *nanos >= below {
            return not("units come once each, the largest first");
        }
        below = *nanos;
        let part = count.parse::<u64>().ok().and_then(|count| part(count, *nanos));
        let Some(sum) = part.and_then(|part| total.checked_add(part)).filter(|sum| *sum <= LONGEST) else {
            return not("it is longer than 100 years");
        };
        (total, rest) = (sum, after);
    }
    Ok(total)
}

fn part(count: u64, nanos: u64) -> Option<Duration> {
    const SECOND: u64 = 1_000_000_000;
    if nanos >= SECOND {
        return count.checked_mul(nanos / SECOND).map(Duration::from_secs);
    }
    let per_second = SECOND / nanos;
    Some(Duration::new(count / per_second, ((count % per_second) * nanos) as u32))
}

/// `512B`, `64KiB`, `1MiB`, `1GiB`, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let not = |why: &str| Err(format!("{text:?} is not a size such as \"64KiB\" or \"1MiB\": {why}"));
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
    match count.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift)) {
        Some(bytes) => Ok(bytes),
        None => not("it is too large"),
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact_and_strict() {
        for (text, nanos) in [
            ("0s", 0),
            ("1ns", 1),
            ("250ms", 250_000_000),
            ("1500\u{b5}s", 1_500_000),
            ("1500\u{3bc}s", 1_500_000),
            ("20s", 20_000_000_000),
            ("2h30m", 9_000_000_000_000),
            ("1d2h3m4s5ms6us7ns", 93_784_005_006_007),
            ("30d", 2_592_000_000_000_000),
        ] {
            assert_eq!(duration(text).map(|d| d.as_nanos()), Ok(nanos), "{text}");
        }
        let bad = [
            "",
            "5",
            "s",
            "5 s",
            " 5s",
            "5s ",
            "-5s",
            "+5s",
            "1.5s",
            "1,5s",
            "5S",
            "5sec",
            "1s1s",
            "1s1m",
            "1e3s",
            "\u{ff15}s",
            "99999999999999999999d",
            "18446744073709551615d",
            "36501d",
            "PT",
            "1us1\u{b5}s",
        ];
        for text in bad {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_exact_and_strict() {
        for (text, bytes) in
            [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("1MiB", 1 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "1", "MiB", "1MB", "1kb", "1 MiB", "1.5MiB", "-1B", "18446744073709551615GiB", "\u{ff11}B"]
        {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
