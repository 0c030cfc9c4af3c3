//! The ledger: the records that one channel or one partition assignment has read and not yet released, in order
//! of delivery.
//!
//! The released prefix is contiguous in order of delivery, never by number: Kafka offsets have gaps
//! (transaction markers, compaction), and RabbitMQ's tags may be acknowledged singly. Receipts of a channel or
//! an assignment that has ended resolve into a ledger that nobody reads any more.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::permits::PendingPermit;
use crate::telemetry::AdmissionSpan;

/// The ledger of one channel or one partition assignment.
#[derive(Debug, Default)]
pub struct Ledger {
    open: Mutex<LedgerEntries>,
    advanced: Notify,
    pressed: Notify,
}

#[derive(Debug, Default)]
struct LedgerEntries {
    /// Slot number of the front entry.
    base: u64,
    /// Position and state of each record, in order of delivery.
    entries: VecDeque<(i64, RecordState)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Unresolved,
    Resolved,
    Rejected,
    /// Its queue must deliver it again.
    GivenBack,
    /// The receipt was dropped: nobody will resolve the record any more.
    Abandoned,
}

/// A resolved prefix that was taken out of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Position of its last record.
    pub last: i64,
    /// Position of its last safe record. `None`: all of its records are rejected or given back.
    pub safe: Option<i64>,
    /// Positions of the records that the queue must take back for good. Empty for Kafka, which cannot.
    pub rejected: Vec<i64>,
    /// Positions of the records that the queue must deliver again. Empty for Kafka.
    pub given_back: Vec<i64>,
}

/// The right and duty to resolve one record, once. A receipt that is dropped unresolved abandons its record:
/// the ledger never releases past it, so the source delivers the record again.
#[derive(Debug)]
pub struct Receipt {
    /// `None` once the record is resolved.
    ledger: Option<Arc<Ledger>>,
    slot: u64,
    /// The source has delivered the record so often that it may drop it.
    is_worn: bool,
    /// The message's permit, until the record is resolved or abandoned.
    permit: Option<PendingPermit>,
    /// The span of the message's admission, until the record is resolved or abandoned.
    span: Option<Box<AdmissionSpan>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Enters a record that was read at `position` (an offset or a delivery tag).
    pub fn enter(self: &Arc<Self>, position: i64) -> Receipt {
        let mut open = self.open.lock();
        let slot = open.base + open.entries.len() as u64;
        open.entries.push_back((position, RecordState::Unresolved));
        Receipt {
            ledger: Some(self.clone()),
            slot,
            is_worn: false,
            permit: None,
            span: None,
        }
    }

    /// Takes the resolved prefix out. `None` if the oldest record is unresolved, or the ledger is empty.
    pub fn release(&self) -> Option<Released> {
        let mut open = self.open.lock();
        let mut released: Option<Released> = None;
        while let Some(&(position, state)) = open.entries.front() {
            if matches!(state, RecordState::Unresolved | RecordState::Abandoned) {
                break;
            }
            open.entries.pop_front();
            open.base += 1;
            let released = released.get_or_insert_default();
            released.last = position;
            match state {
                RecordState::Rejected => released.rejected.push(position),
                RecordState::GivenBack => released.given_back.push(position),
                _ => released.safe = Some(position),
            }
        }
        released
    }

    /// The number of records that are not released.
    pub fn outstanding(&self) -> usize {
        self.open.lock().entries.len()
    }

    /// The number of the oldest record that is not released, counted from the ledger's first one. `None`: all
    /// are released.
    pub fn oldest(&self) -> Option<u64> {
        let open = self.open.lock();
        (!open.entries.is_empty()).then_some(open.base)
    }

    /// Reports whether [`Self::release`] will never find more of the records that were entered so far: all are
    /// released, or the oldest is abandoned.
    pub fn is_finished(&self) -> bool {
        self.open
            .lock()
            .entries
            .front()
            .is_none_or(|(_, state)| *state == RecordState::Abandoned)
    }

    /// Reports whether the oldest record is abandoned: its source must deliver it again before anything more is
    /// released.
    pub fn is_abandoned(&self) -> bool {
        self.open
            .lock()
            .entries
            .front()
            .is_some_and(|(_, state)| *state == RecordState::Abandoned)
    }

    /// Tells whoever waits with records of this ledger that others stand behind them which must not wait: see
    /// [`Receipt::mark_worn`].
    pub(super) fn press(&self) {
        self.pressed.notify_one();
    }

    /// Waits until records that must not wait stand behind. Cancel-safe.
    pub(super) async fn pressed(&self) {
        self.pressed.notified().await;
    }

    /// Waits until the oldest record has ended since the last release. Cancel-safe.
    pub async fn advanced(&self) {
        self.advanced.notified().await;
    }
}

impl Receipt {
    /// Attaches the message's permit, which returns when the record is resolved or abandoned.
    pub(super) fn attach(&mut self, permit: PendingPermit) {
        self.permit = Some(permit);
    }

    /// Marks a record that its source has delivered so often that a few deliveries more may be too many: a quorum queue
    /// drops what is over its delivery limit. Such a record must not wait in its source.
    pub(super) fn mark_worn(&mut self) {
        self.is_worn = true;
    }

    /// Reports whether the record must not wait in its source.
    pub(super) fn is_worn(&self) -> bool {
        self.is_worn
    }

    /// The ledger of the record, until it is resolved.
    pub(super) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }

    /// Attaches the span of the message's admission, which ends with the record.
    pub(super) fn trace(&mut self, span: Option<Box<AdmissionSpan>>) {
        self.span = span;
    }

    /// Resolves a record that is safe: its source may be released past it.
    pub fn resolve(mut self) {
        self.end(RecordState::Resolved);
    }

    /// Resolves several records. Neighbours of one ledger share one lock of it.
    pub fn resolve_all(receipts: impl IntoIterator<Item = Self>) {
        let mut receipts = receipts.into_iter().peekable();
        while let Some(mut first) = receipts.next() {
            let Some(ledger) = first.ledger.take() else {
                continue;
            };
            let mut open = ledger.open.lock();
            let mut grew = open.end(first.slot, RecordState::Resolved);
            while let Some(mut next) = receipts.next_if(|next| next.is_of(&ledger)) {
                next.ledger = None;
                grew |= open.end(next.slot, RecordState::Resolved);
            }
            drop(open);
            if grew {
                ledger.advanced.notify_one();
            }
        }
    }

    /// Rejects a record that is not kept here: its queue must take it back for good.
    pub fn reject(mut self) {
        self.end(RecordState::Rejected);
    }

    /// Gives a record back that was not read whole: its queue must deliver it again.
    pub fn give_back(mut self) {
        self.end(RecordState::GivenBack);
    }

    fn is_of(&self, ledger: &Arc<Ledger>) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, ledger))
    }

    fn end(&mut self, state: RecordState) {
        let Some(ledger) = self.ledger.take() else {
            return;
        };
        let grew = ledger.open.lock().end(self.slot, state);
        if grew {
            ledger.advanced.notify_one();
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let error = self
            .ledger
            .is_some()
            .then_some("the message was not stored; its source delivers it again");
        self.end(RecordState::Abandoned);
        if let Some(span) = self.span.take() {
            span.end(error);
        }
    }
}

impl LedgerEntries {
    /// Notes the end of a record. Reports whether it was the oldest.
    fn end(&mut self, slot: u64, state: RecordState) -> bool {
        let Some(at) = slot.checked_sub(self.base) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(at as usize) else {
            return false;
        };
        entry.1 = state;
        at == 0
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_the_resolved_prefix_is_released_and_gaps_do_not_matter() {
        let ledger = Ledger::new();
        let receipts: Vec<_> = [100, 102, 107]
            .into_iter()
            .map(|p| ledger.enter(p))
            .collect();
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
        let one = Ledger::new();
        let other = Ledger::new();
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
            if n == 1 {
                receipt.resolve();
            } else {
                receipt.reject();
            }
        }
        assert_eq!(
            ledger.release(),
            Some(Released {
                last: 3,
                safe: Some(2),
                rejected: vec![1, 3],
                given_back: vec![]
            })
        );
        last.reject();
        assert_eq!(
            ledger.release(),
            Some(Released {
                last: 4,
                safe: None,
                rejected: vec![4],
                given_back: vec![]
            })
        );
    }

    #[test]
    fn a_dropped_receipt_holds_the_prefix_for_ever_and_the_ledger_says_so() {
        let ledger = Ledger::new();
        drop(ledger.enter(1));
        ledger.enter(2).resolve();
        assert_eq!(ledger.release(), None);
        assert_eq!(ledger.outstanding(), 2);
        assert!(ledger.is_finished() && ledger.is_abandoned());
    }

    /// All ways in which five records can end, in two orders.
    #[tokio::test(start_paused = true)]
    async fn a_ledger_is_settled_once_all_before_the_first_abandoned_record_is_released() {
        const RECORDS: usize = 5;
        for case in 0..3_usize.pow(RECORDS as u32) {
            let ends: Vec<usize> = (0..RECORDS as u32)
                .map(|n| case / 3_usize.pow(n) % 3)
                .collect();
            for backwards in [false, true] {
                let ledger = Ledger::new();
                let mut receipts: Vec<_> = ends
                    .iter()
                    .enumerate()
                    .map(|(n, end)| (ledger.enter(n as i64), *end))
                    .collect();
                if backwards {
                    receipts.reverse();
                }
                let mut open = Vec::new();
                for (receipt, end) in receipts {
                    match end {
                        0 => receipt.resolve(),
                        1 => drop(receipt),
                        _ => open.push(receipt),
                    }
                }
                let released = ledger.release().map_or(0, |released| released.last + 1) as usize;
                let first = ends.iter().position(|end| *end != 0);
                assert_eq!(released, first.unwrap_or(RECORDS), "{ends:?}");
                assert_eq!(
                    ledger.is_finished(),
                    first.is_none_or(|at| ends[at] == 1),
                    "{ends:?}"
                );
                assert_eq!(
                    ledger.is_abandoned(),
                    first.is_some_and(|at| ends[at] == 1),
                    "{ends:?}"
                );
                // A waiting task is woken by the last end too.
                let waits = !ledger.is_finished();
                let _ = ledger.advanced().now_or_never();
                drop(open);
                if waits {
                    ledger.advanced().await;
                }
                assert!(
                    ledger.release().is_none() && ledger.is_finished(),
                    "{ends:?}"
                );
            }
        }
    }
}
