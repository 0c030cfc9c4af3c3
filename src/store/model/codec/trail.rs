//! The trail format, version 1: the events of one route, packed.
//!
//! ```text
//! "PT" | version 1 | codec (0 plain, 1 zstd) | crc32 (LE) of all but itself | count | plain length
//! | per event: word | time (first: absolute, then difference, signed) | id: bytes shared with the one before, the rest
//!              | fields | late? | attempt? | target? | position? | by? | reason? | dead id? | due?
//! target: number; a new number (the next one) is followed by technology, connection, name
//! ```
//! Ids that were made together differ in their last bytes, so most take two or three. All numbers are LEB128
//! varints. Texts are their length and their bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::varint::{Reader, put_bytes, put_signed, put_unsigned};
use super::{
    CODEC_PLAIN, CODEC_ZSTD, CodecError, HEADS_COMPRESSOR, PREFIX_LEN, checksum, decompress,
    smaller,
};
use crate::domain::{KafkaPosition, Target, TrailWord, UnixMs};
use crate::store::model::trail::{TrailEvent, TrailTarget};

const MAGIC_BYTES: &[u8; 2] = b"PT";
const FORMAT_VERSION: u8 = 1;
/// Bytes and events from which a pack is closed.
const PACK_BYTES: usize = 64 << 10;
pub(in crate::store) const PACK_EVENTS: usize = 8192;
/// Most bytes and events that a pack may claim to hold.
const MAX_PACK_BYTES: usize = 1 << 20;
const MAX_PACK_EVENTS: usize = 1 << 16;
/// Most bytes of a text. An event has five at most.
const MAX_TEXT_BYTES: usize = 1024;

// The bits of the fields of an event: which are there.
const HAS_LATE: u8 = 1;
const HAS_ATTEMPT: u8 = 2;
const HAS_TARGET: u8 = 4;
const HAS_POSITION: u8 = 8;
const HAS_BY: u8 = 16;
const HAS_REASON: u8 = 32;
const HAS_DEAD_ID: u8 = 64;
const HAS_DUE: u8 = 128;

/// An event that is to be kept. Its texts are copied into the pack, so that nothing of the message stays in memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct NewTrailEvent<'a> {
    pub(in crate::store) word: TrailWord,
    pub(in crate::store) id: &'a str,
    pub(in crate::store) at: UnixMs,
    pub(in crate::store) late_ms: Option<i64>,
    pub(in crate::store) attempt: Option<u32>,
    pub(in crate::store) target: Option<&'a Arc<Target>>,
    pub(in crate::store) position: Option<KafkaPosition>,
    pub(in crate::store) by: Option<&'a str>,
    pub(in crate::store) reason: Option<&'a str>,
    pub(in crate::store) dead_id: Option<&'a str>,
    pub(in crate::store) due: Option<UnixMs>,
}

impl<'a> NewTrailEvent<'a> {
    /// An event without fields.
    pub(in crate::store) fn new(word: TrailWord, id: &'a str, at: UnixMs) -> Self {
        Self {
            word,
            id,
            at,
            late_ms: None,
            attempt: None,
            target: None,
            position: None,
            by: None,
            reason: None,
            dead_id: None,
            due: None,
        }
    }

    fn fields(&self) -> u8 {
        let bit = |there: bool, bit: u8| if there { bit } else { 0 };
        bit(self.late_ms.is_some(), HAS_LATE)
            | bit(self.attempt.is_some(), HAS_ATTEMPT)
            | bit(self.target.is_some(), HAS_TARGET)
            | bit(self.position.is_some(), HAS_POSITION)
            | bit(self.by.is_some(), HAS_BY)
            | bit(self.reason.is_some(), HAS_REASON)
            | bit(self.dead_id.is_some(), HAS_DEAD_ID)
            | bit(self.due.is_some(), HAS_DUE)
    }
}

/// Events in their stored form, not compressed yet.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct TrailPack {
    bytes: Vec<u8>,
    count: usize,
    last_at: i64,
    last_id: Vec<u8>,
    targets: Vec<Arc<Target>>,
}

impl TrailPack {
    /// Adds an event. Makes no allocation of its own, except for a target that the pack does not have yet.
    pub(in crate::store) fn put(&mut self, event: &NewTrailEvent<'_>) {
        let out = &mut self.bytes;
        out.push(event.word as u8);
        put_signed(out, event.at.0.wrapping_sub(self.last_at));
        self.last_at = event.at.0;
        let id = clipped(event.id).as_bytes();
        let shared = self
            .last_id
            .iter()
            .zip(id)
            .take_while(|(a, b)| a == b)
            .count();
        put_unsigned(out, shared as u64);
        put_bytes(out, &id[shared..]);
        self.last_id.truncate(shared);
        self.last_id.extend_from_slice(&id[shared..]);
        out.push(event.fields());
        if let Some(late_ms) = event.late_ms {
            put_signed(out, late_ms);
        }
        if let Some(attempt) = event.attempt {
            put_unsigned(out, u64::from(attempt));
        }
        if let Some(target) = event.target {
            put_target(out, &mut self.targets, target);
        }
        if let Some(KafkaPosition { partition, offset }) = event.position {
            put_signed(out, i64::from(partition));
            put_signed(out, offset);
        }
        for text in [event.by, event.reason, event.dead_id]
            .into_iter()
            .flatten()
        {
            put_bytes(out, clipped(text).as_bytes());
        }
        if let Some(due) = event.due {
            put_signed(out, due.0);
        }
        self.count += 1;
    }

    /// The number of events.
    pub(in crate::store) fn count(&self) -> usize {
        self.count
    }

    /// The length of the stored form, before compression.
    pub(in crate::store) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reports whether further events belong into another pack, where a pack has so many at most.
    pub(in crate::store) fn is_full(&self, max_events: usize) -> bool {
        self.bytes.len() >= PACK_BYTES || self.count >= max_events
    }

    /// Writes the blob.
    pub(in crate::store) fn encode(&self) -> Bytes {
        let compressed = smaller(&HEADS_COMPRESSOR, &self.bytes);
        let payload = compressed.as_ref().unwrap_or(&self.bytes);
        let mut head = Vec::with_capacity(16);
        put_unsigned(&mut head, self.count as u64);
        put_unsigned(&mut head, self.bytes.len() as u64);
        let mut blob = BytesMut::with_capacity(PREFIX_LEN + head.len() + payload.len());
        blob.put_slice(MAGIC_BYTES);
        blob.put_u8(FORMAT_VERSION);
        blob.put_u8(if compressed.is_some() {
            CODEC_ZSTD
        } else {
            CODEC_PLAIN
        });
        blob.put_u32_le(0);
        blob.put_slice(&head);
        blob.put_slice(payload);
        let crc = checksum(&blob, &[]);
        blob[4..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
        blob.freeze()
    }
}

/// A text cut to [`MAX_TEXT_BYTES`], at the boundary of a character.
fn clipped(text: &str) -> &str {
    if text.len() <= MAX_TEXT_BYTES {
        return text;
    }
    let end = (0..=MAX_TEXT_BYTES)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    &text[..end]
}

/// Writes the number of a target, and the target itself if the pack does not have it yet.
fn put_target(out: &mut Vec<u8>, targets: &mut Vec<Arc<Target>>, target: &Arc<Target>) {
    // A route has few targets, and its configuration has one value for each.
    if let Some(number) = targets.iter().position(|known| Arc::ptr_eq(known, target)) {
        return put_unsigned(out, number as u64);
    }
    put_unsigned(out, targets.len() as u64);
    out.push(u8::from(matches!(**target, Target::Kafka { .. })));
    put_bytes(out, clipped(target.connection()).as_bytes());
    put_bytes(out, clipped(&target.name()).as_bytes());
    targets.push(target.clone());
}

/// Reads a blob: visits each event with its id, in the order in which they were kept.
pub(in crate::store) fn read_trail(
    blob: &Bytes,
    mut visit: impl FnMut(&[u8], TrailEvent),
) -> Result<(), CodecError> {
    let is_ours = blob.len() >= PREFIX_LEN && &blob[..2] == MAGIC_BYTES;
    if !is_ours {
        return Err(CodecError::NotABundle);
    }
    if blob[2] != FORMAT_VERSION {
        return Err(CodecError::UnknownVersion(blob[2]));
    }
    if checksum(blob, &[]).to_le_bytes() != blob[4..PREFIX_LEN] {
        return Err(CodecError::Checksum);
    }
    let mut reader = Reader::new(blob.slice(PREFIX_LEN..));
    let count = reader.bounded(MAX_PACK_EVENTS)?;
    let plain_len = reader.bounded(MAX_PACK_BYTES)?;
    let payload = reader.rest();
    let malformed = || CodecError::Malformed(PREFIX_LEN);
    let plain = match blob[3] {
        CODEC_PLAIN => payload,
        CODEC_ZSTD => decompress(&payload, plain_len).ok_or_else(malformed)?,
        _ => return Err(CodecError::Malformed(3)),
    };
    if plain.len() != plain_len {
        return Err(malformed());
    }
    let mut events = EventReader {
        reader: Reader::new(plain),
        at: 0,
        id: Vec::new(),
        targets: Vec::new(),
    };
    for _ in 0..count {
        let event = events.read_next()?;
        visit(&events.id, event);
    }
    if events.reader.is_empty() {
        Ok(())
    } else {
        Err(CodecError::Malformed(events.reader.position()))
    }
}

/// Reads events one after another: each builds on the one before.
struct EventReader {
    reader: Reader,
    at: i64,
    id: Vec<u8>,
    targets: Vec<TrailTarget>,
}

impl EventReader {
    fn read_next(&mut self) -> Result<TrailEvent, CodecError> {
        let word = usize::from(self.reader.byte()?);
        let word = *TrailWord::ALL
            .get(word)
            .ok_or(CodecError::Malformed(self.reader.position()))?;
        self.at = self.at.wrapping_add(self.reader.signed()?);
        let shared = self.reader.bounded(self.id.len())?;
        let rest_len = self.reader.bounded(MAX_TEXT_BYTES - shared)?;
        let rest = self.reader.take(rest_len)?;
        self.id.truncate(shared);
        self.id.extend_from_slice(&rest);
        let fields = self.reader.byte()?;
        let has = |bit| fields & bit != 0;
        let late_ms = if has(HAS_LATE) {
            Some(self.reader.signed()?)
        } else {
            None
        };
        let attempt = if has(HAS_ATTEMPT) {
            Some(self.reader.bounded(u32::MAX as usize)? as u32)
        } else {
            None
        };
        let target = if has(HAS_TARGET) {
            Some(self.target()?)
        } else {
            None
        };
        let position = if has(HAS_POSITION) {
            Some(self.position()?)
        } else {
            None
        };
        let reader = &mut self.reader;
        let mut text = |bit| {
            if has(bit) {
                reader.short_text(MAX_TEXT_BYTES).map(Some)
            } else {
                Ok(None)
            }
        };
        let by = text(HAS_BY)?;
        let reason = text(HAS_REASON)?;
        let dead_id = text(HAS_DEAD_ID)?;
        let due = if has(HAS_DUE) {
            Some(UnixMs(self.reader.signed()?))
        } else {
            None
        };
        let at = UnixMs(self.at);
        Ok(TrailEvent {
            at,
            word,
            late_ms,
            attempt,
            target,
            position,
            by,
            reason,
            dead_id,
            due,
        })
    }

    fn target(&mut self) -> Result<TrailTarget, CodecError> {
        let number = self.reader.bounded(self.targets.len())?;
        if let Some(known) = self.targets.get(number) {
            return Ok(known.clone());
        }
        let target = TrailTarget {
            is_kafka: self.reader.byte()? != 0,
            connection: self.reader.short_text(MAX_TEXT_BYTES)?,
            name: self.reader.short_text(MAX_TEXT_BYTES)?,
        };
        self.targets.push(target.clone());
        Ok(target)
    }

    fn position(&mut self) -> Result<KafkaPosition, CodecError> {
        let at = self.reader.position();
        let partition =
            i32::try_from(self.reader.signed()?).map_err(|_| CodecError::Malformed(at))?;
        Ok(KafkaPosition {
            partition,
            offset: self.reader.signed()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    fn events(blob: &Bytes) -> Result<Vec<(String, TrailEvent)>, CodecError> {
        let mut events = Vec::new();
        read_trail(blob, |id, event| {
            events.push((String::from_utf8_lossy(id).into_owned(), event));
        })?;
        Ok(events)
    }

    fn delivered<'a>(id: &'a str, at: i64, target: &'a Arc<Target>) -> NewTrailEvent<'a> {
        NewTrailEvent {
            late_ms: Some(2),
            attempt: Some(1),
            target: Some(target),
            ..NewTrailEvent::new(TrailWord::Delivered, id, UnixMs(at))
        }
    }

    /// One event of each word, with all its fields.
    fn sample() -> TrailPack {
        let route = testing::route();
        let queue = Arc::new(Target::Rabbitmq {
            connection: "other".into(),
            exchange: "x".into(),
            routing_key: crate::domain::RoutingKey::Fixed("k".into()),
        });
        let new = |word, at| NewTrailEvent::new(word, "order-7", UnixMs(at));
        let position = Some(KafkaPosition {
            partition: 3,
            offset: 1881,
        });
        let mut pack = TrailPack::default();
        pack.put(&delivered("order-7", 1_700_000_000_000, &route.to));
        pack.put(&delivered("order-8", 1_700_000_000_001, &queue));
        pack.put(&delivered("order-9", 1_700_000_000_000, &route.to));
        pack.put(&NewTrailEvent {
            by: Some("header"),
            position,
            ..new(TrailWord::Cancelled, 5)
        });
        pack.put(&NewTrailEvent {
            by: Some("write token 1"),
            due: Some(UnixMs(9)),
            ..new(TrailWord::Moved, -5)
        });
        pack.put(&NewTrailEvent {
            position,
            ..new(TrailWord::Replaced, 6)
        });
        let dead_id = Some("orders.attempts.0.n.1");
        pack.put(&NewTrailEvent {
            reason: Some("attempts"),
            dead_id,
            ..new(TrailWord::Dead, 7)
        });
        pack.put(&NewTrailEvent {
            dead_id,
            ..new(TrailWord::Dropped, 8)
        });
        pack.put(&NewTrailEvent::new(
            TrailWord::Deduplicated,
            "",
            UnixMs(i64::MIN),
        ));
        pack.put(&NewTrailEvent {
            by: Some("write token 1"),
            dead_id,
            ..new(TrailWord::Redriven, 9)
        });
        pack
    }

    #[test]
    fn what_was_packed_is_read_as_it_was() {
        let read = events(&sample().encode()).expect("readable");
        let ids: Vec<&str> = read.iter().map(|(id, _)| id.as_str()).collect();
        let own = "order-7";
        assert_eq!(
            ids,
            [own, "order-8", "order-9", own, own, own, own, own, "", own]
        );
        let times: Vec<i64> = read.iter().map(|(_, event)| event.at.0).collect();
        let first = 1_700_000_000_000;
        assert_eq!(
            times,
            [first, first + 1, first, 5, -5, 6, 7, 8, i64::MIN, 9]
        );
        let target = |at: usize| read[at].1.target.clone().expect("a target");
        assert_eq!(
            (target(0).is_kafka, target(0).name.as_str()),
            (true, "orders")
        );
        assert_eq!(target(2), target(0), "named once, and meant again");
        let queue = target(1);
        assert_eq!(
            (
                queue.is_kafka,
                queue.connection.as_str(),
                queue.name.as_str()
            ),
            (false, "other", "x/k")
        );
        let event = &read[0].1;
        assert_eq!(
            (event.late_ms, event.attempt, &event.by),
            (Some(2), Some(1), &None)
        );
        assert_eq!(
            read[3].1.position,
            Some(KafkaPosition {
                partition: 3,
                offset: 1881
            })
        );
        assert_eq!(
            (&read[4].1.by, read[4].1.due),
            (&Some("write token 1".into()), Some(UnixMs(9)))
        );
        assert_eq!(read[6].1.dead_id, Some("orders.attempts.0.n.1".into()));
        assert_eq!(
            TrailWord::ALL.map(|word| word as usize),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
    }

    #[test]
    fn ids_that_were_made_together_take_few_bytes() {
        let route = testing::route();
        let pack = |id: fn(u64) -> String, count: u64| {
            let mut pack = TrailPack::default();
            for n in 0..count {
                pack.put(&delivered(&id(n), 1_700_000_000_000 + n as i64, &route.to));
            }
            pack
        };
        let made = pack(
            |n| format!("~1abcdefgh.a.k3x9.1z.d{}.{}", n / 500, n % 500),
            2000,
        );
        assert!(made.len() < 2000 * 13, "{} bytes", made.len());
        assert!(
            made.encode().len() < 2000 * 5,
            "{} bytes compressed",
            made.encode().len()
        );
        let alone = pack(|_| "order-7".to_owned(), 1);
        assert!(alone.encode().len() < 60, "{} bytes", alone.encode().len());
        assert_eq!(events(&made.encode()).expect("readable").len(), 2000);
    }

    #[test]
    fn a_pack_is_bounded_and_so_is_each_text() {
        let mut pack = TrailPack::default();
        let long = "\u{e9}".repeat(4000);
        while !pack.is_full(PACK_EVENTS) {
            let event = NewTrailEvent::new(TrailWord::Cancelled, &long, UnixMs(0));
            pack.put(&NewTrailEvent {
                by: Some(&long),
                reason: Some(&long),
                dead_id: Some(&long),
                ..event
            });
        }
        assert!(pack.len() < PACK_BYTES + 5 * MAX_TEXT_BYTES);
        let read = events(&pack.encode()).expect("readable");
        assert_eq!(
            (read.len(), read[0].0.len()),
            (pack.count(), MAX_TEXT_BYTES)
        );
        let mut pack = TrailPack::default();
        while !pack.is_full(PACK_EVENTS) {
            pack.put(&NewTrailEvent::new(TrailWord::Cancelled, "", UnixMs(0)));
        }
        assert_eq!(pack.count(), PACK_EVENTS);
    }

    #[test]
    fn bytes_that_are_none_of_ours_are_an_error_and_cost_nothing() {
        let whole = sample().encode();
        assert_eq!(
            events(&Bytes::from_static(b"PB")),
            Err(CodecError::NotABundle)
        );
        assert_eq!(events(&Bytes::new()), Err(CodecError::NotABundle));
        for at in 0..whole.len() {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 1;
            assert!(events(&flipped.into()).is_err(), "byte {at}");
            assert!(events(&whole.slice(..at)).is_err(), "cut at {at}");
        }
        // With a right checksum: every byte of the content as every value.
        for at in [3].into_iter().chain(PREFIX_LEN..whole.len()) {
            for value in 0..=u8::MAX {
                let mut changed = whole.to_vec();
                changed[at] = value;
                let crc = checksum(&changed, &[]);
                changed[4..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
                // An answer of either kind, and no panic.
                drop(events(&changed.into()));
            }
        }
        let bomb = |count: u64, len: u64| {
            let mut blob = b"PT\x01\x00\0\0\0\0".to_vec();
            put_unsigned(&mut blob, count);
            put_unsigned(&mut blob, len);
            let crc = checksum(&blob, &[]);
            blob[4..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
            Bytes::from(blob)
        };
        assert!(events(&bomb(1 << 40, 0)).is_err());
        assert!(events(&bomb(0, 1 << 40)).is_err());
        assert!(events(&bomb(MAX_PACK_EVENTS as u64, 0)).is_err());
        assert_eq!(events(&bomb(0, 0)), Ok(vec![]));
    }
}
