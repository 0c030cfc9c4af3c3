//! Retries: messages whose publish failed and that wait to be tried again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use serde::Deserialize;
use utoipa::IntoParams;

use super::context::Admin;
use super::extract::QueryParams;
use super::message::message_view;
use super::page::{limit, read_cursor, write_cursor};
use super::problem::{Problem, StoreAway};
use crate::api::{MessageView, Page};
use crate::domain::{Partition, UnixMs};
use crate::store::RetryMark;

/// Query of the list of retries.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryQuery {
    /// Of this route only.
    route: Option<String>,
    /// `next` of the page before, with the same filter.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000, value_type = Option<u32>)]
    limit: Option<String>,
}

/// Messages that failed and wait to be tried again
///
/// `due_ms` is the next try, `last_error` the reason of the last one. Over all partitions, each page in the order of the next
/// try. A page may be short, even empty, while `next` is there.
#[utoipa::path(
    get, path = "/api/v1/retries", operation_id = "listRetries", params(RetryQuery),
    responses(
        (status = 200, description = "The messages.", body = Page<MessageView>),
        (status = 400, description = "A query, a limit or a cursor that is none."),
        (status = 404, description = "No such route."),
        StoreAway,
    )
)]
pub(super) async fn list(
    Extract(admin): Extract<Arc<Admin>>,
    QueryParams(query): QueryParams<RetryQuery>,
) -> Result<Json<Page<MessageView>>, Problem> {
    let route = query
        .route
        .as_deref()
        .map(|name| admin.route(name).map(|r| r.name.clone()))
        .transpose()?;
    let limit = limit(query.limit.as_deref())?;
    let cursor_scope = ("retries".to_owned(), query.route.clone());
    let after = query
        .cursor
        .as_deref()
        .map(|cursor| read_cursor(cursor, &cursor_scope))
        .transpose()?;
    let after = after.map(|(p, asked, bundle, index)| RetryMark {
        partition: Partition(p),
        asked: UnixMs(asked),
        bundle,
        index,
    });
    let page = admin
        .browse(
            admin
                .store()?
                .retries(route.as_ref(), after.as_ref(), limit),
        )
        .await?;
    let next = page
        .next
        .map(|m| write_cursor(&cursor_scope, (m.partition.0, m.asked.0, m.bundle, m.index)));
    let mut found = page.found;
    found.sort_by_key(|message| message.entry.due);
    let items = found
        .iter()
        .map(|found| message_view(&admin, found))
        .collect();
    Ok(Json(Page {
        items,
        next: next.transpose()?,
    }))
}
