//! Calls of the timer once verdicts are in: settle, divide, extend, give back.

use bytes::Bytes;
use redis::Value;

use crate::domain::{Entry, Partition};
use crate::store::call::names::{dead_blob, dead_id, name_key, queues_of};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::call::scripts::ScriptVariant;
use crate::store::model::bundle::BundleId;
use crate::store::{
    Claim, ClaimProgress, DeadId, DeadLetter, Division, HeldKey, Remainder, SettleAnswer,
    Settlement, Store, StoreError, encode,
};

impl Store {
    /// Takes wholly confirmed bundles of one partition out of the store. Answers each bundle: `Applied`, or
    /// `Stale` if the claim was lost meanwhile. For a stale claim the store notes what is confirmed, for the
    /// next owner.
    pub async fn settle(
        &self,
        p: Partition,
        settled: &[Settlement],
    ) -> Result<Vec<SettleAnswer>, StoreError> {
        let delivered = settled
            .iter()
            .map(|s| (s.claim.id.route(), &s.delivered[..]));
        let delivered_names = self.0.delivered_names.args(delivered);
        let with = ScriptVariant {
            remembers: !delivered_names.is_empty(),
            ..ScriptVariant::default()
        };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(settled.iter().map(|s| self.0.keys.blob(p, &s.claim.id)));
        let mut args: Vec<ScriptArg> = vec![settled.len().into()];
        for s in settled {
            args.extend::<[ScriptArg; 3]>([
                s.claim.id.as_str().into(),
                s.claim.token.as_ref().into(),
                s.names.len().into(),
            ]);
            for (name, index) in &s.names {
                args.extend::<[ScriptArg; 2]>([
                    format!("{}/{name}", s.claim.id.route()).into(),
                    (*index).into(),
                ]);
            }
        }
        args.extend(delivered_names);
        let call = ScriptCall {
            script: scripts::SETTLE.of(with),
            op: "settle",
            keys,
            args,
            blobs: Vec::new(),
        };
        letters(&self.0.settles.run(p, call).await?, settled.len())
    }

    /// Settles a bundle of which something remains. Returns the new claims of the remainders that stay in
    /// flight, in order.
    pub async fn divide(&self, division: &Division) -> Result<SettleAnswer, StoreError> {
        let answer = self.divide_as_seen(division, None).await?;
        answer.ok_or_else(|| shape("the answer to a divide"))
    }

    /// The same for a growing bundle, with its bitmap of gone messages as it was read: it needs no claim. `None`: more is
    /// gone by now, or more has come.
    pub(in crate::store) async fn divide_as_seen(
        &self,
        division: &Division,
        gone: Option<&str>,
    ) -> Result<Option<SettleAnswer>, StoreError> {
        let plan = self.plan_division(division, gone);
        let call = plan.call(self);
        let sent_at = self.0.clock.now();
        let answer = text(&self.0.settles.run(division.claim.partition, call).await?)?;
        match answer.as_str() {
            "o" => {
                for (dead_letter, dead_id) in division.dead.iter().zip(&plan.dead) {
                    self.0.trails.dead(sent_at, dead_letter, dead_id);
                }
                let claims = plan.remainders.into_iter().filter_map(|new| new.claim);
                Ok(Some(SettleAnswer::Applied(claims.collect())))
            }
            "s" => Ok(Some(SettleAnswer::Stale)),
            "g" => Ok(None),
            _ => Err(shape("the answer to a divide")),
        }
    }

    /// Gives ids to what a division makes.
    fn plan_division<'a>(&self, division: &'a Division, gone: Option<&'a str>) -> DivisionPlan<'a> {
        let p = division.claim.partition;
        let mut remainders = Vec::with_capacity(division.remainders.len());
        for remainder in &division.remainders {
            let id = self.new_id(&division.claim.id, remainder);
            let claim = remainder.lease_ms.map(|_| Claim {
                partition: p,
                id: id.clone(),
                token: self.0.ids.unique().into(),
            });
            remainders.push(NewRemainder {
                id,
                remainder,
                claim,
            });
        }
        let dead = division
            .dead
            .iter()
            .map(|dead_letter| dead_id(dead_letter, p, &self.0.ids));
        DivisionPlan {
            division,
            gone,
            remainders,
            dead: dead.collect(),
        }
    }

    /// Extends claims of one partition to a full lease from now, and notes what of them is confirmed so far.
    pub async fn extend(
        &self,
        p: Partition,
        lease_ms: u64,
        claims: &[ClaimProgress],
    ) -> Result<Vec<SettleAnswer>, StoreError> {
        let delivered_names = self.delivered(claims);
        let ordered = claims.iter().any(|h| self.0.order.has(h.claim.id.route()));
        let with = ScriptVariant {
            remembers: !delivered_names.is_empty(),
            ordered,
        };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(self.blobs_with_news(p, claims));
        let mut args: Vec<ScriptArg> = vec![lease_ms.into(), claims.len().into()];
        push_claims(&mut args, claims);
        args.extend(delivered_names);
        let call = ScriptCall {
            script: scripts::EXTEND.of(with),
            op: "extend",
            keys,
            args,
            blobs: Vec::new(),
        };
        letters(
            &self.0.settles.run_unnumbered(p, &call).await?,
            claims.len(),
        )
    }

    /// Returns claims of one partition that will not be used, and notes what of them is confirmed.
    pub async fn give_back(
        &self,
        p: Partition,
        claims: &[ClaimProgress],
    ) -> Result<Vec<SettleAnswer>, StoreError> {
        let delivered_names = self.delivered(claims);
        let with = ScriptVariant {
            remembers: !delivered_names.is_empty(),
            ..ScriptVariant::default()
        };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(
            claims
                .iter()
                .map(|h| self.0.keys.due(p, h.claim.id.due_set())),
        );
        keys.extend(self.blobs_with_news(p, claims));
        let mut args: Vec<ScriptArg> = vec!["".into(), claims.len().into()];
        push_claims(&mut args, claims);
        args.extend(delivered_names);
        let call = ScriptCall {
            script: scripts::GIVE_BACK.of(with),
            op: "give_back",
            keys,
            args,
            blobs: Vec::new(),
        };
        letters(
            &self.0.settles.run_unnumbered(p, &call).await?,
            claims.len(),
        )
    }

    /// Returns claims of one partition that cannot go on now: this version cannot read them, or their target takes no
    /// more. The bundles are due again after `wait_ms`, so that they block nothing else. With 0 they keep their places.
    pub async fn put_off(
        &self,
        p: Partition,
        claims: &[Claim],
        wait_ms: u64,
    ) -> Result<(), StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.extend(
            claims
                .iter()
                .map(|claim| self.0.keys.due(p, claim.id.due_set())),
        );
        let mut args: Vec<ScriptArg> = vec![wait_ms.to_string().into(), claims.len().into()];
        for claim in claims {
            args.extend::<[ScriptArg; 3]>([
                claim.id.as_str().into(),
                claim.token.as_ref().into(),
                "".into(),
            ]);
        }
        let script = scripts::GIVE_BACK.of(ScriptVariant::default());
        let call = ScriptCall {
            script,
            op: "put_off",
            keys,
            args,
            blobs: Vec::new(),
        };
        letters(
            &self.0.settles.run_unnumbered(p, &call).await?,
            claims.len(),
        )
        .map(drop)
    }

    /// The blob of each bundle of which something is confirmed.
    fn blobs_with_news(
        &self,
        p: Partition,
        claims: &[ClaimProgress],
    ) -> impl Iterator<Item = String> {
        let with_news = claims
            .iter()
            .filter(|h| h.confirmed.as_ref().is_some_and(|bits| !bits.is_empty()));
        with_news.map(move |h| self.0.keys.blob(p, &h.claim.id))
    }

    fn delivered(&self, claims: &[ClaimProgress]) -> Vec<ScriptArg> {
        self.0.delivered_names.args(
            claims
                .iter()
                .map(|h| (h.claim.id.route(), &h.delivered[..])),
        )
    }

    fn new_id(&self, old: &BundleId, remainder: &Remainder) -> BundleId {
        let route = &remainder.new_bundle.route;
        let bundle = &remainder.new_bundle.bundle;
        // A bundle has as many sequence numbers as messages. A remainder that keeps its place takes those of
        // its first message.
        let first = remainder.from.iter().min().copied().unwrap_or_default();
        let sequence = remainder
            .sequence
            .unwrap_or(old.sequence() + u64::from(first));
        self.0.order.id(
            &self.0.ids,
            route,
            bundle.first_due(),
            bundle.entries.len(),
            Some(sequence),
        )
    }
}

/// A division with the ids of what it makes.
struct DivisionPlan<'a> {
    division: &'a Division,
    /// Of a growing bundle: its bitmap of gone messages as it was read.
    gone: Option<&'a str>,
    remainders: Vec<NewRemainder<'a>>,
    /// Of the division's dead letters, in order.
    dead: Vec<DeadId>,
}

/// A remainder with its new bundle's id.
struct NewRemainder<'a> {
    id: BundleId,
    remainder: &'a Remainder,
    /// The claim of a bundle that stays in flight.
    claim: Option<Claim>,
}

impl DivisionPlan<'_> {
    /// The due sets that change, sorted.
    fn due_sets(&self) -> Vec<&str> {
        let back = self.remainders.iter().filter(|new| new.claim.is_none());
        let mut due_sets: Vec<&str> = back.map(|new| new.id.due_set()).collect();
        due_sets.extend(self.gone.map(|_| self.division.claim.id.due_set()));
        due_sets.sort_unstable();
        due_sets.dedup();
        due_sets
    }

    fn call(&self, store: &Store) -> ScriptCall {
        let store = &store.0;
        let division = self.division;
        let p = division.claim.partition;
        let route = division.claim.id.route();
        let delivered = std::iter::once((route, &division.delivered[..]));
        let delivered_names = store.delivered_names.args(delivered);
        let with = ScriptVariant {
            remembers: !delivered_names.is_empty(),
            ordered: store.order.has(route),
        };
        let due_sets = self.due_sets();
        let (queues, places) = queues_of(&self.dead);
        let new = &self.remainders;
        let mut keys = store.keys.fixed_of(p, with);
        keys.push(store.keys.blob(p, &division.claim.id));
        keys.extend(due_sets.iter().map(|due_set| store.keys.due(p, due_set)));
        keys.extend(new.iter().map(|new| store.keys.blob(p, &new.id)));
        keys.extend(self.dead.iter().map(|id| store.keys.dead(id)));
        keys.extend(queues.iter().map(|queue| store.keys.queue(p, queue)));
        let mut args = self.head(due_sets.len(), queues.len());
        args.extend(due_sets.iter().map(|&due_set| ScriptArg::from(due_set)));
        for new in new {
            new.push_bundle(&mut args, &due_sets);
        }
        for ((id, place), dead_letter) in self.dead.iter().zip(places).zip(&division.dead) {
            args.extend::<[ScriptArg; 3]>([
                id.as_str().into(),
                place.into(),
                ScriptArg::Blob(dead_blob(dead_letter)),
            ]);
        }
        args.extend(queues.into_iter().map(ScriptArg::Text));
        args.push(division.freed.len().into());
        for (name, index) in &division.freed {
            let name = format!("{route}/{name}");
            args.extend::<[ScriptArg; 2]>([name.into(), (*index).into()]);
        }
        push_moves(&mut args, new);
        if with.ordered {
            push_holds(&mut args, &division.held_keys);
        }
        push_asked(&mut args, new);
        args.extend(delivered_names);
        ScriptCall {
            script: scripts::DIVIDE.of(with),
            op: "divide",
            keys,
            args,
            blobs: Vec::new(),
        }
    }

    /// The first arguments: the claim, what of it is confirmed, and the numbers of what follows.
    fn head(&self, due_sets: usize, queues: usize) -> Vec<ScriptArg> {
        let division = self.division;
        let has_empty = division.dead.iter().any(DeadLetter::is_empty);
        vec![
            division.claim.id.as_str().into(),
            division.claim.token.as_ref().into(),
            bitmap(&division.confirmed).into(),
            (if has_empty { "1" } else { "0" }).into(),
            self.gone.unwrap_or_default().into(),
            due_sets.into(),
            self.remainders.len().into(),
            self.dead.len().into(),
            queues.into(),
        ]
    }
}

impl NewRemainder<'_> {
    fn push_bundle(&self, args: &mut Vec<ScriptArg>, due_sets: &[&str]) {
        let id = &self.id;
        let bundle = &self.remainder.new_bundle.bundle;
        let due_set = due_sets
            .iter()
            .position(|s| *s == id.due_set())
            .map_or(0, |at| at + 1);
        let token = self.claim.as_ref().map_or("", |claim| &claim.token);
        args.extend::<[ScriptArg; 7]>([
            id.as_str().into(),
            due_set.into(),
            bundle.first_due().0.into(),
            ScriptArg::Blob(encode(bundle)),
            token.into(),
            self.remainder.lease_ms.unwrap_or(0).into(),
            self.remainder.expiries.into(),
        ]);
    }

    fn entries(&self) -> &[Entry] {
        &self.remainder.new_bundle.bundle.entries
    }
}

/// Appends the names that follow their messages: the producer's own names, and `~` ids of messages that have
/// left the bundle and due time which the id names. A message on its way to the dead letters has given up its
/// name.
fn push_moves(args: &mut Vec<ScriptArg>, new: &[NewRemainder<'_>]) {
    let mut moves: Vec<ScriptArg> = Vec::new();
    for (place, new) in new.iter().enumerate() {
        let entries = new.entries().iter().zip(&new.remainder.from);
        for (index, (entry, from)) in entries.enumerate() {
            if let Some(id) = entry.listed_id() {
                moves.extend::<[ScriptArg; 4]>([
                    name_key(&new.remainder.new_bundle.route, id).into(),
                    (*from).into(),
                    (place + 1).into(),
                    index.into(),
                ]);
            }
        }
    }
    args.push((moves.len() / 4).into());
    args.extend(moves);
}

fn push_holds(args: &mut Vec<ScriptArg>, held_keys: &[(Bytes, HeldKey)]) {
    args.push(held_keys.len().into());
    for (key, hold) in held_keys {
        args.extend::<[ScriptArg; 2]>([ScriptArg::Blob(key.clone()), hold.text().into()]);
    }
    args.push(
        held_keys
            .iter()
            .map(|(_, hold)| hold.to)
            .max()
            .unwrap_or_default()
            .into(),
    );
}

/// Appends when the returned bundles were to be delivered. Their due time only says when they are tried next.
fn push_asked(args: &mut Vec<ScriptArg>, new: &[NewRemainder<'_>]) {
    let asked = |new: &NewRemainder<'_>| {
        let asked = new.entries().iter().filter_map(|entry| entry.asked).min()?;
        Some((new.id.clone(), asked))
    };
    let late: Vec<_> = new.iter().filter_map(asked).collect();
    args.push(late.len().into());
    for (id, asked) in late {
        args.extend::<[ScriptArg; 2]>([id.as_str().into(), asked.0.into()]);
    }
}

fn push_claims(args: &mut Vec<ScriptArg>, claims: &[ClaimProgress]) {
    for ClaimProgress {
        claim, confirmed, ..
    } in claims
    {
        args.extend::<[ScriptArg; 3]>([
            claim.id.as_str().into(),
            claim.token.as_ref().into(),
            confirmed.as_deref().map(bitmap).unwrap_or_default().into(),
        ]);
    }
}

fn bitmap(bits: &[bool]) -> String {
    bits.iter()
        .map(|&bit| if bit { '1' } else { '0' })
        .collect()
}

fn letters(answer: &Value, expected: usize) -> Result<Vec<SettleAnswer>, StoreError> {
    let letters = text(answer)?;
    if letters.len() != expected {
        return Err(shape("the answer about some claims"));
    }
    let answer = |letter| match letter {
        'o' => Ok(SettleAnswer::Applied(Vec::new())),
        's' => Ok(SettleAnswer::Stale),
        _ => Err(shape("the answer about some claims")),
    };
    letters.chars().map(answer).collect()
}
