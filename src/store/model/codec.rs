//! The bundle format, version 1.
//!
//! ```text
//! "PB" | version 1 | codec (0 plain, 1 zstd, 2 zstd of the heads alone) | crc32 (LE) of all that follows
//! | target: len, bytes | count | plain length of the heads | plain length of the bodies
//! | per message: due (first: absolute, then zigzag difference), lengths of head and body, flags,
//!                handouts, failures          -- the index, never compressed
//! | heads, bodies, compressed where that pays
//! head: shape | id? | position? | asked due time? | history? | message without its body
//! ```
//! Heads are much alike and nearly always compress; bodies may be encrypted or compressed already, and
//! are spared the try where their beginning says so.
//! All numbers are LEB128 varints; texts and bytes are length, bytes. A blob is immutable; a reader that
//! does not know its version leaves it alone. Golden files in `tests/golden` hold the format still.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use bytes::{BufMut, Bytes, BytesMut};
use zstd::bulk::{Compressor, Decompressor};

use crate::domain::{Entry, Failure, Flags, TargetRef, Text, UnixMs};
use crate::store::Bundle;

mod records;
#[cfg(test)]
mod tests;
mod varint;

use varint::{Reader, put_bytes, put_signed, put_unsigned};

const MAGIC: &[u8; 2] = b"PB";
/// The version written.
const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_HEADS: u8 = 2;
const PREFIX: usize = 8;
/// Less than this is never worth compressing.
const COMPRESS_FROM: usize = 512;
/// So many bytes of the bodies are tried first, at least and at most.
const SAMPLE: (usize, usize) = (1024, 4096);
/// zstd's level for bodies: what the higher ones save more is not worth their time.
const LEVEL: i32 = 1;
/// And for heads alone: they repeat each other, and what is left is random, so the code for single bytes that level 1
/// tries to make, a third to two thirds of its time, saves nothing.
const HEADS_LEVEL: i32 = -1;
/// Most bytes that records may decompress to: a bomb is refused.
const MAX_PLAIN: usize = 256 << 20;

/// Why a blob cannot be read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CodecError {
    /// Not a bundle at all.
    #[error("not a bundle")]
    NotABundle,
    /// Written by a later version.
    #[error("bundle format {0} is not known to this version")]
    UnknownVersion(u8),
    /// Cut or flipped.
    #[error("the checksum does not match")]
    Checksum,
    /// Whoever opened it died, twice: it is not opened any more.
    #[error("opening it has killed its readers")]
    Poison,
    /// The checksum matches, the content does not parse.
    #[error("malformed at byte {0}")]
    Malformed(usize),
}

/// Writes a bundle.
pub fn encode(bundle: &Bundle) -> Bytes {
    let count = bundle.entries.len();
    let mut heads = Vec::with_capacity(count * 128);
    let mut index = Vec::with_capacity(count * 12);
    let (mut last_due, mut bodies_len) = (0i64, 0);
    for entry in bundle.entries.iter() {
        let start = heads.len();
        records::put_head(&mut heads, entry);
        put_signed(&mut index, entry.due.0.wrapping_sub(last_due));
        put_unsigned(&mut index, (heads.len() - start) as u64);
        put_unsigned(&mut index, entry.message.body_len() as u64);
        index.push(entry.flags.0);
        put_unsigned(&mut index, u64::from(entry.handouts));
        put_unsigned(&mut index, u64::from(entry.failures));
        last_due = entry.due.0;
        bodies_len += entry.message.body_len();
    }
    let heads_len = heads.len();
    let bodies = || bundle.entries.iter().filter_map(|entry| entry.message.body.as_deref());
    let Payload { codec, begin, bodies_follow } = compress(heads, bodies, bodies_len);
    let payload = begin.len() + if bodies_follow { bodies_len } else { 0 };
    let mut blob =
        BytesMut::with_capacity(PREFIX + 32 + bundle.target.as_str().len() + index.len() + payload);
    blob.put_slice(MAGIC);
    blob.put_u8(VERSION);
    blob.put_u8(codec);
    blob.put_u32_le(0);
    let mut head = Vec::with_capacity(16 + bundle.target.as_str().len());
    put_bytes(&mut head, bundle.target.as_str().as_bytes());
    for number in [count, heads_len, bodies_len] {
        put_unsigned(&mut head, number as u64);
    }
    blob.put_slice(&head);
    blob.put_slice(&index);
    blob.put_slice(&begin);
    if bodies_follow {
        bodies().for_each(|body| blob.put_slice(body));
    }
    let crc = checksum(&blob);
    blob[4..PREFIX].copy_from_slice(&crc.to_le_bytes());
    blob.freeze()
}

/// Version and codec count too: everything but the checksum itself.
fn checksum(blob: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&blob[..4]);
    hash.update(&blob[PREFIX..]);
    hash.finalize()
}

thread_local! {
    // Making a context costs more than most bundles do.
    static COMPRESSOR: Context = RefCell::new(Compressor::new(LEVEL).ok());
    static HEADS_COMPRESSOR: Context = RefCell::new(Compressor::new(HEADS_LEVEL).ok());
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

type Context = RefCell<Option<Compressor<'static>>>;

/// What comes after the index: these bytes, and the bodies as they are unless they are among them.
struct Payload {
    codec: u8,
    begin: Vec<u8>,
    bodies_follow: bool,
}

/// Heads and bodies, as far as it pays compressed, and as far as possible together.
fn compress<'a, B: Iterator<Item = &'a [u8]>>(
    mut heads: Vec<u8>,
    bodies: impl Fn() -> B,
    bodies_len: usize,
) -> Payload {
    let sample_len = (bodies_len / 8).clamp(SAMPLE.0, SAMPLE.1);
    if bodies_len < 2 * sample_len || smaller(&COMPRESSOR, &first(bodies(), sample_len)).is_some() {
        let heads_len = heads.len();
        heads.reserve_exact(bodies_len);
        bodies().for_each(|body| heads.extend_from_slice(body));
        if let Some(begin) = smaller(&COMPRESSOR, &heads) {
            return Payload { codec: ZSTD, begin, bodies_follow: false };
        }
        heads.truncate(heads_len);
    }
    match smaller(&HEADS_COMPRESSOR, &heads) {
        Some(begin) => Payload { codec: ZSTD_HEADS, begin, bodies_follow: true },
        None => Payload { codec: PLAIN, begin: heads, bodies_follow: true },
    }
}

/// The first so many bytes of these.
fn first<'a>(bodies: impl Iterator<Item = &'a [u8]>, len: usize) -> Vec<u8> {
    let mut sample = Vec::with_capacity(len);
    for body in bodies {
        sample.extend_from_slice(&body[..body.len().min(len - sample.len())]);
        if sample.len() == len {
            break;
        }
    }
    sample
}

/// These bytes compressed, where that pays: an eighth saved is worth the time it takes to undo.
fn smaller(by: &'static LocalKey<Context>, plain: &[u8]) -> Option<Vec<u8>> {
    if plain.len() < COMPRESS_FROM {
        return None;
    }
    let compressed = by.with_borrow_mut(|c| c.as_mut()?.compress(plain).ok())?;
    (compressed.len() < plain.len() - plain.len() / 8).then_some(compressed)
}

fn decompress(payload: &[u8], plain_len: usize) -> Option<Bytes> {
    let plain = DECOMPRESSOR.with_borrow_mut(|d| d.as_mut()?.decompress(payload, plain_len).ok())?;
    Some(Bytes::from(plain))
}

struct IndexEntry {
    due: i64,
    head: usize,
    body: usize,
    flags: u8,
    handouts: u32,
    failures: u32,
}

/// Whether this is what was written, without opening it: safe for what kills its readers. What is of a later
/// version is not ours to judge.
pub(in crate::store) fn is_whole(blob: &[u8]) -> bool {
    let Some(prefix) = blob.get(..PREFIX).filter(|prefix| &prefix[..2] == MAGIC) else { return false };
    prefix[2] != VERSION || checksum(blob).to_le_bytes() == prefix[4..8]
}

/// The version of a bundle that was written by a later one than this; opens nothing.
pub(in crate::store) fn later_version(blob: &[u8]) -> Option<u8> {
    let prefix = blob.get(..PREFIX).filter(|prefix| &prefix[..2] == MAGIC)?;
    (prefix[2] > VERSION).then_some(prefix[2])
}

/// Reads a bundle. Keys, headers and bodies are slices of the blob (or of its decompressed records).
pub fn decode(blob: &Bytes) -> Result<Bundle, CodecError> {
    if blob.len() < PREFIX || &blob[..2] != MAGIC {
        return Err(CodecError::NotABundle);
    }
    if blob[2] != VERSION {
        return Err(CodecError::UnknownVersion(blob[2]));
    }
    let stored = u32::from_le_bytes([blob[4], blob[5], blob[6], blob[7]]);
    if checksum(blob) != stored {
        return Err(CodecError::Checksum);
    }
    let mut reader = Reader::new(blob.slice(PREFIX..));
    let target = TargetRef::from_text(reader.text()?);
    let count = reader.bounded(1 << 20)?;
    let lengths = (reader.bounded(MAX_PLAIN)?, reader.bounded(MAX_PLAIN)?);
    let index = read_index(&mut reader, count)?;
    let (heads, bodies) = plain(blob[3], &reader.rest(), lengths)?;
    let said = (index.iter().map(|i| i.head).sum::<usize>(), index.iter().map(|i| i.body).sum::<usize>());
    if said != lengths {
        return Err(CodecError::Malformed(PREFIX));
    }
    let mut entries = Vec::with_capacity(index.len());
    let (mut head, mut body) = (0, 0);
    for item in index {
        let head_end = head + item.head;
        let body_end = body + item.body;
        let record = records::read_record(heads.slice(head..head_end), bodies.slice(body..body_end))?;
        (head, body) = (head_end, body_end);
        entries.push(Entry {
            due: UnixMs(item.due),
            id: record.id,
            handouts: item.handouts,
            failures: item.failures,
            flags: Flags(item.flags),
            position: record.position,
            asked: record.asked,
            history: record.history,
            message: record.message,
        });
    }
    Ok(Bundle { target, entries: Arc::new(entries) })
}

/// Heads and bodies as they were, each of the length that is said.
fn plain(codec: u8, payload: &Bytes, (heads, bodies): (usize, usize)) -> Result<(Bytes, Bytes), CodecError> {
    let malformed = CodecError::Malformed(PREFIX);
    let whole = match codec {
        PLAIN => payload.clone(),
        ZSTD if heads + bodies <= MAX_PLAIN => {
            decompress(payload, heads + bodies).ok_or_else(|| malformed.clone())?
        }
        ZSTD_HEADS => {
            let at = payload.len().checked_sub(bodies).ok_or_else(|| malformed.clone())?;
            let plain = decompress(&payload[..at], heads).filter(|plain| plain.len() == heads);
            return Ok((plain.ok_or(malformed)?, payload.slice(at..)));
        }
        ZSTD => return Err(malformed),
        _ => return Err(CodecError::Malformed(3)),
    };
    if whole.len() != heads + bodies {
        return Err(malformed);
    }
    Ok((whole.slice(..heads), whole.slice(heads..)))
}

/// When each message of a bundle is due, from the first bytes of its blob: its index stands before its
/// records. The checksum is not asked.
pub(in crate::store) fn read_dues(head: &Bytes) -> Result<Vec<UnixMs>, CodecError> {
    if head.len() < PREFIX || &head[..2] != MAGIC {
        return Err(CodecError::NotABundle);
    }
    if head[2] != VERSION {
        return Err(CodecError::UnknownVersion(head[2]));
    }
    let mut reader = Reader::new(head.slice(PREFIX..));
    reader.text()?;
    let count = reader.bounded(1 << 20)?;
    let _lengths = (reader.bounded(MAX_PLAIN)?, reader.bounded(MAX_PLAIN)?);
    Ok(read_index(&mut reader, count)?.into_iter().map(|item| UnixMs(item.due)).collect())
}

/// How many bytes a bundle's records have when opened, from the first bytes of its blob; `None` if they do not say. The
/// checksum is not asked.
pub(in crate::store) fn plain_len(head: &Bytes) -> Option<usize> {
    if head.len() < PREFIX || &head[..2] != MAGIC || head[2] != VERSION {
        return None;
    }
    let mut reader = Reader::new(head.slice(PREFIX..));
    reader.text().ok()?;
    let _count = reader.bounded(1 << 20).ok()?;
    Some(reader.bounded(MAX_PLAIN).ok()? + reader.bounded(MAX_PLAIN).ok()?)
}

fn read_index(reader: &mut Reader, count: usize) -> Result<Vec<IndexEntry>, CodecError> {
    let mut index = Vec::with_capacity(count.min(1024));
    let mut due = 0i64;
    for _ in 0..count {
        due = due.wrapping_add(reader.signed()?);
        index.push(IndexEntry {
            due,
            head: reader.bounded(MAX_PLAIN)?,
            body: reader.bounded(MAX_PLAIN)?,
            flags: reader.byte()?,
            handouts: reader.bounded(u32::MAX as usize)? as u32,
            failures: reader.bounded(u32::MAX as usize)? as u32,
        });
    }
    Ok(index)
}

fn put_history(out: &mut Vec<u8>, history: &[Failure]) {
    put_unsigned(out, history.len() as u64);
    for failure in history {
        put_signed(out, failure.at.0);
        put_bytes(out, failure.reason.bytes());
        put_bytes(out, failure.error.bytes());
    }
}

fn read_history(reader: &mut Reader) -> Result<Vec<Failure>, CodecError> {
    let count = reader.bounded(1024)?;
    (0..count)
        .map(|_| Ok(Failure { at: UnixMs(reader.signed()?), reason: reader.text()?, error: reader.text()? }))
        .collect()
}

/// A text or nothing, as the record's shape byte says.
type Maybe = Option<Text>;
