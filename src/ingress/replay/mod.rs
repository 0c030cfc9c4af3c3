//! Replay: reads a Kafka topic again after the store was lost or rolled back, and stores the messages that the
//! store should hold and does not. The relays go on meanwhile.
//!
//! The records are read twice. First each record is judged as it was when it came ([`JudgedRecord`]), and a
//! plan is made of what the store should hold now ([`ReplayPlanner`], pure). A name stands for one message in its
//! partition of the store, whatever the records said of it over time, so nothing of the past is lived through again in
//! the store, where it would meet the messages that the relays store meanwhile. Then
//! [`Source::replay_batch`](super::Source::replay_batch) carries out the missing steps, in the order of the
//! partition.
//!
//! Guarantees:
//! - Only records that the route's group has committed are read, so no record is one that the relays have yet
//!   to read.
//! - Every message that is stored is flagged as read again.
//! - A command acts only on the message that it was meant for, never on a later one of its name.
//! - Passing messages are left out: they never were in the store.

mod judge;
mod plan;
mod stored;

pub(in crate::ingress) use judge::RecordRequest;
pub use judge::{JudgedRecord, RecordJudge, ReplayRecord};
pub use plan::{ReplayBounds, ReplayPlan, ReplayPlanner, ReplayStep, ReplayTally, StoredAt};
pub use stored::{StoredRecords, StoredRecordsBuilder};
