//! What the timer asks of the store once verdicts are in: settle, divide, hold on, give back.

use std::sync::Arc;

use bytes::Bytes;
use redis::Value;

use crate::domain::{Flags, Partition};
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::call::scripts::With;
use crate::store::model::bundle::BundleId;
use crate::store::write::{dead_blob, dead_id, graves, name_key};
use crate::store::{
    Claim, DeadId, DeadLetter, Division, Held, Hold, Progress, Remainder, Settlement, Store, StoreError,
    encode,
};

impl Store {
    /// Takes wholly confirmed bundles of one partition out of the store. Answers each: `Done`, or `Stale`
    /// if the claim was lost meanwhile (then what is confirmed was noted for its next holder).
    pub async fn settle(&self, p: Partition, settled: &[Settlement]) -> Result<Vec<Held>, StoreError> {
        let delivered = settled.iter().map(|s| (s.claim.id.route(), &s.delivered[..]));
        let memory = self.0.memory.args(delivered);
        let with = With { remembers: !memory.is_empty(), ..With::default() };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(settled.iter().map(|s| self.0.keys.blob(p, &s.claim.id)));
        let mut args: Vec<Arg> = vec![settled.len().into()];
        for s in settled {
            args.extend::<[Arg; 3]>([
                s.claim.id.as_str().into(),
                s.claim.token.as_ref().into(),
                s.names.len().into(),
            ]);
            for (name, index) in &s.names {
                args.extend::<[Arg; 2]>([format!("{}/{name}", s.claim.id.route()).into(), (*index).into()]);
            }
        }
        args.extend(memory);
        let call = Call { script: scripts::SETTLE.of(with), op: "settle", keys, args, blobs: Vec::new() };
        letters(&self.0.settles.run(p, call).await?, settled.len())
    }

    /// Settles a bundle of which something remains. The remainders that were born claimed are answered with
    /// their claims, in order.
    pub async fn divide(&self, division: &Division) -> Result<Held, StoreError> {
        let p = division.claim.partition;
        let fresh: Vec<(BundleId, &Remainder)> =
            division.remainders.iter().map(|r| (self.new_id(&division.claim.id, r), r)).collect();
        let mut shelves: Vec<&str> =
            fresh.iter().filter(|(_, r)| r.lease_ms.is_none()).map(|(id, _)| id.shelf()).collect();
        shelves.sort_unstable();
        shelves.dedup();
        let dead: Vec<DeadId> = division.dead.iter().map(|letter| dead_id(letter, p, &self.0.ids)).collect();
        let (graves, places) = graves(&dead);
        let route = division.claim.id.route();
        let memory = self.0.memory.args(std::iter::once((route, &division.delivered[..])));
        let with = With { remembers: !memory.is_empty(), ordered: self.0.order.has(route) };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.push(self.0.keys.blob(p, &division.claim.id));
        keys.extend(shelves.iter().map(|shelf| self.0.keys.due(p, shelf)));
        keys.extend(fresh.iter().map(|(id, _)| self.0.keys.blob(p, id)));
        keys.extend(dead.iter().map(|id| self.0.keys.dead(id)));
        keys.extend(graves.iter().map(|grave| self.0.keys.grave(p, grave)));
        keys.push(self.0.keys.put_back(p));
        let confirmed = bitmap(&division.confirmed);
        let mut args: Vec<Arg> = vec![
            division.claim.id.as_str().into(),
            division.claim.token.as_ref().into(),
            confirmed.into(),
            (if division.dead.iter().any(DeadLetter::is_empty) { "1" } else { "0" }).into(),
            shelves.len().into(),
            fresh.len().into(),
            dead.len().into(),
            graves.len().into(),
        ];
        args.extend(shelves.iter().map(|&shelf| Arg::from(shelf)));
        let mut held = Vec::new();
        for (id, remainder) in &fresh {
            let token: Arc<str> = self.0.ids.unique().into();
            push_remainder(&mut args, id, remainder, &shelves, &token);
            if remainder.lease_ms.is_some() {
                held.push(Claim { partition: p, id: id.clone(), token });
            }
        }
        for ((id, place), letter) in dead.iter().zip(places).zip(&division.dead) {
            args.extend::<[Arg; 3]>([id.as_str().into(), place.into(), Arg::Blob(dead_blob(letter))]);
        }
        args.extend(graves.into_iter().map(Arg::Text));
        args.push(division.freed.len().into());
        for (name, index) in &division.freed {
            args.extend::<[Arg; 2]>([
                format!("{}/{name}", division.claim.id.route()).into(),
                (*index).into(),
            ]);
        }
        push_moves(&mut args, &fresh);
        if with.ordered {
            push_holds(&mut args, &division.holds);
        }
        push_asked(&mut args, &fresh);
        args.extend(memory);
        let call = Call { script: scripts::DIVIDE.of(with), op: "divide", keys, args, blobs: Vec::new() };
        let answer = text(&self.0.settles.run(p, call).await?)?;
        match answer.as_str() {
            "o" => Ok(Held::Done(held)),
            "s" => Ok(Held::Stale),
            _ => Err(shape("the answer to a divide")),
        }
    }

    /// Extends claims of one partition to a full lease from now, and notes what of them is confirmed so far.
    pub async fn extend(
        &self,
        p: Partition,
        lease_ms: u64,
        held: &[Progress],
    ) -> Result<Vec<Held>, StoreError> {
        let memory = self.delivered(held);
        let ordered = held.iter().any(|h| self.0.order.has(h.claim.id.route()));
        let with = With { remembers: !memory.is_empty(), ordered };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(held.iter().map(|h| self.0.keys.blob(p, &h.claim.id)));
        let mut args: Vec<Arg> = vec![lease_ms.into(), held.len().into()];
        push_claims(&mut args, held);
        args.extend(memory);
        let call = Call { script: scripts::HOLD.of(with), op: "extend", keys, args, blobs: Vec::new() };
        letters(&self.0.settles.run_unnumbered(p, &call).await?, held.len())
    }

    /// Returns claims of one partition that will not be used; what of them is confirmed is noted.
    pub async fn give_back(&self, p: Partition, held: &[Progress]) -> Result<Vec<Held>, StoreError> {
        let memory = self.delivered(held);
        let with = With { remembers: !memory.is_empty(), ..With::default() };
        let mut keys = self.0.keys.fixed_of(p, with);
        keys.extend(held.iter().map(|h| self.0.keys.due(p, h.claim.id.shelf())));
        let mut args: Vec<Arg> = vec!["".into(), held.len().into()];
        push_claims(&mut args, held);
        args.extend(memory);
        let call =
            Call { script: scripts::GIVE_BACK.of(with), op: "give_back", keys, args, blobs: Vec::new() };
        letters(&self.0.settles.run_unnumbered(p, &call).await?, held.len())
    }

    /// Returns claims of one partition whose content this version cannot read, as if they had never been opened: due
    /// again after `wait_ms`, so that they stand before nothing else; 0: in their places.
    pub async fn put_off(&self, p: Partition, claims: &[Claim], wait_ms: u64) -> Result<(), StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.extend(claims.iter().map(|claim| self.0.keys.due(p, claim.id.shelf())));
        let mut args: Vec<Arg> = vec![wait_ms.to_string().into(), claims.len().into()];
        for claim in claims {
            args.extend::<[Arg; 3]>([claim.id.as_str().into(), claim.token.as_ref().into(), "".into()]);
        }
        let script = scripts::GIVE_BACK.of(With::default());
        let call = Call { script, op: "put_off", keys, args, blobs: Vec::new() };
        letters(&self.0.settles.run_unnumbered(p, &call).await?, claims.len()).map(drop)
    }

    fn delivered(&self, held: &[Progress]) -> Vec<Arg> {
        self.0.memory.args(held.iter().map(|h| (h.claim.id.route(), &h.delivered[..])))
    }

    fn new_id(&self, old: &BundleId, remainder: &Remainder) -> BundleId {
        let (route, bundle) = (&remainder.fresh.route, &remainder.fresh.bundle);
        // As many stamps as it has messages belong to a bundle: what stays in its place takes of its own.
        let first = remainder.from.iter().min().copied().unwrap_or_default();
        let stamp = remainder.stamp.unwrap_or(old.stamp() + u64::from(first));
        self.0.order.id(&self.0.ids, route, bundle.first_due(), bundle.entries.len(), Some(stamp))
    }
}

fn push_remainder(
    args: &mut Vec<Arg>,
    id: &BundleId,
    remainder: &Remainder,
    shelves: &[&str],
    token: &Arc<str>,
) {
    let shelf = shelves.iter().position(|s| *s == id.shelf()).map_or(0, |at| at + 1);
    let (token, lease) = match remainder.lease_ms {
        Some(lease) => (token.as_ref(), lease),
        None => ("", 0),
    };
    args.extend::<[Arg; 7]>([
        id.as_str().into(),
        shelf.into(),
        remainder.fresh.bundle.first_due().0.into(),
        Arg::Blob(encode(&remainder.fresh.bundle)),
        token.into(),
        lease.into(),
        remainder.expiries.into(),
    ]);
}

/// Names follow their messages: the producer's own, and the `~` ids of those that have left the bundle and
/// the due time which that id speaks of. What is on its way to the dead letters has given its name up.
fn push_moves(args: &mut Vec<Arg>, fresh: &[(BundleId, &Remainder)]) {
    let mut moves: Vec<Arg> = Vec::new();
    for (place, (_, remainder)) in fresh.iter().enumerate() {
        for (index, (entry, from)) in remainder.fresh.bundle.entries.iter().zip(&remainder.from).enumerate() {
            if let Some(id) = entry.id.as_ref().filter(|_| !entry.flags.has(Flags::DYING)) {
                moves.extend::<[Arg; 4]>([
                    name_key(&remainder.fresh.route, id).into(),
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

fn push_holds(args: &mut Vec<Arg>, holds: &[(Bytes, Hold)]) {
    args.push(holds.len().into());
    for (key, hold) in holds {
        args.extend::<[Arg; 2]>([Arg::Blob(key.clone()), hold.text().into()]);
    }
    args.push(holds.iter().map(|(_, hold)| hold.to).max().unwrap_or_default().into());
}

/// When what goes back was to be delivered, by bundle: its due time says only when it is tried next.
fn push_asked(args: &mut Vec<Arg>, fresh: &[(BundleId, &Remainder)]) {
    let asked = |r: &Remainder| r.fresh.bundle.entries.iter().filter_map(|entry| entry.asked).min();
    let late: Vec<_> = fresh.iter().filter_map(|(id, r)| Some((id, asked(r)?))).collect();
    args.push(late.len().into());
    for (id, asked) in late {
        args.extend::<[Arg; 2]>([id.as_str().into(), asked.0.into()]);
    }
}

fn push_claims(args: &mut Vec<Arg>, held: &[Progress]) {
    for Progress { claim, confirmed, .. } in held {
        args.extend::<[Arg; 3]>([
            claim.id.as_str().into(),
            claim.token.as_ref().into(),
            confirmed.as_deref().map(bitmap).unwrap_or_default().into(),
        ]);
    }
}

fn bitmap(bits: &[bool]) -> String {
    bits.iter().map(|&bit| if bit { '1' } else { '0' }).collect()
}

fn letters(answer: &Value, expected: usize) -> Result<Vec<Held>, StoreError> {
    let letters = text(answer)?;
    if letters.len() != expected {
        return Err(shape("the answer about some claims"));
    }
    Ok(letters.chars().map(|l| if l == 's' { Held::Stale } else { Held::Done(Vec::new()) }).collect())
}
