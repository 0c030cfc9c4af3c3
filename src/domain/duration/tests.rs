use super::DurationError::{
    Empty, Fraction, FractionNotLast, NoNumber, NoUnit, Order, TooLarge, UnknownUnit,
};
use super::*;
use proptest::prelude::*;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// Text, milliseconds, and `true` if a setting may say so too.
#[rustfmt::skip]
const ACCEPTED: &[(&str, i64, bool)] = &[
    ("0", 0, false), ("5", 5, false), ("1500", 1500, false), ("007", 7, false),
    ("9223372036854775807", i64::MAX, false), ("0000000000000000001", 1, false),
    ("0s", 0, true), ("0ms", 0, true), ("0ns", 0, true), ("0d", 0, true),
    ("1d", DAY, true), ("1h", HOUR, true), ("1m", 60_000, true), ("1s", 1000, true), ("1ms", 1, true),
    ("1us", 1, true), ("1\u{b5}s", 1, true), ("1\u{3bc}s", 1, true), ("1ns", 1, true),
    ("500us", 1, true), ("1001us", 2, true), ("1000001ns", 2, true), ("1000000ns", 1, true),
    ("500\u{b5}s", 1, true), ("2000\u{3bc}s", 2, true),
    ("90s", 90_000, true), ("2h30m", 2 * HOUR + 30 * 60_000, true), ("1500ms", 1500, true),
    ("1h30m0s", HOUR + 30 * 60_000, true), ("30d", 30 * DAY, true), ("1d1ns", DAY + 1, true),
    ("1d2h3m4s5ms6us7ns", DAY + 2 * HOUR + 3 * 60_000 + 4005 + 1, true), ("1h05m", HOUR + 300_000, true),
    ("1m500ms", 60_500, true), ("100h", 100 * HOUR, true),
    ("1.5s", 1500, false), ("0.5s", 500, false), ("1.0s", 1000, false), ("1.000000001s", 1001, false),
    ("0.0000000000000000000000000001s", 1, false), ("1.0000000000000000000000000000s", 1000, false),
    ("1.0010000000000000000000000001s", 1002, false), ("0.1ns", 1, false), ("1.5ms", 2, false),
    ("1.25\u{b5}s", 1, false), ("1m0.25s", 60_250, false), ("1h1.5m", HOUR + 90_000, false), ("0.5d", 12 * HOUR, false),
    ("0.3333333333333333333333333333h", 1_200_000, false),
    ("2562047h47m16.854775807s", 9_223_372_036_855, false), // Go's longest
    ("PT0S", 0, true), ("PT1S", 1000, true), ("PT1M", 60_000, true), ("PT1H", HOUR, true), ("P1D", DAY, true),
    ("P1DT2H", DAY + 2 * HOUR, true), ("P1DT2H3M4S", DAY + 2 * HOUR + 184_000, true), ("PT24H", DAY, true), ("PT90S", 90_000, true),
    ("PT1.5S", 1500, false), ("PT0.000000001S", 1, false), ("P1DT0.5H", DAY + HOUR / 2, false), ("P0.5D", 12 * HOUR, false),
    ("9223372036854775807ms", i64::MAX, true), ("106751991167d", 106_751_991_167 * DAY, true),
];

#[rustfmt::skip]
const REFUSED: &[(&str, DurationError)] = &[
    ("", Empty),
    (" ", NoNumber), (" 5", NoNumber), ("5 ", UnknownUnit), ("+5", NoNumber), ("-5", NoNumber), ("-5s", NoNumber), ("-0", NoNumber),
    ("5 s", UnknownUnit), ("1h 30m", UnknownUnit), ("5s ", UnknownUnit), ("5s\n", UnknownUnit), ("\t5s", NoNumber),
    ("1e3", UnknownUnit), ("1e3s", UnknownUnit), ("0x10", UnknownUnit), ("1_000", UnknownUnit), ("1,5s", UnknownUnit), ("1'000", UnknownUnit),
    ("\u{ff15}", NoNumber), ("\u{663}", NoNumber), ("5\u{ff15}", UnknownUnit), ("5\0", UnknownUnit), ("\u{feff}5", NoNumber), ("5s\u{200b}", UnknownUnit),
    ("NaN", NoNumber), ("inf", NoNumber), ("abc", NoNumber), ("true", NoNumber), ("null", NoNumber), ("s", NoNumber), (".5s", NoNumber), (".", NoNumber),
    ("1.0", NoUnit), ("1500.0", NoUnit), ("1.500000000", NoUnit), ("1h30", NoUnit), ("1.", NoNumber), ("1.s", NoNumber), ("1..5s", NoNumber), ("1.5.5s", UnknownUnit),
    ("5S", UnknownUnit), ("5MS", UnknownUnit), ("5Ms", UnknownUnit), ("1H", UnknownUnit), ("1D", UnknownUnit),
    ("5sec", UnknownUnit), ("5min", UnknownUnit), ("1w", UnknownUnit), ("1y", UnknownUnit), ("5seconds", UnknownUnit), ("\u{b5}s", NoNumber), ("5\u{b5}", UnknownUnit),
    ("1s1h", Order), ("1s1s", Order), ("1m1m", Order), ("1us1\u{b5}s", Order), ("1\u{b5}s1\u{3bc}s", Order), ("1ms1s", Order), ("1h1d", Order),
    ("1.5h30m", FractionNotLast), ("1.0s1ms", FractionNotLast), ("1.5s5", FractionNotLast), ("P1.5DT1H", FractionNotLast), ("PT1.5H1S", FractionNotLast),
    ("9223372036854775808", TooLarge), ("9999999999999999999", TooLarge), ("18446744073709551615", TooLarge),
    ("00000000000000000001", TooLarge), ("10000000000000000000000s", TooLarge), ("9999999999999999999d", TooLarge),
    ("9223372036854775807.1ms", TooLarge), ("9223372036854775808ms", TooLarge), ("106751991168d", TooLarge), ("-9223372036854775808", NoNumber),
    ("P", NoNumber), ("PT", NoNumber), ("P1DT", NoNumber), ("p1d", NoNumber), ("pt1s", NoNumber), ("Pt1s", NoNumber), ("PT1s", UnknownUnit), ("P1d", UnknownUnit),
    ("P1W", UnknownUnit), ("P1Y", UnknownUnit), ("P1M", UnknownUnit), ("P1S", UnknownUnit), ("PT1D", UnknownUnit), ("P5", NoUnit), ("PT5", NoUnit), ("P-1D", NoNumber),
    ("PT-1S", NoNumber), ("-PT1S", NoNumber), ("+PT1S", NoNumber), ("PT1S1M", Order), ("PT1S1S", Order), ("P1D1D", Order), ("PT1,5S", UnknownUnit), ("PT1TT1S", UnknownUnit),
    ("PT1H ", UnknownUnit), ("P 1D", NoNumber), ("PT1H1", NoUnit),
];

#[test]
fn every_accepted_form_has_its_milliseconds() {
    for &(text, ms, setting) in ACCEPTED {
        assert_eq!(parse_header(text), Ok(ms), "{text:?} as a header");
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let expected = match (setting, digits) {
            (true, _) => Ok(ms),
            (false, true) => Err(NoUnit),
            (false, _) => Err(Fraction),
        };
        assert_eq!(parse_setting(text), expected, "{text:?} as a setting");
    }
}

#[test]
fn every_refused_form_has_its_reason() {
    for &(text, reason) in REFUSED {
        assert_eq!(parse_header(text), Err(reason), "{text:?} as a header");
        assert!(parse_setting(text).is_err(), "{text:?} as a setting");
    }
}

#[test]
fn a_span_for_people_has_two_units_at_most() {
    let spans = [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (2_449, "2.4 s"),
        (59_949, "59.9 s"),
        (59_950, "1 min"),
        (291_000, "4 min 51 s"),
        (3_599_600, "1 h"),
        (-7_500_000, "2 h 5 min"),
        (100 * DAY - 8, "100 d"),
        (DAY + 3_600_000, "1 d 1 h"),
    ];
    for (ms, text) in spans {
        assert_eq!(words(ms), text, "{ms}");
    }
    words(i64::MAX);
    words(i64::MIN);
}

#[test]
fn rendered_text_is_the_shortest_sum_of_units() {
    let rendered = [
        (0, "0s"),
        (1, "1ms"),
        (1000, "1s"),
        (1300, "1s300ms"),
        (90_000, "1m30s"),
        (DAY, "1d"),
        (-1500, "-1s500ms"),
    ];
    for (ms, text) in rendered {
        assert_eq!(render(ms), text);
    }
}

proptest! {
    #[test]
    fn both_parsers_read_back_what_is_rendered(ms in prop_oneof![0..=i64::MAX, 0..100_000_000_i64]) {
        prop_assert_eq!(parse_setting(&render(ms)), Ok(ms));
        prop_assert_eq!(parse_header(&render(ms)), Ok(ms));
        prop_assert_eq!(parse_header(&ms.to_string()), Ok(ms));
    }

    #[test]
    fn any_text_is_a_duration_or_an_error(text in any::<String>()) {
        if let Ok(ms) = parse_header(&text) {
            prop_assert!(ms >= 0);
        }
        if let Ok(ms) = parse_setting(&text) {
            prop_assert_eq!(parse_header(&text), Ok(ms));
        }
    }

    #[test]
    fn what_nearly_is_a_duration_is_one_or_an_error(text in "P?[0-9]{0,21}(\\.[0-9]{0,30})?(d|h|m|s|ms|us|µs|ns|D|T|H|M|S)?[0-9]{0,3}(s|ms|S)?") {
        if let Ok(ms) = parse_header(&text) {
            prop_assert!(ms >= 0);
        }
    }

    #[test]
    fn a_fraction_rounds_up_to_the_millisecond(whole in 0..1_000_000_i64, ns in 0..1_000_000_000_i64) {
        let expected = whole * 1000 + (ns + 999_999) / 1_000_000;
        prop_assert_eq!(parse_header(&format!("{whole}.{ns:09}s")), Ok(expected));
        prop_assert_eq!(parse_header(&format!("PT{whole}.{ns:09}S")), Ok(expected));
        prop_assert_eq!(parse_setting(&format!("{whole}s{ns}ns")), Ok(expected));
    }
}
