//! Session: who the caller is, and what it may do. A page shows no button that would fail.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};

use super::auth::{AccessRole, Caller};
use super::context::Admin;
use crate::api::{SessionRole, SessionView, Word};

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
        role: Word::Known(role),
        who: caller.name.to_string(),
        tokens: !admin.tokens.is_open(),
        replica: admin.state.replica.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}
