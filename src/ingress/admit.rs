//! Admit: read the headers of one record and decide what it is. Pure.

use std::sync::Arc;

use crate::domain::{InvalidReason, Message, Target, Text, UnixMs};

/// What a record is, by its headers.
#[derive(Clone, Debug, PartialEq)]
pub enum Admitted {
    /// No delay header: to be published at once, byte for byte (only `x-delay-target` is taken out).
    PassThrough {
        /// The route's own target, or the allowed one it names.
        target: Arc<Target>,
        /// The message.
        message: Message,
    },
    /// To be published at its moment, without its delay headers.
    Delayed {
        /// The moment; it may be past already.
        due: UnixMs,
        /// The producer's own name for it.
        id: Option<Text>,
        /// The route's own target, or the allowed one it names.
        target: Arc<Target>,
        /// The message.
        message: Message,
    },
    /// `x-delay-op: cancel`
    Cancel {
        /// The name.
        id: Text,
    },
    /// `x-delay-op: reschedule`
    Reschedule {
        /// The name.
        id: Text,
        /// The new moment.
        due: UnixMs,
        /// Where the message goes if the name is unknown and the command becomes a message.
        target: Arc<Target>,
        /// The command's own body and headers, for that case.
        message: Message,
    },
    /// The route's `on_invalid` decides.
    Invalid {
        /// The contract's reason.
        reason: InvalidReason,
        /// What exactly, for a person; quotes at most 64 bytes of the input, escaped.
        error: Text,
        /// The message as it came, all its headers included.
        message: Message,
    },
}

/// x
pub fn admit(
    message: Message,
    _malformed: Option<Text>,
    _produced: Option<UnixMs>,
    route: &crate::domain::Route,
    arrival: UnixMs,
) -> Admitted {
    Admitted::Delayed { due: arrival.plus(500), id: None, target: route.to.clone(), message }
}
