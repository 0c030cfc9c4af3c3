//! Bundling: what a batch gives the store to do, per partition and in order. Pure.
//!
//! Messages of one target whose due times lie within one *span* share a bundle: 64 ms for named ones (a
//! claimed message can no longer be cancelled), a sixteenth of the wait for unnamed ones, up to four
//! seconds. Spans are powers of two and aligned, so no bundle crosses a time slice. Names are judged in
//! order of delivery: where a name comes again in a batch, or a command comes, what was begun before is
//! closed first; between two closings order means nothing.
//!
//! On a route whose keys leave in order all have the short span, and what is due at one moment is bundled in the
//! order it came: a change of the target closes what was begun before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Receipt;
use crate::domain::limits::{BUNDLE_BYTES, BUNDLE_MESSAGES};
use crate::domain::{Entry, Flags, Partition, Route, TargetRef, Text, UnixMs};
use crate::store::{Bundle, WriteOp};

/// Shortest span, and that of named messages, ms.
const MIN_SPAN_MS: i64 = 64;
/// Longest span, ms.
pub(super) const MAX_SPAN_MS: i64 = 4096;

/// What one partition is to do, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct PartitionWork {
    pub(super) ops: Vec<WriteOp>,
    /// Per operation, the receipts of its messages or of its command, in order.
    pub(super) receipts: Vec<Vec<Receipt>>,
    open: Vec<(Key, Building)>,
    places: HashMap<Key, usize>,
    /// Where the message before this one went: mostly this one goes there too.
    last: usize,
    /// The target of the message before this one.
    target: Option<TargetRef>,
    names: HashSet<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    target: TargetRef,
    span: i64,
    bucket: i64,
    /// Named; on an ordered route all of them: what is due at one moment shares a bundle in the order it came.
    together: bool,
}

#[derive(Debug, Default)]
struct Building {
    entries: Vec<Entry>,
    receipts: Vec<Receipt>,
    bytes: usize,
}

/// A batch's work for the store.
#[derive(Debug)]
pub(super) struct Work {
    route: Arc<Route>,
    now: UnixMs,
    /// Messages in a bundle at most.
    most: usize,
    partitions: BTreeMap<Partition, PartitionWork>,
}

impl Work {
    pub(super) fn new(route: Arc<Route>, now: UnixMs) -> Self {
        // A claimed bundle of a limited route waits for its tokens in memory: no more than a second's worth.
        let worth = route.policy.rate.map_or(BUNDLE_MESSAGES, |rate| rate.per_second as usize);
        Self { route, now, most: worth.min(BUNDLE_MESSAGES), partitions: BTreeMap::new() }
    }

    /// A message to be kept until it is due.
    pub(super) fn store(&mut self, p: Partition, target: TargetRef, entry: Entry, receipt: Receipt) {
        let work = self.partitions.entry(p).or_default();
        let named = entry.flags.has(Flags::NAMED);
        if let Some(id) = entry.id.clone().filter(|_| named)
            && !work.names.insert(id.clone())
        {
            work.close(&self.route);
            work.names.insert(id);
        }
        let ordered = self.route.policy.ordered;
        if ordered && work.target.as_ref().is_some_and(|last| *last != target) {
            // Bundles are stored in the order in which they are closed: what is due at one moment keeps it.
            work.close(&self.route);
        }
        let together = named || ordered;
        let span = if together { MIN_SPAN_MS } else { span_ms(entry.due.since(self.now)) };
        let key = Key { target, span, bucket: entry.due.0.div_euclid(span), together };
        work.target = Some(key.target.clone());
        let bytes = entry.stored_size();
        let at = work.find(key);
        let (_, building) = &mut work.open[at];
        let full = building.entries.len() >= self.most
            || (!building.entries.is_empty() && building.bytes + bytes > BUNDLE_BYTES);
        if full {
            let whole = std::mem::take(building);
            let target = work.open[at].0.target.clone();
            work.push(&self.route, target, whole);
        }
        let (_, building) = &mut work.open[at];
        building.bytes += bytes;
        building.entries.push(entry);
        building.receipts.push(receipt);
    }

    /// A command on a name, or a dead letter.
    pub(super) fn command(&mut self, p: Partition, op: WriteOp, receipt: Receipt) {
        let work = self.partitions.entry(p).or_default();
        if matches!(op, WriteOp::Cancel { .. } | WriteOp::Reschedule { .. }) {
            work.close(&self.route);
        }
        work.ops.push(op);
        work.receipts.push(vec![receipt]);
    }

    /// All of it, per partition.
    pub(super) fn finish(mut self) -> BTreeMap<Partition, PartitionWork> {
        for work in self.partitions.values_mut() {
            work.close(&self.route);
        }
        self.partitions
    }
}

impl PartitionWork {
    /// The bundle in the making for a key.
    fn find(&mut self, key: Key) -> usize {
        if self.open.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = self.places.get(&key).copied().unwrap_or_else(|| {
                self.open.push((key.clone(), Building::default()));
                self.places.insert(key, self.open.len() - 1);
                self.open.len() - 1
            });
        }
        self.last
    }

    fn close(&mut self, route: &Arc<Route>) {
        self.names.clear();
        self.places.clear();
        let mut open = std::mem::take(&mut self.open);
        if !route.policy.ordered {
            // Neighbours in time share a time slice: a call that stores them has few due sets to touch.
            open.sort_by_key(|(key, _)| key.bucket * key.span);
        }
        for (key, building) in open {
            self.push(route, key.target, building);
        }
    }

    fn push(&mut self, route: &Arc<Route>, target: TargetRef, building: Building) {
        if building.entries.is_empty() {
            return;
        }
        self.ops.push(WriteOp::Store {
            route: route.name.clone(),
            on_duplicate: route.policy.on_duplicate,
            bundle: Bundle { target, entries: Arc::new(building.entries) },
        });
        self.receipts.push(building.receipts);
    }
}

/// The span of an unnamed message that has so long to wait.
fn span_ms(wait_ms: i64) -> i64 {
    let share = (wait_ms / 16).clamp(MIN_SPAN_MS, MAX_SPAN_MS) as u64;
    // The power of two at or below: aligned buckets of it never cross a slice's border.
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

    fn work(messages: Vec<Entry>) -> Vec<WriteOp> {
        let ledger = Ledger::new();
        let mut work = Work::new(testing::route(), UnixMs(0));
        for (at, entry) in messages.into_iter().enumerate() {
            work.store(Partition(3), TargetRef::Own, entry, ledger.enter(at as i64));
        }
        work.finish().remove(&Partition(3)).map(|w| w.ops).unwrap_or_default()
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
        route.policy.rate = Some(crate::domain::RateLimit { per_second: 2, burst: 100 });
        let ledger = Ledger::new();
        let mut work = Work::new(Arc::new(route), UnixMs(0));
        for at in 0..5 {
            work.store(Partition(3), TargetRef::Own, entry(3_600_000, None), ledger.enter(at));
        }
        let ops = work.finish().remove(&Partition(3)).map(|w| w.ops).unwrap_or_default();
        assert_eq!(sizes(&ops), vec![1, 2, 2]);
    }

    #[test]
    fn a_name_that_comes_again_closes_what_was_begun_before() {
        let ops = work(vec![entry(1000, Some("a")), entry(1001, Some("b")), entry(1002, Some("a"))]);
        assert_eq!(sizes(&ops), vec![1, 2]);
        let WriteOp::Store { bundle, .. } = &ops[0] else { panic!("a store comes first") };
        assert_eq!(bundle.entries.len(), 2, "the first two come first");
    }

    #[test]
    fn of_an_ordered_route_what_is_due_at_one_moment_stays_in_the_order_it_came() {
        let mut route = (*testing::route()).clone();
        route.policy.ordered = true;
        let ledger = Ledger::new();
        let mut work = Work::new(Arc::new(route), UnixMs(0));
        let messages = [("", None), ("", Some("a")), ("", None), ("other", None), ("", None)];
        for (at, (target, name)) in messages.into_iter().enumerate() {
            let mut entry = entry(3_600_000, name);
            entry.handouts = at as u32;
            work.store(
                Partition(3),
                TargetRef::from_text(Text::from(target)),
                entry,
                ledger.enter(at as i64),
            );
        }
        let ops = work.finish().remove(&Partition(3)).map(|w| w.ops).unwrap_or_default();
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
