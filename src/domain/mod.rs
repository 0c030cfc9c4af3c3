//! The words of the service, and nothing else: no I/O, no runtime, no wire format.
//!
//! Every other room may use these; they use none. `message` is what a producer sent,
//! `route` is where it goes under which policy, `verdict` is what became of it,
//! `due` and `clock` say when, `partition` says in which slice of the store.

mod arrival;
pub mod clock;
pub mod due;
pub mod duration;
pub mod dying;
pub mod failure;
pub mod jitter;
mod kafka_position;
pub mod limits;
pub mod message;
pub mod moment;
pub mod nearest;
pub mod partition;
pub mod retry;
pub mod route;
pub mod secret;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
pub mod verdict;

pub use arrival::Arrival;
pub use clock::{Clock, StoreClock};
pub use due::UnixMs;
pub use kafka_position::KafkaPosition;
pub use message::{Entry, Failure, Flags, Header, HeaderValue, Message, Origin, Properties, Text};
pub use nearest::nearest;
pub use partition::{Partition, Partitions};
pub use route::{
    DeadLetters, DelayFrom, Endpoint, HeaderNames, OnDuplicate, OnInvalid, OnRefused, Paused, Policy, Rate,
    Retry, Route, RouteName, RoutingKey, Target,
};
pub use secret::Secret;
pub use verdict::{Cause, DeadReason, InvalidReason, Refusal, Verdict};
