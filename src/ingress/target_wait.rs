//! The wait of a source for a target. The ingress of a route waits for `target` from when its first source begins to until
//! its last one ends.

use std::sync::Arc;

use tracing::debug;

use crate::domain::RouteName;
use crate::health::RouteHealth;

/// The wait of one source. Dropping it ends the wait.
pub(super) struct TargetWait {
    route: RouteName,
    health: Arc<RouteHealth>,
    waits: bool,
}

impl TargetWait {
    pub(super) fn new(route: RouteName, health: Arc<RouteHealth>) -> Self {
        Self {
            route,
            health,
            waits: false,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waits
    }

    /// Begins the wait, unless the source waits already.
    pub(super) fn begin(&mut self, target: &str, reason: &str, error: &str) {
        if std::mem::replace(&mut self.waits, true) {
            return;
        }
        if self.health.target_wait(true) {
            let route = &self.route;
            debug!(%route, target_name = target, reason, error, "a target does not take passing messages; its source waits");
        }
    }

    /// Ends the wait.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.waits) && self.health.target_wait(false) {
            debug!(route = %self.route, "a source no longer waits for its target");
        }
    }
}

impl Drop for TargetWait {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    #[test]
    fn the_route_waits_while_any_source_of_the_route_waits() {
        let route = testing::route();
        let health = Arc::<RouteHealth>::default();
        let wait = || TargetWait::new(route.name.clone(), health.clone());
        let mut one = wait();
        let mut other = wait();
        one.begin("orders", "unroutable", "no");
        one.begin("orders", "unroutable", "no");
        other.begin("orders", "unroutable", "no");
        assert_eq!(health.waits_for(), ["target"]);
        one.end();
        one.end();
        assert_eq!(health.waits_for(), ["target"], "the other one waits still");
        drop(other);
        assert!(
            health.waits_for().is_empty(),
            "a source that is gone waits no more"
        );
    }
}
