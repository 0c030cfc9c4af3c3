use super::*;
use proptest::prelude::*;

const KAFKA: Origin = Origin::Kafka;
const AMQP: Origin = Origin::Rabbitmq;
const DAY: i64 = 86_400_000;

fn bytes(value: &[u8]) -> HeaderValue {
    HeaderValue::Bytes(Bytes::copy_from_slice(value))
}

fn long(value: &[u8]) -> HeaderValue {
    HeaderValue::LongString(Bytes::copy_from_slice(value))
}

/// A text in each form in which a producer can send it.
fn texts(value: &str) -> [(HeaderValue, Origin); 4] {
    let quoted = format!("\"{value}\"");
    let value = value.as_bytes();
    [
        (bytes(value), KAFKA),
        (bytes(quoted.as_bytes()), KAFKA),
        (bytes(value), AMQP),
        (long(value), AMQP),
    ]
}

fn nested(depth: usize) -> HeaderValue {
    (0..depth).fold(HeaderValue::I64(1), |inner, _| {
        HeaderValue::Table(vec![Header::new("a", inner)])
    })
}

/// Values that are invalid as a delay, a time, an id and a command, in either technology.
fn of_other_types() -> Vec<HeaderValue> {
    vec![
        HeaderValue::Null,
        HeaderValue::Bool(true),
        HeaderValue::Bool(false),
        HeaderValue::Table(Vec::new()),
        nested(1),
        nested(32),
        nested(1000),
        HeaderValue::Array(Vec::new()),
        HeaderValue::Array(vec![HeaderValue::I64(1)]),
    ]
}

#[rustfmt::skip]
const DELAYS: &[(&str, i64)] = &[
    ("0", 0), ("5", 5), ("1500", 1500), ("9223372036854775807", i64::MAX), ("0s", 0), ("90s", 90_000), ("2h30m", 9_000_000),
    ("1500ms", 1500), ("1h30m0s", 5_400_000), ("1.5s", 1500), ("500\u{b5}s", 1), ("500\u{3bc}s", 1), ("500us", 1), ("1ns", 1),
    ("1.000000001s", 1001), ("30d", 30 * DAY), ("1d2h3m4s5ms6us7ns", 93_784_006), ("PT1.5S", 1500), ("P1DT2H", 93_600_000), ("PT0S", 0),
];

#[rustfmt::skip]
const NO_DELAYS: &[&str] = &[
    "", " 5", "5 ", "+5", "-5", "-0", "1e3", "0x10", "1_000", "\u{ff15}", "5\0", "\u{663}", "NaN", "inf", "1.0", "1500.0", "1.500000000",
    "00000000000000000001", "9223372036854775808", "18446744073709551615", "-9223372036854775808", "abc", "5S", "5 s", "1s1s", "1s1h", "1.5h30m",
    "5sec", "1w", "PT", "P1W", "P1M", "pt1s", "PT-1S", "-PT1S", "true", "null", "2026-11-21T10:00:00Z", "\"", "\"5", "5\"", "'5'",
];

#[test]
fn a_delay_in_text_is_the_same_in_both_technologies() {
    for &(text, ms) in DELAYS {
        for (value, origin) in texts(text) {
            assert_eq!(delay_ms(&value, origin), Ok(ms), "{value:?} {origin:?}");
        }
    }
    for &text in NO_DELAYS {
        for (value, origin) in texts(text) {
            assert!(delay_ms(&value, origin).is_err(), "{value:?} {origin:?}");
        }
    }
}

#[test]
fn only_kafka_and_only_one_pair_of_quotes() {
    for text in ["\"\"5\"\"", "\"", "\"\"", "\"5", "5\"", "'5'", "\" 5\""] {
        assert!(delay_ms(&bytes(text.as_bytes()), KAFKA).is_err(), "{text}");
    }
    assert!(delay_ms(&bytes(b"\"5\""), AMQP).is_err());
    assert!(delay_ms(&long(b"\"5\""), AMQP).is_err());
}

#[test]
fn binary_delays_are_no_delays() {
    let long_text = vec![b'5'; 64 * 1024];
    let big_endian = 5_i64.to_be_bytes();
    let little_endian = 5_i64.to_le_bytes();
    for value in [
        &b"\xff"[..],
        b"5\xff",
        b"\xc3",
        &big_endian,
        &little_endian,
        &long_text,
    ] {
        for (value, origin) in [
            (bytes(value), KAFKA),
            (bytes(value), AMQP),
            (long(value), AMQP),
        ] {
            assert!(delay_ms(&value, origin).is_err(), "{origin:?}");
        }
    }
    assert!(delay_ms(&HeaderValue::Null, KAFKA).is_err());
}

#[test]
fn every_integer_type_is_a_delay_unless_negative() {
    use HeaderValue::{I8, I16, I32, I64, U8, U16, U32};
    let accepted = [
        (I8(5), 5),
        (I8(0), 0),
        (I8(i8::MAX), 127),
        (U8(u8::MAX), 255),
        (I16(i16::MAX), 32_767),
        (U16(u16::MAX), 65_535),
        (I32(i32::MAX), 2_147_483_647),
        (U32(u32::MAX), 4_294_967_295),
        (I64(i64::MAX), i64::MAX),
        (I64(0), 0),
    ];
    for (value, ms) in accepted {
        assert_eq!(delay_ms(&value, AMQP), Ok(ms), "{value:?}");
    }
    for value in [
        I8(-1),
        I8(i8::MIN),
        I16(-1),
        I32(-1),
        I32(i32::MIN),
        I64(-1),
        I64(i64::MIN),
    ] {
        assert!(delay_ms(&value, AMQP).is_err(), "{value:?}");
    }
}

#[test]
fn a_float_as_large_as_a_moment_is_no_span() {
    use HeaderValue::{F32, F64};
    for moment in [F64(1_795_255_200_000.0), F32(1.8e12)] {
        let read = expires(&moment, AMQP, MomentStyle::Own);
        assert!(read.is_err(), "{moment:?}: {read:?}");
    }
    let span = expires(&F64(1500.0), AMQP, MomentStyle::Own);
    assert_eq!(span, Ok(ExpiryHeader::After(1500)));
}

#[test]
fn a_whole_float_or_decimal_is_a_delay() {
    use HeaderValue::{Decimal, F32, F64};
    let accepted = [
        (F32(1500.0), 1500),
        (F64(1500.0), 1500),
        (F64(0.0), 0),
        (F64(9_007_199_254_740_992.0), 9_007_199_254_740_992),
        (F64(9_223_372_036_854_774_784.0), 9_223_372_036_854_774_784),
        (
            Decimal {
                scale: 0,
                value: 1500,
            },
            1500,
        ),
        (
            Decimal {
                scale: 2,
                value: 150_000,
            },
            1500,
        ),
        (
            Decimal {
                scale: 9,
                value: 2_000_000_000,
            },
            2,
        ),
        (
            Decimal {
                scale: 255,
                value: 0,
            },
            0,
        ),
        (
            Decimal {
                scale: 0,
                value: i32::MAX as u32,
            },
            2_147_483_647,
        ),
    ];
    for (value, ms) in accepted {
        assert_eq!(delay_ms(&value, AMQP), Ok(ms), "{value:?}");
    }
    let refused = [
        F32(1.5),
        F64(0.1),
        F64(-1.0),
        F64(-0.0),
        F64(f64::NAN),
        F64(f64::INFINITY),
        F64(f64::NEG_INFINITY),
        F64(9_223_372_036_854_775_808.0),
        F64(1e300),
        F64(5e-324),
        F32(f32::NAN),
        F32(-1.0),
        F32(f32::MAX),
        Decimal {
            scale: 1,
            value: 15,
        },
        Decimal { scale: 3, value: 1 },
        Decimal {
            scale: 255,
            value: 1,
        },
        Decimal {
            scale: 19,
            value: 1_000_000_000,
        },
        Decimal {
            scale: 0,
            value: u32::MAX,
        }, // Java's -1
    ];
    for value in refused {
        assert!(delay_ms(&value, AMQP).is_err(), "{value:?}");
    }
}

#[test]
fn other_types_are_never_guessed_at() {
    for value in of_other_types() {
        for origin in [KAFKA, AMQP] {
            assert!(delay_ms(&value, origin).is_err());
            assert!(deliver_at(&value, origin, MomentStyle::Own).is_err());
            assert!(id(&value, origin).is_err());
            assert!(op(&value, origin).is_err());
            assert_eq!(text(&value, origin), None);
        }
    }
    assert!(delay_ms(&HeaderValue::Timestamp(5), AMQP).is_err());
    assert!(id(&HeaderValue::I64(7), AMQP).is_err());
}

#[test]
fn a_moment_in_text_is_the_same_in_both_technologies() {
    let accepted = [
        ("100000000000", 100_000_000_000),
        ("1795255200000", 1_795_255_200_000),
        ("01795255200000", 1_795_255_200_000),
        ("1795255200000000", 1_795_255_200_000_000), // microseconds: `too_far`, not ours to repair
        ("9223372036854775807", i64::MAX),
        ("2026-11-21T10:00:00Z", 1_795_255_200_000),
        ("2026-11-21T11:00:00.0001+01:00", 1_795_255_200_001),
        ("1970-01-01T00:00:00Z", 0),
    ];
    for (text, ms) in accepted {
        for (value, origin) in texts(text) {
            assert_eq!(
                deliver_at(&value, origin, MomentStyle::Own),
                Ok(UnixMs(ms)),
                "{value:?} {origin:?}"
            );
        }
    }
    let refused = [
        "",
        "0",
        "5",
        "99999999999",
        "1795255200",
        "-1795255200000",
        "+1795255200000",
        " 1795255200000",
        "1795255200000 ",
        "1795255200000.0",
        "1.7952552e12",
        "0x1A1",
        "17952552000001795255200000",
        "00000001795255200000",
        "9223372036854775808",
        "10s",
        "now",
        "2026-11-21",
        "2026-11-21T10:00:00",
        "2026-11-21 10:00:00Z",
        "2026-11-21T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "2026-02-29T00:00:00Z",
        "Sat, 21 Nov 2026 10:00:00 GMT",
    ];
    for text in refused {
        for (value, origin) in texts(text) {
            assert!(
                deliver_at(&value, origin, MomentStyle::Own).is_err(),
                "{value:?} {origin:?}"
            );
        }
    }
    assert!(deliver_at(&bytes(b"\xff"), KAFKA, MomentStyle::Own).is_err());
}

#[test]
fn a_moment_in_amqp_types() {
    use HeaderValue::{Decimal, F32, F64, I32, I64, Timestamp, U32};
    assert_eq!(
        deliver_at(&I64(1_795_255_200_000), AMQP, MomentStyle::Own),
        Ok(UnixMs(1_795_255_200_000))
    );
    assert_eq!(
        deliver_at(&I64(100_000_000_000), AMQP, MomentStyle::Own),
        Ok(UnixMs(100_000_000_000))
    );
    assert_eq!(
        deliver_at(&I64(i64::MAX), AMQP, MomentStyle::Own),
        Ok(UnixMs(i64::MAX))
    );
    assert_eq!(
        deliver_at(&Timestamp(1_795_255_200), AMQP, MomentStyle::Own),
        Ok(UnixMs(1_795_255_200_000))
    );
    assert_eq!(
        deliver_at(&Timestamp(0), AMQP, MomentStyle::Own),
        Ok(UnixMs(0))
    );
    let refused = [
        I64(99_999_999_999),
        I64(0),
        I64(-1),
        I64(i64::MIN),
        I32(1_795_255_200),
        U32(u32::MAX),
        F64(1_795_255_200_000.0),
        F32(1e12),
        Decimal {
            scale: 0,
            value: 1_795_255_200,
        },
        Timestamp(u64::MAX),
        Timestamp(i64::MAX as u64),
    ];
    for value in refused {
        assert!(
            deliver_at(&value, AMQP, MomentStyle::Own).is_err(),
            "{value:?}"
        );
    }
}

#[test]
fn ids_are_text_of_1_to_256_bytes_and_never_postdates_own() {
    let longest = "x".repeat(256);
    for accepted in [
        "order-7",
        "7",
        " ",
        "\u{e9}",
        "a\0b",
        "x~",
        longest.as_str(),
    ] {
        for (value, origin) in texts(accepted) {
            assert_eq!(
                id(&value, origin),
                Ok(Some(Text::from(accepted))),
                "{value:?} {origin:?}"
            );
        }
    }
    for ours in ["~", "~abc", "~0123456789abcdef"] {
        for (value, origin) in texts(ours) {
            assert_eq!(id(&value, origin), Ok(None), "{value:?} {origin:?}");
        }
    }
    for refused in [String::new(), "x".repeat(257), "\u{e9}".repeat(129)] {
        for (value, origin) in texts(&refused) {
            assert!(id(&value, origin).is_err(), "{value:?} {origin:?}");
        }
    }
    assert!(id(&bytes(b"a\xff"), KAFKA).is_err());
    assert!(id(&long(b"a\xff"), AMQP).is_err());
    // Quotes are part of an AMQP id.
    assert_eq!(id(&long(b"\"a\""), AMQP), Ok(Some(Text::from("\"a\""))));
    assert_eq!(
        id(&bytes(b"\"\"a\"\""), KAFKA),
        Ok(Some(Text::from("\"a\"")))
    );
}

#[test]
fn commands_are_three_words() {
    for (value, origin) in texts("cancel") {
        assert_eq!(
            op(&value, origin),
            Ok(HeaderCommand::Cancel),
            "{value:?} {origin:?}"
        );
    }
    for (value, origin) in texts("reschedule") {
        assert_eq!(
            op(&value, origin),
            Ok(HeaderCommand::Reschedule),
            "{value:?} {origin:?}"
        );
    }
    for (value, origin) in texts("replace") {
        assert_eq!(
            op(&value, origin),
            Ok(HeaderCommand::Replace),
            "{value:?} {origin:?}"
        );
    }
    for refused in [
        "",
        "Cancel",
        "CANCEL",
        "cancel ",
        " cancel",
        "delete",
        "cancelled",
        "reschedule\0",
    ] {
        for (value, origin) in texts(refused) {
            assert!(op(&value, origin).is_err(), "{value:?} {origin:?}");
        }
    }
}

#[test]
fn errors_quote_little_and_escaped() {
    let error = delay_ms(&bytes(&vec![b'5'; 100_000]), KAFKA).expect_err("too long");
    assert_eq!(
        error,
        format!("\"{}\"... is no delay: it is too large", "5".repeat(64))
    );
    let error = delay_ms(&bytes(b"a\n\x1b[31m\xff\"b\xe2\x80\xae"), KAFKA).expect_err("no number");
    assert_eq!(
        error,
        "\"a\\n\\u{1b}[31m\\xff\\\"b\\u{202e}\" is no delay: it is not UTF-8"
    );
    let error = delay_ms(&HeaderValue::F64(1e300), AMQP).expect_err("too large");
    assert!(error.starts_with("the double 1e300 is no delay"), "{error}");
    let error = delay_ms(&HeaderValue::I8(-1), AMQP).expect_err("negative");
    assert!(error.starts_with("-1 is no delay"), "{error}");
}

#[test]
fn names_are_found_in_any_case_and_noted_when_twice() {
    let policy = crate::domain::testing::route().policy.clone();
    let header = |name: &str| Header::new(name, HeaderValue::I64(1));
    let headers = [
        header("X-Delay"),
        header("x-delay-"),
        header("X-DELAY-ID"),
        header("x-Delay-Target"),
    ];
    let found = find_delay_headers(&headers, &policy);
    assert!(found.delay.first().is_some() && found.id.first().is_some() && found.target.is_some());
    assert!(found.deliver_at.first().is_none() && found.op.is_none() && found.repeated.is_none());
    let headers = [header("x-delay"), header("a"), header("X-DELAY")];
    assert_eq!(
        find_delay_headers(&headers, &policy).repeated,
        Some("x-delay")
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(value in prop::collection::vec(any::<u8>(), 0..80)) {
        for (value, origin) in [(bytes(&value), KAFKA), (bytes(&value), AMQP), (long(&value), AMQP)] {
            if let Ok(ms) = delay_ms(&value, origin) {
                prop_assert!(ms >= 0);
            }
            if let Ok(Some(id)) = id(&value, origin) {
                prop_assert!((1..=256).contains(&id.len()));
            }
            let quoted = describe(&value, origin);
            prop_assert!(!quoted.chars().any(char::is_control), "{}", quoted);
            prop_assert!(op(&value, origin).is_err() || deliver_at(&value, origin, MomentStyle::Own).is_err());
        }
    }

    #[test]
    fn a_float_is_a_delay_exactly_when_it_is_a_whole_number_of_milliseconds(value in any::<f64>(), ms in 0..(1_i64 << 53)) {
        prop_assert_eq!(delay_ms(&HeaderValue::F64(ms as f64), AMQP), Ok(ms));
        let whole = value.fract() == 0.0 && value.is_sign_positive() && value < 9.3e18;
        prop_assert!(whole || delay_ms(&HeaderValue::F64(value), AMQP).is_err());
    }
}
