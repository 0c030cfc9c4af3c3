//! Accepts a claimed bundle: into the claim table and the wheel, back to the store in parts, or to the dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use tracing::{debug, error, warn};

use super::claimed::{ClaimedBundle, DeliveryState, InFlightBatch, KeyedEntry};
use super::credit::HeldCredit;
use super::wheel::WheelItem;
use super::{ServedRoute, Shard};
use crate::domain::failure_policy::PublishFlow;
use crate::domain::limits::{MAX_EXPIRIES, SPLIT_EXPIRIES};
use crate::domain::{
    DeadReason, Entry, Flags, MonoUs, Target, TargetRef, Text, Verdict, dying_message, retry,
};
use crate::egress::{PublishBatch, Ticket};
use crate::health::Overdue;
use crate::mutants::{self, Mutant};
use crate::store::{
    Bundle, Claim, ClaimAnswer, CodecError, DeadLetter, Division, NewBundle, Remainder,
    SettleAnswer, UnopenedBundle,
};

/// Delay until a bundle of a later version is claimed again, ms. By then a replica of that version may serve it.
const UNREADABLE_MS: u64 = 30_000;

/// The end of [`accept`] for one claimed bundle.
pub(super) enum AcceptOutcome {
    /// The bundle is in the claim table. Holds its item for the wheel, if some of its messages leave by due time.
    Accepted(Option<WheelItem>),
    /// The bundle is a dead letter.
    Dead,
    /// The bundle's messages are in the store again, in other bundles.
    StoredAgain,
    /// The bundle stays claimed in the store, and this shard does not know it.
    LeftClaimed,
    /// The bundle's target gets no more messages: it is to be put off for so many ms.
    TargetFull(Claim, HeldCredit, u64),
}

/// Enters one claimed bundle into the claim table, or disposes of one that cannot be published as it is.
pub(super) async fn accept(
    shard: &Shard,
    claimed: ClaimAnswer,
    credit: HeldCredit,
    lease_end: MonoUs,
) -> AcceptOutcome {
    let Some(served) = shard.routes.get(claimed.claim.id.route()).cloned() else {
        return AcceptOutcome::LeftClaimed;
    };
    let accepting = Accepting {
        shard,
        served,
        claimed,
    };
    let bundle = match accepting.read() {
        Ok(bundle) => bundle,
        Err(Unreadable::LaterVersion(version)) => return accepting.put_off(version).await,
        Err(Unreadable::Broken { reason, why }) => {
            return accepting.keep_unreadable(reason, &why).await;
        }
    };
    let expiries = accepting.claimed.expiries;
    if expiries >= SPLIT_EXPIRIES && bundle.entries.len() > 1 {
        return accepting.split_up(&bundle).await;
    }
    let has_open = accepting.claimed.skip.contains(&false);
    if expiries >= MAX_EXPIRIES && has_open {
        return accepting.end_crashed(bundle).await;
    }
    let dies = bundle
        .entries
        .iter()
        .any(|entry| entry.flags.has(Flags::DYING));
    if dies && accepting.served.route.dead_letter_to.is_none() {
        return accepting.end_dying(&bundle).await;
    }
    let goal = Goal {
        target: accepting.target(&bundle, dies),
        dies,
    };
    // While the shard drains it goes back as it is, for another replica, whose lane takes it.
    if !shard.shutdown.is_draining()
        && let Some(wait_ms) = accepting.put_off_ms(&goal)
    {
        accepting.report_put_back(&bundle);
        return AcceptOutcome::TargetFull(accepting.claimed.claim, credit, wait_ms);
    }
    AcceptOutcome::Accepted(accepting.enter(&bundle, credit, lease_end, goal))
}

/// One claimed bundle that is being accepted.
struct Accepting<'a> {
    shard: &'a Shard,
    served: Arc<ServedRoute>,
    claimed: ClaimAnswer,
}

/// Why a bundle cannot be read.
enum Unreadable {
    /// A later version wrote it.
    LaterVersion(u8),
    /// Nobody can read it.
    Broken { reason: DeadReason, why: String },
}

/// Where the messages of a bundle go.
struct Goal {
    /// `None`: the route may not publish there (any more).
    target: Option<Arc<Target>>,
    /// They are dead letters on their way to the route's `dead_letter_to`.
    dies: bool,
}

impl Accepting<'_> {
    fn read(&self) -> Result<Bundle, Unreadable> {
        let (reason, why) = match &self.claimed.bundle {
            Ok(bundle) if bundle.entries.len() == self.claimed.skip.len() => {
                return Ok(self.flag_rolled_back(bundle.clone()));
            }
            Ok(_) => {
                let why = "it holds a different number of messages".to_owned();
                (DeadReason::Corrupt, why)
            }
            Err(CodecError::UnknownVersion(version)) => {
                return Err(Unreadable::LaterVersion(*version));
            }
            // Our claim is still valid, so only damage can have removed the blob.
            Err(CodecError::Missing) => (DeadReason::Corrupt, "its blob is missing".to_owned()),
            Err(why @ CodecError::Poison) => (DeadReason::Crashes, why.to_string()),
            Err(why) => (DeadReason::Corrupt, why.to_string()),
        };
        Err(Unreadable::Broken { reason, why })
    }

    /// Flags the messages that were due before the store was found to have gone back, or to have another master: a
    /// replica may have published them and the store may have forgotten that.
    fn flag_rolled_back(&self, mut bundle: Bundle) -> Bundle {
        let may_repeat_until = self.shard.store.may_repeat_until();
        let may_repeat = |entry: &Entry| entry.due <= may_repeat_until;
        if bundle.entries.iter().any(may_repeat) {
            for entry in Arc::make_mut(&mut bundle.entries) {
                if may_repeat(entry) {
                    entry.flags = entry.flags.with(Flags::STORE_ROLLBACK);
                }
            }
        }
        bundle
    }

    fn target(&self, bundle: &Bundle, dies: bool) -> Option<Arc<Target>> {
        let route = &self.served.route;
        if mutants::is(Mutant::WrongTarget) {
            let mut others = self.shard.routes.values().map(|other| &other.route.to);
            return others.find(|&to| *to != route.to).cloned();
        }
        if dies {
            route.dead_letter_to.clone()
        } else {
            route.target(&bundle.target)
        }
    }

    /// For how long the bundle is put off, ms, if its target gets no more messages.
    fn put_off_ms(&self, goal: &Goal) -> Option<u64> {
        let target = goal.target.as_ref()?;
        let credit = &self.served.credit;
        credit.is_full(target).then(|| credit.put_off_ms(target))
    }

    /// Tells that a bundle is put off although it is due.
    fn report_put_back(&self, bundle: &Bundle) {
        let now = self.shard.store.clock().now();
        let asked = bundle.entries.iter().map(Entry::asked_due).min();
        if let Some(asked) = asked
            && asked <= now
        {
            let overdue = Overdue { asked, seen: now };
            self.served.health.overdue.put_back(overdue);
        }
    }

    /// Enters the bundle into the claim table. Returns its item for the wheel, if some of its messages leave by due time.
    fn enter(
        self,
        bundle: &Bundle,
        credit: HeldCredit,
        lease_end: MonoUs,
        goal: Goal,
    ) -> Option<WheelItem> {
        let shard = self.shard;
        let slot = shard.table.slot();
        let batch = self.publish_batch(bundle, &goal, slot, lease_end);
        let keyed = if goal.dies {
            Vec::new()
        } else {
            self.keyed(bundle)
        };
        let order = self.order(bundle, &keyed);
        let lane = goal.target.map(|target| shard.lanes.lane(&target));
        let in_flight = Arc::new(InFlightBatch {
            served: self.served.clone(),
            entries: bundle.entries.clone(),
            batch: Arc::new(batch),
            lane,
            target_ref: bundle.target.clone(),
            published_us: AtomicI64::new(i64::MAX),
            handed: AtomicU32::new(0),
            first_sequence: self.claimed.claim.id.sequence(),
            keyed,
            flow: if goal.dies {
                PublishFlow::Dying
            } else {
                PublishFlow::Delayed
            },
            order,
        });
        let claimed = self.claimed_bundle(&in_flight, credit);
        let is_done = claimed.open == 0;
        shard.table.lock().enter(slot, claimed);
        if is_done {
            // No message of the bundle is left to publish. This verdict has the settler finish it like any other bundle.
            let first = Ticket {
                batch: slot,
                index: 0,
            };
            shard.verdicts.push(first, Verdict::NotTried);
        }
        WheelItem::new(in_flight)
    }

    /// The messages as they are handed to their lane.
    fn publish_batch(
        &self,
        bundle: &Bundle,
        goal: &Goal,
        slot: u64,
        lease_end: MonoUs,
    ) -> PublishBatch {
        let route = &self.served.route;
        let reporter = &self.served.reporter;
        let claim = &self.claimed.claim;
        let entries = if goal.dies {
            let outgoing = |entry| dying_message::outgoing(entry, &route.name);
            Arc::new(bundle.entries.iter().map(outgoing).collect())
        } else {
            bundle.entries.clone()
        };
        PublishBatch {
            entries,
            ids: claim.id.message_ids(claim.partition, &bundle.entries),
            expiries: if mutants::is(Mutant::ForgetExpiry) {
                0
            } else {
                self.claimed.expiries
            },
            spans: reporter.spans(&bundle.entries),
            target: goal.target.clone().unwrap_or_else(|| route.to.clone()),
            // A dead letter is wanted whenever it comes.
            clock: (!goal.dies).then(|| self.shard.store.clock().clone()),
            copies: route.policy.copies,
            number: slot,
            verdicts: self.shard.verdicts.clone(),
            listener: Some(reporter.clone()),
            not_after_us: lease_end.0.into(),
        }
    }

    /// The entries that leave when their key's turn comes, by index. Empty where the route keeps no key order.
    fn keyed(&self, bundle: &Bundle) -> Vec<Option<KeyedEntry>> {
        let route = &self.served.route;
        if !route.policy.ordered {
            return Vec::new();
        }
        let mut keyed = Vec::with_capacity(bundle.entries.len());
        for (entry, &skip) in bundle.entries.iter().zip(&self.claimed.skip) {
            let key = route.order_key(&entry.message).filter(|_| !skip);
            keyed.push(key.map(|key| KeyedEntry {
                key,
                taken: AtomicBool::new(false),
            }));
        }
        keyed
    }

    /// The entries that leave by due time, in that order.
    fn order(&self, bundle: &Bundle, keyed: &[Option<KeyedEntry>]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..bundle.entries.len())
            .filter(|&index| {
                !self.claimed.skip[index] && keyed.get(index).is_none_or(Option::is_none)
            })
            .map(|index| index as u32)
            .collect();
        order.sort_by_key(|&index| bundle.entries[index as usize].due);
        order
    }

    fn claimed_bundle(self, in_flight: &Arc<InFlightBatch>, credit: HeldCredit) -> ClaimedBundle {
        let skip = &self.claimed.skip;
        let states = skip.iter().map(|&skip| {
            if skip {
                DeliveryState::Skipped
            } else {
                DeliveryState::Open
            }
        });
        let mut claimed = ClaimedBundle {
            in_flight: in_flight.clone(),
            stored: (0..skip.len() as u32).collect(),
            states: states.collect(),
            open: skip.iter().filter(|&&skip| !skip).count(),
            claim: self.claimed.claim,
            credit,
            news: false,
            busy: false,
            moving: Vec::new(),
            lost: false,
            split: false,
        };
        claimed.update_credit();
        let target = &in_flight.batch.target;
        let lane = in_flight.lane.as_ref();
        if self.served.credit.sets_aside(target)
            && lane.is_some_and(|lane| lane.trouble_of(target).is_some())
        {
            claimed.credit.set_aside(target);
        }
        claimed
    }

    /// Makes dead letters of messages that were on their way to a `dead_letter_to` that is no longer configured.
    async fn end_dying(&self, bundle: &Bundle) -> AcceptOutcome {
        let dead_letters = bundle.entries.iter().map(|entry| {
            DeadLetter::of(
                self.served.route.name.clone(),
                dying_message::reason(entry),
                bundle.target.clone(),
                dying_message::ended(entry.clone()),
            )
        });
        self.divide(Vec::new(), Vec::new(), dead_letters.collect())
            .await
    }

    /// Leaves a bundle of a later version to a replica that can read it. In an ordered route the bundle keeps its place,
    /// and blocks everything behind it.
    async fn put_off(&self, version: u8) -> AcceptOutcome {
        let shard = self.shard;
        let claim = &self.claimed.claim;
        shard.metrics.unknown_versions.inc();
        if !shard.saw_later_version.swap(true, Ordering::Relaxed) {
            warn!(
                bundle = %claim.id,
                version,
                "the store holds bundles of a later version; they wait for a replica that can read them"
            );
        }
        let wait_ms = if self.served.route.policy.ordered {
            0
        } else {
            UNREADABLE_MS
        };
        let put_off = shard
            .store
            .put_off(claim.partition, std::slice::from_ref(claim), wait_ms);
        if let Err(why) = put_off.await {
            // The claim expires and the next claimer tries again.
            debug!(bundle = %claim.id, error = %why, "deferring a bundle failed");
        }
        AcceptOutcome::LeftClaimed
    }

    /// Splits a bundle whose claim expired twice into single messages. One of them may crash its publisher; from here on
    /// each message is judged alone.
    async fn split_up(&self, bundle: &Bundle) -> AcceptOutcome {
        let claim = &self.claimed.claim;
        let skip = &self.claimed.skip;
        let live = (0..bundle.entries.len()).filter(|&i| !skip[i]);
        let remainders = live.map(|index| {
            let mut entry = bundle.entries[index].clone();
            entry
                .id
                .get_or_insert_with(|| claim.id.message_id(claim.partition, index, entry.due));
            let one = Bundle {
                target: bundle.target.clone(),
                entries: Arc::new(vec![entry]),
            };
            Remainder {
                new_bundle: NewBundle {
                    route: self.served.route.name.clone(),
                    bundle: one,
                },
                from: vec![index as u32],
                lease_ms: None,
                expiries: self.claimed.expiries,
                sequence: None,
            }
        });
        warn!(bundle = %claim.id, expiries = self.claimed.expiries, "claims of a bundle expired; split into single messages");
        let freed = freed(bundle, |index| skip[index]);
        self.divide(freed, remainders.collect(), Vec::new()).await
    }

    /// Makes a dead letter of a bundle whose claims expired too often.
    async fn end_crashed(&self, mut bundle: Bundle) -> AcceptOutcome {
        for entry in Arc::make_mut(&mut bundle.entries) {
            let now = self.shard.store.clock().now();
            retry::remember(
                entry,
                now,
                DeadReason::Crashes.as_str(),
                "its claims expired unpublished",
            );
            // A redriven message may be a repeat: nobody knows whether it was published under the claims that expired.
            entry.flags = entry.flags.with(Flags::CLAIM_EXPIRED);
        }
        let dead_letter = DeadLetter {
            route: self.served.route.name.clone(),
            reason: DeadReason::Crashes,
            bundle,
            raw: None,
        };
        let freed = freed(&dead_letter.bundle, |_| true);
        self.divide(freed, Vec::new(), vec![dead_letter]).await
    }

    /// Keeps an unreadable blob as a dead letter, unchanged.
    async fn keep_unreadable(&self, reason: DeadReason, why: &str) -> AcceptOutcome {
        let claimed = &self.claimed;
        let content = match reason {
            // A person may ask for it again: not for messages that were cancelled or confirmed before.
            DeadReason::Crashes => UnopenedBundle {
                blob: claimed.blob.clone(),
                skip: claimed.skip.clone(),
            }
            .encode(),
            _ => claimed.blob.clone(),
        };
        let dead_letter = DeadLetter {
            route: self.served.route.name.clone(),
            reason,
            bundle: Bundle {
                target: TargetRef::Own,
                entries: Arc::default(),
            },
            raw: Some(content).filter(|content| !content.is_empty()),
        };
        // The names inside cannot be read. The scrub removes names whose message is gone.
        let outcome = self.divide(Vec::new(), Vec::new(), vec![dead_letter]).await;
        match outcome {
            AcceptOutcome::Dead => {
                error!(bundle = %claimed.claim.id, reason = reason.as_str(), error = why, "a bundle cannot be read");
            }
            _ => {
                warn!(bundle = %claimed.claim.id, error = why, "a bundle cannot be read; it will be claimed again");
            }
        }
        outcome
    }

    /// Divides the bundle in the store, and counts its dead letters once the store has confirmed them.
    async fn divide(
        &self,
        freed: Vec<(Text, u32)>,
        remainders: Vec<Remainder>,
        dead: Vec<DeadLetter>,
    ) -> AcceptOutcome {
        let outcome = if remainders.is_empty() {
            AcceptOutcome::Dead
        } else {
            AcceptOutcome::StoredAgain
        };
        let division = Division {
            claim: self.claimed.claim.clone(),
            confirmed: vec![false; self.claimed.skip.len()],
            delivered: Vec::new(),
            freed,
            remainders,
            dead,
            held_keys: Vec::new(),
        };
        match self.shard.store.divide(&division).await {
            Ok(SettleAnswer::Applied(_)) => {
                for dead_letter in &division.dead {
                    self.served.reporter.died(dead_letter);
                }
                outcome
            }
            // The claim belongs to another replica, or soon will.
            Ok(SettleAnswer::Stale) => AcceptOutcome::LeftClaimed,
            Err(why) => {
                // The claim expires and the next claimer tries again.
                error!(bundle = %division.claim.id, error = %why, "dividing a bundle failed");
                AcceptOutcome::LeftClaimed
            }
        }
    }
}

/// The names of the messages that leave a bundle for good, with their positions.
fn freed(bundle: &Bundle, leaves: impl Fn(usize) -> bool) -> Vec<(Text, u32)> {
    let named = bundle
        .entries
        .iter()
        .enumerate()
        .filter(|(index, _)| leaves(*index));
    named
        .filter_map(|(index, entry)| Some((entry.id.clone()?, index as u32)))
        .collect()
}
