//! What callers share for a while, so that many of them ask Redis once. How long is said where each is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};

use crate::api::OverviewMoment;
use crate::domain::RouteName;
use crate::store::DueMonth;

/// The last overview, and its text for streams.
#[derive(Clone)]
pub(super) struct SharedOverview {
    /// When it was made, monotonic microseconds.
    pub(super) at_us: i64,
    pub(super) moment: Arc<OverviewMoment>,
    pub(super) text: Arc<str>,
}

/// The last overview. Whoever makes the next one holds it: others wait for that.
#[derive(Default)]
pub(super) struct LastOverview(Mutex<Option<SharedOverview>>);

impl LastOverview {
    pub(super) async fn lock(&self) -> MutexGuard<'_, Option<SharedOverview>> {
        self.0.lock().await
    }
}

/// The later days of the month, by route; `None` stands for all.
#[derive(Default)]
pub(super) struct DueMonths(parking_lot::Mutex<BTreeMap<Option<RouteName>, KnownMonth>>);

/// A month, and when it was read.
struct KnownMonth {
    /// Monotonic microseconds.
    read_us: i64,
    month: Arc<DueMonth>,
}

impl DueMonths {
    /// The month of a route, if it was read at this moment or later.
    pub(super) fn since(&self, route: Option<&RouteName>, since_us: i64) -> Option<Arc<DueMonth>> {
        let known = self.0.lock();
        let month = known.get(&route.cloned())?;
        (month.read_us > since_us).then(|| month.month.clone())
    }

    pub(super) fn put(&self, route: Option<&RouteName>, read_us: i64, month: Arc<DueMonth>) {
        let known = KnownMonth { read_us, month };
        self.0.lock().insert(route.cloned(), known);
    }
}
