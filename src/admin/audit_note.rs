//! A handler's note for the audit log.

/// Note of a handler for the audit log: the message, route or filter that the call was about, and its result. A handler
/// returns it as `(Extension(AuditNote), ...)` beside its answer.
#[derive(Clone, Debug)]
pub(super) struct AuditNote {
    pub(super) subject: String,
    pub(super) result: String,
}

impl AuditNote {
    /// A note with this result. `subject` names what the path does not show already (a filter, ids in a body); it is
    /// empty where there is nothing to add.
    pub(super) fn new(subject: impl Into<String>, result: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            result: result.into(),
        }
    }
}
