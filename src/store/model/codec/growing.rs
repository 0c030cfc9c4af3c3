//! The messages of a growing bundle as one blob, as they are read: Redis keeps each as an element of a list, a bundle of one.
//! An element that is empty is the place of a message that is gone.
//!
//! The first element may be an *example* instead: the content of a message that is like those of the bundle. They are
//! compressed with it as zstd's dictionary, so what they have in common with it takes hardly a byte. So small messages
//! compress though each must be read, and removed, alone.
//!
//! ```text
//! "PE" | crc32 (LE) of the rest | the heads and bodies of a bundle of one
//! ```

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::outline::outline_by;
use super::{
    BundleOutline, CodecError, PlainLengths, decode_by, is_whole_by, later_version, plain_lengths,
    read_dues,
};
use crate::domain::{TargetRef, UnixMs};
use crate::store::Bundle;
use crate::store::model::bundle::{NO_DUE, gone_entry};

/// The first bytes of an example, and the bytes before its content.
const EXAMPLE_MAGIC_BYTES: &[u8; 2] = b"PE";
const EXAMPLE_PREFIX_LEN: usize = 6;

/// The first bytes of such a blob. It is nowhere stored.
const MAGIC_BYTES: &[u8; 2] = b"PL";

/// The elements of a list as one blob.
pub(in crate::store) fn join_elements<'a>(
    elements: impl Iterator<Item = &'a [u8]> + Clone,
) -> Bytes {
    let bytes: usize = elements.clone().map(|element| element.len() + 4).sum();
    let mut blob = BytesMut::with_capacity(MAGIC_BYTES.len() + bytes);
    blob.put_slice(MAGIC_BYTES);
    for element in elements {
        blob.put_u32_le(element.len() as u32);
        blob.put_slice(element);
    }
    blob.freeze()
}

/// The first element of a growing bundle whose messages are like this one's content.
pub(in crate::store) fn example_element(content: &[u8]) -> Bytes {
    let mut element = BytesMut::with_capacity(EXAMPLE_PREFIX_LEN + content.len());
    element.put_slice(EXAMPLE_MAGIC_BYTES);
    element.put_u32_le(crc32fast::hash(content));
    element.put_slice(content);
    element.freeze()
}

/// True for an example.
fn is_example(element: &[u8]) -> bool {
    element.starts_with(EXAMPLE_MAGIC_BYTES)
}

/// The content of an example that is whole.
fn example_content(element: &Bytes) -> Option<Bytes> {
    let content = element.get(EXAMPLE_PREFIX_LEN..)?;
    let is_whole = crc32fast::hash(content).to_le_bytes() == element[2..EXAMPLE_PREFIX_LEN];
    (is_example(element) && is_whole).then(|| element.slice(EXAMPLE_PREFIX_LEN..))
}

/// The elements of a growing bundle.
pub(in crate::store) struct GrowingElements(pub(in crate::store) Vec<Bytes>);

impl GrowingElements {
    /// One of them with what it takes to read it, and its place in that. `None`: it is no message, or one that is gone.
    pub(in crate::store) fn alone(&self, index: usize) -> Option<(Bytes, usize)> {
        let element = self.0.get(index)?;
        if element.is_empty() || is_example(element) {
            return None;
        }
        let example = self.0.first().filter(|first| is_example(first));
        let both = example.into_iter().chain([element]).map(Bytes::as_ref);
        Some((join_elements(both), usize::from(example.is_some())))
    }
}

/// The elements of such a blob, none of which is one itself. `None`: it is another one.
pub(in crate::store) fn elements_of(blob: &Bytes) -> Option<Vec<Bytes>> {
    let mut at = MAGIC_BYTES.len();
    if blob.get(..at)? != MAGIC_BYTES {
        return None;
    }
    let mut elements = Vec::new();
    while at < blob.len() {
        let length = blob.get(at..at + 4)?.try_into().ok()?;
        let end = (at + 4).checked_add(u32::from_le_bytes(length) as usize)?;
        if blob.get(at + 4..end)?.starts_with(MAGIC_BYTES) {
            return None;
        }
        elements.push(blob.slice(at + 4..end));
        at = end;
    }
    Some(elements)
}

pub(super) fn decode_elements(elements: &[Bytes]) -> Result<Bundle, CodecError> {
    let outline = outline_of(elements, |element, example| {
        decode_by(element, example).map(|bundle| BundleOutline {
            bundle,
            sizes: vec![0],
        })
    })?;
    Ok(outline.bundle)
}

pub(super) fn outline_elements(elements: &[Bytes]) -> Result<BundleOutline, CodecError> {
    outline_of(elements, outline_by)
}

fn outline_of(
    elements: &[Bytes],
    read: impl Fn(&Bytes, &[u8]) -> Result<BundleOutline, CodecError>,
) -> Result<BundleOutline, CodecError> {
    let example = elements.first().and_then(example_content);
    let example = example.unwrap_or_default();
    let mut target: Option<TargetRef> = None;
    let mut entries = Vec::with_capacity(elements.len());
    let mut sizes = Vec::with_capacity(elements.len());
    for element in elements {
        if element.is_empty() || is_example(element) {
            entries.push(gone_entry());
            sizes.push(0);
            continue;
        }
        let one = read(element, &example)?;
        let [entry] = &one.bundle.entries[..] else {
            return Err(CodecError::Malformed(0));
        };
        if *target.get_or_insert_with(|| one.bundle.target.clone()) != one.bundle.target {
            return Err(CodecError::Malformed(0));
        }
        entries.push(entry.clone());
        sizes.extend(one.sizes);
    }
    Ok(BundleOutline {
        bundle: Bundle {
            target: target.unwrap_or(TargetRef::Own),
            entries: Arc::new(entries),
        },
        sizes,
    })
}

pub(super) fn dues_of(elements: &[Bytes]) -> Result<Vec<UnixMs>, CodecError> {
    elements.iter().map(due_of).collect()
}

fn due_of(element: &Bytes) -> Result<UnixMs, CodecError> {
    if element.is_empty() || is_example(element) {
        return Ok(NO_DUE);
    }
    let dues = read_dues(element)?;
    dues.first().copied().ok_or(CodecError::Malformed(0))
}

pub(super) fn are_whole(elements: &[Bytes]) -> bool {
    let example = elements.first().and_then(example_content);
    let example = example.unwrap_or_default();
    elements.iter().all(|element| {
        element.is_empty() || is_whole_by(element, &example) || example_content(element).is_some()
    })
}

pub(super) fn later_version_of(elements: &[Bytes]) -> Option<u8> {
    elements.iter().find_map(later_version)
}

pub(super) fn lengths_of(elements: &[Bytes]) -> PlainLengths {
    let lengths = elements.iter().filter_map(plain_lengths);
    let none = PlainLengths {
        count: 0,
        heads: 0,
        bodies: 0,
    };
    lengths.fold(none, |all, one| PlainLengths {
        count: all.count + one.count,
        heads: all.heads + one.heads,
        bodies: all.bodies + one.bodies,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{decode, decode_outline, encode_like, example_of, is_like, is_whole};
    use super::*;
    use crate::domain::testing;
    use crate::store::encode;
    use crate::store::model::bundle::is_gone;

    fn alone(due: i64, body: &[u8]) -> Bundle {
        let mut entry = testing::entry(UnixMs(due), b"");
        entry.message.body = Some(Bytes::copy_from_slice(body));
        let entries = Arc::new(vec![entry]);
        let target = TargetRef::Own;
        Bundle { target, entries }
    }

    fn element(due: i64, body: &[u8]) -> Vec<u8> {
        encode(&alone(due, body)).to_vec()
    }

    fn joined(elements: &[Vec<u8>]) -> Bytes {
        join_elements(elements.iter().map(Vec::as_slice))
    }

    /// An order as people send it.
    fn order(n: u32) -> Bytes {
        let id = n.wrapping_mul(0x9e37_79b1);
        format!(
            r#"{{"event":"order.timeout","order_id":"order-{id:08x}","customer":{},"state":"placed"}}"#,
            n.wrapping_mul(7919)
        )
        .into()
    }

    #[test]
    fn what_is_gone_keeps_its_place_and_the_others_are_read_as_they_were_written() {
        let elements = [element(7, b"one"), Vec::new(), element(9, b"three")];
        let blob = joined(&elements);
        let bundle = decode(&blob).expect("read");
        let is_gone: Vec<bool> = bundle.entries.iter().map(is_gone).collect();
        assert_eq!(is_gone, [false, true, false]);
        assert_eq!(
            bundle.entries[2].message.body.as_deref(),
            Some(&b"three"[..])
        );
        assert_eq!(read_dues(&blob), Ok(vec![UnixMs(7), NO_DUE, UnixMs(9)]));
        let outline = decode_outline(&blob).expect("read");
        assert_eq!(outline.sizes, [3, 0, 5]);
        assert!(is_whole(&blob));
        let mut flipped = elements;
        flipped[0][20] ^= 1;
        assert!(!is_whole(&joined(&flipped)));
        assert_eq!(plain_lengths(&blob).map(|plain| plain.bodies), Some(8));
    }

    #[test]
    fn what_is_like_an_example_takes_half_and_is_read_as_it_was_written() {
        let example = example_of(&alone(1, &order(1))).expect("short");
        let mut elements = vec![example_element(&example).to_vec()];
        let mut plain = 0;
        for n in 2..40 {
            let one = alone(i64::from(n), &order(n));
            assert!(is_like(&one, &example));
            plain += encode(&one).len();
            elements.push(encode_like(&one, &example).to_vec());
        }
        elements[5].clear();
        let random: Vec<u8> = (0..100).map(|_| fastrand::u8(..)).collect();
        assert!(!is_like(&alone(1, &random), &example));
        elements.push(encode_like(&alone(99, &random), &example).to_vec());
        let length: usize = elements.iter().map(Vec::len).sum();
        assert!(length < plain * 6 / 10, "{length} of {plain}");
        let blob = joined(&elements);
        assert!(is_whole(&blob));
        let bundle = decode(&blob).expect("read");
        let outline = decode_outline(&blob).expect("read");
        let dues = read_dues(&blob).expect("read");
        let elements = GrowingElements(elements_of(&blob).expect("elements"));
        assert_eq!(dues.len(), elements.0.len());
        for (at, due) in dues.into_iter().enumerate() {
            let alone = elements.alone(at);
            assert_eq!(alone.is_none(), at == 0 || at == 5);
            let Some((alone, place)) = alone else {
                assert!(is_gone(&bundle.entries[at]) && due == NO_DUE);
                continue;
            };
            let body = bundle.entries[at].message.body.clone().expect("a body");
            let expected = match due.0 {
                99 => random.clone().into(),
                n => order(n as u32),
            };
            assert_eq!(body, expected);
            assert_eq!(outline.sizes[at], expected.len());
            assert_eq!(
                decode(&alone).expect("read").entries[place],
                bundle.entries[at]
            );
        }
        // Without its example nothing is read as something else.
        let without = joined(&[Vec::new(), elements.0[1].to_vec()]);
        assert!(decode(&without).is_err());
        let other = example_element(&order(7));
        assert!(decode(&joined(&[other.to_vec(), elements.0[1].to_vec()])).is_err());
    }

    /// A growing bundle of the second format version, as its elements are joined.
    const GOLDEN: &[u8] = include_bytes!("../../../../tests/golden/growing-v2.bundle");

    #[test]
    fn a_golden_file_is_read_as_ever() {
        let bundle = decode(&Bytes::from_static(GOLDEN)).expect("read");
        let [example, first, second] = &bundle.entries[..] else {
            panic!("three places: {bundle:?}");
        };
        assert!(is_gone(example));
        assert_eq!(*first, alone(7, &order(2)).entries[0]);
        assert_eq!(*second, alone(9, &order(3)).entries[0]);
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        let example = example_of(&alone(1, &order(1))).expect("short");
        let like = encode_like(&alone(9, &order(3)), &example).to_vec();
        let first = example_element(&example).to_vec();
        let blob = joined(&[first, element(7, b"one"), like]);
        for _ in 0..20_000 {
            let mut bytes = blob.to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(..=bytes.len()));
            let bytes = Bytes::from(bytes);
            let whole = (is_whole(&bytes), later_version(&bytes)) == (true, None);
            assert!(!whole || plain_lengths(&bytes).is_some());
            drop((decode(&bytes), decode_outline(&bytes), read_dues(&bytes)));
        }
    }
}
