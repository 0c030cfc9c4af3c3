//! The poll of the store for the lateness of its messages. The log has a line when it begins to fail, and one when it
//! succeeds again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{info, warn};

use super::PeriodicTask;
use crate::domain::Route;
use crate::health::{Health, OverduePlace};
use crate::store::{Store, StoreError};

/// Longest wait for the lateness of the store's messages.
const LATE_DEADLINE: Duration = Duration::from_secs(3);

/// Logs the failures of one poll, at their begin and their end.
#[derive(Debug)]
struct PollLog {
    poll: &'static str,
    fails: bool,
}

impl PollLog {
    fn new(poll: &'static str) -> Self {
        Self { poll, fails: false }
    }

    /// Takes an answer, and logs a change between failure and success. `None` if the answer is a failure.
    fn answered<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        let fails = answer.is_err();
        let failed = std::mem::replace(&mut self.fails, fails);
        match &answer {
            Err(error) if !failed => {
                warn!(poll = self.poll, %error, "poll of the store failed; its figures are not updated");
            }
            Ok(_) if failed => info!(poll = self.poll, "poll of the store succeeded again"),
            _ => {}
        }
        answer.ok()
    }
}

/// Asks the store for its late messages. Without an answer the last figures stay.
pub(super) struct LatenessPoll {
    slot: Arc<OnceLock<Store>>,
    routes: Vec<Arc<Route>>,
    health: Health,
    log: PollLog,
}

impl LatenessPoll {
    pub(super) fn new(slot: Arc<OnceLock<Store>>, routes: Vec<Arc<Route>>, health: Health) -> Self {
        Self {
            slot,
            routes,
            health,
            log: PollLog::new("lateness"),
        }
    }
}

impl PeriodicTask for LatenessPoll {
    const PERIOD: Duration = Duration::from_secs(1);

    async fn round(&mut self) {
        let Some(store) = self.slot.get() else { return };
        let answer = tokio::time::timeout(LATE_DEADLINE, store.oldest_overdue()).await;
        let answer =
            answer.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".to_owned())));
        let Some(late) = self.log.answered(answer) else {
            return;
        };
        for route in &self.routes {
            let name = route.name.as_str();
            let overdue = &self.health.route(&route.name).overdue;
            overdue.report(OverduePlace::Waiting, late.waiting.get(name).copied());
            overdue.report(OverduePlace::PutBack, late.put_back.get(name).copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_fails_gives_nothing_and_the_next_one_counts_again() {
        let mut log = PollLog::new("anything");
        assert_eq!(log.answered(Ok(1)), Some(1));
        let away = || Err::<i32, _>(StoreError::Unavailable("away".to_owned()));
        assert_eq!([log.answered(away()), log.answered(away())], [None, None]);
        assert!(log.fails);
        assert_eq!(log.answered(Ok(2)), Some(2));
        assert!(!log.fails);
    }
}
