//! How many messages a queue hands over at a time, and how large their bodies may be. Pure: moments are arguments.

use std::time::Duration;

use tokio::time::Instant;

use crate::ingress::{HandOver, QueueLimits};

/// Bodies of at most `max_size` that must follow each other before a queue is read in the usual mode. With many queues the
/// careful mode has one message at a time, each of which takes a round trip to the store: so few that a start is quick.
const SMALL_BODIES: u32 = 20;
/// Shortest time between a larger body and the usual mode. Each change from the usual mode to the careful one has up to
/// `prefetch` bodies transferred in vain.
const LARGE_BODY_PAUSE: Duration = Duration::from_secs(60);
/// Shortest time between the loss of a channel and the usual mode. Whatever is on its way when a channel is lost counts
/// as delivered once more, and a queue with a delivery limit drops at last what nobody has read.
const LOST_CHANNEL_PAUSE: Duration = Duration::from_secs(2);

/// The mode in which a queue is read. A process begins with the careful one, so that what is delivered again after a
/// crash costs no second delivery; so does a channel after a lost one. What it has learnt outlives its subscriptions.
#[derive(Debug)]
pub(super) struct ReadingMode {
    limits: QueueLimits,
    mode: Mode,
    /// The queue delivers what is given back again.
    may_give_back: bool,
}

#[derive(Debug)]
enum Mode {
    Careful {
        /// Few messages at a time.
        hand_over: HandOver,
        /// Bodies of at most `max_size` since the last larger one.
        small: u32,
        /// Not before this moment the usual mode follows.
        until: Option<Instant>,
    },
    Usual {
        /// A body was left out that the careful mode reads.
        has_left_out: bool,
    },
}

impl ReadingMode {
    pub(super) fn new(limits: QueueLimits) -> Self {
        let mode = Mode::first(limits, None);
        Self {
            limits,
            mode,
            may_give_back: true,
        }
    }

    /// What the queue may hand over in this mode.
    pub(super) fn hand_over(&self) -> HandOver {
        match self.mode {
            Mode::Careful { hand_over, .. } => hand_over,
            Mode::Usual { .. } => self.limits.usual,
        }
    }

    /// Notes the length of a body that was delivered. Reports whether it must be delivered again: it was left out, and
    /// the careful mode reads it.
    pub(super) fn note(&mut self, bytes: u64, now: Instant) -> bool {
        let is_large = bytes > self.limits.usual.largest_body;
        match &mut self.mode {
            Mode::Careful { small, until, .. } => {
                if is_large {
                    *small = 0;
                    *until = (*until).max(Some(now + LARGE_BODY_PAUSE));
                } else {
                    *small = small.saturating_add(1);
                }
                false
            }
            Mode::Usual { has_left_out } => {
                let careful = self.limits.careful;
                let is_read = careful.is_some_and(|careful| bytes <= careful.largest_body);
                let must_come_again = is_large && is_read;
                *has_left_out |= must_come_again;
                must_come_again
            }
        }
    }

    /// Reports whether the mode must change.
    pub(super) fn must_change(&self, now: Instant) -> bool {
        match self.mode {
            Mode::Careful { small, until, .. } => {
                let is_quiet = until.is_none_or(|until| now >= until);
                self.may_give_back && small >= SMALL_BODIES && is_quiet
            }
            Mode::Usual { has_left_out } => has_left_out,
        }
    }

    /// Changes the mode. Nothing that the former mode took may be held any more.
    pub(super) fn change(&mut self, now: Instant) {
        self.mode = match self.mode {
            Mode::Careful { .. } => Mode::Usual {
                has_left_out: false,
            },
            Mode::Usual { .. } => Mode::first(self.limits, Some(now + LARGE_BODY_PAUSE)),
        };
    }

    /// Begins a series of subscriptions: the former one ended in whatever way. `may_give_back`: what is given back is
    /// delivered again. Without that the careful mode stays.
    pub(super) fn begin(&mut self, may_give_back: bool, now: Instant) {
        self.may_give_back = may_give_back;
        if !may_give_back {
            self.mode = Mode::first(self.limits, None);
        } else if self.must_change(now) {
            self.change(now);
        }
    }

    /// Notes that a channel of a queue that counts deliveries was lost: the next one begins with few messages at a time,
    /// whatever is known of the bodies.
    pub(super) fn lost(&mut self, now: Instant) {
        let until = now + LOST_CHANNEL_PAUSE;
        match &mut self.mode {
            Mode::Careful { until: quiet, .. } => *quiet = (*quiet).max(Some(until)),
            Mode::Usual { has_left_out } => {
                let large = has_left_out.then(|| now + LARGE_BODY_PAUSE);
                self.mode = Mode::first(self.limits, large.max(Some(until)));
            }
        }
    }

    pub(super) fn is_careful(&self) -> bool {
        matches!(self.mode, Mode::Careful { .. })
    }
}

impl Mode {
    /// The careful mode, where there are two.
    fn first(limits: QueueLimits, until: Option<Instant>) -> Self {
        match limits.careful {
            Some(hand_over) => Self::Careful {
                hand_over,
                small: 0,
                until,
            },
            None => Self::Usual {
                has_left_out: false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: HandOver = HandOver {
        prefetch: 96,
        largest_body: 10,
    };
    const CAREFUL: HandOver = HandOver {
        prefetch: 6,
        largest_body: 160,
    };

    #[test]
    fn a_queue_is_read_carefully_until_its_bodies_are_small_and_again_after_a_larger_one() {
        let start = Instant::now();
        let mut mode = ReadingMode::new(QueueLimits {
            usual: USUAL,
            careful: Some(CAREFUL),
        });
        let read_small = |mode: &mut ReadingMode, count: u32, now: Instant| {
            for _ in 0..count {
                assert!(!mode.note(10, now));
            }
        };
        assert_eq!(mode.hand_over(), CAREFUL);
        read_small(&mut mode, SMALL_BODIES - 1, start);
        assert!(!mode.must_change(start));
        read_small(&mut mode, 1, start);
        assert!(mode.must_change(start), "no larger one was seen");
        mode.change(start);
        assert_eq!(mode.hand_over(), USUAL);
        read_small(&mut mode, 1000, start);
        assert!(!mode.note(161, start), "it is of no use in any mode");
        assert!(!mode.must_change(start));
        assert!(mode.note(160, start), "it must be delivered again");
        assert!(mode.must_change(start));
        mode.change(start);
        assert_eq!(mode.hand_over(), CAREFUL);
        assert!(!mode.note(160, start), "it is read");
        read_small(&mut mode, SMALL_BODIES, start);
        assert!(!mode.must_change(start));
        assert!(mode.must_change(start + LARGE_BODY_PAUSE));
        assert!(!mode.note(11, start));
        assert!(!mode.must_change(start + LARGE_BODY_PAUSE));
        mode.begin(false, start);
        read_small(&mut mode, 10 * SMALL_BODIES, start);
        assert!(!mode.must_change(start), "nothing could be given back");
    }

    #[test]
    fn what_was_learnt_of_a_queue_outlives_a_subscription() {
        let start = Instant::now();
        let mut mode = ReadingMode::new(QueueLimits {
            usual: USUAL,
            careful: Some(CAREFUL),
        });
        for _ in 0..SMALL_BODIES {
            mode.begin(true, start);
            assert_eq!(mode.hand_over(), CAREFUL);
            assert!(!mode.note(10, start));
        }
        mode.begin(true, start);
        assert_eq!(mode.hand_over(), USUAL, "its bodies are small");
        mode.begin(true, start);
        assert_eq!(mode.hand_over(), USUAL);
        assert!(mode.note(11, start), "a larger one is left out");
        mode.begin(true, start);
        assert_eq!(mode.hand_over(), CAREFUL, "it comes again");
    }

    #[test]
    fn after_a_lost_channel_few_messages_are_on_their_way_until_the_next_one_holds() {
        let start = Instant::now();
        let mut mode = ReadingMode::new(QueueLimits {
            usual: USUAL,
            careful: Some(CAREFUL),
        });
        let read_small = |mode: &mut ReadingMode| {
            for _ in 0..SMALL_BODIES {
                assert!(!mode.note(10, start));
            }
        };
        read_small(&mut mode);
        mode.begin(true, start);
        assert_eq!(mode.hand_over(), USUAL);
        for lost in [start, start + LOST_CHANNEL_PAUSE / 2] {
            mode.lost(lost);
            mode.begin(true, lost);
            assert_eq!(mode.hand_over(), CAREFUL);
            read_small(&mut mode);
            assert!(!mode.must_change(lost + LOST_CHANNEL_PAUSE - Duration::from_millis(1)));
        }
        assert!(mode.must_change(start + LOST_CHANNEL_PAUSE * 3 / 2));
        mode.change(start);
        assert!(
            mode.note(160, start),
            "a large body is left out, and its channel lost"
        );
        mode.lost(start);
        assert_eq!(mode.hand_over(), CAREFUL);
        read_small(&mut mode);
        assert!(!mode.must_change(start + LOST_CHANNEL_PAUSE));
    }

    #[test]
    fn a_queue_with_one_way_to_be_read_changes_nothing() {
        let now = Instant::now();
        let mut mode = ReadingMode::new(QueueLimits {
            usual: USUAL,
            careful: None,
        });
        assert!(!mode.note(11, now) && !mode.note(1, now));
        assert!(!mode.must_change(now));
        assert_eq!(mode.hand_over(), USUAL);
    }
}
