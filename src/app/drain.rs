//! The end, in order: ingress stops reading and lets what it read be stored, and this replica leaves the others,
//! so that they serve its partitions; then the timers stop claiming,
//! settle what is confirmed and give the rest back; then the lanes; admin last, so that it can be seen.

use std::time::Duration;

use tracing::{info, warn};

use crate::lifecycle::{Readiness, Shutdown, Tasks};

/// The stages of the end; all are forced together.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) ingress: Shutdown,
    /// Timers, and what went straight to its target.
    pub(super) flow: Shutdown,
    pub(super) egress: Shutdown,
    pub(super) admin: Shutdown,
}

impl Default for Stages {
    fn default() -> Self {
        let ingress = Shutdown::default();
        Self { flow: ingress.stage(), egress: ingress.stage(), admin: ingress.stage(), ingress }
    }
}

/// Time for tasks to notice that they are forced.
const AFTER_FORCE: Duration = Duration::from_millis(500);

/// Ends every stage, within this time in all. `Err` names the tasks that were late.
pub(super) async fn drain(
    stages: &Stages,
    tasks: &Tasks,
    readiness: &Readiness,
    timeout: Duration,
) -> Result<(), Vec<String>> {
    readiness.drain();
    let ends = tokio::time::Instant::now() + timeout;
    let in_order: [(&Shutdown, &[&str]); 4] = [
        (&stages.ingress, &["ingress", "cluster"]),
        (&stages.flow, &["timer", "direct"]),
        (&stages.egress, &["egress"]),
        (&stages.admin, &["admin", "bursts"]),
    ];
    let mut late = Vec::new();
    for (stage, names) in in_order {
        stage.begin();
        for name in names {
            let left = ends.saturating_duration_since(tokio::time::Instant::now());
            if let Err(tasks) = tasks.ended(name, left).await {
                warn!(tasks = ?tasks, "still busy when time ran out");
                late.extend(tasks);
            }
        }
    }
    stages.ingress.force();
    if tasks.ended("", AFTER_FORCE).await.is_ok() && late.is_empty() {
        info!("drained");
    }
    if late.is_empty() { Ok(()) } else { Err(late) }
}
