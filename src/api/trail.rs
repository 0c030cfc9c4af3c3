//! What became of messages.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::{MessageView, PositionView, ShownState, Word};
use crate::domain::TrailWord;

/// A message, or what the trail tells of one that is gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MessageAnswer)]
#[serde(untagged)]
pub enum MessageAnswer {
    /// The store has it.
    Kept(Box<MessageView>),
    /// It is gone.
    Gone(MessageTrail),
}

impl MessageAnswer {
    /// Its route.
    pub fn route(&self) -> &str {
        match self {
            Self::Kept(message) => &message.route,
            Self::Gone(trail) => &trail.route,
        }
    }

    /// Reports whether the message waits, or is being published.
    pub fn waits(&self) -> bool {
        let Self::Kept(message) = self else {
            return false;
        };
        let waits = [
            ShownState::Pending,
            ShownState::InFlight,
            ShownState::Published,
        ];
        waits.map(Word::Known).contains(&message.state)
    }
}

/// A message that is gone. Told by its route's trail, which is a help and no proof.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MessageTrail {
    /// Its producer's name for it, or the `~` id that Postdate gave it.
    pub id: String,
    /// The route.
    pub route: String,
    /// Its end, if the trail has it; else the last that is known of it.
    #[schema(value_type = TrailWord)]
    pub state: Word<TrailWord>,
    /// The newest of its events, at most 20, oldest first.
    pub trail: Vec<TrailEventView>,
}

impl PartialSchema for TrailWord {
    fn schema() -> RefOr<Schema> {
        let meaning = "An event of a message. `delivered`: its target has confirmed it; `cancelled`: it was not published; \
            `moved`: it has another due time; `replaced`: another message of its name took its place; `dead`: it became \
            a dead letter; `dropped`: nothing of it was kept; `deduplicated`: another message of its name was \
            acknowledged and not stored; `redriven`: it is no dead letter any more, and due again.";
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Self::ALL.map(Self::as_str)))
            .description(Some(meaning))
            .into()
    }
}

impl ToSchema for TrailWord {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("TrailState")
    }
}

/// One event of a message. Each has those of the fields that say something about it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TrailEvent)]
pub struct TrailEventView {
    /// When, Unix ms, by Redis's clock.
    pub at_ms: i64,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub at: Option<String>,
    /// Kind of the event.
    #[schema(value_type = TrailWord)]
    pub event: Word<TrailWord>,
    /// `delivered`: the confirm minus the due time that was asked for, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub late_ms: Option<i64>,
    /// `delivered`: the number of the attempt; the first is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempt: Option<u32>,
    /// `delivered`: the target: a topic, or `exchange/routing-key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub target: Option<String>,
    /// `delivered`: the target's connection, as its section is called: `kafka.NAME` or `rabbitmq.NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub connection: Option<String>,
    /// `delivered`, `dead`, `dropped`, `cancelled` by a caller: the due time that was asked for; `moved`: the new one; Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub due_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub due: Option<String>,
    /// `cancelled`, `moved`, `replaced`, `redriven`, `dropped`: who asked for it: `header`, the caller of the API as the audit
    /// log names it, or the key of the configuration that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub by: Option<String>,
    /// Why, in the words of whoever asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub because: Option<String>,
    /// `dead`, `dropped`: the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// `dead`, `redriven`, `dropped`: the id of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dead_id: Option<String>,
    /// Position of the Kafka record that did it: the command, the other message of its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub position: Option<PositionView>,
    /// `delivered` to Kafka: where it lies in the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub landed: Option<PositionView>,
}

/// An event of some message of a route.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RouteEvent)]
pub struct RouteEventView {
    /// The message's own name, or its `~` id.
    pub id: String,
    #[serde(flatten)]
    pub(crate) event: TrailEventView,
}
