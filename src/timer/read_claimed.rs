//! Reads claimed bundles, as many as the byte budget allows, some mebibytes at a time.
//!
//! A bundle for which there are no bytes goes back to the store unread; neither an expiry nor an attempt is counted. Claims
//! are extended while bundles are on their way, so that a slow link costs time and no claim.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tracing::warn;

use super::Shard;
use super::credit::HeldCredit;
use crate::backoff::Backoff;
use crate::domain::{MonoUs, Partition};
use crate::store::{
    Claim, ClaimAnswer, ClaimProgress, MeasuredClaim, OrderPosition, SettleAnswer, StoreError,
};

/// Bytes of bundles that are read, entered and published before the next are read.
const READ_BYTES: usize = 4 << 20;

/// Which bundles of a claim are read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ReadPolicy {
    /// Every bundle that fits.
    Fitting,
    /// The bundles before the first that does not fit: their messages leave in order.
    FittingInOrder,
    /// The same, and the first bundle in any case.
    FirstForced,
}

/// The bundles of one claim, on their way from the store.
pub(super) struct ClaimReader<'a> {
    shard: &'a Shard,
    partition: Partition,
    rest: VecDeque<(MeasuredClaim, HeldCredit)>,
    left: Option<OrderPosition>,
    /// Claims could not be returned: they stay in the store until they expire, and nobody knows them.
    has_orphans: bool,
    /// The moment until which the claims are certain to last, monotonic microseconds.
    lease_end_us: AtomicI64,
}

impl<'a> ClaimReader<'a> {
    /// Measures the claimed bundles, takes bytes for those to read, and returns the others.
    pub(super) async fn begin(
        shard: &'a Shard,
        partition: Partition,
        claimed: Vec<(ClaimAnswer, HeldCredit)>,
        policy: ReadPolicy,
        lease_end: MonoUs,
    ) -> Result<Self, StoreError> {
        let mut reader = Self {
            shard,
            partition,
            rest: VecDeque::with_capacity(claimed.len()),
            left: None,
            has_orphans: false,
            lease_end_us: lease_end.0.into(),
        };
        let (claimed, credits): (Vec<ClaimAnswer>, Vec<HeldCredit>) = claimed.into_iter().unzip();
        let measured = reader.measure(claimed).await?;
        note_sizes(shard, &measured);
        let mut back = Vec::new();
        let mut returned = Vec::new();
        for (at, (one, mut credit)) in measured.into_iter().zip(credits).enumerate() {
            let behind = policy != ReadPolicy::Fitting && reader.left.is_some();
            let forced = at == 0 && policy == ReadPolicy::FirstForced;
            if !behind && credit.take_bytes(one.bytes, forced) {
                reader.rest.push_back((one, credit));
                continue;
            }
            let ClaimAnswer { claim, due, .. } = one.claimed;
            reader.left.get_or_insert(OrderPosition {
                due,
                sequence: claim.id.sequence(),
            });
            back.push(claim);
            returned.push(credit);
        }
        reader.has_orphans = !reader.give_back(back).await;
        Ok(reader)
    }

    /// Measures the claimed bundles. Many of them over a slow link take longer than a lease.
    async fn measure(&self, claimed: Vec<ClaimAnswer>) -> Result<Vec<MeasuredClaim>, StoreError> {
        let claims: Vec<ClaimProgress> = claimed
            .iter()
            .map(|one| no_progress(one.claim.clone()))
            .collect();
        let measuring =
            self.shard
                .store
                .measure_claimed(self.partition, claimed, &self.lease_end_us);
        tokio::select! {
            measured = measuring => measured,
            never = self.extend(&claims) => match never {},
        }
    }

    /// The first bundle that did not fit.
    pub(super) fn left(&self) -> Option<OrderPosition> {
        self.left
    }

    /// Reports whether claims are left in the store that could not be returned.
    pub(super) fn has_orphans(&self) -> bool {
        self.has_orphans
    }

    /// The moment until which the claims are certain to last.
    pub(super) fn lease_end(&self) -> MonoUs {
        MonoUs(self.lease_end_us.load(Ordering::Relaxed))
    }

    /// Reads the next bundles. `None`: there are no more.
    pub(super) async fn next(
        &mut self,
    ) -> Option<Result<Vec<(ClaimAnswer, HeldCredit)>, StoreError>> {
        if self.shard.shutdown.is_draining() {
            self.leave_rest().await;
        }
        let mut bytes = 0;
        let batch = self.rest.iter().take_while(|(one, _)| {
            let fits = bytes < READ_BYTES;
            bytes += one.bytes;
            fits
        });
        let count = batch.count();
        if count == 0 {
            return None;
        }
        let (measured, credits): (Vec<MeasuredClaim>, Vec<HeldCredit>) =
            self.rest.drain(..count).unzip();
        let claims = measured.iter().chain(self.rest.iter().map(|(one, _)| one));
        let claims: Vec<ClaimProgress> = claims
            .map(|one| no_progress(one.claimed.claim.clone()))
            .collect();
        let opening = self
            .shard
            .store
            .open_claimed(self.partition, &measured, &self.lease_end_us);
        let opened = tokio::select! {
            opened = opening => opened,
            never = self.extend(&claims) => match never {},
        };
        Some(opened.map(|opened| opened.into_iter().zip(credits).collect()))
    }

    /// Returns the bundles that were not read yet.
    async fn leave_rest(&mut self) {
        let (rest, _credits): (Vec<ClaimAnswer>, Vec<HeldCredit>) = self
            .rest
            .drain(..)
            .map(|(one, credit)| (one.claimed, credit))
            .unzip();
        if let Some(first) = rest.first() {
            self.left.get_or_insert(OrderPosition {
                due: first.due,
                sequence: first.claim.id.sequence(),
            });
        }
        self.has_orphans |= !self
            .give_back(rest.into_iter().map(|one| one.claim).collect())
            .await;
    }

    /// Extends the claims each third of a lease, for ever. A lost claim is found by the call that settles it.
    async fn extend(&self, claims: &[ClaimProgress]) -> Infallible {
        let store = &self.shard.store;
        let lease_us = self.shard.lease_us();
        let micros = |us: i64| Duration::from_micros(us.max(0) as u64);
        tokio::time::sleep(micros(
            self.lease_end().since(self.shard.mono()) - lease_us * 2 / 3,
        ))
        .await;
        loop {
            let sending = self.shard.mono();
            let held = store
                .extend(self.partition, self.shard.lease_ms(), claims)
                .await;
            if held.is_ok_and(|held| {
                held.iter()
                    .all(|held| matches!(held, SettleAnswer::Applied(_)))
            }) {
                self.lease_end_us
                    .fetch_max(self.shard.lease_end(sending).0, Ordering::Relaxed);
            }
            tokio::time::sleep(micros(lease_us / 3)).await;
        }
    }

    /// Returns claims, and retries while they last. If it gave up earlier, they would wait for their deadline and
    /// count as expired. Answers false if it had to.
    async fn give_back(&self, claims: Vec<Claim>) -> bool {
        let back: Vec<ClaimProgress> = claims.into_iter().map(no_progress).collect();
        let mut failures = 0;
        while !back.is_empty() {
            let Err(why) = self.shard.store.give_back(self.partition, &back).await else {
                return true;
            };
            if self.shard.mono() >= self.lease_end() || !matches!(why, StoreError::Unavailable(_)) {
                warn!(partition = self.partition.0, error = %why, "returning claims failed; they will expire");
                return false;
            }
            failures += 1;
            tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
        }
        true
    }
}

/// A progress report for a claim without news.
fn no_progress(claim: Claim) -> ClaimProgress {
    ClaimProgress {
        claim,
        confirmed: None,
        delivered: Vec::new(),
    }
}

/// Tells the credit of each route how large its bundles are.
fn note_sizes(shard: &Shard, measured: &[MeasuredClaim]) {
    let mut by_route: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for one in measured {
        let id = &one.claimed.claim.id;
        by_route
            .entry(id.route())
            .or_default()
            .push((id.count(), one.bytes));
    }
    for (route, bundles) in by_route {
        if let Some(served) = shard.routes.get(route) {
            served.credit.measured(bundles.into_iter());
        }
    }
}
