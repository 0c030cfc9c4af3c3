use std::thread;

use amq_protocol::frame::{AMQPContentHeader, parsing::parse_content_header};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use proptest::prelude::*;

use super::*;

/// A nested value of this depth: a kind of container, an array in an array or a table in a table.
fn nested(kind: u8, depth: usize) -> Vec<u8> {
    let mut value = vec![b'V'];
    for _ in 0..depth {
        let name: &[u8] = if kind == b'F' { b"\x01n" } else { b"" };
        let len = (name.len() + value.len()) as u32;
        value = [&[kind][..], &len.to_be_bytes(), name, &value].concat();
    }
    value
}

/// The payload of a content header with a content type, a header table of these bytes, and a message id.
fn payload(table: &[u8]) -> Vec<u8> {
    let flags: u16 = 1 << 15 | HEADERS_FLAG | 1 << 7;
    let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    payload.extend(flags.to_be_bytes());
    payload.extend(b"\x04text");
    payload.extend((table.len() as u32).to_be_bytes());
    payload.extend(table);
    payload.extend(b"\x02id");
    payload
}

fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[name.len() as u8][..], name, value].concat()
}

/// Decodes as the client library does.
fn decode(payload: &[u8]) -> Option<AMQPContentHeader> {
    parse_content_header(payload)
        .ok()
        .filter(|(rest, _)| rest.is_empty())
        .map(|(_, header)| header)
}

/// The reason that stands in place of the headers.
fn reason(header: &AMQPContentHeader) -> Option<String> {
    let headers = header.properties.headers().as_ref()?;
    match headers.inner().get(UNREADABLE_HEADER)? {
        AMQPValue::LongString(reason) => Some(reason.to_string()),
        _ => None,
    }
}

#[test]
fn headers_may_nest_as_deep_as_the_limit_and_no_deeper() {
    // The client library's thread has this much stack.
    let decoding = thread::Builder::new().stack_size(2 << 20).spawn(|| {
        for kind in [b'A', b'F'] {
            let deepest = payload(&field(b"h", &nested(kind, MAX_HEADER_DEPTH)));
            assert_eq!(make_decodable(&deepest, None, None), None);
            assert!(decode(&deepest).is_some());
            for depth in [MAX_HEADER_DEPTH + 1, 1_500, 26_000] {
                let made = make_decodable(&payload(&field(b"h", &nested(kind, depth))), None, None);
                let header = decode(&made.expect("it is replaced")).expect("it can be decoded");
                assert_eq!(
                    reason(&header).as_deref(),
                    Some("its headers nest deeper than 128")
                );
            }
        }
    });
    decoding
        .expect("a thread")
        .join()
        .expect("it does not panic");
}

#[test]
fn what_cannot_be_decoded_leaves_the_other_properties_and_the_reason() {
    let twice = [field(b"a", b"V"), field(b"\xff\xfe", b"V")].concat();
    let cases: [(&[u8], &str); 6] = [
        (&twice, "a header's name is not UTF-8"),
        (
            &field(b"h", b"F\0\0\0\x03\x01\xffV"),
            "a header's name is not UTF-8",
        ),
        (&field(b"h", b"z"), "a header is of the unknown type 0x7a"),
        (
            &field(b"h", b"S\0\0\0\x09abc"),
            "the lengths within its headers are wrong",
        ),
        (
            &field(b"h", b"A\0\0\0\x02S\0"),
            "the lengths within its headers are wrong",
        ),
        (
            &field(UNREADABLE_HEADER.as_bytes(), b"V"),
            "it has a header x-postdate-unreadable already",
        ),
    ];
    for (table, expected) in cases {
        let payload = payload(table);
        let header = decode(&make_decodable(&payload, None, None).expect("it is replaced"))
            .expect("decoded");
        assert_eq!(reason(&header).as_deref(), Some(expected), "{table:?}");
        assert_eq!(header.body_size, 9);
        assert_eq!(
            header
                .properties
                .content_type()
                .as_ref()
                .map(ShortString::as_str),
            Some("text")
        );
        assert_eq!(
            header
                .properties
                .message_id()
                .as_ref()
                .map(ShortString::as_str),
            Some("id")
        );
    }
}

#[test]
fn a_text_that_is_not_utf_8_is_replaced_byte_by_byte_and_named() {
    let mut bytes = payload(&field(b"h", b"V"));
    let place = bytes
        .windows(4)
        .position(|w| w == b"text")
        .expect("the content type");
    bytes[place] = 0xff;
    let header = decode(
        &make_decodable(&bytes, Some("its routing key is not UTF-8".into()), None)
            .expect("replaced"),
    );
    let header = header.expect("decoded");
    assert_eq!(
        header
            .properties
            .content_type()
            .as_ref()
            .map(ShortString::as_str),
        Some("?ext")
    );
    let reason = reason(&header);
    assert_eq!(
        reason.as_deref(),
        Some("its routing key is not UTF-8, its content_type is not UTF-8")
    );
}

#[test]
fn what_can_be_decoded_stays_as_it_is() {
    let empty = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0];
    assert_eq!(make_decodable(&empty, None, None), None);
    let mut table = FieldTable::default();
    table.insert("a".into(), AMQPValue::LongString("b".into()));
    assert!(
        decode(&payload(&field(b"a", b"S\0\0\0\x01b")))
            .is_some_and(|h| h.properties.headers() == &Some(table))
    );
}

/// Bytes that look like a header table, and some that nearly do.
fn table_bytes() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![4 => "[a-z]{0,3}".prop_map(String::into_bytes), 1 => prop::collection::vec(any::<u8>(), 0..3)];
    let plain = prop_oneof![
        prop::sample::select(vec![
            &b"V"[..],
            b"t\x01",
            b"b\xff",
            b"B\xff",
            b"s\0\x01",
            b"U\0\x01",
            b"u\0\x01",
            b"I\0\0\0\x01",
            b"i\0\0\0\x01",
            b"f\0\0\0\0",
            b"D\x02\0\0\0\x05",
            b"L\0\0\0\0\0\0\0\x01",
            b"l\0\0\0\0\0\0\0\x01",
            b"d\0\0\0\0\0\0\0\0",
            b"T\0\0\0\0\0\0\0\0",
            b"S\0\0\0\x02\xff\xfe",
            b"x\0\0\0\x01a",
        ])
        .prop_map(<[u8]>::to_vec),
        prop::collection::vec(any::<u8>(), 1..6),
    ];
    let value = plain.prop_recursive(4, 32, 4, move |inner| {
        let named = name.clone();
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| {
                let content = items.concat();
                [&b"A"[..], &(content.len() as u32).to_be_bytes(), &content].concat()
            }),
            prop::collection::vec((named, inner), 0..4).prop_map(|fields| {
                let content: Vec<u8> = fields
                    .iter()
                    .flat_map(|(name, value)| field(name, value))
                    .collect();
                [&b"F"[..], &(content.len() as u32).to_be_bytes(), &content].concat()
            }),
        ]
    });
    prop::collection::vec(("[a-z]{0,3}", value), 0..4).prop_map(|fields| {
        fields
            .iter()
            .flat_map(|(name, value)| field(name.as_bytes(), value))
            .collect()
    })
}

proptest! {
    #[test]
    fn the_judgement_is_that_of_the_client_library(table in table_bytes()) {
        let payload = payload(&table);
        match make_decodable(&payload, None, None) {
            None => prop_assert!(decode(&payload).is_some(), "the library does not decode it"),
            Some(made) => {
                prop_assert!(decode(&payload).is_none(), "the library decodes it");
                prop_assert!(decode(&made).and_then(|header| reason(&header)).is_some());
            }
        }
    }

    #[test]
    fn any_bytes_become_a_header_that_can_be_decoded(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let made = make_decodable(&payload, None, None);
        prop_assert!(decode(made.as_deref().unwrap_or(&payload)).is_some());
    }
}
