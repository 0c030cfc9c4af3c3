//! Types of the API: what a call takes and what it answers. The server writes them, the commands read them, and the
//! description of the API is made of them.
//!
//! A command may be older or newer than the server that it asks:
//!
//! - An answer may have fields that its reader does not know. No answer denies them.
//! - A word that its reader may not know is a [`Word`].
//! - A field that an answer may be without is an `Option`, or has `#[serde(default)]`. A field that a release adds has the
//!   latter too; with `#[schema(required)]` the description says that it is always there now.

mod actions;
mod activity;
mod audit;
mod dead_letters;
mod messages;
mod overview;
mod routes;
mod sending;
mod session;
mod trail;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use actions::{
    PauseRequest, PausedView, PurgeAnswer, PurgeRequest, PurgeState, SkipRequest, SkippedView,
};
pub use activity::{ActivitySlotView, ActivityView};
pub use audit::AuditEntry;
pub use dead_letters::{
    Base64Body, DeadActionEnd, DeadActionItem, DeadActionRequest, DeadLetterFilter,
    DeadLetterMessage, DeadLetterResults, DeadLetterView, TextBody,
};
pub use messages::{
    CancelAnswer, CancelManyRequest, CancelResult, CancelledPage, CommandAnswer, CommandResult,
    FailureView, HeaderView, LastError, MAX_CANCELLED, MessageBodyView, MessageView, MessagesPage,
    PositionView, RequestView, RescheduleRequest, ShownState, Timestamp,
};
pub use overview::{
    FlowSeries, HistogramView, LiveFlow, LiveRoute, LivenessView, OverviewMoment, OverviewView,
    PartStateView, PartView, PartitionStatus, ReadinessView, RedisMemoryView, ReplicaStatusView,
    RouteSeries, TroubleView,
};
pub use routes::{
    ConsumerRetryView, DeadLettersView, HeaderNamesView, PauseView, PolicyView, RetryView,
    RoutePart, RouteView, SourceView, TargetView,
};
pub use sending::{AcceptedMessage, ReplaceRequest, SendAnswer, SendOutcome, SendRequest};
pub use session::{SessionRole, SessionView};
pub use trail::{MessageAnswer, MessageTrail, RouteEventView, TrailEventView};

/// The header by which a call without a body says why it is made: UTF-8, or percent-encoded.
pub const BECAUSE_HEADER: &str = "postdate-because";

/// A word of an answer, which may be one that only a later version knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Word<T> {
    /// A word of this version.
    Known(T),
    /// Any other.
    Other(String),
}

impl<T> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}

impl<T: Serialize> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_value(self) {
            Ok(Value::String(word)) => f.write_str(&word),
            _ => Err(fmt::Error),
        }
    }
}

/// A list, or a part of one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// Items of this page, in the list's order.
    pub items: Vec<T>,
    /// `cursor` of the next page; null: this is the last.
    #[schema(required)]
    pub next: Option<String>,
}

/// An error, in the form of RFC 9457.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`.
    #[serde(rename = "type", default)]
    #[schema(value_type = String, required)]
    pub kind: Box<str>,
    /// The status in words.
    #[serde(default)]
    #[schema(value_type = String, required)]
    pub title: Box<str>,
    /// The HTTP status.
    #[serde(default)]
    #[schema(required)]
    pub status: u16,
    /// The error and what to do about it, in a sentence.
    #[schema(value_type = String)]
    pub detail: Box<str>,
    /// Why the route would call the message invalid, in the contract's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub reason: Option<Box<str>>,
    /// The result of a command: `in_flight`, `published`, `too_late`, `changed` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub result: Option<Box<str>>,
    /// The id of the message in question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub id: Option<Box<str>>,
    /// The name that is there and looks most like the one asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub nearest: Option<Box<str>>,
}
