//! Invalid inputs on either technology, and the reason for which each must be refused.

use lapin::types::{AMQPValue, DecimalValue, FieldArray};

use super::wire::{Amqp, CASE, Record, Wire, bytes, table, text};

/// The largest body that the routes take.
pub(super) const MAX_SIZE: usize = 2048;
/// All headers together.
pub(super) const MAX_HEADERS: usize = 8192;

/// A message that is invalid for this reason.
#[derive(Clone, Debug)]
pub(super) struct Bad {
    pub(super) sent: Wire,
    pub(super) reason: &'static str,
}

const DELAYS: [&str; 36] = [
    "",
    " 5",
    "5 ",
    "+5",
    "-5",
    "-0",
    "abc",
    "1e3",
    "0x10",
    "1_000",
    "1,000",
    "５",
    "٣",
    "5\0",
    "NaN",
    "inf",
    "1.0",
    "1500.0",
    "1.500000000",
    "18446744073709551615",
    "00000000000000000005",
    "-9223372036854775808",
    "5S",
    "5M",
    "5 s",
    "1s1s",
    "1s1m",
    "1.5m1s",
    "5mins",
    "s",
    "PT",
    "P1M",
    "pt1s",
    "PT1.5M2S",
    "true",
    "[5]",
];
const MOMENTS: [&str; 13] = [
    "",
    "tomorrow",
    "1700000000",
    "99999999999",
    "1.7e12",
    "+1795255200000",
    " 1795255200000",
    "0",
    "2026-11-21T10:00:00",
    "2026-11-21",
    "2026-11-21T24:00:00Z",
    "2026-12-31T23:59:60Z",
    "18446744073709551615",
];
/// With `max_delay = "1h"`.
const TOO_FAR: [(&str, &str); 6] = [
    ("x-delay", "3660000"),
    ("x-delay", "2h"),
    ("x-delay", "9223372036854775807"),
    ("x-deliver-at", "9999-12-31T23:59:59Z"),
    ("x-deliver-at", "1700000000000000"),
    ("x-deliver-at", "9007199254740993000"),
];
/// A message whose headers do not go together.
const TOGETHER: [(&[(&str, &str)], &str); 14] = [
    (
        &[("x-delay", "5"), ("x-deliver-at", "1795255200000")],
        "ambiguous",
    ),
    (&[("X-Delay", "5"), ("x-delay", "5")], "ambiguous"),
    (
        &[("x-delay", "5"), ("x-delay-id", "a"), ("X-DELAY-ID", "a")],
        "ambiguous",
    ),
    (&[("x-delay-op", "delete"), ("x-delay-id", "a")], "bad_op"),
    (&[("x-delay-op", ""), ("x-delay-id", "a")], "bad_op"),
    (&[("x-delay-op", "Cancel"), ("x-delay-id", "a")], "bad_op"),
    (&[("x-delay-op", "cancel")], "bad_id"),
    (
        &[
            ("x-delay-op", "cancel"),
            ("x-delay-id", "~made-by-postdate"),
        ],
        "bad_id",
    ),
    (&[("x-delay", "5"), ("x-delay-id", "")], "bad_id"),
    (
        &[("x-delay-op", "reschedule"), ("x-delay-id", "a")],
        "bad_delay",
    ),
    (
        &[("x-delay", "5"), ("x-delay-target", "__consumer_offsets")],
        "forbidden_target",
    ),
    (
        &[("x-delay", "5"), ("x-delay-target", "")],
        "forbidden_target",
    ),
    (&[("x-delay-target", "../out")], "forbidden_target"),
    (
        &[("x-delay-target", "/amq.rabbitmq.reply-to")],
        "forbidden_target",
    ),
];

/// Inputs that both technologies can express: `message` with these headers.
fn on_both(message: &Wire) -> Vec<Bad> {
    let with = |headers: &[(&str, &str)], reason| {
        let sent = headers.iter().fold(message.clone(), |sent, (name, value)| {
            sent.header(name, value)
        });
        Bad { sent, reason }
    };
    let mut all: Vec<_> = DELAYS
        .iter()
        .map(|value| with(&[("x-delay", value)], "bad_delay"))
        .collect();
    all.extend(
        MOMENTS
            .iter()
            .map(|value| with(&[("x-deliver-at", value)], "bad_time")),
    );
    all.extend(TOO_FAR.iter().map(|&header| with(&[header], "too_far")));
    all.extend(
        TOGETHER
            .iter()
            .map(|(headers, reason)| with(headers, reason)),
    );
    all.push(with(
        &[("x-delay", "5"), ("x-delay-id", &"i".repeat(257))],
        "bad_id",
    ));
    all.push(with(
        &[("x-delay", "5"), ("large", &"h".repeat(MAX_HEADERS))],
        "bad_headers",
    ));
    all.push(with(
        &[("x-delay", &"5".repeat(MAX_HEADERS))],
        "bad_headers",
    ));
    all
}

/// Bad records; each is told by its place in the list and its body.
pub(super) fn on_kafka(case: &str) -> Vec<Bad> {
    let plain = Record {
        key: bytes("k"),
        value: bytes("body"),
        headers: vec![(CASE.to_owned(), bytes(case))],
    };
    let mut all = on_both(&Wire::Kafka(plain.clone()));
    let raw: [(&str, Option<&[u8]>, &'static str); 9] = [
        ("x-delay", None, "bad_delay"),
        ("x-delay", Some(&[255, 254]), "bad_delay"),
        ("x-delay", Some(&[0, 0, 0, 0, 0, 0, 3, 232]), "bad_delay"),
        ("x-delay", Some(b"\"\""), "bad_delay"),
        ("x-delay", Some(b"\"5"), "bad_delay"),
        ("x-delay", Some(b"\"\"5\"\""), "bad_delay"),
        ("x-deliver-at", None, "bad_time"),
        ("x-delay-op", None, "bad_op"),
        ("x-delay-target", None, "forbidden_target"),
    ];
    for (name, value, reason) in raw {
        let mut record = plain.clone();
        record
            .headers
            .push((name.to_owned(), value.map(<[u8]>::to_vec)));
        all.push(Bad {
            sent: Wire::Kafka(record),
            reason,
        });
    }
    let twice = plain.clone().header("x-delay", "5").header("x-delay", "5");
    all.push(Bad {
        sent: Wire::Kafka(twice),
        reason: "ambiguous",
    });
    let mut no_text = plain.clone().header("x-delay", "5");
    no_text
        .headers
        .push(("x-delay-id".to_owned(), Some(vec![255])));
    all.push(Bad {
        sent: Wire::Kafka(no_text),
        reason: "bad_id",
    });
    let big = Record {
        value: Some(vec![b'b'; MAX_SIZE + 1]),
        ..plain
    };
    all.push(Bad {
        sent: Wire::Kafka(big.clone()),
        reason: "too_big",
    });
    all.push(Bad {
        sent: Wire::Kafka(big.header("x-delay", "5")),
        reason: "too_big",
    });
    all
}

/// Bad AMQP messages. Not a number and infinity never get so far: RabbitMQ closes their publisher's
/// connection.
pub(super) fn on_amqp(case: &str) -> Vec<Bad> {
    let plain = Amqp {
        routing_key: "k".into(),
        headers: table([(CASE, text(case))]),
        body: b"body".to_vec(),
        ..Amqp::default()
    };
    let mut all = on_both(&Wire::Amqp(plain.clone()));
    let nested = table([("x-delay", AMQPValue::LongInt(5))]);
    let decimal = |scale, value| AMQPValue::DecimalValue(DecimalValue { scale, value });
    let typed = [
        ("x-delay", AMQPValue::Void, "bad_delay"),
        ("x-delay", AMQPValue::Boolean(true), "bad_delay"),
        ("x-delay", AMQPValue::ShortShortInt(-1), "bad_delay"),
        ("x-delay", AMQPValue::ShortInt(-1), "bad_delay"),
        ("x-delay", AMQPValue::LongInt(-5), "bad_delay"),
        ("x-delay", AMQPValue::LongLongInt(i64::MIN), "bad_delay"),
        ("x-delay", AMQPValue::LongLongInt(i64::MAX), "too_far"),
        ("x-delay", AMQPValue::Float(1.5), "bad_delay"),
        ("x-delay", AMQPValue::Double(-1.0), "bad_delay"),
        ("x-delay", AMQPValue::Double(-0.0), "bad_delay"),
        ("x-delay", AMQPValue::Double(1e300), "bad_delay"),
        ("x-delay", decimal(1, 15), "bad_delay"),
        ("x-delay", decimal(0, u32::MAX), "bad_delay"),
        ("x-delay", AMQPValue::Timestamp(1_795_255_200), "bad_delay"),
        ("x-delay", AMQPValue::FieldTable(nested), "bad_delay"),
        (
            "x-delay",
            AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongInt(5)])),
            "bad_delay",
        ),
        (
            "x-delay",
            AMQPValue::ByteArray(vec![255].into()),
            "bad_delay",
        ),
        ("x-deliver-at", AMQPValue::Void, "bad_time"),
        (
            "x-deliver-at",
            AMQPValue::LongInt(1_795_255_200),
            "bad_time",
        ),
        (
            "x-deliver-at",
            AMQPValue::Double(1_795_255_200_000.0),
            "bad_time",
        ),
        ("x-deliver-at", AMQPValue::Timestamp(u64::MAX), "bad_time"),
        (
            "x-deliver-at",
            AMQPValue::Timestamp(253_402_300_799),
            "too_far",
        ),
        ("x-delay-op", AMQPValue::LongInt(1), "bad_op"),
        ("x-delay-target", AMQPValue::Void, "forbidden_target"),
    ];
    for (name, value, reason) in typed {
        let mut amqp = plain.clone();
        amqp.headers.insert(name.into(), value);
        all.push(Bad {
            sent: Wire::Amqp(amqp),
            reason,
        });
    }
    let mut number = plain.clone();
    number
        .headers
        .insert("x-delay".into(), AMQPValue::LongInt(5));
    number
        .headers
        .insert("x-delay-id".into(), AMQPValue::LongInt(7));
    all.push(Bad {
        sent: Wire::Amqp(number),
        reason: "bad_id",
    });
    let big = Wire::Amqp(Amqp {
        body: vec![b'b'; MAX_SIZE + 1],
        ..plain
    });
    all.push(Bad {
        sent: big.clone(),
        reason: "too_big",
    });
    all.push(Bad {
        sent: big.header("x-delay", "5"),
        reason: "too_big",
    });
    all
}
