//! Reading what was claimed: as much of it as there is room for, some mebibytes at a time.
//!
//! What finds no room goes back to the store unread, without an expiry or an attempt. Claims are extended while their
//! contents are on their way, so that a slow link costs time and no claim.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tracing::warn;

use super::Shard;
use super::budget::Room;
use crate::backoff::Backoff;
use crate::domain::Partition;
use crate::store::{
    Claim, ClaimAnswer, ClaimProgress, MeasuredClaim, OrderPosition, SettleAnswer, StoreError,
};

/// Bytes of bundles that are read, entered and published before the next are read.
const READ: usize = 4 << 20;

/// What of a claim is read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    /// Each bundle that fits.
    WhatFits,
    /// Those before the first that does not: their messages leave in order.
    FromTheFirst,
    /// The same, and the first whether it fits or not.
    TheFirst,
}

/// The bundles of one claim, on their way from the store.
pub(super) struct Reading<'a> {
    shard: &'a Shard,
    partition: Partition,
    rest: VecDeque<(MeasuredClaim, Room)>,
    left: Option<OrderPosition>,
    /// Until when the claims surely hold, monotonic microseconds.
    lease_until_us: AtomicI64,
}

impl<'a> Reading<'a> {
    /// Takes room for what is wanted and gives the rest back.
    pub(super) async fn begin(
        shard: &'a Shard,
        partition: Partition,
        measured: Vec<MeasuredClaim>,
        wanted: Wanted,
        lease_until_us: i64,
    ) -> Self {
        learn(shard, &measured);
        let mut reading = Self {
            shard,
            partition,
            rest: VecDeque::with_capacity(measured.len()),
            left: None,
            lease_until_us: lease_until_us.into(),
        };
        let mut back = Vec::new();
        for (at, one) in measured.into_iter().enumerate() {
            let Some(served) = shard.routes.get(one.claimed.claim.id.route()) else { continue };
            let behind = wanted != Wanted::WhatFits && reading.left.is_some();
            // An opening that counts is not undone by giving back.
            let must = one.claimed.opened > 0 || (at == 0 && wanted == Wanted::TheFirst);
            let room = if behind { None } else { served.share.take(one.bytes, must) };
            if let Some(room) = room {
                reading.rest.push_back((one, room));
                continue;
            }
            served.share.rest(one.bytes, shard.mono_us());
            let ClaimAnswer { claim, due, .. } = one.claimed;
            reading.left.get_or_insert(OrderPosition { due, sequence: claim.id.sequence() });
            back.push(claim);
        }
        reading.give_back(back).await;
        reading
    }

    /// The first bundle that found no room.
    pub(super) fn left(&self) -> Option<OrderPosition> {
        self.left
    }

    /// Until when the claims surely hold, monotonic microseconds.
    pub(super) fn lease_until_us(&self) -> i64 {
        self.lease_until_us.load(Ordering::Relaxed)
    }

    /// The next bundles; `None`: there are no more.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<(ClaimAnswer, Room)>, StoreError>> {
        if self.shard.shutdown.is_draining() {
            self.leave_rest().await;
        }
        let mut bytes = 0;
        let some = self.rest.iter().take_while(|(one, _)| {
            let more = bytes < READ;
            bytes += one.bytes;
            more
        });
        let some = some.count();
        if some == 0 {
            return None;
        }
        let (measured, rooms): (Vec<MeasuredClaim>, Vec<Room>) = self.rest.drain(..some).unzip();
        let claims = measured.iter().chain(self.rest.iter().map(|(one, _)| one));
        let claims: Vec<ClaimProgress> = claims.map(|one| untold(one.claimed.claim.clone())).collect();
        let opening = self.shard.store.open_claimed(self.partition, &measured, &self.lease_until_us);
        let opened = tokio::select! {
            opened = opening => opened,
            () = self.extend(&claims) => return None,
        };
        Some(opened.map(|opened| opened.into_iter().zip(rooms).collect()))
    }

    /// Gives back what was not read yet.
    async fn leave_rest(&mut self) {
        let rest: Vec<ClaimAnswer> = self.rest.drain(..).map(|(one, _)| one.claimed).collect();
        if let Some(first) = rest.first() {
            self.left.get_or_insert(OrderPosition { due: first.due, sequence: first.claim.id.sequence() });
        }
        self.give_back(rest.into_iter().map(|one| one.claim).collect()).await;
    }

    /// Extends the claims each third of a lease, for ever. One that is lost is found so by whoever settles it.
    async fn extend(&self, claims: &[ClaimProgress]) {
        let (store, lease_us) = (&self.shard.store, self.shard.lease_us());
        let micros = |us: i64| Duration::from_micros(us.max(0) as u64);
        tokio::time::sleep(micros(self.lease_until_us() - lease_us * 2 / 3 - self.shard.mono_us())).await;
        loop {
            let before_us = self.shard.mono_us();
            let held = store.extend(self.partition, self.shard.lease_ms(), claims).await;
            if held.is_ok_and(|held| held.iter().all(|held| matches!(held, SettleAnswer::Applied(_)))) {
                self.lease_until_us.fetch_max(before_us + self.shard.relied_on_us(), Ordering::Relaxed);
            }
            tokio::time::sleep(micros(lease_us / 3)).await;
        }
    }

    /// Tries on while they are held: given up here, they would wait for their deadline and count as expired.
    async fn give_back(&self, claims: Vec<Claim>) {
        let back: Vec<ClaimProgress> = claims.into_iter().map(untold).collect();
        let mut failures = 0;
        while !back.is_empty() {
            let Err(why) = self.shard.store.give_back(self.partition, &back).await else { return };
            if self.shard.mono_us() >= self.lease_until_us() || !matches!(why, StoreError::Unavailable(_)) {
                warn!(partition = self.partition.0, error = %why, "cannot give claims back; they will expire");
                return;
            }
            failures += 1;
            tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
        }
    }
}

/// A claim of which there is nothing to tell.
fn untold(claim: Claim) -> ClaimProgress {
    ClaimProgress { claim, confirmed: None, delivered: Vec::new() }
}

/// Tells each route how large its messages are.
fn learn(shard: &Shard, measured: &[MeasuredClaim]) {
    let mut of: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for one in measured {
        let id = &one.claimed.claim.id;
        let (messages, bytes) = of.entry(id.route()).or_default();
        *messages += id.count();
        *bytes += one.bytes;
    }
    for (route, (messages, bytes)) in of {
        if let Some(served) = shard.routes.get(route) {
            served.share.learn(messages, bytes);
        }
    }
}
