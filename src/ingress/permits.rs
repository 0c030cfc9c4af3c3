//! Permits: how many messages of a route may still be taken in, and how many bytes.
//!
//! `max_pending` and `max_pending_bytes` are bounds over all replicas, and each count is some time old. Between two
//! counts a replica grants no more permits than its share of the capacity that the last count saw, less the permits
//! that it granted since and that the count cannot have seen. The gate asks for the next count when half of the share
//! is used up. Bytes are counted as they were read; stored they are fewer, which the next count sees.
//!
//! A route has one [`GateControl`], which the admission controller sets by its counts, and one
//! [`AdmissionGate`] in each source, which grants permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Notify, watch};

/// Messages that a replica may still take in on an old count, where capacity is scarce: about a batch.
const STALE_SHARE: u64 = 1000;
/// Bytes of them.
const STALE_SHARE_BYTES: u64 = 8 << 20;
/// A share below this is scarce: one replica can take in as much between two counts.
const SCARCE_CAPACITY: u64 = 65_536;
/// Bytes below which a share is scarce.
const SCARCE_CAPACITY_BYTES: u64 = 512 << 20;

/// An amount of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageVolume {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl MessageVolume {
    /// Reports whether nothing is left of this limit.
    fn is_used_up(self, granted: Self) -> bool {
        granted.messages >= self.messages || granted.bytes >= self.bytes
    }

    /// Each of the two values by itself.
    fn map(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            messages: combine(self.messages, other.messages),
            bytes: combine(self.bytes, other.bytes),
        }
    }
}

/// The permits of one route. Each stands for a message that was read and is not yet stored, passed on or given
/// up.
#[derive(Debug)]
struct PermitPool {
    granted: AtomicU64,
    granted_bytes: AtomicU64,
    returned: AtomicU64,
    returned_bytes: AtomicU64,
    /// Sources that wait for a permit.
    waiting: AtomicUsize,
    count_now: Arc<Notify>,
    /// Notified when the last permit of a count is granted.
    used_up: Notify,
}

/// The limit that the control side sets for the gates of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AdmissionLimit {
    open: bool,
    /// Total of the permits that may be granted. The last one may go beyond it with its bytes.
    until: MessageVolume,
    /// Total of the permits from which on the next count is asked for.
    ask_from: MessageVolume,
    /// The share is below [`SCARCE_CAPACITY`] or [`SCARCE_CAPACITY_BYTES`].
    is_scarce: bool,
}

/// A source's side of its route's gate: grants permits.
#[derive(Clone, Debug)]
pub struct AdmissionGate {
    limit: watch::Receiver<AdmissionLimit>,
    permits: Arc<PermitPool>,
}

/// The counting side of a route's gate: opens and closes it, and sets its limit.
#[derive(Debug)]
pub(super) struct GateControl {
    limit: watch::Sender<AdmissionLimit>,
    permits: Arc<PermitPool>,
}

/// Permits for a batch of messages. Permits that nobody takes return with the batch.
#[derive(Debug)]
pub(super) struct PermitBatch {
    permits: Arc<PermitPool>,
    /// The limit under which they were granted.
    limit: AdmissionLimit,
    count: u64,
}

/// One message's permit. The permit ends with the message's receipt.
#[derive(Debug)]
pub(super) struct PendingPermit {
    permits: Arc<PermitPool>,
    bytes: u64,
}

impl GateControl {
    /// A closed gate with its control. `count_now` is notified when the gate wants a count.
    pub(super) fn new(count_now: &Arc<Notify>) -> (Self, AdmissionGate) {
        let (tell, limit) = watch::channel(AdmissionLimit::default());
        let permits = Arc::new(PermitPool::new(count_now));
        (
            Self {
                limit: tell,
                permits: permits.clone(),
            },
            AdmissionGate { limit, permits },
        )
    }

    /// The permits that were returned. Read it before a count: the count includes their messages.
    pub(super) fn returned(&self) -> MessageVolume {
        MessageVolume {
            messages: self.permits.returned.load(Ordering::Acquire),
            bytes: self.permits.returned_bytes.load(Ordering::Acquire),
        }
    }

    /// Opens or closes the gate, whatever the capacity.
    pub(super) fn set_open(&self, open: bool) {
        self.limit
            .send_if_modified(|limit| std::mem::replace(&mut limit.open, open) != open);
    }

    /// Sets this replica's share by a count. `returned` is what [`Self::returned`] said before the count.
    pub(super) fn set_share(&self, returned: MessageVolume, share: MessageVolume) {
        self.limit.send_if_modified(|limit| {
            let until = returned.map(share, u64::saturating_add);
            let ask_from = until.map(share, |until, share| until - share / 2);
            let is_scarce = share.messages < SCARCE_CAPACITY || share.bytes < SCARCE_CAPACITY_BYTES;
            let next = AdmissionLimit {
                until,
                ask_from,
                is_scarce,
                ..*limit
            };
            std::mem::replace(limit, next) != next
        });
    }

    /// Declares the last count old: other replicas may have used the capacity that it saw.
    pub(super) fn set_stale(&self) {
        self.limit.send_if_modified(|limit| {
            let share = MessageVolume {
                messages: STALE_SHARE,
                bytes: STALE_SHARE_BYTES,
            };
            let most = self.permits.granted().map(share, u64::saturating_add);
            if limit.is_scarce {
                limit.until = limit.until.map(most, u64::min);
            }
            false
        });
    }

    /// Reports whether sources wait for nothing but capacity.
    pub(super) fn has_waiting(&self) -> bool {
        self.limit.borrow().open && self.permits.waiting.load(Ordering::Acquire) > 0
    }
}

impl AdmissionGate {
    /// A gate that is always open, for a route that nobody counts.
    pub(super) fn unbounded() -> Self {
        let most = MessageVolume {
            messages: u64::MAX,
            bytes: u64::MAX,
        };
        let limit = AdmissionLimit {
            open: true,
            until: most,
            ask_from: most,
            is_scarce: false,
        };
        let permits = PermitPool::new(&Arc::new(Notify::new()));
        Self {
            limit: watch::channel(limit).1,
            permits: Arc::new(permits),
        }
    }

    /// Takes permits for at most `most` messages. `None` while the route's ingress is closed or has no
    /// capacity.
    pub(super) fn try_admit(&self, most: usize) -> Option<PermitBatch> {
        let limit = *self.limit.borrow();
        let count = if limit.open {
            self.permits.grant(limit, most as u64)
        } else {
            0
        };
        (count > 0).then(|| PermitBatch {
            permits: self.permits.clone(),
            limit,
            count,
        })
    }

    /// Waits until the route's ingress is open and has capacity, and has the next count made meanwhile.
    /// Cancel-safe. Pending for ever once the control is gone.
    pub(super) async fn opened(&self) {
        let mut limit = self.limit.clone();
        let mut waiting = None;
        loop {
            limit.borrow_and_update();
            if self.is_open() {
                return;
            }
            if waiting.is_none() {
                waiting = Some(WaitingSource::new(self.permits.clone()));
                self.permits.count_now.notify_one();
            }
            if limit.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the route's ingress is closed or has no capacity. Cancel-safe. Pending for ever once the
    /// control is gone.
    pub(super) async fn closed(&self) {
        let mut limit = self.limit.clone();
        loop {
            let mut used_up = std::pin::pin!(self.permits.used_up.notified());
            used_up.as_mut().enable();
            limit.borrow_and_update();
            if !self.is_open() {
                return;
            }
            tokio::select! {
                changed = limit.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = used_up => {}
            }
        }
    }

    /// Reports whether the route's ingress is open and has capacity right now.
    pub fn is_open(&self) -> bool {
        let limit = *self.limit.borrow();
        limit.open && !limit.until.is_used_up(self.permits.granted())
    }
}

impl PermitPool {
    fn new(count_now: &Arc<Notify>) -> Self {
        Self {
            granted: AtomicU64::new(0),
            granted_bytes: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            returned_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            count_now: count_now.clone(),
            used_up: Notify::new(),
        }
    }

    /// The permits that were granted, with the bytes of those that were taken.
    fn granted(&self) -> MessageVolume {
        MessageVolume {
            messages: self.granted.load(Ordering::Acquire),
            bytes: self.granted_bytes.load(Ordering::Acquire),
        }
    }

    /// Grants at most `most` permits, and returns how many.
    fn grant(&self, limit: AdmissionLimit, most: u64) -> u64 {
        if self.granted().bytes >= limit.until.bytes {
            return 0;
        }
        let free = |granted: u64| limit.until.messages.saturating_sub(granted).min(most);
        let before = self
            .granted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |granted| {
                match free(granted) {
                    0 => None,
                    more => Some(granted + more),
                }
            });
        match before {
            Ok(granted) => {
                self.tell_use(limit);
                free(granted)
            }
            Err(_) => 0,
        }
    }

    /// Counts the bytes of a message that takes its permit.
    fn add_bytes(&self, limit: AdmissionLimit, bytes: u64) {
        self.granted_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.tell_use(limit);
    }

    /// Asks for the next count, or tells that nothing is left, if that is due.
    fn tell_use(&self, limit: AdmissionLimit) {
        let granted = self.granted();
        if limit.ask_from.is_used_up(granted) {
            self.count_now.notify_one();
        }
        if limit.until.is_used_up(granted) {
            self.used_up.notify_waiters();
        }
    }
}

impl PermitBatch {
    /// The number of messages that the permits are for.
    pub(super) fn messages(&self) -> usize {
        self.count as usize
    }

    /// Takes the permit for a message of so many bytes. `None` if all are taken.
    pub(super) fn take(&mut self, bytes: usize) -> Option<PendingPermit> {
        self.count = self.count.checked_sub(1)?;
        self.permits.add_bytes(self.limit, bytes as u64);
        Some(PendingPermit {
            permits: self.permits.clone(),
            bytes: bytes as u64,
        })
    }
}

impl Drop for PermitBatch {
    fn drop(&mut self) {
        self.permits
            .returned
            .fetch_add(self.count, Ordering::AcqRel);
    }
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        self.permits
            .returned_bytes
            .fetch_add(self.bytes, Ordering::AcqRel);
        self.permits.returned.fetch_add(1, Ordering::AcqRel);
    }
}

/// Counts a waiting source for as long as it waits.
struct WaitingSource(Arc<PermitPool>);

impl WaitingSource {
    fn new(permits: Arc<PermitPool>) -> Self {
        permits.waiting.fetch_add(1, Ordering::AcqRel);
        Self(permits)
    }
}

impl Drop for WaitingSource {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A replica's share of what a route may still take in: at least 1 message and 1 byte while there is any. Nothing of
/// either is left once one of them is used up.
pub(super) fn share_of(
    most: MessageVolume,
    counted: MessageVolume,
    replicas: usize,
) -> MessageVolume {
    if most.is_used_up(counted) {
        return MessageVolume::default();
    }
    most.map(counted, |most, counted| {
        most.saturating_sub(counted)
            .div_ceil(replicas.max(1) as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> (GateControl, AdmissionGate) {
        let (control, gate) = GateControl::new(&Arc::new(Notify::new()));
        control.set_open(true);
        (control, gate)
    }

    /// So many messages, and bytes for all of them.
    fn messages(messages: u64) -> MessageVolume {
        MessageVolume {
            messages,
            bytes: 1 << 40,
        }
    }

    /// Takes the permits of all messages in a batch, of no bytes.
    fn take_all(batch: &mut PermitBatch, count: usize) -> Vec<PendingPermit> {
        (0..count).filter_map(|_| batch.take(0)).collect()
    }

    #[test]
    fn no_more_is_taken_than_a_count_left_free_until_the_next_has_seen_it() {
        let (control, gate) = gate();
        assert!(gate.try_admit(10).is_none(), "nothing was counted yet");
        control.set_share(control.returned(), messages(200));
        let first = gate.try_admit(150).expect("room");
        let second = gate.try_admit(150).expect("some room");
        assert_eq!((first.messages(), second.messages()), (150, 50));
        assert!(!gate.is_open());
        // One count cannot have seen the messages. Of the other nobody knows whether it has seen the second
        // batch.
        control.set_share(control.returned(), messages(200));
        assert!(gate.try_admit(1).is_none());
        let before = control.returned();
        drop(first);
        control.set_share(before, messages(200));
        assert!(gate.try_admit(1).is_none());
        control.set_share(control.returned(), messages(50));
        assert!(gate.try_admit(1).is_none(), "the second is not stored yet");
        drop(second);
        control.set_share(control.returned(), messages(3));
        assert_eq!(gate.try_admit(10).map(|g| g.messages()), Some(3));
    }

    #[test]
    fn each_message_returns_its_own_permit_and_an_unused_one_returns_too() {
        let (control, gate) = gate();
        control.set_share(messages(0), messages(10));
        let mut granted = gate.try_admit(4).expect("room");
        let one = take_all(&mut granted, 3);
        assert_eq!(control.returned().messages, 0);
        drop(granted);
        assert_eq!(control.returned().messages, 1);
        drop(one);
        assert_eq!(control.returned().messages, 4);
    }

    #[tokio::test]
    async fn whoever_waits_is_seen_asks_for_a_count_and_goes_on_with_the_room_that_it_finds() {
        let count_now = Arc::new(Notify::new());
        let (control, gate) = GateControl::new(&count_now);
        let waits = async {
            gate.opened().await;
            gate.try_admit(5).map(|granted| granted.messages())
        };
        let counts = async {
            count_now.notified().await;
            assert!(
                !control.has_waiting(),
                "it waits for the gate to open, which no count does"
            );
            control.set_open(true);
            assert!(control.has_waiting());
            control.set_share(messages(0), messages(2));
        };
        let (taken, ()) = tokio::join!(waits, counts);
        assert_eq!(taken, Some(2));
        assert!(!control.has_waiting());
    }

    #[tokio::test]
    async fn whoever_waits_for_the_gate_to_close_hears_of_the_last_permit_and_of_a_pause() {
        use futures_util::FutureExt;
        let (control, gate) = gate();
        control.set_share(messages(0), messages(2));
        let other = gate.clone();
        let mut closed = Box::pin(other.closed());
        assert!(closed.as_mut().now_or_never().is_none());
        let granted = gate.try_admit(2);
        closed.await;
        drop(granted);
        control.set_share(messages(2), messages(2));
        let mut closed = Box::pin(other.closed());
        assert!(closed.as_mut().now_or_never().is_none());
        control.set_open(false);
        closed.await;
        assert!(AdmissionGate::unbounded().closed().now_or_never().is_none());
    }

    #[tokio::test]
    async fn the_next_count_is_asked_for_when_half_of_the_room_is_used() {
        let count_now = Arc::new(Notify::new());
        let (control, gate) = GateControl::new(&count_now);
        control.set_open(true);
        control.set_share(messages(0), messages(100));
        let asked = || {
            use futures_util::FutureExt;
            count_now.notified().now_or_never().is_some()
        };
        let _first = gate.try_admit(49);
        assert!(!asked());
        let _second = gate.try_admit(1);
        assert!(asked());
    }

    #[test]
    fn a_stale_count_leaves_a_batch_where_there_is_little_room_and_all_where_there_is_much() {
        for (share, left) in [
            (100, 100),
            (SCARCE_CAPACITY - 1, STALE_SHARE),
            (1_000_000, 1_000_000),
        ] {
            let (control, gate) = gate();
            control.set_share(messages(0), messages(share));
            control.set_stale();
            assert_eq!(
                gate.try_admit(usize::MAX).map(|g| g.messages() as u64),
                Some(left)
            );
        }
    }

    #[test]
    fn no_more_bytes_are_taken_than_a_count_left_free_but_for_the_last_message() {
        use futures_util::FutureExt;
        let (control, gate) = gate();
        let bytes = |bytes| MessageVolume {
            messages: 1000,
            bytes,
        };
        control.set_share(MessageVolume::default(), bytes(100));
        let mut batch = gate.try_admit(10).expect("room");
        let first = batch.take(60).expect("a permit");
        assert!(gate.is_open());
        let mut closed = Box::pin(gate.closed());
        assert!(closed.as_mut().now_or_never().is_none());
        let second = batch.take(60).expect("a permit");
        assert!(closed.now_or_never().is_some(), "whoever waits is told");
        assert!(gate.try_admit(1).is_none());
        drop(first);
        let before = control.returned();
        assert_eq!(before.bytes, 60);
        control.set_share(before, bytes(100));
        assert!(
            gate.is_open(),
            "40 bytes are left beside the second message"
        );
        control.set_share(before, bytes(60));
        assert!(!gate.is_open());
        drop(second);
    }

    #[test]
    fn shares_make_up_the_room_and_are_never_nothing_while_there_is_some() {
        let share = |most, counted, replicas| {
            share_of(
                messages(most),
                MessageVolume {
                    messages: counted,
                    bytes: 0,
                },
                replicas,
            )
            .messages
        };
        assert_eq!(share(200, 0, 1), 200);
        assert_eq!(share(200, 50, 3), 50);
        assert_eq!(share(200, 199, 5), 1);
        assert_eq!((share(200, 200, 2), share(200, 300, 2)), (0, 0));
        let full = MessageVolume {
            messages: 1,
            bytes: 1 << 40,
        };
        assert_eq!(
            share_of(messages(200), full, 1),
            MessageVolume::default(),
            "no bytes are left"
        );
    }
}
