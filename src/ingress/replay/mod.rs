//! Replay: a Kafka topic is read again after the store was lost or went back, and what it should hold and
//! does not is stored again. The relays go on meanwhile.
//!
//! The records are read twice. First all are judged as they were when they came ([`Again`]), and it is
//! worked out what the store should hold now ([`Planner`], pure): a name is one message, whatever was said of
//! it, so nothing of the past has to be lived through again in the store, where it would meet what the relays
//! store meanwhile. Then [`Source::again`](super::Source::again) does what is missing, in the order of the
//! partition.
//!
//! Guarantees: only what the route's group has committed is read, so nothing is here that the relays have yet
//! to read. What is stored is flagged as read again. A command acts only on the message that it was meant for,
//! never on a later one of its name. What passed through is left out: it never was in the store.

mod again;
mod known;
mod plan;

pub(in crate::ingress) use again::Asks;
pub use again::{Again, Judge, Reread};
pub use known::{Gathering, Known};
pub use plan::{Bounds, Plan, Planner, Step, Tally};
