//! The wheel: one thread that hands each message to its lane at its own millisecond.
//!
//! A thread with a timer slack of one nanosecond and a bounded wait is late by tens of microseconds; the
//! runtime's own timers are late by one or two milliseconds. It sleeps until the earliest due time it knows
//! (at most [`LOOK`], for clocks may step), and before each hand-over asks both clocks again: never early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::warn;

use super::holding::Flight;
use crate::domain::{Refusal, StoreClock, UnixMs, Verdict};
use crate::egress::{Publication, Stamp};
use crate::lifecycle::{Shutdown, Tasks};
use crate::mutants::{self, Mutant};

/// Longest sleep: a clock that steps is followed within this.
const LOOK: Duration = Duration::from_millis(100);

/// A flight with something left to hand over.
pub(super) struct Item {
    flight: Arc<Flight>,
    due: UnixMs,
}

/// The wheel's handle. Cheap to clone.
#[derive(Clone)]
pub(super) struct Wheel(Arc<Inbox>);

struct Inbox {
    items: Mutex<Vec<Item>>,
    arrived: Condvar,
    stopping: std::sync::atomic::AtomicBool,
}

impl Item {
    /// `None` if nothing of the flight is to be published.
    pub(super) fn new(flight: Arc<Flight>) -> Option<Self> {
        let due = flight.next_due()?;
        Some(Self { flight, due })
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
        let inbox = Arc::new(Inbox { items: Mutex::default(), arrived: Condvar::new(), stopping });
        let (thread_inbox, stop_inbox, stop) = (inbox.clone(), inbox.clone(), shutdown.clone());
        tasks.thread("timer:wheel", move || turn(&clock, &thread_inbox))?;
        tasks.spawn("timer:wheel:stop", async move {
            stop.draining().await;
            stop_inbox.stopping.store(true, Ordering::Release);
            drop(stop_inbox.items.lock());
            stop_inbox.arrived.notify_one();
        });
        Ok(Self(inbox))
    }

    /// Takes items; they are published when due.
    pub(super) fn add(&self, items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        self.0.items.lock().extend(items);
        self.0.arrived.notify_one();
    }
}

fn turn(clock: &StoreClock, inbox: &Inbox) {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        warn!(%error, "cannot set the timer slack; messages will be some 50 us later");
    }
    let mut heap: BinaryHeap<Reverse<Item>> = BinaryHeap::new();
    loop {
        let wait = heap.peek().map_or(LOOK.as_micros() as i64, |Reverse(item)| clock.until_due_us(item.due));
        {
            let mut arrived = inbox.items.lock();
            if arrived.is_empty() && wait > 0 && !inbox.stopping.load(Ordering::Acquire) {
                inbox.arrived.wait_for(&mut arrived, Duration::from_micros(wait as u64).min(LOOK));
            }
            heap.extend(arrived.drain(..).map(Reverse));
        }
        if inbox.stopping.load(Ordering::Acquire) {
            // What is not handed over stays open; the settlers give it back.
            return;
        }
        while let Some(Reverse(item)) = heap.peek() {
            if !clock.is_due(item.due) {
                break;
            }
            if let Some(Reverse(item)) =
                heap.pop().and_then(|Reverse(item)| publish(clock, item).map(Reverse))
            {
                heap.push(Reverse(item));
            }
        }
    }
}

/// Hands over what is due of an item; returns it with what remains.
fn publish(clock: &StoreClock, mut item: Item) -> Option<Item> {
    while let Some(due) = item.flight.next_due() {
        item.due = due;
        if !clock.is_due(due) {
            return Some(item);
        }
        let index = item.flight.hand()?;
        hand_over(clock, &item.flight, index);
    }
    None
}

fn hand_over(clock: &StoreClock, flight: &Arc<Flight>, index: u32) {
    let entry = &flight.entries[index as usize];
    let ticket = flight.ticket(index);
    let now_us = clock.local().mono_us();
    let not_after_us = flight.lease_until_us.load(Ordering::Acquire);
    flight.published_us.store(now_us, Ordering::Release);
    let Some(lane) = &flight.lane else {
        let error = "the target is not (or no longer) in allow_targets".into();
        flight.verdicts.push(ticket, Verdict::Refused { reason: Refusal::NotAllowed, error });
        return;
    };
    if now_us >= not_after_us {
        flight.verdicts.push(ticket, Verdict::NotTried);
        return;
    }
    if let Some(cause) = entry.repeat_cause(flight.expiries) {
        flight.served.metrics.redelivered(cause, 1);
        let (route, id) = (&flight.served.route.name, &flight.ids[index as usize]);
        flight.served.bursts.note("this publish may repeat an earlier one", route, cause.as_str(), id);
    }
    if mutants::drops() {
        flight.verdicts.push(ticket, Verdict::Confirmed);
        return;
    }
    if mutants::is(Mutant::SettleBeforeConfirm) {
        flight.verdicts.push(ticket, Verdict::Confirmed);
    }
    lane.submit(Publication {
        entries: flight.outgoing.clone(),
        index,
        stamp: Some(Stamp {
            id: flight.ids[index as usize].clone(),
            due: entry.asked_due(),
            attempt: entry.handouts + flight.expiries + 1,
        }),
        target: flight.target.clone(),
        ticket,
        verdicts: flight.verdicts.clone(),
        not_after_us,
    });
}
