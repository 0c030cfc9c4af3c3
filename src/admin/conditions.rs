//! Conditions on messages, as callers give them.

use axum::Extension;
use serde::{Deserialize, Serialize};

use super::audit_note::AuditNote;
use super::auth::Caller;
use super::page::{read_cursor, write_cursor};
use super::problem::Problem;
use super::times::{LAST_MOMENT, moment};
use crate::api::PurgeState;
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::{BrowseKey, BrowseQuery, MessageFilter};

/// All that selects waiting messages, as callers write it. A cursor belongs to one selection.
#[derive(Serialize, Deserialize, PartialEq)]
pub(super) struct Selection {
    pub(super) route: Option<String>,
    pub(super) state: Option<PurgeState>,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) id_prefix: Option<String>,
    pub(super) key: Option<String>,
    pub(super) header: Vec<String>,
    pub(super) contains: Option<String>,
}

impl Selection {
    /// The store's form of it, from a cursor on. 400 if it cannot be, 403 if the caller may not look into bodies.
    pub(super) fn query(
        &self,
        caller: &Caller,
        route: Option<RouteName>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<BrowseQuery, Problem> {
        let bound = |name, text: &Option<String>, or| match text {
            Some(text) => moment(name, text),
            None => Ok(or),
        };
        let from = bound("from", &self.from, UnixMs(0))?;
        let to = bound("to", &self.to, LAST_MOMENT)?;
        if from > to {
            return Err(Problem::bad("`from` is later than `to`: exchange them"));
        }
        let filter = message_filter(
            caller,
            self.id_prefix.as_ref(),
            self.key.as_ref(),
            &self.header,
            self.contains.as_ref(),
        )?;
        let after = match cursor {
            Some(cursor) => {
                let (due, p, bundle, index) = read_cursor(cursor, self)?;
                Some(BrowseKey {
                    due: UnixMs(due),
                    partition: Partition(p),
                    bundle,
                    index,
                })
            }
            None => None,
        };
        Ok(BrowseQuery {
            route,
            from,
            to,
            after,
            limit,
            filter,
        })
    }

    /// The cursor of what follows a message.
    pub(super) fn cursor(&self, after: BrowseKey) -> Result<String, Problem> {
        let BrowseKey {
            due,
            partition,
            bundle,
            index,
        } = after;
        write_cursor(self, (due.0, partition.0, bundle, index))
    }
}

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
pub(super) fn searched(caller: &Caller, filter: &MessageFilter) -> Option<Extension<AuditNote>> {
    let text = filter.contains.as_ref()?;
    caller.is_about(format!("contains={text}"));
    Some(Extension(AuditNote::new("bodies searched")))
}
