//! Drain: the orderly end, stage by stage.
//!
//! 1. Ingress stops reading and stores the records that it has read. This replica leaves the cluster, so that others serve
//!    its partitions.
//! 2. Timers stop claiming, settle the confirmed bundles and return the rest.
//! 3. Lanes close soon after that has begun: what still waits there unsent, as for a target that is away, goes back to the
//!    timers, which return it too. What was sent has all the time to be confirmed.
//! 4. The admin listener ends last, so that the drain can be watched.
//!
//! Each stage has its own share of the time: a stage that hangs takes none of the others' time.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::health::Health;
use crate::lifecycle::{Shutdown, Stage, Tasks};

/// A shutdown signal for each stage, and one for all of them.
#[derive(Debug)]
pub(super) struct StageShutdowns {
    /// Signal of the store, which every stage needs: it outlives them. Forcing it forces every stage.
    pub(super) process: Shutdown,
    pub(super) ingress: Shutdown,
    pub(super) publishing: Shutdown,
    pub(super) egress: Shutdown,
    pub(super) admin: Shutdown,
}

impl StageShutdowns {
    pub(super) fn new() -> Self {
        let process = Shutdown::default();
        Self {
            ingress: process.stage(),
            publishing: process.stage(),
            egress: process.stage(),
            admin: process.stage(),
            process,
        }
    }

    fn shutdown(&self, stage: Stage) -> &Shutdown {
        match stage {
            Stage::Ingress => &self.ingress,
            Stage::Publishing => &self.publishing,
            Stage::Egress => &self.egress,
            Stage::Admin => &self.admin,
        }
    }
}

/// Time for tasks to notice that they are forced.
const FORCED_END: Duration = Duration::from_millis(500);

/// Shares that the time of the whole drain is cut into.
const TIME_SHARES: u32 = 16;

/// The last share of a stage's time. A stage leaves the time that it does not use to the stages after it.
fn last_share(stage: Stage) -> u32 {
    match stage {
        Stage::Ingress => 4,
        Stage::Publishing => 12,
        Stage::Egress => 15,
        Stage::Admin => TIME_SHARES,
    }
}

/// Ends every stage, within `timeout` in all. `Err` names the tasks that were late.
pub(super) async fn drain(
    stages: &StageShutdowns,
    tasks: &Tasks,
    health: &Health,
    timeout: Duration,
) -> Result<(), Vec<String>> {
    health.drain();
    let began = Instant::now();
    let deadline = |stage| began + timeout * last_share(stage) / TIME_SHARES;
    stages.ingress.begin();
    let unfinished = ended_until(tasks, Stage::Ingress, deadline(Stage::Ingress)).await;
    if !unfinished.is_empty() {
        stages.ingress.force();
        let left = ended_until(tasks, Stage::Ingress, Instant::now() + FORCED_END).await;
        // Nothing is lost: the source delivers again every record that was read and not stored.
        warn!(
            tasks = ?unfinished,
            still_ending = ?left,
            "ingress gave up records that it had read and the store did not take in; they are read again"
        );
    }
    let mut late = Vec::new();
    stages.publishing.begin();
    ended_until(
        tasks,
        Stage::Publishing,
        Instant::now() + timeout / TIME_SHARES,
    )
    .await;
    stages.egress.begin();
    for stage in [Stage::Publishing, Stage::Egress] {
        late.extend(end_stage(stages, tasks, stage, deadline(stage)).await);
    }
    // The last commit of a Kafka group waits for the end of a rebalance, beside the stages above.
    late.extend(ended_until(tasks, Stage::Ingress, deadline(Stage::Egress)).await);
    late.extend(end_stage(stages, tasks, Stage::Admin, deadline(Stage::Admin)).await);
    stages.process.force();
    if tasks.ended(FORCED_END).await.is_ok() && late.is_empty() {
        info!("drained");
    }
    if late.is_empty() { Ok(()) } else { Err(late) }
}

/// Drains one stage until its deadline and forces it then. Answers the tasks that were late.
async fn end_stage(
    stages: &StageShutdowns,
    tasks: &Tasks,
    stage: Stage,
    deadline: Instant,
) -> Vec<String> {
    let shutdown = stages.shutdown(stage);
    shutdown.begin();
    let unfinished = ended_until(tasks, stage, deadline).await;
    if !unfinished.is_empty() {
        shutdown.force();
        ended_until(tasks, stage, Instant::now() + FORCED_END).await;
        warn!(tasks = ?unfinished, "still busy when time ran out");
    }
    unfinished
}

/// Waits until all tasks of a stage have ended, until `deadline` at most. Answers those that have not.
async fn ended_until(tasks: &Tasks, stage: Stage, deadline: Instant) -> Vec<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    tasks.of(stage).ended(left).await.err().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(16);

    /// A task of a stage that does not end before it is forced, or not even then.
    fn stubborn(tasks: &Tasks, stage: Stage, stages: &StageShutdowns, even_then: bool) {
        let shutdown = stages.shutdown(stage).clone();
        tasks.of(stage).spawn(&name(stage), async move {
            shutdown.forced().await;
            if even_then {
                std::future::pending::<()>().await;
            }
        });
    }

    fn name(stage: Stage) -> String {
        format!("{stage:?}")
    }

    /// Every combination of stages that have a task which does not end in time.
    #[tokio::test(start_paused = true)]
    async fn each_stage_has_time_of_its_own_and_only_ingress_may_give_up() {
        const ALL: [Stage; 4] = [
            Stage::Ingress,
            Stage::Publishing,
            Stage::Egress,
            Stage::Admin,
        ];
        for case in 0..16_u32 {
            let slow: Vec<Stage> = (0..4)
                .filter(|n| case & (1 << n) != 0)
                .map(|n| ALL[n])
                .collect();
            let stages = StageShutdowns::new();
            let tasks = Tasks::default();
            let health = Health::default();
            for &stage in &slow {
                stubborn(&tasks, stage, &stages, false);
            }
            let began = Instant::now();
            let drained = drain(&stages, &tasks, &health, TIMEOUT).await;
            let late = slow.iter().filter(|stage| **stage != Stage::Ingress);
            let late: Vec<String> = late.map(|stage| name(*stage)).collect();
            assert_eq!(drained.err().unwrap_or_default(), late, "{case:04b}");
            let waited = began.elapsed();
            let share = TIMEOUT * slow.last().map_or(0, |stage| last_share(*stage)) / TIME_SHARES;
            assert!(
                waited >= share && waited <= share + FORCED_END,
                "{case:04b}: {waited:?}"
            );
            assert!(
                stages.process.is_forced()
                    && stages.ingress.is_forced()
                    && stages.admin.is_forced()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_even_when_forced_is_named() {
        let stages = StageShutdowns::new();
        let tasks = Tasks::default();
        stubborn(&tasks, Stage::Ingress, &stages, true);
        let drained = drain(&stages, &tasks, &Health::default(), TIMEOUT).await;
        assert_eq!(drained, Err(vec![name(Stage::Ingress)]));
    }
}
