//! Dead letters: entries in their graves against blobs, and blobs against entries.

use std::collections::{BTreeMap, BTreeSet};

use super::corrupt::Kind;
use super::{ENTRIES, PAGE, Place};
use crate::domain::Partition;
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::{AuditReport, DeadId, Store, StoreError};

/// What looked wrong in one partition's graves: dead letters, and what lies there and is none.
#[derive(Default)]
pub(super) struct Bones {
    letters: BTreeSet<DeadId>,
    others: Vec<(String, String)>,
}

impl Bones {
    /// A dead letter to be judged.
    pub(super) fn letter(&mut self, id: DeadId) {
        self.letters.insert(id);
    }
}

impl Store {
    /// The graves that the counts or a walk through the keys know.
    pub(super) async fn known_graves(
        &self,
        p: Partition,
        report: &mut AuditReport,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HKEYS").arg(self.0.keys.of(p, "counts"));
        let (fields,): (Vec<String>,) = self.ask(p, &pipe).await?;
        let mut all: BTreeSet<String> = BTreeSet::new();
        self.save(p, |places| all.append(&mut places.found_graves));
        all.extend(fields.iter().filter_map(|field| field.strip_prefix("d:").map(str::to_owned)));
        let keys: Vec<Kind> = all.iter().map(|grave| (format!("dead:{grave}"), "zset")).collect();
        self.quarantine(p, &keys, report).await?;
        Ok(all)
    }

    /// Looks on through these graves.
    pub(super) async fn walk_graves(
        &self,
        p: Partition,
        (first, skip): Place,
        graves: &BTreeSet<String>,
        bones: &mut Bones,
        report: &mut AuditReport,
    ) -> Result<Place, StoreError> {
        let mut seen = 0;
        for grave in graves.iter().filter(|grave| **grave >= first) {
            let mut at = if *grave == first { skip } else { 0 };
            loop {
                if seen >= ENTRIES {
                    return Ok((grave.clone(), at));
                }
                let members = self.members_at(p, &self.0.keys.grave(p, grave), at, PAGE).await?;
                let mut ids = Vec::with_capacity(members.len());
                for member in &members {
                    match DeadId::parse(member).filter(|id| id.grave() == *grave && id.partition() == p) {
                        Some(id) => ids.push(id),
                        None => bones.others.push((grave.clone(), member.clone())),
                    }
                }
                let blobs: Vec<Kind> = ids.iter().map(|id| (format!("d:{id}"), "string")).collect();
                self.quarantine(p, &blobs, report).await?;
                let there = self.are_there(p, &ids).await?;
                bones
                    .letters
                    .extend(ids.into_iter().zip(there).filter(|(_, there)| !there).map(|(id, _)| id));
                at += PAGE;
                seen += members.len();
                if members.len() < PAGE {
                    break;
                }
            }
        }
        Ok(Place::default())
    }

    async fn are_there(&self, p: Partition, ids: &[DeadId]) -> Result<Vec<bool>, StoreError> {
        let mut pipe = redis::Pipeline::with_capacity(ids.len());
        for id in ids {
            pipe.cmd("EXISTS").arg(self.0.keys.of(p, &format!("d:{id}")));
        }
        if ids.is_empty() { Ok(Vec::new()) } else { self.ask(p, &pipe).await }
    }

    /// Has one partition's graves judged and mended.
    pub(super) async fn mend_graves(
        &self,
        p: Partition,
        bones: Bones,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let mut of_grave: BTreeMap<String, (Vec<DeadId>, Vec<String>)> = BTreeMap::new();
        for id in bones.letters {
            of_grave.entry(id.grave()).or_default().0.push(id);
        }
        for (grave, other) in bones.others {
            of_grave.entry(grave).or_default().1.push(other);
        }
        for (grave, (letters, others)) in of_grave {
            let mut chunks: Vec<(&[DeadId], &[String])> =
                letters.chunks(PAGE).map(|chunk| (chunk, &[][..])).collect();
            chunks.extend(others.chunks(PAGE).map(|chunk| (&[][..], chunk)));
            for (letters, others) in chunks {
                let keys: Vec<Kind> = letters.iter().map(|id| (format!("d:{id}"), "string")).collect();
                self.quarantine(p, &keys, report).await?;
                self.mend_grave(p, &grave, letters, others, report).await?;
            }
        }
        Ok(())
    }

    async fn mend_grave(
        &self,
        p: Partition,
        grave: &str,
        ids: &[DeadId],
        others: &[String],
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.push(self.0.keys.grave(p, grave));
        keys.extend(ids.iter().map(|id| self.0.keys.of(p, &format!("d:{id}"))));
        let mut args: Vec<Arg> = vec![grave.into(), ids.len().into(), others.len().into()];
        args.extend(ids.iter().map(|id| Arg::from(id.as_str())));
        args.extend(others.iter().map(|other| Arg::from(other.as_str())));
        let call = Call { script: &scripts::GRAVES, op: "audit", keys, args, blobs: Vec::new() };
        let letters = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        if letters.len() != ids.len() {
            return Err(shape("the answer about a grave"));
        }
        report.leftovers += others.len() as u32;
        for (id, letter) in ids.iter().zip(letters.chars()) {
            match letter {
                'l' => report.dead_lost.push(id.clone()),
                'r' => report.dead_restored.push(id.clone()),
                _ => {}
            }
        }
        Ok(())
    }
}
