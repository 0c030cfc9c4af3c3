//! Translates the errors of librdkafka into verdicts: surely not written, or unknown. Pure.

use rdkafka::error::RDKafkaErrorCode;

use crate::domain::verdict::Refusal;
use crate::domain::{Text, Verdict};

/// Result of one delivery report.
#[derive(Debug)]
pub(super) struct DeliveryOutcome {
    pub(super) verdict: Verdict,
    /// True if the broker refused a whole batch for its content, perhaps not for this message.
    pub(super) shared: bool,
}

impl From<Verdict> for DeliveryOutcome {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            shared: false,
        }
    }
}

/// The result of a delivery report with an error.
pub(super) fn delivery_outcome(
    error: RDKafkaErrorCode,
    fatal: Option<RDKafkaErrorCode>,
) -> DeliveryOutcome {
    DeliveryOutcome {
        verdict: verdict_of(error, fatal),
        shared: is_shared(error),
    }
}

/// Reports whether a broker refuses a whole batch with this error, for the content of some of its records. Nothing of
/// the batch is written then.
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

/// The verdict on a message whose delivery failed. `fatal` is the error that ended its producer, if one did.
///
/// The verdict is `Refused` only if the broker refused this very batch, or if the message never left this process. Any
/// other error (a time-out, a lost connection, a purge) may have come after the write: the verdict is `Unknown`.
pub(super) fn verdict_of(error: RDKafkaErrorCode, fatal: Option<RDKafkaErrorCode>) -> Verdict {
    let cause = match (error, fatal) {
        // This producer never got its id from a broker, so it has sent nothing.
        (RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::Fatal, Some(fatal))
            if refusal(fatal).is_some() =>
        {
            fatal
        }
        _ => error,
    };
    let text = Text::from(cause.to_string());
    match refusal(cause) {
        Some(reason) => Verdict::Refused {
            reason,
            error: text,
        },
        None => Verdict::Unknown { error: text },
    }
}

/// The reason of a broker, or of the client library before it sent anything, to refuse. `None` if it is not sure that
/// the message was not written.
fn refusal(error: RDKafkaErrorCode) -> Option<Refusal> {
    use RDKafkaErrorCode as Code;
    Some(match error {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => Refusal::TooBig,
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::InvalidTopic => Refusal::UnknownTarget,
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => Refusal::NotAllowed,
        // The content of this very record is wrong: it will be refused again.
        Code::InvalidRecord | Code::InvalidTimestamp => Refusal::Unpublishable,
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
    Verdict::Refused {
        reason,
        error: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode as Code;

    #[test]
    fn only_what_was_surely_not_written_is_refused() {
        let reason = |error, fatal| match verdict_of(error, fatal) {
            Verdict::Refused { reason, .. } => Some(reason),
            Verdict::Unknown { .. } => None,
            other => panic!("{other:?}"),
        };
        for (error, expected) in [
            (Code::MessageSizeTooLarge, Some(Refusal::TooBig)),
            (Code::MessageBatchTooLarge, Some(Refusal::TooBig)),
            (Code::InvalidRecord, Some(Refusal::Unpublishable)),
            (Code::InvalidTimestamp, Some(Refusal::Unpublishable)),
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
        assert_eq!(
            reason(Code::PurgeQueue, Some(Code::OutOfOrderSequenceNumber)),
            None
        );
        assert_eq!(
            reason(Code::PurgeInflight, Some(Code::ClusterAuthorizationFailed)),
            None
        );
    }
}
