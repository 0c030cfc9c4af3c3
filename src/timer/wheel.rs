//! The wheel: one thread that hands each message to its lane at its own millisecond.
//!
//! A thread with a timer slack of one nanosecond and a bounded wait is late by tens of microseconds; the
//! runtime's own timers are late by one or two milliseconds. It sleeps until the earliest due time it knows
//! (at most [`LOOK`], for clocks may step), and before each hand-over asks both clocks again: never early.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::warn;

use super::Served;
use super::claimed::Flight;
use super::rate_limit::Limit;
use crate::domain::{Refusal, RouteName, StoreClock, UnixMs, Verdict};
use crate::egress::Publication;
use crate::lifecycle::{Shutdown, Tasks};
use crate::mutants::{self, Mutant};

/// Longest sleep while anything waits: a clock that steps is followed within this.
const LOOK: Duration = Duration::from_millis(100);

/// Messages that are handed to a lane together at most; the clocks are asked before each such batch, some 20 us.
const TOGETHER: usize = 64;

/// A flight with something left to hand over.
pub(super) struct Item {
    flight: Arc<Flight>,
    due: UnixMs,
    /// Only this entry of it: its key's turn has come.
    only: Option<u32>,
}

/// The wheel's handle. Cheap to clone.
#[derive(Clone)]
pub(super) struct Wheel(Arc<Inbox>);

struct Inbox {
    news: Mutex<News>,
    arrived: Condvar,
    stopping: std::sync::atomic::AtomicBool,
}

/// What the thread has not seen yet.
#[derive(Default)]
struct News {
    items: Vec<Item>,
    /// A limited route has tokens again.
    tokens: bool,
}

impl Item {
    /// `None` if nothing of the flight is to be published.
    pub(super) fn new(flight: Arc<Flight>) -> Option<Self> {
        let due = flight.next_due()?;
        Some(Self { flight, due, only: None })
    }

    /// One entry of a flight, whose key's turn has come.
    pub(super) fn only(flight: Arc<Flight>, index: u32) -> Self {
        let due = flight.entries[index as usize].due;
        Self { flight, due, only: Some(index) }
    }

    /// Takes the next entry to be handed over; `None`: none may be any more.
    fn take(&self) -> Option<u32> {
        match self.only {
            Some(index) => self.flight.take(index).then_some(index),
            None => self.flight.hand(),
        }
    }

    /// The due time of the entry after the one that was taken.
    fn next_due(&self) -> Option<UnixMs> {
        if self.only.is_some() { None } else { self.flight.next_due() }
    }

    /// How many entries are due and not handed over.
    fn count_due(&self, clock: &StoreClock) -> usize {
        if self.only.is_some() { 1 } else { self.flight.due(clock) }
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl Eq for Item {}
impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl Wheel {
    pub(super) fn start(clock: Arc<StoreClock>, tasks: &Tasks, shutdown: &Shutdown) -> std::io::Result<Self> {
        let stopping = std::sync::atomic::AtomicBool::new(false);
        let inbox = Arc::new(Inbox { news: Mutex::default(), arrived: Condvar::new(), stopping });
        let (thread_inbox, stop_inbox, stop) = (inbox.clone(), inbox.clone(), shutdown.clone());
        tasks.thread("timer:wheel", move || turn(&clock, &thread_inbox))?;
        tasks.spawn("timer:wheel:stop", async move {
            stop.draining().await;
            stop_inbox.stopping.store(true, Ordering::Release);
            drop(stop_inbox.news.lock());
            stop_inbox.arrived.notify_one();
        });
        Ok(Self(inbox))
    }

    /// Takes items; they are published when due.
    pub(super) fn add(&self, items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        self.0.news.lock().items.extend(items);
        self.0.arrived.notify_one();
    }

    /// Looks again at what waits for tokens.
    pub(super) fn tokens_came(&self) {
        self.0.news.lock().tokens = true;
        self.0.arrived.notify_one();
    }
}

fn turn(clock: &StoreClock, inbox: &Inbox) {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        warn!(%error, "cannot set the timer slack; messages will be some 50 us later");
    }
    let mut heap: BinaryHeap<Reverse<Item>> = BinaryHeap::new();
    let mut queues: BTreeMap<RouteName, Queue> = BTreeMap::new();
    loop {
        let wait = heap.peek().map_or(LOOK.as_micros() as i64, |Reverse(item)| clock.until_due_us(item.due));
        let idle = heap.is_empty() && queues.values().all(|queue| queue.due.is_empty());
        {
            let mut news = inbox.news.lock();
            let nothing = news.items.is_empty() && !news.tokens;
            if nothing && wait > 0 && !inbox.stopping.load(Ordering::Acquire) {
                if idle {
                    inbox.arrived.wait(&mut news);
                } else {
                    inbox.arrived.wait_for(&mut news, Duration::from_micros(wait as u64).min(LOOK));
                }
            }
            heap.extend(news.items.drain(..).map(Reverse));
            news.tokens = false;
        }
        if inbox.stopping.load(Ordering::Acquire) {
            // What is not handed over stays open; the settlers give it back.
            return;
        }
        hand_over(clock, &mut heap, &mut queues);
    }
}

/// One turn: what is due now goes to its lane, or where its route is limited into its queue, which then hands over
/// what there are tokens for.
pub(super) fn hand_over(
    clock: &StoreClock,
    heap: &mut BinaryHeap<Reverse<Item>>,
    queues: &mut BTreeMap<RouteName, Queue>,
) {
    let reached_us = clock.reached_us();
    while let Some(Reverse(item)) = heap.peek() {
        if !is_due(item.due, reached_us) {
            break;
        }
        let Some(Reverse(item)) = heap.pop() else { break };
        match item.flight.served.limit.clone() {
            None => heap.extend(publish(clock, item).map(Reverse)),
            Some(limit) => Queue::of(queues, &item.flight.served, limit).due.push(Reverse(item)),
        }
    }
    for queue in queues.values_mut() {
        queue.publish(clock, heap);
    }
}

/// What of one limited route is due and has no token yet. Bounded by what the claimer takes of it.
pub(super) struct Queue {
    limit: Arc<Limit>,
    due: BinaryHeap<Reverse<Item>>,
}

impl Queue {
    fn of<'a>(queues: &'a mut BTreeMap<RouteName, Self>, served: &Served, limit: Arc<Limit>) -> &'a mut Self {
        let fresh = || Self { limit, due: BinaryHeap::new() };
        queues.entry(served.route.name.clone()).or_insert_with(fresh)
    }

    /// Hands over as much as there are tokens, the earliest first, and asks for more. What of an item is not
    /// due yet goes back into the heap.
    fn publish(&mut self, clock: &StoreClock, heap: &mut BinaryHeap<Reverse<Item>>) {
        while let Some(Reverse(item)) = self.due.peek() {
            let due = clock.is_due(item.due);
            if due && !self.limit.take() {
                break;
            }
            let Some(Reverse(mut item)) = self.due.pop() else { break };
            if !due {
                heap.push(Reverse(item));
                continue;
            }
            let Some(index) = item.take() else {
                // The claim is lost, or all of it is handed over.
                self.limit.put_back();
                continue;
            };
            let one = publication(&item.flight, index, clock.local().mono_us());
            if let Some((lane, one)) = item.flight.lane.as_ref().zip(one) {
                lane.submit(one);
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

/// Hands over what is due of an item; returns it with what remains.
fn publish(clock: &StoreClock, mut item: Item) -> Option<Item> {
    if item.only.is_some() {
        let one = item.take().and_then(|index| publication(&item.flight, index, clock.local().mono_us()));
        if let Some((lane, one)) = item.flight.lane.as_ref().zip(one) {
            lane.submit(one);
        }
        return None;
    }
    loop {
        let (reached_us, now_us) = (clock.reached_us(), clock.local().mono_us());
        let mut together = Vec::new();
        let rest = loop {
            match item.flight.next_due() {
                Some(due) if is_due(due, reached_us) && together.len() < TOGETHER => {
                    let Some(index) = item.flight.hand() else { break None };
                    together.extend(publication(&item.flight, index, now_us));
                }
                rest => break rest,
            }
        };
        if let Some(lane) = item.flight.lane.as_ref().filter(|_| !together.is_empty()) {
            lane.submit_all(together);
        }
        item.due = rest?;
        if !is_due(item.due, reached_us) {
            return Some(item);
        }
    }
}

/// One message for its lane; `None` if it has its verdict already.
fn publication(flight: &Flight, index: u32, now_us: i64) -> Option<Publication> {
    let entry = &flight.entries[index as usize];
    let publication = Publication { batch: flight.batch.clone(), index };
    flight.published_us.store(now_us, Ordering::Release);
    if flight.lane.is_none() {
        let error = "the target is not (or no longer) in allow_targets".into();
        publication.answer(Verdict::Refused { reason: Refusal::NotAllowed, error });
        return None;
    }
    if publication.is_late(now_us) {
        publication.answer(Verdict::NotTried);
        return None;
    }
    if let Some(cause) = entry.repeat_cause(flight.batch.expiries) {
        flight.served.metrics.redelivered(cause, 1);
        let (route, id) = (&flight.served.route.name, &flight.batch.ids[index as usize]);
        flight.served.bursts.note_message(
            "this publish may repeat an earlier one",
            route,
            cause.as_str(),
            id,
        );
    }
    if mutants::drops() {
        publication.answer(Verdict::Confirmed);
        return None;
    }
    if mutants::is(Mutant::SettleBeforeConfirm) {
        publication.answer(Verdict::Confirmed);
    }
    Some(publication)
}
