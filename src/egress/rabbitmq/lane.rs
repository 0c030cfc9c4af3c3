//! The queue of a lane: submitters fill it, and the task of the lane empties it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::queue::{Admission, LaneQueue, NextMessage, fixed_key};
use crate::broker::rabbitmq::{AmqpFault, FaultKind};
use crate::domain::limits::MAX_ERROR_BYTES;
use crate::domain::verdict::Refusal;
use crate::domain::{Target, Text, Verdict};
use crate::egress::{CONFIRM_DEADLINE, Lane, Publication};

/// The way to one exchange of one connection.
///
/// The queue has no more messages than its submitters have outstanding. While the broker is away or blocks publishing,
/// messages wait here; none gets a verdict before its own deadline.
#[derive(Debug, Default)]
pub(super) struct ExchangeLane {
    waiting: Mutex<WaitingMessages>,
    submitted: Notify,
    backlog: AtomicUsize,
    trouble: Mutex<LaneTrouble>,
}

#[derive(Debug, Default)]
struct WaitingMessages {
    queue: LaneQueue,
    /// True when the lane has ended. It takes no more messages.
    closed: bool,
}

#[derive(Debug, Default)]
struct LaneTrouble {
    /// The trouble of the whole exchange.
    exchange: Option<String>,
    /// Routing keys with messages that were not confirmed in time.
    hanging: BTreeSet<Text>,
}

impl Lane for ExchangeLane {
    fn submit_all(&self, publications: Vec<Publication>) {
        self.backlog
            .fetch_add(publications.len(), Ordering::Relaxed);
        let refused = {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                publications
            } else {
                waiting.queue.push_all(publications);
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

    /// The trouble of the exchange, not that of single routing keys.
    fn trouble(&self) -> Option<String> {
        self.trouble.lock().exchange.clone()
    }

    fn trouble_of(&self, target: &Target) -> Option<String> {
        let trouble = self.trouble.lock();
        let hanging = fixed_key(target).and_then(|key| trouble.hanging.get(&Text::from(key)));
        trouble
            .exchange
            .clone()
            .or_else(|| hanging.map(not_confirmed))
    }

    /// Any routing key may be that of a message, unless the target has one of its own.
    fn partial_trouble_of(&self, target: &Target) -> Option<String> {
        if fixed_key(target).is_some() {
            return None;
        }
        self.trouble.lock().hanging.first().map(not_confirmed)
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
        !self.waiting.lock().queue.is_empty()
    }

    /// Begins a round of [`Self::next`]: see [`LaneQueue::begin_round`].
    pub(super) fn begin_round(&self, answered: &[Text], all: bool) {
        self.waiting.lock().queue.begin_round(answered, all);
    }

    /// Takes out the next message that `admit` lets go. Those before it that it is too late to send get their verdicts.
    pub(super) fn next(
        &self,
        now_us: i64,
        mut admit: impl FnMut(&Publication) -> Admission,
    ) -> Option<Publication> {
        loop {
            let next = self.waiting.lock().queue.next(now_us, &mut admit);
            match next? {
                NextMessage::Publish(publication) => return Some(publication),
                NextMessage::TooLate(publication, verdict) => self.answer(&publication, verdict),
            }
        }
    }

    /// Gives their verdicts to all messages that it is too late to send.
    pub(super) fn expire(&self, now_us: i64) {
        let late = self.waiting.lock().queue.take_late(now_us);
        for (publication, verdict) in late {
            self.answer(&publication, verdict);
        }
    }

    /// Gives the same verdict to all messages that wait.
    pub(super) fn answer_waiting(&self, verdict: &Verdict) {
        let waiting = self.waiting.lock().queue.take_all();
        for publication in waiting {
            self.answer(&publication, verdict.clone());
        }
    }

    /// Closes the lane: messages that wait and messages that come get `NotTried`.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.answer_waiting(&Verdict::NotTried);
    }

    /// Notes a trouble of the exchange, or that there is none. Returns true if that is new.
    pub(super) fn set_trouble(&self, trouble: Option<&str>) -> bool {
        let current = &mut self.trouble.lock().exchange;
        let news = current.as_deref() != trouble;
        if news {
            *current = trouble.map(str::to_owned);
        }
        news
    }

    /// Notes that messages of a routing key were not confirmed in time. Returns true if that is new.
    pub(super) fn set_hanging(&self, key: &Text) -> bool {
        self.trouble.lock().hanging.insert(key.clone())
    }

    /// Notes that no message of a routing key is overdue any more.
    pub(super) fn clear_hanging(&self, key: &Text) {
        self.trouble.lock().hanging.remove(key);
    }

    /// Notes that the messages that were not confirmed in time have gone with their channel.
    pub(super) fn forget_hanging(&self) {
        self.trouble.lock().hanging.clear();
    }
}

/// The error of a message that was not confirmed in time.
pub(super) fn not_confirmed(key: &Text) -> String {
    let seconds = CONFIRM_DEADLINE.as_secs();
    format!("no confirm within {seconds} s for routing key {key:?}")
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

/// The verdict on a message whose answer was lost with its channel. An outage blames no message, unless it is suspected to be
/// the cause.
pub(super) fn unanswered(fault: &AmqpFault, is_suspected: bool) -> Verdict {
    let error = cut(&fault.to_string());
    match fault.kind {
        FaultKind::Lost | FaultKind::Tls if !is_suspected => Verdict::Interrupted { error },
        _ => Verdict::Unknown { error },
    }
}

fn cut(error: &str) -> Text {
    let end = (0..=error.len().min(MAX_ERROR_BYTES))
        .rev()
        .find(|&end| error.is_char_boundary(end));
    Text::from(&error[..end.unwrap_or_default()])
}
