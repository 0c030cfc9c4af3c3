//! Named tasks and threads, and the two moments of an end: *drain* (finish what is begun, take nothing
//! new) and *force* (stop now; what is unfinished is in the store).
//!
//! A task that panics ends the process in order: the rest drains, the exit code is 1.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// The two moments of an end, handed to every task. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    force: CancellationToken,
}

impl Shutdown {
    /// Asks all to finish what they have begun and to take nothing new.
    pub fn begin(&self) {
        self.drain.cancel();
    }

    /// Asks all to stop now.
    pub fn force(&self) {
        self.drain.cancel();
        self.force.cancel();
    }

    /// Whether draining has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Whether time has run out.
    pub fn is_forced(&self) -> bool {
        self.force.is_cancelled()
    }

    /// Resolves when draining begins.
    pub async fn draining(&self) {
        self.drain.cancelled().await;
    }

    /// Resolves when time has run out.
    pub async fn forced(&self) {
        self.force.cancelled().await;
    }

    /// A stage of this end: it drains only when told to by its own `begin`, and can be forced alone; forcing
    /// the whole forces each stage. Ingress drains first, then timers, then egress.
    #[must_use]
    pub fn stage(&self) -> Self {
        Self { drain: CancellationToken::new(), force: self.force.child_token() }
    }
}

/// All tasks and threads of the process, by name. The only place that spawns.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    running: Arc<Mutex<BTreeMap<String, usize>>>,
    changed: Arc<Notify>,
    panicked: CancellationToken,
}

struct Running {
    tasks: Tasks,
    name: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.tasks.running.lock();
        if let Some(count) = running.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.name);
            }
        }
        drop(running);
        self.tasks.changed.notify_waiters();
        if std::thread::panicking() {
            error!(task = %self.name, "a task panicked; the process will end");
            self.tasks.panicked.cancel();
        }
    }
}

impl Tasks {
    fn enter(&self, name: &str) -> Running {
        *self.running.lock().entry(name.to_owned()).or_default() += 1;
        Running { tasks: self.clone(), name: name.to_owned() }
    }

    /// Runs a future as a task of this name.
    #[allow(clippy::disallowed_methods)] // the one place that spawns
    pub fn spawn(&self, name: &str, future: impl Future<Output = ()> + Send + 'static) {
        let running = self.enter(name);
        drop(tokio::spawn(async move {
            let _running = running;
            future.await;
        }));
    }

    /// Runs a closure on a thread of this name. Where this is called in a runtime, the thread may spawn
    /// tasks of that runtime.
    pub fn thread(&self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let running = self.enter(name);
        let runtime = tokio::runtime::Handle::try_current().ok();
        std::thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || {
            let _running = running;
            let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
            body();
        })?;
        Ok(())
    }

    /// Resolves when any task has panicked.
    pub async fn panicked(&self) {
        self.panicked.cancelled().await;
    }

    /// Whether any task has panicked.
    pub fn has_panicked(&self) -> bool {
        self.panicked.is_cancelled()
    }

    /// Waits until every task whose name begins with `prefix` has ended, at most so long. `Err` names
    /// those that are late.
    pub async fn ended(&self, prefix: &str, at_most: Duration) -> Result<(), Vec<String>> {
        let all_ended = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.late(prefix).is_empty() {
                    return;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(at_most, all_ended).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.late(prefix)),
        }
    }

    fn late(&self, prefix: &str) -> Vec<String> {
        self.running.lock().keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn laggards_are_named_and_a_stage_waits_for_its_own_begin() {
        let (tasks, shutdown) = (Tasks::default(), Shutdown::default());
        let stage = shutdown.stage();
        let (first, second) = (shutdown.clone(), stage.clone());
        tasks.spawn("ingress:a", async move { first.draining().await });
        tasks.spawn("timer:0", async move { second.draining().await });
        shutdown.begin();
        assert_eq!(tasks.ended("ingress", Duration::from_secs(1)).await, Ok(()));
        assert_eq!(tasks.ended("timer", Duration::from_secs(1)).await, Err(vec!["timer:0".to_owned()]));
        stage.begin();
        assert_eq!(tasks.ended("", Duration::from_secs(1)).await, Ok(()));
    }

    #[test]
    fn a_stage_is_forced_alone_or_with_the_whole() {
        let whole = Shutdown::default();
        let (first, second) = (whole.stage(), whole.stage());
        first.force();
        assert_eq!([&whole, &first, &second].map(Shutdown::is_forced), [false, true, false]);
        whole.force();
        assert!(second.is_forced());
    }

    #[tokio::test]
    async fn a_panic_is_noticed() {
        let tasks = Tasks::default();
        tasks.spawn("bad", async { panic!("planted") });
        tasks.panicked().await;
        assert!(tasks.has_panicked());
    }
}
