//! What librdkafka's error on one message means: surely not written, or nobody can tell. Pure.

use rdkafka::error::RDKafkaErrorCode;

use crate::domain::verdict::Refusal;
use crate::domain::{DeadReason, Text, Verdict};

/// The end of one flight.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) verdict: Verdict,
    /// The broker refused a whole batch for the sake of what it holds; perhaps not for this message.
    pub(super) shared: bool,
}

impl From<Verdict> for Landing {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, shared: false }
    }
}

/// What a delivery report that is not a confirmation says.
pub(super) fn landing(error: RDKafkaErrorCode, fatal: Option<RDKafkaErrorCode>) -> Landing {
    Landing { verdict: of(error, fatal), shared: is_shared(error) }
}

/// Whether a broker refuses a whole batch with this, for the content of some of its records. Nothing of the batch
/// is written then.
fn is_shared(error: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord
            | Code::InvalidTimestamp
    )
}

/// The verdict on a message whose delivery failed. `fatal` is the error that ended its producer, if one
/// did.
///
/// `Refused` only where the broker said so for this very batch, or where the message never left this
/// process; every other end (a time-out, a lost connection, a purge) may have come after the write.
pub(super) fn of(error: RDKafkaErrorCode, fatal: Option<RDKafkaErrorCode>) -> Verdict {
    let cause = match (error, fatal) {
        // A producer that never got its id has sent nothing.
        (RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::Fatal, Some(fatal)) if refusal(fatal).is_some() => {
            fatal
        }
        _ => error,
    };
    let text = Text::from(cause.to_string());
    match refusal(cause) {
        Some(reason) => Verdict::Refused { reason, error: text },
        None => Verdict::Unknown { error: text },
    }
}

/// Why a broker (or the client before it sent anything) refused; `None` if that is not sure.
fn refusal(error: RDKafkaErrorCode) -> Option<Refusal> {
    use RDKafkaErrorCode as Code;
    Some(match error {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => Refusal::TooBig,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::InvalidTopic => {
            Refusal::UnknownTarget
        }
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => Refusal::NotAllowed,
        // Said of the content of this very record: it will be refused again.
        Code::InvalidRecord | Code::InvalidTimestamp => Refusal::Hopeless(DeadReason::NotAllowed),
        Code::NotEnoughReplicas
        | Code::InvalidDifferentRecord
        | Code::InvalidRequiredAcks
        | Code::InvalidMessage
        | Code::ThrottlingQuotaExceeded
        | Code::UnsupportedCompressionType => Refusal::Unavailable,
        _ => return None,
    })
}

/// A refusal in words.
pub(super) fn refused(reason: Refusal, error: impl Into<Text>) -> Verdict {
    Verdict::Refused { reason, error: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode as Code;

    #[test]
    fn only_what_was_surely_not_written_is_refused() {
        let reason = |error, fatal| match of(error, fatal) {
            Verdict::Refused { reason, .. } => Some(reason),
            Verdict::Unknown { .. } => None,
            other => panic!("{other:?}"),
        };
        for (error, expected) in [
            (Code::MessageSizeTooLarge, Some(Refusal::TooBig)),
            (Code::MessageBatchTooLarge, Some(Refusal::TooBig)),
            (Code::InvalidRecord, Some(Refusal::Hopeless(DeadReason::NotAllowed))),
            (Code::InvalidTimestamp, Some(Refusal::Hopeless(DeadReason::NotAllowed))),
            (Code::InvalidDifferentRecord, Some(Refusal::Unavailable)),
            (Code::UnknownTopic, Some(Refusal::UnknownTarget)),
            (Code::UnknownTopicOrPartition, Some(Refusal::UnknownTarget)),
            (Code::TopicAuthorizationFailed, Some(Refusal::NotAllowed)),
            (Code::NotEnoughReplicas, Some(Refusal::Unavailable)),
            // Written on the leader before too few followers had it.
            (Code::NotEnoughReplicasAfterAppend, None),
            (Code::MessageTimedOut, None),
            (Code::RequestTimedOut, None),
            (Code::PurgeQueue, None),
            (Code::PurgeInflight, None),
            (Code::BrokerTransportFailure, None),
        ] {
            assert_eq!(reason(error, None), expected, "{error:?}");
            assert!(
                !is_shared(error) || expected.is_some(),
                "{error:?}: it goes once more, so it is not written"
            );
        }
        assert_eq!(
            reason(Code::PurgeQueue, Some(Code::ClusterAuthorizationFailed)),
            Some(Refusal::NotAllowed)
        );
        assert_eq!(reason(Code::PurgeQueue, Some(Code::OutOfOrderSequenceNumber)), None);
        assert_eq!(reason(Code::PurgeInflight, Some(Code::ClusterAuthorizationFailed)), None);
    }
}
