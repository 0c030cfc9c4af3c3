//! Dead letters: list them, and show one.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::conditions::{message_filter, searched};
use super::context::Admin;
use super::dead_letter::{DetailLevel, dead_letter_view};
use super::extract::{PathParams, QueryParams};
use super::page::{read_cursor, write_cursor};
use super::problem::{Problem, StoreAway};
use super::times::moment;
use crate::api::{DeadLetterFilter, DeadLetterView, Page};
use crate::domain::{DeadReason, UnixMs, nearest};
use crate::store::{DeadFilter, DeadId, DeadMark, DeadOrder};

/// Items of a page where the query does not say.
const DEFAULT_PAGE: usize = 100;
/// Most items of a page.
const MAX_PAGE: usize = 1000;
/// Longest id that is looked up, bytes: a dead letter's own id holds the name of its route and more.
const MAX_ID_BYTES: usize = 400;

/// Query of the list of dead letters.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadListQuery {
    /// Of this route.
    #[param(nullable = false)]
    route: Option<String>,
    /// Dead for this reason, in the contract's word.
    #[param(nullable = false)]
    reason: Option<String>,
    /// Dead since this moment: RFC 3339, or Unix milliseconds.
    #[param(nullable = false)]
    from: Option<String>,
    /// Dead before this moment.
    #[param(nullable = false)]
    to: Option<String>,
    /// Whose message's id begins so.
    #[param(nullable = false)]
    id_prefix: Option<String>,
    /// Whose message's key is this.
    #[param(nullable = false)]
    key: Option<String>,
    /// Whose messages have this header, `NAME:VALUE`: the name in any case, the value whole. May be repeated: that have all of
    /// them.
    #[serde(default)]
    #[param(required = false)]
    header: Vec<String>,
    /// Whose messages' bodies have this text in them. Needs a write token, and is audited.
    #[param(nullable = false)]
    contains: Option<String>,
    /// Their order: `oldest` first, if not given, or `newest` first.
    #[serde(default)]
    #[param(inline)]
    order: ListedOrder,
    /// With headers and bodies: needs a write token, and is audited.
    #[serde(default)]
    body: bool,
    /// `next` of the page before.
    #[param(nullable = false)]
    cursor: Option<String>,
    /// Items at most; 100 if not given.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Which come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ListedOrder {
    #[default]
    Oldest,
    Newest,
}

/// Dead letters
///
/// Over all partitions. A page of a narrow filter may have fewer items than asked for, even none, and still
/// not be the last: `next` tells.
#[utoipa::path(
    get, path = "/api/v1/dead", operation_id = "listDead", params(DeadListQuery),
    responses(
        (status = 200, description = "Some of them.", body = Page<DeadLetterView>),
        (status = 400, description = "A filter, a cursor or a limit that cannot be."),
        (status = 403, description = "Bodies are for write tokens. Or no token is configured, and the request came by a \
            host name other than localhost."),
        (status = 404, description = "No such route."),
        StoreAway,
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    QueryParams(query): QueryParams<DeadListQuery>,
) -> Result<(Option<Extension<AuditNote>>, Json<Page<DeadLetterView>>), Problem> {
    let DeadListQuery {
        route,
        reason,
        from,
        to,
        id_prefix,
        key,
        header,
        contains,
        order,
        body,
        cursor,
        limit,
    } = query;
    let filter = DeadLetterFilter {
        route,
        reason,
        from,
        to,
        id_prefix,
        key,
        header,
        contains,
    };
    let wanted = DeadFilter {
        order: order.into(),
        ..store_filter(&admin, &caller, &filter)?
    };
    let looked = look_at_content(body, &caller)?.or_else(|| searched(&caller, &wanted.message));
    let limit = match limit {
        None => DEFAULT_PAGE,
        Some(limit @ 1..=MAX_PAGE) => limit,
        Some(_) => return Err(Problem::bad(format!("`limit` is 1 to {MAX_PAGE}"))),
    };
    let after = cursor
        .map(|cursor| {
            let (at, id): (i64, String) = read_cursor(&cursor, &(filter.clone(), order))?;
            read_mark(at, &id)
        })
        .transpose()?;
    let store = admin.store()?;
    let mut page = admin
        .browse(store.dead_page(&wanted, after.as_ref(), limit))
        .await?;
    let ids: Vec<DeadId> = page.marks.iter().map(|mark| mark.id.clone()).collect();
    let bodies = if body {
        admin.browse(store.dead_letters(&ids)).await
    } else {
        admin.browse(store.dead_outlines(&ids)).await
    }?;
    if bodies.len() < page.marks.len() {
        // The store returned as many bodies as fit into one answer: the next page begins with the rest.
        page.marks.truncate(bodies.len());
        page.next = page.marks.last().cloned();
    }
    let detail = if body {
        DetailLevel::Body
    } else {
        DetailLevel::Outline
    };
    let items = page.marks.iter().zip(bodies);
    let items = items
        .filter_map(|(mark, body)| Some(dead_letter_view(&mark.id, mark.at, &body?, detail)))
        .collect();
    let next = page
        .next
        .map(|mark| write_cursor((filter, order), (mark.at.0, mark.id.as_str())))
        .transpose()?;
    Ok((looked, Json(Page { items, next })))
}

impl From<ListedOrder> for DeadOrder {
    fn from(order: ListedOrder) -> Self {
        match order {
            ListedOrder::Oldest => Self::OldestFirst,
            ListedOrder::Newest => Self::NewestFirst,
        }
    }
}

/// `{id}` in a path.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct DeadLetterPath {
    /// A dead letter's id, or that of its message.
    id: String,
}

/// Query of one dead letter.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadShowQuery {
    /// The route, where a message's id is not unique.
    #[param(nullable = false)]
    route: Option<String>,
    /// With its body: needs a write token, and is audited.
    #[serde(default)]
    body: bool,
}

/// One dead letter, with its headers
///
/// By its own id or by its message's.
#[utoipa::path(
    get, path = "/api/v1/dead/{id}", operation_id = "getDead", params(DeadLetterPath, DeadShowQuery),
    responses(
        (status = 200, description = "The dead letter.", body = DeadLetterView),
        (status = 400, description = "An id that cannot be."),
        (status = 403, description = "The body is for write tokens. Or no token is configured, and the request came by a \
            host name other than localhost."),
        (status = 404, description = "No such dead letter, or no such route."),
        (status = 409, description = "Several dead letters have this message id; `detail` names them."),
        StoreAway,
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathParams(DeadLetterPath { id }): PathParams<DeadLetterPath>,
    query: QueryParams<DeadShowQuery>,
) -> Result<(Option<Extension<AuditNote>>, Json<DeadLetterView>), Problem> {
    show(Extract(admin), Extension(caller), &id, query).await
}

/// The answer about the dead letter that this id means.
pub(super) async fn show(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    id: &str,
    QueryParams(DeadShowQuery { route, body }): QueryParams<DeadShowQuery>,
) -> Result<(Option<Extension<AuditNote>>, Json<DeadLetterView>), Problem> {
    let looked = look_at_content(body, &caller)?;
    let unknown = || Problem::not_found(format!("there is no dead letter `{}`", id.escape_debug()));
    let dead = match &find_dead(&admin, id, route.as_deref()).await?[..] {
        [] => return Err(unknown()),
        [one] => one.clone(),
        several => {
            let detail = format!(
                "several dead letters have this message id: {}",
                list_of(several)
            );
            return Err(Problem::new(axum::http::StatusCode::CONFLICT, detail));
        }
    };
    let store = admin.store()?;
    let at = admin.ask(store.dead_at(&dead)).await?.ok_or_else(unknown)?;
    let ids = std::slice::from_ref(&dead);
    let found = if body {
        admin.browse(store.dead_letters(ids)).await
    } else {
        admin.browse(store.dead_outlines(ids)).await
    }?;
    let found = found.into_iter().next().flatten().ok_or_else(unknown)?;
    let detail = if body {
        DetailLevel::Body
    } else {
        DetailLevel::Headers
    };
    let view = dead_letter_view(&dead, at, &found, detail);
    Ok((looked, Json(view)))
}

/// The audit's note of a look at bodies, if it is one. Refuses a caller who may not see them.
fn look_at_content(body: bool, caller: &Caller) -> Result<Option<Extension<AuditNote>>, Problem> {
    if !body {
        return Ok(None);
    }
    caller.may_see_content()?;
    Ok(Some(Extension(AuditNote::new("bodies shown"))))
}

/// The first ten ids in a row, for a sentence.
pub(super) fn list_of(ids: &[DeadId]) -> String {
    ids.iter()
        .take(10)
        .map(DeadId::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Finds the dead letters that an id means: the dead letter of this id, or else those of the message of this id.
pub(super) async fn find_dead(
    admin: &Admin,
    id: &str,
    route: Option<&str>,
) -> Result<Vec<DeadId>, Problem> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(Problem::bad(format!("an id has 1 to {MAX_ID_BYTES} bytes")));
    }
    let of_route = route.map(|route| admin.route(route)).transpose()?;
    let store = admin.store()?;
    if let Some(dead) = DeadId::parse(id)
        && of_route.is_none_or(|route| route.name.as_str() == dead.route())
        && admin.ask(store.dead_at(&dead)).await?.is_some()
    {
        return Ok(vec![dead]);
    }
    let mut found = Vec::new();
    for route in admin
        .routes()
        .filter(|route| of_route.is_none_or(|of| of.name == route.name))
    {
        found.extend(admin.browse(store.dead_of_message(&route.name, id)).await?);
    }
    Ok(found)
}

fn reason_of(word: &str) -> Result<DeadReason, Problem> {
    DeadReason::parse(word).ok_or_else(|| {
        let near = nearest(word, DeadReason::all().map(DeadReason::as_str)).map(str::to_owned);
        Problem::bad(format!("`reason` cannot be `{}`", word.escape_debug())).nearest(near)
    })
}

fn bound(name: &str, text: Option<&str>) -> Result<Option<UnixMs>, Problem> {
    text.map(|text| moment(name, text)).transpose()
}

/// The store's form of a filter. 400 if a condition cannot be, 403 if the caller may not look into bodies, 404 if there is no
/// such route.
pub(super) fn store_filter(
    admin: &Admin,
    caller: &Caller,
    filter: &DeadLetterFilter,
) -> Result<DeadFilter, Problem> {
    let route = filter
        .route
        .as_deref()
        .map(|route| admin.route(route).map(|r| r.name.clone()))
        .transpose()?;
    let reason = match &filter.reason {
        Some(word) => Some(reason_of(word)?),
        None => None,
    };
    let from = bound("from", filter.from.as_deref())?;
    let to = bound("to", filter.to.as_deref())?;
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Problem::bad("`from` is not before `to`"));
    }
    Ok(DeadFilter {
        route,
        reason,
        from,
        to,
        message: message_filter(
            caller,
            filter.id_prefix.as_ref(),
            filter.key.as_ref(),
            &filter.header,
            filter.contains.as_ref(),
        )?,
        ..DeadFilter::default()
    })
}

/// The dead letter after which a cursor goes on.
pub(super) fn read_mark(at: i64, id: &str) -> Result<DeadMark, Problem> {
    let id =
        DeadId::parse(id).ok_or_else(|| Problem::bad("`cursor` is not one that this list gave"))?;
    Ok(DeadMark { at: UnixMs(at), id })
}
