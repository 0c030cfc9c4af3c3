//! LEB128 numbers and length-prefixed bytes.

use bytes::Bytes;

use super::CodecError;
use crate::domain::Text;

pub(super) fn put_unsigned(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(super) fn put_signed(out: &mut Vec<u8>, n: i64) {
    put_unsigned(out, ((n << 1) ^ (n >> 63)) as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_unsigned(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads the output of the functions above. Every slice is shared, every length checked.
pub(super) struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn byte(&mut self) -> Result<u8, CodecError> {
        let byte = self
            .bytes
            .get(self.at)
            .copied()
            .ok_or(CodecError::Malformed(self.at))?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn unsigned(&mut self) -> Result<u64, CodecError> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(CodecError::Malformed(self.at))
    }

    pub(super) fn signed(&mut self) -> Result<i64, CodecError> {
        let n = self.unsigned()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// Reads a number of at most `max`.
    pub(super) fn bounded(&mut self, max: usize) -> Result<usize, CodecError> {
        let n = self.unsigned()?;
        if n > max as u64 {
            return Err(CodecError::Malformed(self.at));
        }
        Ok(n as usize)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<Bytes, CodecError> {
        let end = self
            .at
            .checked_add(len)
            .filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(CodecError::Malformed(self.at))?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, CodecError> {
        let len = self.bounded(self.bytes.len())?;
        self.take(len)
    }

    pub(super) fn text(&mut self) -> Result<Text, CodecError> {
        let at = self.at;
        Text::from_utf8(self.bytes()?).ok_or(CodecError::Malformed(at))
    }

    /// Reads a text of at most `max` bytes.
    pub(super) fn short_text(&mut self, max: usize) -> Result<Text, CodecError> {
        let at = self.at;
        let len = self.bounded(max)?;
        Text::from_utf8(self.take(len)?).ok_or(CodecError::Malformed(at))
    }

    /// Reads what is only there if this is so.
    pub(super) fn optional<T>(
        &mut self,
        is_there: bool,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        if is_there {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(super) fn rest(self) -> Bytes {
        self.bytes.slice(self.at..)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }
}
