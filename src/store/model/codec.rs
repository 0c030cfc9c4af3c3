//! The bundle format, version 2.
//!
//! ```text
//! "PB" | version 2 | codec (0 plain, 1 zstd, 2 zstd of the heads alone, 3 like an example) | crc32 (LE) of all that follows
//! | target: len, bytes | count | plain length of the heads | plain length of the bodies
//! | per message: due (first: absolute, then zigzag difference), lengths of head and body, flags,
//!                handouts, failures          -- the index, never compressed
//! | heads, bodies, compressed where that pays
//! head: shape | request | id? | position? | asked due time? | history? | message without its body
//! ```
//! Heads are much alike and nearly always compress. Bodies may be encrypted or compressed already: they are not
//! tried if their beginning does not compress. A message of a growing bundle is compressed with the example that the bundle
//! begins with, see `growing`. All numbers are LEB128 varints. Texts and bytes are their length
//! and their bytes. A position is partition, topic (where the route reads several), offset. A head of version 1 has no request, and is read still. A blob is immutable. A reader that does not know its version leaves it alone. Golden files
//! in `tests/golden` pin the format.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread::LocalKey;

use bytes::{BufMut, Bytes, BytesMut};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CCtx, DCtx, compress_bound};

use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Entry, Failure, Flags, TargetRef, Text, UnixMs};
use crate::store::Bundle;

mod growing;
mod outline;
mod records;
#[cfg(test)]
mod tests;
mod trail;
mod varint;

pub(in crate::store) use growing::{GrowingElements, elements_of, example_element, join_elements};
pub use outline::BundleOutline;
pub(in crate::store) use trail::{NewTrailEvent, PACK_EVENTS, TrailPack, read_trail};
use varint::{Reader, put_bytes, put_signed, put_unsigned};

const MAGIC_BYTES: &[u8; 2] = b"PB";
/// The version that is written.
const FORMAT_VERSION: u8 = 2;
/// The first version. It does not have what the producer asked for.
const FIRST_VERSION: u8 = 1;
const CODEC_PLAIN: u8 = 0;
const CODEC_ZSTD: u8 = 1;
const CODEC_ZSTD_HEADS: u8 = 2;
const CODEC_LIKE: u8 = 3;
const PREFIX_LEN: usize = 8;
/// Fewer bytes are never worth compressing.
const COMPRESS_FROM: usize = 512;
/// Least and most bytes of the bodies that are tried first.
const SAMPLE_BYTES: RangeInclusive<usize> = 1024..=4096;
/// zstd's level for bodies: higher levels save too little for their time.
const BODIES_LEVEL: i32 = 1;
/// zstd's level for heads alone. They repeat each other, and the rest is random. Level 1 spends a third to two
/// thirds of its time on a code for single bytes, which saves nothing here.
const HEADS_LEVEL: i32 = -1;
/// Most bytes that records may decompress to: a bomb is refused.
const MAX_PLAIN: usize = 256 << 20;
/// Most bytes of an example.
const MAX_EXAMPLE_BYTES: usize = 1024;
/// Most bytes that what was written like an example may decompress to.
const MAX_LIKE_BYTES: usize = 64 << 10;
/// Longest text of a target: exchange and routing key of 255 bytes each are the longest that a broker knows. The
/// lengths of the records stand behind it, and must lie among the first bytes of a blob.
const MAX_TARGET_BYTES: usize = 1024;

/// Why a blob cannot be read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CodecError {
    /// The blob is not there.
    #[error("its blob is missing")]
    Missing,
    /// The bytes are not a bundle at all.
    #[error("not a bundle")]
    NotABundle,
    /// A later version wrote the bundle.
    #[error("bundle format {0} is not known to this version")]
    UnknownVersion(u8),
    /// The blob was cut or flipped.
    #[error("the checksum does not match")]
    Checksum,
    /// Claims on the bundle expired so often that it is not opened any more: opening it may have killed its readers.
    #[error("its claims expired too often, and it was not opened again")]
    Poison,
    /// The checksum matches, but the content does not parse.
    #[error("malformed at byte {0}")]
    Malformed(usize),
}

/// The records of a bundle, written but for its bodies.
struct Records<'a> {
    bundle: &'a Bundle,
    heads: Vec<u8>,
    index: Vec<u8>,
    bodies_len: usize,
}

impl<'a> Records<'a> {
    fn of(bundle: &'a Bundle) -> Self {
        let count = bundle.entries.len();
        let mut heads = Vec::with_capacity(count * 128);
        let mut index = Vec::with_capacity(count * 12);
        let mut last_due = 0i64;
        let mut bodies_len = 0;
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
        Self {
            bundle,
            heads,
            index,
            bodies_len,
        }
    }

    fn bodies(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let entries = self.bundle.entries.iter();
        entries.filter_map(|entry| entry.message.body.as_deref())
    }

    /// Heads and bodies.
    fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::with_capacity(self.heads.len() + self.bodies_len);
        plain.extend_from_slice(&self.heads);
        self.bodies().for_each(|body| plain.extend_from_slice(body));
        plain
    }

    fn write(&self, payload: &BlobPayload, example: &[u8]) -> Bytes {
        let BlobPayload {
            codec,
            begin,
            bodies_follow,
        } = payload;
        let target = self.bundle.target.as_str().as_bytes();
        let length = begin.len() + if *bodies_follow { self.bodies_len } else { 0 };
        let mut blob =
            BytesMut::with_capacity(PREFIX_LEN + 32 + target.len() + self.index.len() + length);
        blob.put_slice(MAGIC_BYTES);
        blob.put_u8(FORMAT_VERSION);
        blob.put_u8(*codec);
        blob.put_u32_le(0);
        let mut head = Vec::with_capacity(16 + target.len());
        put_bytes(&mut head, target);
        for number in [self.bundle.entries.len(), self.heads.len(), self.bodies_len] {
            put_unsigned(&mut head, number as u64);
        }
        blob.put_slice(&head);
        blob.put_slice(&self.index);
        blob.put_slice(begin);
        if *bodies_follow {
            self.bodies().for_each(|body| blob.put_slice(body));
        }
        let crc = checksum(&blob, example);
        blob[4..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
        blob.freeze()
    }
}

/// Writes a bundle.
pub fn encode(bundle: &Bundle) -> Bytes {
    let records = Records::of(bundle);
    records.write(&compress(&records), &[])
}

/// Writes a bundle like an example, if that makes it smaller.
pub(in crate::store) fn encode_like(bundle: &Bundle, example: &[u8]) -> Bytes {
    let records = Records::of(bundle);
    let plain = records.plain();
    let payload = like(&plain, example).map(|begin| BlobPayload {
        codec: CODEC_LIKE,
        begin,
        bodies_follow: false,
    });
    records.write(&payload.unwrap_or_else(|| compress(&records)), example)
}

/// The content of a bundle as an example for others; `None` if it is too long for one.
pub(in crate::store) fn example_of(bundle: &Bundle) -> Option<Bytes> {
    let plain = Records::of(bundle).plain();
    (plain.len() <= MAX_EXAMPLE_BYTES).then(|| plain.into())
}

/// Tells whether a bundle is so much like an example that it takes half its bytes.
pub(in crate::store) fn is_like(bundle: &Bundle, example: &[u8]) -> bool {
    let plain = Records::of(bundle).plain();
    like(&plain, example).is_some_and(|like| like.len() * 2 <= plain.len())
}

/// These bytes compressed with an example as the dictionary, if that pays.
fn like(plain: &[u8], example: &[u8]) -> Option<Vec<u8>> {
    if plain.len() > MAX_LIKE_BYTES {
        return None;
    }
    let mut compressed = Vec::with_capacity(compress_bound(plain.len()));
    LIKE_COMPRESSOR.with_borrow_mut(|c| {
        c.compress_using_dict(&mut compressed, plain, example, BODIES_LEVEL)
            .ok()
    })?;
    (compressed.len() < plain.len() - plain.len() / 8).then_some(compressed)
}

/// The bytes that were compressed with this example.
fn plain_like(payload: &[u8], example: &[u8], len: usize) -> Option<Bytes> {
    if len > MAX_LIKE_BYTES {
        return None;
    }
    let mut plain = Vec::with_capacity(len);
    LIKE_DECOMPRESSOR
        .with_borrow_mut(|d| d.decompress_using_dict(&mut plain, payload, example).ok())?;
    Some(plain.into())
}

/// The checksum covers version and codec too: everything but itself. Of what was written like an example it covers that: with
/// another one it would be opened as something else.
fn checksum(blob: &[u8], example: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&blob[..4]);
    hash.update(&blob[PREFIX_LEN..]);
    if blob[3] == CODEC_LIKE {
        hash.update(example);
    }
    hash.finalize()
}

thread_local! {
    // Making a context costs more than most bundles do.
    static COMPRESSOR: ZstdContext = RefCell::new(Compressor::new(BODIES_LEVEL).ok());
    static HEADS_COMPRESSOR: ZstdContext = RefCell::new(Compressor::new(HEADS_LEVEL).ok());
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

thread_local! {
    static LIKE_COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static LIKE_DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

type ZstdContext = RefCell<Option<Compressor<'static>>>;

/// The bytes after the index, and whether the uncompressed bodies follow them.
struct BlobPayload {
    codec: u8,
    begin: Vec<u8>,
    bodies_follow: bool,
}

/// Heads and bodies, compressed as far as it pays, and together if possible.
fn compress(records: &Records) -> BlobPayload {
    let (heads, bodies_len) = (&records.heads, records.bodies_len);
    let sample_len = (bodies_len / 8).clamp(*SAMPLE_BYTES.start(), *SAMPLE_BYTES.end());
    // A reader opens no frame above the bound.
    let fits = heads.len() + bodies_len <= MAX_PLAIN;
    if fits
        && (bodies_len < 2 * sample_len
            || smaller(&COMPRESSOR, &first(records.bodies(), sample_len)).is_some())
        && let Some(begin) = smaller(&COMPRESSOR, &records.plain())
    {
        return BlobPayload {
            codec: CODEC_ZSTD,
            begin,
            bodies_follow: false,
        };
    }
    match smaller(&HEADS_COMPRESSOR, heads) {
        Some(begin) => BlobPayload {
            codec: CODEC_ZSTD_HEADS,
            begin,
            bodies_follow: true,
        },
        None => BlobPayload {
            codec: CODEC_PLAIN,
            begin: heads.clone(),
            bodies_follow: true,
        },
    }
}

/// The first `len` bytes of the bodies.
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

/// Compresses these bytes if that pays: an eighth saved is worth the time it takes to undo.
fn smaller(by: &'static LocalKey<ZstdContext>, plain: &[u8]) -> Option<Vec<u8>> {
    if plain.len() < COMPRESS_FROM {
        return None;
    }
    let compressed = by.with_borrow_mut(|c| c.as_mut()?.compress(plain).ok())?;
    (compressed.len() < plain.len() - plain.len() / 8).then_some(compressed)
}

fn decompress(payload: &[u8], plain_len: usize) -> Option<Bytes> {
    let plain =
        DECOMPRESSOR.with_borrow_mut(|d| d.as_mut()?.decompress(payload, plain_len).ok())?;
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

/// Reports whether the blob is what was written, without opening it: safe for blobs that kill their readers. A
/// blob of a later version is not judged.
pub(in crate::store) fn is_whole(blob: &Bytes) -> bool {
    if let Some(elements) = elements_of(blob) {
        return growing::are_whole(&elements);
    }
    is_whole_by(blob, &[])
}

/// The same of a bundle that may be written like this example.
fn is_whole_by(blob: &Bytes, example: &[u8]) -> bool {
    let Some(prefix) = blob
        .get(..PREFIX_LEN)
        .filter(|prefix| &prefix[..2] == MAGIC_BYTES)
    else {
        return false;
    };
    !is_known(prefix[2]) || checksum(blob, example).to_le_bytes() == prefix[4..8]
}

/// Reports whether this version of Postdate reads bundles of a format version.
fn is_known(version: u8) -> bool {
    (FIRST_VERSION..=FORMAT_VERSION).contains(&version)
}

/// The version of a bundle that a later version wrote. Opens nothing.
pub(in crate::store) fn later_version(blob: &Bytes) -> Option<u8> {
    if let Some(elements) = elements_of(blob) {
        return growing::later_version_of(&elements);
    }
    let prefix = blob
        .get(..PREFIX_LEN)
        .filter(|prefix| &prefix[..2] == MAGIC_BYTES)?;
    (prefix[2] > FORMAT_VERSION).then_some(prefix[2])
}

/// The parts of a blob, none of them opened. The checksum holds, and the lengths add up.
struct BlobParts {
    version: u8,
    codec: u8,
    target: TargetRef,
    index: Vec<IndexEntry>,
    heads_len: usize,
    bodies_len: usize,
    payload: Bytes,
}

impl BlobParts {
    fn read(blob: &Bytes, example: &[u8]) -> Result<Self, CodecError> {
        if blob.len() < PREFIX_LEN || &blob[..2] != MAGIC_BYTES {
            return Err(CodecError::NotABundle);
        }
        if !is_known(blob[2]) {
            return Err(CodecError::UnknownVersion(blob[2]));
        }
        let stored = u32::from_le_bytes([blob[4], blob[5], blob[6], blob[7]]);
        if checksum(blob, example) != stored {
            return Err(CodecError::Checksum);
        }
        let mut reader = Reader::new(blob.slice(PREFIX_LEN..));
        let target = TargetRef::from_text(reader.short_text(MAX_TARGET_BYTES)?);
        let count = reader.bounded(BUNDLE_MESSAGES)?;
        let heads_len = reader.bounded(MAX_PLAIN)?;
        let bodies_len = reader.bounded(MAX_PLAIN)?;
        let index = read_index(&mut reader, count)?;
        let heads_sum: usize = index.iter().map(|item| item.head).sum();
        let bodies_sum: usize = index.iter().map(|item| item.body).sum();
        if heads_sum != heads_len || bodies_sum != bodies_len {
            return Err(CodecError::Malformed(PREFIX_LEN));
        }
        Ok(Self {
            version: blob[2],
            codec: blob[3],
            target,
            index,
            heads_len,
            bodies_len,
            payload: reader.rest(),
        })
    }

    /// The messages, from their heads and a body for each.
    fn entries(&self, heads: &Bytes, bodies: Vec<Bytes>) -> Result<Vec<Entry>, CodecError> {
        let mut entries = Vec::with_capacity(self.index.len());
        let mut head = 0;
        for (item, body) in self.index.iter().zip(bodies) {
            let head_end = head + item.head;
            let head_bytes = heads.slice(head..head_end);
            let due = UnixMs(item.due);
            let record = records::read_record(self.version, head_bytes, body, due)?;
            head = head_end;
            entries.push(Entry {
                due,
                id: record.id,
                handouts: item.handouts,
                failures: item.failures,
                flags: Flags(item.flags),
                position: record.position,
                source_topic: record.source_topic,
                request: record.request,
                asked: record.asked,
                history: record.history,
                message: record.message,
            });
        }
        Ok(entries)
    }
}

/// Reads a bundle. Keys, headers and bodies are slices of the blob (or of its decompressed records).
pub fn decode(blob: &Bytes) -> Result<Bundle, CodecError> {
    match elements_of(blob) {
        Some(elements) => growing::decode_elements(&elements),
        None => decode_by(blob, &[]),
    }
}

/// Reads a bundle without its bodies.
pub fn decode_outline(blob: &Bytes) -> Result<BundleOutline, CodecError> {
    match elements_of(blob) {
        Some(elements) => growing::outline_elements(&elements),
        None => outline::outline_by(blob, &[]),
    }
}

/// Reads a bundle that may be written like this example.
fn decode_by(blob: &Bytes, example: &[u8]) -> Result<Bundle, CodecError> {
    let parts = BlobParts::read(blob, example)?;
    let (heads, bodies) = parts.plain(example)?;
    let mut at = 0;
    let body = |item: &IndexEntry| {
        let start = at;
        at += item.body;
        bodies.slice(start..at)
    };
    let bodies = parts.index.iter().map(body).collect();
    let entries = Arc::new(parts.entries(&heads, bodies)?);
    Ok(Bundle {
        target: parts.target,
        entries,
    })
}

impl BlobParts {
    /// Heads and bodies decompressed, each of the stated length.
    fn plain(&self, example: &[u8]) -> Result<(Bytes, Bytes), CodecError> {
        let malformed = || CodecError::Malformed(PREFIX_LEN);
        let (payload, heads, bodies) = (&self.payload, self.heads_len, self.bodies_len);
        let whole = match self.codec {
            CODEC_PLAIN => Some(payload.clone()),
            CODEC_ZSTD if heads + bodies <= MAX_PLAIN => decompress(payload, heads + bodies),
            CODEC_ZSTD => None,
            CODEC_LIKE => plain_like(payload, example, heads + bodies),
            CODEC_ZSTD_HEADS => {
                let at = payload.len().checked_sub(bodies).ok_or_else(malformed)?;
                let plain = decompress(&payload[..at], heads);
                let plain = plain.filter(|plain| plain.len() == heads);
                return Ok((plain.ok_or_else(malformed)?, payload.slice(at..)));
            }
            _ => return Err(CodecError::Malformed(3)),
        };
        let whole = whole.filter(|whole| whole.len() == heads + bodies);
        let whole = whole.ok_or_else(malformed)?;
        Ok((whole.slice(..heads), whole.slice(heads..)))
    }
}

/// The due time of each message, from the first bytes of a blob: the index stands before the records. The
/// checksum is not verified.
pub(in crate::store) fn read_dues(head: &Bytes) -> Result<Vec<UnixMs>, CodecError> {
    if let Some(elements) = elements_of(head) {
        return growing::dues_of(&elements);
    }
    if head.len() < PREFIX_LEN || &head[..2] != MAGIC_BYTES {
        return Err(CodecError::NotABundle);
    }
    if !is_known(head[2]) {
        return Err(CodecError::UnknownVersion(head[2]));
    }
    let mut reader = Reader::new(head.slice(PREFIX_LEN..));
    reader.short_text(MAX_TARGET_BYTES)?;
    let count = reader.bounded(BUNDLE_MESSAGES)?;
    let _heads_len = reader.bounded(MAX_PLAIN)?;
    let _bodies_len = reader.bounded(MAX_PLAIN)?;
    Ok(read_index(&mut reader, count)?
        .into_iter()
        .map(|item| UnixMs(item.due))
        .collect())
}

/// Bytes that a bundle's records take when they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct PlainLengths {
    /// Messages of the bundle.
    pub(in crate::store) count: usize,
    pub(in crate::store) heads: usize,
    pub(in crate::store) bodies: usize,
}

/// The same for heads and bodies apart.
pub(in crate::store) fn plain_lengths(head: &Bytes) -> Option<PlainLengths> {
    if let Some(elements) = elements_of(head) {
        return Some(growing::lengths_of(&elements));
    }
    if head.len() < PREFIX_LEN || &head[..2] != MAGIC_BYTES || !is_known(head[2]) {
        return None;
    }
    let mut reader = Reader::new(head.slice(PREFIX_LEN..));
    reader.short_text(MAX_TARGET_BYTES).ok()?;
    let count = reader.bounded(BUNDLE_MESSAGES).ok()?;
    let heads = reader.bounded(MAX_PLAIN).ok()?;
    let bodies = reader.bounded(MAX_PLAIN).ok()?;
    Some(PlainLengths {
        count,
        heads,
        bodies,
    })
}

/// The bytes of each message when opened, from the first bytes of a blob.
pub(in crate::store) fn plain_bytes(head: &Bytes) -> Option<Vec<usize>> {
    let lengths = plain_lengths(head)?;
    let mut reader = Reader::new(head.slice(PREFIX_LEN..));
    reader.short_text(MAX_TARGET_BYTES).ok()?;
    for _ in 0..3 {
        reader.bounded(MAX_PLAIN).ok()?;
    }
    let index = read_index(&mut reader, lengths.count).ok()?;
    Some(index.iter().map(|item| item.head + item.body).collect())
}

fn read_index(reader: &mut Reader, count: usize) -> Result<Vec<IndexEntry>, CodecError> {
    let mut index = Vec::with_capacity(count);
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
        .map(|_| {
            Ok(Failure {
                at: UnixMs(reader.signed()?),
                reason: reader.text()?,
                error: reader.text()?,
            })
        })
        .collect()
}

/// An optional text, as the record's shape byte says.
type MaybeText = Option<Text>;
