//! Bundles and their ids.
//!
//! An id reads `route/slice/nonce.counter.count`, the last four in base 36. It is unique for each attempt (a
//! replica's random nonce and a counter) and never derived from content. It carries what scripts must know
//! without opening the blob: the route, the time slice (and so the key of the due set), and the number of
//! messages. A message without a name of its own is named after its bundle and its place in it:
//! `~due.partition.nonce.counter.count.index`. The bundle's id can be made again from that.
//!
//! A *growing bundle* takes in named messages that are due much later, one after another, until its span is near. Then
//! its messages are spread over bundles of their own moments, which are published as all others are. Its slice is `+`, its
//! count the number of its places. So many messages share what a bundle costs, and each can be cancelled until it is near.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::domain::limits::BUNDLE_MESSAGES;
use crate::domain::{Entry, Message, Origin, Partition, RouteName, TargetRef, Text, UnixMs};

/// Width of a time slice: 2^20 ms, about 17 minutes. It bounds the size of every due set.
const SLICE_BITS: u32 = 20;

/// Digits of a sequence number, so that the texts sort as the numbers do.
const SEQUENCE_DIGITS: usize = 13;

/// The time slice that a due time lies in.
pub fn slice_of(due: UnixMs) -> u64 {
    (due.0.max(0) as u64) >> SLICE_BITS
}

/// The beginning of a time slice. The end of time for slices beyond it.
pub(in crate::store) fn slice_start(slice: u64) -> UnixMs {
    UnixMs(
        i64::try_from(slice.min(i64::MAX as u64 >> SLICE_BITS) << SLICE_BITS).unwrap_or(i64::MAX),
    )
}

/// The entry of the key `shelves` for a due set whose first bundle is due at this time, ms.
pub(in crate::store) fn place_of(due_set: &str, due: f64) -> String {
    let (route, slice) = due_set
        .find('/')
        .map_or((due_set, ""), |at| due_set.split_at(at));
    format!("{route}/{due:016.0}{slice}")
}

/// Reads an entry of the key `shelves`, `route/due/slice`: the due set, and when its first bundle is due.
pub(in crate::store) fn due_set_at(place: &str) -> Option<(String, UnixMs)> {
    let (route, rest) = place.split_once('/')?;
    let (due, slice) = rest.split_once('/')?;
    Some((format!("{route}/{slice}"), UnixMs(due.parse().ok()?)))
}

/// What stands for the slice in the id of a growing bundle.
const GROWING: &str = "+";
/// Places of a growing bundle.
pub(in crate::store) const GROWING_PLACES: usize = 256;
/// How long before its span begins a growing bundle is due: time to spread it, ms.
pub(in crate::store) const SPREAD_AHEAD_MS: i64 = 30_000;
/// Longest span of a growing bundle, ms.
pub(in crate::store) const GROWING_SPAN_MS: i64 = 1 << 17;

/// The due time of a place in a growing bundle whose message is gone. No message can have it.
pub(in crate::store) const NO_DUE: UnixMs = UnixMs(i64::MIN);

/// What stands for a message that is gone from a growing bundle.
pub(in crate::store) fn gone_entry() -> Entry {
    let message = Message {
        origin: Origin::Kafka,
        key: None,
        body: None,
        headers: Vec::new(),
        properties: None,
    };
    Entry::new(NO_DUE, message)
}

/// True for the place of a message that is gone.
pub(in crate::store) fn is_gone(entry: &Entry) -> bool {
    entry.due == NO_DUE
}

/// The due set of a route's growing bundles.
pub(in crate::store) fn growing_due_set(route: &str) -> String {
    format!("{route}/{GROWING}")
}

/// True for a bundle, or a due set, of a route.
pub(in crate::store) fn is_of_route(name: &str, route: &str) -> bool {
    name.split_once('/').is_some_and(|(of, _)| of == route)
}

/// True for a due set of growing bundles.
pub(in crate::store) fn is_of_growing(due_set: &str) -> bool {
    due_set.rsplit('/').next() == Some(GROWING)
}

/// The earliest moment at which a message of a due set may be due, by the score of a bundle there, or of the due set in an
/// index.
pub(in crate::store) fn first_message_due(due_set: &str, score: i64) -> UnixMs {
    let ahead_ms = if is_of_growing(due_set) {
        SPREAD_AHEAD_MS
    } else {
        0
    };
    UnixMs(score.saturating_add(ahead_ms))
}

/// The name of a bundle.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BundleId(Arc<str>);

impl BundleId {
    /// A new id. `unique` is `nonce.counter`.
    pub(in crate::store) fn new(route: &RouteName, slice: u64, unique: &str, count: usize) -> Self {
        Self(
            format!(
                "{route}/{}/{unique}.{}",
                base36(slice),
                base36(count as u64)
            )
            .into(),
        )
    }

    /// A new id of a growing bundle.
    pub(in crate::store) fn growing(route: &RouteName, unique: &str) -> Self {
        let places = base36(GROWING_PLACES as u64);
        Self(format!("{route}/{GROWING}/{unique}.{places}").into())
    }

    /// True for a growing bundle.
    pub fn is_growing(&self) -> bool {
        is_of_growing(self.due_set())
    }

    /// The type of its key in Redis.
    pub(in crate::store) fn kind(&self) -> &'static str {
        if self.is_growing() { "list" } else { "string" }
    }

    /// A new id on an ordered route. Among bundles that are due at one moment, the one with the lower sequence
    /// number comes first in the due set too.
    pub(in crate::store) fn sequenced(
        route: &RouteName,
        slice: u64,
        sequence: u64,
        count: usize,
    ) -> Self {
        let unique = base36(fastrand::u64(..1 << 52));
        let slice = base36(slice);
        let sequence = base36(sequence);
        let count = base36(count as u64);
        Self(format!("{route}/{slice}/{sequence:0>SEQUENCE_DIGITS$}.{unique}.{count}").into())
    }

    /// The sequence number of the first message, if the route is an ordered one.
    pub fn sequence(&self) -> u64 {
        self.unique()
            .split('.')
            .next()
            .and_then(from_base36)
            .unwrap_or_default()
    }

    /// Parses an id of the store. `None` if the text has another form, or says more messages than any bundle has:
    /// whoever reads an id allocates that many places.
    pub fn parse(text: &str) -> Option<Self> {
        let (due_set, unique) = text.rsplit_once('/')?;
        let (route, slice) = due_set.split_once('/')?;
        RouteName::new(route)?;
        if slice != GROWING {
            from_base36(slice)?;
        }
        let mut parts = unique.split('.');
        let nonce = parts.next()?;
        let counter = parts.next()?;
        let count = parts.next()?;
        from_base36(nonce).and(from_base36(counter))?;
        let whole =
            parts.next().is_none() && (1..=BUNDLE_MESSAGES as u64).contains(&from_base36(count)?);
        whole.then(|| Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The route, as text.
    pub fn route(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    /// `route/slice`: the member of the index, and the end of the due set's key.
    pub fn due_set(&self) -> &str {
        self.0.rfind('/').map_or("", |at| &self.0[..at])
    }

    /// The number of messages in the bundle, gone ones included.
    pub fn count(&self) -> usize {
        self.0.rsplit('.').next().and_then(from_base36).unwrap_or(0) as usize
    }

    fn unique(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The `~` id of the message at `index`, due at `due`.
    pub fn message_id(&self, partition: Partition, index: usize, due: UnixMs) -> Text {
        let mut id = Vec::with_capacity(40);
        self.put_message_id(&mut id, partition, index, due);
        Text::from_utf8(id.into()).unwrap_or_default()
    }

    /// The name under which each message is published: its own, or its `~` id. All names share one allocation.
    pub fn message_ids(&self, partition: Partition, entries: &[Entry]) -> Vec<Text> {
        let mut made = Vec::with_capacity(40 * entries.len());
        let mut places = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let start = made.len();
            if entry.id.is_none() {
                self.put_message_id(&mut made, partition, index, entry.due);
            }
            places.push(start..made.len());
        }
        let made = Bytes::from(made);
        let mut names = Vec::with_capacity(entries.len());
        for (entry, place) in entries.iter().zip(places) {
            names.push(match &entry.id {
                Some(own) => own.clone(),
                None => Text::from_utf8(made.slice(place)).unwrap_or_default(),
            });
        }
        names
    }

    fn put_message_id(&self, out: &mut Vec<u8>, partition: Partition, index: usize, due: UnixMs) {
        out.push(b'~');
        put_base36(out, due.0.max(0) as u64);
        out.push(b'.');
        put_base36(out, u64::from(partition.0));
        out.push(b'.');
        out.extend_from_slice(self.unique().as_bytes());
        out.push(b'.');
        put_base36(out, index as u64);
    }
}

/// The partition that this `~` id says, whether its message got it in a bundle or on its way past the store.
pub(in crate::store) fn partition_in(id: &str) -> Option<Partition> {
    let partition = id.strip_prefix('~')?.split('.').nth(1)?;
    u16::try_from(from_base36(partition)?).ok().map(Partition)
}

/// The first place of the message with this `~` id: the inverse of [`BundleId::message_id`].
pub(in crate::store) fn place_in(
    route: &RouteName,
    id: &str,
) -> Option<(Partition, BundleId, u32)> {
    let parts: Vec<&str> = id.strip_prefix('~')?.split('.').collect();
    let [due, partition, nonce, counter, count, index] = parts[..] else {
        return None;
    };
    let due = i64::try_from(from_base36(due)?).ok()?;
    let partition = Partition(u16::try_from(from_base36(partition)?).ok()?);
    let index = u32::try_from(from_base36(index)?).ok()?;
    let slice = base36(slice_of(UnixMs(due)));
    let bundle = BundleId::parse(&format!("{route}/{slice}/{nonce}.{counter}.{count}"))?;
    ((index as usize) < bundle.count()).then_some((partition, bundle, index))
}

impl fmt::Debug for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The content of a blob: messages with one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// The target's name as `x-delay-target` wrote it. Empty for the route's own target.
    pub target: TargetRef,
    /// The messages, in order of delivery. Shared, because they are published from here.
    pub entries: Arc<Vec<Entry>>,
}

impl Bundle {
    /// The earliest due time of its messages.
    pub fn first_due(&self) -> UnixMs {
        let dues = self.entries.iter().filter(|entry| !is_gone(entry));
        dues.map(|e| e.due).min().unwrap_or_default()
    }
}

/// A number in base 36, lower case.
pub(in crate::store) fn base36(n: u64) -> String {
    let mut digits = Vec::with_capacity(13);
    put_base36(&mut digits, n);
    String::from_utf8(digits).unwrap_or_default()
}

pub(in crate::store) fn put_base36(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 13];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdefghijklmnopqrstuvwxyz"[(n % 36) as usize];
        n /= 36;
        if n == 0 {
            return out.extend_from_slice(&digits[at..]);
        }
    }
}

/// Parses the output of [`base36`]: lower case, no sign.
pub(in crate::store) fn from_base36(text: &str) -> Option<u64> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    plain.then(|| u64::from_str_radix(text, 36).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any text in the place of an id is refused, or names a count that can be allocated.
    #[test]
    fn no_id_says_a_count_that_there_is_no_room_for() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let count = rng.u64(..) >> rng.u32(..64);
            let text = format!(
                "orders/{}/n.1.{}",
                base36(rng.u64(..1 << 30)),
                base36(count)
            );
            let counted = BundleId::parse(&text).map(|id| id.count() as u64);
            assert_eq!(
                counted,
                (1..=BUNDLE_MESSAGES as u64)
                    .contains(&count)
                    .then_some(count),
                "{text}"
            );
            let mut junk = text.into_bytes();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..junk.len());
                junk[at] = rng.u8(b' '..=b'~');
            }
            let junk = String::from_utf8(junk).expect("ASCII");
            assert!(
                BundleId::parse(&junk).is_none_or(|id| (1..=BUNDLE_MESSAGES).contains(&id.count())),
                "{junk}"
            );
        }
    }

    #[test]
    fn an_id_carries_route_shelf_and_count() {
        let route = RouteName::new("orders-eu").expect("valid");
        let id = BundleId::new(&route, slice_of(UnixMs(1_790_000_000_000)), "k3x.1z", 37);
        assert_eq!(BundleId::parse(id.as_str()), Some(id.clone()));
        assert_eq!((id.route(), id.count()), ("orders-eu", 37));
        assert_eq!(
            id.due_set(),
            format!("orders-eu/{}", base36(1_790_000_000_000 >> 20))
        );
        assert_eq!(BundleId::parse("orders/xyz"), None);
        for not_an_id in [
            "",
            "Orders/0/n.1.1",
            "orders/0/n.1.0",
            "orders/0/n.1.dx",
            "orders/0/n.1.mh35",
            "orders/0/n.1.zzzzzzzzz",
            "orders/0/n.1.3w5e11264sgsf",
            "orders/0/n.1",
            "orders/0/n.1.1.1",
            "orders/0/N.1.1",
            "orders//n.1.1",
        ] {
            assert_eq!(BundleId::parse(not_an_id), None, "{not_an_id}");
        }
        assert_eq!(
            id.message_id(Partition(35), 3, UnixMs(36)).as_str(),
            "~10.z.k3x.1z.11.3"
        );
        let due = UnixMs(1_790_000_000_007);
        let message = id.message_id(Partition(35), 36, due);
        assert_eq!(
            place_in(&route, message.as_str()),
            Some((Partition(35), id.clone(), 36))
        );
        let behind_its_end = id.message_id(Partition(35), 37, due);
        for not_a_place in [
            "",
            "~",
            "~1.2",
            "~k3x.1z",
            "order-7",
            behind_its_end.as_str(),
            "~Z.0.n.1.1.0",
        ] {
            assert_eq!(place_in(&route, not_a_place), None, "{not_a_place}");
        }
    }
}
