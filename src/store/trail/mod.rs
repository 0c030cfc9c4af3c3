//! The trail: what became of messages that are gone, for whoever asks. A help and no record: it takes no time of the
//! flow and no memory without a bound, so it loses events rather than wait.
//!
//! Rooms hand events to [`RouteTrail`], which packs them in memory. Twice a second [`Store::write_trails`] appends the
//! packs to a list of the route in Redis. [`Store::trail_of`] reads that list.

mod record;
mod writer;

pub use self::record::{Delivered, RouteTrail, TrailCause};
pub use self::writer::TRAIL_DELAY;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::domain::{RouteName, TrailLimits, UnixMs};
use crate::store::{DeadId, DeadLetter, Store};
use crate::telemetry::Metrics;

/// The trails of all routes that have one. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Trails(Arc<BTreeMap<RouteName, Arc<RouteTrail>>>);

impl Trails {
    pub(super) fn new(limits: &BTreeMap<RouteName, TrailLimits>, metrics: &Metrics) -> Self {
        let held = Arc::<AtomicUsize>::default();
        let mut trails = BTreeMap::new();
        for (route, limits) in limits.iter().filter(|(_, limits)| limits.is_on()) {
            let metrics = metrics.route(route).cloned();
            let trail = RouteTrail::new(route.clone(), *limits, held.clone(), metrics);
            trails.insert(route.clone(), Arc::new(trail));
        }
        Self(Arc::new(trails))
    }

    /// The trail of a route. `None`: it has none.
    pub(super) fn of(&self, route: &RouteName) -> Option<&Arc<RouteTrail>> {
        self.0.get(route)
    }

    /// The same by the route's name.
    pub(super) fn named(&self, route: &str) -> Option<&Arc<RouteTrail>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&RouteName::new(route)?)
    }
}

impl Trails {
    /// Records that a message became a dead letter by a call that was sent at this moment, if it has an id and its route a
    /// trail. What happened to it since comes later in the trail.
    pub(super) fn dead(&self, sent_at: UnixMs, dead_letter: &DeadLetter, dead_id: &DeadId) {
        let Some(trail) = self.of(&dead_letter.route) else {
            return;
        };
        let Some(entry) = dead_letter.bundle.entries.first() else {
            return;
        };
        if let Some(id) = &entry.id {
            let (due, reason) = (entry.requested_due(), dead_letter.reason.as_str());
            trail.dead(id.as_str(), sent_at, due, reason, dead_id);
        }
    }
}

impl Store {
    /// The trail of a route. `None`: it has none, and no event must be made for it.
    pub fn trail(&self, route: &RouteName) -> Option<&Arc<RouteTrail>> {
        self.0.trails.of(route)
    }
}
