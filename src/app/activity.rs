//! Keeps in the store what this replica did, once a minute and once more at its end.

use std::time::Duration;

use tracing::debug;

use crate::health::{Activity, ActivityKind, Health};
use crate::lifecycle::{Shutdown, tick};
use crate::store::{Store, StoreError};

/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Longest time that a report takes; then the next one has its numbers too.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Reports until draining begins.
pub(super) async fn keep(health: Health, store: Store, shutdown: Shutdown) {
    let activity = health.activity();
    activity.note(ActivityKind::Started);
    loop {
        report(activity, &store).await;
        tokio::select! {
            () = shutdown.draining() => break,
            () = tick(REPORT_INTERVAL) => {}
        }
    }
    report(activity, &store).await;
}

async fn report(activity: &Activity, store: &Store) {
    let counts = activity.take();
    let named = ActivityKind::ALL.map(ActivityKind::as_str);
    let mut numbers = vec![("reports", 1)];
    numbers.extend(
        named
            .into_iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0),
    );
    let added = tokio::time::timeout(REPORT_TIMEOUT, store.add_activity(&numbers)).await;
    if let Err(why) = added.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer".into()))) {
        // Redis may have taken them all the same: these numbers are never too low, and a little too high at times.
        activity.give_back(counts);
        debug!(error = %why, "what this replica did could not be kept; the next report has it too");
    }
}
