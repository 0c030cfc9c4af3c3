//! The format holds still (golden files), keeps everything, and refuses everything else without a panic.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::domain::{
    DelayRequest, Expiry, Header, HeaderValue, KafkaPosition, Message, Origin, Properties,
    RequestedTime, limits, testing,
};

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![Just(Text::default()), "\\PC{0,12}".prop_map(Text::from)]
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0..4000usize).prop_map(|(b, n)| vec![b; n]),
    ]
    .prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = HeaderValue> {
    use HeaderValue as V;
    let leaf = prop_oneof![
        Just(V::Null),
        bytes().prop_map(V::Bytes),
        bytes().prop_map(V::LongString),
        any::<bool>().prop_map(V::Bool),
        any::<i8>().prop_map(V::I8),
        any::<u8>().prop_map(V::U8),
        any::<i16>().prop_map(V::I16),
        any::<u16>().prop_map(V::U16),
        any::<i32>().prop_map(V::I32),
        any::<u32>().prop_map(V::U32),
        any::<i64>().prop_map(V::I64),
        prop::num::f32::NORMAL.prop_map(V::F32),
        prop::num::f64::NORMAL.prop_map(V::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| V::Decimal { scale, value }),
        any::<u64>().prop_map(V::Timestamp),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let header = (text(), inner.clone()).prop_map(|(name, value)| Header { name, value });
        prop_oneof![
            prop::collection::vec(header, 0..4).prop_map(V::Table),
            prop::collection::vec(inner, 0..4).prop_map(V::Array),
        ]
    })
}

fn properties() -> impl Strategy<Value = Properties> {
    let texts = prop::collection::vec(prop::option::of(text()), 10);
    (
        texts,
        any::<Option<u8>>(),
        any::<Option<u8>>(),
        any::<Option<u64>>(),
    )
        .prop_map(|(mut texts, delivery_mode, priority, timestamp)| {
            let mut next = || texts.pop().flatten();
            Properties {
                content_type: next(),
                content_encoding: next(),
                delivery_mode,
                priority,
                correlation_id: next(),
                reply_to: next(),
                expiration: next(),
                message_id: next(),
                timestamp,
                kind: next(),
                user_id: next(),
                app_id: next(),
                cluster_id: next(),
            }
        })
}

fn message() -> impl Strategy<Value = Message> {
    let header = (text(), value()).prop_map(|(name, value)| Header { name, value });
    (
        any::<bool>().prop_map(|kafka| {
            if kafka {
                Origin::Kafka
            } else {
                Origin::Rabbitmq
            }
        }),
        prop::option::of(bytes()),
        prop::option::of(bytes()),
        prop::collection::vec(header, 0..5),
        prop::option::of(properties().prop_map(Box::new)),
    )
        .prop_map(|(origin, key, body, headers, properties)| Message {
            origin,
            key,
            body,
            headers,
            properties,
        })
}

fn position(place: Option<(i32, i64)>) -> Option<KafkaPosition> {
    place.map(|(partition, offset)| KafkaPosition { partition, offset })
}

fn request() -> impl Strategy<Value = DelayRequest> {
    let expiry =
        (any::<i64>(), prop::option::of(any::<i64>())).prop_map(|(last, after_ms)| Expiry {
            last: UnixMs(last),
            after_ms,
        });
    let times = (any::<i64>(), any::<bool>(), any::<i64>());
    let given_back = prop_oneof![Just(0), any::<u32>()];
    let all = (times, prop::option::of(expiry), given_back);
    all.prop_map(
        |((received, is_delay, time), expires, given_back)| DelayRequest {
            received: UnixMs(received),
            time: if is_delay {
                RequestedTime::Delay(time)
            } else {
                RequestedTime::At(UnixMs(time))
            },
            expires,
            given_back,
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    let failure = (any::<i64>(), text(), text()).prop_map(|(at, reason, error)| Failure {
        at: UnixMs(at),
        reason,
        error,
    });
    (
        (
            any::<i64>().prop_map(UnixMs),
            prop::option::of(text()),
            any::<u32>(),
            any::<u32>(),
        ),
        (any::<Option<i64>>(), prop::option::of(request())),
        (
            any::<u8>().prop_map(Flags),
            any::<Option<(i32, i64)>>().prop_map(position),
            prop::collection::vec(failure, 0..9),
        ),
        message(),
    )
        .prop_map(
            |(
                (due, id, handouts, failures),
                (asked, request),
                (flags, position, history),
                message,
            )| Entry {
                due,
                id,
                handouts,
                failures,
                flags,
                // A topic is kept with its position.
                source_topic: position
                    .filter(|place| place.offset % 2 == 0)
                    .map(|place| Text::from(format!("topic.{}", place.partition))),
                position,
                history,
                asked: asked.map(UnixMs),
                request,
                message,
            },
        )
}

fn bundle() -> impl Strategy<Value = Bundle> {
    (text(), prop::collection::vec(entry(), 0..12)).prop_map(|(target, entries)| Bundle {
        target: TargetRef::from_text(target),
        entries: Arc::new(entries),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(bundle in bundle()) {
        let blob = encode(&bundle);
        prop_assert_eq!(decode(&blob), Ok(bundle));
    }

    #[test]
    fn noise_is_refused(mut noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&Bytes::from(noise.clone())).is_err());
        // Behind a good head and checksum, the content itself is judged.
        noise.splice(0..0, *b"PB\x00\x00\0\0\0\0");
        let mut blob = BytesMut::from(&noise[..]);
        for version in FIRST_VERSION..=FORMAT_VERSION {
            for codec in [CODEC_PLAIN, CODEC_ZSTD, CODEC_ZSTD_HEADS] {
                (blob[2], blob[3]) = (version, codec);
                let _read_or_refused = decode(&sealed(&mut blob));
            }
        }
    }
}

/// A blob with a checksum that fits its content.
fn sealed(blob: &mut BytesMut) -> Bytes {
    let crc = checksum(blob, &[]);
    blob[4..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
    blob.clone().freeze()
}

/// Two Kafka records, and an AMQP delivery with everything that one can have. Never change it: the golden files
/// hold exactly this.
fn sample() -> Bundle {
    let kafka = Entry {
        due: UnixMs(1_790_000_000_123),
        id: Some("order-7".into()),
        handouts: 2,
        failures: 1,
        flags: Flags(Flags::NAMED | Flags::SOURCE_REREAD),
        position: position(Some((3, 9_000_000_000))),
        source_topic: None,
        asked: None,
        request: Some(DelayRequest {
            expires: None,
            given_back: 0,
            received: UnixMs(1_790_000_000_001),
            time: RequestedTime::Delay(120),
        }),
        history: vec![Failure {
            at: UnixMs(1_790_000_000_001),
            reason: "unroutable".into(),
            error: "no queue is bound".into(),
        }],
        message: Message {
            origin: Origin::Kafka,
            key: None,
            body: Some(Bytes::from_static(b"{\"n\":7}")),
            headers: vec![
                Header::new("h", HeaderValue::Bytes(Bytes::from_static(b"\x00\xff"))),
                Header::new("h", HeaderValue::Null),
            ],
            properties: None,
        },
    };
    let tombstone = Entry {
        due: UnixMs(1_790_000_000_100),
        id: None,
        handouts: 0,
        failures: 0,
        flags: Flags::default(),
        position: None,
        source_topic: None,
        asked: None,
        request: None,
        history: vec![],
        message: Message {
            origin: Origin::Kafka,
            key: Some(Bytes::new()),
            body: None,
            headers: vec![],
            properties: None,
        },
    };
    let amqp = Entry {
        due: UnixMs(1_790_000_000_100),
        id: Some("~10.0.k3x.1.1.0".into()),
        handouts: 300,
        failures: 16,
        flags: Flags(Flags::SOURCE_REDELIVERY | Flags::STORE_ROLLBACK),
        position: None,
        source_topic: None,
        asked: None,
        request: Some(DelayRequest {
            expires: None,
            given_back: 0,
            received: UnixMs(1_789_999_999_000),
            time: RequestedTime::At(UnixMs(1_790_000_000_100)),
        }),
        history: vec![],
        message: delivery(),
    };
    Bundle {
        target: TargetRef::Named("orders.retry".into()),
        entries: Arc::new(vec![kafka, tombstone, amqp]),
    }
}

fn delivery() -> Message {
    use HeaderValue as V;
    let all = vec![
        V::Null,
        V::Bytes(Bytes::from_static(b"\x01\x02")),
        V::LongString(Bytes::from_static("größer".as_bytes())),
        V::Bool(true),
        V::I8(-8),
        V::U8(8),
        V::I16(-16),
        V::U16(16),
        V::I32(-32),
        V::U32(32),
        V::I64(-64),
        V::F32(0.5),
        V::F64(-0.25),
        V::Decimal {
            scale: 2,
            value: 1999,
        },
        V::Timestamp(1_790_000_000),
    ];
    let nested = vec![
        Header::new("all", V::Array(all)),
        Header::new("empty", V::Table(vec![])),
    ];
    Message {
        origin: Origin::Rabbitmq,
        key: Some(Bytes::from_static(b"orders.created")),
        body: Some(Bytes::new()),
        headers: vec![Header::new("nested", V::Table(nested))],
        properties: Some(Box::new(Properties {
            content_type: Some("application/json".into()),
            content_encoding: Some("utf-8".into()),
            delivery_mode: Some(2),
            priority: Some(9),
            correlation_id: Some("c".into()),
            reply_to: Some("r".into()),
            expiration: Some("60000".into()),
            message_id: Some("m".into()),
            timestamp: Some(1_790_000_001),
            kind: Some("k".into()),
            user_id: Some("guest".into()),
            app_id: Some("a".into()),
            cluster_id: Some("".into()),
        })),
    }
}

/// The sample, sixty times over: long enough to be compressed.
fn long_sample() -> Bundle {
    let Bundle { target, entries } = sample();
    let many = (0..60).flat_map(|_| entries.iter().cloned()).collect();
    Bundle {
        target,
        entries: Arc::new(many),
    }
}

/// A bundle of `count` messages with the bodies that the closure makes.
fn many(count: usize, body: impl FnMut(usize) -> Vec<u8>) -> Bundle {
    let Bundle { target, entries } = sample();
    let with = |body: Vec<u8>| {
        let mut entry = entries[0].clone();
        entry.message.body = Some(body.into());
        entry
    };
    Bundle {
        target,
        entries: Arc::new((0..count).map(body).map(with).collect()),
    }
}

/// Heads that compress, bodies that do not.
fn noisy_sample() -> Bundle {
    let mut random = 1u64;
    let mut noise = |n: usize| -> Vec<u8> {
        let byte = |_| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        (0..n).map(byte).collect()
    };
    many(100, |_| noise(300))
}

/// The bundles of the first version, in the order of [`GOLDEN`].
const GOLDEN_V1: [&[u8]; 4] = [
    include_bytes!("../../../../tests/golden/plain-v1.bundle"),
    include_bytes!("../../../../tests/golden/zstd-v1.bundle"),
    include_bytes!("../../../../tests/golden/heads-v1.bundle"),
    include_bytes!("../../../../tests/golden/empty-v1.bundle"),
];
const GOLDEN_PLAIN: &[u8] = include_bytes!("../../../../tests/golden/plain-v2.bundle");
const GOLDEN_ZSTD: &[u8] = include_bytes!("../../../../tests/golden/zstd-v2.bundle");
const GOLDEN_HEADS: &[u8] = include_bytes!("../../../../tests/golden/heads-v2.bundle");
const GOLDEN_EMPTY: &[u8] = include_bytes!("../../../../tests/golden/empty-v2.bundle");
const GOLDEN: [&[u8]; 4] = [GOLDEN_PLAIN, GOLDEN_ZSTD, GOLDEN_HEADS, GOLDEN_EMPTY];

/// The contents of the golden files, in their order.
fn golden_bundles() -> [Bundle; 4] {
    let empty = Bundle {
        target: TargetRef::Own,
        entries: Arc::default(),
    };
    [sample(), long_sample(), noisy_sample(), empty]
}

/// The same bundle as the first version kept it.
fn without_requests(mut bundle: Bundle) -> Bundle {
    for entry in Arc::make_mut(&mut bundle.entries) {
        entry.request = None;
    }
    bundle
}

#[test]
fn golden_files_are_read_as_ever() {
    assert_eq!(
        (GOLDEN_PLAIN[3], GOLDEN_ZSTD[3], GOLDEN_HEADS[3]),
        (CODEC_PLAIN, CODEC_ZSTD, CODEC_ZSTD_HEADS)
    );
    for (bundle, (first, golden)) in golden_bundles()
        .into_iter()
        .zip(GOLDEN_V1.iter().zip(GOLDEN))
    {
        assert_eq!(
            decode(&Bytes::from_static(first)),
            Ok(without_requests(bundle.clone()))
        );
        assert_eq!(decode(&Bytes::from_static(golden)), Ok(bundle));
    }
}

/// A new version of zstd may write other bytes. It must read the old ones.
#[test]
fn the_plain_golden_file_is_written_as_ever() {
    let [plain, _, _, empty] = golden_bundles();
    assert_eq!(encode(&plain), GOLDEN_PLAIN);
    assert_eq!(encode(&empty), GOLDEN_EMPTY);
}

#[test]
fn what_is_compressed_follows_what_it_brings() {
    let order = |n: usize| {
        format!(
            r#"{{"order":{},"state":"paid","currency":"EUR"}}"#,
            n * 7919
        )
        .repeat(4)
        .into_bytes()
    };
    let noise = |n: usize| {
        noisy_sample().entries[n]
            .message
            .body
            .as_ref()
            .expect("a body")
            .to_vec()
    };
    let text = |n: usize| if n < 50 { order(n) } else { noise(n) };
    let one = |_| b"no".to_vec();
    for (bundle, codec) in [
        (many(1, one), CODEC_PLAIN),
        (many(8, order), CODEC_ZSTD),
        (many(60, order), CODEC_ZSTD),
        (many(60, text), CODEC_ZSTD),
        (many(20, noise), CODEC_ZSTD_HEADS),
        (many(100, noise), CODEC_ZSTD_HEADS),
    ] {
        let blob = encode(&bundle);
        assert_eq!(blob[3], codec, "{} messages", bundle.entries.len());
        assert_eq!(decode(&blob), Ok(bundle));
    }
}

#[test]
fn every_truncation_and_every_flipped_bit_is_an_error() {
    for golden in [GOLDEN_PLAIN, GOLDEN_ZSTD, GOLDEN_EMPTY, GOLDEN_V1[0]] {
        for len in 0..golden.len() {
            assert!(
                decode(&Bytes::from_static(&golden[..len])).is_err(),
                "cut at {len}"
            );
        }
        for bit in 0..golden.len() * 8 {
            let mut flipped = golden.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped.into()).is_err(), "bit {bit}");
        }
        let longer = [golden, b"\0"].concat();
        assert_eq!(decode(&longer.into()), Err(CodecError::Checksum));
    }
}

/// The checksum is no help against a writer's mistake: every flipped bit under a fitting checksum is read as
/// something or refused, never a panic.
#[test]
fn no_content_under_a_fitting_checksum_makes_the_reader_panic() {
    for golden in [GOLDEN_PLAIN, GOLDEN_ZSTD, GOLDEN_V1[0]] {
        let mut refused = 0;
        for bit in (0..golden.len() * 8).filter(|bit| !(4..PREFIX_LEN).contains(&(bit / 8))) {
            let mut flipped = BytesMut::from(golden);
            flipped[bit / 8] ^= 1 << (bit % 8);
            refused += u32::from(decode(&sealed(&mut flipped)).is_err());
        }
        assert!(refused > 100, "most flips are still seen: {refused}");
        for len in PREFIX_LEN..golden.len() {
            let mut cut = BytesMut::from(&golden[..len]);
            assert!(decode(&sealed(&mut cut)).is_err(), "cut at {len}");
        }
    }
}

#[test]
fn what_is_no_bundle_or_of_a_later_version_is_called_so() {
    assert_eq!(decode(&Bytes::new()), Err(CodecError::NotABundle));
    assert_eq!(
        decode(&Bytes::from_static(b"{\"json\":true}")),
        Err(CodecError::NotABundle)
    );
    let mut later = BytesMut::from(GOLDEN_PLAIN);
    later[2] = FORMAT_VERSION + 1;
    assert_eq!(
        decode(&sealed(&mut later)),
        Err(CodecError::UnknownVersion(FORMAT_VERSION + 1))
    );
    let mut codec = BytesMut::from(GOLDEN_PLAIN);
    codec[3] = CODEC_LIKE + 1;
    assert_eq!(decode(&sealed(&mut codec)), Err(CodecError::Malformed(3)));
    // What was written like an example is nothing without it.
    codec[3] = CODEC_LIKE;
    let malformed = Err(CodecError::Malformed(PREFIX_LEN));
    assert_eq!(decode(&sealed(&mut codec)), malformed);
}

/// A blob whose records claim to be `plain` bytes long and decompress to `truly`.
fn bomb(plain: usize, truly: usize) -> Bytes {
    let payload = zstd::bulk::compress(&vec![0; truly], 1).expect("compressed");
    let mut content = Vec::new();
    put_bytes(&mut content, b"");
    put_unsigned(&mut content, 1);
    put_unsigned(&mut content, plain as u64);
    put_unsigned(&mut content, 0);
    put_signed(&mut content, 0);
    put_unsigned(&mut content, plain as u64);
    put_unsigned(&mut content, 0);
    content.push(0);
    put_unsigned(&mut content, 0);
    put_unsigned(&mut content, 0);
    content.extend(payload);
    let mut blob = BytesMut::from(&b"PB\x01\x01\0\0\0\0"[..]);
    blob.put_slice(&content);
    sealed(&mut blob)
}

#[test]
fn a_bomb_is_refused_before_it_goes_off() {
    let small = bomb(100, 16 << 20);
    assert!(small.len() < 10_000);
    assert!(
        matches!(decode(&small), Err(CodecError::Malformed(_))),
        "more than it says"
    );
    assert!(
        matches!(
            decode(&bomb(MAX_PLAIN + 1, 100)),
            Err(CodecError::Malformed(_))
        ),
        "more than is allowed"
    );
    assert!(
        matches!(decode(&bomb(16 << 20, 100)), Err(CodecError::Malformed(_))),
        "less than it says"
    );
}

#[test]
fn the_largest_body_that_a_route_may_take_is_read_again() {
    let mut entry = testing::entry(UnixMs(7), b"");
    entry.message.body = Some(Bytes::from(vec![0; MAX_PLAIN]));
    let bundle = Bundle {
        target: TargetRef::Own,
        entries: Arc::new(vec![entry]),
    };
    assert_eq!(decode(&encode(&bundle)), Ok(bundle));
}

#[test]
fn nesting_is_kept_to_a_depth_and_refused_beyond_it() {
    let nested = |depth: usize| {
        let mut value = HeaderValue::Null;
        for _ in 0..depth {
            value = HeaderValue::Array(vec![value]);
        }
        let mut bundle = sample();
        let entry = &mut Arc::make_mut(&mut bundle.entries)[0];
        entry.message.headers = vec![Header::new("deep", value)];
        bundle
    };
    let deep = nested(limits::MAX_HEADER_DEPTH);
    assert_eq!(decode(&encode(&deep)), Ok(deep));
    assert!(matches!(
        decode(&encode(&nested(limits::MAX_HEADER_DEPTH + 1))),
        Err(CodecError::Malformed(_))
    ));
}

#[test]
fn numbers_are_read_as_written_and_no_longer_ones() {
    for n in [
        0,
        1,
        127,
        128,
        300,
        u64::from(u32::MAX),
        u64::MAX - 1,
        u64::MAX,
    ] {
        let mut out = Vec::new();
        put_unsigned(&mut out, n);
        assert_eq!(Reader::new(out.into()).unsigned(), Ok(n));
        let signed = n.cast_signed();
        let mut out = Vec::new();
        put_signed(&mut out, signed);
        assert_eq!(Reader::new(out.into()).signed(), Ok(signed));
    }
    let eleven = [&[0xff; 10][..], &[1]].concat();
    assert!(Reader::new(eleven.into()).unsigned().is_err());
    assert!(
        Reader::new(Bytes::from_static(
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"
        ))
        .unsigned()
        .is_err()
    );
}
