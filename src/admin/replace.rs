//! Replacing a message that waits: what the caller names becomes the message's own, the rest stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use bytes::Bytes;

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::content::{self, not_taken};
use super::context::Admin;
use super::extract::{IfMatch, JsonBody, MessagePath, NamedMessage, acting_body};
use super::messages::{command, commanded, conflict, count, missed, unexpected_result};
use super::problem::Problem;
use super::trail::record_replace;
use crate::api::{CommandAnswer, CommandResult, ReplaceRequest};
use crate::domain::{Entry, Header, Message, Origin, RequestedTime, Route};
use crate::store::{Bundle, IntendedMessage, StoredMessage, StoredState, WriteOp, WriteResult};

/// Attempts to replace a message that others change meanwhile.
const REPLACE_ATTEMPTS: usize = 5;

acting_body!(ReplaceRequest);

/// Replace a message
///
/// What the call names becomes the message's own: its body, its key, all of its headers, its due time, and by its headers
/// its target and its expiry. The rest stays. It is a new message in the old one's place then: it was received now, and
/// none of its publishes has failed.
#[utoipa::path(
    put, path = "/api/v1/routes/{route}/messages/{id}", operation_id = "replaceMessage",
    params(MessagePath, ("If-Match" = Option<String>, Header,
        description = "The message's `ETag`, with its quotes: only if it is unchanged since.")),
    request_body = ReplaceRequest,
    responses(
        (status = 200, description = "It is what the call made of it: `replaced`.", body = CommandAnswer),
        (status = 400, description = "Not the JSON asked for, an id that none can be, an `If-Match` that is none, or a \
            message that the route would call invalid (`reason`). Nothing was done."),
        (status = 404, description = "No such route; or no such message waits (`result`: `unknown`). Nothing is stored."),
        (status = 409, description = "`result`: `too_late`: it is being published, or was, or it is not wanted any more by then."),
        (status = 412, description = "`result`: `changed`: it is not as `If-Match` says. Nothing was done."),
        (status = 503, description = "Redis is away, or has no room for it. Nothing was done."),
        (status = 504, description = "Redis did not answer in time. It may have been done."),
    )
)]
pub(super) async fn replace(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    NamedMessage { route, id }: NamedMessage,
    IfMatch(seen): IfMatch,
    JsonBody(request): JsonBody<ReplaceRequest>,
) -> Result<(Extension<AuditNote>, Json<CommandAnswer>), Problem> {
    let parts = NamedParts::read(&route, request)?;
    let mut result = "unknown";
    for _ in 0..REPLACE_ATTEMPTS {
        let store = admin.store()?;
        let found = admin.browse(store.find_whole(&route.name, &id)).await?;
        let Some(found) = found else {
            result = "unknown";
            break;
        };
        if found.state != StoredState::Pending {
            result = "too_late";
            break;
        }
        if seen.as_ref().is_some_and(|seen| *seen != found.version) {
            result = "changed";
            break;
        }
        let of = Some(IntendedMessage::Seen(found.version.clone()));
        let Some(bundle) = parts.in_place_of(&admin, &route, found)? else {
            result = "too_late";
            break;
        };
        let op = WriteOp::Replace {
            route: route.name.clone(),
            id: id.as_str().into(),
            bundle,
            or_store: false,
            of,
        };
        // Due at once it may be delivered before the answer is here: this comes first in the trail.
        let replaced_at = store.clock().now();
        result = match command(&admin, &route.name, &id, op).await? {
            WriteResult::Replaced => {
                count(&admin, &route, "replace", "replaced");
                record_replace(&admin, &route, &id, replaced_at, &caller.actor())?;
                return Ok(commanded(&route, id, CommandResult::Replaced, "replaced"));
            }
            WriteResult::TooLate => "too_late",
            // Somebody has changed it since it was read.
            WriteResult::Unknown => "changed",
            other => return Err(unexpected_result(&id, other)),
        };
        if result == "too_late" {
            break;
        }
    }
    count(&admin, &route, "replace", result);
    match result {
        "unknown" | "changed" => Err(missed(&admin, &route, &id, result).await),
        _ => Err(conflict(
            &id,
            result,
            "is being published right now, or was, or is not wanted any more by then",
        )),
    }
}

/// What a call names of a message.
struct NamedParts {
    origin: Origin,
    time: Option<Header>,
    key: Option<Bytes>,
    headers: Option<Vec<Header>>,
    body: Option<Bytes>,
    has_target: bool,
}

impl NamedParts {
    fn read(route: &Route, request: ReplaceRequest) -> Result<Self, Problem> {
        let names = &route.policy.headers;
        let origin = content::origin(route);
        let given = request.headers;
        let mut given_names = given.iter().flat_map(BTreeMap::keys);
        let has_target = given_names.any(|name| name.eq_ignore_ascii_case(&names.target));
        let headers = given.map(|given| content::headers(origin, names, given));
        let parts = Self {
            origin,
            time: content::time(origin, names, request.delay, request.at)?,
            key: content::key(origin, request.key)?,
            headers: headers.transpose()?,
            body: content::body(request.body, request.body_base64)?,
            has_target,
        };
        let content = parts.key.is_some() || parts.headers.is_some() || parts.body.is_some();
        if parts.time.is_none() && !content {
            return Err(Problem::bad(
                "say what is to be replaced: `delay`, `at`, `key`, `headers`, `body` or `body_base64`",
            ));
        }
        Ok(parts)
    }

    /// The message that takes this one's place, by the rules of the route. `None`: it is not wanted any more when it is due.
    fn in_place_of(
        &self,
        admin: &Admin,
        route: &Route,
        found: StoredMessage,
    ) -> Result<Option<Bundle>, Problem> {
        let names = &route.policy.headers;
        let old = found.entry;
        let now = admin.state.clock.wall();
        let unchanged = if old.due > now {
            (&names.deliver_at, old.due.to_string())
        } else {
            (&names.delay, "0".to_owned())
        };
        let unchanged = content::header(self.origin, unchanged.0.clone(), unchanged.1);
        let time = self.time.clone().unwrap_or(unchanged);
        let given = self.headers.iter().flatten().cloned();
        let judged = Message {
            origin: self.origin,
            key: self.key.clone(),
            body: self.body.clone(),
            headers: given.chain([time]).collect(),
            properties: None,
        };
        // Its route's jitter, or an older `max_delay`, may have put it behind what may be asked for now.
        let mut as_it_was = route.clone();
        if self.time.is_none() {
            let policy = &mut as_it_was.policy;
            policy.max_delay_ms = policy.max_delay_ms.max(old.due.since(now));
        }
        let admitted = admin.state.inject.admit(&as_it_was, judged);
        let admitted = admitted.map_err(|unfit| not_taken(&unfit))?;
        let mut request = admitted.request;
        let mut due = admitted.due;
        request.given_back = old.given_back();
        if self.time.is_none() {
            due = old.due;
            request.time = RequestedTime::At(due);
        }
        if request.expires.is_none()
            && let Some(kept) = old.request
        {
            let Some(kept) = kept.moved_to(due) else {
                return Ok(None);
            };
            request.expires = kept.expires;
        }
        let mut message = old.message;
        if self.key.is_some() {
            message.key = admitted.message.key;
        }
        if self.headers.is_some() {
            message.headers = admitted.message.headers;
        }
        if self.body.is_some() {
            message.body = admitted.message.body;
        }
        let entry = Entry {
            id: old.id,
            flags: old.flags,
            request: Some(request),
            ..Entry::new(due, message)
        };
        let target = if self.has_target {
            route.target_ref(&admitted.target)
        } else {
            found.target
        };
        Ok(Some(Bundle {
            target,
            entries: Arc::new(vec![entry]),
        }))
    }
}
