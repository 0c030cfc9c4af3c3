//! The store: Redis holds everything that waits, as sorted sets of bundles.
//!
//! A *bundle* is the store's unit: messages of one route and one target that were stored together, in one partition,
//! with due times within one span. Under load a bundle holds hundreds of messages, at a trickle one. The code path is
//! the same. The message stays the unit of everything else. `call/scripts/*.lua` are the transitions, one atomic step
//! on one partition each. This room calls them, and nothing else writes keys.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | [`Store::write`] | ingress | store, cancel, reschedule, dead-letter: in order, one call a partition at a time |
//! | [`Store::due_heads`], [`Store::claim`] | timer | due -> in flight, under a token and a deadline |
//! | [`Store::claim_in_order`], [`Store::release_route`] | timer | the same on an ordered route, as its only owner |
//! | [`Store::settle`], [`Store::divide`] | timer | confirmed -> gone; the rest returned, split off, or dead |
//! | [`Store::extend`], [`Store::give_back`], [`Store::sweep`] | timer | keep a claim, return it, recover that of a dead owner |
//! | [`Store::due_to_spread`], [`Store::spread`] | timer | messages of growing bundles into bundles of their own moments |
//! | [`Store::dead_page`], [`Store::dead_letters`] | admin, timer | list and read dead letters |
//! | [`Store::redrive`], [`Store::drop_dead`] | admin, timer | due again, or gone for good |
//! | [`Store::scrub`] | timer | find and mend what no transition could have made |
//! | [`Store::heartbeat`], [`Store::unregister`] | cluster | who serves, and whether it is the store it was |
//! | [`Store::take_tokens`] | timer | rate tokens of a limited route |
//! | [`Store::pause`], [`Store::resume`], [`Store::pauses`] | people; ingress and timer | stop parts of a route on every replica |
//! | [`Store::oldest_overdue`], [`Store::redis_memory`] | people | the oldest overdue messages, and the memory of Redis |
//! | [`Store::scan`] | replay | all messages of a route |
//! | [`Store::trail`], [`Store::write_trails`] | all rooms; app | record what became of messages; append it to Redis |
//! | [`Store::trail_of`] | people, import | what became of one message |
//! | [`Store::read_mark`], [`Store::raise_offset`] | ingress | how far a source was ever read |
//!
//! Guarantees: each call is applied at most once however often it is sent, because a caller numbers its calls and the
//! partition remembers the last answer to each caller. A stale token changes nothing but the bitmap of what is
//! confirmed. A call that answers has been applied.

mod call;
mod claim;
pub mod config;
mod connection;
mod control;
mod dead_letters;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handle;
mod model;
mod patience;
mod query;
mod scrub;
mod trail;
mod write;

#[cfg(feature = "test-util")]
pub use self::call::scripts::{follow_clock, shift_clock};
pub use self::claim::claims::MeasuredClaim;
pub use self::claim::heads::HeadsQuery;
pub use self::claim::rate_tokens::RateGrant;
pub use self::claim::spread::DueToSpread;
pub use self::config::Config;
pub(crate) use self::connection::client::RESPONSE_TIMEOUT;
pub(crate) use self::connection::client::{RedisClient, RedisServer};
pub(crate) use self::connection::deadline::RedisWire;
pub(crate) use self::connection::open::open as open_connection;
pub use self::connection::preflight::{PreflightFailure, preflight};
pub use self::connection::rights::user_rules;
pub use self::control::activity::{ACTIVITY_SLOT_MS, ActivitySlot};
pub use self::control::audit_log::{AuditLogEntry, AuditPlace};
pub use self::control::pauses::RoutePauses;
pub use self::control::wake::WakeUps;
pub use self::dead_letters::quota::{DeadLetterQuota, QuotaState};
pub use self::handle::{Store, StoreDependencies};
pub use self::model::bundle::{Bundle, BundleId, slice_of};
pub use self::model::claim::{
    Claim, ClaimAnswer, ClaimProgress, ClaimRequest, Division, NewBundle, Remainder, SettleAnswer,
    Settlement, SweepOutcome,
};
pub use self::model::codec::{BundleOutline, CodecError, decode, decode_outline, encode};
pub use self::model::condition::OldestOverdue;
pub use self::model::dead_letter::{
    DeadBody, DeadFilter, DeadId, DeadLetter, DeadMark, DeadOrder, DeadPage,
};
pub use self::model::error::{PreflightError, StoreError};
pub use self::model::heads::{Head, HeadsSeen, UnservedHeads};
pub use self::model::key_order::{
    HeldKey, OrderPosition, OrderedAnswer, OrderedClaims, OrderedRequest,
};
pub use self::model::members::{HeartbeatReply, KnownStore, RegisteredReplica, ReplicaStatus};
pub use self::model::scrub_report::ScrubReport;
pub use self::model::trail::{TrailEvent, TrailReading, TrailTarget};
pub use self::model::unopened::UnopenedBundle;
pub use self::model::view::{
    BrowseKey, BrowseQuery, Counts, DueHistogram, DueMonth, MessageFilter, MessagePage,
    PartitionView, RetryMark, RetryPage, StoredMessage, StoredState,
};
pub use self::model::write_op::{IntendedMessage, WriteOp, WriteResult};
pub use self::patience::until_available;
pub use self::query::scan::ScannedState;
pub use self::trail::{Delivered, RouteTrail, TRAIL_DELAY, TrailCause};
pub use self::write::PendingWrite;
