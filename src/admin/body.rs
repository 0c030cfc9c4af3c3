//! Body of a message that waits, for people who look into a case. Only who may change a message sees its content, and each
//! look is audited.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::extract::{MessagePath, NamedMessage};
use super::problem::{Problem, StoreAway};
use crate::api::MessageBodyView;

/// Most bytes of a body that are shown.
const SHOWN_BYTES: usize = 256 << 10;

/// The body of a message that waits
///
/// Cut to its first 256 KiB. A dead letter's body: see `/api/v1/dead/{id}`.
#[utoipa::path(
    get, path = "/api/v1/routes/{route}/messages/{id}/body", operation_id = "getMessageBody", params(MessagePath),
    extensions(("x-role" = json!("write"))),
    responses(
        (status = 200, description = "The body, or its beginning.", body = MessageBodyView),
        (status = 400, description = "An id that none can be."),
        (status = 404, description = "No such route, or no such message in the store."),
        StoreAway,
    )
)]
pub(super) async fn body(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedMessage { route, id }: NamedMessage,
) -> Result<(Extension<AuditNote>, Json<MessageBodyView>), Problem> {
    caller.may_see_content()?;
    let found = admin
        .browse(admin.store()?.find_whole(&route.name, &id))
        .await?;
    let found = found.ok_or_else(|| {
        let id_text = id.escape_debug();
        let detail = format!(
            "no message `{id_text}` of the route `{}` waits: it was never there, or is gone",
            route.name
        );
        Problem::not_found(detail).id(&id)
    })?;
    let body = found.entry.message.body.unwrap_or_default();
    let shown = &body[..body.len().min(SHOWN_BYTES)];
    let view = MessageBodyView {
        size: body.len(),
        shown: shown.len(),
        base64: STANDARD.encode(shown),
    };
    Ok((Extension(AuditNote::new("shown")), Json(view)))
}
