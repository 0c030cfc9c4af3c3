//! The claimer's polls: which partitions each one reads, and what it need not read again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::warn;

use super::Shard;
use super::claim_scope::{ClaimScope, POLL_INTERVAL, is_open};
use crate::domain::{Partition, UnixMs};
use crate::health::Overdue;
use crate::store::{Head, HeadsQuery, HeadsSeen, RoutePauses, StoreError, UnservedHeads};

/// Time between two polls of other replicas' partitions, for what is overdue there, microseconds.
const OTHERS_POLL_US: i64 = 1_000_000;
/// Time between two polls of everything that waits, regardless of due time and owner, microseconds. Each forgets the
/// unserved routes first.
const FULL_POLL_US: i64 = 10_000_000;

/// The results of earlier polls that a claimer remembers.
pub(super) struct PollHistory {
    pub(super) pauses: RoutePauses,
    unserved: UnservedHeads,
    /// The earliest due time seen of each paused route.
    paused: BTreeMap<String, UnixMs>,
    /// Monotonic microseconds of the latest poll of other replicas' partitions.
    around_us: i64,
    /// Monotonic microseconds of the latest poll of everything that waits.
    all_us: i64,
    /// Number of routes in the store that are not configured here.
    unknown: usize,
}

impl PollHistory {
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

    /// Has the next poll read everything, because another route may be served now.
    pub(super) fn forget(&mut self) {
        self.unserved.forget();
        self.paused.clear();
    }

    /// The heads of these partitions that this replica serves. If they are all partitions of the shard, reads the
    /// owned ones, and now and then the others.
    /// `busy`: the partitions with a claim of unordered routes on its way.
    pub(super) async fn heads(
        &mut self,
        shard: &Arc<Shard>,
        busy: &BTreeSet<Partition>,
        partitions: &[Partition],
        scope: &ClaimScope,
    ) -> Result<HeadsSeen, StoreError> {
        let now_us = shard.mono_us();
        let is_whole = partitions.len() == shard.partitions.len();
        let is_around = is_whole && now_us >= self.around_us.saturating_add(OTHERS_POLL_US);
        let is_all = is_around && now_us >= self.all_us.saturating_add(FULL_POLL_US);
        if self.pauses.has_changed() || is_all {
            self.forget();
        }
        let held = shard.table.lock().partitions_held();
        for &p in &held {
            // A poll that lets a key leave has to see everything.
            self.unserved.forget_partition(p);
        }
        let is_polled =
            |p: &Partition| is_around || !is_whole || scope.polls(*p) || held.contains(p);
        let polled: Vec<Partition> = partitions.iter().copied().filter(is_polled).collect();
        let later = if is_all {
            UnixMs(i64::MAX)
        } else {
            scope.until.plus(POLL_INTERVAL.as_millis() as i64)
        };
        let looking = HeadsQuery {
            until: scope.until,
            later,
            past: scope.overdue,
            open: &|head| is_open(shard, busy, head, scope),
            served: &|head| is_served(shard, head),
        };
        let mut looked = shard
            .store
            .served_heads(&polled, &looking, &mut self.unserved)
            .await?;
        if is_all {
            self.all_us = now_us;
            self.count_unknown(shard, &looked.heads);
        }
        let waiting = self.note_waiting(shard, &looked.heads);
        if is_around {
            self.around_us = now_us;
            shard.store.report_waiting(shard.number, waiting);
        }
        looked.heads.retain(|head| is_served(shard, head));
        Ok(looked)
    }

    /// The oldest message of each route with something overdue.
    fn note_waiting(&mut self, shard: &Arc<Shard>, heads: &[Head]) -> BTreeMap<String, Overdue> {
        let now = shard.store.clock().now();
        let mut served: BTreeMap<String, UnixMs> = BTreeMap::new();
        for head in heads.iter().filter(|head| head.due <= now) {
            if !shard.routes.contains_key(head.route()) {
                continue;
            }
            let of = if is_served(shard, head) {
                &mut served
            } else {
                &mut self.paused
            };
            match of.get_mut(head.route()) {
                Some(oldest) => *oldest = head.due.min(*oldest),
                None => drop(of.insert(head.route().to_owned(), head.due)),
            }
        }
        for (route, due) in &self.paused {
            let oldest = served.entry(route.clone()).or_insert(*due);
            *oldest = (*due).min(*oldest);
        }
        let seen = |(route, asked)| (route, Overdue { asked, seen: now });
        served.into_iter().map(seen).collect()
    }

    fn count_unknown(&mut self, shard: &Arc<Shard>, heads: &[Head]) {
        let routes = heads.iter().map(Head::route);
        let unknown: BTreeSet<String> = routes
            .filter(|route| !shard.routes.contains_key(*route))
            .map(str::to_owned)
            .collect();
        if unknown.len() > self.unknown {
            let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
            warn!(
                routes = names.join(", "),
                "the store holds messages of routes that are not configured here"
            );
        }
        self.unknown = unknown.len();
        let store = shard.health.store();
        store.found_unconfigured(shard.number, unknown);
    }
}

/// Reports whether a poll has to show a head: its route is configured and not paused. Heads of ordered routes are
/// always shown, because a key queue closes by what it sees.
fn is_served(shard: &Arc<Shard>, head: &Head) -> bool {
    let Some(served) = shard.routes.get(head.route()) else {
        return false;
    };
    served.route.policy.ordered || shard.store.pauses().may_publish(head.route())
}
