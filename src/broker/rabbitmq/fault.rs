//! Faults of a channel or a connection, sorted by their consequence.

use lapin::ErrorKind;
use lapin::protocol::AMQPErrorKind;

/// A failure of a channel or a connection. Its text never holds a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AmqpFault {
    /// The consequence.
    pub kind: FaultKind,
    text: String,
}

/// The kind of a fault. Numbers are AMQP's reply codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// 404: no such exchange, queue or virtual host.
    NotFound,
    /// 403, 530: the principal may not.
    NotAllowed,
    /// 406 (and 311) about the size of a message.
    TooBig,
    /// Any other channel error: 405, 406.
    Refused,
    /// A connection error that one of our frames caused: 501 to 506, 540, 541.
    Poison,
    /// The connection is gone, was closed (320), or gave no answer in time.
    Lost,
    /// There is no connection, and TLS is the reason.
    Tls,
}

impl AmqpFault {
    /// A fault that Postdate found itself.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// Reports whether the broker refused the use of a queue that is exclusive to another connection (405).
    pub fn is_about_a_locked_queue(&self) -> bool {
        self.kind == FaultKind::Refused && self.text.starts_with("RESOURCE_LOCKED")
    }

    /// Reports whether one of our messages may have caused the fault, rather than the network or the broker's
    /// state.
    pub fn blames_a_message(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::NotAllowed | FaultKind::TooBig | FaultKind::Refused | FaultKind::Poison
        )
    }
}

impl From<lapin::Error> for AmqpFault {
    fn from(error: lapin::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::ProtocolError(amqp) => of_reply(amqp),
            _ => FaultKind::Lost,
        };
        let text = match error.kind() {
            // The broker's own sentence is enough: the client's words around it add nothing.
            ErrorKind::ProtocolError(amqp) if !amqp.get_message().as_str().is_empty() => {
                amqp.get_message().to_string()
            }
            _ => error.to_string(),
        };
        Self { kind, text }
    }
}

fn of_reply(error: &lapin::protocol::AMQPError) -> FaultKind {
    let text = error.get_message().as_str();
    let is_about_size = text.contains("message size") || text.contains("max size");
    match (error.get_id(), error.kind()) {
        (404, _) => FaultKind::NotFound,
        (403 | 530, _) => FaultKind::NotAllowed,
        (311, _) => FaultKind::TooBig,
        (406, _) if is_about_size => FaultKind::TooBig,
        (320 | 402, _) => FaultKind::Lost,
        (_, AMQPErrorKind::Soft(_)) => FaultKind::Refused,
        (_, AMQPErrorKind::Hard(_)) => FaultKind::Poison,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn kind(code: u16, text: &str) -> FaultKind {
        of_reply(&AMQPError::from_id(code, text.into()).expect("a code of AMQP"))
    }

    #[test]
    fn reply_codes_mean_what_they_mean_to_us() {
        let size = "PRECONDITION_FAILED - message size 2 is larger than configured max size 1";
        assert_eq!(kind(406, size), FaultKind::TooBig);
        assert_eq!(
            kind(406, "PRECONDITION_FAILED - invalid expiration"),
            FaultKind::Refused
        );
        assert_eq!(kind(404, "NOT_FOUND - no exchange"), FaultKind::NotFound);
        assert_eq!(kind(403, "ACCESS_REFUSED"), FaultKind::NotAllowed);
        assert_eq!(kind(320, "CONNECTION_FORCED"), FaultKind::Lost);
        assert_eq!(kind(501, "FRAME_ERROR"), FaultKind::Poison);
    }
}
