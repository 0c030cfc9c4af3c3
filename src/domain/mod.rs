//! The words of the service, and nothing else: no I/O, no runtime, no wire format.
//!
//! Every other room may use these; they use none. `message` is the producer's message and `entry` what Postdate knows
//! of it. `route` is its way, with the policy. `verdict` is the end of a publish. `due` and `clock` are about time,
//! `partition` about placement in the store.

mod actor;
mod arrival;
pub mod clock;
mod delay_request;
pub mod due;
pub mod duration;
pub mod dying_message;
mod entry;
pub mod failure_policy;
mod header_text;
pub mod jitter;
mod kafka_position;
pub mod limits;
pub mod message;
pub mod moment;
pub mod nearest;
pub mod partition;
mod pause;
mod percent;
mod repeat_cause;
pub mod retry;
pub mod route;
pub mod secret;
mod skip;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod text;
pub mod topics;
mod trail;
pub mod unsafe_text;
pub mod verdict;

pub use actor::{Actor, Because, MAX_BECAUSE_BYTES};
pub use arrival::Arrival;
pub use clock::{Clock, StoreClock};
pub use delay_request::{DelayRequest, Expiry, RequestedTime};
pub use due::{MonoUs, UnixMs};
pub use entry::{Entry, Failure, Flags};
pub use kafka_position::{FirstStart, KafkaPosition, Latest, ReadMark};
pub use message::{Header, HeaderValue, Message, Origin, Properties};
pub use nearest::nearest;
pub use partition::{Partition, Partitions};
pub use pause::{Pause, RouteParts, RoutePause};
pub use percent::{path_segment, percent_decoded, percent_encoded};
pub use repeat_cause::RepeatCause;
pub use route::{
    ConsumerRetry, DeadLetterLimits, DelayFrom, Dialects, Endpoint, HeaderNames, OnDuplicate,
    OnExpired, OnInvalid, OnRefused, OnUndecodable, OwnTarget, RateLimit, RetryPolicy, Route,
    RouteName, RoutePolicy, RoutingKey, Target, TargetRef, TrailLimits, routes_where,
};
pub use secret::Secret;
pub use skip::{SkipGoal, SkipOutcome};
pub use text::Text;
pub use topics::{StartRule, TopicPattern, TopicTemplate, Topics};
pub use trail::TrailWord;
pub use verdict::{DeadReason, InvalidReason, Refusal, Verdict};
