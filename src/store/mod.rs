//! The store: durable truth. Redis holds it all, as zsets of bundles.
//!
//! A *bundle* is the store's unit: messages of one route and one target that were stored together, in one
//! partition, with due times within one span. Under load it holds hundreds, at a trickle one; the code
//! path is the same. The message stays the unit of everything else. `redis/scripts/*.lua` hold the
//! transitions, one atomic step on one partition each; this room calls them and nothing else writes keys.
//!
//! | call | who | what it does |
//! |---|---|---|
//! | [`Store::write`] | ingress | store, cancel, reschedule, dead-letter: in order, one call a partition at a time |
//! | [`Store::look`], [`Store::claim`] | timer | due -> in flight, under a token and a deadline |
//! | [`Store::claim_in_order`], [`Store::release`] | timer | the same where keys leave in order, as the only holder |
//! | [`Store::settle`], [`Store::divide`] | timer | confirmed -> gone; the rest back, split off, or dead |
//! | [`Store::extend`], [`Store::give_back`], [`Store::sweep`] | timer | keep a claim, return it, recover a dead holder's |
//! | [`Store::dead_page`], [`Store::dead_letters`] | admin, timer | look at dead letters |
//! | [`Store::redrive`], [`Store::drop_dead`] | admin, timer | due again, or gone for good |
//! | [`Store::audit`] | timer | find and mend what no transition could have made |
//! | [`Store::beat`], [`Store::leave`] | cluster | who serves, and whether it is the store it was |
//! | [`Store::lease`] | timer | tokens of a limited route |
//! | [`Store::pause`], [`Store::resume`], [`Store::pauses`] | people; ingress and timer | what of a route stands still, on every replica |
//! | [`Store::late`], [`Store::memory`] | people | how late, and how full |
//! | [`Store::scan`] | replay | all that it holds of a route |
//! | [`Store::mark`], [`Store::raise_mark`] | ingress | how far a source was ever read |
//!
//! Guarantees: each call is applied at most once however often it is sent (a caller's lane numbers its
//! calls, and the partition remembers each lane's last answer); a stale token changes nothing but the
//! bitmap of what is confirmed; a call that answers has been applied.

mod bundle;
mod codec;
pub mod config;
mod dead;
mod error;
mod heads;
mod late;
mod members;
mod order;
mod redis;
mod room;
mod types;

pub use bundle::{Bundle, BundleId, slice_of};
pub use codec::{CodecError, decode, encode};
pub use config::Config;
pub use dead::{DeadBody, DeadFilter, DeadId, DeadMark, DeadPage};
pub use error::{PreflightError, StoreError};
pub use heads::{Head, Looked, Unserved};
pub use late::{Late, Memory};
pub use members::{Beaten, Known, Member, Presence};
pub use order::{Hold, Ordered, OrderedRequest, Position, Taken};
pub use redis::{
    Lease, Looking, Measured, Parts, Pauses, Preflight, Standing, Store, TrailEntry, Wake, Written, preflight,
};
#[cfg(feature = "test-util")]
pub use redis::{follow_clock, shift_clock};
pub use room::{DeadRoom, Fullness};
pub use types::{
    AuditReport, BrowseKey, BrowseQuery, Browsed, Claim, ClaimRequest, Claimed, Counts, DeadLetter, Division,
    Found, Fresh, Held, Histogram, Meant, MessageState, PartitionView, Progress, Remainder, Settlement,
    Swept, WriteOp, WriteResult,
};
