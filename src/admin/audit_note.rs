//! A handler's note for the audit log.

/// Note of a handler for the audit log: the result of the call. A handler returns it as `(Extension(AuditNote), ...)` beside
/// its answer. What the call is about it says before, by [`Caller::is_about`](super::auth::Caller::is_about).
#[derive(Clone, Debug)]
pub(super) struct AuditNote {
    /// The message that a problem is about.
    pub(super) subject: String,
    pub(super) result: String,
}

impl AuditNote {
    /// A note with this result.
    pub(super) fn new(result: impl Into<String>) -> Self {
        Self {
            subject: String::new(),
            result: result.into(),
        }
    }
}
