//! Delivered names, which stay taken for a while: the routes that remember them, and the arguments that a call
//! carries for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{Partition, RouteName, Text};
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::{Store, StoreError};

/// Most names that one script forgets: well below a millisecond of Redis.
const FORGET_BATCH: i64 = 1000;
/// Most such scripts in one partition at a time.
const FORGET_CALLS: usize = 20;

/// The routes that remember delivered names, each with its time in ms. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::store) struct DeliveredNames(Arc<BTreeMap<RouteName, i64>>);

impl DeliveredNames {
    pub(in crate::store) fn new(routes: &BTreeMap<RouteName, i64>) -> Self {
        Self(Arc::new(
            routes
                .iter()
                .filter(|(_, ms)| **ms > 0)
                .map(|(r, ms)| (r.clone(), *ms))
                .collect(),
        ))
    }

    /// Reports whether a route remembers delivered names.
    pub(in crate::store) fn remembers(&self, route: &str) -> bool {
        self.ms(route).is_some()
    }

    fn ms(&self, route: &str) -> Option<i64> {
        // By default no route remembers names, and nothing is compared.
        self.0
            .iter()
            .find(|(name, _)| name.as_str() == route)
            .map(|(_, ms)| *ms)
    }

    /// The arguments that have these names remembered, by route. Empty if there is nothing to remember.
    pub(in crate::store) fn args<'a>(
        &self,
        delivered: impl Iterator<Item = (&'a str, &'a [Text])>,
    ) -> Vec<ScriptArg> {
        let mut of_route: BTreeMap<&str, Vec<&Text>> = BTreeMap::new();
        for (route, names) in delivered.filter(|(_, names)| !names.is_empty()) {
            of_route.entry(route).or_default().extend(names);
        }
        let mut args: Vec<ScriptArg> = Vec::new();
        for (route, names) in of_route {
            let Some(ms) = self.ms(route) else { continue };
            args.extend::<[ScriptArg; 2]>([ms.into(), names.len().into()]);
            args.extend(
                names
                    .into_iter()
                    .map(|name| ScriptArg::from(format!("{route}/{name}"))),
            );
        }
        args
    }
}

impl Store {
    /// Forgets delivered names of a partition whose time is over, in bounded steps. The next call goes on with
    /// the rest. Returns how many names were forgotten.
    pub async fn forget_names(&self, p: Partition) -> Result<u32, StoreError> {
        let mut forgotten = 0;
        for _ in 0..FORGET_CALLS {
            let keys = vec![self.0.keys.delivered(p), self.0.keys.of(p, "counts")];
            let args = vec![ScriptArg::from(FORGET_BATCH)];
            let call = ScriptCall {
                script: &scripts::FORGET_NAMES,
                op: "trim",
                keys,
                args,
                blobs: Vec::new(),
            };
            let gone = integer(&self.0.settles.run_unnumbered(p, &call).await?)?;
            forgotten += gone as u32;
            if gone < FORGET_BATCH {
                break;
            }
        }
        Ok(forgotten)
    }
}
