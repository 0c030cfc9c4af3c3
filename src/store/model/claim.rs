//! Claiming and settling: the requests of the timers, the store's answers, and the verdicts that come back.

use std::sync::Arc;

use bytes::Bytes;

use super::bundle::{Bundle, BundleId};
use super::codec::CodecError;
use super::dead_letter::DeadLetter;
use super::key_order::HeldKey;
use crate::domain::{Partition, RouteName, Text, UnixMs};

/// A request to claim bundles of one partition.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The partition of the store.
    pub partition: Partition,
    /// The due sets (`route/slice`) in the order to be served, and how many messages to take of each at most.
    pub due_sets: Vec<(String, u32)>,
    /// How far ahead of Redis's time to claim.
    pub lookahead_ms: i64,
    /// How long the claim lasts, ms.
    pub lease_ms: u64,
    /// Most bundles over all due sets.
    pub max_bundles: usize,
}

/// The right to settle a claimed bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The partition of the store.
    pub partition: Partition,
    /// The bundle.
    pub id: BundleId,
    /// Unique proof of ownership: the owner's nonce and a counter, never a time.
    pub token: Arc<str>,
}

/// A bundle that a claim call answered.
#[derive(Clone, Debug)]
pub struct ClaimAnswer {
    /// The right to settle it.
    pub claim: Claim,
    /// The due time of the bundle, by its entry.
    pub due: UnixMs,
    /// How often a claim on it expired.
    pub expiries: u32,
    /// By index, the messages that are not to be published: cancelled, moved, suppressed, or already confirmed.
    pub skip: Vec<bool>,
    /// The messages, or why they cannot be read.
    pub bundle: Result<Bundle, CodecError>,
    /// The blob, as it lay in the store. Empty if it was missing.
    pub blob: Bytes,
}

/// A bundle of which every message is confirmed or gone.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The right to settle it.
    pub claim: Claim,
    /// The names in the bundle and their places, to be freed.
    pub names: Vec<(Text, u32)>,
    /// The producers' names that are confirmed, to be remembered if the route does so.
    pub delivered: Vec<Text>,
}

/// The confirmed part of a claimed bundle so far.
#[derive(Clone, Debug)]
pub struct ClaimProgress {
    /// The right to settle it.
    pub claim: Claim,
    /// The messages that are confirmed, by place. `None`: no more than the store already knows.
    pub confirmed: Option<Vec<bool>>,
    /// The producers' names among the confirmed messages, to be remembered if the route does so.
    pub delivered: Vec<Text>,
}

/// A bundle of which something remains.
#[derive(Clone, Debug)]
pub struct Division {
    /// The right to settle it.
    pub claim: Claim,
    /// The messages that are confirmed, by place.
    pub confirmed: Vec<bool>,
    /// The producers' names among the confirmed messages, to be remembered if the route does so.
    pub delivered: Vec<Text>,
    /// The names of messages that are confirmed, gone or dead, and their places: to be freed.
    pub freed: Vec<(Text, u32)>,
    /// Messages that go back, or stay in flight in a new bundle.
    pub remainders: Vec<Remainder>,
    /// Messages that will not be published any more.
    pub dead: Vec<DeadLetter>,
    /// The keys that are held from here on. Only on an ordered route.
    pub held_keys: Vec<(Bytes, HeldKey)>,
}

/// Messages that leave their bundle for a new one.
#[derive(Clone, Debug)]
pub struct Remainder {
    /// The new bundle.
    pub new_bundle: NewBundle,
    /// The messages' places in the old bundle, in the order of the new one.
    pub from: Vec<u32>,
    /// `Some`: stays in flight, under this lease in ms. `None`: due again at its first due time.
    pub lease_ms: Option<u64>,
    /// Expiries that the new bundle inherits.
    pub expiries: u32,
    /// On an ordered route the sequence number of its first message. `None`: the messages keep their places in
    /// the order.
    pub sequence: Option<u64>,
}

/// A bundle that is not in the store yet.
#[derive(Clone, Debug)]
pub struct NewBundle {
    /// The route of the messages.
    pub route: RouteName,
    /// The messages.
    pub bundle: Bundle,
}

/// The answer to a settle, a divide, an extension or a return of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// Applied. A divide returns the new claims of the remainders that stay in flight, in order.
    Applied(Vec<Claim>),
    /// The claim was lost, or a blob that was thought missing is there. Only what is confirmed was noted.
    Stale,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepOutcome {
    /// Claims that had expired: their bundles are due again.
    pub expired: u32,
    /// Number of claims whose deadline lay more than a lease ahead and was shortened.
    pub clamped: u32,
}
