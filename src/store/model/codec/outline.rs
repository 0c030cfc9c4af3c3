//! Bundles without their bodies: what a list shows, at the price of their heads.
//!
//! Where heads and bodies were compressed together, the heads come first: decompression stops behind them. So a bundle
//! of a few kilobytes whose bodies are mebibytes of zeros costs a list no more than its heads.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use zstd::stream::read::Decoder;

use super::{
    BlobParts, CODEC_LIKE, CODEC_PLAIN, CODEC_ZSTD, CODEC_ZSTD_HEADS, CodecError, PREFIX_LEN,
    decompress,
};
use crate::store::Bundle;

/// Highest power of two of bytes that decompression may look back by: eight times what the writer's level uses.
const MAX_WINDOW_LOG: u32 = 22;
/// Records up to this many bytes are decompressed whole, which takes less time than a stopped decompression.
const SMALL_BYTES: usize = 64 << 10;

/// A bundle whose bodies were not opened.
#[derive(Clone, Debug, PartialEq)]
pub struct BundleOutline {
    /// The bundle. Each body that is there is empty.
    pub bundle: Bundle,
    /// The length of each message's body, bytes.
    pub sizes: Vec<usize>,
}

impl BundleOutline {
    /// The same of a bundle whose bodies were opened, and are still there.
    pub(in crate::store) fn with_bodies(bundle: Bundle) -> Self {
        let sizes = bundle.entries.iter().map(|entry| entry.message.body_len());
        Self {
            sizes: sizes.collect(),
            bundle,
        }
    }
}

/// Reads a bundle that may be written like this example, without its bodies.
pub(super) fn outline_by(blob: &Bytes, example: &[u8]) -> Result<BundleOutline, CodecError> {
    let parts = BlobParts::read(blob, example)?;
    let heads = parts.heads(example)?;
    let sizes = parts.index.iter().map(|item| item.body).collect();
    let bodies = vec![Bytes::new(); parts.index.len()];
    let entries = Arc::new(parts.entries(&heads, bodies)?);
    Ok(BundleOutline {
        bundle: Bundle {
            target: parts.target,
            entries,
        },
        sizes,
    })
}

impl BlobParts {
    /// The heads, decompressed.
    fn heads(&self, example: &[u8]) -> Result<Bytes, CodecError> {
        let malformed = || CodecError::Malformed(PREFIX_LEN);
        let heads = match self.codec {
            CODEC_LIKE => return Ok(self.plain(example)?.0),
            CODEC_PLAIN => self.payload.slice(..self.heads_len.min(self.payload.len())),
            CODEC_ZSTD_HEADS => {
                let at = self
                    .payload
                    .len()
                    .checked_sub(self.bodies_len)
                    .ok_or_else(malformed)?;
                decompress(&self.payload[..at], self.heads_len).ok_or_else(malformed)?
            }
            CODEC_ZSTD if self.heads_len + self.bodies_len <= SMALL_BYTES => {
                let whole = decompress(&self.payload, self.heads_len + self.bodies_len);
                whole
                    .filter(|whole| whole.len() >= self.heads_len)
                    .ok_or_else(malformed)?
                    .slice(..self.heads_len)
            }
            CODEC_ZSTD => first_bytes(&self.payload, self.heads_len).ok_or_else(malformed)?,
            _ => return Err(CodecError::Malformed(3)),
        };
        if heads.len() == self.heads_len {
            Ok(heads)
        } else {
            Err(malformed())
        }
    }
}

/// The first `len` bytes that these decompress to.
fn first_bytes(compressed: &[u8], len: usize) -> Option<Bytes> {
    let mut decoder = Decoder::with_buffer(compressed).ok()?;
    decoder.window_log_max(MAX_WINDOW_LOG).ok()?;
    let mut first = vec![0; len];
    decoder.read_exact(&mut first).ok()?;
    Some(Bytes::from(first))
}

#[cfg(test)]
mod tests {
    use super::super::{decode, decode_outline, encode};
    use super::*;
    use crate::domain::{TargetRef, UnixMs, testing};

    fn blob(bodies: &[Vec<u8>]) -> Bytes {
        let made = |(n, body): (usize, &Vec<u8>)| {
            let mut entry = testing::entry(UnixMs(n as i64), b"");
            entry.message.body = Some(Bytes::copy_from_slice(body));
            entry
        };
        let entries = bodies.iter().enumerate().map(made).collect();
        encode(&Bundle {
            target: TargetRef::Named("other".into()),
            entries: Arc::new(entries),
        })
    }

    /// A body that no compression makes smaller.
    fn random(seed: u64, len: usize) -> Vec<u8> {
        let mut body = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut body);
        body
    }

    #[test]
    fn an_outline_is_the_bundle_without_its_bodies_in_each_codec() {
        for (bodies, codec) in [
            (vec![b"x".to_vec()], CODEC_PLAIN),
            (vec![vec![0; 300]; 40], CODEC_ZSTD),
            (vec![vec![0; 1 << 20]], CODEC_ZSTD),
            (vec![vec![0; 1 << 20]; 3], CODEC_ZSTD),
            (vec![random(1, 100_000)], CODEC_PLAIN),
            (
                (0..400).map(|seed| random(seed, 100)).collect(),
                CODEC_ZSTD_HEADS,
            ),
        ] {
            let blob = blob(&bodies);
            assert_eq!(
                blob[3],
                codec,
                "{} bodies of {}",
                bodies.len(),
                bodies[0].len()
            );
            let outline = decode_outline(&blob).expect("a good bundle");
            let whole = decode(&blob).expect("a good bundle");
            assert_eq!(
                outline.sizes,
                bodies.iter().map(Vec::len).collect::<Vec<_>>()
            );
            assert_eq!(outline.bundle.target, whole.target);
            for (short, entry) in outline.bundle.entries.iter().zip(whole.entries.iter()) {
                let mut entry = entry.clone();
                entry.message.body = Some(Bytes::new());
                assert_eq!(*short, entry);
            }
        }
    }

    #[test]
    fn what_cannot_be_opened_has_no_outline() {
        let good = blob(&[vec![0; 100_000]]);
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x40;
            assert!(decode_outline(&bad.into()).is_err(), "flipped at {at}");
        }
        assert!(decode_outline(&good.slice(..good.len() - 1)).is_err());
    }
}
