//! Dead letters: redrive and drop, one or many.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::{Extension, Json};

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::context::Admin;
use super::dead::{find_dead, list_of, read_mark, store_filter};
use super::extract::{JsonBody, acting_body};
use super::page::{read_cursor, write_cursor};
use super::problem::Problem;
use super::redrive::{RedriveOrder, RedriveOutcome};
use super::times::moment;
use crate::api::{
    DeadActionEnd, DeadActionItem, DeadActionRequest, DeadLetterFilter, DeadLetterResults,
    Timestamp, Word,
};
use crate::domain::UnixMs;
use crate::domain::duration::parse_header;
use crate::store::{DeadFilter, DeadId, DeadMark, DeadOrder};

/// Most dead letters that one call acts on.
const MAX_ACTION_ITEMS: usize = 100;

acting_body!(DeadActionRequest);

/// Makes dead letters due again
///
/// Now, or later: `delay` or `at`, and `spread`. One that would be due beyond its route's `max_delay` is refused.
///
/// To the route's own target, the one they had, or `target`, without their delay headers, by the route's
/// rules as they are now. The attempts allowed start at 1; `x-delay-attempt` goes on counting. A message that dies again
/// is a new dead letter.
#[utoipa::path(
    post, path = "/api/v1/dead/redrive", operation_id = "redriveDead", request_body = DeadActionRequest,
    responses(
        (status = 200, description = "What was done, one by one.", body = DeadLetterResults),
        (status = 400, description = "Neither or both of `ids` and `filter`, or one of them cannot be. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn redrive(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<DeadActionRequest>,
) -> Result<(Extension<AuditNote>, Json<DeadLetterResults>), Problem> {
    let selected = select(&admin, &caller, &request).await?;
    let times = RedriveTimes::of(&request, admin.store()?.clock().now())?;
    let actor = caller.actor();
    let mut items = selected.ended;
    let number = selected.ids.len() as u64;
    for (index, (asked, id)) in selected.ids.into_iter().enumerate() {
        let order = RedriveOrder {
            due: times.due(index as u64, number),
            target: request.target.as_deref(),
            by: &actor,
        };
        let redriven = admin.state.redrive.redrive(&id, order);
        // A redrive opens the whole message.
        let redriven = admin.browse(redriven).await;
        let redriven = redriven.map_err(|problem| {
            problem.after(format_args!("{} of {number} redriven", done(&items)))
        })?;
        let (result, error) = match redriven {
            RedriveOutcome::Done => (DeadActionEnd::Redriven, None),
            RedriveOutcome::Unknown => (DeadActionEnd::Unknown, None),
            RedriveOutcome::Refused(why) => (DeadActionEnd::Refused, Some(why)),
        };
        items.push(ended(asked, &id, result, error));
    }
    Ok(answer(items, selected.next))
}

/// Drops dead letters for good
#[utoipa::path(
    post, path = "/api/v1/dead/drop", operation_id = "dropDead", request_body = DeadActionRequest,
    responses(
        (status = 200, description = "What was done, one by one.", body = DeadLetterResults),
        (status = 400, description = "Neither or both of `ids` and `filter`, or one of them cannot be. Nothing was done."),
        (status = 404, description = "No such route. Nothing was done."),
        (status = 503, description = "Redis is away. Some of it may have been done."),
        (status = 504, description = "Redis did not answer in time. Some of it may have been done."),
    )
)]
pub(super) async fn drop_dead(
    Extract(admin): Extract<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<DeadActionRequest>,
) -> Result<(Extension<AuditNote>, Json<DeadLetterResults>), Problem> {
    let times = [&request.delay, &request.at, &request.spread];
    let parts = [request.spread_over, request.spread_begins];
    let has_times = times.into_iter().any(Option::is_some) || parts.iter().any(Option::is_some);
    if request.target.is_some() || has_times {
        return Err(Problem::bad(
            "`target`, `delay`, `at` and `spread` are for redrive: what is dropped goes nowhere",
        ));
    }
    let selected = select(&admin, &caller, &request).await?;
    let mut items = selected.ended;
    let ids: Vec<DeadId> = selected.ids.iter().map(|(_, id)| id.clone()).collect();
    let actor = caller.actor();
    let dropped = admin.ask(admin.store()?.drop_dead_by(&ids, &actor)).await?;
    for ((asked, id), was_there) in selected.ids.into_iter().zip(dropped) {
        let result = if was_there {
            DeadActionEnd::Dropped
        } else {
            DeadActionEnd::Unknown
        };
        items.push(ended(asked, &id, result, None));
    }
    Ok(answer(items, selected.next))
}

/// When redriven messages are due.
struct RedriveTimes {
    from: UnixMs,
    spread_ms: i64,
    /// The number of messages that the spread is for, if more than one call redrives them.
    over: u64,
    /// How many of them earlier calls have taken.
    begins: u64,
}

impl RedriveTimes {
    fn of(request: &DeadActionRequest, now: UnixMs) -> Result<Self, Problem> {
        let span = |name: &str, span: &Timestamp| {
            parse_header(&span.text()).map_err(|why| Problem::bad(format!("`{name}`: {why}")))
        };
        let from = match (&request.delay, &request.at) {
            (None, None) => now,
            (Some(delay), None) => now.plus(span("delay", delay)?),
            (None, Some(at)) => moment("at", &at.text())?,
            (Some(_), Some(_)) => return Err(Problem::bad("give either `delay` or `at`")),
        };
        let is_part = request.spread_over.is_some() || request.spread_begins.is_some();
        if is_part && request.spread.is_none() {
            return Err(Problem::bad(
                "`spread_over` and `spread_begins` say which part of a `spread` is this call's: give it too",
            ));
        }
        let spread = request.spread.as_ref();
        let spread_ms = spread.map_or(Ok(0), |spread| span("spread", spread))?;
        Ok(Self {
            from,
            spread_ms,
            over: request.spread_over.unwrap_or(0),
            begins: request.spread_begins.unwrap_or(0),
        })
    }

    /// The due time of the message with this index among the so many of a call.
    fn due(&self, index: u64, number: u64) -> UnixMs {
        let place = self.begins.saturating_add(index);
        // What was counted may have grown since.
        let all = self.over.max(self.begins.saturating_add(number)).max(1);
        let ahead = i128::from(self.spread_ms) * i128::from(place) / i128::from(all);
        self.from.plus(i64::try_from(ahead).unwrap_or(i64::MAX))
    }
}

/// Dead letters that a request selects, and the items that have ended already: ids that mean none or several.
#[derive(Default)]
struct SelectedDead {
    ids: Vec<(String, DeadId)>,
    ended: Vec<DeadActionItem>,
    next: Option<String>,
}

async fn select(
    admin: &Admin,
    caller: &Caller,
    request: &DeadActionRequest,
) -> Result<SelectedDead, Problem> {
    match (&request.ids, &request.filter) {
        (Some(ids), None) => {
            caller.is_about(subject(request, &ids.join(" ")));
            select_by_ids(admin, request, ids).await
        }
        (None, Some(filter)) => {
            let filter_text = serde_json::to_string(filter).unwrap_or_default();
            caller.is_about(subject(request, &filter_text));
            select_by_filter(admin, caller, request, filter).await
        }
        _ => Err(Problem::bad(
            "say which dead letters: either `ids` or `filter` (`{}` means all)",
        )),
    }
}

/// What the call is about: where and when a redrive publishes, and which dead letters it is for.
fn subject(request: &DeadActionRequest, which: &str) -> String {
    let time = |name, given: &Option<Timestamp>| {
        let given = given.as_ref()?;
        Some(format!("{name}={}", given.text()))
    };
    let number = |name, given: Option<u64>| given.map(|given| format!("{name}={given}"));
    let target = request.target.as_ref();
    let asked = [
        target.map(|target| format!("target={target}")),
        time("delay", &request.delay),
        time("at", &request.at),
        time("spread", &request.spread),
        number("spread_over", request.spread_over),
        number("spread_begins", request.spread_begins),
        request.route.as_ref().map(|route| format!("route={route}")),
        Some(which.to_owned()),
    ];
    let asked: Vec<String> = asked.into_iter().flatten().collect();
    asked.join(" ")
}

async fn select_by_ids(
    admin: &Admin,
    request: &DeadActionRequest,
    ids: &[String],
) -> Result<SelectedDead, Problem> {
    if request.cursor.is_some() {
        return Err(Problem::bad("`cursor` goes with `filter`, not with `ids`"));
    }
    if ids.is_empty() || ids.len() > MAX_ACTION_ITEMS {
        return Err(Problem::bad(format!(
            "`ids` holds 1 to {MAX_ACTION_ITEMS} ids"
        )));
    }
    let mut selected = SelectedDead::default();
    for id in ids {
        let found = find_dead(admin, id, request.route.as_deref()).await?;
        match &found[..] {
            [one] => selected.ids.push((id.clone(), one.clone())),
            [] => selected
                .ended
                .push(not_selected(id, DeadActionEnd::Unknown, None)),
            several => {
                let why = format!(
                    "several dead letters have this message id: {}",
                    list_of(several)
                );
                selected
                    .ended
                    .push(not_selected(id, DeadActionEnd::Ambiguous, Some(why)));
            }
        }
    }
    Ok(selected)
}

async fn select_by_filter(
    admin: &Admin,
    caller: &Caller,
    request: &DeadActionRequest,
    filter: &DeadLetterFilter,
) -> Result<SelectedDead, Problem> {
    if request.route.is_some() {
        return Err(Problem::bad(
            "`route` goes with `ids`; a filter has its own",
        ));
    }
    let mut wanted = store_filter(admin, caller, filter)?;
    let cursor = request.cursor.as_deref();
    let place = cursor.map(|cursor| ActionPlace::read(cursor, filter));
    let place = place.transpose()?;
    // A message that is redriven and dies again is a new dead letter: without an end it would be redriven for ever.
    let end = match &place {
        Some(place) => Some(place.end),
        None => newest(admin, &wanted).await?.map(|newest| {
            let end = newest.plus(1);
            wanted.to.map_or(end, |to| to.min(end))
        }),
    };
    let Some(end) = end else {
        return Ok(SelectedDead::default());
    };
    wanted.to = Some(end);
    let after = place.map(|place| place.after);
    let page = admin
        .browse(
            admin
                .store()?
                .dead_page(&wanted, after.as_ref(), MAX_ACTION_ITEMS),
        )
        .await?;
    Ok(SelectedDead {
        ids: page
            .marks
            .into_iter()
            .map(|mark| (mark.id.to_string(), mark.id))
            .collect(),
        ended: Vec::new(),
        next: page
            .next
            .map(|after| ActionPlace { after, end }.write(filter))
            .transpose()?,
    })
}

/// The moment of the newest dead letter of a filter's route, or of all.
async fn newest(admin: &Admin, filter: &DeadFilter) -> Result<Option<UnixMs>, Problem> {
    let all = DeadFilter {
        route: filter.route.clone(),
        order: DeadOrder::NewestFirst,
        ..DeadFilter::default()
    };
    let page = admin
        .browse(admin.store()?.dead_page(&all, None, 1))
        .await?;
    Ok(page.marks.first().map(|mark| mark.at))
}

/// Where the calls of one action have come to.
struct ActionPlace {
    after: DeadMark,
    /// What died from this moment on is not acted on.
    end: UnixMs,
}

impl ActionPlace {
    fn read(cursor: &str, filter: &DeadLetterFilter) -> Result<Self, Problem> {
        let (at, id, end): (i64, String, i64) = read_cursor(cursor, filter)?;
        Ok(Self {
            after: read_mark(at, &id)?,
            end: UnixMs(end),
        })
    }

    fn write(&self, filter: &DeadLetterFilter) -> Result<String, Problem> {
        let Self { after, end } = self;
        write_cursor(filter, (after.at.0, after.id.as_str(), end.0))
    }
}

/// The item of an id that means no dead letter, or several.
fn not_selected(id: &str, result: DeadActionEnd, error: Option<String>) -> DeadActionItem {
    DeadActionItem {
        id: id.to_owned(),
        dead_id: None,
        route: None,
        result: result.into(),
        error,
    }
}

/// The item of a dead letter that was acted on.
fn ended(
    id: String,
    dead: &DeadId,
    result: DeadActionEnd,
    error: Option<String>,
) -> DeadActionItem {
    DeadActionItem {
        id,
        dead_id: Some(dead.to_string()),
        route: Some(dead.route().to_owned()),
        result: result.into(),
        error,
    }
}

/// The answer to a request, and the note of how many items ended well.
fn answer(
    items: Vec<DeadActionItem>,
    next: Option<String>,
) -> (Extension<AuditNote>, Json<DeadLetterResults>) {
    let note = AuditNote::new(format!("{} of {} done", done(&items), items.len()));
    (Extension(note), Json(DeadLetterResults { items, next }))
}

/// The number of items that ended well.
fn done(items: &[DeadActionItem]) -> usize {
    let good = [DeadActionEnd::Redriven, DeadActionEnd::Dropped].map(Word::from);
    let items = items.iter().filter(|item| good.contains(&item.result));
    items.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_log_tells_where_and_when_a_redrive_publishes() {
        for (request, subject) in [
            (r#"{"ids":["a","b"]}"#, "a b"),
            (
                r#"{"ids":["a"],"target":"t","delay":"5m","spread":"1h"}"#,
                "target=t delay=5m spread=1h a",
            ),
            (r#"{"ids":["a"],"at":1800000000000}"#, "at=1800000000000 a"),
            (
                r#"{"ids":["a"],"route":"r","spread":"1h","spread_over":9,"spread_begins":4}"#,
                "spread=1h spread_over=9 spread_begins=4 route=r a",
            ),
        ] {
            let request: DeadActionRequest = serde_json::from_str(request).expect("a request");
            let ids = request.ids.clone().unwrap_or_default();
            assert_eq!(super::subject(&request, &ids.join(" ")), subject);
        }
    }

    #[test]
    fn redriven_messages_are_due_evenly_over_the_spread() {
        let times = RedriveTimes {
            from: UnixMs(1000),
            spread_ms: 600,
            over: 0,
            begins: 0,
        };
        let due = |times: &RedriveTimes, number| {
            (0..number)
                .map(|index| times.due(index, number).0)
                .collect::<Vec<_>>()
        };
        assert_eq!(due(&times, 1), [1000]);
        assert_eq!(due(&times, 4), [1000, 1150, 1300, 1450]);
        let second = RedriveTimes {
            over: 6,
            begins: 4,
            ..times
        };
        assert_eq!(due(&second, 2), [1400, 1500]);
        assert_eq!(
            due(&second, 4),
            [1300, 1375, 1450, 1525],
            "more than were counted"
        );
        let longest = RedriveTimes {
            from: UnixMs(i64::MAX),
            spread_ms: i64::MAX,
            over: u64::MAX,
            begins: u64::MAX,
        };
        assert_eq!(longest.due(99, 100), UnixMs(i64::MAX));
    }
}
