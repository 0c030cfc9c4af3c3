//! What the store's calls take and answer.

use std::sync::Arc;

use bytes::Bytes;

use crate::domain::{DeadReason, Entry, OnDuplicate, Partition, RouteName, Text, UnixMs};

use super::{Bundle, BundleId, CodecError, DeadId, Hold};

/// One thing for the store to do, in order of delivery.
#[derive(Clone, Debug)]
pub enum WriteOp {
    /// Keep these until they are due. All of one partition, one target, and one time slice; named
    /// messages live where their names do.
    Store {
        /// Their route.
        route: RouteName,
        /// What becomes of a name that is pending already.
        on_duplicate: OnDuplicate,
        /// The messages.
        bundle: Bundle,
    },
    /// Cancel a pending message by its name, or by its `~` id.
    Cancel {
        /// Its route.
        route: RouteName,
        /// Its name.
        id: Text,
        /// Only this message; another one of the same name is left alone: `Unknown`.
        of: Option<Meant>,
    },
    /// Move a pending message to another moment.
    Reschedule {
        /// Its route.
        route: RouteName,
        /// Its name.
        id: Text,
        /// The new moment.
        due: UnixMs,
        /// One entry: the message to be stored if the name is unknown. `None`: then nothing is stored.
        fallback: Option<Bundle>,
        /// Only this message, as with [`WriteOp::Cancel`].
        of: Option<Meant>,
    },
    /// Keep a message for a person.
    Bury(DeadLetter),
}

/// Which message of a name a command is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    /// The one that was read there: partition and offset in Kafka.
    ReadAt((i32, i64)),
    /// The one that was found so, unchanged: [`Found::version`].
    Seen(Text),
}

/// A message for the dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its route.
    pub route: RouteName,
    /// Why.
    pub reason: DeadReason,
    /// The message; its history ends with the reason and the error.
    pub bundle: Bundle,
    /// A blob that nobody can or may open is kept as it is, instead.
    pub raw: Option<Bytes>,
}

impl DeadLetter {
    /// Whether nothing is kept of it: its blob was not there.
    pub fn is_empty(&self) -> bool {
        self.raw.is_none() && self.bundle.entries.is_empty()
    }
}

/// What became of one message or command of a [`WriteOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteResult {
    /// It is in the store.
    Stored,
    /// It is in the store, in the place of the pending one of its name.
    Replaced,
    /// One of its name is pending, or, where the route remembers, in flight or delivered: that one stays.
    Duplicate,
    /// The message will not be published.
    Cancelled,
    /// The message is being published right now.
    InFlight,
    /// The message has its new moment.
    Rescheduled,
    /// Too late to move it; nothing was stored.
    TooLate,
    /// No pending message has this name.
    Unknown,
    /// The message was published; its name is remembered.
    Published,
}

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
    /// Its target as `x-delay-target` wrote it; empty for the route's own.
    pub target: Text,
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

/// What to claim from one partition.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Which slice of the store.
    pub partition: Partition,
    /// `route/slice` and how many messages at most of it, in the order to be served.
    pub shelves: Vec<(String, u32)>,
    /// How far ahead of Redis's time.
    pub lookahead_ms: i64,
    /// How long the claim holds.
    pub lease_ms: u64,
    /// Bundles at most, over all shelves.
    pub max_bundles: usize,
}

/// A claim's right: the token that settles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which slice of the store.
    pub partition: Partition,
    /// Which bundle.
    pub id: BundleId,
    /// Its holder's nonce and counter: unique, never a time.
    pub token: Arc<str>,
}

/// A claimed bundle.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The right to settle it.
    pub claim: Claim,
    /// When it fell due, by its entry.
    pub due: UnixMs,
    /// How often a claim on it expired.
    pub expiries: u32,
    /// How often it was opened since it expired twice, this time included; 0 if it never did.
    pub opened: u32,
    /// Indexes that are not to be published: cancelled, moved, suppressed, or confirmed already.
    pub skip: Vec<bool>,
    /// The messages, or why they cannot be read. `Err(None)`: the blob is not there.
    pub bundle: Result<Bundle, Option<CodecError>>,
    /// The blob, as it lay in the store; empty if it was not there.
    pub blob: Bytes,
}

/// A bundle of which every message is confirmed or gone.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The right to it.
    pub claim: Claim,
    /// The names in it and their places, to be freed.
    pub names: Vec<(Text, u32)>,
    /// The producers' names that are confirmed, to be remembered if the route does so.
    pub delivered: Vec<Text>,
}

/// What became of a claimed bundle so far.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The right to it.
    pub claim: Claim,
    /// Which of its messages are confirmed; `None`: no more than the store was told already.
    pub confirmed: Option<Vec<bool>>,
    /// The producers' names among these, to be remembered if the route does so.
    pub delivered: Vec<Text>,
}

/// A bundle of which something remains.
#[derive(Clone, Debug)]
pub struct Division {
    /// The right to it.
    pub claim: Claim,
    /// Which messages are confirmed.
    pub confirmed: Vec<bool>,
    /// The producers' names among these, to be remembered if the route does so.
    pub delivered: Vec<Text>,
    /// Names of what is confirmed, gone or dead, and their places: to be freed.
    pub freed: Vec<(Text, u32)>,
    /// What goes back, or is held on.
    pub remainders: Vec<Remainder>,
    /// What nobody will publish any more.
    pub dead: Vec<DeadLetter>,
    /// Keys that are held back from here on: of an ordered route only.
    pub holds: Vec<(Bytes, Hold)>,
}

/// Messages that leave their bundle for a new one.
#[derive(Clone, Debug)]
pub struct Remainder {
    /// The new bundle.
    pub fresh: Fresh,
    /// Their places in the old bundle, in the order of the new one.
    pub from: Vec<u32>,
    /// `Some`: born claimed, under this lease in ms; `None`: due again at its first due time.
    pub lease_ms: Option<u64>,
    /// Expiries it inherits.
    pub expiries: u32,
    /// On an ordered route the stamp of its first message; `None`: they keep their places in the order.
    pub stamp: Option<u64>,
}

/// A bundle that is not in the store yet.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Its route.
    pub route: RouteName,
    /// What it holds.
    pub bundle: Bundle,
}

/// The answer to a settle or a divide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It was ours and is done. The claims of those remainders that were born claimed, in order.
    Done(Vec<Claim>),
    /// It was no longer ours, or a blob that was thought missing is there: only what is confirmed was noted.
    Stale,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Claims that had expired and are due again.
    pub expired: u32,
    /// Deadlines too far ahead that were brought back.
    pub clamped: u32,
}

/// What an audit found and mended. All of it is damage, but where it says otherwise: no transition makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Shelves whose entry in the index was missing or wrong.
    pub indexes: u32,
    /// Entries whose blob is not there, removed: these messages are lost.
    pub lost: Vec<BundleId>,
    /// Blobs whose entry was lost, due again as if their claim had expired.
    pub restored: Vec<BundleId>,
    /// Tokens, bitmaps and counters of bundles that stand nowhere, names that mean nothing, second entries, and what was
    /// no bundle at all: removed.
    pub leftovers: u32,
    /// Names of bundles that have gone and held keys of which nothing waits, freed. No damage: some transitions leave them behind.
    pub freed: u32,
    /// Counts that were wrong; `None` if they could not be checked this time (the partition was busy, or is large
    /// and was counted lately).
    pub counts: Option<u32>,
    /// Lanes of calls long unused: forgotten, or their last answers. No damage.
    pub lanes: u32,
    /// Keys of the wrong type, by their names within the partition: moved to `quarantine:`, as they were.
    pub quarantined: Vec<String>,
    /// Bundles whose content is not what was written. They stay where they are, and become dead letters when they
    /// are due.
    pub unreadable: Vec<BundleId>,
    /// Dead letters whose blob is not there, removed: these are lost.
    pub dead_lost: Vec<DeadId>,
    /// Dead letters that had lost their place in their grave, and have it again.
    pub dead_restored: Vec<DeadId>,
}

impl AuditReport {
    /// Whether nothing had to be mended.
    pub fn is_clean(&self) -> bool {
        let mended = self.indexes + self.leftovers + self.counts.unwrap_or(0);
        let named = self.lost.len() + self.restored.len() + self.quarantined.len() + self.unreadable.len();
        mended == 0 && named + self.dead_lost.len() + self.dead_restored.len() == 0
    }
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
