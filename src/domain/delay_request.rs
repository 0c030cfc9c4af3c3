//! What a producer asked for, and when its message came.

use super::due::UnixMs;

/// What the producer of a delayed message asked for, and when Postdate read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayRequest {
    /// When the message was read from its source, or imported.
    pub received: UnixMs,
    /// The time that was asked for.
    pub time: RequestedTime,
    /// How long the message is wanted. `None`: for ever.
    pub expires: Option<Expiry>,
    /// How often consumers have given the message back; 0: never, or its route does not count.
    pub given_back: u32,
}

impl DelayRequest {
    /// The same with another due time. `None`: the message is not wanted any more then.
    #[must_use]
    pub fn moved_to(self, due: UnixMs) -> Option<Self> {
        let expires = match self.expires {
            Some(Expiry {
                after_ms: Some(ms), ..
            }) => Some(Expiry::after(due, ms)),
            Some(Expiry { last, .. }) if last <= due => return None,
            unmoved => unmoved,
        };
        Some(Self { expires, ..self })
    }
}

/// The time that a producer asked for, as it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedTime {
    /// `x-delay`: so many milliseconds after the message came, or was produced.
    Delay(i64),
    /// `x-deliver-at`: this moment.
    At(UnixMs),
}

/// The last moment at which a message is wanted. After it the message is not handed to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The last moment.
    pub last: UnixMs,
    /// The moment is so many milliseconds after the due time that was asked for, and moves with it.
    pub after_ms: Option<i64>,
}

impl Expiry {
    /// So many milliseconds after a due time.
    pub fn after(due: UnixMs, ms: i64) -> Self {
        Self {
            last: due.plus(ms),
            after_ms: Some(ms),
        }
    }

    /// A moment, whatever the due time.
    pub fn at(last: UnixMs) -> Self {
        Self {
            last,
            after_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_moves_with_the_due_time_and_a_moment_does_not() {
        let asked = |expires| DelayRequest {
            received: UnixMs(1),
            time: RequestedTime::Delay(9),
            expires,
            given_back: 2,
        };
        assert_eq!(asked(None).moved_to(UnixMs(50)), Some(asked(None)));
        let span = asked(Some(Expiry::after(UnixMs(10), 5)));
        let moved = asked(Some(Expiry::after(UnixMs(50), 5)));
        assert_eq!(span.moved_to(UnixMs(50)), Some(moved));
        let moment = asked(Some(Expiry::at(UnixMs(15))));
        assert_eq!(moment.moved_to(UnixMs(14)), Some(moment));
        assert_eq!(moment.moved_to(UnixMs(15)), None);
    }
}
