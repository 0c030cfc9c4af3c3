//! The end, in order: ingress stops reading and lets what it read be stored, and this replica leaves the others,
//! so that they serve its partitions; then the timers stop claiming,
//! settle what is confirmed and give the rest back; then the lanes; admin last, so that it can be seen. Each stage has
//! a share of the time of its own: one that hangs takes none of the others'.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::lifecycle::{Readiness, Shutdown, Tasks};

/// The stages of the end; each is forced when its own time is over, all that is left with the whole.
#[derive(Debug)]
pub(super) struct Stages {
    /// Outlives all stages: the store, which each of them needs.
    pub(super) whole: Shutdown,
    pub(super) ingress: Shutdown,
    /// Timers, and what went straight to its target.
    pub(super) flow: Shutdown,
    pub(super) egress: Shutdown,
    pub(super) admin: Shutdown,
}

impl Stages {
    pub(super) fn new() -> Self {
        let whole = Shutdown::default();
        let (ingress, flow) = (whole.stage(), whole.stage());
        Self { ingress, flow, egress: whole.stage(), admin: whole.stage(), whole }
    }
}

/// Time for tasks to notice that they are forced.
const AFTER_FORCE: Duration = Duration::from_millis(500);

/// When each stage's time is over, in sixteenths of the whole. What a stage does not use is left to those after it.
const INGRESS_SHARE: u32 = 4;
const FLOW_SHARE: u32 = 12;
const EGRESS_SHARE: u32 = 15;
const ADMIN_SHARE: u32 = 16;

/// Ends every stage, within this time in all. `Err` names the tasks that were late.
pub(super) async fn drain(
    stages: &Stages,
    tasks: &Tasks,
    readiness: &Readiness,
    timeout: Duration,
) -> Result<(), Vec<String>> {
    readiness.drain();
    let began = Instant::now();
    let of_ingress = ["ingress", "cluster"];
    stages.ingress.begin();
    let unfinished = all_ended(tasks, &of_ingress, began + timeout * INGRESS_SHARE / ADMIN_SHARE).await;
    if !unfinished.is_empty() {
        stages.ingress.force();
        let left = all_ended(tasks, &of_ingress, Instant::now() + AFTER_FORCE).await;
        // Nothing is left behind: what was read and not stored is its source's, which delivers it again.
        warn!(tasks = ?unfinished, still_ending = ?left, "ingress gave up what it had read and the store did not take in; it is read again");
    }
    let in_order: [(&Shutdown, &[&str], u32); 2] =
        [(&stages.flow, &["timer", "direct"], FLOW_SHARE), (&stages.egress, &["egress"], EGRESS_SHARE)];
    let mut late = Vec::new();
    for (stage, names, share) in in_order {
        stage.begin();
        let unfinished = all_ended(tasks, names, began + timeout * share / ADMIN_SHARE).await;
        if unfinished.is_empty() {
            continue;
        }
        stage.force();
        all_ended(tasks, names, Instant::now() + AFTER_FORCE).await;
        warn!(tasks = ?unfinished, "still busy when time ran out");
        late.extend(unfinished);
    }
    // The last commit of a Kafka group waits for the end of a rebalance, beside the stages above.
    late.extend(all_ended(tasks, &of_ingress, began + timeout * EGRESS_SHARE / ADMIN_SHARE).await);
    stages.admin.begin();
    let unfinished = all_ended(tasks, &["admin", "bursts"], began + timeout).await;
    if !unfinished.is_empty() {
        stages.admin.force();
        warn!(tasks = ?unfinished, "still busy when time ran out");
        late.extend(unfinished);
    }
    stages.whole.force();
    if tasks.ended("", AFTER_FORCE).await.is_ok() && late.is_empty() {
        info!("drained");
    }
    if late.is_empty() { Ok(()) } else { Err(late) }
}

/// Waits until all tasks of these names have ended, until then at most; returns those that have not.
async fn all_ended(tasks: &Tasks, names: &[&str], until: Instant) -> Vec<String> {
    let mut late = Vec::new();
    for name in names {
        let left = until.saturating_duration_since(Instant::now());
        late.extend(tasks.ended(name, left).await.err().unwrap_or_default());
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Duration = Duration::from_secs(16);

    /// A task of a stage that does not end before it is forced, or not even then.
    fn stubborn(tasks: &Tasks, name: &str, stage: &Shutdown, even_then: bool) {
        let stage = stage.clone();
        tasks.spawn(name, async move {
            stage.forced().await;
            if even_then {
                std::future::pending::<()>().await;
            }
        });
    }

    /// Which stages have a task that does not end in time: each combination.
    #[tokio::test(start_paused = true)]
    async fn each_stage_has_time_of_its_own_and_only_ingress_may_give_up() {
        for case in 0..16_u32 {
            let slow = |n: u32| case & (1 << n) != 0;
            let (stages, tasks, readiness) = (Stages::new(), Tasks::default(), Readiness::default());
            let of = [
                ("ingress:a", &stages.ingress),
                ("timer:0", &stages.flow),
                ("egress:a", &stages.egress),
                ("admin", &stages.admin),
            ];
            for (n, (name, stage)) in of.into_iter().enumerate() {
                if slow(n as u32) {
                    stubborn(&tasks, name, stage, false);
                }
            }
            let began = Instant::now();
            let drained = drain(&stages, &tasks, &readiness, WHOLE).await;
            let late: Vec<String> =
                (1..4).filter(|n| slow(*n)).map(|n| of[n as usize].0.to_owned()).collect();
            assert_eq!(drained.err().unwrap_or_default(), late, "{case:04b}");
            let last = (0..4)
                .filter(|n| slow(*n))
                .map(|n| [INGRESS_SHARE, FLOW_SHARE, EGRESS_SHARE, ADMIN_SHARE][n as usize])
                .max();
            let waited = began.elapsed();
            let share = WHOLE * last.unwrap_or(0) / ADMIN_SHARE;
            assert!(waited >= share && waited <= share + AFTER_FORCE, "{case:04b}: {waited:?}");
            assert!(stages.whole.is_forced() && stages.ingress.is_forced() && stages.admin.is_forced());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_even_when_forced_is_named() {
        let (stages, tasks) = (Stages::new(), Tasks::default());
        stubborn(&tasks, "ingress:a", &stages.ingress, true);
        let drained = drain(&stages, &tasks, &Readiness::default(), WHOLE).await;
        assert_eq!(drained, Err(vec!["ingress:a".to_owned()]));
    }
}
