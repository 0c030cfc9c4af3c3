//! Named tasks and threads, and the two steps of a shutdown: *drain* (finish what is begun, take nothing new) and
//! *force* (stop now; messages that are unfinished are in the store).
//!
//! A task that panics ends the process in order: all other tasks drain, and the exit code is 1.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// The two steps of a shutdown. Every task gets a clone, which is cheap.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    force: CancellationToken,
}

impl Shutdown {
    /// Asks all tasks to finish what they have begun and to take nothing new.
    pub fn begin(&self) {
        self.drain.cancel();
    }

    /// Asks all tasks to stop now.
    pub fn force(&self) {
        self.drain.cancel();
        self.force.cancel();
    }

    /// Reports whether draining has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Reports whether the tasks must stop now.
    pub fn is_forced(&self) -> bool {
        self.force.is_cancelled()
    }

    /// Resolves when draining begins.
    pub async fn draining(&self) {
        self.drain.cancelled().await;
    }

    /// Goes on with this work until it is done or draining begins; then what is left of it is dropped.
    pub async fn until_draining(&self, work: impl Future<Output = ()>) {
        self.drain.run_until_cancelled(work).await;
    }

    /// Resolves when the tasks must stop now.
    pub async fn forced(&self) {
        self.force.cancelled().await;
    }

    /// The shutdown of one stage. The stage drains when its own `begin` is called, and can be forced alone. Forcing
    /// `self` forces each of its stages.
    #[must_use]
    pub fn stage(&self) -> Self {
        Self {
            drain: CancellationToken::new(),
            force: self.force.child_token(),
        }
    }
}

/// A stage of the shutdown. Stages end one after the other, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Consumers, writes of what they read, and this replica's membership of the cluster.
    Ingress,
    /// Timers, and publishes of messages that were due on arrival.
    Publishing,
    /// Lanes to the brokers.
    Egress,
    /// Probes, metrics and the API.
    Admin,
}

/// All tasks and threads of the process, by stage and name. No other code spawns.
///
/// A clone that is bound to a stage ([`Tasks::of`]) spawns for that stage and waits for that stage alone. A clone
/// without a stage spawns tasks that outlive all stages, as those of the store do, and waits for all tasks.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stage: Option<Stage>,
    /// The runtime that tasks are spawned on; `None`: that of the caller.
    runtime: Option<Handle>,
    running: Arc<Mutex<BTreeMap<TaskKey, usize>>>,
    changed: Arc<Notify>,
    panicked: CancellationToken,
}

/// Stage and name of a task. Several tasks may share both.
type TaskKey = (Option<Stage>, String);

/// Entry of a task that runs. The task counts as ended when its entry is dropped.
struct RunningTask {
    tasks: Tasks,
    key: TaskKey,
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        let mut running = self.tasks.running.lock();
        if let Some(count) = running.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.key);
            }
        }
        drop(running);
        self.tasks.changed.notify_waiters();
        if std::thread::panicking() {
            error!(task = %self.key.1, "a task panicked; the process will end");
            self.tasks.panicked.cancel();
        }
    }
}

impl Tasks {
    /// The same tasks, bound to a stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> Self {
        Self {
            stage: Some(stage),
            ..self.clone()
        }
    }

    /// The same tasks, bound to a runtime: they run there, whichever runtime their spawner is on.
    #[must_use]
    pub fn on(&self, runtime: &Handle) -> Self {
        Self {
            runtime: Some(runtime.clone()),
            ..self.clone()
        }
    }

    fn enter(&self, name: &str) -> RunningTask {
        let key = (self.stage, name.to_owned());
        *self.running.lock().entry(key.clone()).or_default() += 1;
        RunningTask {
            tasks: self.clone(),
            key,
        }
    }

    /// Runs a future as a task of this name.
    #[allow(clippy::disallowed_methods)] // the one place that spawns
    pub fn spawn(&self, name: &str, future: impl Future<Output = ()> + Send + 'static) {
        let running = self.enter(name);
        let task = async move {
            let _running = running;
            future.await;
        };
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(task)),
            None => drop(tokio::spawn(task)),
        }
    }

    /// Runs a closure on a thread of this name. The thread may spawn tasks of the runtime that these tasks are bound to,
    /// or else of the caller's, if there is one.
    pub fn thread(&self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let running = self.enter(name);
        let runtime = self.runtime.clone().or_else(|| Handle::try_current().ok());
        std::thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(move || {
                let _running = running;
                let _entered = runtime.as_ref().map(Handle::enter);
                body();
            })?;
        Ok(())
    }

    /// Resolves when any task has panicked.
    pub async fn panicked(&self) {
        self.panicked.cancelled().await;
    }

    /// Reports whether any task has panicked.
    pub fn has_panicked(&self) -> bool {
        self.panicked.is_cancelled()
    }

    /// Waits until every task of this stage has ended; without a stage, until every task has ended. Waits no longer
    /// than `at_most`. `Err` names the tasks that still run.
    pub async fn ended(&self, at_most: Duration) -> Result<(), Vec<String>> {
        let all_ended = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.late().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(at_most, all_ended).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.late()),
        }
    }

    /// The names of the tasks of this stage that still run.
    fn late(&self) -> Vec<String> {
        let running = self.running.lock();
        let own = running
            .keys()
            .filter(|(stage, _)| self.stage.is_none() || *stage == self.stage);
        own.map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn laggards_are_named_and_a_stage_waits_for_its_own_begin() {
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let stage = shutdown.stage();
        let first = shutdown.clone();
        let second = stage.clone();
        let ingress = tasks.of(Stage::Ingress);
        let publishing = tasks.of(Stage::Publishing);
        ingress.spawn("ingress:a", async move { first.draining().await });
        publishing.spawn("timer:0", async move { second.draining().await });
        shutdown.begin();
        assert_eq!(ingress.ended(Duration::from_secs(1)).await, Ok(()));
        assert_eq!(
            publishing.ended(Duration::from_secs(1)).await,
            Err(vec!["timer:0".to_owned()])
        );
        stage.begin();
        assert_eq!(tasks.ended(Duration::from_secs(1)).await, Ok(()));
    }

    #[test]
    fn a_stage_is_forced_alone_or_with_the_whole() {
        let whole = Shutdown::default();
        let first = whole.stage();
        let second = whole.stage();
        first.force();
        assert_eq!(
            [&whole, &first, &second].map(Shutdown::is_forced),
            [false, true, false]
        );
        whole.force();
        assert!(second.is_forced());
    }

    #[test]
    fn a_bound_task_runs_on_its_runtime_whoever_spawns_it() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("built")
        };
        let home = runtime();
        let other = runtime();
        let tasks = Tasks::default().on(home.handle());
        let (tell, told) = std::sync::mpsc::channel();
        other.block_on(async {
            let bound = tasks.of(Stage::Egress);
            bound.spawn("lane", async move {
                tell.send(Handle::current().id()).expect("heard");
            });
        });
        assert!(told.try_recv().is_err(), "it ran elsewhere");
        home.block_on(tasks.ended(Duration::from_secs(30)))
            .expect("ended");
        assert_eq!(told.try_recv(), Ok(home.handle().id()));
    }

    #[tokio::test]
    async fn a_panic_is_noticed() {
        let tasks = Tasks::default();
        tasks.spawn("bad", async { panic!("planted") });
        tasks.panicked().await;
        assert!(tasks.has_panicked());
    }
}
