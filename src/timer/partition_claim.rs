//! The claim of the unordered routes in one partition, and the way of its bundles to the wheel.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;

use super::Shard;
use super::accept::{self, AcceptOutcome};
use super::credit::{Grant, HeldCredit};
use super::read_claimed::{ClaimReader, ReadPolicy};
use super::settler::until_returned;
use crate::domain::Partition;
use crate::domain::limits::BUNDLE_MESSAGES;
use crate::store::{Claim, ClaimAnswer, ClaimRequest, StoreError};

/// The claim of the unordered routes in one partition.
pub(super) struct PartitionClaim {
    pub(super) request: ClaimRequest,
    /// The credit of each route.
    pub(super) grants: BTreeMap<String, Grant>,
}

impl PartitionClaim {
    /// Makes the claim. Returns whether there may be more to claim.
    pub(super) async fn make(mut self, shard: &Arc<Shard>) -> Result<bool, StoreError> {
        let request = &self.request;
        // Read the clock before the claim is sent, so that the deadline in the store can only be later.
        let lease_end = shard.lease_end(shard.mono());
        let claimed = shard.store.claim_unread(request).await?;
        let messages: usize = claimed.iter().map(|one| one.claim.id.count()).sum();
        let allowed: u32 = request.due_sets.iter().map(|(_, messages)| messages).sum();
        let full =
            claimed.len() >= request.max_bundles || messages + BUNDLE_MESSAGES > allowed as usize;
        let mut held: Vec<(ClaimAnswer, HeldCredit)> = Vec::with_capacity(claimed.len());
        for one in claimed {
            if let Some(grant) = self.grants.get_mut(one.claim.id.route()) {
                let credit = grant.hold(one.claim.id.count());
                held.push((one, credit));
            }
        }
        // What the claim did not bring is free for others at once.
        self.grants.clear();
        let mut reader = ClaimReader::begin(
            shard,
            request.partition,
            held,
            ReadPolicy::Fitting,
            lease_end,
        )
        .await?;
        while let Some(read) = reader.next().await {
            let mut items = Vec::new();
            // By how many seconds they are put off.
            let mut late: BTreeMap<u64, Vec<(Claim, HeldCredit)>> = BTreeMap::new();
            for (one, credit) in read? {
                match accept::accept(shard, one, credit, reader.lease_end()).await {
                    AcceptOutcome::Accepted(item) => items.extend(item),
                    AcceptOutcome::TargetFull(claim, credit, wait_ms) => {
                        let seconds = wait_ms.div_ceil(1000);
                        late.entry(seconds).or_default().push((claim, credit));
                    }
                    AcceptOutcome::Dead
                    | AcceptOutcome::StoredAgain
                    | AcceptOutcome::LeftClaimed => {}
                }
            }
            shard.wheel.add(items);
            for (seconds, bundles) in late {
                put_off(shard, request.partition, bundles, seconds * 1000).await;
            }
        }
        Ok(full && reader.left().is_none())
    }
}

/// Puts bundles off whose target gets no more messages. All are due again at one later moment. Neither an
/// attempt nor an expiry is counted.
async fn put_off(shard: &Shard, p: Partition, bundles: Vec<(Claim, HeldCredit)>, wait_ms: u64) {
    // Their credit is held until they are back in the store.
    let (claims, _credits): (Vec<Claim>, Vec<HeldCredit>) = bundles.into_iter().unzip();
    let answer = until_returned(|| shard.store.put_off(p, &claims, wait_ms)).await;
    if let Err(why) = answer {
        warn!(partition = p.0, error = %why, "putting bundles off failed; their claims will expire");
    }
}
