use super::MomentError::{Form, NoOffset, NoSuchTime};
use super::*;
use proptest::prelude::*;

#[rustfmt::skip]
const ACCEPTED: &[(&str, i64)] = &[
    ("1970-01-01T00:00:00Z", 0),
    ("2026-11-21T10:00:00Z", 1_795_255_200_000),
    ("2026-11-21t10:00:00z", 1_795_255_200_000),
    ("2026-11-21T10:00Z", 1_795_255_200_000),
    ("2026-11-21T11:00+01:00", 1_795_255_200_000),
    ("2026-11-21T11:00:00+0100", 1_795_255_200_000),
    ("2026-11-21T04:30-0530", 1_795_255_200_000),
    ("2026-11-21T11:00:00+01:00", 1_795_255_200_000),
    ("2026-11-21T04:30:00-05:30", 1_795_255_200_000),
    ("2026-11-21T10:00:00+00:00", 1_795_255_200_000),
    ("2026-11-21T10:00:00-00:00", 1_795_255_200_000), // "offset unknown": the moment is known all the same
    ("2026-11-20T23:59:00-10:01", 1_795_255_200_000),
    ("2026-11-21T10:00:00.5Z", 1_795_255_200_500),
    ("2026-11-21T10:00:00.001Z", 1_795_255_200_001),
    ("2026-11-21T10:00:00.0010Z", 1_795_255_200_001),
    ("2026-11-21T10:00:00.0011Z", 1_795_255_200_002),
    ("2026-11-21T10:00:00.000000001Z", 1_795_255_200_001),
    ("2026-11-21T10:00:00.00000000000000000000000001Z", 1_795_255_200_001),
    ("2026-11-21T10:00:00.123456789+01:00", 1_795_251_600_124),
    ("2026-11-21T10:00:59.9999Z", 1_795_255_260_000),
    ("2026-12-31T23:59:59.9999Z", 1_798_761_600_000),
    ("2024-02-29T00:00:00Z", 1_709_164_800_000),
    ("2000-02-29T00:00:00Z", 951_782_400_000),
    ("0000-01-01T00:00:00Z", -62_167_219_200_000),
    ("0001-01-01T00:00:00Z", -62_135_596_800_000),
    ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
];

#[rustfmt::skip]
const REFUSED: &[(&str, MomentError)] = &[
    ("", Form), ("now", Form), ("2026-11-21", Form), ("2026-11-21T10Z", Form), ("2026-11-21T10:00.5Z", Form), ("10:00:00Z", Form), ("1795255200000", Form),
    ("2026-11-21T10:00:00", NoOffset), ("2026-11-21T10:00:00.5", NoOffset),
    ("2026-11-21 10:00:00Z", Form), (" 2026-11-21T10:00:00Z", Form), ("2026-11-21T10:00:00Z ", Form), ("2026-11-21T10:00:00 Z", Form),
    ("2026-11-21T10:00:00.Z", Form), ("2026-11-21T10:00:00,5Z", Form), ("2026-11-21T10:00:00+010", Form), ("2026-11-21T10:00:00+01000", Form), ("2026-11-21T10:00:00+01", Form),
    ("2026-11-21T10:00:00+1:00", Form), ("2026-11-21T10:00:00UTC", Form), ("2026-11-21T10:00:00Europe/Berlin", Form),
    ("2026-11-21T10:00:00Z[UTC]", Form), ("2026-11-21T10:00:00+01:00[Europe/Berlin]", Form), ("20261121T100000Z", Form),
    ("2026-W47-6T10:00:00Z", Form), ("2026-325T10:00:00Z", Form), ("+2026-11-21T10:00:00Z", Form), ("-2026-11-21T10:00:00Z", Form),
    ("12026-11-21T10:00:00Z", Form), ("26-11-21T10:00:00Z", Form), ("2026-1-21T10:00:00Z", Form), ("2026-11-21T1:00:00Z", Form),
    ("2026-11-21T10:00:00\u{2212}01:00", Form), ("\u{ff12}026-11-21T10:00:00Z", Form), ("2026-11-21T10:00:00Z\0", Form), ("2026-11-21T10:00:+0Z", Form),
    ("2026-11-21T24:00:00Z", NoSuchTime), ("2026-11-21T23:59:60Z", NoSuchTime), ("2016-12-31T23:59:60Z", NoSuchTime), ("2026-11-21T10:60:00Z", NoSuchTime),
    ("2026-11-21T25:00:00Z", NoSuchTime), ("2026-11-21T10:00:61Z", NoSuchTime), ("2026-11-21T99:99:99Z", NoSuchTime),
    ("2026-02-29T10:00:00Z", NoSuchTime), ("2100-02-29T00:00:00Z", NoSuchTime), ("2026-11-31T10:00:00Z", NoSuchTime), ("2026-13-01T10:00:00Z", NoSuchTime),
    ("2026-00-01T10:00:00Z", NoSuchTime), ("2026-11-00T10:00:00Z", NoSuchTime), ("2026-11-32T10:00:00Z", NoSuchTime), ("2026-99-99T10:00:00Z", NoSuchTime),
    ("2026-11-21T10:00:00+24:00", NoSuchTime), ("2026-11-21T10:00:00+01:60", NoSuchTime), ("2026-11-21T10:00:00-99:99", NoSuchTime),
];

#[test]
fn every_accepted_form_has_its_moment() {
    for &(text, ms) in ACCEPTED {
        assert_eq!(parse(text), Ok(UnixMs(ms)), "{text:?}");
    }
}

#[test]
fn every_refused_form_has_its_reason() {
    for &(text, reason) in REFUSED {
        assert_eq!(parse(text), Err(reason), "{text:?}");
    }
}

#[test]
fn where_utc_is_meant_the_offset_may_be_missing_and_counts_if_it_is_there() {
    for (text, ms) in [
        ("2026-11-21T10:00:00", 1_795_255_200_000),
        ("2026-11-21T10:00:00.123456", 1_795_255_200_124),
        ("2026-11-21T10:00", 1_795_255_200_000),
    ] {
        assert_eq!(parse_or_utc(text), Ok(UnixMs(ms)), "{text:?}");
        assert_eq!(parse(text), Err(NoOffset), "{text:?}");
    }
    for &(text, ms) in ACCEPTED {
        assert_eq!(parse_or_utc(text), Ok(UnixMs(ms)), "{text:?}");
    }
    for &(text, reason) in REFUSED.iter().filter(|(_, reason)| *reason != NoOffset) {
        assert_eq!(parse_or_utc(text), Err(reason), "{text:?}");
    }
}

#[test]
fn moments_that_have_no_four_digit_year_have_no_text() {
    assert_eq!(
        render(UnixMs(0)).as_deref(),
        Some("1970-01-01T00:00:00.000Z")
    );
    assert_eq!(
        render(UnixMs(253_402_300_799_999)).as_deref(),
        Some("9999-12-31T23:59:59.999Z")
    );
    for ms in [253_402_300_800_000, -62_167_219_200_001, i64::MAX, i64::MIN] {
        assert_eq!(render(UnixMs(ms)), None, "{ms}");
    }
}

proptest! {
    #[test]
    fn what_is_rendered_is_read_back(ms in -62_167_219_200_000..=253_402_300_799_999_i64) {
        let text = render(UnixMs(ms)).expect("a year of four digits");
        prop_assert_eq!(parse(&text), Ok(UnixMs(ms)));
    }

    #[test]
    fn an_offset_moves_the_moment(ms in 0..253_402_000_000_000_i64, minutes in -1439..=1439_i64) {
        let local = render(UnixMs(ms + minutes * 60_000)).expect("a year of four digits");
        let sign = if minutes < 0 { '-' } else { '+' };
        let offset = format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60);
        prop_assert_eq!(parse(&local.replace('Z', &offset)), Ok(UnixMs(ms)));
    }

    #[test]
    fn any_text_is_a_moment_or_an_error(text in any::<String>(), near in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})?") {
        for text in [text, near] {
            if let Ok(UnixMs(ms)) = parse(&text) {
                prop_assert!((-70_000_000_000_000..260_000_000_000_000).contains(&ms));
            }
        }
    }
}
