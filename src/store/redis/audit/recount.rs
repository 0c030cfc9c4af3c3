//! Counting what stands while nothing moves, and setting the counts to it.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use super::{ENTRIES, PAGE, SHELVES};
use crate::domain::Partition;
use crate::store::bundle::BundleId;
use crate::store::redis::lane::{Arg, Call};
use crate::store::redis::reply::{integer, shape, text};
use crate::store::redis::{Store, scripts};
use crate::store::{AuditReport, StoreError};

/// Tries to count while nothing moves.
const COUNTS: usize = 3;

impl Store {
    /// Counts what stands, and sets the counts to it if nothing moved meanwhile.
    pub(super) async fn recount(
        &self,
        p: Partition,
        graves: &BTreeSet<String>,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        for _ in 0..COUNTS {
            let call = self.recount_call(p, vec!["look".into()]);
            let look = self.0.settles.run_unnumbered(p, &call).await?;
            let Value::Array(look) = look else { return Err(shape("the answer to a recount")) };
            let [stamp, forgotten] = &look[..] else { return Err(shape("the answer to a recount")) };
            report.lanes += integer(forgotten)? as u32;
            let Some(counted) = self.count(p, graves).await? else { return Ok(()) };
            let mut args: Vec<Arg> = vec!["set".into(), text(stamp)?.into(), counted.len().into()];
            for (field, n) in counted {
                args.extend::<[Arg; 2]>([field.into(), n.into()]);
            }
            let set = self.0.settles.run_unnumbered(p, &self.recount_call(p, args)).await?;
            if text(&set)? != "MOVED" {
                report.counts = Some(integer(&set)? as u32);
                return Ok(());
            }
        }
        Ok(())
    }

    fn recount_call(&self, p: Partition, args: Vec<Arg>) -> Call {
        let keys = self.0.keys.fixed(p);
        Call { script: &scripts::RECOUNT, op: "recount", keys, args, blobs: Vec::new() }
    }

    /// What the counts should be; `None` if there is too much to count.
    async fn count(
        &self,
        p: Partition,
        graves: &BTreeSet<String>,
    ) -> Result<Option<BTreeMap<String, i64>>, StoreError> {
        let shelves = self.shelves(p).await?;
        if shelves.len() == SHELVES {
            return Ok(None);
        }
        let mut zsets: Vec<String> = shelves.iter().map(|shelf| self.0.keys.due(p, shelf)).collect();
        zsets.push(self.0.keys.of(p, "claims"));
        let mut counted: BTreeMap<String, i64> = BTreeMap::new();
        let mut seen = 0;
        for zset in zsets {
            let members = self.members_at(p, &zset, 0, ENTRIES + 1).await?;
            seen += members.len();
            if seen > ENTRIES {
                return Ok(None);
            }
            let ids: Vec<BundleId> = members.iter().filter_map(|id| BundleId::parse(id)).collect();
            for ids in ids.chunks(PAGE) {
                self.count_bundles(p, ids, &mut counted).await?;
            }
        }
        let whole = self.count_dead(p, seen, graves.clone(), &mut counted).await?;
        Ok(whole.then_some(counted))
    }

    async fn count_bundles(
        &self,
        p: Partition,
        ids: &[BundleId],
        counted: &mut BTreeMap<String, i64>,
    ) -> Result<(), StoreError> {
        let mut pipe = Pipeline::with_capacity(ids.len() * 2);
        for id in ids {
            pipe.cmd("STRLEN").arg(self.0.keys.blob(p, id));
            pipe.cmd("HGET").arg(self.0.keys.of(p, "gone")).arg(id.as_str());
        }
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        for (id, pair) in ids.iter().zip(found.chunks(2)) {
            let gone = match &pair[1] {
                Value::BulkString(bits) => String::from_utf8_lossy(bits).matches('1').count(),
                _ => 0,
            };
            *counted.entry(format!("n:{}", id.route())).or_default() += (id.count() - gone) as i64;
            *counted.entry(format!("b:{}", id.route())).or_default() += integer(&pair[0])?;
        }
        Ok(())
    }
}
