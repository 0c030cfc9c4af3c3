//! An assignment: one Kafka partition while the group gives it to this consumer. It holds the records that were
//! read, how far they are resolved, and the task that feeds them to the sink. All of it dies with the
//! assignment.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::record::RECORD_OVERHEAD;
use super::standstill::StandstillWatch;
use crate::domain::{Flags, KafkaPosition, Message, Origin, ReadMark, Route, Text, UnixMs};
use crate::ingress::{Delivery, Feed, Ledger, Missing, ReadShare, Sink};
use crate::lifecycle::{Shutdown, Tasks};

/// Most records of one partition that are read and not yet resolved: twice the linger limit of one source.
pub(in crate::ingress) const WINDOW_RECORDS: usize = 65_536;
/// Most bytes of these records, while the process's read budget allows them. One record may exceed it.
pub(in crate::ingress) const WINDOW_BYTES: usize = 32 << 20;

/// Topic and partition.
pub(super) type TopicPartition = (String, i32);

/// The position at which reading starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartPosition {
    /// The first record to read. The broker holds a commit of this position.
    pub(super) start: i64,
    /// A time of records, no later than that of the last record before it.
    pub(super) resolved_time: Option<UnixMs>,
}

/// Everything that a new [`Assignment`] is built from.
pub(super) struct AssignmentSpec {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) route: Arc<Route>,
    pub(super) position: StartPosition,
    pub(super) share: ReadShare,
}

/// The offsets from `from` up to but not including `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetRange {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl OffsetRange {
    pub(super) fn len(self) -> i64 {
        self.to - self.from
    }
}

/// A partition under one assignment.
pub(super) struct Assignment {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) route: Arc<Route>,
    pub(super) ledger: Arc<Ledger>,
    /// The next record to read, as far as known: one past the last record that was read.
    pub(super) next: i64,
    /// One past the last record of the resolved prefix. While there is none: the start position.
    pub(super) resolved: i64,
    /// Time of the last record of the resolved prefix.
    pub(super) resolved_time: Option<UnixMs>,
    /// The committed position that the broker is known to hold.
    pub(super) committed: i64,
    /// The position that was sent to be committed, until it is seen at the broker.
    pub(super) committing: Option<i64>,
    /// The end of the log, as of the last question while the partition was paused.
    pub(super) end: i64,
    pub(super) paused: bool,
    /// It is not known whether this is still the log that was committed. Nothing is committed meanwhile.
    pub(super) in_doubt: bool,
    /// Watches whether the partition stands at records that cannot be opened.
    pub(super) standstill: StandstillWatch,
    /// Monotonic microseconds before which a standstill is not probed: the last probe found nothing.
    pub(super) probe_after_us: i64,
    /// The widest jump over offsets since the log's start was last known.
    gap: Option<OffsetRange>,
    /// Records that were deleted unread before this offset have been reported.
    reported_until: i64,
    inbox: Arc<FeedInbox>,
    window: UnresolvedWindow,
    stop_feeding_token: CancellationToken,
}

impl Assignment {
    /// Starts the assignment. `feeding` makes the task that feeds the sink.
    pub(super) fn begin<F: Future<Output = ()> + Send + 'static>(
        spec: AssignmentSpec,
        tasks: &Tasks,
        task: &str,
        feeding: impl FnOnce(Arc<FeedInbox>) -> F,
    ) -> Self {
        let AssignmentSpec {
            topic,
            partition,
            route,
            position,
            share,
        } = spec;
        let StartPosition {
            start,
            resolved_time,
        } = position;
        let inbox = Arc::new(FeedInbox::default());
        let stop_feeding_token = CancellationToken::new();
        let feeding = feeding(inbox.clone());
        let until = stop_feeding_token.clone();
        tasks.spawn(task, async move {
            tokio::select! {
                () = until.cancelled() => {}
                () = feeding => {}
            }
        });
        Self {
            topic,
            partition,
            route,
            ledger: Ledger::new(),
            next: start,
            resolved: start,
            resolved_time,
            committed: start,
            committing: None,
            end: 0,
            paused: false,
            in_doubt: false,
            standstill: StandstillWatch::default(),
            probe_after_us: 0,
            gap: None,
            reported_until: start,
            inbox,
            window: UnresolvedWindow {
                records: VecDeque::new(),
                share,
            },
            stop_feeding_token,
        }
    }

    /// Takes the record at `offset` of `size` bytes, of the given time. Reports whether the partition should pause.
    pub(super) fn read(
        &mut self,
        offset: i64,
        size: usize,
        time: Option<UnixMs>,
        delivery: Delivery,
    ) -> bool {
        let gap = OffsetRange {
            from: self.next,
            to: offset,
        };
        if gap.len() > self.gap.map_or(0, OffsetRange::len) {
            self.gap = Some(gap);
        }
        self.next = offset + 1;
        self.window.enter(WindowRecord { offset, size, time });
        self.inbox.put(delivery);
        self.window.is_full()
    }

    /// Passes over an offset that cannot be read, as if its record was read and resolved. Records before it are
    /// committed first.
    pub(super) fn pass_over(&mut self, offset: i64) {
        self.ledger.enter(offset).resolve();
        self.next = offset + 1;
        self.standstill = StandstillWatch::default();
    }

    /// Takes records that cannot be opened, for this reason, each as a delivery without content. Reports whether the
    /// partition should pause.
    pub(super) fn read_undecodable(&mut self, offsets: OffsetRange, why: &Text) -> bool {
        self.standstill = StandstillWatch::default();
        let mut is_full = false;
        for offset in offsets.from..offsets.to {
            let delivery = Delivery {
                message: Message {
                    origin: Origin::Kafka,
                    key: None,
                    body: None,
                    headers: Vec::new(),
                    properties: None,
                },
                missing: Some(Missing::Everything(why.clone())),
                produced: None,
                flags: Flags::default(),
                position: Some(KafkaPosition {
                    partition: self.partition,
                    offset,
                }),
                resolved_time: self.resolved_time,
                receipt: self.ledger.enter(offset),
            };
            is_full = self.read(offset, RECORD_OVERHEAD, None, delivery);
        }
        is_full
    }

    /// Takes the resolved prefix out of the ledger and the window.
    pub(super) fn advance(&mut self) {
        if let Some(last) = self.ledger.release().map(|released| released.last) {
            self.resolved = last + 1;
            let time = self.window.leave(last);
            self.resolved_time = time.or(self.resolved_time);
        }
    }

    /// Takes in the client's own position while nothing is outstanding. It lies beyond the markers of
    /// transactions, which are never delivered.
    pub(super) fn skip_markers(&mut self, position: i64) {
        if self.resolved >= self.next && position > self.next {
            self.next = position;
            self.resolved = position;
        }
    }

    /// The records that were deleted unread below the log's start, and were not reported before. A jump that
    /// ends where the log starts was caused by the deletion. Any other jump was over markers, or over compacted
    /// records.
    pub(super) fn overtaken(&mut self, log_start: i64) -> Option<OffsetRange> {
        let from = match self.gap.take() {
            Some(OffsetRange { from, to }) if from < log_start && log_start <= to => from,
            // The client library throws away the records that it has read ahead of a paused partition.
            _ if self.paused && self.next < log_start => self.next,
            _ => return None,
        };
        let from = from.max(self.reported_until);
        self.reported_until = self.reported_until.max(log_start);
        (from < log_start).then_some(OffsetRange {
            from,
            to: log_start,
        })
    }

    /// Reports whether a window that was full has capacity for more than a few records again.
    pub(super) fn has_headroom(&self) -> bool {
        self.window.has_headroom()
    }

    /// Reports whether a paused partition may go on.
    pub(super) fn has_room(&self) -> bool {
        self.window.is_half_empty()
    }

    /// How far the partition was read.
    pub(super) fn read_mark(&self) -> ReadMark {
        ReadMark {
            until: self.next,
            resolved: self.resolved_time,
        }
    }

    /// The position to commit, if it is news to the broker. Positions go forward only.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let is_news = self.resolved > self.committed;
        (is_news && !self.in_doubt).then_some(self.resolved)
    }

    /// Reports whether the broker may lack the position.
    pub(super) fn owes_commit(&self) -> bool {
        self.resolved > self.committed || self.committing.is_some()
    }

    /// Reports whether every record that was read is resolved, and the broker is known to hold that position.
    pub(super) fn is_committed(&self) -> bool {
        self.resolved >= self.next && !self.owes_commit() && !self.in_doubt
    }

    /// Throws away the records that the sink has not begun with. Nobody has acted on them.
    pub(super) fn stop_feeding(&self) {
        self.inbox.close();
    }

    /// Reports whether every record that was read is resolved, or will never be: it was thrown away, or the
    /// sink has given it up.
    pub(super) fn is_finished(&self) -> bool {
        self.ledger.is_finished()
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.stop_feeding_token.cancel();
    }
}

/// Feeds one partition's records to the sink, in batches that grow while the sink is busy.
pub(super) async fn feed<S: Sink>(
    sink: Arc<S>,
    shutdown: Shutdown,
    route: Arc<Route>,
    source: String,
    inbox: Arc<FeedInbox>,
) {
    // `None`: shutting down began during the wait for the store.
    let Some(mut feed) = sink.open(&route, source).await else {
        return;
    };
    loop {
        let mut records = inbox.take().await;
        while !records.is_empty() {
            tokio::select! {
                biased;
                // The sink has not begun with these records: they count as not read.
                () = inbox.closed() => return,
                () = feed.until_open() => records = feed.take(records).await,
                () = shutdown.draining() => return,
            }
        }
    }
}

/// Records that were read and that the sink has not yet taken. The assignment's window bounds it.
#[derive(Default)]
pub(super) struct FeedInbox {
    contents: Mutex<InboxContents>,
    arrived: Notify,
}

#[derive(Default)]
struct InboxContents {
    records: Vec<Delivery>,
    closed: bool,
}

impl FeedInbox {
    fn put(&self, delivery: Delivery) {
        let mut contents = self.contents.lock();
        if contents.closed {
            return;
        }
        contents.records.push(delivery);
        if contents.records.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Takes all records, at least one. Cancel-safe.
    async fn take(&self) -> Vec<Delivery> {
        loop {
            {
                let mut contents = self.contents.lock();
                if !contents.records.is_empty() {
                    return std::mem::take(&mut contents.records);
                }
            }
            self.arrived.notified().await;
        }
    }

    fn close(&self) {
        let mut contents = self.contents.lock();
        contents.closed = true;
        contents.records.clear();
        self.arrived.notify_one();
    }

    /// Waits until it is closed. Cancel-safe. Whoever takes the records waits for one thing at a time.
    async fn closed(&self) {
        while !self.contents.lock().closed {
            self.arrived.notified().await;
        }
    }
}

struct WindowRecord {
    offset: i64,
    size: usize,
    time: Option<UnixMs>,
}

/// The unresolved records of an assignment, with their bytes. Bounds memory.
struct UnresolvedWindow {
    records: VecDeque<WindowRecord>,
    share: ReadShare,
}

impl UnresolvedWindow {
    fn enter(&mut self, record: WindowRecord) {
        self.share.add(record.size);
        self.records.push_back(record);
    }

    /// Removes the records up to an offset. Returns the time of the last one that has a time.
    fn leave(&mut self, last: i64) -> Option<UnixMs> {
        let mut left = 0;
        let mut last_time = None;
        while let Some(record) = self.records.front()
            && record.offset <= last
        {
            left += record.size;
            last_time = record.time.or(last_time);
            self.records.pop_front();
        }
        if left > 0 {
            self.share.give_back(left);
        }
        last_time
    }

    fn is_full(&self) -> bool {
        self.records.len() >= WINDOW_RECORDS || self.share.is_full()
    }

    fn has_headroom(&self) -> bool {
        self.records.len() <= WINDOW_RECORDS - WINDOW_RECORDS / 32 && self.share.has_headroom()
    }

    fn is_half_empty(&self) -> bool {
        self.records.len() <= WINDOW_RECORDS / 2 && self.share.is_half_empty()
    }
}
