//! What a producer asked for, and when its message came.

use super::due::UnixMs;

/// What the producer of a delayed message asked for, and when Postdate read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayRequest {
    /// When the message was read from its source, or imported.
    pub received: UnixMs,
    /// The time that was asked for.
    pub time: RequestedTime,
}

/// The time that a producer asked for, as it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedTime {
    /// `x-delay`: so many milliseconds after the message came, or was produced.
    Delay(i64),
    /// `x-deliver-at`: this moment.
    At(UnixMs),
}
