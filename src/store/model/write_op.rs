//! Operations of ingress and of people, and their results.

use super::bundle::Bundle;
use super::dead_letter::DeadLetter;
use crate::domain::{KafkaPosition, OnDuplicate, RouteName, Text, UnixMs};

/// One operation of the store, in order of delivery.
#[derive(Clone, Debug)]
pub enum WriteOp {
    /// Keeps messages until they are due. All are of one partition, one target, and one time slice. Named
    /// messages live in the partition of their names.
    Store {
        /// The route of the messages.
        route: RouteName,
        /// The policy for a name that is pending already.
        on_duplicate: OnDuplicate,
        /// The messages.
        bundle: Bundle,
    },
    /// Cancels a pending message by its name, or by its `~` id.
    Cancel {
        /// The route of the message.
        route: RouteName,
        /// The name of the message.
        id: Text,
        /// Restricts the command to this message. Another message of the same name is left alone: `Unknown`.
        of: Option<IntendedMessage>,
    },
    /// Moves a pending message to another moment.
    Reschedule {
        /// The route of the message.
        route: RouteName,
        /// The name of the message.
        id: Text,
        /// The new due time.
        due: UnixMs,
        /// One entry: the message to be stored if the name is unknown. `None`: nothing is stored then.
        fallback: Option<Bundle>,
        /// Restricts the command to this message, as with [`WriteOp::Cancel`].
        of: Option<IntendedMessage>,
    },
    /// Puts a message in the place of the pending one of its name.
    Replace {
        /// The route of the message.
        route: RouteName,
        /// The name of the message.
        id: Text,
        /// One entry: the new message.
        bundle: Bundle,
        /// Stores the message if the name is unknown. Otherwise nothing is stored then.
        or_store: bool,
        /// Restricts the command to this message, as with [`WriteOp::Cancel`].
        of: Option<IntendedMessage>,
    },
    /// Keeps a message for a person.
    DeadLetter(DeadLetter),
}

/// Tells which message of a name a command is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntendedMessage {
    /// The message that was read at this place in Kafka.
    ReadAt(KafkaPosition),
    /// The message that was found with this [`StoredMessage::version`](super::view::StoredMessage::version),
    /// unchanged.
    Seen(Text),
}

/// The result for one message or command of a [`WriteOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteResult {
    /// The message is in the store.
    Stored,
    /// The message is in the store, in the place of the pending one of its name.
    Replaced,
    /// The name is pending or, if the route remembers names, in flight or delivered. That message stays.
    Duplicate,
    /// The message will not be published.
    Cancelled,
    /// The message is being published right now.
    InFlight,
    /// The message has its new due time.
    Rescheduled,
    /// Too late to move or replace the message. Nothing was stored.
    TooLate,
    /// No pending message has this name.
    Unknown,
    /// The message was published, and its name is remembered.
    Published,
}
