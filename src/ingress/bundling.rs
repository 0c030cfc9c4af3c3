//! Bundling: turns a batch into writes for the store, per partition and in order. Pure.
//!
//! Messages of one target whose due times lie within one *span* share a bundle. The span is 64 ms for named
//! messages (a claimed message can no longer be cancelled), and a sixteenth of the wait for unnamed ones, up to
//! four seconds. Spans are powers of two and aligned, so no bundle crosses a time slice. Writes on one name
//! stay in order of delivery: a name that comes again in a batch, or a command, first closes all open bundles.
//! Between two closings order means nothing.
//!
//! On a route with key order all messages have the short span, and messages that are due at one time are
//! bundled in the order they came: a change of the target closes the open bundles.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Receipt;
use crate::domain::limits::{BUNDLE_BYTES, BUNDLE_MESSAGES};
use crate::domain::{Entry, Flags, KafkaPosition, Partition, Route, TargetRef, Text, UnixMs};
use crate::store::{Bundle, WriteOp};

/// Shortest span, and the span of named messages, ms.
const MIN_SPAN_MS: i64 = 64;
/// Longest span, ms.
pub(super) const MAX_SPAN_MS: i64 = 4096;

/// A message on its way into the store.
#[derive(Debug)]
pub(super) struct PlacedMessage {
    pub(super) partition: Partition,
    pub(super) target: TargetRef,
    pub(super) entry: Entry,
    pub(super) receipt: Receipt,
}

/// The writes of one partition, and their receipts.
#[derive(Debug, Default)]
pub(super) struct PartitionWork {
    pub(super) ops: Vec<WriteOp>,
    /// Receipts of each write, in order: those of its messages, or of its command.
    pub(super) receipts: Vec<Vec<Receipt>>,
    /// Positions of the records that the commands were read from, in the order of the writes. `None` for other writes.
    pub(super) positions: Vec<Option<KafkaPosition>>,
    open: Vec<(BundleKey, OpenBundle)>,
    open_by_key: HashMap<BundleKey, usize>,
    /// Index of the open bundle that took the last message. Mostly it takes the next one too.
    last_open: usize,
    /// Target of the last message.
    target: Option<TargetRef>,
    names: HashSet<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BundleKey {
    target: TargetRef,
    span: i64,
    bucket: i64,
    /// Set for named messages, and for all messages of an ordered route: messages that are due at one time
    /// share a bundle in the order they came.
    together: bool,
}

#[derive(Debug, Default)]
struct OpenBundle {
    entries: Vec<Entry>,
    receipts: Vec<Receipt>,
    bytes: usize,
}

/// A batch's work for the store.
#[derive(Debug)]
pub(super) struct StoreWork {
    route: Arc<Route>,
    now: UnixMs,
    /// Most messages in a bundle.
    max_messages: usize,
    partitions: BTreeMap<Partition, PartitionWork>,
}

impl StoreWork {
    pub(super) fn new(route: Arc<Route>, now: UnixMs) -> Self {
        // A claimed bundle of a rate-limited route waits for its tokens in memory, so a bundle holds no more
        // than one second's worth.
        let worth = route
            .policy
            .rate
            .map_or(BUNDLE_MESSAGES, |rate| rate.per_second as usize);
        Self {
            route,
            now,
            max_messages: worth.min(BUNDLE_MESSAGES),
            partitions: BTreeMap::new(),
        }
    }

    /// Takes all of it out.
    pub(super) fn take(&mut self) -> Self {
        let rest = Self {
            route: self.route.clone(),
            partitions: BTreeMap::new(),
            ..*self
        };
        std::mem::replace(self, rest)
    }

    /// Adds a message to be kept until it is due.
    pub(super) fn store(&mut self, message: PlacedMessage) {
        let PlacedMessage {
            partition,
            target,
            entry,
            receipt,
        } = message;
        let work = self.partitions.entry(partition).or_default();
        let named = entry.flags.has(Flags::NAMED);
        if let Some(id) = entry.id.clone().filter(|_| named)
            && !work.names.insert(id.clone())
        {
            work.close(&self.route);
            work.names.insert(id);
        }
        let ordered = self.route.policy.ordered;
        if ordered && work.target.as_ref().is_some_and(|last| *last != target) {
            // Bundles are stored in the order in which they are closed, so messages that are due at one time
            // keep their order.
            work.close(&self.route);
        }
        let together = named || ordered;
        let span = if together {
            MIN_SPAN_MS
        } else {
            span_ms(entry.due.since(self.now))
        };
        let key = BundleKey {
            target,
            span,
            bucket: entry.due.0.div_euclid(span),
            together,
        };
        work.target = Some(key.target.clone());
        let bytes = entry.stored_size();
        let at = work.open_bundle(key);
        let (_, bundle) = &mut work.open[at];
        let full = bundle.entries.len() >= self.max_messages
            || (!bundle.entries.is_empty() && bundle.bytes + bytes > BUNDLE_BYTES);
        if full {
            let whole = std::mem::take(bundle);
            let target = work.open[at].0.target.clone();
            work.push(&self.route, target, whole);
        }
        let (_, bundle) = &mut work.open[at];
        bundle.bytes += bytes;
        bundle.entries.push(entry);
        bundle.receipts.push(receipt);
    }

    /// Adds a dead letter, or a command on a name whose record's position does not matter.
    pub(super) fn command(&mut self, p: Partition, op: WriteOp, receipt: Receipt) {
        self.command_at(p, op, None, receipt);
    }

    /// Adds a command on a name. `position` is that of its record.
    pub(super) fn command_at(
        &mut self,
        p: Partition,
        op: WriteOp,
        position: Option<KafkaPosition>,
        receipt: Receipt,
    ) {
        let work = self.partitions.entry(p).or_default();
        if matches!(
            op,
            WriteOp::Cancel { .. } | WriteOp::Reschedule { .. } | WriteOp::Replace { .. }
        ) {
            work.close(&self.route);
        }
        work.ops.push(op);
        work.positions.push(position);
        work.receipts.push(vec![receipt]);
    }

    /// Closes all bundles. Returns the work of each partition.
    pub(super) fn finish(mut self) -> BTreeMap<Partition, PartitionWork> {
        for work in self.partitions.values_mut() {
            work.close(&self.route);
        }
        self.partitions
    }
}

impl PartitionWork {
    /// The index of the open bundle of a key. Opens one if there is none.
    fn open_bundle(&mut self, key: BundleKey) -> usize {
        if self
            .open
            .get(self.last_open)
            .is_none_or(|(known, _)| *known != key)
        {
            self.last_open = self.open_by_key.get(&key).copied().unwrap_or_else(|| {
                self.open.push((key.clone(), OpenBundle::default()));
                self.open_by_key.insert(key, self.open.len() - 1);
                self.open.len() - 1
            });
        }
        self.last_open
    }

    fn close(&mut self, route: &Arc<Route>) {
        self.names.clear();
        self.open_by_key.clear();
        let mut open = std::mem::take(&mut self.open);
        if !route.policy.ordered {
            // Bundles that are close in time share a time slice, so a call that stores them touches few due
            // sets.
            open.sort_by_key(|(key, _)| key.bucket * key.span);
        }
        for (key, bundle) in open {
            self.push(route, key.target, bundle);
        }
    }

    fn push(&mut self, route: &Arc<Route>, target: TargetRef, bundle: OpenBundle) {
        if bundle.entries.is_empty() {
            return;
        }
        self.ops.push(WriteOp::Store {
            route: route.name.clone(),
            on_duplicate: route.policy.on_duplicate,
            bundle: Bundle {
                target,
                entries: Arc::new(bundle.entries),
            },
        });
        self.positions.push(None);
        self.receipts.push(bundle.receipts);
    }
}

/// The span of an unnamed message with this wait.
fn span_ms(wait_ms: i64) -> i64 {
    let share = (wait_ms / 16).clamp(MIN_SPAN_MS, MAX_SPAN_MS) as u64;
    // Round down to a power of two: its aligned buckets never cross the border of a slice.
    1 << share.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;
    use crate::ingress::Ledger;

    fn entry(due: i64, name: Option<&str>) -> Entry {
        let mut entry = testing::entry(UnixMs(due), b"body");
        if let Some(name) = name {
            entry.id = Some(name.into());
            entry.flags = Flags(Flags::NAMED);
        }
        entry
    }

    fn placed(target: TargetRef, entry: Entry, receipt: Receipt) -> PlacedMessage {
        PlacedMessage {
            partition: Partition(3),
            target,
            entry,
            receipt,
        }
    }

    fn work(messages: Vec<Entry>) -> Vec<WriteOp> {
        let ledger = Ledger::new();
        let mut work = StoreWork::new(testing::route(), UnixMs(0));
        for (at, entry) in messages.into_iter().enumerate() {
            work.store(placed(TargetRef::Own, entry, ledger.enter(at as i64)));
        }
        work.finish()
            .remove(&Partition(3))
            .map(|w| w.ops)
            .unwrap_or_default()
    }

    fn sizes(ops: &[WriteOp]) -> Vec<usize> {
        let mut sizes: Vec<usize> = ops
            .iter()
            .map(|op| match op {
                WriteOp::Store { bundle, .. } => bundle.entries.len(),
                _ => 0,
            })
            .collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn spans_grow_with_the_wait_and_stay_aligned() {
        assert_eq!(span_ms(0), 64);
        assert_eq!(span_ms(60_000), 2048);
        assert_eq!(span_ms(i64::MAX), 4096);
        assert_eq!((1 << 20) % MAX_SPAN_MS, 0);
    }

    #[test]
    fn equal_delays_share_a_bundle_up_to_its_bound() {
        let ops = work((0..1200).map(|_| entry(3_600_000, None)).collect());
        assert_eq!(sizes(&ops), vec![200, 500, 500]);
    }

    #[test]
    fn a_bundle_of_a_limited_route_holds_a_seconds_worth() {
        let mut route = (*testing::route()).clone();
        route.policy.rate = Some(crate::domain::RateLimit {
            per_second: 2,
            burst: 100,
        });
        let ledger = Ledger::new();
        let mut work = StoreWork::new(Arc::new(route), UnixMs(0));
        for at in 0..5 {
            let entry = entry(3_600_000, None);
            work.store(placed(TargetRef::Own, entry, ledger.enter(at)));
        }
        let ops = work
            .finish()
            .remove(&Partition(3))
            .map(|w| w.ops)
            .unwrap_or_default();
        assert_eq!(sizes(&ops), vec![1, 2, 2]);
    }

    #[test]
    fn a_name_that_comes_again_closes_what_was_begun_before() {
        let ops = work(vec![
            entry(1000, Some("a")),
            entry(1001, Some("b")),
            entry(1002, Some("a")),
        ]);
        assert_eq!(sizes(&ops), vec![1, 2]);
        let WriteOp::Store { bundle, .. } = &ops[0] else {
            panic!("a store comes first")
        };
        assert_eq!(bundle.entries.len(), 2, "the first two come first");
    }

    #[test]
    fn of_an_ordered_route_what_is_due_at_one_moment_stays_in_the_order_it_came() {
        let mut route = (*testing::route()).clone();
        route.policy.ordered = true;
        let ledger = Ledger::new();
        let mut work = StoreWork::new(Arc::new(route), UnixMs(0));
        let messages = [
            ("", None),
            ("", Some("a")),
            ("", None),
            ("other", None),
            ("", None),
        ];
        for (at, (target, name)) in messages.into_iter().enumerate() {
            let mut entry = entry(3_600_000, name);
            entry.handouts = at as u32;
            let target = TargetRef::from_text(Text::from(target));
            work.store(placed(target, entry, ledger.enter(at as i64)));
        }
        let ops = work
            .finish()
            .remove(&Partition(3))
            .map(|w| w.ops)
            .unwrap_or_default();
        assert_eq!(ops.len(), 3);
        let came = ops.iter().flat_map(|op| match op {
            WriteOp::Store { bundle, .. } => bundle.entries.iter().map(|e| e.handouts).collect(),
            _ => Vec::new(),
        });
        assert_eq!(came.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn named_and_unnamed_never_share_a_bundle() {
        let ops = work(vec![entry(1000, None), entry(1000, Some("a"))]);
        assert_eq!(sizes(&ops), vec![1, 1]);
    }
}
