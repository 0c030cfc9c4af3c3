//! The events in the life of a message.

use serde::{Deserialize, Serialize};

/// Kind of an event in the life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrailWord {
    /// Its target has confirmed it.
    Delivered,
    /// It was cancelled and will not be published.
    Cancelled,
    /// It has another due time.
    Moved,
    /// Another message of its name has taken its place.
    Replaced,
    /// It became a dead letter.
    Dead,
    /// It was given up for good: nothing of it is kept.
    Dropped,
    /// Another message of its name was acknowledged and not stored.
    Deduplicated,
    /// It is no dead letter any more: it is due again.
    Redriven,
}

impl TrailWord {
    /// All words, in the order of their numbers in the stored form.
    pub const ALL: [Self; 8] = [
        Self::Delivered,
        Self::Cancelled,
        Self::Moved,
        Self::Replaced,
        Self::Dead,
        Self::Dropped,
        Self::Deduplicated,
        Self::Redriven,
    ];

    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::Moved => "moved",
            Self::Replaced => "replaced",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
            Self::Deduplicated => "deduplicated",
            Self::Redriven => "redriven",
        }
    }

    /// Reports whether this is the end of a message.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Delivered | Self::Cancelled | Self::Dead | Self::Dropped
        )
    }
}
