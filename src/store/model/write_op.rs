//! Operations of ingress and of people, and their results.

use super::bundle::Bundle;
use super::dead_letter::DeadLetter;
use crate::domain::{OnDuplicate, RouteName, Text, UnixMs};

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
    /// The one that was found so, unchanged: [`Found::version`](super::view::Found::version).
    Seen(Text),
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
