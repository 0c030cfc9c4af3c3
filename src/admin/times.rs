//! Moments and delays, as callers write them and as answers show them.

use serde::Deserialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::domain::UnixMs;

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

/// RFC 3339 in UTC; `None` beyond the year 9999.
pub(super) fn rfc3339(moment: UnixMs) -> Option<String> {
    jiff::Timestamp::from_millisecond(moment.0).ok().map(|t| t.to_string())
}
