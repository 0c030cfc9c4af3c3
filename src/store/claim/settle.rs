//! Calls of the timer once verdicts are in: settle, divide, extend, give back.

use std::sync::Arc;

use bytes::Bytes;
use redis::Value;

use crate::domain::{Flags, Partition};
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
        let p = division.claim.partition;
        let new_bundles: Vec<(BundleId, &Remainder)> = division
            .remainders
            .iter()
            .map(|r| (self.new_id(&division.claim.id, r), r))
            .collect();
        let mut due_sets: Vec<&str> = new_bundles
            .iter()
            .filter(|(_, r)| r.lease_ms.is_none())
            .map(|(id, _)| id.due_set())
            .chain(gone.map(|_| division.claim.id.due_set()))
            .collect();
        due_sets.sort_unstable();
        due_sets.dedup();
        let dead: Vec<DeadId> = division
            .dead
            .iter()
            .map(|dead_letter| dead_id(dead_letter, p, &self.0.ids))
            .collect();
        let (queues, places) = queues_of(&dead);
        let route = division.claim.id.route();
        let delivered_names = self
            .0
            .delivered_names
            .args(std::iter::once((route, &division.delivered[..])));
        let with = ScriptVariant {
            remembers: !delivered_names.is_empty(),
            ordered: self.0.order.has(route),
        };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.push(self.0.keys.blob(p, &division.claim.id));
        keys.extend(due_sets.iter().map(|due_set| self.0.keys.due(p, due_set)));
        keys.extend(new_bundles.iter().map(|(id, _)| self.0.keys.blob(p, id)));
        keys.extend(dead.iter().map(|id| self.0.keys.dead(id)));
        keys.extend(queues.iter().map(|queue| self.0.keys.queue(p, queue)));
        let confirmed = bitmap(&division.confirmed);
        let mut args: Vec<ScriptArg> = vec![
            division.claim.id.as_str().into(),
            division.claim.token.as_ref().into(),
            confirmed.into(),
            (if division.dead.iter().any(DeadLetter::is_empty) {
                "1"
            } else {
                "0"
            })
            .into(),
            gone.unwrap_or_default().into(),
            due_sets.len().into(),
            new_bundles.len().into(),
            dead.len().into(),
            queues.len().into(),
        ];
        args.extend(due_sets.iter().map(|&due_set| ScriptArg::from(due_set)));
        let mut claims = Vec::new();
        for (id, remainder) in &new_bundles {
            let token: Arc<str> = self.0.ids.unique().into();
            push_remainder(&mut args, id, remainder, &due_sets, &token);
            if remainder.lease_ms.is_some() {
                claims.push(Claim {
                    partition: p,
                    id: id.clone(),
                    token,
                });
            }
        }
        for ((id, place), dead_letter) in dead.iter().zip(places).zip(&division.dead) {
            args.extend::<[ScriptArg; 3]>([
                id.as_str().into(),
                place.into(),
                ScriptArg::Blob(dead_blob(dead_letter)),
            ]);
        }
        args.extend(queues.into_iter().map(ScriptArg::Text));
        args.push(division.freed.len().into());
        for (name, index) in &division.freed {
            args.extend::<[ScriptArg; 2]>([
                format!("{}/{name}", division.claim.id.route()).into(),
                (*index).into(),
            ]);
        }
        push_moves(&mut args, &new_bundles);
        if with.ordered {
            push_holds(&mut args, &division.held_keys);
        }
        push_asked(&mut args, &new_bundles);
        args.extend(delivered_names);
        let call = ScriptCall {
            script: scripts::DIVIDE.of(with),
            op: "divide",
            keys,
            args,
            blobs: Vec::new(),
        };
        let sent_at = self.0.clock.now();
        let answer = text(&self.0.settles.run(p, call).await?)?;
        match answer.as_str() {
            "o" => {
                for (dead_letter, dead_id) in division.dead.iter().zip(&dead) {
                    self.0.trails.dead(sent_at, dead_letter, dead_id);
                }
                Ok(Some(SettleAnswer::Applied(claims)))
            }
            "s" => Ok(Some(SettleAnswer::Stale)),
            "g" => Ok(None),
            _ => Err(shape("the answer to a divide")),
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
        let with_news = claims
            .iter()
            .filter(|h| h.confirmed.as_ref().is_some_and(|bits| !bits.is_empty()));
        keys.extend(with_news.map(|h| self.0.keys.blob(p, &h.claim.id)));
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

    /// Returns claims of one partition whose content this version cannot read. The bundles are due again after `wait_ms`, so that they block nothing else. With 0 they keep
    /// their places.
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

fn push_remainder(
    args: &mut Vec<ScriptArg>,
    id: &BundleId,
    remainder: &Remainder,
    due_sets: &[&str],
    token: &Arc<str>,
) {
    let due_set = due_sets
        .iter()
        .position(|s| *s == id.due_set())
        .map_or(0, |at| at + 1);
    let (token, lease) = match remainder.lease_ms {
        Some(lease) => (token.as_ref(), lease),
        None => ("", 0),
    };
    args.extend::<[ScriptArg; 7]>([
        id.as_str().into(),
        due_set.into(),
        remainder.new_bundle.bundle.first_due().0.into(),
        ScriptArg::Blob(encode(&remainder.new_bundle.bundle)),
        token.into(),
        lease.into(),
        remainder.expiries.into(),
    ]);
}

/// Appends the names that follow their messages: the producer's own names, and `~` ids of messages that have
/// left the bundle and due time which the id names. A message on its way to the dead letters has given up its
/// name.
fn push_moves(args: &mut Vec<ScriptArg>, new_bundles: &[(BundleId, &Remainder)]) {
    let mut moves: Vec<ScriptArg> = Vec::new();
    for (place, (_, remainder)) in new_bundles.iter().enumerate() {
        for (index, (entry, from)) in remainder
            .new_bundle
            .bundle
            .entries
            .iter()
            .zip(&remainder.from)
            .enumerate()
        {
            if let Some(id) = entry.id.as_ref().filter(|_| !entry.flags.has(Flags::DYING)) {
                moves.extend::<[ScriptArg; 4]>([
                    name_key(&remainder.new_bundle.route, id).into(),
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
fn push_asked(args: &mut Vec<ScriptArg>, new_bundles: &[(BundleId, &Remainder)]) {
    let asked = |r: &Remainder| {
        r.new_bundle
            .bundle
            .entries
            .iter()
            .filter_map(|entry| entry.asked)
            .min()
    };
    let late: Vec<_> = new_bundles
        .iter()
        .filter_map(|(id, r)| Some((id, asked(r)?)))
        .collect();
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
    Ok(letters
        .chars()
        .map(|l| {
            if l == 's' {
                SettleAnswer::Stale
            } else {
                SettleAnswer::Applied(Vec::new())
            }
        })
        .collect())
}
