//! Scrubs dead letters: entries in their queues against blobs, and blobs against entries.

use std::collections::{BTreeMap, BTreeSet};

use super::findings::{DeadFindings, KeyKind};
use super::{PAGE_ENTRIES, SCRUB_ENTRIES, SetPosition};
use crate::domain::Partition;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{shape, text};
use crate::store::call::scripts;
use crate::store::{DeadId, ScrubReport, Store, StoreError};

impl Store {
    /// The dead-letter queues that the counts or a walk through the keys know.
    pub(super) async fn known_queues(
        &self,
        p: Partition,
        report: &mut ScrubReport,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HKEYS").arg(self.0.keys.of(p, "counts"));
        let (fields,): (Vec<String>,) = self.ask(p, &pipe).await?;
        let mut all: BTreeSet<String> = BTreeSet::new();
        self.save(p, |places| all.append(&mut places.found_queues));
        all.extend(
            fields
                .iter()
                .filter_map(|field| field.strip_prefix("d:").map(str::to_owned)),
        );
        let keys: Vec<KeyKind> = all
            .iter()
            .map(|queue| (format!("dead:{queue}"), "zset"))
            .collect();
        self.quarantine(p, &keys, report).await?;
        Ok(all)
    }

    /// Walks on through these dead-letter queues.
    pub(super) async fn walk_queues(
        &self,
        p: Partition,
        from: &SetPosition,
        queues: &BTreeSet<String>,
        dead: &mut DeadFindings,
        report: &mut ScrubReport,
    ) -> Result<SetPosition, StoreError> {
        let mut seen = 0;
        for queue in queues.iter().filter(|queue| **queue >= from.name) {
            let mut at = if *queue == from.name { from.skip } else { 0 };
            loop {
                if seen >= SCRUB_ENTRIES {
                    return Ok(SetPosition {
                        name: queue.clone(),
                        skip: at,
                    });
                }
                let members = self
                    .members_at(p, &self.0.keys.queue(p, queue), at, PAGE_ENTRIES)
                    .await?;
                let mut ids = Vec::with_capacity(members.len());
                for member in &members {
                    match DeadId::parse(member)
                        .filter(|id| id.queue() == *queue && id.partition() == p)
                    {
                        Some(id) => ids.push(id),
                        None => dead.others.push((queue.clone(), member.clone())),
                    }
                }
                let blobs: Vec<KeyKind> =
                    ids.iter().map(|id| (format!("d:{id}"), "string")).collect();
                self.quarantine(p, &blobs, report).await?;
                let there = self.are_there(p, &ids).await?;
                dead.ids.extend(
                    ids.into_iter()
                        .zip(there)
                        .filter(|(_, there)| !there)
                        .map(|(id, _)| id),
                );
                at += PAGE_ENTRIES;
                seen += members.len();
                if members.len() < PAGE_ENTRIES {
                    break;
                }
            }
        }
        Ok(SetPosition::default())
    }

    async fn are_there(&self, p: Partition, ids: &[DeadId]) -> Result<Vec<bool>, StoreError> {
        let mut pipe = redis::Pipeline::with_capacity(ids.len());
        for id in ids {
            pipe.cmd("EXISTS")
                .arg(self.0.keys.of(p, &format!("d:{id}")));
        }
        if ids.is_empty() {
            Ok(Vec::new())
        } else {
            self.ask(p, &pipe).await
        }
    }

    /// Has the finds of one partition's dead-letter queues judged and mended.
    pub(super) async fn mend_queues(
        &self,
        p: Partition,
        dead: DeadFindings,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut of_queue: BTreeMap<String, (Vec<DeadId>, Vec<String>)> = BTreeMap::new();
        for id in dead.ids {
            of_queue.entry(id.queue()).or_default().0.push(id);
        }
        for (queue, other) in dead.others {
            of_queue.entry(queue).or_default().1.push(other);
        }
        for (queue, (ids, others)) in of_queue {
            let mut chunks: Vec<(&[DeadId], &[String])> = ids
                .chunks(PAGE_ENTRIES)
                .map(|chunk| (chunk, &[][..]))
                .collect();
            chunks.extend(others.chunks(PAGE_ENTRIES).map(|chunk| (&[][..], chunk)));
            for (ids, others) in chunks {
                let keys: Vec<KeyKind> =
                    ids.iter().map(|id| (format!("d:{id}"), "string")).collect();
                self.quarantine(p, &keys, report).await?;
                self.mend_queue(p, &queue, ids, others, report).await?;
            }
        }
        Ok(())
    }

    async fn mend_queue(
        &self,
        p: Partition,
        queue: &str,
        ids: &[DeadId],
        others: &[String],
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.push(self.0.keys.queue(p, queue));
        keys.extend(ids.iter().map(|id| self.0.keys.of(p, &format!("d:{id}"))));
        let mut args: Vec<ScriptArg> = vec![queue.into(), ids.len().into(), others.len().into()];
        args.extend(ids.iter().map(|id| ScriptArg::from(id.as_str())));
        args.extend(others.iter().map(|other| ScriptArg::from(other.as_str())));
        let call = ScriptCall {
            script: &scripts::SCRUB_DEAD,
            op: "audit",
            keys,
            args,
            blobs: Vec::new(),
        };
        let letters = text(&self.0.settles.run_unnumbered(p, &call).await?)?;
        if letters.len() != ids.len() {
            return Err(shape("the answer about a dead-letter queue"));
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
