//! The claimer's looks: which partitions each one reads, and what it need not read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;

use super::Shard;
use super::claim_scope::{LOOK, Sight, is_open};
use super::claimer::Claimer;
use crate::domain::{Partition, UnixMs};
use crate::store::{Head, HeadsQuery, HeadsSeen, RoutePauses, StoreError, UnservedHeads};

/// Time between two looks at the partitions of others too, for what is overdue there (microseconds).
const LOOK_AROUND_US: i64 = 1_000_000;
/// Time between two looks at everything that waits, whenever it is due and whoever serves it (microseconds). What is
/// known of unserved routes is forgotten before each.
const LOOK_AT_ALL_US: i64 = 10_000_000;

/// What a claimer knows from its earlier looks.
pub(super) struct Looks {
    pub(super) pauses: RoutePauses,
    unserved: UnservedHeads,
    /// By route, the earliest due time of what was seen of paused routes.
    paused: BTreeMap<String, UnixMs>,
    /// When the partitions of others were last looked at too, monotonic microseconds.
    around_us: i64,
    /// The same of everything that waits.
    all_us: i64,
    /// Routes with something in the store that are not configured here.
    unknown: usize,
}

impl Looks {
    pub(super) fn new(pauses: RoutePauses) -> Self {
        Self {
            pauses,
            unserved: UnservedHeads::default(),
            paused: BTreeMap::new(),
            around_us: i64::MIN,
            all_us: i64::MIN,
            unknown: 0,
        }
    }

    /// Has the next look read everything: another route may be served now.
    pub(super) fn forget(&mut self) {
        self.unserved.forget();
        self.paused.clear();
    }
}

impl Claimer {
    /// The heads of these partitions; if these are all, of what falls to this replica, and now and then of all. What
    /// nobody here serves is not among them.
    pub(super) async fn heads(
        &mut self,
        partitions: &[Partition],
        sight: &Sight,
    ) -> Result<HeadsSeen, StoreError> {
        let shard = self.shard.clone();
        let (busy, now_us) = (self.busy.clone(), shard.mono_us());
        let is_whole = partitions.len() == shard.partitions.len();
        let is_around = is_whole && now_us >= self.looks.around_us.saturating_add(LOOK_AROUND_US);
        let is_all = is_around && now_us >= self.looks.all_us.saturating_add(LOOK_AT_ALL_US);
        if self.looks.pauses.has_changed() || is_all {
            self.looks.forget();
        }
        let held = shard.table.lock().partitions_held();
        for &p in &held {
            // What lets a key go must have seen everything.
            self.looks.unserved.forget_partition(p);
        }
        let looks_at = |p: &Partition| is_around || !is_whole || sight.looks_at(*p) || held.contains(p);
        let looked_at: Vec<Partition> = partitions.iter().copied().filter(looks_at).collect();
        let later = if is_all { UnixMs(i64::MAX) } else { sight.until.plus(LOOK.as_millis() as i64) };
        let looking = HeadsQuery {
            until: sight.until,
            later,
            past: sight.overdue,
            open: &|head| is_open(&shard, &busy, head, sight),
            served: &|head| is_served(&shard, head),
        };
        let mut looked = shard.store.served_heads(&looked_at, &looking, &mut self.looks.unserved).await?;
        if is_all {
            self.looks.all_us = now_us;
            self.count_unknown(&looked.heads);
        }
        let waiting = self.note_waiting(&looked.heads);
        if is_around {
            self.looks.around_us = now_us;
            shard.store.report_waiting(shard.number, waiting);
        }
        looked.heads.retain(|head| is_served(&shard, head));
        Ok(looked)
    }

    /// By route, the earliest due time of what waits and is overdue.
    fn note_waiting(&mut self, heads: &[Head]) -> BTreeMap<String, UnixMs> {
        let now = self.shard.store.clock().now();
        let mut served: BTreeMap<String, UnixMs> = BTreeMap::new();
        for head in heads.iter().filter(|head| head.due <= now) {
            if !self.shard.routes.contains_key(head.route()) {
                continue;
            }
            let of = if is_served(&self.shard, head) { &mut served } else { &mut self.looks.paused };
            match of.get_mut(head.route()) {
                Some(oldest) => *oldest = head.due.min(*oldest),
                None => drop(of.insert(head.route().to_owned(), head.due)),
            }
        }
        for (route, due) in &self.looks.paused {
            let oldest = served.entry(route.clone()).or_insert(*due);
            *oldest = (*due).min(*oldest);
        }
        served
    }

    fn count_unknown(&mut self, heads: &[Head]) {
        let mut unknown: Vec<&str> =
            heads.iter().map(Head::route).filter(|r| !self.shard.routes.contains_key(*r)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.len() > self.looks.unknown {
            warn!(
                routes = unknown.join(", "),
                "the store holds messages of routes that are not configured here"
            );
        }
        self.looks.unknown = unknown.len();
        self.shard.metrics.unknown_routes.set(unknown.len() as i64);
    }
}

/// Whether a look has to show what is due of a head's route: it is configured, and not paused. Of an ordered route it
/// has to in any case: a line closes by what it sees.
fn is_served(shard: &Arc<Shard>, head: &Head) -> bool {
    let Some(served) = shard.routes.get(head.route()) else { return false };
    served.route.policy.ordered || shard.store.pauses().may_publish(head.route())
}
