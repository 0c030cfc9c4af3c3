//! Answers to queries: single messages, pages of messages, counts, histograms.

use memchr::memmem;

use crate::domain::{Entry, KafkaPosition, Partition, RouteName, TargetRef, Text, UnixMs};
use crate::store::model::bundle::put_base36;

/// The state of a message in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredState {
    /// The message waits for its due time.
    Pending,
    /// The message is claimed: being published, or about to be.
    InFlight,
    /// The target has confirmed the message. The rest of its bundle is still here.
    Published,
}

/// A message of the store.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// The name of the route. It may be one that is no longer configured.
    pub route: String,
    /// The message's name, or its `~` id.
    pub id: Text,
    /// The state of the message.
    pub state: StoredState,
    /// Identifies this very message: the text changes when the message is moved, replaced, or failed and waits
    /// anew, and not when it changes its bundle. ASCII without spaces or quotes.
    pub version: Text,
    /// The target as `x-delay-target` wrote it. Empty for the route's own target.
    pub target: TargetRef,
    /// The length of its body, bytes.
    pub size: usize,
    /// The message. Its body was not opened: it is empty where the message has one. `size` tells its length.
    pub entry: Entry,
}

/// The version of a message whose body has this many bytes. One that takes its place came at another moment or from another
/// position.
pub(in crate::store) fn version_of(entry: &Entry, size: usize) -> Text {
    let mut version = Vec::with_capacity(48);
    let mut put = |n: u64| {
        put_base36(&mut version, n);
        version.push(b'.');
    };
    put(entry.due.0 as u64);
    put(entry.request.map_or(0, |request| request.received.0 as u64));
    if let Some(KafkaPosition { partition, offset }) = entry.position {
        put(partition as u64);
        put(offset as u64);
    }
    put(u64::from(entry.handouts));
    put(u64::from(entry.failures));
    put_base36(&mut version, size as u64);
    Text::from_utf8(version.into()).unwrap_or_default()
}

/// A place in the order of waiting messages: by due time, then by location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrowseKey {
    /// The due time of the message, or the later moment until which its bundle was put off.
    pub due: UnixMs,
    /// The partition of the store.
    pub partition: Partition,
    /// The bundle's id. Empty: before all bundles of the partition.
    pub bundle: String,
    /// The place in the bundle.
    pub index: u32,
}

impl BrowseKey {
    /// The first place of a moment: every message due then or later lies behind it.
    pub fn start_of(due: UnixMs) -> Self {
        Self {
            due,
            partition: Partition(0),
            bundle: String::new(),
            index: 0,
        }
    }
}

/// Selects the messages to browse.
#[derive(Clone, Debug)]
pub struct BrowseQuery {
    /// Messages of this route only.
    pub route: Option<RouteName>,
    /// Due at this moment or later.
    pub from: UnixMs,
    /// Due at this moment or earlier.
    pub to: UnixMs,
    /// Messages behind this place only.
    pub after: Option<BrowseKey>,
    /// Most messages to return. At least 1.
    pub limit: usize,
    /// What else a message must have.
    pub filter: MessageFilter,
}

/// What a message must have. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// The beginning of its id.
    pub id_prefix: Option<String>,
    /// Its whole key.
    pub key: Option<String>,
    /// Headers: a name, in any case, and its whole value.
    pub headers: Vec<(String, String)>,
    /// Bytes somewhere in its body.
    pub contains: Option<String>,
}

impl MessageFilter {
    /// Reports whether it lets every message through.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether it looks into bodies.
    pub fn needs_bodies(&self) -> bool {
        self.contains.is_some()
    }

    /// Reports whether it lets the message of this id through.
    pub fn lets_through(&self, id: &str, entry: &Entry) -> bool {
        let message = &entry.message;
        if let Some(prefix) = &self.id_prefix
            && !id.starts_with(prefix.as_str())
        {
            return false;
        }
        if let Some(key) = &self.key
            && message.key.as_deref() != Some(key.as_bytes())
        {
            return false;
        }
        for (name, value) in &self.headers {
            let has_header = message.headers.iter().any(|header| {
                let own = header.value.plain();
                header.name.as_str().eq_ignore_ascii_case(name)
                    && own.as_deref() == Some(value.as_bytes())
            });
            if !has_header {
                return false;
            }
        }
        if let Some(wanted) = &self.contains {
            let body = message.body.as_deref().unwrap_or_default();
            return memmem::find(body, wanted.as_bytes()).is_some();
        }
        true
    }
}

/// A page of waiting messages.
#[derive(Clone, Debug)]
pub struct MessagePage {
    /// The messages, in due order.
    pub found: Vec<StoredMessage>,
    /// Where the next page begins. `None`: there is no more.
    pub next: Option<BrowseKey>,
    /// Number of messages that were looked at.
    pub scanned: usize,
}

/// A place in the list of messages that wait to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryMark {
    /// The partition of the store.
    pub partition: Partition,
    /// The moment for which the oldest message of the bundle was asked.
    pub asked: UnixMs,
    /// The bundle's id.
    pub bundle: String,
    /// The place in the bundle of the last message that was looked at; `u32::MAX`: all of them were.
    pub index: u32,
}

/// A page of messages that wait to be tried again.
#[derive(Clone, Debug)]
pub struct RetryPage {
    /// The messages.
    pub found: Vec<StoredMessage>,
    /// Where the next page goes on. `None`: there is no more.
    pub next: Option<RetryMark>,
}

/// How many messages fall due when. Bundles are counted whole, by their first due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueHistogram {
    /// The time of the count, by Redis's clock. The windows begin here.
    pub now: UnixMs,
    /// Set if everything was read. Otherwise the numbers are estimated from a part of it.
    pub exact: bool,
    /// Messages whose due time has passed.
    pub overdue: u64,
    /// Messages of each second of the next minute.
    pub minute: Vec<u64>,
    /// Messages of each minute of the next hour.
    pub hour: Vec<u64>,
    /// Messages of each hour of the next day.
    pub day: Vec<u64>,
}

/// Messages that wait, by day, of the next 30 days but for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueMonth {
    /// Set if everything was read.
    pub exact: bool,
    /// Messages of each day from the second on.
    pub later_days: Vec<u64>,
}

/// The numbers of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// The partition of the store.
    pub partition: Partition,
    /// Messages pending and in flight.
    pub messages: i64,
    /// Bytes of their bundles.
    pub bytes: i64,
    /// Dead letters.
    pub dead: i64,
    /// Bundles that are claimed.
    pub claims: u64,
    /// The earliest due time of the pending bundles.
    pub head: Option<UnixMs>,
}

/// A route's counts, over all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages pending and in flight.
    pub messages: i64,
    /// Bytes of their bundles.
    pub bytes: i64,
    /// Delivered names that are remembered.
    pub names: i64,
    /// Dead letters, invalid ones included.
    pub dead: i64,
    /// Bytes of the dead letters.
    pub dead_bytes: i64,
    /// Dead letters whose message itself is to blame: invalid, too large for its target, or unpublishable.
    pub invalid: i64,
    /// Bytes of those.
    pub invalid_bytes: i64,
}

/// Bytes that a delivered name takes in Redis, about: its entry of a sorted set, and a name of a common length.
const NAME_BYTES: i64 = 200;

impl Counts {
    /// Bytes of what waits, of what is in flight and of the names that are remembered.
    pub fn pending_bytes(&self) -> u64 {
        self.names
            .saturating_mul(NAME_BYTES)
            .saturating_add(self.bytes)
            .max(0) as u64
    }
}
