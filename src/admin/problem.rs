//! Every error of the API, in the form of RFC 9457.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa::IntoResponses;

use super::audit_note::AuditNote;
pub(super) use crate::api::Problem;

/// The media type of every error.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// What each call that reads from the store answers while it cannot, for the descriptions.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "the description is made of it")]
pub(super) enum StoreAway {
    /// Redis is away.
    #[response(status = 503)]
    Away,
    /// Redis did not answer in time.
    #[response(status = 504)]
    Late,
}

impl Problem {
    /// A problem of this status. `detail` is a sentence for a person, without its final stop.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: detail.into().into_boxed_str(),
            reason: None,
            result: None,
            id: None,
            nearest: None,
        }
    }

    /// The HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The sentence of the problem.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// A problem of status 400.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A problem of status 404.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// A problem of status 503.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Adds why the route would call the message invalid.
    #[must_use]
    pub(super) fn reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds the result of a command.
    #[must_use]
    pub(super) fn result(mut self, result: &'static str) -> Self {
        self.result = Some(result.into());
        self
    }

    /// Adds the id of the message in question.
    #[must_use]
    pub(super) fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into().into_boxed_str());
        self
    }

    /// Adds what the call had done before.
    #[must_use]
    pub(super) fn after(mut self, done: fmt::Arguments<'_>) -> Self {
        self.detail = format!("{}; before that: {done}", self.detail).into_boxed_str();
        self
    }

    /// Adds the name that was probably meant, to the sentence too.
    #[must_use]
    pub(super) fn nearest(mut self, nearest: Option<String>) -> Self {
        if let Some(nearest) = nearest {
            let detail = format!(
                "{}; did you mean `{}`?",
                self.detail,
                nearest.escape_debug()
            );
            self.detail = detail.into_boxed_str();
            self.nearest = Some(nearest.into_boxed_str());
        }
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let note = AuditNote {
            subject: self.id.as_deref().unwrap_or_default().to_owned(),
            result: self.detail.to_string(),
        };
        let mut response = (status, Json(self)).into_response();
        response.extensions_mut().insert(note);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"postdate\""),
            );
        }
        response
    }
}
