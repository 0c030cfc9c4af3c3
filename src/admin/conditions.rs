//! Conditions on messages, as callers give them.

use axum::Extension;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::problem::Problem;
use crate::store::MessageFilter;

/// The store's form of conditions on messages. 400 if one cannot be, 403 if the caller may not look into bodies.
pub(super) fn message_filter(
    caller: &Caller,
    id_prefix: Option<&String>,
    key: Option<&String>,
    header: &[String],
    contains: Option<&String>,
) -> Result<MessageFilter, Problem> {
    if contains.is_some() {
        caller.may_see_content()?;
    }
    let headers = header.iter().map(|header| {
        let parts = header.split_once(':').filter(|(name, _)| !name.is_empty());
        let (name, value) = parts.ok_or_else(|| {
            let header = header.escape_debug();
            Problem::bad(format!("`header` is written NAME:VALUE, not `{header}`"))
        })?;
        Ok((name.to_owned(), value.to_owned()))
    });
    Ok(MessageFilter {
        id_prefix: id_prefix.cloned(),
        key: key.cloned(),
        headers: headers.collect::<Result<_, Problem>>()?,
        contains: contains.cloned(),
    })
}

/// The audit's note of a look into bodies, if it is one.
pub(super) fn searched(filter: &MessageFilter) -> Option<Extension<AuditNote>> {
    let text = filter.contains.as_ref()?;
    Some(Extension(AuditNote::new(
        format!("contains={text}"),
        "bodies searched",
    )))
}
