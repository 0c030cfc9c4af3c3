//! What one channel or one partition assignment has read and not yet released, in order of delivery.
//!
//! Contiguous means in order of delivery, never by number: Kafka offsets have gaps (transaction
//! markers, compaction), RabbitMQ's tags may be acknowledged singly. Completions for a ledger whose
//! channel or assignment is gone resolve into a ledger that nobody reads any more.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::admission::PendingPermit;

/// The ledger of one channel or one partition assignment.
#[derive(Debug, Default)]
pub struct Ledger {
    open: Mutex<Open>,
    advanced: Notify,
}

#[derive(Debug, Default)]
struct Open {
    /// Slot number of the front entry.
    base: u64,
    /// In order of delivery.
    entries: VecDeque<(i64, State)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Resolved,
    Rejected,
}

/// A resolved prefix that was taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Position of its last record.
    pub last: i64,
    /// Position of the last one that is safe; `None` if all of them are to be rejected.
    pub safe: Option<i64>,
    /// Those that the source is to take back for good: only of a source that can.
    pub rejected: Vec<i64>,
}

/// The right and duty to resolve one record, once. Dropped unresolved, its source is never released
/// past it: the record will be delivered again.
#[derive(Debug)]
pub struct Receipt {
    ledger: Arc<Ledger>,
    slot: u64,
    /// What its message takes of the room of its route, until it is resolved or dropped.
    permit: Option<PendingPermit>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Enters a record read at `position` (an offset, a delivery tag).
    pub fn enter(self: &Arc<Self>, position: i64) -> Receipt {
        let mut open = self.open.lock();
        let slot = open.base + open.entries.len() as u64;
        open.entries.push_back((position, State::Open));
        Receipt { ledger: self.clone(), slot, permit: None }
    }

    /// Takes the resolved prefix out; `None` if the oldest record is unresolved or there is none.
    pub fn release(&self) -> Option<Released> {
        let mut open = self.open.lock();
        let mut released: Option<Released> = None;
        while let Some(&(position, state)) = open.entries.front().filter(|(_, state)| *state != State::Open) {
            open.entries.pop_front();
            open.base += 1;
            let released = released.get_or_insert_default();
            released.last = position;
            match state {
                State::Rejected => released.rejected.push(position),
                _ => released.safe = Some(position),
            }
        }
        released
    }

    /// Records not yet released.
    pub fn outstanding(&self) -> usize {
        self.open.lock().entries.len()
    }

    /// Waits until the prefix has grown since the last release. Cancel-safe.
    pub async fn advanced(&self) {
        self.advanced.notified().await;
    }
}

impl Receipt {
    /// Keeps the permit for as long as the record is neither safe nor given up.
    pub(super) fn keep(&mut self, permit: Option<PendingPermit>) {
        self.permit = permit;
    }

    /// The record is safe: its source may be released past it.
    pub fn resolve(self) {
        self.end(State::Resolved);
    }

    /// Several at once: each ledger is asked once for those of its receipts that stand together.
    pub fn resolve_all(receipts: impl IntoIterator<Item = Self>) {
        let mut receipts = receipts.into_iter().peekable();
        while let Some(first) = receipts.next() {
            let ledger = first.ledger.clone();
            let mut open = ledger.open.lock();
            let mut grew = open.end(first.slot, State::Resolved);
            while let Some(next) = receipts.next_if(|next| Arc::ptr_eq(&next.ledger, &ledger)) {
                grew |= open.end(next.slot, State::Resolved);
            }
            drop(open);
            if grew {
                ledger.advanced.notify_one();
            }
        }
    }

    /// The record is not kept here: its source, a queue, is to take it back for good.
    pub fn reject(self) {
        self.end(State::Rejected);
    }

    fn end(self, state: State) {
        if self.ledger.open.lock().end(self.slot, state) {
            self.ledger.advanced.notify_one();
        }
    }
}

impl Open {
    /// Notes how a record ended; returns whether the prefix has grown by it.
    fn end(&mut self, slot: u64, state: State) -> bool {
        let Some(at) = slot.checked_sub(self.base) else { return false };
        let Some(entry) = self.entries.get_mut(at as usize) else { return false };
        entry.1 = state;
        at == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_resolved_prefix_is_released_and_gaps_do_not_matter() {
        let ledger = Ledger::new();
        let receipts: Vec<_> = [100, 102, 107].into_iter().map(|p| ledger.enter(p)).collect();
        let [first, second, third] = <[Receipt; 3]>::try_from(receipts).expect("three");
        third.resolve();
        assert_eq!(ledger.release(), None);
        first.resolve();
        assert_eq!(ledger.release().map(|r| r.last), Some(100));
        second.resolve();
        assert_eq!(ledger.release().map(|r| r.last), Some(107));
        assert_eq!(ledger.outstanding(), 0);
    }

    #[test]
    fn several_are_resolved_together_whichever_ledger_they_belong_to() {
        let (one, other) = (Ledger::new(), Ledger::new());
        let receipts = [one.enter(1), one.enter(2), other.enter(7), one.enter(3)];
        Receipt::resolve_all(receipts);
        assert_eq!(one.release().map(|r| r.last), Some(3));
        assert_eq!(other.release().map(|r| r.last), Some(7));
    }

    #[test]
    fn what_is_rejected_is_told_apart_in_its_place() {
        let ledger = Ledger::new();
        let mut receipts: Vec<_> = (1..=4).map(|p| ledger.enter(p)).collect();
        let last = receipts.pop().expect("four");
        for (n, receipt) in receipts.into_iter().enumerate() {
            if n == 1 { receipt.resolve() } else { receipt.reject() }
        }
        assert_eq!(ledger.release(), Some(Released { last: 3, safe: Some(2), rejected: vec![1, 3] }));
        last.reject();
        assert_eq!(ledger.release(), Some(Released { last: 4, safe: None, rejected: vec![4] }));
    }

    #[test]
    fn a_dropped_receipt_holds_the_prefix_for_ever() {
        let ledger = Ledger::new();
        drop(ledger.enter(1));
        ledger.enter(2).resolve();
        assert_eq!(ledger.release(), None);
        assert_eq!(ledger.outstanding(), 2);
    }
}
