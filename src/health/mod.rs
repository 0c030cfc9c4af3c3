//! What is well in this process, what is not, and why: the one room that knows.
//!
//! Whoever meets a trouble reports it here, as what it is: a part that is down, a source that waits, a publish that failed.
//! Whoever has to tell or to decide asks here. Metrics are made from it, and nobody reads one to decide anything.

mod activity;
mod lateness;
mod overdue;
mod parts;
mod route;
mod standstill;
mod store;
mod target_failures;
mod trouble_log;
mod troubles;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

pub use self::activity::{Activity, ActivityCounts, ActivityKind};
pub use self::lateness::{LatenessCauses, RouteLateness, causes};
pub use self::overdue::{FullCredit, FullCredits, OldestOverdue, Overdue, OverduePlace};
use self::parts::PartTable;
pub use self::parts::{HealthLook, LookedPart, NOT_REACHED, Part, PartState, WAITS_FOR_STORE};
pub use self::route::{PAUSED, RouteHealth};
pub use self::standstill::Standstill;
pub use self::store::{RedisMemory, StoreHealth};
pub use self::target_failures::{PublishPlace, SILENT_US, TargetFailures};
pub use self::trouble_log::TroubleLog;
pub use self::troubles::{PartTrouble, Trouble, Troubles};
use crate::domain::RouteName;

/// What is known of the health of this process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    parts: RwLock<PartTable>,
    /// A part has changed.
    changed: Notify,
    routes: Mutex<BTreeMap<RouteName, Arc<RouteHealth>>>,
    activity: Activity,
    targets: TargetFailures,
    store: StoreHealth,
}

impl Health {
    /// The health of a route.
    pub fn route(&self, name: &RouteName) -> Arc<RouteHealth> {
        let mut routes = self.0.routes.lock();
        if let Some(route) = routes.get(name) {
            return route.clone();
        }
        routes.entry(name.clone()).or_default().clone()
    }

    /// What this process did lately.
    pub fn activity(&self) -> &Activity {
        &self.0.activity
    }

    /// The failures of all targets.
    pub fn targets(&self) -> &TargetFailures {
        &self.0.targets
    }

    /// What is known of the store.
    pub fn store(&self) -> &StoreHealth {
        &self.0.store
    }
}
