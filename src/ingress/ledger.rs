//! The ledger: the records that one channel or one partition assignment has read and not yet released, in order
//! of delivery.
//!
//! The released prefix is contiguous in order of delivery, never by number: Kafka offsets have gaps
//! (transaction markers, compaction). RabbitMQ's tags may be acknowledged singly: there a record that waits, such as one
//! whose target's queue hangs, holds up none of those behind it. Receipts of a channel or
//! an assignment that has ended resolve into a ledger that nobody reads any more.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::permits::PendingPermit;
use super::unstored_names::UnstoredName;
use crate::telemetry::AdmissionSpan;

/// The ledger of one channel or one partition assignment.
#[derive(Debug, Default)]
pub struct Ledger {
    open: Mutex<LedgerEntries>,
    advanced: Notify,
    pressed: Notify,
    /// Notified when the last worn record has ended.
    without_worn: Notify,
}

#[derive(Debug, Default)]
struct LedgerEntries {
    /// Slot number of the front entry.
    base: u64,
    /// Position and state of each record, in order of delivery.
    entries: VecDeque<(i64, RecordState)>,
    /// The number of records that have ended and are not released.
    ended: usize,
    /// The number of records that were released singly and stand behind one that is not released.
    singly: usize,
    /// The number of worn records among the unresolved ones.
    worn: usize,
    singles: Singles,
}

/// When records are released singly that have ended behind one that has not.
#[derive(Clone, Copy, Debug, Default)]
enum Singles {
    /// Never: the source knows only a position.
    #[default]
    Never,
    /// Once there are so many of them.
    From(usize),
    /// Each at once: nothing more is read.
    Each,
}

/// What ended with a record.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    /// There may be something to release.
    advances: bool,
    /// The last one that was worn.
    last_worn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Unresolved,
    Resolved,
    Rejected,
    /// Its queue must deliver it again.
    GivenBack,
    /// It was released singly.
    Released,
    /// The receipt was dropped: nobody will resolve the record any more.
    Abandoned,
}

/// Records of a ledger that were released: its resolved prefix, and what was released singly behind that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Position of its last record.
    pub last: i64,
    /// Position of its last safe record. `None`: all of its records are rejected or given back.
    pub safe: Option<i64>,
    /// Positions of the safe records behind the prefix. Empty for Kafka.
    pub safe_singly: Vec<i64>,
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
    /// The name that the record's operation is on, until the record is resolved or abandoned.
    name: Option<Box<UnstoredName>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The same for a queue, which takes single answers: with so many ended records behind one that has not ended, these
    /// are released singly.
    pub fn of_queue(singly_from: usize) -> Arc<Self> {
        let open = LedgerEntries {
            singles: Singles::From(singly_from),
            ..LedgerEntries::default()
        };
        Arc::new(Self {
            open: Mutex::new(open),
            ..Self::default()
        })
    }

    /// Notes that nothing more is read. A queue's ledger releases from now on each record as soon as it has ended: what
    /// is stored must not come again for the sake of one before it that waits.
    pub fn end_reading(&self) {
        let mut open = self.open.lock();
        if matches!(open.singles, Singles::From(_)) {
            open.singles = Singles::Each;
        }
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
            name: None,
        }
    }

    /// Takes the resolved prefix out, and from a queue's ledger what is to be released singly. `None` if there is nothing
    /// to release.
    pub fn release(&self) -> Option<Released> {
        let open = &mut *self.open.lock();
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
                RecordState::Released => open.singly -= 1,
                _ => open.ended -= 1,
            }
            match state {
                RecordState::Rejected => released.rejected.push(position),
                RecordState::GivenBack => released.given_back.push(position),
                RecordState::Resolved => released.safe = Some(position),
                RecordState::Released | RecordState::Unresolved | RecordState::Abandoned => {}
            }
        }
        if open.are_singles_due() {
            let released = released.get_or_insert_default();
            for (position, state) in &mut open.entries {
                match state {
                    RecordState::Resolved => released.safe_singly.push(*position),
                    RecordState::Rejected => released.rejected.push(*position),
                    RecordState::GivenBack => released.given_back.push(*position),
                    RecordState::Released | RecordState::Unresolved | RecordState::Abandoned => {
                        continue;
                    }
                }
                *state = RecordState::Released;
            }
            open.singly += std::mem::take(&mut open.ended);
        }
        released
    }

    /// The number of records that are not released.
    pub fn outstanding(&self) -> usize {
        let open = self.open.lock();
        open.entries.len() - open.singly
    }

    /// The number of the oldest record that is not released, counted from the ledger's first one. `None`: all
    /// are released.
    pub fn oldest(&self) -> Option<u64> {
        let open = self.open.lock();
        (!open.entries.is_empty()).then_some(open.base)
    }

    /// Reports whether [`Self::release`] will never find more of the records that were entered so far: all are
    /// released or abandoned, or those that are not stand behind one that is abandoned and cannot be released singly.
    pub fn is_finished(&self) -> bool {
        let open = self.open.lock();
        let mut states = open.entries.iter().map(|(_, state)| *state);
        match open.singles {
            Singles::Never => states
                .next()
                .is_none_or(|first| first == RecordState::Abandoned),
            Singles::From(_) | Singles::Each => {
                states.all(|state| matches!(state, RecordState::Released | RecordState::Abandoned))
            }
        }
    }

    /// The number of records that have ended and are not released: their source delivers them again if the ledger is given
    /// up now.
    pub fn unreleased(&self) -> usize {
        self.open.lock().ended
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

    /// Waits until all records are released, and hands over what is released meanwhile. Returns `false` if one is
    /// abandoned.
    pub async fn settle(&self, mut take: impl FnMut(Released)) -> bool {
        loop {
            if let Some(released) = self.release() {
                take(released);
            }
            if self.outstanding() == 0 {
                return true;
            }
            if self.is_abandoned() {
                return false;
            }
            self.advanced().await;
        }
    }

    fn tell(&self, ended: Ended) {
        if ended.advances {
            self.advanced.notify_one();
        }
        if ended.last_worn {
            self.without_worn.notify_one();
        }
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

    /// The number of records that are unresolved and [marked](Receipt::mark_worn) as worn.
    pub(super) fn worn(&self) -> usize {
        self.open.lock().worn
    }

    /// Waits until no record is unresolved that was [marked](Receipt::mark_worn) as worn. Cancel-safe.
    pub(super) async fn without_worn(&self) {
        while self.worn() > 0 {
            self.without_worn.notified().await;
        }
    }

    /// Waits until there is something to release: the oldest record has ended, or many of those behind it. Cancel-safe.
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
        if let Some(ledger) = &self.ledger {
            ledger.open.lock().worn += usize::from(!self.is_worn);
            self.is_worn = true;
        }
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

    /// Attaches the name that the record's operation is on.
    pub(super) fn name(&mut self, name: UnstoredName) {
        self.name = Some(Box::new(name));
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
            let mut ended = open.end(&first, RecordState::Resolved);
            while let Some(mut next) = receipts.next_if(|next| next.is_of(&ledger)) {
                next.ledger = None;
                ended.add(open.end(&next, RecordState::Resolved));
            }
            drop(open);
            ledger.tell(ended);
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
        let ended = ledger.open.lock().end(self, state);
        ledger.tell(ended);
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
    /// Notes the end of a record.
    fn end(&mut self, receipt: &Receipt, state: RecordState) -> Ended {
        let at = receipt.slot.checked_sub(self.base);
        let Some(entry) = at.and_then(|at| self.entries.get_mut(at as usize)) else {
            return Ended::default();
        };
        entry.1 = state;
        self.worn -= usize::from(receipt.is_worn);
        self.ended += usize::from(state != RecordState::Abandoned);
        Ended {
            // The last record that is abandoned may be the end of those that are waited for.
            advances: at == Some(0)
                || self.are_singles_due()
                || matches!(self.singles, Singles::Each),
            last_worn: receipt.is_worn && self.worn == 0,
        }
    }

    /// Reports whether records are to be released that stand behind one that has not ended.
    fn are_singles_due(&self) -> bool {
        match self.singles {
            Singles::Never => false,
            Singles::From(many) => self.ended >= many,
            Singles::Each => self.ended > 0,
        }
    }
}

impl Ended {
    fn add(&mut self, other: Self) {
        self.advances |= other.advances;
        self.last_worn |= other.last_worn;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
    fn what_ends_behind_one_that_waits_is_released_singly_by_a_queues_ledger() {
        let ledger = Ledger::of_queue(3);
        let mut receipts: Vec<_> = (1..=8).map(|tag| Some(ledger.enter(tag))).collect();
        let mut take = |tag: usize| receipts[tag - 1].take().expect("not ended yet");
        take(2).resolve();
        take(4).reject();
        assert!(ledger.advanced().now_or_never().is_none());
        assert_eq!(ledger.release(), None, "the oldest may end soon");
        take(5).give_back();
        assert!(ledger.advanced().now_or_never().is_some());
        let singly = Released {
            safe_singly: vec![2],
            rejected: vec![4],
            given_back: vec![5],
            ..Released::default()
        };
        assert_eq!(ledger.release(), Some(singly));
        assert_eq!(ledger.release(), None, "each is released once");
        take(6).resolve();
        drop(take(7));
        take(1).resolve();
        take(3).resolve();
        let rest = Released {
            last: 6,
            safe: Some(6),
            ..Released::default()
        };
        assert_eq!(ledger.release(), Some(rest));
        assert!(ledger.is_abandoned(), "7 is delivered again");
        take(8).resolve();
        assert_eq!(ledger.release(), None);
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
    fn who_waits_for_what_is_worn_waits_for_all_of_it_however_it_ends() {
        let ledger = Ledger::new();
        let mut receipts: Vec<_> = (1..=5).map(|p| ledger.enter(p)).collect();
        let is_over = || ledger.without_worn().now_or_never().is_some();
        assert!(is_over(), "nothing is worn");
        for receipt in &mut receipts[1..] {
            receipt.mark_worn();
            receipt.mark_worn();
        }
        let [plain, one, two, three, four] = <[Receipt; 5]>::try_from(receipts).expect("five");
        let mut waiting = std::pin::pin!(ledger.without_worn());
        assert!(waiting.as_mut().now_or_never().is_none());
        Receipt::resolve_all([one, two]);
        drop(three);
        assert!(!is_over(), "one is left");
        four.give_back();
        assert!(waiting.now_or_never().is_some());
        assert!(is_over());
        plain.resolve();
        assert!(is_over());
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
                safe_singly: vec![],
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
                safe_singly: vec![],
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
        assert_eq!((ledger.outstanding(), ledger.unreleased()), (2, 1));
        assert!(ledger.is_finished() && ledger.is_abandoned());
    }

    const RECORDS: usize = 5;

    /// All ways in which five records can end: resolved (0), abandoned (1) or later (2).
    fn all_ends() -> impl Iterator<Item = Vec<usize>> {
        (0..3_usize.pow(RECORDS as u32)).map(|case| {
            (0..RECORDS as u32)
                .map(|n| case / 3_usize.pow(n) % 3)
                .collect()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_queues_ledger_ends_with_each_resolved_record_released_whatever_stands_before_it() {
        for ends in all_ends() {
            let ledger = Ledger::of_queue(RECORDS + 1);
            let receipts: Vec<_> = (0..RECORDS).map(|n| ledger.enter(n as i64)).collect();
            ledger.end_reading();
            let mut open = Vec::new();
            for (receipt, end) in receipts.into_iter().zip(&ends) {
                match end {
                    0 => receipt.resolve(),
                    1 => drop(receipt),
                    _ => open.push(receipt),
                }
            }
            let mut acknowledged = BTreeSet::new();
            let mut take = || {
                let Some(released) = ledger.release() else {
                    return;
                };
                acknowledged.extend(released.safe.into_iter().flat_map(|safe| 0..=safe));
                acknowledged.extend(released.safe_singly);
            };
            take();
            for receipt in open {
                assert!(!ledger.is_finished(), "{ends:?}");
                let _ = ledger.advanced().now_or_never();
                receipt.resolve();
                ledger.advanced().await;
                take();
            }
            assert!(ledger.is_finished(), "{ends:?}");
            let expected: BTreeSet<i64> = (0..RECORDS)
                .filter(|n| ends[*n] != 1)
                .map(|n| n as i64)
                .collect();
            assert_eq!(acknowledged, expected, "{ends:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_is_settled_once_all_before_the_first_abandoned_record_is_released() {
        for ends in all_ends() {
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
