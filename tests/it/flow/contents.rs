//! Contents of messages, and how each must look on either technology: written out by hand, as
//! `docs/headers.md` says it.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray};

use super::wire::{Amqp, CASE, Record, Wire, bytes, table, text};

/// A message and what must come out of it, on both technologies. The routing key depends on the route.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) name: &'static str,
    pub(super) sent: Wire,
    /// On the same technology.
    pub(super) same: Wire,
    /// On the other one.
    pub(super) across: Wire,
    /// A key that cannot be a routing key.
    pub(super) unroutable: bool,
    /// Headers that only a delayed message loses.
    pub(super) sender_selected: bool,
}

/// Contents of a Kafka record.
pub(super) fn on_kafka(case: &str) -> Vec<Content> {
    let null = Record {
        headers: vec![(CASE.into(), bytes(case))],
        ..Record::default()
    };
    let empty = Record {
        key: bytes(""),
        value: bytes(""),
        ..null.clone()
    };
    let binary = Record {
        key: Some(vec![255, 0, 1]),
        value: Some(vec![0, 159, 146, 150]),
        ..null.clone()
    };
    let persistent = BasicProperties::default().with_delivery_mode(2);
    let amqp = |body: &[u8], headers| Amqp {
        properties: persistent.clone(),
        headers,
        body: body.to_vec(),
        ..Amqp::default()
    };
    let bare = Record {
        key: bytes("k"),
        value: bytes(case),
        headers: vec![],
    };
    let void_key = table([
        (CASE, text(case)),
        ("kafka.key", AMQPValue::Void),
        ("kafka.null_value", AMQPValue::Boolean(true)),
    ]);
    let empty_key = table([(CASE, text(case)), ("kafka.key", text(""))]);
    let binary_key = table([
        (CASE, text(case)),
        ("kafka.key", AMQPValue::ByteArray(vec![255, 0, 1].into())),
    ]);
    let of = |name, record: Record, across: Amqp| Content {
        name,
        sent: Wire::Kafka(record.clone()),
        same: Wire::Kafka(record),
        across: Wire::Amqp(across),
        unroutable: false,
        sender_selected: false,
    };
    vec![
        of(
            "bare",
            bare,
            amqp(case.as_bytes(), table([("kafka.key", text("k"))])),
        ),
        of("null key and value", null, amqp(b"", void_key)),
        of("empty key and value", empty.clone(), amqp(b"", empty_key)),
        Content {
            unroutable: true,
            ..of(
                "binary key and value",
                binary,
                amqp(&[0, 159, 146, 150], binary_key),
            )
        },
        kafka_headers(case, &of),
        of("properties", properties_as_headers(empty.clone()), {
            let headers = table([
                (CASE, text(case)),
                ("kafka.key", text("")),
                ("amqp.user_id", text("guest")),
            ]);
            Amqp {
                properties: properties(),
                ..amqp(b"", headers)
            }
        }),
        unfit_properties(case, &empty, &of),
    ]
}

/// Repeated, binary, empty and null-valued headers, in order.
fn kafka_headers(case: &str, of: &dyn Fn(&'static str, Record, Amqp) -> Content) -> Content {
    let value = |value: &[u8]| Some(value.to_vec());
    let headers: Vec<(String, Option<Vec<u8>>)> = vec![
        ("again".into(), value(b"1")),
        ("null".into(), None),
        ("again".into(), None),
        ("binary".into(), value(&[255, 0])),
        (CASE.into(), bytes(case)),
        ("empty".into(), value(b"")),
        ("Größe".into(), value("µ".as_bytes())),
        ("again".into(), value(b"3")),
        // RabbitMQ would route by these, so they never get there.
        ("CC".into(), value(b"nobody")),
        ("BCC".into(), value(b"nobody")),
    ];
    let across = table([
        (CASE, text(case)),
        ("again", text("3")),
        ("null", AMQPValue::Void),
        ("binary", AMQPValue::ByteArray(vec![255, 0].into())),
        ("empty", text("")),
        ("Größe", text("µ")),
        ("kafka.key", text("k")),
    ]);
    let properties = BasicProperties::default().with_delivery_mode(2);
    let across = Amqp {
        properties,
        headers: across,
        body: b"v".to_vec(),
        routing_key: String::new(),
    };
    of(
        "headers",
        Record {
            key: bytes("k"),
            value: bytes("v"),
            headers,
        },
        across,
    )
}

/// Headers that look like a property and do not fit it: they stay headers.
fn unfit_properties(
    case: &str,
    empty: &Record,
    of: &dyn Fn(&'static str, Record, Amqp) -> Content,
) -> Content {
    let unfit = [
        ("amqp.priority", "high"),
        ("amqp.expiration", "-1"),
        ("amqp.delivery_mode", "3"),
        ("amqp.reply_to", "amq.rabbitmq.reply-to"),
        ("amqp.timestamp", "+5"),
        ("amqp.colour", "red"),
    ];
    let mut headers = table([(CASE, text(case)), ("kafka.key", text(""))]);
    let mut record = empty.clone();
    for (name, value) in unfit {
        record = record.header(name, value);
        headers.insert(name.into(), text(value));
    }
    let properties = BasicProperties::default().with_delivery_mode(2);
    of(
        "unfit properties",
        record,
        Amqp {
            properties,
            headers,
            ..Amqp::default()
        },
    )
}

/// Every property that a producer may set, `user_id` apart.
fn properties() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("utf-8".into())
        .with_delivery_mode(1)
        .with_priority(7)
        .with_correlation_id("correlation".into())
        .with_reply_to("a-queue".into())
        .with_expiration("3600000".into())
        .with_message_id("message".into())
        .with_timestamp(1_795_255_200)
        .with_type("kind".into())
        .with_app_id("app".into())
        .with_cluster_id("cluster".into())
}

/// All of them as Kafka headers.
fn properties_as_headers(record: Record) -> Record {
    let all = [
        ("content_type", "text/plain"),
        ("content_encoding", "utf-8"),
        ("delivery_mode", "1"),
        ("priority", "7"),
        ("correlation_id", "correlation"),
        ("reply_to", "a-queue"),
        ("expiration", "3600000"),
        ("message_id", "message"),
        ("timestamp", "1795255200"),
        ("type", "kind"),
        ("user_id", "guest"),
        ("app_id", "app"),
        ("cluster_id", "cluster"),
    ];
    all.iter().fold(record, |record, (name, value)| {
        record.header(&format!("amqp.{name}"), value)
    })
}

/// Contents of an AMQP message.
pub(super) fn on_amqp(case: &str) -> Vec<Content> {
    let of = |name, amqp: Amqp, across: Record| Content {
        name,
        sent: Wire::Amqp(amqp.clone()),
        same: Wire::Amqp(amqp),
        across: Wire::Kafka(across),
        unroutable: false,
        sender_selected: false,
    };
    let amqp = |routing_key: &str, headers| Amqp {
        routing_key: routing_key.into(),
        headers,
        ..Amqp::default()
    };
    let record = |key: &str, value: &str| {
        Record {
            key: bytes(key),
            value: bytes(value),
            headers: vec![],
        }
        .header(CASE, case)
    };
    let named = || table([(CASE, text(case))]);
    let own_user = properties().with_user_id("guest".into());
    let kafka = [
        (CASE, text(case)),
        ("kafka.key", text("k")),
        ("kafka.null_value", AMQPValue::Boolean(true)),
    ];
    let null = amqp("r", table(kafka.clone()));
    let not_null = amqp("r", table(kafka));
    let cc = AMQPValue::FieldArray(FieldArray::from(vec![text("nobody")]));
    vec![
        of(
            "bare",
            Amqp {
                body: case.as_bytes().to_vec(),
                routing_key: "some.key".into(),
                ..Amqp::default()
            },
            Record {
                key: bytes("some.key"),
                value: bytes(case),
                headers: vec![],
            },
        ),
        of("empty", amqp("", named()), record("", "")),
        of(
            "another alphabet",
            amqp("ключ.*.#", named()),
            record("ключ.*.#", ""),
        ),
        of(
            "properties",
            Amqp {
                properties: own_user,
                ..amqp("r", named())
            },
            properties_as_headers(record("r", "")),
        ),
        types(case, &of),
        of(
            "a null value from Kafka",
            null,
            Record {
                key: bytes("k"),
                value: None,
                headers: vec![],
            }
            .header(CASE, case),
        ),
        of(
            "a body is never thrown away",
            Amqp {
                body: b"body".to_vec(),
                ..not_null
            },
            record("k", "body").header("kafka.null_value", "true"),
        ),
        Content {
            sender_selected: true,
            ..of(
                "CC",
                amqp("r", table([(CASE, text(case)), ("CC", cc)])),
                record("r", "").header("CC", "[\"nobody\"]"),
            )
        },
    ]
}

/// A header of every type, nested too.
fn types(case: &str, of: &dyn Fn(&'static str, Amqp, Record) -> Content) -> Content {
    let inner = [
        ("bool", AMQPValue::Boolean(true), "true"),
        ("i8", AMQPValue::ShortShortInt(-5), "-5"),
        ("u8", AMQPValue::ShortShortUInt(250), "250"),
        ("i16", AMQPValue::ShortInt(-30_000), "-30000"),
        ("u16", AMQPValue::ShortUInt(60_000), "60000"),
        ("i32", AMQPValue::LongInt(-2_000_000_000), "-2000000000"),
        ("u32", AMQPValue::LongUInt(4_000_000_000), "4000000000"),
        (
            "i64",
            AMQPValue::LongLongInt(i64::MIN),
            "-9223372036854775808",
        ),
        ("f32", AMQPValue::Float(0.5), "0.5"),
        ("f64", AMQPValue::Double(0.1), "0.1"),
        (
            "decimal",
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 150,
            }),
            "1.50",
        ),
        ("text", text("µ"), "µ"),
        (
            "bytes",
            AMQPValue::ByteArray(ByteArray::from(b"raw".to_vec())),
            "raw",
        ),
        (
            "timestamp",
            AMQPValue::Timestamp(1_795_255_200),
            "1795255200",
        ),
    ];
    let mut headers = table([(CASE, text(case)), ("void", AMQPValue::Void)]);
    let mut record = Record {
        key: bytes("r"),
        value: bytes("v"),
        headers: vec![("void".into(), None)],
    };
    record = record.header(CASE, case);
    let mut nested = table([]);
    for (name, value, as_text) in inner {
        record = record.header(name, as_text);
        nested.insert(name.into(), value.clone());
        headers.insert(name.into(), value);
    }
    nested.insert("void".into(), AMQPValue::Void);
    let raw = AMQPValue::ByteArray(vec![255, 0].into());
    let deep = table([("deeper", AMQPValue::FieldTable(nested))]);
    let array = FieldArray::from(vec![
        AMQPValue::LongInt(1),
        raw,
        AMQPValue::FieldTable(deep),
    ]);
    headers.insert("nested".into(), AMQPValue::FieldArray(array));
    let json = "[1,[255,0],{\"deeper\":{\"bool\":true,\"bytes\":\"raw\",\"decimal\":\"1.50\",\"f32\":0.5,\
        \"f64\":0.1,\"i16\":-30000,\"i32\":-2000000000,\"i64\":-9223372036854775808,\"i8\":-5,\"text\":\"µ\",\
        \"timestamp\":1795255200,\"u16\":60000,\"u32\":4000000000,\"u8\":250,\"void\":null}}]";
    record = record.header("nested", json);
    let sent = Amqp {
        routing_key: "r".into(),
        headers,
        body: b"v".to_vec(),
        ..Amqp::default()
    };
    of("types", sent, record)
}
