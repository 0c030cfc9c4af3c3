//! The wait of a source for a target. A route logs one line when its first source begins to wait and one when
//! its last source stops, and shows `ingress_paused{reason="target"}` in between.

use std::sync::Arc;

use tracing::{info, warn};

use crate::domain::RouteName;
use crate::telemetry::RouteMetrics;

/// The wait of one source. Dropping it ends the wait.
pub(super) struct TargetWait {
    route: RouteName,
    metrics: Arc<RouteMetrics>,
    waits: bool,
}

impl TargetWait {
    pub(super) fn new(route: RouteName, metrics: Arc<RouteMetrics>) -> Self {
        Self {
            route,
            metrics,
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
        if self.metrics.target_wait(true) {
            let route = &self.route;
            warn!(%route, target_name = target, reason, error, "a target does not take passing messages; its source waits");
        }
    }

    /// Ends the wait.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.waits) && self.metrics.target_wait(false) {
            info!(route = %self.route, "a source no longer waits for its target");
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
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::domain::testing;
    use crate::telemetry::Metrics;

    #[test]
    fn the_gauge_stands_while_any_source_of_the_route_waits() {
        let route = testing::route();
        let metrics = Metrics::new(&mut Registry::default(), [route.name.clone()]);
        let metrics = metrics.route(&route.name).expect("a route").clone();
        let wait = || TargetWait::new(route.name.clone(), metrics.clone());
        let mut one = wait();
        let mut other = wait();
        one.begin("orders", "unroutable", "no");
        one.begin("orders", "unroutable", "no");
        other.begin("orders", "unroutable", "no");
        assert_eq!(metrics.paused(), ["target"]);
        one.end();
        one.end();
        assert_eq!(metrics.paused(), ["target"], "the other one waits still");
        drop(other);
        assert!(
            metrics.paused().is_empty(),
            "a source that is gone waits no more"
        );
    }
}
