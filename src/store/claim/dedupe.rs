//! Names that were delivered and stay taken for a while: which routes do so, and how a call says it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{Partition, RouteName, Text};
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::{Store, StoreError};

/// Names that one script forgets at most: well below a millisecond.
const TRIM: i64 = 1000;
/// Such scripts in one go, in one partition.
const TRIMS: usize = 20;

/// The routes that remember what they delivered, and for how many ms. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::store) struct Memory(Arc<BTreeMap<RouteName, i64>>);

impl Memory {
    pub(in crate::store) fn new(remembers: &BTreeMap<RouteName, i64>) -> Self {
        Self(Arc::new(remembers.iter().filter(|(_, ms)| **ms > 0).map(|(r, ms)| (r.clone(), *ms)).collect()))
    }

    /// Whether a route does.
    pub(in crate::store) fn has(&self, route: &str) -> bool {
        self.ms(route).is_some()
    }

    fn ms(&self, route: &str) -> Option<i64> {
        // Where no route remembers, as by default, nothing is compared.
        self.0.iter().find(|(name, _)| name.as_str() == route).map(|(_, ms)| *ms)
    }

    /// The arguments that have these names remembered, by route; none if there is nothing to remember.
    pub(in crate::store) fn args<'a>(
        &self,
        delivered: impl Iterator<Item = (&'a str, &'a [Text])>,
    ) -> Vec<Arg> {
        let mut of_route: BTreeMap<&str, Vec<&Text>> = BTreeMap::new();
        for (route, names) in delivered.filter(|(_, names)| !names.is_empty()) {
            of_route.entry(route).or_default().extend(names);
        }
        let mut args: Vec<Arg> = Vec::new();
        for (route, names) in of_route {
            let Some(ms) = self.ms(route) else { continue };
            args.extend::<[Arg; 2]>([ms.into(), names.len().into()]);
            args.extend(names.into_iter().map(|name| Arg::from(format!("{route}/{name}"))));
        }
        args
    }
}

impl Store {
    /// Forgets names of a partition whose time is over, in bounded steps; what is left goes with the next call.
    /// Answers how many.
    pub async fn trim(&self, p: Partition) -> Result<u32, StoreError> {
        let mut forgotten = 0;
        for _ in 0..TRIMS {
            let (keys, args) = (vec![self.0.keys.delivered(p)], vec![Arg::from(TRIM)]);
            let call = Call { script: &scripts::TRIM, op: "trim", keys, args, blobs: Vec::new() };
            let gone = integer(&self.0.settles.run_unnumbered(p, &call).await?)?;
            forgotten += gone as u32;
            if gone < TRIM {
                break;
            }
        }
        Ok(forgotten)
    }
}
