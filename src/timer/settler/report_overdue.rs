//! Reports what this shard has claimed: the earliest message of each route, due or not, the oldest unanswered publish of
//! each target, and the messages that keep a route's credit.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Settler;
use crate::domain::route::describe;
use crate::domain::{Target, UnixMs};
use crate::health::{FullCredit, Overdue, OverduePlace};

/// Ticks between two reports.
const REPORT_TICKS: u32 = 4;

impl Settler {
    /// Reports, once in [`REPORT_TICKS`] ticks, the claimed messages that are not delivered.
    pub(super) fn report_late(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(REPORT_TICKS) {
            return;
        }
        let shard = &self.shard;
        let now = shard.store.clock().now();
        let number = shard.number;
        // Due or not: once this replica is dead, the others know what falls due in its hands.
        let mut earliest: BTreeMap<String, UnixMs> = BTreeMap::new();
        // Keyed by address, because thousands of bundles share a few targets.
        let mut unanswered: BTreeMap<usize, (Arc<Target>, i64)> = BTreeMap::new();
        // Keyed by the addresses of route and target.
        let mut waiting: BTreeMap<(usize, usize), (Arc<Target>, i64)> = BTreeMap::new();
        let slots = shard.table.lock();
        for claimed in slots.bundles.values().filter(|claimed| !claimed.lost) {
            let in_flight = &claimed.in_flight;
            if let Some(asked) = claimed.earliest_asked() {
                let route = in_flight.served.route.name.as_str();
                match earliest.get_mut(route) {
                    Some(earliest) => *earliest = asked.min(*earliest),
                    None => drop(earliest.insert(route.to_owned(), asked)),
                }
            }
            if let Some((handed_us, messages)) = claimed.unanswered() {
                let target = &in_flight.batch.target;
                let route = Arc::as_ptr(&in_flight.served).addr();
                let (_, all) = waiting
                    .entry((route, Arc::as_ptr(target).addr()))
                    .or_insert_with(|| (target.clone(), 0));
                *all += messages;
                let (_, oldest) = unanswered
                    .entry(Arc::as_ptr(target).addr())
                    .or_insert_with(|| (target.clone(), handed_us));
                *oldest = handed_us.min(*oldest);
            }
        }
        drop(slots);
        for (route, served) in shard.routes.iter() {
            let earliest = earliest.get(route);
            let earliest = earliest.map(|&asked| Overdue { asked, seen: now });
            let place = OverduePlace::Claimed(number);
            served.health.overdue.report(place, earliest);
            let address = Arc::as_ptr(served).addr();
            let most = waiting
                .range((address, usize::MIN)..=(address, usize::MAX))
                .map(|(_, of_target)| of_target)
                .max_by_key(|(_, messages)| *messages);
            let full = served.credit.used_up().zip(most);
            let full = full.map(|(taken, (target, messages))| FullCredit {
                target: describe(target),
                messages: *messages,
                taken,
            });
            served.health.full_credits.report(number, full);
        }
        let unanswered = unanswered.values();
        self.place
            .unanswered(unanswered.map(|(target, handed_us)| (&**target, *handed_us)));
    }
}
