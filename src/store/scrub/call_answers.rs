//! Callers of numbered calls: how far each has come, and which answers nobody will ask for again.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use super::PAGE_ENTRIES;
use crate::domain::Partition;
use crate::store::call::keys::Keys;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::{integer, shape};
use crate::store::call::scripts;
use crate::store::{ScrubReport, Store, StoreError};

/// Bytes of answers that one call has the script read: about 2 ms of Redis.
const ANSWER_BYTES: usize = 1 << 18;

/// How far a partition has come. While this does not change, no count changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallProgress {
    callers: BTreeMap<String, i64>,
    moves: i64,
    /// How often counts were corrected.
    pub(super) corrections: i64,
}

impl Store {
    /// The processes that stand in the registry, the dead whose claims may not have ended too, and this one. `None` if it
    /// cannot be read now.
    pub(super) async fn registered(&self) -> Option<BTreeSet<String>> {
        let mut pipe = redis::pipe();
        pipe.cmd("HKEYS").arg(self.0.keys.replicas());
        let (mut registered,): (BTreeSet<String>,) =
            self.0.side.pipe(Keys::members(), &pipe).await.ok()?;
        registered.insert(self.0.ids.nonce.clone());
        Some(registered)
    }

    /// Reads how far each caller has come. The answers of dead processes are forgotten after minutes, but
    /// not those to writes; their callers after a day.
    pub(super) async fn progress(
        &self,
        p: Partition,
        registered: Option<&BTreeSet<String>>,
        report: &mut ScrubReport,
    ) -> Result<CallProgress, StoreError> {
        let mut progress = CallProgress::default();
        for callers in self.callers(p).await? {
            let mut args: Vec<ScriptArg> = vec!["look".into(), callers.len().into()];
            for caller in &callers {
                let nonce = caller
                    .split_once('.')
                    .map_or(caller.as_str(), |(nonce, _)| nonce);
                let lives = registered.is_none_or(|registered| registered.contains(nonce));
                args.extend::<[ScriptArg; 2]>([
                    caller.as_str().into(),
                    (if lives { "1" } else { "0" }).into(),
                ]);
            }
            let keys = self.0.keys.fixed(p);
            let call = ScriptCall {
                script: &scripts::RECOUNT,
                op: "recount",
                keys,
                args,
                blobs: Vec::new(),
            };
            let Value::Array(answer) = self.0.settles.run_unnumbered(p, &call).await? else {
                return Err(shape("the answer to a recount"));
            };
            let [forgotten, corrections, moves, numbers @ ..] = &answer[..] else {
                return Err(shape("the answer to a recount"));
            };
            report.callers += integer(forgotten)? as u32;
            progress.corrections = integer(corrections)?;
            progress.moves = integer(moves)?;
            for (caller, number) in callers.into_iter().zip(numbers) {
                progress.callers.insert(caller, integer(number)?);
            }
        }
        Ok(progress)
    }

    /// All callers in portions, so that reading one portion holds Redis up by a few ms at most. At least one
    /// portion.
    async fn callers(&self, p: Partition) -> Result<Vec<Vec<String>>, StoreError> {
        let calls = self.0.keys.of(p, "calls");
        let mut pipe = redis::pipe();
        pipe.cmd("HKEYS").arg(&calls);
        let (names,): (Vec<String>,) = self.ask(p, &pipe).await?;
        let mut portions = Vec::new();
        let mut portion = Vec::new();
        let mut bytes = 0;
        for names in names.chunks(PAGE_ENTRIES) {
            let mut pipe = Pipeline::with_capacity(names.len());
            for name in names {
                pipe.cmd("HSTRLEN").arg(&calls).arg(name);
            }
            let lengths: Vec<usize> = self.ask(p, &pipe).await?;
            for (name, length) in names.iter().zip(lengths) {
                if !portion.is_empty()
                    && (portion.len() == PAGE_ENTRIES || bytes + length > ANSWER_BYTES)
                {
                    portions.push(std::mem::take(&mut portion));
                    bytes = 0;
                }
                portion.push(name.clone());
                bytes += length;
            }
        }
        portions.push(portion);
        Ok(portions)
    }
}
