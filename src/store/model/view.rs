//! Answers to queries: single messages, pages of messages, counts, histograms.

use crate::domain::{Entry, Partition, RouteName, TargetRef, Text, UnixMs};

/// Where a message of the store stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// It waits for its due time.
    Pending,
    /// It is claimed: being published, or about to be.
    InFlight,
    /// Its target has confirmed it; the rest of its bundle is still here.
    Published,
}

/// A message of the store.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its route's name; it may be one that is no longer configured.
    pub route: String,
    /// Its name, or its `~` id.
    pub id: Text,
    /// Where it stands.
    pub state: MessageState,
    /// Which message it is, as it is now: another text once it was moved, replaced, or failed and waits anew.
    /// ASCII without spaces or quotes.
    pub version: Text,
    /// Its target.
    pub target: TargetRef,
    /// The message.
    pub entry: Entry,
}

/// A place in the order of what waits: by due time, then by where it lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrowseKey {
    /// When it is due.
    pub due: UnixMs,
    /// Which slice of the store.
    pub partition: Partition,
    /// Its bundle's id; before all of a partition: empty.
    pub bundle: String,
    /// Its place in the bundle.
    pub index: u32,
}

impl BrowseKey {
    /// Before all that is due at a moment.
    pub fn at(due: UnixMs) -> Self {
        Self { due, partition: Partition(0), bundle: String::new(), index: 0 }
    }
}

/// Which messages to browse.
#[derive(Clone, Debug)]
pub struct BrowseQuery {
    /// Of this route only.
    pub route: Option<RouteName>,
    /// Due at this moment or later.
    pub from: UnixMs,
    /// Due at this moment or earlier.
    pub to: UnixMs,
    /// Behind this one.
    pub after: Option<BrowseKey>,
    /// So many at most; at least 1.
    pub limit: usize,
}

/// A part of what waits.
#[derive(Clone, Debug)]
pub struct Browsed {
    /// In due order.
    pub found: Vec<Found>,
    /// Where to go on; `None`: there is no more.
    pub next: Option<BrowseKey>,
}

/// How much falls due when. Bundles are counted whole, by their first due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// When it was taken, by Redis's clock; the windows begin here.
    pub now: UnixMs,
    /// Whether all was read; else it is an estimate from some partitions.
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

/// How one partition stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Which slice of the store.
    pub partition: Partition,
    /// Messages pending and in flight.
    pub messages: i64,
    /// Bytes of their bundles.
    pub bytes: i64,
    /// Dead letters.
    pub dead: i64,
    /// Bundles that are claimed.
    pub claims: u64,
    /// The earliest due time of what is pending.
    pub head: Option<UnixMs>,
}

/// A route's counts, over all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages pending and in flight.
    pub messages: i64,
    /// Bytes of their bundles.
    pub bytes: i64,
    /// Dead letters, invalid ones included.
    pub dead: i64,
    /// Their bytes.
    pub dead_bytes: i64,
    /// Those of them whose message was invalid.
    pub invalid: i64,
    /// Their bytes.
    pub invalid_bytes: i64,
}
