use bytes::Bytes;

use super::*;
use crate::domain::UnixMs;

fn header(name: &str, value: HeaderValue) -> Header {
    Header::new(name, value)
}

fn long(text: &'static str) -> HeaderValue {
    HeaderValue::LongString(Bytes::from_static(text.as_bytes()))
}

fn raw(bytes: &'static [u8]) -> HeaderValue {
    HeaderValue::Bytes(Bytes::from_static(bytes))
}

fn kafka(headers: Vec<Header>) -> Message {
    Message {
        origin: Origin::Kafka,
        key: None,
        body: None,
        headers,
        properties: None,
    }
}

fn amqp(headers: Vec<Header>) -> Message {
    Message {
        origin: Origin::Rabbitmq,
        key: Some(Bytes::from_static(b"order.created")),
        body: Some(Bytes::from_static(b"body")),
        headers,
        properties: Some(Box::default()),
    }
}

fn delay_headers(attempt: u32) -> DelayHeaders<'static> {
    static ID: Text = Text::from_static("order-7");
    DelayHeaders {
        id: &ID,
        due: UnixMs(1_795_255_200_000),
        attempt,
        given_back: 0,
        traceparent: None,
    }
}

/// Names and values for reading: values must be UTF-8.
fn shown<'a>(record: &'a KafkaRecord<'_>) -> Vec<(&'a str, Option<&'a str>)> {
    let text = |b: &'a Cow<'_, [u8]>| std::str::from_utf8(b).expect("UTF-8");
    record
        .headers
        .iter()
        .map(|(n, v)| (&**n, v.as_ref().map(text)))
        .collect()
}

#[test]
fn from_kafka_nothing_changes() {
    let keys = [None, Some(&b""[..]), Some(b"\x00\xff")];
    let headers = vec![
        header("b", raw(b"\xff\x00")),
        header("a", raw(b"1")),
        header("A", HeaderValue::Null),
        header("a", raw(b"")),
        header("amqp.priority", raw(b"5")),
        header("kafka.key", raw(b"k")),
        header("kafka.null_value", raw(b"true")),
        header("CC", raw(b"x")),
        header("", raw(b"no name")),
    ];
    for key in keys {
        for body in keys {
            let key = key.map(Bytes::from_static);
            let body = body.map(Bytes::from_static);
            let message = Message {
                key: key.clone(),
                body: body.clone(),
                ..kafka(headers.clone())
            };
            let record = to_kafka(&message, None);
            assert_eq!(
                (record.key.as_deref(), record.value),
                (key.as_deref(), body.as_deref())
            );
            let expected = headers.iter().map(|h| match &h.value {
                HeaderValue::Bytes(bytes) => {
                    (Cow::from(h.name.as_str()), Some(Cow::from(&bytes[..])))
                }
                _ => (Cow::from(h.name.as_str()), None),
            });
            assert_eq!(record.headers, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_delayed_message_is_stamped_behind_its_headers_with_its_attempt_from_the_second_on() {
    let message = kafka(vec![header("a", raw(b"1"))]);
    let common = [
        ("a", Some("1")),
        ("x-delay-id", Some("order-7")),
        ("x-delay-due", Some("1795255200000")),
    ];
    for attempt in [0, 1] {
        assert_eq!(
            shown(&to_kafka(&message, Some(delay_headers(attempt)))),
            common
        );
    }
    let twice = delay_headers(2);
    let second = to_kafka(&message, Some(twice));
    assert_eq!(
        shown(&second),
        [&common[..], &[("x-delay-attempt", Some("2"))]].concat()
    );
    let from_amqp = amqp(vec![header("a", long("1"))]);
    assert_eq!(shown(&to_kafka(&from_amqp, Some(twice))), shown(&second));
}

#[test]
fn every_amqp_type_becomes_bytes() {
    use HeaderValue::{
        Array, Bool, Decimal, F32, F64, I8, I16, I32, I64, Null, Table, Timestamp, U8, U16, U32,
    };
    let nested = Table(vec![
        header("n", Null),
        header("b", Bool(true)),
        header("i", I64(i64::MIN)),
        header("f", F32(0.1)),
        header("d", F64(1.5)),
        header("nan", F64(f64::NAN)),
        header(
            "dec",
            Decimal {
                scale: 2,
                value: 150,
            },
        ),
        header("t", Timestamp(u64::MAX)),
        header("s", long("\"q\"\n")),
        header("x", raw(b"text")),
        header("y", raw(b"\xff\x00")),
        header(
            "a",
            Array(vec![I8(1), Table(Vec::new()), Array(Vec::new())]),
        ),
    ]);
    let json = concat!(
        r#"{"n":null,"b":true,"i":-9223372036854775808,"f":0.1,"d":1.5,"nan":null,"dec":"1.50","#,
        r#""t":18446744073709551615,"s":"\"q\"\n","x":"text","y":[255,0],"a":[1,{},[]]}"#
    );
    let cases = [
        (Null, None),
        (Bool(true), Some("true")),
        (Bool(false), Some("false")),
        (I8(-128), Some("-128")),
        (U8(255), Some("255")),
        (I16(-1), Some("-1")),
        (U16(65_535), Some("65535")),
        (I32(i32::MIN), Some("-2147483648")),
        (U32(u32::MAX), Some("4294967295")),
        (I64(i64::MAX), Some("9223372036854775807")),
        (F32(0.1), Some("0.1")),
        (F64(1500.0), Some("1500")),
        (
            Decimal {
                scale: 0,
                value: 15,
            },
            Some("15"),
        ),
        (
            Decimal {
                scale: 1,
                value: 15,
            },
            Some("1.5"),
        ),
        (
            Decimal {
                scale: 3,
                value: 15,
            },
            Some("0.015"),
        ),
        (Timestamp(1_795_255_200), Some("1795255200")),
        (long("text"), Some("text")),
        (long(""), Some("")),
        (raw(b"bytes"), Some("bytes")),
        (Array(vec![I64(1), long("a")]), Some(r#"[1,"a"]"#)),
        (nested, Some(json)),
    ];
    for (value, text) in cases {
        let message = amqp(vec![header("h", value.clone())]);
        let record = to_kafka(&message, None);
        assert_eq!(shown(&record), [("h", text)], "{value:?}");
    }
    for value in [
        raw(b"\xff\x00"),
        HeaderValue::LongString(Bytes::from_static(b"\xff\x00")),
    ] {
        let message = amqp(vec![header("h", value)]);
        assert_eq!(
            to_kafka(&message, None).headers,
            [("h".into(), Some(Cow::from(&b"\xff\x00"[..])))]
        );
    }
    // Depth is bounded by max_headers only.
    let deep = (0..1000).fold(I64(1), |inner, _| Table(vec![header("a", inner)]));
    let message = amqp(vec![header("h", deep)]);
    let record = to_kafka(&message, None);
    let json = record.headers[0].1.clone().expect("a value");
    assert_eq!(json.len(), 1000 * r#"{"a":}"#.len() + 1);
}

#[test]
fn the_routing_key_becomes_the_key_unless_kafka_key_says_otherwise() {
    let cases = [
        (None, Some("order.created")),
        (Some(long("k")), Some("k")),
        (Some(long("")), Some("")),
        (Some(raw(b"k")), Some("k")),
        (Some(HeaderValue::I32(7)), Some("7")),
        (Some(HeaderValue::Null), None),
    ];
    for (value, key) in cases {
        let headers = value
            .map(|v| header("kafka.key", v))
            .into_iter()
            .chain([header("a", long("1"))]);
        let message = amqp(headers.collect());
        let record = to_kafka(&message, None);
        assert_eq!(record.key.as_deref(), key.map(str::as_bytes));
        assert_eq!(shown(&record), [("a", Some("1"))], "kafka.key is taken out");
    }
    let mut message = amqp(Vec::new());
    message.key = Some(Bytes::new());
    assert_eq!(
        to_kafka(&message, None).key,
        Some(Cow::from(&b""[..])),
        "an empty routing key is no null"
    );
}

#[test]
fn a_null_value_comes_back_only_where_postdate_said_so_and_never_costs_a_body() {
    let marked = |body: &'static [u8], value| Message {
        body: Some(Bytes::from_static(body)),
        ..amqp(vec![header("kafka.null_value", value)])
    };
    let message = marked(b"", HeaderValue::Bool(true));
    let record = to_kafka(&message, None);
    assert_eq!((record.value, record.headers), (None, Vec::new()));
    for (body, value, shown_as) in [
        (&b"body"[..], HeaderValue::Bool(true), "true"),
        (b"", HeaderValue::Bool(false), "false"),
        (b"", long("true"), "true"),
        (b"", HeaderValue::I8(1), "1"),
    ] {
        let message = marked(body, value);
        let record = to_kafka(&message, None);
        assert_eq!(record.value, Some(body));
        assert_eq!(shown(&record), [("kafka.null_value", Some(shown_as))]);
    }
}

#[test]
fn properties_become_headers_behind_the_others() {
    let properties = Properties {
        content_type: Some("text/plain".into()),
        content_encoding: Some("gzip".into()),
        delivery_mode: Some(1),
        priority: Some(255),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        expiration: Some("60000".into()),
        message_id: Some("m".into()),
        timestamp: Some(1_795_255_200),
        kind: Some("t".into()),
        user_id: Some("guest".into()),
        app_id: Some("".into()),
        cluster_id: Some("cl".into()),
    };
    let headers = vec![
        header("amqp.priority", long("9")),
        header("CC", HeaderValue::Array(vec![long("q")])),
    ];
    let message = Message {
        properties: Some(Box::new(properties)),
        ..amqp(headers)
    };
    let expected = [
        ("amqp.priority", "9"),
        ("CC", r#"["q"]"#),
        ("amqp.content_type", "text/plain"),
        ("amqp.content_encoding", "gzip"),
        ("amqp.delivery_mode", "1"),
        ("amqp.priority", "255"),
        ("amqp.correlation_id", "c"),
        ("amqp.reply_to", "r"),
        ("amqp.expiration", "60000"),
        ("amqp.message_id", "m"),
        ("amqp.timestamp", "1795255200"),
        ("amqp.type", "t"),
        ("amqp.user_id", "guest"),
        ("amqp.app_id", ""),
        ("amqp.cluster_id", "cl"),
    ];
    let expected: Vec<_> = expected.into_iter().map(|(n, v)| (n, Some(v))).collect();
    assert_eq!(shown(&to_kafka(&message, None)), expected);
    assert_eq!(to_kafka(&amqp(Vec::new()), None).headers, []);
}
