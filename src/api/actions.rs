//! What is done to a route: pausing, purging, skipping.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{PauseView, RoutePart, Word};
use crate::domain::Because;

/// The part of a route that is to be paused or resumed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pausing)]
pub struct PauseRequest {
    /// Only this part; without it both.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub only: Option<RoutePart>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// The parts of a route that are paused by hand.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PauseState)]
pub struct PausedView {
    /// The route.
    pub route: String,
    /// The paused parts: `ingress` (nothing is read from its topic or queue), `publishing` (nothing of it is claimed or
    /// published), both, or nothing.
    #[schema(value_type = Vec<RoutePart>)]
    pub paused: Vec<Word<RoutePart>>,
    /// Of each paused part who paused it, when and why.
    pub pauses: Vec<PauseView>,
}

/// Which of a route's messages that wait: by whether a publish of them has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = PurgeState)]
pub enum PurgeState {
    /// No publish of it has failed.
    Waiting,
    /// A publish of it has failed; it waits for the next.
    Retrying,
}

/// The messages to be cancelled. Without a condition all that wait.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Purge)]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    /// Only those in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<PurgeState>,
    /// Due at this moment or later: RFC 3339 with an offset, or Unix ms as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<String>,
    /// Due at this moment or earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
    /// Whose id begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id_prefix: Option<String>,
    /// Whose key is this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// That have all of these headers, each `NAME:VALUE`: the name in any case, the value whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub header: Vec<String>,
    /// Whose bodies have this text in them. Needs the right to see bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub contains: Option<String>,
    /// Change nothing: say what would be cancelled.
    #[serde(default)]
    #[schema(default = false)]
    pub dry_run: bool,
    /// `next` of the answer before, with the same conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cursor: Option<String>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// What a call cancelled, or would cancel.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct PurgeAnswer {
    /// The route.
    pub route: String,
    /// True if nothing was changed.
    pub dry_run: bool,
    /// Messages that will not be published; of a dry run those that would not be.
    pub messages: u64,
    /// Bytes of their bodies together.
    pub bytes: u64,
    /// Messages that stay because their bundles are in flight, all of the route's, as of the first call; later calls add
    /// those that were claimed before they could be cancelled.
    pub in_flight: u64,
    /// Messages that stay because they were moved, replaced or tried meanwhile, or left.
    pub changed: u64,
    /// `cursor` of the next call; null: there is no more.
    #[schema(required)]
    pub next: Option<String>,
}

/// Where reading goes on: `offset` is skipped, or the partition begins at `to` or `since`. One of the three.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Skipping)]
pub struct SkipRequest {
    /// The topic, where the route reads several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub topic: Option<String>,
    /// The partition of the route's topic.
    #[schema(minimum = 0)]
    pub partition: i32,
    /// The offset at which it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, nullable = false)]
    pub offset: Option<i64>,
    /// The offset at which it begins: it waits for a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, nullable = false)]
    pub to: Option<i64>,
    /// The time of the record at which it begins, or of the next one: RFC 3339 with an offset, or Unix ms as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub since: Option<String>,
    /// Why, in the caller's own words: one line of at most 500 bytes, for audit, trail and log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, max_length = 500)]
    pub because: Option<Because>,
}

/// Where reading goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Skipped)]
pub struct SkippedView {
    /// The route.
    pub route: String,
    /// Its topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset that was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub offset: Option<i64>,
    /// The offset from which reading goes on.
    pub next: i64,
}
