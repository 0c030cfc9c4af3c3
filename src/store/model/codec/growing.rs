//! The messages of a growing bundle as one blob, as they are read: Redis keeps each as an element of a list, a bundle of one.
//! An element that is empty is the place of a message that is gone.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    BundleOutline, CodecError, PlainLengths, decode, decode_outline, is_whole, later_version,
    plain_lengths, read_dues,
};
use crate::domain::{TargetRef, UnixMs};
use crate::store::Bundle;
use crate::store::model::bundle::{NO_DUE, gone_entry};

/// The first bytes of such a blob. It is nowhere stored.
const MAGIC_BYTES: &[u8; 2] = b"PL";

/// The elements of a list as one blob.
pub(in crate::store) fn join_elements(elements: &[Vec<u8>]) -> Bytes {
    let bytes: usize = elements.iter().map(|element| element.len() + 4).sum();
    let mut blob = BytesMut::with_capacity(MAGIC_BYTES.len() + bytes);
    blob.put_slice(MAGIC_BYTES);
    for element in elements {
        blob.put_u32_le(element.len() as u32);
        blob.put_slice(element);
    }
    blob.freeze()
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
    let outline = outline_of(elements, |element| {
        decode(element).map(|bundle| BundleOutline {
            bundle,
            sizes: vec![0],
        })
    })?;
    Ok(outline.bundle)
}

pub(super) fn outline_elements(elements: &[Bytes]) -> Result<BundleOutline, CodecError> {
    outline_of(elements, decode_outline)
}

fn outline_of(
    elements: &[Bytes],
    read: impl Fn(&Bytes) -> Result<BundleOutline, CodecError>,
) -> Result<BundleOutline, CodecError> {
    let mut target: Option<TargetRef> = None;
    let mut entries = Vec::with_capacity(elements.len());
    let mut sizes = Vec::with_capacity(elements.len());
    for element in elements {
        if element.is_empty() {
            entries.push(gone_entry());
            sizes.push(0);
            continue;
        }
        let one = read(element)?;
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
    let due = |element: &Bytes| {
        if element.is_empty() {
            return Ok(NO_DUE);
        }
        let dues = read_dues(element)?;
        dues.first().copied().ok_or(CodecError::Malformed(0))
    };
    elements.iter().map(due).collect()
}

pub(super) fn are_whole(elements: &[Bytes]) -> bool {
    elements
        .iter()
        .all(|element| element.is_empty() || is_whole(element))
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
    use super::*;
    use crate::domain::testing;
    use crate::store::encode;
    use crate::store::model::bundle::is_gone;

    fn element(due: i64, body: &'static [u8]) -> Vec<u8> {
        let entries = Arc::new(vec![testing::entry(UnixMs(due), body)]);
        let target = TargetRef::Own;
        encode(&Bundle { target, entries }).to_vec()
    }

    #[test]
    fn what_is_gone_keeps_its_place_and_the_others_are_read_as_they_were_written() {
        let elements = [element(7, b"one"), Vec::new(), element(9, b"three")];
        let blob = join_elements(&elements);
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
        assert!(!is_whole(&join_elements(&flipped)));
        assert_eq!(plain_lengths(&blob).map(|plain| plain.bodies), Some(8));
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        let blob = join_elements(&[element(7, b"one"), element(8, b"two")]);
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
