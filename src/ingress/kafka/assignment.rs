//! One partition while it is assigned: what was read of it, what of that is resolved, and the task that
//! feeds it to the sink. All of it dies with the assignment.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::domain::Route;
use crate::ingress::{Delivery, Feed, Ledger, ReadShare, Sink};
use crate::lifecycle::{Shutdown, Tasks};

/// Most records of one partition that are read and not yet resolved: twice what waits for company at most.
pub(in crate::ingress) const WINDOW_RECORDS: usize = 65_536;
/// Most bytes of them, while the budget of the process has room; one record may go beyond.
pub(in crate::ingress) const WINDOW_BYTES: usize = 32 << 20;

/// Where reading begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The first record to read.
    pub(super) start: i64,
    /// The committed position that the broker holds, if any.
    pub(super) committed: Option<i64>,
}

/// A partition under one assignment.
pub(super) struct Assignment {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) route: Arc<Route>,
    pub(super) ledger: Arc<Ledger>,
    /// The next record to read, as far as known: one past the last read.
    pub(super) next: i64,
    /// One past the last record of the resolved prefix; where reading began while there is none.
    pub(super) resolved: i64,
    /// The committed position that the broker is known to hold; `None` while it holds none of ours.
    pub(super) committed: Option<i64>,
    /// What was sent to be committed and is not yet seen there.
    pub(super) committing: Option<i64>,
    /// A position that the broker may still hold of a log that is gone: it stands for nothing.
    pub(super) void: Option<i64>,
    /// Where the log ends, as far as was asked while it was paused.
    pub(super) end: i64,
    pub(super) paused: bool,
    /// Whether this is still the log that was committed is not known; nothing is committed meanwhile.
    pub(super) in_doubt: bool,
    /// The widest jump over offsets since the last look at the log's start.
    gap: Option<(i64, i64)>,
    /// What was deleted unread before this offset has been told.
    told: i64,
    inbox: Arc<Inbox>,
    window: Window,
    gone: CancellationToken,
}

impl Assignment {
    /// Begins at a position; `feeding` makes the task that feeds the sink.
    pub(super) fn begin<F: Future<Output = ()> + Send + 'static>(
        (topic, partition): (Arc<str>, i32),
        route: Arc<Route>,
        Position { start, committed }: Position,
        share: ReadShare,
        (tasks, task): (&Tasks, &str),
        feeding: impl FnOnce(Arc<Inbox>) -> F,
    ) -> Self {
        let (inbox, gone) = (Arc::new(Inbox::default()), CancellationToken::new());
        let (feeding, until) = (feeding(inbox.clone()), gone.clone());
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
            committed,
            committing: None,
            void: None,
            end: 0,
            paused: false,
            in_doubt: false,
            gap: None,
            told: start,
            inbox,
            window: Window { sizes: VecDeque::new(), share },
            gone,
        }
    }

    /// Takes the record at `offset`, of so many bytes. Returns whether the partition should pause.
    pub(super) fn read(&mut self, offset: i64, size: usize, delivery: Delivery) -> bool {
        let width = |(from, to): (i64, i64)| to - from;
        let gap = (self.next, offset);
        if width(gap) > self.gap.map_or(0, width) {
            self.gap = Some(gap);
        }
        self.next = offset + 1;
        self.window.enter(offset, size);
        self.inbox.put(delivery);
        self.window.is_full()
    }

    /// Takes the resolved prefix into account.
    pub(super) fn advance(&mut self) {
        if let Some(last) = self.ledger.release().map(|released| released.last) {
            self.resolved = last + 1;
            self.window.leave(last);
        }
    }

    /// Takes the client's own position into account where nothing is outstanding: it lies beyond the markers of
    /// transactions, which are never delivered.
    pub(super) fn pass_markers(&mut self, position: i64) {
        if self.resolved >= self.next && position > self.next {
            self.next = position;
            self.resolved = position;
        }
    }

    /// What the log's start has overtaken before it was read, and was not told yet. A jump that ends where the log
    /// began was made because of that; any other was over markers, or over what compaction took.
    pub(super) fn overtaken(&mut self, log_start: i64) -> Option<(i64, i64)> {
        let from = match self.gap.take() {
            Some((from, to)) if from < log_start && log_start <= to => from,
            // What the client library had read ahead of a paused partition is thrown away.
            _ if self.paused && self.next < log_start => self.next,
            _ => return None,
        };
        let from = from.max(self.told);
        self.told = self.told.max(log_start);
        (from < log_start).then_some((from, log_start))
    }

    /// Whether a full one has room for more than a few again.
    pub(super) fn has_some_room(&self) -> bool {
        self.window.has_some_room()
    }

    /// Whether a paused one may go on.
    pub(super) fn has_room(&self) -> bool {
        self.window.is_half_empty()
    }

    /// The position to commit, if it is news to the broker: only forward, but where the broker holds
    /// none of ours also where reading began, so that a commit is there to be missed later.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let is_news = self.committed.is_none_or(|committed| self.resolved > committed);
        (is_news && !self.in_doubt).then_some(self.resolved)
    }

    /// Whether all that was read is resolved, and the broker is known to hold that position.
    pub(super) fn is_committed(&self) -> bool {
        self.resolved >= self.next
            && self.to_commit().is_none()
            && self.committing.is_none()
            && !self.in_doubt
    }

    /// Throws away what the sink has not begun with; nobody has acted on it.
    pub(super) fn stop_feeding(&self) {
        self.inbox.close();
    }

    /// Whether all that was read is resolved, or what is not resolved never will be: it was thrown away, or the sink
    /// has given it up.
    pub(super) fn is_settled(&self) -> bool {
        self.ledger.is_settled()
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// Feeds one partition's records to the sink, in batches that grow while it is busy.
pub(super) async fn feed<S: Sink>(
    (sink, shutdown): (Arc<S>, Shutdown),
    route: Arc<Route>,
    source: String,
    inbox: Arc<Inbox>,
) {
    // `None`: shutting down began while it waited for the store.
    let Some(mut feed) = sink.open(&route, source).await else { return };
    loop {
        let mut records = inbox.take().await;
        while !records.is_empty() {
            tokio::select! {
                biased;
                () = feed.until_open() => records = feed.take(records).await,
                // The records were not begun with: they count as not read.
                () = shutdown.draining() => return,
            }
        }
    }
}

/// What was read and the sink has not yet taken. Bounded by the window of its assignment.
#[derive(Default)]
pub(super) struct Inbox {
    held: Mutex<Held>,
    arrived: Notify,
}

#[derive(Default)]
struct Held {
    records: Vec<Delivery>,
    closed: bool,
}

impl Inbox {
    fn put(&self, delivery: Delivery) {
        let mut held = self.held.lock();
        if held.closed {
            return;
        }
        held.records.push(delivery);
        if held.records.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// All that is there, at least one. Cancel-safe.
    async fn take(&self) -> Vec<Delivery> {
        loop {
            {
                let mut held = self.held.lock();
                if !held.records.is_empty() {
                    return std::mem::take(&mut held.records);
                }
            }
            self.arrived.notified().await;
        }
    }

    fn close(&self) {
        let mut held = self.held.lock();
        held.closed = true;
        held.records.clear();
    }
}

/// The records between reading and resolution, for the sake of their memory.
struct Window {
    sizes: VecDeque<(i64, usize)>,
    share: ReadShare,
}

impl Window {
    fn enter(&mut self, offset: i64, size: usize) {
        self.sizes.push_back((offset, size));
        self.share.add(size);
    }

    fn leave(&mut self, last: i64) {
        let mut left = 0;
        while let Some(&(offset, size)) = self.sizes.front()
            && offset <= last
        {
            self.sizes.pop_front();
            left += size;
        }
        if left > 0 {
            self.share.give_back(left);
        }
    }

    fn is_full(&self) -> bool {
        self.sizes.len() >= WINDOW_RECORDS || self.share.is_full()
    }

    fn has_some_room(&self) -> bool {
        self.sizes.len() <= WINDOW_RECORDS - WINDOW_RECORDS / 32 && self.share.has_some_room()
    }

    fn is_half_empty(&self) -> bool {
        self.sizes.len() <= WINDOW_RECORDS / 2 && self.share.is_half_empty()
    }
}
