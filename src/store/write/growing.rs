//! Which growing bundle a named message joins that is due much later.
//!
//! Messages of one route and target that are due within one span share such a bundle. Each partition's writer fills bundles
//! of its own, so it knows the place of each message without asking. A bundle that is gone, because all of it was cancelled or
//! spread, or that is not as long as its writer thinks, takes in nothing more: the script says so, and the next call begins
//! another.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::PartitionWriter;
use crate::domain::{Entry, Flags, RouteName, UnixMs};
use crate::store::claim::blobs::GROWING_BYTES;
use crate::store::model::bundle::{BundleId, GROWING_PLACES, GROWING_SPAN_MS, SPREAD_AHEAD_MS};
use crate::store::model::codec::{example_of, is_like};
use crate::store::{Bundle, WriteOp};

/// Shortest wait of a message that joins a growing bundle, ms: four times what its bundle is due before it.
const LEAST_WAIT_MS: i64 = 4 * SPREAD_AHEAD_MS;
/// Shortest span, ms.
const LEAST_SPAN_MS: i64 = 1 << 12;
/// Largest message that joins one, bytes: larger ones do not gain by company.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Messages of a span that are stored alone before one begins a growing bundle: for so few it is dearer than theirs.
const ALONE_FIRST: u32 = 2;
/// Most spans that one partition's writer knows: some 200 KiB. It forgets the latest ones.
const MAX_SPANS: usize = 1024;

/// Most examples that one partition's writer keeps: a KiB each.
const MAX_EXAMPLES: usize = 64;

/// A time span of one route and target. The earliest comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SpanKey {
    begin_ms: i64,
    width_ms: i64,
    route: RouteName,
    target: String,
}

/// What a writer knows of a span.
#[derive(Clone, Debug)]
enum SpanState {
    /// So many messages came, and were stored alone.
    Alone(u32),
    Open(OpenBundle),
    /// Its bundle is full. Later messages join one of the half of the span that they lie in: where many messages wait, few
    /// bundles hold those of one moment.
    Halved,
}

#[derive(Clone, Debug)]
struct OpenBundle {
    id: BundleId,
    /// What its messages are like.
    example: Option<Bytes>,
    filled: usize,
    bytes: usize,
}

impl OpenBundle {
    /// A bundle whose messages are like this one. An example takes its first place.
    fn new(id: BundleId, example: Option<Bytes>) -> Self {
        Self {
            id,
            filled: usize::from(example.is_some()),
            bytes: 0,
            example,
        }
    }
}

/// The growing bundles that a partition's writer fills.
#[derive(Debug, Default)]
pub(super) struct GrowingBundles {
    spans: BTreeMap<SpanKey, SpanState>,
    /// By route and target, a message that came.
    examples: BTreeMap<(RouteName, String), Bytes>,
}

/// A growing bundle, and what one call adds to it.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) id: BundleId,
    /// When it is due to be spread.
    pub(super) due: UnixMs,
    /// Set if the call makes the bundle.
    pub(super) is_new: bool,
    /// What its messages are like.
    pub(super) example: Option<Bytes>,
    /// Places that were taken before, that of the example among them.
    pub(super) base: usize,
    /// Messages that the call adds.
    pub(super) added: usize,
}

/// The places that the messages of a call take in growing bundles.
#[derive(Debug, Default)]
pub(super) struct GrowthPlan {
    pub(super) growths: Vec<Growth>,
    /// For each operation, the growth and the place of each of its messages; empty: the operation has a bundle of its own.
    pub(super) places: Vec<Vec<(usize, usize)>>,
    /// What the spans of the call come to once it is applied.
    spans: BTreeMap<SpanKey, SpanState>,
}

impl GrowthPlan {
    pub(super) fn new(writer: &PartitionWriter, ops: &[&WriteOp]) -> Self {
        let now = writer.clock.now();
        let known = &mut *writer.growing.lock();
        known.forget_past(now);
        let mut plan = Self::default();
        for op in ops {
            let places = match op {
                WriteOp::Store { route, bundle, .. } if writer.grows(route) => {
                    plan.place(writer, known, route, bundle, now)
                }
                _ => Vec::new(),
            };
            plan.places.push(places);
        }
        plan
    }

    /// True if the messages of this operation join growing bundles.
    pub(super) fn has_places(&self, op: usize) -> bool {
        self.places.get(op).is_some_and(|places| !places.is_empty())
    }

    /// The place of each growth among the bundles of the call, from 1: new ones come first, those that stand come behind
    /// all new bundles.
    pub(super) fn places_in_call(&self, new_bundles: usize) -> Vec<usize> {
        let (mut new, mut standing) = (0, new_bundles);
        let mut places = Vec::with_capacity(self.growths.len());
        for growth in &self.growths {
            let at = if growth.is_new {
                &mut new
            } else {
                &mut standing
            };
            *at += 1;
            places.push(*at);
        }
        places
    }

    /// The places of a bundle's messages, if all of them join growing bundles.
    fn place(
        &mut self,
        writer: &PartitionWriter,
        known: &mut GrowingBundles,
        route: &RouteName,
        bundle: &Bundle,
        now: UnixMs,
    ) -> Vec<(usize, usize)> {
        if !bundle.entries.iter().all(|entry| joins(entry, now)) {
            return Vec::new();
        }
        let target = bundle.target.as_str();
        let early = |entry: &Entry| match self.span(known, route, target, entry.due, now) {
            (key, SpanState::Alone(came)) if came < ALONE_FIRST => Some((key, came)),
            _ => None,
        };
        let early: Vec<(SpanKey, u32)> = bundle.entries.iter().filter_map(early).collect();
        if !early.is_empty() {
            for (key, came) in early {
                let came = match self.spans.get(&key) {
                    Some(&SpanState::Alone(came)) => came,
                    _ => came,
                };
                self.spans.insert(key, SpanState::Alone(came + 1));
            }
            if let Some(first) = bundle.entries.first() {
                known.example_for(route, &alone(bundle, first));
            }
            return Vec::new();
        }
        let mut places = Vec::with_capacity(bundle.entries.len());
        for entry in bundle.entries.iter() {
            let (key, state) = self.span(known, route, target, entry.due, now);
            let (is_new, open) = match state {
                SpanState::Open(open) => (false, open),
                SpanState::Alone(_) | SpanState::Halved => {
                    let id = BundleId::growing(route, &writer.ids.unique());
                    let example = known.example_for(route, &alone(bundle, entry));
                    (true, OpenBundle::new(id, example))
                }
            };
            places.push(self.add(key, is_new, open, entry.stored_size()));
        }
        places
    }

    /// The span that takes in what is due then, and what is known of it.
    fn span(
        &self,
        known: &GrowingBundles,
        route: &RouteName,
        target: &str,
        due: UnixMs,
        now: UnixMs,
    ) -> (SpanKey, SpanState) {
        let mut width_ms = span_width(due, now);
        let mut unseen = SpanState::Alone(0);
        loop {
            let key = SpanKey {
                begin_ms: due.0 & !(width_ms - 1),
                width_ms,
                route: route.clone(),
                target: target.to_owned(),
            };
            let state = self.spans.get(&key).or_else(|| known.spans.get(&key));
            let state = state.cloned().unwrap_or_else(|| unseen.clone());
            if !matches!(state, SpanState::Halved) || width_ms == LEAST_SPAN_MS {
                return (key, state);
            }
            width_ms /= 2;
            // Its whole was filled: it will have company.
            unseen = SpanState::Alone(ALONE_FIRST);
        }
    }

    /// Adds a message to this bundle.
    fn add(
        &mut self,
        key: SpanKey,
        is_new: bool,
        mut open: OpenBundle,
        bytes: usize,
    ) -> (usize, usize) {
        let known = self.growths.iter().position(|growth| growth.id == open.id);
        let growth = known.unwrap_or_else(|| {
            self.growths.push(Growth {
                id: open.id.clone(),
                due: UnixMs(key.begin_ms - SPREAD_AHEAD_MS),
                is_new,
                example: open.example.clone(),
                base: open.filled,
                added: 0,
            });
            self.growths.len() - 1
        });
        self.growths[growth].added += 1;
        let place = open.filled;
        open.filled += 1;
        open.bytes += bytes;
        let is_full = open.filled == GROWING_PLACES || open.bytes >= GROWING_BYTES;
        let state = if is_full {
            SpanState::Halved
        } else {
            SpanState::Open(open)
        };
        self.spans.insert(key, state);
        (growth, place)
    }
}

impl GrowingBundles {
    /// Notes what a call has done.
    pub(super) fn applied(&mut self, plan: GrowthPlan) {
        self.spans.extend(plan.spans);
        while self.spans.len() > MAX_SPANS {
            self.spans.pop_last();
        }
    }

    /// Begins other bundles from here on instead of those that a call wanted to add to. Nobody knows what became of it.
    pub(super) fn refused(&mut self, plan: &GrowthPlan) {
        for key in plan.spans.keys() {
            if let Some(state @ SpanState::Open(_)) = self.spans.get_mut(key) {
                *state = SpanState::Alone(ALONE_FIRST);
            }
        }
    }

    /// An example for a bundle that begins with this message: one that it is like. Where there is none it becomes that of the
    /// next ones.
    fn example_for(&mut self, route: &RouteName, first: &Bundle) -> Option<Bytes> {
        let target = (route.clone(), first.target.as_str().to_owned());
        if let Some(example) = self.examples.get(&target)
            && is_like(first, example)
        {
            return Some(example.clone());
        }
        if self.examples.len() >= MAX_EXAMPLES {
            self.examples.pop_first();
        }
        if let Some(example) = example_of(first) {
            self.examples.insert(target, example);
        }
        None
    }

    fn forget_past(&mut self, now: UnixMs) {
        while let Some(first) = self.spans.first_entry() {
            if first.key().begin_ms - SPREAD_AHEAD_MS > now.0 {
                return;
            }
            first.remove();
        }
    }
}

/// One message of a bundle, as a bundle of its own.
pub(super) fn alone(bundle: &Bundle, entry: &Entry) -> Bundle {
    Bundle {
        target: bundle.target.clone(),
        entries: Arc::new(vec![entry.clone()]),
    }
}

/// True for a message that joins a growing bundle.
fn joins(entry: &Entry, now: UnixMs) -> bool {
    entry.flags.has(Flags::NAMED)
        && entry.due.since(now) >= LEAST_WAIT_MS
        && entry.stored_size() <= MAX_MESSAGE_BYTES
}

/// The width of the span that a due time lies in: some sixteenth of the wait, a power of two.
fn span_width(due: UnixMs, now: UnixMs) -> i64 {
    let share = (due.since(now) / 16).clamp(LEAST_SPAN_MS, GROWING_SPAN_MS);
    1 << share.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_holds_its_due_time_and_begins_long_after_its_bundle_is_due() {
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..100_000 {
            let now = UnixMs(rng.i64(0..1 << 42));
            let bits = rng.u32(1..40);
            let wait = LEAST_WAIT_MS + rng.i64(0..1 << bits);
            let due = now.plus(wait);
            let width = span_width(due, now);
            let begin = due.0 & !(width - 1);
            assert!(
                (begin..begin + width).contains(&due.0),
                "{due} {begin} {width}"
            );
            assert!((LEAST_SPAN_MS..=GROWING_SPAN_MS).contains(&width));
            assert!(
                begin - SPREAD_AHEAD_MS - now.0 >= LEAST_WAIT_MS / 2,
                "{now} {due}"
            );
        }
    }
}
