//! The claimer's part for ordered routes: claims as their only holder, and the looks that let messages go.
//!
//! A message of such a route may go once a look that began when it was due has left nothing before it in the store.
//! So there is a look at each moment at which something of them falls due, at the partitions it is in; looks follow
//! each other at a millisecond's distance at least, and what fell due meanwhile shares one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rules::{Line, Look};
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::{ClaimRequest, Head, HeadsSeen, OrderPosition, OrderedAnswer, OrderedRequest, StoreError};
use crate::timer::accept::{self, Taken};
use crate::timer::claim_scope::Sight;
use crate::timer::claim_table::Slots;
use crate::timer::claimed::LineId;
use crate::timer::claimer::{BUNDLES, Claimed, Claimer};
use crate::timer::read_claimed::{Reading, Wanted};
use crate::timer::{Served, Shard};

/// Another holder may give up before its time is over: it is asked again after this, microseconds.
const ASK_US: i64 = 500_000;

/// What came of the claims of ordered routes.
#[derive(Default)]
pub(in crate::timer) struct Outcome {
    /// There may be more to take.
    pub(in crate::timer) more: bool,
    /// A route's window left something out.
    pub(in crate::timer) starved: bool,
}

/// A line, and its shelves that hold something due.
struct Due<'a> {
    served: &'a Arc<Served>,
    id: LineId,
    shelves: Vec<&'a Head>,
    /// More of it is due from then on, in other shelves.
    beyond: Option<UnixMs>,
}

impl Due<'_> {
    /// When the first of it is due.
    fn first(&self) -> UnixMs {
        self.shelves.iter().map(|head| head.due).min().unwrap_or_default()
    }

    /// Nothing of it is claimed for want of room: what would go before the first of it still may.
    fn left_alone<'s>(&self, slots: &'s mut Slots, look: Look) -> Option<&'s mut Line> {
        let line = slots.lines.get_mut(&self.id)?;
        line.looked(look, Some(OrderPosition { due: self.first(), sequence: 0 }));
        Some(line)
    }
}

impl Claimer {
    /// Begins the claims of what is due of ordered routes, and lets the lines of the partitions that answered know how
    /// far they have been looked at.
    pub(in crate::timer) fn claim_in_order(
        &mut self,
        looked: &HeadsSeen,
        look: Look,
        sight: &Sight,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let shard = self.shard.clone();
        for served in shard.routes.values().filter(|served| served.route.policy.ordered) {
            let due = self.due(served, looked, look, sight);
            for (due, share) in self.within_room(served, due, look, &mut outcome) {
                let claim = Claim::new(&shard, due, share, (look, sight.until));
                self.claims.push(Box::pin(async move { (Claimed::Ordered, claim.make().await) }));
            }
        }
        if !shard.table.lock().lines.is_empty() {
            shard.lines_moved.notify_one();
        }
        outcome
    }

    /// Where a route has something due; where it has not, its line has been looked at.
    fn due<'a>(
        &self,
        served: &'a Arc<Served>,
        looked: &'a HeadsSeen,
        look: Look,
        sight: &Sight,
    ) -> Vec<Due<'a>> {
        let name = &served.route.name;
        let mut shelves: BTreeMap<Partition, Vec<&Head>> = BTreeMap::new();
        for head in looked.heads.iter().filter(|h| h.due <= sight.until && h.route() == name.as_str()) {
            shelves.entry(head.partition).or_default().push(head);
        }
        let paused = !self.shard.store.pauses().may_publish(name.as_str());
        let now_us = self.shard.mono_us();
        let mut slots = self.shard.table.lock();
        let mut due = Vec::new();
        for &p in &looked.partitions {
            let id = (name.clone(), p);
            let shelves = shelves.remove(&p).unwrap_or_default();
            let line = slots.lines.get_mut(&id);
            if paused {
                // What it holds goes back, to wait where it can be cancelled.
                if let Some(line) = line {
                    line.closing = true;
                }
            } else if shelves.is_empty() {
                if let Some(line) = line {
                    line.looked(look, None);
                    // Begun for what was overdue, or soon due, of another's partition: there is no more of it.
                    line.closing |= line.holdings == 0 && !line.claiming && !sight.serves(p, name.as_str());
                }
            } else if line.as_ref().map_or_else(
                // Another's to hold, unless it does not.
                || shelves.iter().any(|head| sight.takes(head)),
                |line| !line.closing && !line.claiming && now_us >= line.waits_until_us,
            ) {
                let beyond = looked.beyond.get(&(p, name.to_string())).copied();
                due.push(Due { served, id, shelves, beyond });
            }
        }
        due
    }

    /// Those that the route's window has room for, each with how many messages it may take of a shelf.
    fn within_room<'a>(
        &self,
        served: &Served,
        mut due: Vec<Due<'a>>,
        look: Look,
        outcome: &mut Outcome,
    ) -> Vec<(Due<'a>, u32)> {
        if due.is_empty() {
            return Vec::new();
        }
        let Some((room, shelves)) = served.room(self.shard.mono_us()) else {
            outcome.starved = true;
            let mut slots = self.shard.table.lock();
            // A window full of what waits for something that it left out would never empty: one bundle more.
            due.retain(|due| due.left_alone(&mut slots, look).is_some_and(|line| line.holds_stuck()));
            outcome.more |= !due.is_empty();
            return due.into_iter().map(|due| (due, 1)).collect();
        };
        if due.len() > shelves {
            due.sort_by_key(Due::first);
            let mut slots = self.shard.table.lock();
            for due in due.split_off(shelves) {
                due.left_alone(&mut slots, look);
            }
            outcome.more = true;
        }
        let share = (room / due.len() as i64).max(1) as u32;
        due.into_iter().map(|due| (due, share)).collect()
    }
}

/// One line's claim.
struct Claim {
    shard: Arc<Shard>,
    route: RouteName,
    id: LineId,
    look: Look,
    until: UnixMs,
    /// See [`Due::beyond`].
    beyond: Option<OrderPosition>,
    request: ClaimRequest,
}

impl Claim {
    fn new(shard: &Arc<Shard>, due: Due<'_>, share: u32, (look, until): (Look, UnixMs)) -> Self {
        let Due { served, id, mut shelves, beyond } = due;
        let beyond = beyond.map(|due| OrderPosition { due, sequence: 0 });
        shelves.sort_by_key(|head| head.due);
        let request = ClaimRequest {
            partition: id.1,
            due_sets: shelves.into_iter().map(|head| (head.due_set.clone(), share)).collect(),
            lookahead_ms: shard.config.lookahead.as_millis() as i64 - shard.behind_ms(),
            lease_ms: shard.lease_ms(),
            max_bundles: BUNDLES,
        };
        Self { shard: shard.clone(), route: served.route.name.clone(), id, look, until, beyond, request }
    }

    /// Makes it. Returns whether there may be more to take.
    async fn make(self) -> Result<bool, StoreError> {
        let Some((request, wanted, mut claiming)) = self.begin() else { return Ok(false) };
        let shard = &self.shard;
        let lease_until_us = shard.mono_us() + shard.relied_on_us();
        let taken = match shard.store.claim_in_order_measured(&request).await? {
            OrderedAnswer::Wait(ms) => {
                let wait_us = (ms as i64).saturating_mul(1000).min(ASK_US);
                claiming.end(|line| line.waits_until_us = shard.mono_us() + wait_us);
                return Ok(false);
            }
            OrderedAnswer::Lost => {
                claiming.end(|line| line.closing = true);
                return Ok(false);
            }
            OrderedAnswer::Claimed(taken) => taken,
        };
        let mut reading = Reading::begin(shard, self.id.1, taken.claimed, wanted, lease_until_us).await;
        let mut claimed = Vec::new();
        while let Some(read) = reading.next().await {
            claimed.extend(read?);
        }
        // The line knows what is held back no sooner than it has what was claimed: nothing waits in between.
        if let Some(holds) = taken.held_keys {
            claiming.line(|line| line.took_over(holds));
        }
        let (mut items, mut whole, mut known) = (Vec::new(), true, true);
        for (one, room) in claimed {
            match accept::take(shard, one, room, reading.lease_until_us()).await {
                Taken::Held(item) => items.extend(item),
                Taken::Gone => {}
                Taken::Back => whole = false,
                Taken::Left => known = false,
            }
        }
        shard.wheel.add(items);
        let refused = reading.left().is_some();
        // What is left of these shelves comes before all of the others.
        let left = reading.left().or(taken.left).or(self.beyond);
        claiming.end(|line| {
            if !known {
                line.give_up();
            } else if whole {
                line.looked(self.look, left);
            } else {
                line.forget_look();
            }
        });
        Ok(!refused && (left.is_some() || !whole))
    }

    /// The request; `None` if its line closes, or another claim for it is on its way.
    fn begin(&self) -> Option<(OrderedRequest, Wanted, Claiming<'_>)> {
        let mut slots = self.shard.table.lock();
        let new = || Line::new(self.shard.store.unique());
        let line = slots.lines.entry(self.id.clone()).or_insert_with(new);
        if line.closing || line.claiming {
            return None;
        }
        line.claiming = true;
        // What it holds waits for what is in the store: the first of that must be taken.
        let wanted = if line.holds_stuck() { Wanted::TheFirst } else { Wanted::FromTheFirst };
        let request = OrderedRequest {
            claim: self.request.clone(),
            until: self.until,
            route: self.route.clone(),
            owner: line.holder.clone(),
            may_take: line.holdings == 0,
            freed: line.take_freed(),
        };
        Some((request, wanted, Claiming { shard: &self.shard, id: self.id.clone(), ended: false }))
    }
}

/// A claim on its way. Cut off or failed, it may have been made: its line gives up.
struct Claiming<'a> {
    shard: &'a Shard,
    id: LineId,
    ended: bool,
}

impl Claiming<'_> {
    fn line(&self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.shard.table.lock().lines.get_mut(&self.id) {
            change(line);
        }
    }

    fn end(&mut self, change: impl FnOnce(&mut Line)) {
        self.ended = true;
        self.line(|line| {
            line.claiming = false;
            change(line);
        });
        self.shard.lines_moved.notify_one();
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.line(|line| {
                line.claiming = false;
                line.give_up();
            });
            self.shard.lines_moved.notify_one();
        }
    }
}
