//! Held keys of routes that have nothing in the partition any more. The next message of a route frees them, and
//! there may never be one.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::PAGE_ENTRIES;
use super::due_sets::DueSet;
use crate::domain::Partition;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::{ScrubReport, Store, StoreError};

/// The next cursor, and the fields with their values.
type ScannedKeys = (u64, Vec<(Vec<u8>, String)>);

impl Store {
    /// Takes one step through the held keys. Returns where the next scrub goes on.
    pub(super) async fn walk_holds(
        &self,
        p: Partition,
        from: u64,
        due_sets: &[DueSet],
        report: &mut ScrubReport,
    ) -> Result<u64, StoreError> {
        let order = self.0.keys.order(p);
        let mut pipe = redis::pipe();
        pipe.cmd("HSCAN")
            .arg(&order)
            .arg(from)
            .arg("MATCH")
            .arg("k:*")
            .arg("COUNT")
            .arg(PAGE_ENTRIES);
        let ((next, mut held_keys),): (ScannedKeys,) = self.ask(p, &pipe).await?;
        let routes: BTreeSet<String> = held_keys
            .iter()
            .filter_map(|(field, _)| route_of(field))
            .collect();
        let mut gone = BTreeSet::new();
        // Counts are read after the held keys, so they are no older than these.
        for route in routes
            .into_iter()
            .filter(|route| !due_sets.iter().any(|due_set| due_set.is_of(route)))
        {
            let mut pipe = redis::pipe();
            pipe.cmd("HGET")
                .arg(self.0.keys.of(p, "counts"))
                .arg(format!("n:{route}"));
            let (messages,): (Option<i64>,) = self.ask(p, &pipe).await?;
            if messages.unwrap_or(0) <= 0 {
                gone.insert(route);
            }
        }
        held_keys.retain(|(field, _)| route_of(field).is_some_and(|route| gone.contains(&route)));
        if !held_keys.is_empty() {
            let args = held_keys
                .into_iter()
                .flat_map(|(field, value)| [ScriptArg::Blob(Bytes::from(field)), value.into()]);
            let args = args.collect();
            let call = ScriptCall {
                script: &scripts::FREE_FIELDS,
                op: "unhold",
                keys: vec![order],
                args,
                blobs: Vec::new(),
            };
            report.freed += integer(&self.0.settles.run_unnumbered(p, &call).await?)? as u32;
        }
        Ok(next)
    }
}

/// The route of a held key's field, `k:ROUTE/KEY`.
fn route_of(field: &[u8]) -> Option<String> {
    let route = field
        .strip_prefix(b"k:")?
        .split(|&byte| byte == b'/')
        .next()?;
    String::from_utf8(route.to_vec()).ok()
}
