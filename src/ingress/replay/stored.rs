//! The messages of a route that the store holds already, by their Kafka position. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::domain::{Entry, Flags, HeaderValue, KafkaPosition, Message, Partition, Route, UnixMs};
use crate::ingress::admit::is_delay_header;
use crate::store::ScannedState;
use crate::telemetry::traces::is_context_header;

/// The stored message of one position. Takes 48 bytes for each message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub(super) offset: i64,
    pub(super) standing: ScannedState,
    /// The due time that was asked for.
    pub(super) due: UnixMs,
    /// Hash of the content. `None`: the body was not kept, and the position must do.
    pub(super) content: Option<u32>,
    /// Hash of the name. 0: the message has no name.
    pub(super) name: u128,
    /// The partition of the store that has it.
    pub(super) partition: Partition,
    /// How often consumers had given it back.
    pub(super) given_back: u32,
}

/// Collects stored messages while the store is scanned.
#[derive(Debug, Default)]
pub struct StoredRecordsBuilder(BTreeMap<i32, Vec<StoredRecord>>);

/// All messages of a route that the store holds and that were read from Kafka, by partition and offset.
#[derive(Debug)]
pub struct StoredRecords {
    by_partition: BTreeMap<i32, Vec<StoredRecord>>,
}

impl StoredRecordsBuilder {
    /// Adds a message of this partition of the store, unless it is of another topic than the route as it is replayed.
    pub fn add(
        &mut self,
        partition: Partition,
        entry: &Entry,
        standing: ScannedState,
        route: &Route,
    ) {
        let Some(read_at) = entry.position else {
            return;
        };
        let topic = entry.source_topic.as_ref();
        if topic.is_some_and(|topic| route.source_topic.as_ref() != Some(topic)) {
            return;
        }
        let named = entry.id.as_ref().filter(|_| entry.flags.has(Flags::NAMED));
        let whole = !entry.flags.has(Flags::LEFT_OUT);
        self.0
            .entry(read_at.partition)
            .or_default()
            .push(StoredRecord {
                offset: read_at.offset,
                standing,
                due: entry.asked_due(),
                content: whole.then(|| content_of(&entry.message, route)),
                name: named.map_or(0, |id| name_hash(id.as_str())),
                partition,
                given_back: entry.given_back(),
            });
    }

    /// Ends the collection. A message that moved during the scan was seen twice: the place where it waits
    /// counts.
    pub fn finish(self) -> StoredRecords {
        let mut by_partition = self.0;
        for records in by_partition.values_mut() {
            records.sort_unstable_by_key(|stored| {
                (stored.offset, stored.content, Reverse(stored.standing))
            });
            records.dedup_by_key(|stored| (stored.offset, stored.content));
            records.shrink_to_fit();
        }
        StoredRecords { by_partition }
    }
}

impl StoredRecords {
    /// The number of messages.
    pub fn len(&self) -> usize {
        self.by_partition.values().map(Vec::len).sum()
    }

    /// Reports whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn of(&self, partition: i32) -> &[StoredRecord] {
        self.by_partition.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// The stored message of a position, if its content is the same.
    pub(super) fn find(&self, position: KafkaPosition, content: u32) -> Option<&StoredRecord> {
        let KafkaPosition { partition, offset } = position;
        let records = self.of(partition);
        let first = records.partition_point(|stored| stored.offset < offset);
        let there = records[first..]
            .iter()
            .take_while(|stored| stored.offset == offset);
        there
            .filter(|stored| stored.content.is_none_or(|c| c == content))
            .max_by_key(|stored| stored.standing)
    }
}

/// Hashes the content of a record: body, key, and headers, without the delay headers, which a stored message
/// does not keep, and without the context of a trace, which is another one in the store. The hash tells a record
/// from an older one with the same position, in a topic that was created
/// anew since.
pub(super) fn content_of(message: &Message, route: &Route) -> u32 {
    let mut hash = Xxh3::new();
    let mut put = |part: Option<&[u8]>| {
        hash.update(
            &part
                .map_or(u64::MAX, |bytes| bytes.len() as u64)
                .to_le_bytes(),
        );
        hash.update(part.unwrap_or_default());
    };
    put(message.key.as_deref());
    put(message.body.as_deref());
    for header in &message.headers {
        if is_delay_header(header, route) || is_context_header(header.name.as_str()) {
            continue;
        }
        put(Some(header.name.bytes()));
        match &header.value {
            HeaderValue::Bytes(bytes) => put(Some(bytes)),
            // Kafka has no other values.
            _ => put(None),
        }
    }
    hash.digest() as u32
}

/// Hashes a name. Never 0.
pub(super) fn name_hash(id: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(id.as_bytes()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;
    use std::sync::Arc;

    #[test]
    fn a_replay_of_one_topic_knows_nothing_of_the_others_and_all_of_what_says_no_topic() {
        let route = Arc::new(testing::route_per_topic("(.*)\\.delayed", "{1}"));
        let stored = |topic: Option<&str>, offset| {
            let mut entry = testing::entry(UnixMs(7), b"the same");
            entry.source_topic = topic.map(Into::into);
            entry.position = Some(KafkaPosition {
                partition: 0,
                offset,
            });
            entry
        };
        let entries = [
            stored(Some("a.delayed"), 1),
            stored(Some("b.delayed"), 2),
            stored(None, 3),
        ];
        for (topic, expected) in [("a.delayed", [1, 3]), ("b.delayed", [2, 3])] {
            let view = route.of_topic(topic);
            let mut known = StoredRecordsBuilder::default();
            for entry in &entries {
                known.add(Partition(0), entry, ScannedState::Pending, &view);
            }
            let known = known.finish().by_partition;
            let offsets: Vec<i64> = known[&0].iter().map(|stored| stored.offset).collect();
            assert_eq!(offsets, expected, "{topic}");
        }
    }
}
