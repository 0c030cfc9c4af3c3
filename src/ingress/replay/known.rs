//! What the store holds of a route already, by where it was read. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::domain::{Entry, Flags, HeaderValue, KafkaPosition, Message, Route, UnixMs};
use crate::ingress::admit::is_ours;
use crate::store::ScannedState;

/// What is known of the message of one position. 48 bytes for each that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: i64,
    pub(super) standing: ScannedState,
    /// When it was asked to leave.
    pub(super) due: UnixMs,
    /// `None`: its body was not kept, and its position must do.
    pub(super) content: Option<u32>,
    /// The hash of its name; 0: it has none.
    pub(super) name: u128,
}

/// What the store holds, as it is found.
#[derive(Debug, Default)]
pub struct Gathering(BTreeMap<i32, Vec<Mark>>);

/// All that the store holds of a route and was read from Kafka, by partition and offset.
#[derive(Debug)]
pub struct Known {
    by_partition: BTreeMap<i32, Vec<Mark>>,
}

impl Gathering {
    /// Takes in a message of the store.
    pub fn add(&mut self, entry: &Entry, standing: ScannedState, route: &Route) {
        let Some(KafkaPosition { partition, offset }) = entry.position else { return };
        let named = entry.id.as_ref().filter(|_| entry.flags.has(Flags::NAMED));
        let whole = !entry.flags.has(Flags::LEFT_OUT);
        self.0.entry(partition).or_default().push(Mark {
            offset,
            standing,
            due: entry.asked_due(),
            content: whole.then(|| content_of(&entry.message, route)),
            name: named.map_or(0, |id| name_hash(id.as_str())),
        });
    }

    /// All of it. A message that moved meanwhile was seen twice: where it waits counts.
    pub fn finish(self) -> Known {
        let mut by_partition = self.0;
        for marks in by_partition.values_mut() {
            marks.sort_unstable_by_key(|mark| (mark.offset, mark.content, Reverse(mark.standing)));
            marks.dedup_by_key(|mark| (mark.offset, mark.content));
            marks.shrink_to_fit();
        }
        Known { by_partition }
    }
}

impl Known {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_partition.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn of(&self, partition: i32) -> &[Mark] {
        self.by_partition.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// The message of this position, if it is the one of this content.
    pub(super) fn find(&self, position: KafkaPosition, content: u32) -> Option<&Mark> {
        let KafkaPosition { partition, offset } = position;
        let marks = self.of(partition);
        let first = marks.partition_point(|mark| mark.offset < offset);
        let there = marks[first..].iter().take_while(|mark| mark.offset == offset);
        there.filter(|mark| mark.content.is_none_or(|c| c == content)).max_by_key(|mark| mark.standing)
    }
}

/// Tells a record from another that had its position once, in a topic that was made anew since: body, key
/// and headers, the delay headers aside, for these do not stay with a message.
pub(super) fn content_of(message: &Message, route: &Route) -> u32 {
    let mut hash = Xxh3::new();
    let mut put = |part: Option<&[u8]>| {
        hash.update(&part.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hash.update(part.unwrap_or_default());
    };
    put(message.key.as_deref());
    put(message.body.as_deref());
    for header in message.headers.iter().filter(|header| !is_ours(header, route)) {
        put(Some(header.name.bytes()));
        match &header.value {
            HeaderValue::Bytes(bytes) => put(Some(bytes)),
            // Kafka has no other values.
            _ => put(None),
        }
    }
    hash.digest() as u32
}

/// Never 0.
pub(super) fn name_hash(id: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(id.as_bytes()).max(1)
}
