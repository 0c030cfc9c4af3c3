//! Who the caller is, and what it may do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Word;

/// The caller, as the replica that answers knows it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    /// Role of the caller.
    #[schema(value_type = SessionRole)]
    pub role: Word<SessionRole>,
    /// Its name in the audit log.
    pub who: String,
    /// False if no token is configured: everybody at this machine may do everything.
    pub tokens: bool,
    /// Name of the replica that answers.
    pub replica: String,
    /// Its version of Postdate.
    pub version: String,
}

/// Role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionRole {
    /// Look, but at no body of a message that waits.
    Read,
    /// Everything.
    Write,
}
