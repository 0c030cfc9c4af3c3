//! Claiming and settling: what timers ask for, what they are given, and what they answer.

use std::sync::Arc;

use bytes::Bytes;

use super::bundle::{Bundle, BundleId};
use super::codec::CodecError;
use super::dead_letter::DeadLetter;
use super::key_order::Hold;
use crate::domain::{Partition, RouteName, Text, UnixMs};

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
