//! State of `postdate top`: the last answers of the API, the rates that they told, and what the user looks at.

use std::collections::{BTreeMap, VecDeque};

/// Samples kept of each route: the widest line of rates.
const MAX_SAMPLES: usize = 240;
/// Age from which on a snapshot is stale, ms. A new one should come each second.
const STALE_MS: i64 = 5_000;

/// Answers of the API of one moment. All texts are safe for a terminal.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// The moment, Unix ms.
    pub(super) at_ms: i64,
    pub(super) replicas: Vec<ReplicaRow>,
    pub(super) routes: Vec<RouteRow>,
    pub(super) due: DueCounts,
    /// The route whose messages `next` has; `None`: all routes.
    pub(super) next_of: Option<String>,
    pub(super) next: Vec<MessageRow>,
    /// Why `next` could not be read; `None` if it could.
    pub(super) next_failure: Option<String>,
}

/// A replica.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaRow {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) state: String,
    pub(super) partitions: usize,
}

/// A route.
#[derive(Clone, Debug, Default)]
pub(super) struct RouteRow {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) pending: i64,
    pub(super) in_flight: i64,
    pub(super) dead: i64,
    pub(super) overdue_s: f64,
    pub(super) rate: RateSample,
    /// Names of its paused parts; empty while it runs.
    pub(super) paused: String,
    pub(super) troubles: Vec<String>,
}

/// Messages that wait, by when they fall due.
#[derive(Clone, Debug, Default)]
pub(super) struct DueCounts {
    pub(super) overdue: u64,
    /// The next minute, by second.
    pub(super) minute: Vec<u64>,
    pub(super) in_hour: u64,
    pub(super) in_day: u64,
}

/// A message that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageRow {
    pub(super) due_ms: i64,
    pub(super) route: String,
    pub(super) id: String,
    pub(super) attempt: String,
    pub(super) last_error: String,
}

/// Messages a second of a route, over all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RateSample {
    /// Read from its source.
    pub(super) read: f64,
    /// Published to a target and confirmed.
    pub(super) published: f64,
}

/// A key that the user pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserKey {
    Up,
    Down,
    Open,
    Back,
    Quit,
}

/// All that is drawn.
#[derive(Debug)]
pub(super) struct TopState {
    /// The address of the API.
    pub(super) url: String,
    /// The last good answers.
    pub(super) snapshot: Option<Snapshot>,
    /// Why the last try failed; `None` if it did not.
    pub(super) failure: Option<String>,
    /// The route that is shown alone; `None`: the overview.
    pub(super) opened: Option<String>,
    /// The chosen route in the overview.
    pub(super) chosen: usize,
    rates: BTreeMap<String, VecDeque<RateSample>>,
}

impl TopState {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            snapshot: None,
            failure: None,
            opened: None,
            chosen: 0,
            rates: BTreeMap::new(),
        }
    }

    /// Takes the outcome of a try. A failure leaves the last good answers.
    pub(super) fn take(&mut self, outcome: Result<Snapshot, String>) {
        match outcome {
            Ok(snapshot) => {
                for route in &snapshot.routes {
                    let samples = self.rates.entry(route.name.clone()).or_default();
                    samples.push_back(route.rate);
                    while samples.len() > MAX_SAMPLES {
                        samples.pop_front();
                    }
                }
                let names: Vec<&str> = snapshot
                    .routes
                    .iter()
                    .map(|route| route.name.as_str())
                    .collect();
                self.rates.retain(|name, _| names.contains(&name.as_str()));
                self.chosen = self.chosen.min(names.len().saturating_sub(1));
                self.opened = self
                    .opened
                    .take()
                    .filter(|opened| names.contains(&opened.as_str()));
                self.snapshot = Some(snapshot);
                self.failure = None;
            }
            Err(why) => self.failure = Some(why),
        }
    }

    /// Follows a key. Answers false if the user wants to end.
    pub(super) fn press(&mut self, key: UserKey) -> bool {
        let routes = self
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.routes.as_slice())
            .unwrap_or_default();
        match key {
            UserKey::Up => self.chosen = self.chosen.saturating_sub(1),
            UserKey::Down => self.chosen = (self.chosen + 1).min(routes.len().saturating_sub(1)),
            UserKey::Open => self.opened = routes.get(self.chosen).map(|route| route.name.clone()),
            UserKey::Back => self.opened = None,
            UserKey::Quit => return false,
        }
        true
    }

    /// The moment that the shown answers are from, if they are stale: Unix ms.
    pub(super) fn stale_since(&self, now_ms: i64) -> Option<i64> {
        let at_ms = self.snapshot.as_ref()?.at_ms;
        (self.failure.is_some() || now_ms - at_ms > STALE_MS).then_some(at_ms)
    }

    /// Rates of a route, oldest first.
    pub(super) fn rates(
        &self,
        route: &str,
    ) -> impl DoubleEndedIterator<Item = &RateSample> + Clone {
        self.rates.get(route).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_ms: i64, routes: &[(&str, f64, f64)]) -> Snapshot {
        Snapshot {
            at_ms,
            routes: routes
                .iter()
                .map(|(name, read, published)| RouteRow {
                    name: (*name).to_owned(),
                    rate: RateSample {
                        read: *read,
                        published: *published,
                    },
                    ..RouteRow::default()
                })
                .collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_are_kept_for_as_long_as_their_route_is_there() {
        let mut state = TopState::new(String::new());
        for n in 0..MAX_SAMPLES + 2 {
            state.take(Ok(snapshot(0, &[("a", n as f64, 2.5)])));
        }
        let rates: Vec<_> = state.rates("a").copied().collect();
        let oldest = RateSample {
            read: 2.0,
            published: 2.5,
        };
        assert_eq!((rates.len(), rates[0]), (MAX_SAMPLES, oldest));
        state.take(Ok(snapshot(4_000, &[])));
        assert_eq!(state.rates("a").count(), 0, "a route that is gone");
    }

    #[test]
    fn a_failure_keeps_the_last_answers_and_makes_them_stale() {
        let mut state = TopState::new(String::new());
        state.take(Err("away".to_owned()));
        assert_eq!(state.stale_since(0), None, "nothing is shown yet");
        state.take(Ok(snapshot(1_000, &[("a", 0.0, 0.0)])));
        assert_eq!(state.stale_since(1_500), None);
        assert_eq!(state.stale_since(6_001), Some(1_000), "no answer at all");
        state.take(Err("away".to_owned()));
        assert_eq!(state.stale_since(1_500), Some(1_000));
        state.take(Ok(snapshot(2_000, &[("a", 0.0, 0.0)])));
        assert_eq!(state.stale_since(2_500), None);
    }

    #[test]
    fn keys_choose_open_and_leave_a_route() {
        let mut state = TopState::new(String::new());
        assert!(
            state.press(UserKey::Open) && state.opened.is_none(),
            "no route to open"
        );
        state.take(Ok(snapshot(0, &[("a", 0.0, 0.0), ("b", 0.0, 0.0)])));
        for _ in 0..3 {
            state.press(UserKey::Down);
        }
        state.press(UserKey::Open);
        assert_eq!(state.opened.as_deref(), Some("b"));
        state.take(Ok(snapshot(0, &[("a", 0.0, 0.0)])));
        assert_eq!(
            (state.opened.as_deref(), state.chosen),
            (None, 0),
            "it is gone"
        );
        state.press(UserKey::Open);
        state.press(UserKey::Back);
        assert_eq!(state.opened, None);
        assert!(!state.press(UserKey::Quit));
    }
}
