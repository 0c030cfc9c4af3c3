//! The form in which Redisson packs an element of an `RDelayedQueue`.

use bytes::Bytes;

/// Bytes of the length before a value.
const LENGTH_BYTES: usize = 8;

/// An element of an `RDelayedQueue`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedissonEntry {
    /// The bytes that the queue's codec wrote.
    pub value: Bytes,
}

/// Unpacks a member of `redisson_delay_queue_timeout:{...}`: a random id and the value, each behind its length.
/// `None` if it is no such member.
///
/// Redisson packs `Bc0Lc0` (one byte of length, the id, eight bytes of length, the value). Older versions packed `dLc0`
/// (an id of eight bytes). Lengths are in the byte order of the server that ran the script, which is little endian.
pub fn unpack(member: &Bytes) -> Option<RedissonEntry> {
    let id_bytes = usize::from(*member.first()?);
    let value = value_behind(member, 1 + id_bytes).or_else(|| value_behind(member, 8));
    value.map(|value| RedissonEntry { value })
}

/// The value whose length stands at `at`, if it ends where the member ends.
fn value_behind(member: &Bytes, at: usize) -> Option<Bytes> {
    let length: [u8; LENGTH_BYTES] = member.get(at..at + LENGTH_BYTES)?.try_into().ok()?;
    let begin = at + LENGTH_BYTES;
    let fits = u64::from_le_bytes(length) == (member.len() - begin) as u64;
    fits.then(|| member.slice(begin..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(id: &[u8], length: u64, value: &[u8]) -> Bytes {
        let head = [&[id.len() as u8], id, &length.to_le_bytes(), value];
        Bytes::from(head.concat())
    }

    fn value(member: &Bytes) -> Option<Vec<u8>> {
        unpack(member).map(|entry| entry.value.to_vec())
    }

    #[test]
    fn both_forms_are_unpacked_and_nothing_else() {
        assert_eq!(
            value(&packed(&[7; 16], 5, b"hello")),
            Some(b"hello".to_vec())
        );
        assert_eq!(value(&packed(&[7; 8], 0, b"")), Some(Vec::new()));
        let old = [&42.5f64.to_le_bytes()[..], &5u64.to_le_bytes(), b"hello"].concat();
        assert_eq!(value(&Bytes::from(old)), Some(b"hello".to_vec()));
        for broken in [
            packed(&[7; 16], 4, b"hello"),
            packed(&[7; 16], 6, b"hello"),
            packed(&[7; 16], u64::MAX, b"hello"),
            packed(&[7; 16], 5, b"hello").slice(..20),
            Bytes::from_static(b"order-7"),
            Bytes::from_static(b"{\"order\":7}"),
            Bytes::new(),
        ] {
            assert_eq!(value(&broken), None, "{broken:?}");
        }
    }
}
