//! Records the events of one route in memory, in their stored form, until they are written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::domain::{
    Actor, Because, KafkaPosition, RouteName, Target, TrailLimits, TrailWord, UnixMs,
};
use crate::store::DeadId;
use crate::store::model::codec::{NewTrailEvent, PACK_EVENTS, TrailPack};
use crate::telemetry::RouteMetrics;

/// Most bytes of full packs that one route holds, and all routes of the process together. They are written within a
/// second, so more than this comes only where Redis is slow.
const ROUTE_BYTES: usize = 8 << 20;
const PROCESS_BYTES: usize = 16 << 20;
/// Packs that a full trail has at least: the oldest gives way as a whole.
const TRAIL_PACKS: u64 = 16;

/// Cause that made a message end or move.
#[derive(Clone, Copy, Debug)]
pub enum TrailCause<'a> {
    /// A message with a command in its header, and its position if it was a Kafka record.
    Header(Option<KafkaPosition>),
    /// A caller of the API, or a rule of the configuration.
    Actor(&'a Actor),
    /// Another message of the name, and its position if it was a Kafka record.
    Namesake(Option<KafkaPosition>),
}

/// How a message was delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The confirm minus the due time that was asked for, ms.
    pub late_ms: i64,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Where to.
    pub target: &'a Arc<Target>,
    /// Where it lies in the target, if that is a topic.
    pub landed: Option<KafkaPosition>,
}

/// The trail of one route. Events are copied into memory that is bounded: beyond the bound they are lost and counted, and
/// no caller ever waits.
pub struct RouteTrail {
    pub(super) route: RouteName,
    pub(super) limits: TrailLimits,
    pub(super) metrics: Option<Arc<RouteMetrics>>,
    /// Most events of a pack.
    pack_events: usize,
    buffer: Mutex<TrailBuffer>,
    /// Bytes of full packs, of all routes.
    held: Arc<AtomicUsize>,
}

#[derive(Default)]
struct TrailBuffer {
    open: TrailPack,
    /// Full packs, the oldest first.
    full: VecDeque<Arc<TrailPack>>,
    /// Bytes and events of the full packs.
    full_bytes: usize,
    full_events: u64,
    /// Packs that are being written: Redis may not have them yet.
    writing: Vec<Arc<TrailPack>>,
    /// Bytes of those that were full.
    writing_bytes: usize,
    lost: u64,
}

/// The events that are to be written, and how many were lost meanwhile.
#[derive(Default)]
pub(super) struct TakenEvents {
    pub(super) packs: Vec<Arc<TrailPack>>,
    pub(super) lost: u64,
}

impl RouteTrail {
    pub(super) fn new(
        route: RouteName,
        limits: TrailLimits,
        held: Arc<AtomicUsize>,
        metrics: Option<Arc<RouteMetrics>>,
    ) -> Self {
        let pack_events = (limits.max_events / TRAIL_PACKS).clamp(1, PACK_EVENTS as u64) as usize;
        Self {
            route,
            limits,
            metrics,
            pack_events,
            buffer: Mutex::default(),
            held,
        }
    }

    /// Records that a target has confirmed a message.
    pub fn delivered(&self, id: &str, at: UnixMs, delivered: &Delivered<'_>) {
        self.record(&NewTrailEvent {
            late_ms: Some(delivered.late_ms),
            attempt: Some(delivered.attempt),
            target: Some(delivered.target),
            position: delivered.landed,
            ..NewTrailEvent::new(TrailWord::Delivered, id, at)
        });
    }

    /// Records that a message was cancelled that was due then, if that is known.
    pub fn cancelled(&self, id: &str, at: UnixMs, due: Option<UnixMs>, cause: TrailCause<'_>) {
        let event = NewTrailEvent {
            due,
            ..NewTrailEvent::new(TrailWord::Cancelled, id, at)
        };
        self.record(&cause.of(event));
    }

    /// Records that a message has another due time.
    pub fn moved(&self, id: &str, at: UnixMs, due: UnixMs, cause: TrailCause<'_>) {
        let event = NewTrailEvent {
            due: Some(due),
            ..NewTrailEvent::new(TrailWord::Moved, id, at)
        };
        self.record(&cause.of(event));
    }

    /// Records that another message of its name has taken the place of a message.
    pub fn replaced(&self, id: &str, at: UnixMs, cause: TrailCause<'_>) {
        self.record(&cause.of(NewTrailEvent::new(TrailWord::Replaced, id, at)));
    }

    /// Records that another message of a name was acknowledged and not stored.
    pub fn deduplicated(&self, id: &str, at: UnixMs, position: Option<KafkaPosition>) {
        self.record(&NewTrailEvent {
            position,
            ..NewTrailEvent::new(TrailWord::Deduplicated, id, at)
        });
    }

    /// Records that a message became a dead letter.
    pub fn dead(&self, id: &str, at: UnixMs, due: Option<UnixMs>, reason: &str, dead_id: &DeadId) {
        let event = NewTrailEvent::new(TrailWord::Dead, id, at);
        self.record(&NewTrailEvent {
            due,
            reason: Some(reason),
            dead_id: Some(dead_id.as_str()),
            ..event
        });
    }

    /// Records that a message was given up for good by a rule.
    pub fn dropped(&self, id: &str, at: UnixMs, due: Option<UnixMs>, reason: &str) {
        self.record(&NewTrailEvent {
            due,
            reason: Some(reason),
            ..NewTrailEvent::new(TrailWord::Dropped, id, at)
        });
    }

    /// Records that a dead letter was dropped.
    pub fn dropped_dead(&self, id: &str, at: UnixMs, dead_id: &DeadId, by: &Actor) {
        let event = NewTrailEvent {
            dead_id: Some(dead_id.as_str()),
            ..NewTrailEvent::new(TrailWord::Dropped, id, at)
        };
        self.record(&TrailCause::Actor(by).of(event));
    }

    /// Records that a dead letter is due again.
    pub fn redriven(&self, id: &str, at: UnixMs, dead_id: &DeadId, by: &Actor) {
        let event = NewTrailEvent {
            dead_id: Some(dead_id.as_str()),
            ..NewTrailEvent::new(TrailWord::Redriven, id, at)
        };
        self.record(&TrailCause::Actor(by).of(event));
    }

    fn record(&self, event: &NewTrailEvent<'_>) {
        let mut buffer = self.buffer.lock();
        if buffer.open.is_full(self.pack_events) && !self.close(&mut buffer) {
            buffer.lost += 1;
            return;
        }
        buffer.open.put(event);
    }

    /// Closes the open pack. Returns `false` if there is no memory for another one.
    fn close(&self, buffer: &mut TrailBuffer) -> bool {
        let bytes = buffer.open.len();
        let fits = buffer.full_bytes + buffer.writing_bytes + bytes <= ROUTE_BYTES
            && self.held.load(Ordering::Relaxed) + bytes <= PROCESS_BYTES;
        if !fits {
            return false;
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        buffer.full_bytes += bytes;
        buffer.full_events += buffer.open.count() as u64;
        let full = std::mem::take(&mut buffer.open);
        buffer.full.push_back(Arc::new(full));
        // What came before so many events would not outlast the next call.
        while buffer.full_events > self.limits.max_events
            && let Some(oldest) = buffer.full.pop_front()
        {
            buffer.full_events -= oldest.count() as u64;
            buffer.full_bytes -= oldest.len();
            self.held.fetch_sub(oldest.len(), Ordering::Relaxed);
        }
        true
    }

    /// The events that Redis may not have yet, in blobs as they are stored.
    pub(in crate::store) fn unwritten(&self) -> Vec<Bytes> {
        let packs: Vec<Arc<TrailPack>> = {
            let buffer = self.buffer.lock();
            let open = Arc::new(buffer.open.clone());
            buffer
                .writing
                .iter()
                .chain(&buffer.full)
                .cloned()
                .chain([open])
                .collect()
        };
        packs.iter().map(|pack| pack.encode()).collect()
    }

    /// Takes all events, to be written. They stay among the unwritten ones until [`Self::written`].
    pub(super) fn take(&self) -> TakenEvents {
        let mut buffer = self.buffer.lock();
        let TrailBuffer {
            open,
            full,
            full_bytes,
            lost,
            ..
        } = std::mem::take(&mut *buffer);
        let mut packs = Vec::from(full);
        if open.count() > 0 {
            packs.push(Arc::new(open));
        }
        buffer.writing.clone_from(&packs);
        buffer.writing_bytes = full_bytes;
        TakenEvents { packs, lost }
    }

    /// Forgets what was taken last: Redis has it, or it is lost.
    pub(super) fn written(&self) {
        let mut buffer = self.buffer.lock();
        buffer.writing.clear();
        self.held
            .fetch_sub(std::mem::take(&mut buffer.writing_bytes), Ordering::Relaxed);
    }
}

impl<'a> TrailCause<'a> {
    /// The event with its cause.
    fn of(self, event: NewTrailEvent<'a>) -> NewTrailEvent<'a> {
        match self {
            Self::Header(position) => NewTrailEvent {
                by: Some("header"),
                position,
                ..event
            },
            Self::Namesake(position) => NewTrailEvent { position, ..event },
            Self::Actor(Actor { name, because }) => NewTrailEvent {
                by: Some(name.as_str()),
                reason: because.as_ref().map(Because::as_str),
                ..event
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::model::codec::read_trail;

    fn trail(held: &Arc<AtomicUsize>) -> RouteTrail {
        let route = RouteName::new("orders").expect("a name");
        RouteTrail::new(route, TrailLimits::default(), held.clone(), None)
    }

    #[test]
    fn events_are_lost_and_counted_before_anybody_waits() {
        let held = Arc::default();
        let one = trail(&held);
        let id = "i".repeat(250);
        let unlike = |n: u64| format!("{n:016x}{id}");
        let mut sent = 0;
        let somebody = Actor::new("somebody");
        while one.buffer.lock().lost < 10 {
            one.cancelled(
                &unlike(sent),
                UnixMs(sent as i64),
                None,
                TrailCause::Actor(&somebody),
            );
            sent += 1;
            assert!(sent < 1_000_000, "nothing is ever lost");
        }
        assert!(held.load(Ordering::Relaxed) <= ROUTE_BYTES);
        // Another route has the rest of the process's share, and no more.
        let others: Vec<RouteTrail> = (0..3).map(|_| trail(&held)).collect();
        for other in &others {
            for n in 0..sent {
                other.cancelled(&unlike(n), UnixMs(0), None, TrailCause::Header(None));
            }
        }
        assert!(held.load(Ordering::Relaxed) <= PROCESS_BYTES);
        let taken = one.take();
        let kept: usize = taken.packs.iter().map(|pack| pack.count()).sum();
        assert_eq!((kept as u64 + taken.lost, taken.lost), (sent, 10));
        assert!(
            held.load(Ordering::Relaxed) > ROUTE_BYTES / 2,
            "what is being written is held"
        );
        one.written();
        for other in &others {
            let taken = other.take();
            let kept: usize = taken.packs.iter().map(|pack| pack.count()).sum();
            assert_eq!(kept as u64 + taken.lost, sent);
            other.written();
        }
        assert_eq!(
            held.load(Ordering::Relaxed),
            0,
            "what was written is no longer held"
        );
        one.cancelled("again", UnixMs(0), None, TrailCause::Header(None));
        let taken = one.take();
        assert_eq!(
            (taken.packs.len(), taken.packs[0].count(), taken.lost),
            (1, 1, 0)
        );
        assert!(one.take().packs.is_empty(), "what was taken is gone");
    }

    #[test]
    fn of_more_events_than_a_trail_keeps_the_oldest_are_not_even_written() {
        let route = RouteName::new("orders").expect("a name");
        let limits = TrailLimits {
            keep_ms: 1000,
            max_events: 32,
        };
        let trail = RouteTrail::new(route, limits, Arc::default(), None);
        for n in 0..1000 {
            trail.cancelled("a", UnixMs(n), None, TrailCause::Header(None));
        }
        let taken = trail.take();
        let counts: Vec<usize> = taken.packs.iter().map(|pack| pack.count()).collect();
        assert_eq!(
            (counts, taken.lost),
            (vec![2; 17], 0),
            "and a part of the trail gives way at a time"
        );
        let mut last = Vec::new();
        read_trail(&taken.packs[16].encode(), |_, event| last.push(event.at.0)).expect("readable");
        assert_eq!(last, [998, 999]);
    }

    #[test]
    fn what_is_being_written_is_told_until_it_is_written() {
        let trail = trail(&Arc::default());
        let told = || {
            let mut ids = Vec::new();
            for blob in trail.unwritten() {
                read_trail(&blob, |id, _| {
                    ids.push(String::from_utf8_lossy(id).into_owned());
                })
                .expect("readable");
            }
            ids
        };
        trail.cancelled("a", UnixMs(1), None, TrailCause::Header(None));
        assert_eq!(told(), ["a"]);
        let taken = trail.take();
        assert_eq!(taken.packs.len(), 1);
        assert_eq!(told(), ["a"], "Redis may not have it yet");
        trail.cancelled("b", UnixMs(2), None, TrailCause::Header(None));
        assert_eq!(told(), ["a", "b"]);
        trail.written();
        assert_eq!(told(), ["b"]);
    }

    #[test]
    fn a_command_says_who_gave_it() {
        let trail = trail(&Arc::default());
        let position = Some(KafkaPosition {
            partition: 1,
            offset: 7,
        });
        trail.moved("a", UnixMs(1), UnixMs(5), TrailCause::Header(position));
        let ann = Actor {
            because: "a double order".parse().ok(),
            ..Actor::new("ann")
        };
        trail.cancelled("b", UnixMs(2), None, TrailCause::Actor(&ann));
        let mut told = Vec::new();
        let blob = trail.take().packs[0].encode();
        read_trail(&blob, |_, event| {
            told.push((
                event.word,
                event.by,
                event.reason,
                event.position,
                event.due,
            ));
        })
        .expect("readable");
        assert_eq!(
            told,
            [
                (
                    TrailWord::Moved,
                    Some("header".into()),
                    None,
                    position,
                    Some(UnixMs(5))
                ),
                (
                    TrailWord::Cancelled,
                    Some("ann".into()),
                    Some("a double order".into()),
                    None,
                    None
                ),
            ]
        );
    }
}
