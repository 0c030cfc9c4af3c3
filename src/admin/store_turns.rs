//! Turns at the store for calls of the API. Those who act and those who look have places of their own, so that no number of
//! viewers keeps anybody from acting; and of those who look each token has a queue of its own. The load that viewers put on
//! the store does not grow with their number.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::auth::Caller;

/// Calls of the store that run at once for those who look, and as many again for those who act.
const PLACES: usize = 2;

tokio::task_local! {
    /// Whose call of the API the present task serves.
    static SERVED: Caller;
}

/// Serves a call by this future: its turns at the store are the caller's. What nobody known calls looks.
pub(super) async fn serve<T>(caller: Option<Caller>, answer: impl Future<Output = T>) -> T {
    match caller {
        Some(caller) => SERVED.scope(caller, answer).await,
        None => answer.await,
    }
}

/// The places.
pub(super) struct StoreTurns {
    acting: Semaphore,
    looking: Semaphore,
    /// The head of the queue of each caller who looks.
    queues: Mutex<BTreeMap<Arc<str>, Arc<Semaphore>>>,
}

/// A turn. Dropping it ends it.
pub(super) struct Turn<'a> {
    _place: Option<SemaphorePermit<'a>>,
    _queue: Option<OwnedSemaphorePermit>,
}

impl StoreTurns {
    pub(super) fn new() -> Self {
        Self {
            acting: Semaphore::new(PLACES),
            looking: Semaphore::new(PLACES),
            queues: Mutex::default(),
        }
    }

    /// Waits for a turn of the call that the present task serves. What serves none looks. Cancel-safe.
    pub(super) async fn next(&self) -> Turn<'_> {
        let call = SERVED.try_with(Clone::clone).ok();
        if call.as_ref().is_some_and(|call| call.acts) {
            return Turn {
                _place: self.acting.acquire().await.ok(),
                _queue: None,
            };
        }
        let who = call.map_or_else(|| Arc::from(""), |call| call.name);
        let queue = self.queue(who).acquire_owned().await.ok();
        Turn {
            _place: self.looking.acquire().await.ok(),
            _queue: queue,
        }
    }

    /// The queue of a caller. Those that nobody stands in are forgotten.
    fn queue(&self, who: Arc<str>) -> Arc<Semaphore> {
        let mut queues = self.queues.lock();
        queues.retain(|name, queue| *name == who || Arc::strong_count(queue) > 1);
        let queue = queues
            .entry(who)
            .or_insert_with(|| Arc::new(Semaphore::new(PLACES)));
        queue.clone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;
    use crate::admin::auth::AccessRole;

    async fn turn<'a>(turns: &'a StoreTurns, who: &str, acts: bool) -> Turn<'a> {
        let caller = Caller::new(AccessRole::Write, who.into(), acts);
        serve(Some(caller), turns.next()).await
    }

    #[tokio::test]
    async fn a_crowd_of_one_token_keeps_nobody_else_waiting() {
        let turns = StoreTurns::new();
        let held = [
            turn(&turns, "a", false).await,
            turn(&turns, "a", false).await,
        ];
        let mut crowd: Vec<_> = (0..100)
            .map(|_| Box::pin(turn(&turns, "a", false)))
            .collect();
        assert!(crowd.iter_mut().all(|one| one.now_or_never().is_none()));
        // Whoever acts does not wait.
        let acting = turn(&turns, "a", true).now_or_never();
        assert!(acting.is_some());
        // Another token is next, though a hundred came before.
        let mut other = Box::pin(turn(&turns, "b", false));
        assert!((&mut other).now_or_never().is_none());
        let [first, second] = held;
        drop(first);
        assert!((&mut other).now_or_never().is_some());
        drop((second, acting));
        join_all(crowd.into_iter().map(async |one| drop(one.await))).await;
        assert_eq!(turns.looking.available_permits(), PLACES);
        let _last = turn(&turns, "c", false).await;
        assert_eq!(
            turns.queues.lock().len(),
            1,
            "those of the others are forgotten"
        );
    }
}
