//! Requests and answers of the calls about ordered routes, whose messages of one key leave in order.
//!
//! The id of every bundle of such a route carries a *sequence number*, which is above all that were given
//! before in its partition. The sequence numbers are therefore the order in which messages came. A message's
//! sequence number is that of its bundle plus its place in it. A bundle owns as many sequence numbers as it has
//! messages.

use bytes::Bytes;

use crate::domain::{RouteName, UnixMs};
use crate::store::{ClaimAnswer, ClaimRequest};

/// A message's place in the order of its key: by due time, then by sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderPosition {
    /// The due time of the message.
    pub due: UnixMs,
    /// The sequence number of the message.
    pub sequence: u64,
}

/// A key whose message failed. A later message of the key that would go before the failed one goes behind the
/// last one instead. So the order in the store is the order in which the messages are to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// When the failed message is due again, and the messages that were put behind it.
    pub due: UnixMs,
    /// The sequence number of the failed message.
    pub from: u64,
    /// The sequence number of the last message that was put behind it.
    pub to: u64,
}

impl HeldKey {
    /// The place of the failed message.
    pub fn first(&self) -> OrderPosition {
        OrderPosition {
            due: self.due,
            sequence: self.from,
        }
    }

    /// The place of the last message behind it.
    pub fn last(&self) -> OrderPosition {
        OrderPosition {
            due: self.due,
            sequence: self.to,
        }
    }

    /// The stored form: `due from to`.
    pub(in crate::store) fn text(&self) -> String {
        format!("{} {} {}", self.due.0, self.from, self.to)
    }

    pub(in crate::store) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let due = UnixMs(parts.next()?.parse().ok()?);
        let from = parts.next()?.parse().ok()?;
        let to = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { due, from, to })
    }
}

/// A request to claim bundles of an ordered route in one partition.
#[derive(Clone, Debug)]
pub struct OrderedRequest {
    /// The due sets of the route in the order of their slices: all that hold something due.
    pub claim: ClaimRequest,
    /// The moment up to which the due sets were read. The claim must reach as far, whatever the clock of its
    /// node says.
    pub until: UnixMs,
    /// The route.
    pub route: RouteName,
    /// The owner's name: unique, and never used again once the owner may have lost a claim.
    pub owner: String,
    /// Set if the caller may become the owner. It may not while it has claims from before.
    pub may_take: bool,
    /// The longest lease of a replica, ms. A deadline further ahead was written by another clock.
    pub longest_lease_ms: u64,
    /// Keys that are no longer held, with the holds that ended. A key that was held again since stays held.
    pub freed: Vec<(Bytes, HeldKey)>,
}

/// The answer to an [`OrderedRequest`]: bundles with or without their contents.
#[derive(Debug)]
pub enum OrderedAnswer {
    /// The caller is the owner, and these are its claims.
    Claimed(OrderedClaims),
    /// Another one is the owner, or its bundles are not due again yet: retry after about this many ms.
    Wait(u64),
    /// The caller was the owner, and its time ran out.
    Lost,
}

/// Bundles that the owner of an ordered route claimed.
#[derive(Debug)]
pub struct OrderedClaims {
    /// The bundles, in the order of their due times and sequence numbers.
    pub claimed: Vec<ClaimAnswer>,
    /// The first bundle that was due within the lookahead and is left. Nothing before it is left.
    pub left: Option<OrderPosition>,
    /// `Some` if the caller has just become the owner: all held keys of the route in this partition.
    pub held_keys: Option<Vec<(Bytes, HeldKey)>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_read_as_it_was_written() {
        let hold = HeldKey {
            due: UnixMs(1_790_000_000_000),
            from: 1_790_000_000_000_123,
            to: 1_790_000_000_000_200,
        };
        assert_eq!(HeldKey::parse(&hold.text()), Some(hold));
        for text in ["", "1 2", "1 2 3 4", "1 2 x"] {
            assert_eq!(HeldKey::parse(text), None, "{text:?}");
        }
        assert!(hold.first() < hold.last());
        assert!(
            OrderPosition {
                due: UnixMs(1),
                sequence: 9
            } < OrderPosition {
                due: UnixMs(2),
                sequence: 1
            }
        );
    }
}
