//! What the calls about routes whose keys leave in order take and answer.
//!
//! Every bundle of such a route carries a *stamp* in its id: a number above all that were given before in its
//! partition, so stamps are the order in which messages came. A message's stamp is its bundle's and its place in
//! it; as many stamps as a bundle has messages belong to it.

use bytes::Bytes;

use crate::domain::{RouteName, UnixMs};
use crate::store::{ClaimRequest, Claimed};

/// A message's place in the order of its key: by due time, then as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// When it is due.
    pub due: UnixMs,
    /// Its stamp.
    pub stamp: u64,
}

/// A key that is held back since a message of it failed: what of it would go before the first of these goes behind
/// the last, so that the order in the store is the one in which it is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When what failed is due again, and what was put behind it too.
    pub due: UnixMs,
    /// The stamp of what failed.
    pub from: u64,
    /// The stamp of the last message that was put behind it.
    pub to: u64,
}

impl Hold {
    /// The place of what failed.
    pub fn first(&self) -> Position {
        Position { due: self.due, stamp: self.from }
    }

    /// The place of the last message behind it.
    pub fn last(&self) -> Position {
        Position { due: self.due, stamp: self.to }
    }

    /// As it stands in the store: `due from to`.
    pub(in crate::store) fn text(&self) -> String {
        format!("{} {} {}", self.due.0, self.from, self.to)
    }

    pub(in crate::store) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let due = UnixMs(parts.next()?.parse().ok()?);
        let (from, to) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { due, from, to })
    }
}

/// What to claim of an ordered route in one partition.
#[derive(Clone, Debug)]
pub struct OrderedRequest {
    /// Its shelves in the order of their slices, all of them that hold something due.
    pub claim: ClaimRequest,
    /// The look that found them went up to this moment: so must the claim, whatever the clock of its node says.
    pub until: UnixMs,
    /// The route.
    pub route: RouteName,
    /// The holder's own name: unique, and never taken up again once it may have lost a claim.
    pub holder: String,
    /// Whether it may become the holder; not while it has claims from before.
    pub may_take: bool,
    /// Keys that are held back no more.
    pub freed: Vec<Bytes>,
}

/// The answer to an [`OrderedRequest`]: bundles with their contents, or without.
#[derive(Debug)]
pub enum Ordered<C = Claimed> {
    /// It is the holder.
    Taken(Taken<C>),
    /// Another one is, or what it held is not due again yet: nothing can be claimed before so many ms, about.
    Wait(u64),
    /// It was the holder, and its time ran out.
    Lost,
}

/// What a holder claimed.
#[derive(Debug)]
pub struct Taken<C = Claimed> {
    /// In the order of their due times and stamps.
    pub claimed: Vec<C>,
    /// The first bundle that was due within the look-ahead and is left: nothing before it is.
    pub left: Option<Position>,
    /// `Some` if it has just become the holder: all keys of the route that are held back here.
    pub holds: Option<Vec<(Bytes, Hold)>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_read_as_it_was_written() {
        let hold =
            Hold { due: UnixMs(1_790_000_000_000), from: 1_790_000_000_000_123, to: 1_790_000_000_000_200 };
        assert_eq!(Hold::parse(&hold.text()), Some(hold));
        for text in ["", "1 2", "1 2 3 4", "1 2 x"] {
            assert_eq!(Hold::parse(text), None, "{text:?}");
        }
        assert!(hold.first() < hold.last());
        assert!(Position { due: UnixMs(1), stamp: 9 } < Position { due: UnixMs(2), stamp: 1 });
    }
}
