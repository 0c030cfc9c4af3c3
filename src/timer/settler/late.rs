//! Reports of what is held past its time: by route how late the oldest message is, by target since when a publish was
//! not answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Settler;
use crate::domain::route::describe;
use crate::domain::{Target, UnixMs};
use crate::telemetry::OverduePlace;

/// Ticks between two reports.
const EVERY: u32 = 4;

impl Settler {
    /// Reports, once in so many ticks, what this shard holds claimed and has not delivered.
    pub(super) fn report_late(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(EVERY) {
            return;
        }
        let shard = &self.shard;
        let (now, number) = (shard.store.clock().now(), shard.number);
        let mut overdue: BTreeMap<String, UnixMs> = BTreeMap::new();
        // By address: thousands of bundles share a few targets.
        let mut unanswered: BTreeMap<usize, (Arc<Target>, i64)> = BTreeMap::new();
        let slots = shard.table.lock();
        for holding in slots.holdings.values().filter(|holding| !holding.lost) {
            let flight = &holding.flight;
            if let Some(asked) = holding.oldest_overdue(now) {
                let route = flight.served.route.name.as_str();
                match overdue.get_mut(route) {
                    Some(oldest) => *oldest = asked.min(*oldest),
                    None => drop(overdue.insert(route.to_owned(), asked)),
                }
            }
            if let Some(handed_us) = holding.unanswered_us() {
                let target = &flight.batch.target;
                let fresh = || (target.clone(), handed_us);
                let (_, oldest) = unanswered.entry(Arc::as_ptr(target).addr()).or_insert_with(fresh);
                *oldest = handed_us.min(*oldest);
            }
        }
        drop(slots);
        for (route, served) in shard.routes.iter() {
            served.metrics.overdue.report(OverduePlace::Claimed(number), overdue.get(route).copied());
        }
        let mut by_target = BTreeMap::new();
        for (target, handed_us) in unanswered.into_values() {
            let oldest = by_target.entry(describe(&target)).or_insert(handed_us);
            *oldest = handed_us.min(*oldest);
        }
        shard.metrics.target_failures.unanswered(number, &by_target);
    }
}
