//! The audit log.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An entry of the audit log: one call that may have changed something.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When, Unix ms.
    pub at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub at: Option<String>,
    /// The name of the caller's token, or `anybody at this machine`.
    pub who: String,
    /// From which address.
    pub from: String,
    /// Method and path.
    pub call: String,
    /// Why, in the caller's own words; empty if it gave no reason.
    pub because: String,
    /// Details that the path does not show.
    pub subject: String,
    /// The result.
    pub result: String,
    /// The HTTP status; empty if the caller went away before.
    pub status: String,
}
