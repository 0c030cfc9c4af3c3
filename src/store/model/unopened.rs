//! The content of a dead letter that holds a bundle unopened, because opening it may have killed its readers.
//!
//! ```text
//! "PU" | version 1 | count: a byte a message, 1 where it was cancelled or confirmed | the bundle's blob
//! ```
//! The count is a little-endian u32. The blob stays as it is: only a person who asks for a redrive has it opened.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::{CodecError, decode};
use crate::domain::{Entry, Flags};
use crate::store::Bundle;

const MAGIC_BYTES: &[u8; 2] = b"PU";
const FORMAT_VERSION: u8 = 1;
/// Length of magic, version and count.
const PREFIX_LEN: usize = 7;

/// A bundle that nobody opened, and the messages that are no longer part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnopenedBundle {
    /// The blob of the bundle.
    pub blob: Bytes,
    /// For each message of the bundle: set if it was cancelled or confirmed, so that it must not be published.
    pub skip: Vec<bool>,
}

impl UnopenedBundle {
    /// The number of messages that are still part of it.
    pub fn count(&self) -> usize {
        self.skip.iter().filter(|skip| !**skip).count()
    }

    /// Opens the bundle: the messages that are still part of it. Nobody knows what became of them under the claims of
    /// those who died, so each may be a repeat.
    pub fn open(&self) -> Result<Bundle, CodecError> {
        let bundle = decode(&self.blob)?;
        if bundle.entries.len() != self.skip.len() {
            return Err(CodecError::Malformed(PREFIX_LEN));
        }
        let entries = bundle
            .entries
            .iter()
            .zip(&self.skip)
            .filter(|(_, skip)| !**skip);
        let entries = entries
            .map(|(entry, _)| Entry {
                flags: entry.flags.with(Flags::CLAIM_EXPIRED),
                ..entry.clone()
            })
            .collect();
        Ok(Bundle {
            target: bundle.target,
            entries: Arc::new(entries),
        })
    }

    /// Writes the content of the dead letter.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(PREFIX_LEN + self.skip.len() + self.blob.len());
        out.put_slice(MAGIC_BYTES);
        out.put_u8(FORMAT_VERSION);
        out.put_u32_le(self.skip.len() as u32);
        out.extend(self.skip.iter().map(|&skip| u8::from(skip)));
        out.put_slice(&self.blob);
        out.freeze()
    }

    /// Reads the content of a dead letter. `None` if it is no unopened bundle of this version.
    pub(in crate::store) fn read(content: &Bytes) -> Option<Self> {
        let prefix = content.get(..PREFIX_LEN)?;
        if &prefix[..2] != MAGIC_BYTES || prefix[2] != FORMAT_VERSION {
            return None;
        }
        let count = u32::from_le_bytes([prefix[3], prefix[4], prefix[5], prefix[6]]) as usize;
        let end = PREFIX_LEN.checked_add(count)?;
        let skip = content
            .get(PREFIX_LEN..end)?
            .iter()
            .map(|&byte| byte != 0)
            .collect();
        Some(Self {
            blob: content.slice(end..),
            skip,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{TargetRef, UnixMs, testing};
    use crate::store::encode;

    fn unopened(bodies: &[&'static str], skip: &[bool]) -> UnopenedBundle {
        let entries = bodies
            .iter()
            .map(|body| testing::entry(UnixMs(7), body.as_bytes()))
            .collect();
        let bundle = Bundle {
            target: TargetRef::Named("orders".into()),
            entries: Arc::new(entries),
        };
        UnopenedBundle {
            blob: encode(&bundle),
            skip: skip.to_vec(),
        }
    }

    #[test]
    fn what_was_cancelled_or_confirmed_does_not_come_out_again() {
        let kept = unopened(&["a", "b", "c"], &[false, true, false]);
        let read = UnopenedBundle::read(&kept.encode()).expect("written by this version");
        assert_eq!(read, kept);
        assert_eq!(read.count(), 2);
        let bundle = read.open().expect("it kills nobody");
        let bodies: Vec<_> = bundle
            .entries
            .iter()
            .map(|entry| entry.message.body.clone())
            .collect();
        assert_eq!(
            bodies,
            [
                Some(Bytes::from_static(b"a")),
                Some(Bytes::from_static(b"c"))
            ]
        );
        assert!(
            bundle
                .entries
                .iter()
                .all(|entry| entry.flags.has(Flags::CLAIM_EXPIRED))
        );
        assert_eq!(bundle.target.as_str(), "orders");
    }

    #[test]
    fn what_is_no_unopened_bundle_is_not_read_as_one() {
        let kept = unopened(&["a"], &[false]);
        assert_eq!(UnopenedBundle::read(&kept.blob), None, "a bundle");
        let content = kept.encode();
        for len in 0..=PREFIX_LEN {
            assert_eq!(
                UnopenedBundle::read(&content.slice(..len)),
                None,
                "{len} bytes"
            );
        }
        let mut later = content.to_vec();
        later[2] = 2;
        assert_eq!(UnopenedBundle::read(&later.into()), None, "a later version");
        let mut huge = content.to_vec();
        huge[3..PREFIX_LEN].copy_from_slice(&[0xff; 4]);
        assert_eq!(
            UnopenedBundle::read(&huge.into()),
            None,
            "a count that cannot be"
        );
    }

    #[test]
    fn another_number_of_messages_is_said() {
        let kept = unopened(&["a", "b"], &[false]);
        assert_eq!(kept.open(), Err(CodecError::Malformed(PREFIX_LEN)));
    }
}
