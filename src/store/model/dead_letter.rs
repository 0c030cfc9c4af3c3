//! Dead letters: their ids, and the filters and pages to list them.
//!
//! An id reads `route.reason.partition.nonce.counter`, the last three in base 36. It is unique, names the
//! partition and the reason, and needs no quoting in a path or a shell. A route's dead letters of one partition
//! lie in two dead-letter queues: failed messages, and invalid ones, which must never cost the others their
//! place.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::bundle::{base36, from_base36};
use crate::domain::{DeadReason, Entry, Partition, RouteName, TargetRef, UnixMs};
use crate::store::{Bundle, CodecError, MessageFilter, UnopenedBundle, decode, decode_outline};

/// The name of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadId {
    text: Arc<str>,
    partition: Partition,
}

impl DeadId {
    /// A new id. `unique` is `nonce.counter`.
    pub(in crate::store) fn new(
        route: &RouteName,
        reason: DeadReason,
        partition: Partition,
        unique: &str,
    ) -> Self {
        let place = base36(u64::from(partition.0));
        Self {
            text: format!("{route}.{}.{place}.{unique}", reason.as_str()).into(),
            partition,
        }
    }

    /// Parses an id of the store. `None` if the text has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let route = parts.next()?;
        let reason = parts.next()?;
        let place = parts.next()?;
        RouteName::new(route)?;
        DeadReason::parse(reason)?;
        let partition = Partition(u16::try_from(from_base36(place)?).ok()?);
        let unique = from_base36(parts.next()?).and(from_base36(parts.next()?));
        (unique.is_some() && parts.next().is_none()).then(|| Self {
            text: text.into(),
            partition,
        })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The partition that holds the dead letter.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// The route, as text.
    pub fn route(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }

    /// Why the message is dead.
    pub fn reason(&self) -> DeadReason {
        let word = self.text.split('.').nth(1).unwrap_or_default();
        DeadReason::parse(word).unwrap_or(DeadReason::Corrupt)
    }

    /// The name of its dead-letter queue.
    pub(in crate::store) fn queue(&self) -> String {
        queue_name(self.route(), self.reason().is_own_fault())
    }
}

impl fmt::Display for DeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The name of a dead-letter queue: `route`, or `route/invalid` for what is to blame itself.
pub(in crate::store) fn queue_name(route: &str, invalid: bool) -> String {
    if invalid {
        format!("{route}/invalid")
    } else {
        route.to_owned()
    }
}

/// A message for the dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The route of the message.
    pub route: RouteName,
    /// Why the message is dead.
    pub reason: DeadReason,
    /// The message. Its history ends with the reason and the error.
    pub bundle: Bundle,
    /// The content to keep instead of the message: a blob that nobody can open, or an
    /// [encoded](UnopenedBundle::encode) bundle that nobody may open.
    pub raw: Option<Bytes>,
}

impl DeadLetter {
    /// The dead letter of one message. `target` is the target that it was for.
    pub fn of(route: RouteName, reason: DeadReason, target: TargetRef, entry: Entry) -> Self {
        let bundle = Bundle {
            target,
            entries: Arc::new(vec![entry]),
        };
        Self {
            route,
            reason,
            bundle,
            raw: None,
        }
    }

    /// Reports whether nothing is kept of the message: its blob was missing.
    pub fn is_empty(&self) -> bool {
        self.raw.is_none() && self.bundle.entries.is_empty()
    }
}

/// Selects dead letters. All conditions must hold. An unset condition does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Dead letters of this route.
    pub route: Option<RouteName>,
    /// Dead letters of invalid and unpublishable messages only, or only the others.
    pub invalid: Option<bool>,
    /// Dead letters with this reason.
    pub reason: Option<DeadReason>,
    /// Dead since this moment, inclusive.
    pub from: Option<UnixMs>,
    /// Dead before this moment.
    pub to: Option<UnixMs>,
    /// What else their messages must have. One that cannot be read has nothing.
    pub message: MessageFilter,
    /// The order in which pages tell them.
    pub order: DeadOrder,
}

/// An order of dead letters, by the moment of death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadOrder {
    /// The oldest first.
    #[default]
    OldestFirst,
    /// The newest first.
    NewestFirst,
}

impl DeadFilter {
    /// Reports whether a dead-letter queue may hold selected dead letters.
    pub(in crate::store) fn includes_queue(&self, queue: &str) -> bool {
        let (route, invalid) = queue
            .strip_suffix("/invalid")
            .map_or((queue, false), |route| (route, true));
        let reason = self.reason.is_none_or(|r| r.is_own_fault() == invalid);
        let kind = self.invalid.is_none_or(|wanted| wanted == invalid);
        reason && kind && self.route.as_ref().is_none_or(|r| r.as_str() == route)
    }
}

/// A place in the order of dead letters: by the moment of death, then by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadMark {
    /// When it became a dead letter.
    pub at: UnixMs,
    /// The dead letter.
    pub id: DeadId,
}

/// Some dead letters, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPage {
    /// Their ids and times.
    pub marks: Vec<DeadMark>,
    /// The mark after which the next page continues. `None` if this was the last page. There may be more
    /// although this page has fewer than were asked for.
    pub next: Option<DeadMark>,
}

/// The kept content of a dead letter.
#[derive(Clone, Debug)]
pub struct DeadBody {
    /// Bytes that it takes in the store.
    pub bytes: usize,
    /// The message, as a bundle of one (of none if its blob was missing), or why it cannot be read.
    pub bundle: Result<Bundle, CodecError>,
    /// The length of the body of its first message, bytes.
    pub size: usize,
    /// The bundle that is kept unopened. `bundle` is [`CodecError::Poison`] then.
    pub unopened: Option<UnopenedBundle>,
}

impl DeadBody {
    /// Reads the content of a dead letter. Does not open a bundle that was kept unopened.
    pub(in crate::store) fn read(content: &Bytes) -> Self {
        let unopened = UnopenedBundle::read(content);
        let bundle = if unopened.is_some() {
            Err(CodecError::Poison)
        } else {
            decode(content)
        };
        let size = bundle
            .as_ref()
            .ok()
            .and_then(|bundle| bundle.entries.first());
        let size = size.map_or(0, |entry| entry.message.body_len());
        Self {
            bytes: content.len(),
            bundle,
            size,
            unopened,
        }
    }

    /// The same without opening bodies: each body that is there is empty.
    pub(in crate::store) fn read_outline(content: &Bytes) -> Self {
        let unopened = UnopenedBundle::read(content);
        let outline = if unopened.is_some() {
            Err(CodecError::Poison)
        } else {
            decode_outline(content)
        };
        let size = outline
            .as_ref()
            .ok()
            .and_then(|outline| outline.sizes.first())
            .copied()
            .unwrap_or_default();
        Self {
            bytes: content.len(),
            bundle: outline.map(|outline| outline.bundle),
            size,
            unopened,
        }
    }

    /// The messages for a redrive. Opens a bundle that was kept unopened.
    pub fn open(&self) -> Result<Bundle, CodecError> {
        self.unopened
            .as_ref()
            .map_or_else(|| self.bundle.clone(), UnopenedBundle::open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::InvalidReason;

    #[test]
    fn an_id_says_where_it_lies_and_why() {
        let route = RouteName::new("orders-eu").expect("valid");
        let id = DeadId::new(
            &route,
            DeadReason::Invalid(InvalidReason::TooBig),
            Partition(37),
            "k3x.1z",
        );
        assert_eq!(id.as_str(), "orders-eu.too_big.11.k3x.1z");
        assert_eq!(DeadId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(
            (id.partition(), id.queue()),
            (Partition(37), "orders-eu/invalid".to_owned())
        );
        let failed = DeadId::new(&route, DeadReason::Attempts, Partition(0), "k3x.1z");
        assert_eq!(failed.queue(), "orders-eu");
        for none in [
            "",
            "orders",
            "orders.attempts.0.k.",
            "orders.attempts.0.k.1.1",
            "orders.because.0.k.1",
            "Orders.attempts.0.k.1",
            "orders.attempts.zzzz.k.1",
            "orders.attempts.0.K.1",
        ] {
            assert_eq!(DeadId::parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_filter_knows_the_queues_that_it_needs() {
        let queues = |filter: &DeadFilter| {
            let all = ["a", "a/invalid", "b", "b/invalid"];
            all.into_iter()
                .filter(|queue| filter.includes_queue(queue))
                .collect::<Vec<_>>()
        };
        let all = DeadFilter::default();
        assert_eq!(queues(&all).len(), 4);
        let route = RouteName::new("b");
        assert_eq!(
            queues(&DeadFilter {
                route,
                ..all.clone()
            }),
            ["b", "b/invalid"]
        );
        let reason = Some(DeadReason::Attempts);
        assert_eq!(
            queues(&DeadFilter {
                reason,
                ..all.clone()
            }),
            ["a", "b"]
        );
        assert_eq!(
            queues(&DeadFilter {
                invalid: Some(true),
                ..all
            }),
            ["a/invalid", "b/invalid"]
        );
    }
}
