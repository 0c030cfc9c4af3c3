//! One log line per burst, not per message.
//!
//! Of each (what, route, reason) the first is logged at once, with its error; what follows is counted,
//! and the count logged when ten seconds have passed, as long as there is something to count. After ten
//! quiet seconds the next one is a first again. The keys come from code and configuration, never from
//! messages, so there are few.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use crate::domain::{Clock, RouteName};

/// Time between two lines of one kind, microseconds.
const WINDOW_US: i64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    what: &'static str,
    route: RouteName,
    reason: &'static str,
}

#[derive(Debug)]
struct Window {
    ends_us: i64,
    counted: u64,
}

/// The windows that are open. Pure: moments are arguments.
#[derive(Debug, Default)]
struct Windows(BTreeMap<Kind, Window>);

impl Windows {
    /// Counts one; whether it is the first of a burst.
    fn hit(&mut self, kind: Kind, now_us: i64) -> bool {
        if let Some(window) = self.0.get_mut(&kind) {
            window.counted += 1;
            return false;
        }
        self.0.insert(kind, Window { ends_us: now_us + WINDOW_US, counted: 0 });
        true
    }

    /// What was counted in the windows that have ended; those with nothing counted close.
    fn ended(&mut self, now_us: i64) -> Vec<(Kind, u64)> {
        let mut counts = Vec::new();
        self.0.retain(|kind, window| {
            if window.ends_us > now_us {
                return true;
            }
            if window.counted == 0 {
                return false;
            }
            counts.push((kind.clone(), std::mem::take(&mut window.counted)));
            window.ends_us = now_us + WINDOW_US;
            true
        });
        counts
    }

    fn next_end_us(&self) -> Option<i64> {
        self.0.values().map(|w| w.ends_us).min()
    }
}

/// Logs what may come by the thousand.
#[derive(Debug)]
pub struct Bursts {
    clock: Clock,
    windows: Mutex<Windows>,
    opened: Notify,
}

impl Bursts {
    /// Nothing noted yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, windows: Mutex::default(), opened: Notify::new() }
    }

    /// Notes one. `what` is the log message (lower case, no final stop), `reason` a label of the
    /// contract, `error` what exactly happened to this one: shown for the first of a burst only, and
    /// not formatted for the others.
    pub fn note(&self, what: &'static str, route: &RouteName, reason: &'static str, error: impl Display) {
        let kind = Kind { what, route: route.clone(), reason };
        if self.windows.lock().hit(kind, self.clock.mono_us()) {
            warn!(%route, reason, %error, "{what}");
            self.opened.notify_one();
        }
    }

    /// Notes one message of which only its id is to be said. Counted like [`Self::note`].
    pub fn note_message(
        &self,
        what: &'static str,
        route: &RouteName,
        reason: &'static str,
        id: impl Display,
    ) {
        let kind = Kind { what, route: route.clone(), reason };
        if self.windows.lock().hit(kind, self.clock.mono_us()) {
            warn!(%route, reason, %id, "{what}");
            self.opened.notify_one();
        }
    }

    /// Logs the counts as their windows end. Once `end` resolves (the process drains), those of all
    /// windows at once; then returns.
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
        for (Kind { what, route, reason }, count) in counts {
            warn!(%route, reason, count, "{what}, and more of the same");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::logging::testing::capture;
    use super::*;

    fn kind(reason: &'static str) -> Kind {
        Kind { what: "refused", route: RouteName::new("orders").expect("a name"), reason }
    }

    #[test]
    fn the_first_is_told_at_once_and_the_rest_counted_each_ten_seconds() {
        let mut windows = Windows::default();
        assert!(windows.hit(kind("bad_delay"), 0));
        for at in 1..1000 {
            assert!(!windows.hit(kind("bad_delay"), at));
        }
        assert_eq!(windows.next_end_us(), Some(WINDOW_US));
        assert_eq!(windows.ended(WINDOW_US - 1), []);
        assert_eq!(windows.ended(WINDOW_US), [(kind("bad_delay"), 999)]);
        // The burst goes on: no second "first" line, one more count.
        assert!(!windows.hit(kind("bad_delay"), WINDOW_US + 1));
        assert_eq!(windows.ended(2 * WINDOW_US), [(kind("bad_delay"), 1)]);
        // Quiet for a window: closed without a line, and the next one is a first again.
        assert_eq!(windows.ended(3 * WINDOW_US), []);
        assert_eq!(windows.next_end_us(), None);
        assert!(windows.hit(kind("bad_delay"), 3 * WINDOW_US + 1));
    }

    #[test]
    fn each_reason_and_route_has_its_own_burst() {
        let mut windows = Windows::default();
        let other = Kind { route: RouteName::new("mail").expect("a name"), ..kind("bad_delay") };
        assert!(windows.hit(kind("bad_delay"), 0));
        assert!(windows.hit(kind("too_far"), 5));
        assert!(windows.hit(other.clone(), 6));
        assert!(!windows.hit(other.clone(), 7));
        assert_eq!(windows.ended(2 * WINDOW_US), [(other, 1)]);
    }

    #[tokio::test]
    async fn one_line_at_once_and_the_count_at_the_latest_on_drain() {
        let (lines, _guard) = capture();
        let bursts = Bursts::new(Clock::start());
        let route = RouteName::new("orders").expect("a name");
        for n in 0..1000 {
            bursts.note("message refused", &route, "bad_delay", format!("error {n}"));
        }
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("message refused route=orders reason=\"bad_delay\" error=error 0"), "{text}");
        bursts.run(std::future::ready(())).await;
        let text = lines.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("count=999"), "{text}");
    }
}
