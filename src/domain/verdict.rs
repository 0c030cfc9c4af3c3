//! Verdicts on publishes, and the reasons why a message is invalid or dead.

use super::kafka_position::KafkaPosition;
use super::text::Text;

/// The end of one hand-over to a lane. Every publication gets exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The broker has the message, routed. Kafka says where.
    Confirmed(Option<KafkaPosition>),
    /// The broker certainly does not have the message.
    Refused {
        /// The reason.
        reason: Refusal,
        /// The error text of the broker or the client, cut to [`super::limits::MAX_ERROR_BYTES`].
        error: Text,
    },
    /// Nobody knows whether the broker has the message: the confirm never came.
    Unknown {
        /// The event that was seen instead.
        error: Text,
    },
    /// Nobody knows whether the broker has the message, and the target could not be written meanwhile. The message is
    /// not to blame.
    Interrupted {
        /// The event that was seen instead.
        error: Text,
    },
    /// The message was never handed to the broker (draining, or its claim's deadline had passed).
    NotTried,
    /// The message was not handed to the broker, since it was not wanted any more.
    Expired,
}

/// Why a broker refused a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No queue is bound for the routing key.
    Unroutable,
    /// The topic or exchange does not exist.
    UnknownTarget,
    /// The principal may not publish there.
    NotAllowed,
    /// The message is larger than the target accepts.
    TooBig,
    /// The broker is away or overloaded, or it said no.
    Unavailable,
    /// The partition of the message cannot be written now: it has no leader, or too few in-sync replicas. Nothing was
    /// handed to the broker.
    PartitionAway,
    /// No publish of this message can succeed, because of its form or its content: the target's protocol cannot
    /// carry it, or the broker refuses what it says.
    Unpublishable,
}

impl Refusal {
    /// The label of `publish_failures_total{reason}`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::UnknownTarget => "unknown_target",
            Self::NotAllowed => "not_allowed",
            Self::TooBig => "too_big_for_target",
            Self::Unavailable => "unavailable",
            Self::PartitionAway => "partition_away",
            Self::Unpublishable => "unpublishable",
        }
    }

    /// Reports whether the same publish will be refused for ever.
    pub fn is_hopeless(self) -> bool {
        matches!(self, Self::TooBig | Self::Unpublishable)
    }
}

impl Verdict {
    /// Reports whether the broker has the message.
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Confirmed(_))
    }

    /// Reports whether this is a refusal that no retry can change.
    pub fn is_hopeless(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason.is_hopeless())
    }

    /// Reports whether it costs the message one of its attempts. An outage of the target does not.
    pub fn spends_attempt(&self) -> bool {
        !matches!(
            self,
            Self::NotTried
                | Self::Expired
                | Self::Interrupted { .. }
                | Self::Refused {
                    reason: Refusal::PartitionAway,
                    ..
                }
        )
    }

    /// Reports whether the broker may have the message without a confirm: a further publish may repeat this one.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Interrupted { .. })
    }
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is its contract name
pub enum DeadReason {
    Unroutable,
    UnknownTarget,
    NotAllowed,
    TooBigForTarget,
    Unpublishable,
    Attempts,
    Crashes,
    Corrupt,
    Loop,
    Expired,
    Retries,
    Invalid(InvalidReason),
}

impl DeadReason {
    /// The reasons of messages that were valid.
    pub const FAILED: [Self; 11] = [
        Self::Unroutable,
        Self::UnknownTarget,
        Self::NotAllowed,
        Self::TooBigForTarget,
        Self::Unpublishable,
        Self::Attempts,
        Self::Crashes,
        Self::Corrupt,
        Self::Loop,
        Self::Expired,
        Self::Retries,
    ];

    /// All reasons, in the contract's order.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::FAILED
            .into_iter()
            .chain(InvalidReason::ALL.into_iter().map(Self::Invalid))
    }

    /// The reason with this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::all().find(|reason| reason.as_str() == word)
    }

    /// Reports whether the message itself is to blame, or nobody wants it any more: no broker, setting or other message
    /// need be mended. Its dead letter pauses nobody, and gives way to newer ones.
    pub fn is_own_fault(self) -> bool {
        matches!(
            self,
            Self::Invalid(_) | Self::TooBigForTarget | Self::Unpublishable | Self::Expired
        )
    }

    /// The name in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::UnknownTarget => "unknown_target",
            Self::NotAllowed => "not_allowed",
            Self::TooBigForTarget => "too_big_for_target",
            Self::Unpublishable => "unpublishable",
            Self::Attempts => "attempts",
            Self::Crashes => "crashes",
            Self::Corrupt => "corrupt",
            Self::Loop => "loop",
            Self::Expired => "expired",
            Self::Retries => "retries",
            Self::Invalid(reason) => reason.as_str(),
        }
    }
}

/// Why a message is invalid: its own headers, its size, or a record that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is its contract name
pub enum InvalidReason {
    BadDelay,
    BadTime,
    Ambiguous,
    TooFar,
    TooBig,
    BadId,
    BadOp,
    ForbiddenTarget,
    BadHeaders,
    Undecodable,
    BadExpiry,
    BadRetry,
}

impl InvalidReason {
    /// All reasons, for metrics.
    pub const ALL: [Self; 12] = [
        Self::BadDelay,
        Self::BadTime,
        Self::Ambiguous,
        Self::TooFar,
        Self::TooBig,
        Self::BadId,
        Self::BadOp,
        Self::ForbiddenTarget,
        Self::BadHeaders,
        Self::Undecodable,
        Self::BadExpiry,
        Self::BadRetry,
    ];

    /// The name in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadDelay => "bad_delay",
            Self::BadTime => "bad_time",
            Self::Ambiguous => "ambiguous",
            Self::TooFar => "too_far",
            Self::TooBig => "too_big",
            Self::BadId => "bad_id",
            Self::BadOp => "bad_op",
            Self::ForbiddenTarget => "forbidden_target",
            Self::BadHeaders => "bad_headers",
            Self::Undecodable => "undecodable",
            Self::BadExpiry => "bad_expiry",
            Self::BadRetry => "bad_retry",
        }
    }
}
