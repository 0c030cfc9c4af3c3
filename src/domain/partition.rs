//! Partitions: the slices of the store. All keys of one partition share a Redis hash tag.

use bytes::Bytes;

use super::route::RouteName;

/// One slice of the store, `0..N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of partitions. It is fixed for the life of a store, because placement depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions(u16);

impl Partitions {
    /// A count of partitions; `None` for zero.
    pub fn new(count: u16) -> Option<Self> {
        (count > 0).then_some(Self(count))
    }

    /// The number of partitions.
    pub fn count(self) -> u16 {
        self.0
    }

    /// All partitions.
    pub fn all(self) -> impl Iterator<Item = Partition> {
        (0..self.0).map(Partition)
    }

    /// The partition of a named message. It follows from the name, so that commands find the message.
    pub fn of_name(self, route: &RouteName, id: &str) -> Partition {
        self.of(route.as_str().as_bytes(), id.as_bytes())
    }

    /// The partition of a message with a key in an ordered route, named or not. All messages of a key share it.
    pub fn of_key(self, route: &RouteName, key: &[u8]) -> Partition {
        self.of(route.as_str().as_bytes(), key)
    }

    /// The partition of a named message, with a key if its route is ordered and it has one.
    pub fn of_named(self, route: &RouteName, key: Option<&Bytes>, id: &str) -> Partition {
        match key {
            Some(key) => self.of_key(route, key),
            None => self.of_name(route, id),
        }
    }

    /// The partition of an unnamed message. It follows from the message's block of source offsets, so that a batch
    /// makes few bundles and load spreads over all partitions.
    pub fn of_block(self, source: &str, block: u64) -> Partition {
        self.of(source.as_bytes(), &block.to_be_bytes())
    }

    fn of(self, a: &[u8], b: &[u8]) -> Partition {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        hash.update(a);
        hash.update(&[0]);
        hash.update(b);
        Partition((hash.digest() % u64::from(self.0)) as u16)
    }
}
