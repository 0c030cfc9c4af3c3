//! Dead letters: finding them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::dead_letter::{Letter, Much, letter};
use super::extract::{Asked, Segments};
use super::page::{Page, read_cursor, write_cursor};
use super::problem::Problem;
use super::router::Admin;
use crate::domain::{DeadReason, UnixMs, moment, nearest};
use crate::store::{DeadFilter, DeadId, DeadMark};

/// Items of a page, and most of them.
const PAGE: usize = 100;
const MOST: usize = 1000;

/// Which dead letters. All of it holds together; what is not given does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Of this route.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) route: Option<String>,
    /// Dead for this reason, in the contract's word.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) reason: Option<String>,
    /// Dead since this moment: RFC 3339, or Unix milliseconds as text.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) from: Option<String>,
    /// Dead before this moment.
    #[schema(nullable = false)]
    #[param(nullable = false)]
    pub(super) to: Option<String>,
}

/// What a list is asked for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
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
    /// With headers and bodies.
    #[serde(default)]
    body: bool,
    /// `next` of the page before.
    #[param(nullable = false)]
    cursor: Option<String>,
    /// Items at most; 100 if not given.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Dead letters, oldest first
///
/// Over all partitions. A page of a narrow filter may have fewer items than asked for, even none, and still
/// not be the last: `next` tells.
#[utoipa::path(
    get, path = "/api/v1/dead", operation_id = "listDead", params(Listing),
    responses(
        (status = 200, description = "Some of them.", body = Page<Letter>),
        (status = 400, description = "A filter, a cursor or a limit that cannot be."),
        (status = 404, description = "No such route."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    Asked(listing): Asked<Listing>,
) -> Result<Json<Page<Letter>>, Problem> {
    let Listing { route, reason, from, to, body, cursor, limit } = listing;
    let which = Which { route, reason, from, to };
    let filter = filter(&admin, &which)?;
    let limit = match limit {
        None => PAGE,
        Some(limit @ 1..=MOST) => limit,
        Some(_) => return Err(Problem::bad(format!("`limit` is 1 to {MOST}"))),
    };
    let after = cursor.map(|cursor| read_mark(&cursor, &which)).transpose()?;
    let mut page = admin.ask(admin.state.graves.page(&filter, after.as_ref(), limit)).await?;
    let ids: Vec<DeadId> = page.marks.iter().map(|mark| mark.id.clone()).collect();
    let bodies = admin.ask(admin.state.graves.read(&ids)).await?;
    if bodies.len() < page.marks.len() {
        // The rest would be too much at once: the next page begins with it.
        page.marks.truncate(bodies.len());
        page.next = page.marks.last().cloned();
    }
    let much = if body { Much::Body } else { Much::Outline };
    let items = page.marks.iter().zip(bodies);
    let items = items.filter_map(|(mark, body)| Some(letter(&mark.id, mark.at, &body?, much))).collect();
    let next = page.next.map(|mark| write_mark(&mark, &which)).transpose()?;
    Ok(Json(Page { items, next }))
}

/// One of the dead letters.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct InDead {
    /// A dead letter's id, or that of its message.
    id: String,
}

/// How one letter is asked for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Showing {
    /// The route, where a message's id is not unique.
    #[param(nullable = false)]
    route: Option<String>,
    /// With its body.
    #[serde(default)]
    body: bool,
}

/// One dead letter, with its headers
///
/// By its own id or by its message's.
#[utoipa::path(
    get, path = "/api/v1/dead/{id}", operation_id = "getDead", params(InDead, Showing),
    responses(
        (status = 200, description = "The dead letter.", body = Letter),
        (status = 400, description = "An id that cannot be."),
        (status = 404, description = "No such dead letter, or no such route."),
        (status = 409, description = "Several dead letters have this message id; `detail` names them."),
        (status = 503, description = "Redis is away."),
        (status = 504, description = "Redis did not answer in time."),
    )
)]
pub(super) async fn one(
    Extract(admin): Extract<Arc<Admin>>,
    Segments(InDead { id }): Segments<InDead>,
    Asked(Showing { route, body }): Asked<Showing>,
) -> Result<Json<Letter>, Problem> {
    let unknown = || Problem::not_found(format!("there is no dead letter `{}`", id.escape_debug()));
    let dead = match &find(&admin, &id, route.as_deref()).await?[..] {
        [] => return Err(unknown()),
        [one] => one.clone(),
        several => {
            let detail = format!("several dead letters have this message id: {}", list_of(several));
            return Err(Problem::new(axum::http::StatusCode::CONFLICT, detail));
        }
    };
    let at = admin.ask(admin.state.graves.at(&dead)).await?.ok_or_else(unknown)?;
    let found = admin.ask(admin.state.graves.read(std::slice::from_ref(&dead))).await?;
    let found = found.into_iter().next().flatten().ok_or_else(unknown)?;
    Ok(Json(letter(&dead, at, &found, if body { Much::Body } else { Much::Headers })))
}

/// Some ids in a row, for a sentence.
pub(super) fn list_of(ids: &[DeadId]) -> String {
    ids.iter().take(10).map(DeadId::as_str).collect::<Vec<_>>().join(", ")
}

/// The dead letters that an id means: itself, or those of its message.
pub(super) async fn find(admin: &Admin, id: &str, route: Option<&str>) -> Result<Vec<DeadId>, Problem> {
    if id.is_empty() || id.len() > 400 {
        return Err(Problem::bad("an id has 1 to 256 bytes"));
    }
    let of_route = route.map(|route| admin.route(route)).transpose()?;
    if let Some(dead) = DeadId::parse(id)
        && of_route.is_none_or(|route| route.name.as_str() == dead.route())
        && admin.ask(admin.state.graves.at(&dead)).await?.is_some()
    {
        return Ok(vec![dead]);
    }
    let mut found = Vec::new();
    for route in admin.routes().filter(|route| of_route.is_none_or(|of| of.name == route.name)) {
        found.extend(admin.ask(admin.state.graves.find(&route.name, id)).await?);
    }
    Ok(found)
}

/// What a filter means; 400 or 404 if it means nothing.
pub(super) fn filter(admin: &Admin, which: &Which) -> Result<DeadFilter, Problem> {
    let route = which.route.as_deref().map(|route| admin.route(route).map(|r| r.name.clone())).transpose()?;
    let reason = which.reason.as_deref().map(|word| {
        DeadReason::parse(word).ok_or_else(|| {
            let near = nearest(word, DeadReason::all().map(DeadReason::as_str)).map(str::to_owned);
            Problem::bad(format!("`reason` cannot be `{}`", word.escape_debug())).nearest(near)
        })
    });
    let at = |name: &str, text: &Option<String>| {
        let parsed = text.as_deref().map(|text| text.parse().map(UnixMs).or_else(|_| moment::parse(text)));
        parsed.transpose().map_err(|why| {
            Problem::bad(format!("`{name}` is no moment: {why}; write RFC 3339 with an offset, or Unix ms"))
        })
    };
    let (from, to) = (at("from", &which.from)?, at("to", &which.to)?);
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Problem::bad("`from` is not before `to`"));
    }
    Ok(DeadFilter { route, invalid: None, reason: reason.transpose()?, from, to })
}

pub(super) fn write_mark(mark: &DeadMark, which: &Which) -> Result<String, Problem> {
    write_cursor(which, (mark.at.0, mark.id.as_str()))
}

pub(super) fn read_mark(cursor: &str, which: &Which) -> Result<DeadMark, Problem> {
    let (at, id): (i64, String) = read_cursor(cursor, which)?;
    let id = DeadId::parse(&id).ok_or_else(|| Problem::bad("`cursor` is not one that this list gave"))?;
    Ok(DeadMark { at: UnixMs(at), id })
}
