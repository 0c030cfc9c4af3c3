//! Dead letters: redrive and drop, one or many.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::audit::Noted;
use super::dead::{Which, filter, find, list_of, read_mark, write_mark};
use super::extract::Body;
use super::graves::Redriven;
use super::problem::Problem;
use super::router::Admin;
use crate::store::{DeadId, DeadMark};

/// Dead letters that one call acts on.
const AT_ONCE: usize = 100;

/// Which dead letters are meant: `ids`, or `filter`. An empty filter means all of them.
#[derive(Deserialize, ToSchema)]
#[schema(as = DeadAct)]
#[serde(deny_unknown_fields)]
pub(super) struct Act {
    /// Ids of dead letters, or of their messages; at most 100.
    #[schema(nullable = false, max_items = 100)]
    ids: Option<Vec<String>>,
    /// The route, where a message's id is not unique. Only with `ids`.
    #[schema(nullable = false)]
    route: Option<String>,
    /// Which of them. Acts on at most 100 a call: `next` of the answer is `cursor` of the next call.
    #[schema(nullable = false)]
    filter: Option<Which>,
    /// Where to go on. Only with `filter`.
    #[schema(nullable = false)]
    cursor: Option<String>,
    /// Redrive only: another target of the route, as `allow_targets` writes it, or its own.
    #[schema(nullable = false)]
    target: Option<String>,
}

/// What was done.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadActed)]
pub(super) struct Acted {
    /// One item for each that was asked for or found.
    items: Vec<Ended>,
    /// `cursor` of the next call; null: there is no more.
    #[schema(required)]
    next: Option<String>,
}

/// How it went with one.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadActResult)]
struct Ended {
    /// As it was asked for: a dead letter's id, or a message's.
    id: String,
    /// The dead letter, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead_id: Option<String>,
    /// Its route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    route: Option<String>,
    /// How it ended.
    result: How,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

/// How an act ended. `unknown`: it is not there (any more); `ambiguous`: several dead letters have this
/// message id; `refused`: a rule of its route keeps it where it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = DeadActEnd)]
#[serde(rename_all = "snake_case")]
enum How {
    Redriven,
    Dropped,
    Unknown,
    Ambiguous,
    Refused,
}

/// Makes dead letters due now
///
/// To the route's own target, the one they had, or `target`, without their delay headers, by the route's
/// rules as they are now. The attempts allowed start at 1; `x-delay-attempt` goes on counting. What dies again
/// is a new dead letter.
#[utoipa::path(
    post, path = "/api/v1/dead/redrive", operation_id = "redriveDead", request_body = Act,
    responses(
        (status = 200, description = "What was done, one by one.", body = Acted),
        (status = 400, description = "Neither or both of `ids` and `filter`, or one of them cannot be. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 408, description = "The body did not come in time. Nothing was done."),
        (status = 413, description = "The body is too large. Nothing was done."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn redrive(
    Extract(admin): Extract<Arc<Admin>>,
    Body(act): Body<Act>,
) -> Result<(Extension<Noted>, Json<Acted>), Problem> {
    let meant = meant(&admin, &act).await?;
    let mut items = meant.ended;
    for (asked, id) in meant.ids {
        let (result, error) = match admin.ask(admin.state.graves.redrive(&id, act.target.as_deref())).await? {
            Redriven::Done => (How::Redriven, None),
            Redriven::Unknown => (How::Unknown, None),
            Redriven::Refused(why) => (How::Refused, Some(why)),
        };
        items.push(ended(asked, &id, result, error));
    }
    Ok(answer(&act, items, How::Redriven, meant.next))
}

/// Drops dead letters for good
#[utoipa::path(
    post, path = "/api/v1/dead/drop", operation_id = "dropDead", request_body = Act,
    responses(
        (status = 200, description = "What was done, one by one.", body = Acted),
        (status = 400, description = "Neither or both of `ids` and `filter`, or one of them cannot be. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 408, description = "The body did not come in time. Nothing was done."),
        (status = 413, description = "The body is too large. Nothing was done."),
        (status = 415, description = "The body is not said to be `application/json`. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn drop_dead(
    Extract(admin): Extract<Arc<Admin>>,
    Body(act): Body<Act>,
) -> Result<(Extension<Noted>, Json<Acted>), Problem> {
    if act.target.is_some() {
        return Err(Problem::bad("`target` is for redrive: what is dropped goes nowhere"));
    }
    let meant = meant(&admin, &act).await?;
    let mut items = meant.ended;
    let ids: Vec<DeadId> = meant.ids.iter().map(|(_, id)| id.clone()).collect();
    let dropped = admin.ask(admin.state.graves.drop_dead(&ids)).await?;
    for ((asked, id), there) in meant.ids.into_iter().zip(dropped) {
        items.push(ended(asked, &id, if there { How::Dropped } else { How::Unknown }, None));
    }
    Ok(answer(&act, items, How::Dropped, meant.next))
}

/// The letters that an act means, and what has ended already: ids that mean none or several.
struct Meant {
    ids: Vec<(String, DeadId)>,
    ended: Vec<Ended>,
    next: Option<String>,
}

async fn meant(admin: &Admin, act: &Act) -> Result<Meant, Problem> {
    let mut meant = Meant { ids: Vec::new(), ended: Vec::new(), next: None };
    match (&act.ids, &act.filter) {
        (Some(ids), None) => {
            if act.cursor.is_some() {
                return Err(Problem::bad("`cursor` goes with `filter`, not with `ids`"));
            }
            if ids.is_empty() || ids.len() > AT_ONCE {
                return Err(Problem::bad(format!("`ids` holds 1 to {AT_ONCE} ids")));
            }
            for id in ids {
                let found = find(admin, id, act.route.as_deref()).await?;
                match &found[..] {
                    [one] => meant.ids.push((id.clone(), one.clone())),
                    [] => meant.ended.push(none(id, How::Unknown, None)),
                    several => {
                        let why = format!("several dead letters have this message id: {}", list_of(several));
                        meant.ended.push(none(id, How::Ambiguous, Some(why)));
                    }
                }
            }
        }
        (None, Some(which)) => {
            if act.route.is_some() {
                return Err(Problem::bad("`route` goes with `ids`; a filter has its own"));
            }
            let wanted = filter(admin, which)?;
            let after: Option<DeadMark> =
                act.cursor.as_deref().map(|cursor| read_mark(cursor, which)).transpose()?;
            let page = admin.ask(admin.state.graves.page(&wanted, after.as_ref(), AT_ONCE)).await?;
            meant.ids = page.marks.into_iter().map(|mark| (mark.id.to_string(), mark.id)).collect();
            meant.next = page.next.map(|mark| write_mark(&mark, which)).transpose()?;
        }
        _ => return Err(Problem::bad("say which dead letters: either `ids` or `filter` (`{}` means all)")),
    }
    Ok(meant)
}

fn none(id: &str, result: How, error: Option<String>) -> Ended {
    Ended { id: id.to_owned(), dead_id: None, route: None, result, error }
}

fn ended(id: String, dead: &DeadId, result: How, error: Option<String>) -> Ended {
    Ended { id, dead_id: Some(dead.to_string()), route: Some(dead.route().to_owned()), result, error }
}

fn answer(act: &Act, items: Vec<Ended>, good: How, next: Option<String>) -> (Extension<Noted>, Json<Acted>) {
    let done = items.iter().filter(|item| item.result == good).count();
    let subject = match (&act.ids, &act.filter) {
        (Some(ids), _) => ids.join(" "),
        (None, which) => serde_json::to_string(which).unwrap_or_default(),
    };
    let noted = Noted::new(subject, format!("{done} of {} done", items.len()));
    (Extension(noted), Json(Acted { items, next }))
}
