//! Names of operations that the store has not answered yet. On a route that keeps the order of keys a command may have
//! another key than its message, and the store is asked which partition has the name: not before it knows all that was
//! read of this name until then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::Text;

/// The names of one source, each with the number of its operations without an answer.
#[derive(Debug, Default)]
pub(super) struct UnstoredNames {
    counts: Mutex<HashMap<Text, usize>>,
    fewer: Notify,
}

/// The name of one operation, until its record is resolved or abandoned.
#[derive(Debug)]
pub(super) struct UnstoredName {
    names: Arc<UnstoredNames>,
    id: Text,
}

impl UnstoredNames {
    pub(super) fn enter(self: &Arc<Self>, id: Text) -> UnstoredName {
        *self.counts.lock().entry(id.clone()).or_default() += 1;
        UnstoredName {
            names: self.clone(),
            id,
        }
    }

    pub(super) fn has(&self, id: &Text) -> bool {
        self.counts.lock().contains_key(id)
    }

    /// Waits until no operation of this name is without an answer. For one who waits at a time. Cancel-safe.
    pub(super) async fn answered(&self, id: &Text) {
        while self.has(id) {
            self.fewer.notified().await;
        }
    }
}

impl Drop for UnstoredName {
    fn drop(&mut self) {
        let mut counts = self.names.counts.lock();
        let Some(count) = counts.get_mut(&self.id) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.id);
            drop(counts);
            self.names.fewer.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_name_is_waited_for_until_the_last_of_its_operations_has_an_answer() {
        let names = Arc::<UnstoredNames>::default();
        let (a, b): (Text, Text) = ("a".into(), "b".into());
        assert!(names.answered(&a).now_or_never().is_some());
        let [first, second, other] = [&a, &a, &b].map(|id| names.enter(id.clone()));
        let mut answered = pin!(names.answered(&a));
        let mut is_answered = || answered.as_mut().now_or_never().is_some();
        assert!(!is_answered());
        drop(first);
        assert!(!is_answered() && names.has(&a));
        drop(second);
        assert!(is_answered() && !names.has(&a) && names.has(&b));
        drop(other);
        assert!(names.counts.lock().is_empty());
    }
}
