//! Session: who the caller is, and what it may do. A page shows no button that would fail.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::{AccessRole, Caller};
use super::context::Admin;

/// The caller, as the replica that answers knows it.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView {
    /// Role of the caller.
    role: SessionRole,
    /// Its name in the audit log.
    who: String,
    /// False if no token is configured: everybody at this machine may do everything.
    tokens: bool,
    /// Name of the replica that answers.
    replica: String,
    /// Its version of Postdate.
    version: &'static str,
}

/// Role of a caller.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SessionRole {
    /// Look, but at no body of a message that waits.
    Read,
    /// Everything.
    Write,
}

/// The caller, and what it may do
#[utoipa::path(
    get, path = "/api/v1/session", operation_id = "getSession",
    responses((status = 200, description = "The caller.", body = SessionView))
)]
pub(super) async fn session(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
) -> Json<SessionView> {
    let role = if caller.role == AccessRole::Write {
        SessionRole::Write
    } else {
        SessionRole::Read
    };
    Json(SessionView {
        role,
        who: caller.name.to_string(),
        tokens: !admin.tokens.is_open(),
        replica: admin.state.replica.clone(),
        version: env!("CARGO_PKG_VERSION"),
    })
}
