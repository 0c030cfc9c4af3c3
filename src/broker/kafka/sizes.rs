//! Sizes of what a consumer fetches and opens. They bound the memory that records cost which are small on the wire and
//! large once decompressed.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;

use crate::domain::Secret;

/// Most bytes of one partition in one answer, as they are on the wire. The client library opens all batches of an answer
/// at once, so this bounds how many there are. A larger batch comes alone.
const PARTITION_BYTES: u64 = 256 << 10;
/// Most bytes of one answer, as they are on the wire. Limits the memory of records that are read ahead, per group:
/// librdkafka's own 64 MiB do not fit twenty routes.
const ANSWER_BYTES: u64 = 8 << 20;
/// The same for a careful consumer, of all partitions together. A record of 1 MB of zeros is 118 bytes as a zstd batch:
/// the 208 of them that fit here open to 208 MB. One answer is awaited of each broker at a time, so this bounds the flow
/// too, by the round trip.
const CAREFUL_ANSWER_BYTES: u64 = 24 << 10;
/// Least value of `message.max.bytes` that the client library takes.
const MIN_MESSAGE_BYTES: u64 = 1000;
/// Least size up to which an answer is taken, and a zstd batch is decompressed. The client library's own 100 MB let 40
/// records of a few KB cost 2.3 GB.
const MIN_OPEN_BYTES: u64 = 20_000_000;
/// Least bytes that the client library wants between the two sizes.
const FRAMING_BYTES: u64 = 512;
/// Bytes that one more record of a batch, its framing and the framing of the answer may take.
const SPARE_BYTES: u64 = 1 << 20;
/// Growth of the client library's buffer for a batch whose frame does not say how large it is: the last buffer that is
/// tried may be that much larger than the batch.
const BUFFER_GROWTH: u64 = 3;
/// Largest value that the client library takes.
const MAX_OPEN_BYTES: u64 = 1_000_000_000;

/// Properties that say how much a consumer fetches at a time: of a partition, by both of its names, and in one answer.
const FETCH_PROPERTIES: [&str; 3] = [
    "fetch.message.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.bytes",
];

/// How much a consumer fetches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchSizes {
    /// So little that records which expand fit into memory.
    Careful,
    /// As much as the flow of many partitions needs.
    Usual,
}

/// Reports whether the operator says how much a consumer fetches at a time.
pub(super) fn are_set(properties: &BTreeMap<String, Secret>) -> bool {
    FETCH_PROPERTIES
        .iter()
        .any(|name| properties.contains_key(*name))
}

/// Sets the sizes of a consumer whose routes take records of at most `largest_record` bytes. The operator's own
/// properties win, and the others are fitted to them.
pub(super) fn set(
    config: &mut ClientConfig,
    properties: &BTreeMap<String, Secret>,
    largest_record: u64,
    sizes: FetchSizes,
) {
    let own = |name: &str| {
        properties
            .get(name)
            .map(|value| value.expose().trim().parse::<u64>().ok())
    };
    let own_answer = own("fetch.max.bytes").flatten();
    let largest_message = own("message.max.bytes").flatten().unwrap_or(0);
    // The client library makes no client that may fetch more than it takes.
    let largest_answer = own("receive.message.max.bytes")
        .flatten()
        .map_or(u64::MAX, |bytes| bytes.saturating_sub(FRAMING_BYTES));
    let fitted = |bytes: u64| own_answer.unwrap_or(bytes.min(largest_answer));
    let usual_answer = fitted(ANSWER_BYTES.max(largest_message));
    let (partition, answer) = match sizes {
        FetchSizes::Careful => (CAREFUL_ANSWER_BYTES, fitted(CAREFUL_ANSWER_BYTES)),
        FetchSizes::Usual => (PARTITION_BYTES, usual_answer),
    };
    // It is for producers. Of a consumer the client library wants that it is at most `fetch.max.bytes`.
    config.set(
        "message.max.bytes",
        answer.max(MIN_MESSAGE_BYTES).to_string(),
    );
    let open = largest_record
        .saturating_add(SPARE_BYTES)
        .saturating_mul(BUFFER_GROWTH)
        .max(MIN_OPEN_BYTES)
        .max(usual_answer.saturating_add(FRAMING_BYTES))
        .min(MAX_OPEN_BYTES);
    let [of_partition, of_partition_alias, of_answer] = FETCH_PROPERTIES;
    let sizes = [
        (&[of_partition, of_partition_alias][..], partition),
        (&[of_answer][..], answer),
        (&["receive.message.max.bytes"][..], open),
    ];
    for (names, bytes) in sizes {
        if names.iter().all(|name| own(name).is_none()) {
            config.set(names[0], bytes.to_string());
        }
    }
}

/// The size up to which a consumer takes answers and decompresses zstd batches.
pub fn open_bytes(config: &ClientConfig) -> u64 {
    config
        .get("receive.message.max.bytes")
        .and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or(MIN_OPEN_BYTES)
}

#[cfg(test)]
mod tests {
    use rdkafka::consumer::BaseConsumer;

    use super::*;

    /// The sizes of a consumer with these properties of the operator's: of a partition, of an answer, and of what is opened.
    /// None where the operator sets it.
    fn sizes(own: &[(&str, &str)], largest: u64, sizes: FetchSizes) -> [Option<u64>; 3] {
        let mut config = ClientConfig::new();
        let properties = own
            .iter()
            .map(|(k, v)| ((*k).to_owned(), Secret::new(*v)))
            .collect();
        for (name, value) in own {
            config.set(*name, *value);
        }
        set(&mut config, &properties, largest, sizes);
        let made = config.create::<BaseConsumer>();
        assert!(made.is_ok(), "{own:?}: {:?}", made.err());
        [
            "fetch.message.max.bytes",
            "fetch.max.bytes",
            "receive.message.max.bytes",
        ]
        .map(|name| {
            let is_own = own.iter().any(|(own, _)| *own == name);
            let bytes = config.get(name).filter(|_| !is_own)?;
            Some(bytes.parse().expect("a number"))
        })
    }

    #[test]
    fn the_largest_record_fits_whatever_the_operator_sets() {
        let partition = Some(PARTITION_BYTES);
        let answer = Some(ANSWER_BYTES);
        let careful = Some(CAREFUL_ANSWER_BYTES);
        let least = Some(MIN_OPEN_BYTES);
        for (own, largest, of_usual, of_careful) in [
            (
                &[][..],
                1 << 20,
                [partition, answer, least],
                [careful, careful, least],
            ),
            (
                &[],
                60_000_000,
                [partition, answer, Some(3 * (60_000_000 + SPARE_BYTES))],
                [careful, careful, Some(3 * (60_000_000 + SPARE_BYTES))],
            ),
            (
                &[],
                u64::MAX,
                [partition, answer, Some(MAX_OPEN_BYTES)],
                [careful, careful, Some(MAX_OPEN_BYTES)],
            ),
            (
                &[("fetch.max.bytes", "50000000")],
                0,
                [partition, None, Some(50_000_512)],
                [careful, None, Some(50_000_512)],
            ),
            (
                &[("fetch.max.bytes", "70000")],
                0,
                [partition, None, least],
                [careful, None, least],
            ),
            // What a producer may send can be read.
            (
                &[("message.max.bytes", "30000000")],
                0,
                [partition, Some(30_000_000), Some(30_000_512)],
                [careful, careful, Some(30_000_512)],
            ),
            (
                &[("max.partition.fetch.bytes", "7")],
                0,
                [None, answer, least],
                [None, careful, least],
            ),
            (
                &[("receive.message.max.bytes", "90000000")],
                60_000_000,
                [partition, answer, None],
                [careful, careful, None],
            ),
            (
                &[("receive.message.max.bytes", "4000000")],
                0,
                [partition, Some(3_999_488), None],
                [careful, careful, None],
            ),
            (
                &[("receive.message.max.bytes", "10000")],
                0,
                [partition, Some(9_488), None],
                [careful, Some(9_488), None],
            ),
        ] {
            let found = sizes(own, largest, FetchSizes::Usual);
            assert_eq!(found, of_usual, "{own:?} {largest}");
            let found = sizes(own, largest, FetchSizes::Careful);
            assert_eq!(found, of_careful, "{own:?} {largest}");
        }
    }

    #[test]
    fn an_operator_who_sets_a_fetch_size_has_set_how_much_is_fetched() {
        for (name, expected) in [
            ("fetch.max.bytes", true),
            ("fetch.message.max.bytes", true),
            ("max.partition.fetch.bytes", true),
            ("receive.message.max.bytes", false),
            ("message.max.bytes", false),
        ] {
            let properties = BTreeMap::from([(name.to_owned(), Secret::new("1000000"))]);
            assert_eq!(are_set(&properties), expected, "{name}");
        }
        assert!(!are_set(&BTreeMap::new()));
    }
}
