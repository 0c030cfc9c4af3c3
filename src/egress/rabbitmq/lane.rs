//! The queue of a lane: submitters fill it, and the task of the lane empties it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::limits::MAX_ERROR_BYTES;
use crate::domain::verdict::Refusal;
use crate::domain::{Text, Verdict};
use crate::egress::{Lane, Publication};

/// The way to one exchange of one connection.
///
/// The queue has no more messages than its submitters have outstanding. While the broker is away or blocks publishing,
/// messages wait here; none gets a verdict before its own deadline.
#[derive(Debug, Default)]
pub(super) struct ExchangeLane {
    queue: Mutex<LaneQueue>,
    submitted: Notify,
    backlog: AtomicUsize,
    trouble: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct LaneQueue {
    waiting: VecDeque<Publication>,
    /// True when the lane has ended. It takes no more messages.
    closed: bool,
}

impl Lane for ExchangeLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        self.backlog
            .fetch_add(publications.len(), Ordering::Relaxed);
        let refused = {
            let mut queue = self.queue.lock();
            if queue.closed {
                publications
            } else {
                queue.waiting.extend(publications);
                Vec::new()
            }
        };
        if refused.is_empty() {
            self.submitted.notify_one();
        }
        for publication in refused {
            self.answer(&publication, Verdict::NotTried);
        }
    }

    fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl ExchangeLane {
    /// Gives a publication its one verdict.
    pub(super) fn answer(&self, publication: &Publication, verdict: Verdict) {
        publication.answer(verdict);
        self.backlog.fetch_sub(1, Ordering::Relaxed);
    }

    /// Resolves once a message was submitted since the last call. Cancel-safe.
    pub(super) async fn submitted(&self) {
        self.submitted.notified().await;
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.queue.lock().waiting.is_empty()
    }

    /// Takes out the next message if `fits` returns true for it. Expired messages before it get `NotTried`.
    pub(super) fn next(
        &self,
        now_us: i64,
        fits: impl FnOnce(&Publication) -> bool,
    ) -> Option<Publication> {
        loop {
            let mut queue = self.queue.lock();
            let front = queue.waiting.front()?;
            if !front.is_late(now_us) {
                return if fits(front) {
                    queue.waiting.pop_front()
                } else {
                    None
                };
            }
            let expired = queue.waiting.pop_front();
            drop(queue);
            if let Some(expired) = expired {
                self.answer(&expired, Verdict::NotTried);
            }
        }
    }

    /// Gives `NotTried` to all messages whose deadline has passed.
    pub(super) fn expire(&self, now_us: i64) {
        let mut expired = Vec::new();
        self.queue.lock().waiting.retain(|publication| {
            let keep = !publication.is_late(now_us);
            if !keep {
                expired.push(publication.clone());
            }
            keep
        });
        for publication in &expired {
            self.answer(publication, Verdict::NotTried);
        }
    }

    /// Gives the same verdict to all messages that wait.
    pub(super) fn answer_waiting(&self, verdict: &Verdict) {
        let waiting = std::mem::take(&mut self.queue.lock().waiting);
        for publication in &waiting {
            self.answer(publication, verdict.clone());
        }
    }

    /// Closes the lane: messages that wait and messages that come get `NotTried`.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.answer_waiting(&Verdict::NotTried);
    }

    /// Notes a trouble, or that there is none. Returns true if that is new.
    pub(super) fn set_trouble(&self, trouble: Option<&str>) -> bool {
        let mut current = self.trouble.lock();
        let news = current.as_deref() != trouble;
        if news {
            *current = trouble.map(str::to_owned);
        }
        news
    }
}

/// A refusal with its error, cut to the length that is kept.
pub(super) fn refused(reason: Refusal, error: &str) -> Verdict {
    Verdict::Refused {
        reason,
        error: cut(error),
    }
}

/// The verdict `Unknown` with its error, cut to the length that is kept.
pub(super) fn unknown(error: &str) -> Verdict {
    Verdict::Unknown { error: cut(error) }
}

fn cut(error: &str) -> Text {
    let end = (0..=error.len().min(MAX_ERROR_BYTES))
        .rev()
        .find(|&end| error.is_char_boundary(end));
    Text::from(&error[..end.unwrap_or_default()])
}
