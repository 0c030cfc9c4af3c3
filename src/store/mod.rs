//! The store: durable truth. Redis holds it all, as zsets of bundles.
//!
//! A *bundle* is the store's unit: messages of one route and one target that were stored together, in one
//! partition, with due times within one span. Under load it holds hundreds, at a trickle one; the code
//! path is the same. The message stays the unit of everything else. `call/scripts/*.lua` hold the
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

mod call;
mod claim;
pub mod config;
mod connection;
mod control;
mod dead_letters;
mod handle;
mod model;
mod query;
mod scrub;
mod write;

#[cfg(feature = "test-util")]
pub use self::call::scripts::{follow_clock, shift_clock};
pub use self::claim::claims::Measured;
pub use self::claim::heads::Looking;
pub use self::claim::rate_tokens::Lease;
pub use self::config::Config;
pub use self::connection::preflight::{Preflight, preflight};
pub use self::control::audit_log::TrailEntry;
pub use self::control::pauses::Pauses;
pub use self::control::wake::Wake;
pub use self::dead_letters::quota::{DeadRoom, Fullness};
pub use self::handle::{Parts, Store};
pub use self::model::bundle::{Bundle, BundleId, slice_of};
pub use self::model::claim::{
    Claim, ClaimRequest, Claimed, Division, Fresh, Held, Progress, Remainder, Settlement, Swept,
};
pub use self::model::codec::{CodecError, decode, encode};
pub use self::model::condition::{Late, Memory};
pub use self::model::dead_letter::{DeadBody, DeadFilter, DeadId, DeadLetter, DeadMark, DeadPage};
pub use self::model::error::{PreflightError, StoreError};
pub use self::model::heads::{Head, Looked, Unserved};
pub use self::model::key_order::{Hold, Ordered, OrderedRequest, Position, Taken};
pub use self::model::members::{Beaten, Known, Member, Presence};
pub use self::model::scrub_report::AuditReport;
pub use self::model::view::{
    BrowseKey, BrowseQuery, Browsed, Counts, Found, Histogram, MessageState, PartitionView,
};
pub use self::model::write_op::{Meant, WriteOp, WriteResult};
pub use self::query::scan::Standing;
pub use self::write::Written;
