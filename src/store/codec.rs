//! The bundle format, version 1.
//!
//! ```text
//! "PB" | version 1 | codec (0 plain, 1 zstd) | crc32 (LE) of all that follows
//! | target: len, bytes | count | plain length of the records
//! | per message: due (first: absolute, then zigzag difference), record length, flags,
//!                handouts, failures          -- the index, never compressed
//! | records, as a whole, compressed where that pays
//! record: shape | id? | position? | asked due time? | history? | message
//! ```
//! All numbers are LEB128 varints; texts and bytes are length, bytes. A blob is immutable; a reader that
//! does not know its version leaves it alone. Golden files in `tests/golden` hold the format still.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use zstd::bulk::{Compressor, Decompressor};

use super::Bundle;
use crate::domain::{Entry, Failure, Flags, Text, UnixMs};

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
const PREFIX: usize = 8;
/// Records shorter than this are never worth compressing.
const COMPRESS_FROM: usize = 512;
/// So many bytes of longer records are tried first.
const SAMPLE: usize = 4096;
/// zstd's level: what the higher ones save more is not worth their time.
const LEVEL: i32 = 1;
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
    let mut records = Vec::with_capacity(bundle.entries.iter().map(|e| e.message.body_len() + 128).sum());
    let mut index = Vec::with_capacity(bundle.entries.len() * 8);
    let mut last_due = 0i64;
    for entry in bundle.entries.iter() {
        let start = records.len();
        records::put_record(&mut records, entry);
        put_signed(&mut index, entry.due.0.wrapping_sub(last_due));
        put_unsigned(&mut index, (records.len() - start) as u64);
        index.push(entry.flags.0);
        put_unsigned(&mut index, u64::from(entry.handouts));
        put_unsigned(&mut index, u64::from(entry.failures));
        last_due = entry.due.0;
    }
    let compressed = compress(&records);
    let payload = compressed.as_deref().unwrap_or(&records);
    let mut blob = BytesMut::with_capacity(PREFIX + 24 + bundle.target.len() + index.len() + payload.len());
    blob.put_slice(MAGIC);
    blob.put_u8(VERSION);
    blob.put_u8(if compressed.is_some() { ZSTD } else { PLAIN });
    blob.put_u32_le(0);
    let mut head = Vec::with_capacity(16 + bundle.target.len());
    put_bytes(&mut head, bundle.target.bytes());
    put_unsigned(&mut head, bundle.entries.len() as u64);
    put_unsigned(&mut head, records.len() as u64);
    blob.put_slice(&head);
    blob.put_slice(&index);
    blob.put_slice(payload);
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
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(LEVEL).ok());
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

/// The records compressed, where that pays: an eighth saved is worth the time it takes to undo.
fn compress(records: &[u8]) -> Option<Vec<u8>> {
    let pays = |plain: &[u8]| {
        let compressed = COMPRESSOR.with_borrow_mut(|c| c.as_mut()?.compress(plain).ok())?;
        (compressed.len() < plain.len() - plain.len() / 8).then_some(compressed)
    };
    if records.len() < COMPRESS_FROM {
        return None;
    }
    // What does not compress (encrypted, compressed already) shows in its beginning: the rest is spared.
    if records.len() >= 4 * SAMPLE && pays(&records[..SAMPLE]).is_none() {
        return None;
    }
    pays(records)
}

fn decompress(payload: &[u8], plain_len: usize) -> Option<Bytes> {
    let plain = DECOMPRESSOR.with_borrow_mut(|d| d.as_mut()?.decompress(payload, plain_len).ok())?;
    Some(Bytes::from(plain))
}

struct IndexEntry {
    due: i64,
    len: usize,
    flags: u8,
    handouts: u32,
    failures: u32,
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
    let target = reader.text()?;
    let count = reader.bounded(1 << 20)?;
    let plain_len = reader.bounded(MAX_PLAIN)?;
    let index = read_index(&mut reader, count)?;
    let payload = reader.rest();
    let records = match blob[3] {
        PLAIN => payload,
        ZSTD => decompress(&payload, plain_len).ok_or(CodecError::Malformed(PREFIX))?,
        _ => return Err(CodecError::Malformed(3)),
    };
    if records.len() != plain_len || index.iter().map(|i| i.len).sum::<usize>() != plain_len {
        return Err(CodecError::Malformed(PREFIX));
    }
    let mut entries = Vec::with_capacity(index.len());
    let mut at = 0;
    for item in index {
        let record = records::read_record(records.slice(at..at + item.len))?;
        at += item.len;
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

fn read_index(reader: &mut Reader, count: usize) -> Result<Vec<IndexEntry>, CodecError> {
    let mut index = Vec::with_capacity(count.min(1024));
    let mut due = 0i64;
    for _ in 0..count {
        due = due.wrapping_add(reader.signed()?);
        index.push(IndexEntry {
            due,
            len: reader.bounded(MAX_PLAIN)?,
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
