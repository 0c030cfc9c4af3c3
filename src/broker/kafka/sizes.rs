//! Sizes of what a consumer fetches and opens. They bound the memory that records cost which are small on the wire and
//! large once decompressed.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;

use crate::domain::Secret;

/// Most bytes of one partition in one answer, as they are on the wire. The client library opens all batches of a
/// partition's answer at once, so this bounds how many there are. A larger batch comes alone.
const PARTITION_BYTES: u64 = 256 << 10;
/// Most bytes of one answer, as they are on the wire. Limits the memory of records that are read ahead, per group:
/// librdkafka's own 64 MiB do not fit twenty routes.
const ANSWER_BYTES: u64 = 8 << 20;
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

/// Sets the sizes of a consumer whose routes take records of at most `largest_record` bytes. The operator's own
/// properties win, and the others are fitted to them.
pub(super) fn set(
    config: &mut ClientConfig,
    properties: &BTreeMap<String, Secret>,
    largest_record: u64,
) {
    let own = |name: &str| {
        properties
            .get(name)
            .map(|value| value.expose().trim().parse::<u64>().ok())
    };
    let answer = own("fetch.max.bytes").flatten();
    let answer =
        answer.unwrap_or_else(|| ANSWER_BYTES.max(own("message.max.bytes").flatten().unwrap_or(0)));
    let open = largest_record
        .saturating_add(SPARE_BYTES)
        .saturating_mul(BUFFER_GROWTH)
        .max(MIN_OPEN_BYTES)
        .max(answer.saturating_add(FRAMING_BYTES))
        .min(MAX_OPEN_BYTES);
    let sizes = [
        (
            &["fetch.message.max.bytes", "max.partition.fetch.bytes"][..],
            PARTITION_BYTES,
        ),
        (&["fetch.max.bytes"][..], answer),
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
    use super::*;

    #[test]
    fn the_largest_record_fits_whatever_the_operator_sets() {
        for (own, largest, expected) in [
            (
                &[][..],
                1 << 20,
                [PARTITION_BYTES, ANSWER_BYTES, MIN_OPEN_BYTES],
            ),
            (
                &[],
                60_000_000,
                [
                    PARTITION_BYTES,
                    ANSWER_BYTES,
                    3 * (60_000_000 + SPARE_BYTES),
                ],
            ),
            (
                &[],
                u64::MAX,
                [PARTITION_BYTES, ANSWER_BYTES, MAX_OPEN_BYTES],
            ),
            (
                &[("fetch.max.bytes", "50000000")],
                0,
                [PARTITION_BYTES, 50_000_000, 50_000_512],
            ),
            (
                &[("message.max.bytes", "30000000")],
                0,
                [PARTITION_BYTES, 30_000_000, 30_000_512],
            ),
            (
                &[("max.partition.fetch.bytes", "7")],
                0,
                [0, ANSWER_BYTES, MIN_OPEN_BYTES],
            ),
            (
                &[("receive.message.max.bytes", "90000000")],
                60_000_000,
                [PARTITION_BYTES, ANSWER_BYTES, 0],
            ),
        ] {
            let mut config = ClientConfig::new();
            let properties = own
                .iter()
                .map(|(k, v)| ((*k).to_owned(), Secret::new(*v)))
                .collect();
            for (name, value) in own {
                config.set(*name, *value);
            }
            set(&mut config, &properties, largest);
            config.create_native_config().expect("librdkafka takes it");
            let names = [
                "fetch.message.max.bytes",
                "fetch.max.bytes",
                "receive.message.max.bytes",
            ];
            let found = names.map(|name| {
                config
                    .get(name)
                    .map_or(0, |value| value.parse().expect("a number"))
            });
            for (name, (found, expected)) in names.into_iter().zip(found.into_iter().zip(expected))
            {
                let is_own = own.iter().any(|(own, _)| *own == name);
                assert!(
                    found == expected || is_own,
                    "{own:?} {largest}: {name} = {found}"
                );
            }
        }
    }
}
