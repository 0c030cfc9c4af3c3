//! Moments and delays, as callers write them and as answers show them.

use serde::Deserialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::problem::Problem;
use crate::domain::{UnixMs, moment};

/// What a delay header may hold: a text, or a whole number of milliseconds.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a delay or a moment is a text or a whole number of milliseconds")]
pub(super) enum Moment {
    /// Milliseconds.
    Ms(u64),
    /// As a producer would write it.
    Text(String),
}

impl PartialSchema for Moment {
    fn schema() -> RefOr<Schema> {
        let kinds = SchemaType::Array(vec![Type::String, Type::Integer]);
        let meaning = "As a delay header holds it: a text, or a whole number of milliseconds.";
        ObjectBuilder::new().schema_type(kinds).minimum(Some(0)).description(Some(meaning)).into()
    }
}

impl ToSchema for Moment {}

impl Moment {
    /// As a header holds it.
    pub(super) fn text(self) -> String {
        match self {
            Self::Ms(ms) => ms.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// The last moment that can be written: the end of the year 9999.
pub(super) const LAST: UnixMs = UnixMs(253_402_300_799_999);

/// A moment of a query, under this name: Unix ms, or RFC 3339 with an offset.
pub(super) fn moment(name: &str, text: &str) -> Result<UnixMs, Problem> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let ms = text.parse().ok().map(UnixMs).filter(|ms| *ms <= LAST);
        return ms.ok_or_else(|| Problem::bad(format!("`{name}` is beyond the year 9999")));
    }
    moment::parse(text).map_err(|e| {
        let detail =
            format!("`{name}` is no moment: {e}; or Unix milliseconds (a `+` is written %2B in a URL)");
        Problem::bad(detail)
    })
}

/// RFC 3339 in UTC; `None` beyond the year 9999.
pub(super) fn rfc3339(moment: UnixMs) -> Option<String> {
    jiff::Timestamp::from_millisecond(moment.0).ok().map(|t| t.to_string())
}
