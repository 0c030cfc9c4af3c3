//! Held keys of routes that have nothing in the partition any more: the next message of a route frees them, and there
//! may never be one.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::PAGE;
use super::due_sets::Shelf;
use crate::domain::Partition;
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::{AuditReport, Store, StoreError};

/// Where to go on, and the fields with their values.
type Scanned = (u64, Vec<(Vec<u8>, String)>);

impl Store {
    /// One step through them. Answers where the next audit goes on.
    pub(super) async fn walk_holds(
        &self,
        p: Partition,
        from: u64,
        shelves: &[Shelf],
        report: &mut AuditReport,
    ) -> Result<u64, StoreError> {
        let order = self.0.keys.order(p);
        let mut pipe = redis::pipe();
        pipe.cmd("HSCAN").arg(&order).arg(from).arg("MATCH").arg("k:*").arg("COUNT").arg(PAGE);
        let ((next, mut holds),): (Scanned,) = self.ask(p, &pipe).await?;
        let routes: BTreeSet<String> = holds.iter().filter_map(|(field, _)| route_of(field)).collect();
        let mut gone = BTreeSet::new();
        // Counts are read after the holds: what they speak of is no newer than these.
        for route in routes.into_iter().filter(|route| !shelves.iter().any(|shelf| shelf.is_of(route))) {
            let mut pipe = redis::pipe();
            pipe.cmd("HGET").arg(self.0.keys.of(p, "counts")).arg(format!("n:{route}"));
            let (messages,): (Option<i64>,) = self.ask(p, &pipe).await?;
            if messages.unwrap_or(0) <= 0 {
                gone.insert(route);
            }
        }
        holds.retain(|(field, _)| route_of(field).is_some_and(|route| gone.contains(&route)));
        if !holds.is_empty() {
            let args =
                holds.into_iter().flat_map(|(field, value)| [Arg::Blob(Bytes::from(field)), value.into()]);
            let args = args.collect();
            let call =
                Call { script: &scripts::UNHOLD, op: "unhold", keys: vec![order], args, blobs: Vec::new() };
            report.freed += integer(&self.0.settles.run_unnumbered(p, &call).await?)? as u32;
        }
        Ok(next)
    }
}

/// The route of a held key's field, `k:ROUTE/KEY`.
fn route_of(field: &[u8]) -> Option<String> {
    let route = field.strip_prefix(b"k:")?.split(|&byte| byte == b'/').next()?;
    String::from_utf8(route.to_vec()).ok()
}
