//! What the store is asked about itself at each tick: what is late in it, and how full it is. An answer that fails is
//! named once in the log, and once more when answers come again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{info, warn};

use super::Recurring;
use crate::store::{Store, StoreError};
use crate::telemetry::{Metrics, OverduePlace};

/// Longest wait for what the store says is late.
const DEADLINE: Duration = Duration::from_secs(3);

/// Whether one question to the store is answered.
#[derive(Debug)]
struct Question {
    what: &'static str,
    fails: bool,
}

impl Question {
    fn new(what: &'static str) -> Self {
        Self { what, fails: false }
    }

    /// Takes an answer, and names in the log when answers begin to fail and when they come again.
    fn answered<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        let fails = answer.is_err();
        let failed = std::mem::replace(&mut self.fails, fails);
        match &answer {
            Err(error) if !failed => {
                warn!(what = self.what, %error, "the store does not say; its figure stands still");
            }
            Ok(_) if failed => info!(what = self.what, "the store says again"),
            _ => {}
        }
        answer.ok()
    }
}

/// Asks the store what is late in it. Without an answer what was late stays so.
pub(super) struct LateLook {
    slot: Arc<OnceLock<Store>>,
    metrics: Arc<Metrics>,
    question: Question,
}

impl LateLook {
    pub(super) fn new(slot: Arc<OnceLock<Store>>, metrics: Arc<Metrics>) -> Self {
        Self { slot, metrics, question: Question::new("what is late in it") }
    }
}

impl Recurring for LateLook {
    const PERIOD: Duration = Duration::from_secs(1);

    async fn round(&mut self) {
        let Some(store) = self.slot.get() else { return };
        let answer = tokio::time::timeout(DEADLINE, store.oldest_overdue()).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".to_owned())));
        let Some(late) = self.question.answered(answer) else { return };
        for (name, metrics) in self.metrics.routes() {
            metrics.overdue.report(OverduePlace::Waiting, late.waiting.get(name.as_str()).copied());
            metrics.overdue.report(OverduePlace::PutBack, late.put_back.get(name.as_str()).copied());
        }
    }
}

/// Asks the store how full it is. Without an answer what was known stays so.
pub(super) struct MemoryLook {
    slot: Arc<OnceLock<Store>>,
    metrics: Arc<Metrics>,
    question: Question,
}

impl MemoryLook {
    pub(super) fn new(slot: Arc<OnceLock<Store>>, metrics: Arc<Metrics>) -> Self {
        Self { slot, metrics, question: Question::new("how full it is") }
    }
}

impl Recurring for MemoryLook {
    const PERIOD: Duration = Duration::from_secs(5);

    async fn round(&mut self) {
        let Some(store) = self.slot.get() else { return };
        let Some(memory) = self.question.answered(store.redis_memory().await) else { return };
        self.metrics.store_memory.set(memory.used as i64);
        self.metrics.store_memory_limit.set(memory.limit as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_fails_gives_nothing_and_the_next_one_counts_again() {
        let mut question = Question::new("anything");
        assert_eq!(question.answered(Ok(1)), Some(1));
        let away = || Err::<i32, _>(StoreError::Unavailable("away".to_owned()));
        assert_eq!([question.answered(away()), question.answered(away())], [None, None]);
        assert!(question.fails);
        assert_eq!(question.answered(Ok(2)), Some(2));
        assert!(!question.fails);
    }
}
