//! What is known of one route: whether its source is read, whether it publishes, and what is late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

use super::{FullCredits, OldestOverdue};
use crate::domain::{Pause, RoutePause, Text, UnixMs};

/// Reason for which the ingress of a route waits that is paused by hand.
pub const PAUSED: &str = "paused";

/// The health of a route, as its source, its timer and its counts report it.
#[derive(Debug, Default)]
pub struct RouteHealth {
    source: Mutex<SourceHealth>,
    pause: Mutex<RoutePause>,
    messages: AtomicI64,
    /// The oldest overdue message of the route, and its place.
    pub overdue: OldestOverdue,
    /// What the timer shards say of the route's credit.
    pub full_credits: FullCredits,
}

#[derive(Debug, Default)]
struct SourceHealth {
    /// Each reason for which the ingress has waited, and whether it waits for it now.
    waits: BTreeMap<&'static str, bool>,
    /// Number of sources that wait for their target.
    target_waits: usize,
    /// Why the source cannot be read.
    trouble: Option<String>,
    /// The oldest record of each partition that is read and not resolved.
    oldest_unresolved: BTreeMap<(Text, i32), u64>,
}

impl RouteHealth {
    /// Notes whether the ingress of the route waits for this reason.
    pub fn ingress_waits(&self, reason: &'static str, waits: bool) {
        self.source.lock().waits.insert(reason, waits);
    }

    /// Notes a source that begins or ends to wait for its target: the ingress waits while one does. Returns true for the
    /// first that begins and the last that ends.
    pub fn target_wait(&self, begins: bool) -> bool {
        let source = &mut *self.source.lock();
        source.target_waits = if begins {
            source.target_waits + 1
        } else {
            source.target_waits.saturating_sub(1)
        };
        let turns = source.target_waits == usize::from(begins);
        if turns {
            source.waits.insert("target", begins);
        }
        turns
    }

    /// Each reason for which the ingress of the route has waited, and whether it waits for it now.
    pub fn waits(&self) -> BTreeMap<&'static str, bool> {
        self.source.lock().waits.clone()
    }

    /// The reasons for which the ingress of the route waits now.
    pub fn waits_for(&self) -> Vec<&'static str> {
        let waits = &self.source.lock().waits;
        let now = waits.iter().filter(|(_, waits)| **waits);
        now.map(|(reason, _)| *reason).collect()
    }

    /// Notes why the source cannot be read; `None` if it is read, or waits for one of the [reasons](Self::waits_for).
    pub fn source_trouble(&self, why: Option<String>) {
        self.source.lock().trouble = why;
    }

    /// Why the source cannot be read, if that is a reason of its own.
    pub fn source_trouble_now(&self) -> Option<String> {
        self.source.lock().trouble.clone()
    }

    /// Why the source is not read now; `None` while it is read.
    pub fn source_waits(&self) -> Option<String> {
        if let Some(why) = self.source.lock().trouble.clone() {
            return Some(why);
        }
        let reasons = self.waits_for().into_iter();
        let pause = self.pause().ingress;
        let words: Vec<String> = reasons
            .map(|reason| match &pause {
                Some(pause) if reason == PAUSED => pause.to_string(),
                _ => reason.to_owned(),
            })
            .collect();
        (!words.is_empty()).then(|| format!("ingress waits: {}", words.join(", ")))
    }

    /// Notes the oldest record of each partition that is read and not resolved (a queue has no topic, and partition 0 alone). The number
    /// of a record tells only whether it is still the same one.
    pub fn unresolved(&self, oldest: BTreeMap<(Text, i32), u64>) {
        self.source.lock().oldest_unresolved = oldest;
    }

    /// The oldest record of each partition that is read and not resolved.
    pub fn oldest_unresolved(&self) -> BTreeMap<(Text, i32), u64> {
        self.source.lock().oldest_unresolved.clone()
    }

    /// Notes which parts of the route are paused by hand.
    pub fn paused(&self, pause: RoutePause) {
        self.ingress_waits(PAUSED, pause.ingress.is_some());
        *self.pause.lock() = pause;
    }

    /// Which parts of the route are paused by hand.
    pub fn pause(&self) -> RoutePause {
        self.pause.lock().clone()
    }

    /// The pause of publishing, if it is paused by hand.
    pub fn publishing_pause(&self) -> Option<Arc<Pause>> {
        self.pause.lock().publishing.clone()
    }

    /// How late the oldest message of the route is, seconds.
    pub fn late_s(&self, now: UnixMs) -> f64 {
        self.overdue.late_ms(now) as f64 / 1e3
    }

    /// Notes the number of messages that the store has of the route.
    pub fn counted(&self, messages: i64) {
        self.messages.store(messages, Ordering::Relaxed);
    }

    /// The number of messages that the store has of the route, as last counted.
    pub fn messages(&self) -> i64 {
        self.messages.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_waits_for_what_it_was_told_last_and_remembers_what_is_over() {
        let health = RouteHealth::default();
        health.ingress_waits("store", true);
        health.ingress_waits("max_pending", true);
        let waits = health.source_waits();
        assert_eq!(waits.as_deref(), Some("ingress waits: max_pending, store"));
        health.ingress_waits("store", false);
        assert_eq!(health.waits_for(), ["max_pending"]);
        let all = [("max_pending", true), ("store", false)];
        assert_eq!(health.waits(), all.into());
        health.source_trouble(Some("it is missing".to_owned()));
        assert_eq!(health.source_waits().as_deref(), Some("it is missing"));
    }
}
