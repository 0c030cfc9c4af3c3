use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::domain::UnixMs;
use crate::egress::fuzzing::{consumed, delivered};
use crate::egress::kafka::mapping::to_kafka;

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
        key: Some(Bytes::from_static(b"key")),
        body: Some(Bytes::from_static(b"body")),
        headers,
        properties: None,
    }
}

fn every_property() -> Properties {
    Properties {
        content_type: Some("text/plain".into()),
        content_encoding: Some("gzip".into()),
        delivery_mode: Some(1),
        priority: Some(255),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        expiration: Some("60000".into()),
        message_id: Some("m".into()),
        timestamp: Some(u64::MAX),
        kind: Some("t".into()),
        user_id: Some("guest".into()),
        app_id: Some("".into()),
        cluster_id: Some("cl".into()),
    }
}

fn amqp() -> Message {
    let headers = vec![
        header(
            "z",
            HeaderValue::Table(vec![header(
                "n",
                HeaderValue::Array(vec![HeaderValue::U8(1)]),
            )]),
        ),
        header("CC", HeaderValue::Array(vec![long("q")])),
        header("BCC", HeaderValue::Array(vec![long("q")])),
        header("cc", long("only a name")),
        header("x-death", HeaderValue::Array(Vec::new())),
        header("kafka.key", long("k")),
        header("amqp.priority", long("5")),
        header("F", HeaderValue::F32(0.5)),
        header(
            "binary",
            HeaderValue::LongString(Bytes::from_static(b"\xff")),
        ),
    ];
    Message {
        origin: Origin::Rabbitmq,
        key: Some(Bytes::from_static(b"order.created")),
        body: Some(Bytes::from_static(b"body")),
        headers,
        properties: Some(Box::new(every_property())),
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

fn rules<'a>(routing_key: &'a RoutingKey, own_user: Option<&'a str>) -> AmqpRules<'a> {
    AmqpRules {
        routing_key,
        own_user,
        copies: false,
    }
}

fn mapped(message: &Message, delay_headers: Option<DelayHeaders<'_>>) -> AmqpMessage {
    to_amqp(
        message,
        delay_headers,
        rules(&RoutingKey::Key, Some("postdate")),
    )
    .expect("it fits")
}

#[test]
fn from_amqp_what_passes_through_is_untouched() {
    let message = amqp();
    let rules = AmqpRules {
        copies: true,
        ..rules(&RoutingKey::Preserve, Some("postdate"))
    };
    let published = to_amqp(&message, None, rules).expect("it fits");
    assert_eq!(published.headers, message.headers);
    assert_eq!(published.properties, every_property());
    assert_eq!(published.routing_key, "order.created".into());
    assert_eq!(published.body, message.body.expect("a body"));
    // No property is set that was not there, delivery_mode included.
    let bare = Message {
        properties: None,
        headers: Vec::new(),
        ..amqp()
    };
    assert_eq!(mapped(&bare, None).properties, Properties::default());
}

#[test]
fn further_routing_keys_stay_only_where_the_route_has_copies() {
    let names = |delay_headers, copies| {
        let rules = AmqpRules {
            copies,
            ..rules(&RoutingKey::Key, None)
        };
        let published = to_amqp(&amqp(), delay_headers, rules).expect("it fits");
        let names = published.headers.iter().map(|h| h.name.as_str().to_owned());
        names
            .filter(|name| name.eq_ignore_ascii_case("cc") || name == "BCC")
            .collect::<Vec<_>>()
    };
    for delay_headers in [None, Some(delay_headers(1))] {
        assert_eq!(
            names(delay_headers, false),
            ["cc"],
            "RabbitMQ heeds the name in capitals alone"
        );
        assert_eq!(names(delay_headers, true), ["CC", "BCC", "cc"]);
    }
}

#[test]
fn a_delayed_message_loses_other_routes_and_anothers_user_and_is_stamped() {
    let message = amqp();
    let kept: Vec<_> = message
        .headers
        .iter()
        .filter(|h| !["CC", "BCC"].contains(&h.name.as_str()))
        .cloned()
        .collect();
    let common = [
        header("x-delay-id", long("order-7")),
        header("x-delay-due", HeaderValue::I64(1_795_255_200_000)),
    ];
    for (attempt, more) in [
        (0, None),
        (1, None),
        (2, Some(2)),
        (u32::MAX, Some(4_294_967_295)),
    ] {
        let published = mapped(&message, Some(delay_headers(attempt)));
        let more = more.map(|n| header("x-delay-attempt", HeaderValue::I64(n)));
        let expected: Vec<_> = kept.iter().chain(&common).cloned().chain(more).collect();
        assert_eq!(published.headers, expected);
        assert_eq!(
            published.properties,
            Properties {
                user_id: None,
                ..every_property()
            }
        );
    }
    let own = to_amqp(
        &message,
        Some(delay_headers(1)),
        rules(&RoutingKey::Key, Some("guest")),
    )
    .expect("it fits");
    assert_eq!(own.properties, every_property());
    let unknown = to_amqp(
        &message,
        Some(delay_headers(1)),
        rules(&RoutingKey::Key, None),
    )
    .expect("it fits");
    assert_eq!(unknown.properties.user_id, None);
}

#[test]
fn the_routing_key_follows_its_rule_and_fits_a_short_string() {
    let route = |message: &Message, rule: RoutingKey| {
        to_amqp(message, None, rules(&rule, None)).map(|m| m.routing_key)
    };
    let fixed = RoutingKey::Fixed("fixed".into());
    for (message, own) in [(amqp(), "order.created"), (kafka(Vec::new()), "key")] {
        assert_eq!(route(&message, fixed.clone()), Ok("fixed".into()));
        assert_eq!(route(&message, RoutingKey::Key), Ok(own.into()));
    }
    assert_eq!(
        route(&amqp(), RoutingKey::Preserve),
        Ok("order.created".into())
    );
    let keyed = |key: Option<Vec<u8>>| Message {
        key: key.map(Bytes::from),
        ..kafka(Vec::new())
    };
    assert_eq!(route(&keyed(None), RoutingKey::Key), Ok("".into()));
    assert!(route(&keyed(Some(vec![b'k'; 255])), RoutingKey::Key).is_ok());
    let reason = |key, rule| route(&keyed(Some(key)), rule).map_err(|unfit| unfit.reason);
    assert_eq!(
        reason(vec![b'k'; 256], RoutingKey::Key),
        Err(Refusal::TooBig)
    );
    assert_eq!(
        reason(vec![0xff], RoutingKey::Key),
        Err(Refusal::Unpublishable)
    );
    // Where the key is not the routing key it may be anything.
    assert_eq!(reason(vec![0xff; 1 << 20], fixed), Ok("fixed".into()));
}

#[test]
fn kafka_values_get_amqp_types_and_the_last_of_a_name_counts() {
    let message = kafka(vec![
        header("a", raw(b"1")),
        header("b", raw(b"\xff")),
        header("n", HeaderValue::Null),
        header("e", raw(b"")),
        header("a", raw(b"2")),
        header("A", raw(b"3")),
        header("CC", raw(b"other-queue")),
        header("BCC", raw(b"other-queue")),
        header("kafka.key", raw(b"not the key")),
        header("kafka.null_value", raw(b"true")),
    ]);
    let published = mapped(&message, None);
    let expected = [
        header("b", raw(b"\xff")),
        header("n", HeaderValue::Null),
        header("e", long("")),
        header("a", long("2")),
        header("A", long("3")),
        header("kafka.null_value", long("true")),
        header("kafka.key", long("key")),
    ];
    assert_eq!(published.headers, expected);
    assert_eq!(
        published.properties,
        Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        }
    );
    assert_eq!(published.body, Bytes::from_static(b"body"));
}

#[test]
fn null_key_and_null_value_are_not_empty_ones() {
    let cases = [
        (None, HeaderValue::Null),
        (Some(&b""[..]), long("")),
        (Some(b"k"), long("k")),
        (Some(b"\xff"), raw(b"\xff")),
    ];
    for (key, value) in cases {
        let message = Message {
            key: key.map(Bytes::from_static),
            ..kafka(Vec::new())
        };
        let published =
            to_amqp(&message, None, rules(&RoutingKey::Fixed("r".into()), None)).expect("it fits");
        assert_eq!(published.headers, [header("kafka.key", value)]);
    }
    let message = Message {
        body: None,
        ..kafka(vec![header("kafka.null_value", raw(b"no"))])
    };
    let published = mapped(&message, None);
    let expected = [
        header("kafka.key", long("key")),
        header("kafka.null_value", HeaderValue::Bool(true)),
    ];
    assert_eq!(
        (published.body, published.headers.as_slice()),
        (Bytes::new(), &expected[..])
    );
    let empty = Message {
        body: Some(Bytes::new()),
        ..kafka(Vec::new())
    };
    assert_eq!(mapped(&empty, None).headers, expected[..1]);
}

/// Maps one Kafka header. Returns the properties and headers that it becomes.
fn property(name: &str, value: &'static [u8]) -> (Properties, Vec<Header>) {
    let published = mapped(&kafka(vec![header(name, raw(value))]), None);
    let headers = published
        .headers
        .into_iter()
        .filter(|h| h.name.as_str() != "kafka.key");
    (published.properties, headers.collect())
}

/// Sets in the expected properties what the header is to set.
type Set = fn(&mut Properties);

#[test]
fn an_amqp_header_that_fits_its_property_becomes_it() {
    let cases: [(&str, &[u8], Set); 20] = [
        ("content_type", b"text/plain", |p| {
            p.content_type = Some("text/plain".into());
        }),
        ("content_encoding", b"gzip", |p| {
            p.content_encoding = Some("gzip".into());
        }),
        ("delivery_mode", b"1", |p| p.delivery_mode = Some(1)),
        ("delivery_mode", b"2", |p| p.delivery_mode = Some(2)),
        ("priority", b"0", |p| p.priority = Some(0)),
        ("priority", b"255", |p| p.priority = Some(255)),
        ("correlation_id", b"c", |p| {
            p.correlation_id = Some("c".into());
        }),
        ("correlation_id", b"", |p| {
            p.correlation_id = Some("".into());
        }),
        ("reply_to", b"replies", |p| {
            p.reply_to = Some("replies".into());
        }),
        ("reply_to", b"amq.rabbitmq.reply-to.g2dk", |p| {
            p.reply_to = Some("amq.rabbitmq.reply-to.g2dk".into());
        }),
        ("expiration", b"0", |p| p.expiration = Some("0".into())),
        ("expiration", b"4294967295", |p| {
            p.expiration = Some("4294967295".into());
        }),
        ("message_id", b"m", |p| p.message_id = Some("m".into())),
        ("message_id", &[b'm'; 255], |p| {
            p.message_id = Some("m".repeat(255).into());
        }),
        ("timestamp", b"1795255200", |p| {
            p.timestamp = Some(1_795_255_200);
        }),
        ("timestamp", b"18446744073709551615", |p| {
            p.timestamp = Some(u64::MAX);
        }),
        ("type", b"t", |p| p.kind = Some("t".into())),
        ("app_id", b"a", |p| p.app_id = Some("a".into())),
        ("cluster_id", b"cl", |p| p.cluster_id = Some("cl".into())),
        ("app_id", "\u{e9}".as_bytes(), |p| {
            p.app_id = Some("\u{e9}".into());
        }),
    ];
    for (name, value, set) in cases {
        let mut expected = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        set(&mut expected);
        assert_eq!(
            property(&format!("amqp.{name}"), value),
            (expected, Vec::new()),
            "{name} {value:?}"
        );
    }
}

#[test]
fn one_that_does_not_fit_stays_an_ordinary_header() {
    let cases: &[(&str, &'static [u8])] = &[
        ("delivery_mode", b"0"),
        ("delivery_mode", b"3"),
        ("delivery_mode", b"persistent"),
        ("priority", b"256"),
        ("priority", b"-1"),
        ("priority", b"+1"),
        ("priority", b"05"),
        ("priority", b""),
        ("priority", b"1.0"),
        ("timestamp", b"2026-11-21T10:00:00Z"),
        ("timestamp", b"-1"),
        ("timestamp", b"18446744073709551616"),
        ("expiration", b"abc"),
        ("expiration", b""),
        ("expiration", b"-1"),
        ("expiration", b"4294967296"),
        ("expiration", b"60s"),
        ("reply_to", b"amq.rabbitmq.reply-to"),
        ("content_type", &[b'x'; 256]),
        ("message_id", b"\xff"),
        ("user_id", b"guest"),
        ("Priority", b"5"),
        ("kind", b"t"),
        ("headers", b"x"),
        ("", b"x"),
    ];
    for &(name, value) in cases {
        let name = format!("amqp.{name}");
        let expected = header(&name, typed(HeaderValue::Bytes(Bytes::from_static(value))));
        let untouched = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        assert_eq!(
            property(&name, value),
            (untouched, vec![expected]),
            "{name} {value:?}"
        );
    }
    let null = mapped(&kafka(vec![header("amqp.app_id", HeaderValue::Null)]), None);
    assert_eq!(null.headers[0], header("amqp.app_id", HeaderValue::Null));
    assert_eq!(null.properties.app_id, None);
}

#[test]
fn of_a_repeated_property_the_last_counts_even_if_it_does_not_fit() {
    let twice = |last: &'static [u8]| {
        mapped(
            &kafka(vec![
                header("amqp.priority", raw(b"1")),
                header("amqp.priority", raw(last)),
            ]),
            None,
        )
    };
    assert_eq!(twice(b"2").properties.priority, Some(2));
    assert_eq!(twice(b"x").properties.priority, None);
    assert_eq!(twice(b"x").headers[0], header("amqp.priority", long("x")));
}

#[test]
fn a_header_name_that_amqp_cannot_write_is_refused_before_it_is_published() {
    let named = |len| {
        to_amqp(
            &kafka(vec![header(&"n".repeat(len), raw(b""))]),
            None,
            rules(&RoutingKey::Key, None),
        )
    };
    assert!(named(255).is_ok());
    let unfit = named(256).expect_err("too long");
    assert_eq!(
        (unfit.reason, unfit.error.as_str()),
        (
            Refusal::TooBig,
            "a header name of 256 bytes, AMQP takes 255"
        )
    );
}

#[test]
fn many_headers_of_one_name_are_one() {
    let headers = (0..200_000)
        .map(|_| header("", HeaderValue::Null))
        .collect();
    assert_eq!(mapped(&kafka(headers), None).headers.len(), 2);
}

#[test]
fn a_property_survives_amqp_to_kafka_to_amqp() {
    let headers = vec![
        header("a", long("1")),
        header("b", raw(b"\xff")),
        header("n", HeaderValue::Null),
    ];
    let message = Message {
        headers: headers.clone(),
        ..amqp()
    };
    let back = mapped(&consumed(&to_kafka(&message, None)), None);
    // All but the user, which is not Kafka's to claim.
    assert_eq!(
        back.properties,
        Properties {
            user_id: None,
            ..every_property()
        }
    );
    assert_eq!(back.routing_key, "order.created".into());
    assert_eq!(back.body, Bytes::from_static(b"body"));
    let more = [
        header("amqp.user_id", long("guest")),
        header("kafka.key", long("order.created")),
    ];
    assert_eq!(
        back.headers,
        headers.into_iter().chain(more).collect::<Vec<_>>()
    );
}

fn any_bytes() -> impl Strategy<Value = Option<Bytes>> {
    prop_oneof![
        Just(None),
        "[a-z0-9]{0,3}".prop_map(|t| Some(t.into())),
        prop::collection::vec(any::<u8>(), 0..6).prop_map(|b| Some(b.into())),
    ]
}

fn any_record() -> impl Strategy<Value = Message> {
    let name = prop_oneof![
        "[abA]{0,2}",
        Just("kafka.null_value".to_owned()),
        "amqp\\.(priority|delivery_mode|type|user_id|timestamp|expiration|x)",
    ];
    let headers = prop::collection::vec((name, any_bytes()), 0..6);
    (any_bytes(), any_bytes(), headers).prop_map(|(key, body, headers)| {
        let value = |v: Option<Bytes>| v.map_or(HeaderValue::Null, HeaderValue::Bytes);
        let headers = headers
            .into_iter()
            .map(|(n, v)| Header::new(n, value(v)))
            .collect();
        Message {
            origin: Origin::Kafka,
            key,
            body,
            headers,
            properties: None,
        }
    })
}

proptest! {
    /// The promise for Kafka -> RabbitMQ -> Kafka: the same key and value, and the last value of each header name. Only
    /// `amqp.delivery_mode` may be new.
    #[test]
    fn a_record_survives_kafka_to_amqp_to_kafka(message in any_record()) {
        let published = to_amqp(&message, None, rules(&RoutingKey::Fixed("r".into()), None)).expect("it fits");
        let delivered = delivered(published);
        let mut back = to_kafka(&delivered, None);
        prop_assert_eq!(back.key.as_deref(), message.key.as_deref());
        prop_assert_eq!(back.value, message.body.as_deref());
        let mut expected: BTreeMap<_, _> = to_kafka(&message, None).headers.into_iter().collect();
        if message.body.is_none() {
            expected.remove("kafka.null_value"); // it made room for Postdate's own
        }
        let persistent = ("amqp.delivery_mode".into(), Some(b"2"[..].into()));
        if expected.get(&persistent.0) != Some(&persistent.1) {
            back.headers.retain(|h| *h != persistent);
        }
        let names = back.headers.len();
        let found: BTreeMap<_, _> = back.headers.into_iter().collect();
        prop_assert_eq!(found.len(), names, "no name twice");
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn what_is_published_fits_amqp(message in any_record(), attempt in 0..4_u32) {
        let delay_headers = delay_headers(attempt);
        if let Ok(published) = to_amqp(&message, Some(delay_headers), rules(&RoutingKey::Key, None)) {
            prop_assert!(published.routing_key.len() <= 255);
            let mut names: Vec<_> = published.headers.iter().map(|h| h.name.clone()).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), published.headers.len());
            prop_assert!(matches!(published.properties.delivery_mode, Some(1 | 2)));
            prop_assert_eq!(published.properties.user_id, None);
        } else {
            let key = message.key.unwrap_or_default();
            prop_assert!(std::str::from_utf8(&key).is_err());
        }
    }
}
