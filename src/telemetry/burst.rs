//! One log line per burst of events, not per message.
//!
//! Events are grouped by message text, route (if they have one) and reason. The first event of a group is logged at once, with its error.
//! Later ones are counted, and the count is logged every ten seconds while it is above zero. After ten seconds without
//! an event the next one is a first again. Keys come from code and configuration, never from messages, so there are
//! few.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use crate::domain::{Clock, RouteName};

/// Time between two lines of one key, microseconds.
const WINDOW_US: i64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BurstKey {
    what: &'static str,
    /// `None`: the event is of no route.
    route: Option<RouteName>,
    reason: &'static str,
}

#[derive(Debug)]
struct BurstWindow {
    ends_us: i64,
    counted: u64,
}

/// Windows of the bursts that go on. Pure: moments are arguments.
#[derive(Debug, Default)]
struct BurstWindows(BTreeMap<BurstKey, BurstWindow>);

impl BurstWindows {
    /// Counts one event. Returns true for the first of a burst.
    fn hit(&mut self, key: BurstKey, now_us: i64) -> bool {
        if let Some(window) = self.0.get_mut(&key) {
            window.counted += 1;
            return false;
        }
        self.0.insert(
            key,
            BurstWindow {
                ends_us: now_us + WINDOW_US,
                counted: 0,
            },
        );
        true
    }

    /// The counts of windows that have ended, each of which begins anew. A window without a count is closed.
    fn ended(&mut self, now_us: i64) -> Vec<(BurstKey, u64)> {
        let mut counts = Vec::new();
        self.0.retain(|key, window| {
            if window.ends_us > now_us {
                return true;
            }
            if window.counted == 0 {
                return false;
            }
            counts.push((key.clone(), std::mem::take(&mut window.counted)));
            window.ends_us = now_us + WINDOW_US;
            true
        });
        counts
    }

    fn next_end_us(&self) -> Option<i64> {
        self.0.values().map(|w| w.ends_us).min()
    }
}

/// Log of events that may come by the thousand.
#[derive(Debug)]
pub struct BurstLog {
    clock: Clock,
    windows: Mutex<BurstWindows>,
    opened: Notify,
}

impl BurstLog {
    /// A log without events.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            windows: Mutex::default(),
            opened: Notify::new(),
        }
    }

    /// Notes one event. `what` is the log message (lower case, no final stop) and `reason` a label of the contract.
    /// `error` is the cause of this event; only that of the first in a burst is formatted and shown.
    pub fn note(
        &self,
        what: &'static str,
        route: &RouteName,
        reason: &'static str,
        error: impl Display,
    ) {
        let key = BurstKey {
            what,
            route: Some(route.clone()),
            reason,
        };
        if self.windows.lock().hit(key, self.clock.mono_us()) {
            warn!(%route, reason, %error, "{what}");
            self.opened.notify_one();
        }
    }

    /// Notes one event about a message, of which only the id is shown. Counted like [`Self::note`].
    pub fn note_message(
        &self,
        what: &'static str,
        route: &RouteName,
        reason: &'static str,
        id: impl Display,
    ) {
        let key = BurstKey {
            what,
            route: Some(route.clone()),
            reason,
        };
        if self.windows.lock().hit(key, self.clock.mono_us()) {
            warn!(%route, reason, %id, "{what}");
            self.opened.notify_one();
        }
    }

    /// Notes one event that is of no route: a refusal by the admin listener. `from` is who caused it. Counted like
    /// [`Self::note`].
    pub fn note_caller(&self, what: &'static str, reason: &'static str, from: impl Display) {
        let key = BurstKey {
            what,
            route: None,
            reason,
        };
        if self.windows.lock().hit(key, self.clock.mono_us()) {
            warn!(reason, %from, "{what}");
            self.opened.notify_one();
        }
    }

    /// Logs the counts as their windows end. Once `end` resolves (the process drains), logs the counts of all windows
    /// and returns.
    pub async fn run(&self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let next = self.windows.lock().next_end_us();
            let until = next.map_or(0, |end| (end - self.clock.mono_us()).max(0));
            tokio::select! {
                () = &mut end => break,
                () = self.opened.notified() => {}
                () = tokio::time::sleep(Duration::from_micros(until as u64)), if next.is_some() => {
                    self.log_counts(self.clock.mono_us());
                }
            }
        }
        self.log_counts(i64::MAX - WINDOW_US);
    }

    fn log_counts(&self, now_us: i64) {
        let counts = self.windows.lock().ended(now_us);
        for (
            BurstKey {
                what,
                route,
                reason,
            },
            count,
        ) in counts
        {
            if let Some(route) = route {
                warn!(%route, reason, count, "{what}, repeated");
            } else {
                warn!(reason, count, "{what}, repeated");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::logging::testing::capture;
    use super::*;

    fn key(reason: &'static str) -> BurstKey {
        BurstKey {
            what: "refused",
            route: RouteName::new("orders"),
            reason,
        }
    }

    #[test]
    fn the_first_is_told_at_once_and_the_rest_counted_each_ten_seconds() {
        let mut windows = BurstWindows::default();
        assert!(windows.hit(key("bad_delay"), 0));
        for at in 1..1000 {
            assert!(!windows.hit(key("bad_delay"), at));
        }
        assert_eq!(windows.next_end_us(), Some(WINDOW_US));
        assert_eq!(windows.ended(WINDOW_US - 1), []);
        assert_eq!(windows.ended(WINDOW_US), [(key("bad_delay"), 999)]);
        // The burst goes on: no second "first" line, one more count.
        assert!(!windows.hit(key("bad_delay"), WINDOW_US + 1));
        assert_eq!(windows.ended(2 * WINDOW_US), [(key("bad_delay"), 1)]);
        // Quiet for a window: closed without a line, and the next one is a first again.
        assert_eq!(windows.ended(3 * WINDOW_US), []);
        assert_eq!(windows.next_end_us(), None);
        assert!(windows.hit(key("bad_delay"), 3 * WINDOW_US + 1));
    }

    #[test]
    fn each_reason_and_route_has_its_own_burst() {
        let mut windows = BurstWindows::default();
        let other = BurstKey {
            route: RouteName::new("mail"),
            ..key("bad_delay")
        };
        assert!(windows.hit(key("bad_delay"), 0));
        assert!(windows.hit(key("too_far"), 5));
        assert!(windows.hit(other.clone(), 6));
        assert!(!windows.hit(other.clone(), 7));
        assert_eq!(windows.ended(2 * WINDOW_US), [(other, 1)]);
    }

    #[tokio::test]
    async fn one_line_at_once_and_the_count_at_the_latest_on_drain() {
        let (lines, _guard) = capture();
        let bursts = BurstLog::new(Clock::start());
        let route = RouteName::new("orders").expect("a name");
        for n in 0..1000 {
            bursts.note("message refused", &route, "bad_delay", format!("error {n}"));
        }
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("message refused route=orders reason=\"bad_delay\" error=error 0"),
            "{text}"
        );
        bursts.run(std::future::ready(())).await;
        let text = lines.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("count=999"), "{text}");
    }
}
