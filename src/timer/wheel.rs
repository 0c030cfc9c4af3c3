//! The wheel: one thread that hands each message to its lane at its own millisecond.
//!
//! A thread with a timer slack of one nanosecond and a bounded wait is late by tens of microseconds; the runtime's
//! timers are late by one or two milliseconds. The thread sleeps until the earliest due time it knows, at most
//! [`MAX_SLEEP`], because clocks may step. Before each hand-over it asks both clocks again: never early.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::warn;

use super::ServedRoute;
use super::claimed::InFlightBatch;
use super::rate_limit::RateLimiter;
use crate::domain::{Refusal, RouteName, StoreClock, UnixMs, Verdict};
use crate::egress::Publication;
use crate::lifecycle::{Shutdown, Tasks};
use crate::mutants::{self, Mutant};

/// Longest sleep while something waits. A clock step is noticed within this time.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Messages that are handed to a lane batch at most. The clocks are read before each such batch, which takes some
/// 20 us.
const HAND_OVER_BATCH: usize = 64;

/// A batch with messages left to hand over.
pub(super) struct WheelItem {
    in_flight: Arc<InFlightBatch>,
    due: UnixMs,
    /// Limits the item to this entry, whose key's turn has come.
    only: Option<u32>,
}

/// The wheel's handle. Cheap to clone.
#[derive(Clone)]
pub(super) struct Wheel(Arc<WheelInbox>);

struct WheelInbox {
    pending: Mutex<PendingWork>,
    arrived: Condvar,
    stopping: std::sync::atomic::AtomicBool,
}

/// Work that the thread has not seen yet.
#[derive(Default)]
struct PendingWork {
    items: Vec<WheelItem>,
    /// A limited route has tokens again.
    tokens: bool,
}

impl WheelItem {
    /// An item for the whole batch. `None` if nothing of it is to be published.
    pub(super) fn new(in_flight: Arc<InFlightBatch>) -> Option<Self> {
        let due = in_flight.next_due()?;
        Some(Self {
            in_flight,
            due,
            only: None,
        })
    }

    /// An item for one entry, whose key's turn has come.
    pub(super) fn single(in_flight: Arc<InFlightBatch>, index: u32) -> Self {
        let due = in_flight.entries[index as usize].due;
        Self {
            in_flight,
            due,
            only: Some(index),
        }
    }

    /// Takes the next entry to hand over. `None`: no entry may be handed over any more.
    fn take(&self) -> Option<u32> {
        match self.only {
            Some(index) => self.in_flight.take(index).then_some(index),
            None => self.in_flight.hand(),
        }
    }

    /// The due time of the entry after the one that was taken.
    fn next_due(&self) -> Option<UnixMs> {
        if self.only.is_some() {
            None
        } else {
            self.in_flight.next_due()
        }
    }

    /// The number of entries that are due and not handed over.
    fn count_due(&self, clock: &StoreClock) -> usize {
        if self.only.is_some() {
            1
        } else {
            self.in_flight.due(clock)
        }
    }
}

impl PartialEq for WheelItem {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl Eq for WheelItem {}
impl PartialOrd for WheelItem {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for WheelItem {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl Wheel {
    pub(super) fn start(
        clock: Arc<StoreClock>,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> std::io::Result<Self> {
        let stopping = std::sync::atomic::AtomicBool::new(false);
        let inbox = Arc::new(WheelInbox {
            pending: Mutex::default(),
            arrived: Condvar::new(),
            stopping,
        });
        let thread_inbox = inbox.clone();
        let stop_inbox = inbox.clone();
        let stop = shutdown.clone();
        tasks.thread("timer:wheel", move || run(&clock, &thread_inbox))?;
        tasks.spawn("timer:wheel:stop", async move {
            stop.draining().await;
            stop_inbox.stopping.store(true, Ordering::Release);
            drop(stop_inbox.pending.lock());
            stop_inbox.arrived.notify_one();
        });
        Ok(Self(inbox))
    }

    /// Adds items. They are published when due.
    pub(super) fn add(&self, items: Vec<WheelItem>) {
        if items.is_empty() {
            return;
        }
        self.0.pending.lock().items.extend(items);
        self.0.arrived.notify_one();
    }

    /// Wakes the thread, because a limited route has tokens.
    pub(super) fn tokens_came(&self) {
        self.0.pending.lock().tokens = true;
        self.0.arrived.notify_one();
    }
}

fn run(clock: &StoreClock, inbox: &WheelInbox) {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        warn!(%error, "setting the timer slack failed; messages will be some 50 us later");
    }
    let mut heap: BinaryHeap<Reverse<WheelItem>> = BinaryHeap::new();
    let mut queues: BTreeMap<RouteName, TokenQueue> = BTreeMap::new();
    loop {
        let wait = heap
            .peek()
            .map_or(MAX_SLEEP.as_micros() as i64, |Reverse(item)| {
                clock.until_due_us(item.due)
            });
        let is_empty = heap.is_empty() && queues.values().all(|queue| queue.due.is_empty());
        {
            let mut pending = inbox.pending.lock();
            let is_idle = pending.items.is_empty() && !pending.tokens;
            if is_idle && wait > 0 && !inbox.stopping.load(Ordering::Acquire) {
                if is_empty {
                    inbox.arrived.wait(&mut pending);
                } else {
                    inbox.arrived.wait_for(
                        &mut pending,
                        Duration::from_micros(wait as u64).min(MAX_SLEEP),
                    );
                }
            }
            heap.extend(pending.items.drain(..).map(Reverse));
            pending.tokens = false;
        }
        if inbox.stopping.load(Ordering::Acquire) {
            // The settlers return the messages that were not handed over.
            return;
        }
        hand_over(clock, &mut heap, &mut queues);
    }
}

/// Makes one turn. Due messages go to their lane, or to the token queue of a limited route, which then hands over as
/// many as it has tokens for.
pub(super) fn hand_over(
    clock: &StoreClock,
    heap: &mut BinaryHeap<Reverse<WheelItem>>,
    queues: &mut BTreeMap<RouteName, TokenQueue>,
) {
    let reached_us = clock.reached_us();
    while let Some(Reverse(item)) = heap.peek() {
        if !is_due(item.due, reached_us) {
            break;
        }
        let Some(Reverse(item)) = heap.pop() else {
            break;
        };
        match item.in_flight.served.limit.clone() {
            None => heap.extend(publish(clock, item).map(Reverse)),
            Some(limit) => TokenQueue::of(queues, &item.in_flight.served, limit)
                .due
                .push(Reverse(item)),
        }
    }
    for queue in queues.values_mut() {
        queue.publish(clock, heap);
    }
}

/// The due messages of one limited route that have no token yet. The claimer bounds their number.
pub(super) struct TokenQueue {
    limit: Arc<RateLimiter>,
    due: BinaryHeap<Reverse<WheelItem>>,
}

impl TokenQueue {
    fn of<'a>(
        queues: &'a mut BTreeMap<RouteName, Self>,
        served: &ServedRoute,
        limit: Arc<RateLimiter>,
    ) -> &'a mut Self {
        queues
            .entry(served.route.name.clone())
            .or_insert_with(|| Self {
                limit,
                due: BinaryHeap::new(),
            })
    }

    /// Hands over as many messages as there are tokens, the earliest first, and asks for more tokens. Items with
    /// nothing due go back into the heap.
    fn publish(&mut self, clock: &StoreClock, heap: &mut BinaryHeap<Reverse<WheelItem>>) {
        while let Some(Reverse(item)) = self.due.peek() {
            let due = clock.is_due(item.due);
            if due && !self.limit.take() {
                break;
            }
            let Some(Reverse(mut item)) = self.due.pop() else {
                break;
            };
            if !due {
                heap.push(Reverse(item));
                continue;
            }
            let Some(index) = item.take() else {
                // The claim is lost, or everything is handed over.
                self.limit.put_back();
                continue;
            };
            let one = publication(&item.in_flight, index, clock.local().mono_us());
            match item.in_flight.lane.as_ref().zip(one) {
                Some((lane, one)) => lane.submit(one),
                // It is not wanted any more, or cannot go: another one may have the token.
                None => self.limit.put_back(),
            }
            if let Some(due) = item.next_due() {
                item.due = due;
                self.due.push(Reverse(item));
            }
        }
        if !self.due.is_empty() && !self.limit.has_asked() {
            let most = self.limit.capacity() as usize;
            let mut short = 0;
            for Reverse(item) in &self.due {
                short += item.count_due(clock);
                if short >= most {
                    break;
                }
            }
            self.limit.ask(short.max(1) as u32);
        }
    }
}

fn is_due(due: UnixMs, reached_us: i64) -> bool {
    due.0.saturating_mul(1000) <= reached_us
}

/// Hands over what is due of an item. Returns the item if messages remain.
fn publish(clock: &StoreClock, mut item: WheelItem) -> Option<WheelItem> {
    if item.only.is_some() {
        let one = item
            .take()
            .and_then(|index| publication(&item.in_flight, index, clock.local().mono_us()));
        if let Some((lane, one)) = item.in_flight.lane.as_ref().zip(one) {
            lane.submit(one);
        }
        return None;
    }
    loop {
        let reached_us = clock.reached_us();
        let now_us = clock.local().mono_us();
        let mut batch = Vec::new();
        let rest = loop {
            match item.in_flight.next_due() {
                Some(due) if is_due(due, reached_us) && batch.len() < HAND_OVER_BATCH => {
                    let Some(index) = item.in_flight.hand() else {
                        break None;
                    };
                    batch.extend(publication(&item.in_flight, index, now_us));
                }
                rest => break rest,
            }
        };
        if let Some(lane) = item.in_flight.lane.as_ref().filter(|_| !batch.is_empty()) {
            lane.submit_all(batch);
        }
        item.due = rest?;
        if !is_due(item.due, reached_us) {
            return Some(item);
        }
    }
}

/// One message for its lane. `None` if it has its verdict already.
fn publication(in_flight: &InFlightBatch, index: u32, now_us: i64) -> Option<Publication> {
    let publication = Publication {
        batch: in_flight.batch.clone(),
        index,
    };
    in_flight.published_us.store(now_us, Ordering::Release);
    if in_flight.lane.is_none() {
        let error = "the target is not in allow_targets".into();
        publication.answer(Verdict::Refused {
            reason: Refusal::NotAllowed,
            error,
        });
        return None;
    }
    if let Some(verdict) = publication.too_late(now_us) {
        publication.answer(verdict);
        return None;
    }
    if mutants::drops() {
        publication.answer(Verdict::Confirmed(None));
        return None;
    }
    if mutants::is(Mutant::SettleBeforeConfirm) {
        publication.answer(Verdict::Confirmed(None));
    }
    Some(publication)
}
