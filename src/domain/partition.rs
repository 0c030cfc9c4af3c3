//! Partitions: the slices of the store. All keys of one share a Redis hash tag.

use super::route::RouteName;

/// One slice of the store, `0..N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How many there are; fixed for a store's life. Placement is a function of it, so it is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions(u16);

impl Partitions {
    /// A count of partitions; `None` for zero.
    pub fn new(count: u16) -> Option<Self> {
        (count > 0).then_some(Self(count))
    }

    /// How many.
    pub fn count(self) -> u16 {
        self.0
    }

    /// Each of them.
    pub fn all(self) -> impl Iterator<Item = Partition> {
        (0..self.0).map(Partition)
    }

    /// Where a named message of a route lives: with its name, so that its commands find it.
    pub fn of_name(self, route: &RouteName, id: &str) -> Partition {
        self.of(route.as_str().as_bytes(), id.as_bytes())
    }

    /// Where a message with a key lives on a route whose keys leave in order, named or not: with all others of
    /// its key.
    pub fn of_key(self, route: &RouteName, key: &[u8]) -> Partition {
        self.of(route.as_str().as_bytes(), key)
    }

    /// Where an unnamed message lives: with its block of source offsets, so that a batch makes few
    /// bundles and load spreads over all partitions.
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
