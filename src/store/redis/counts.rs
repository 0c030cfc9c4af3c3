//! What is asked beside the flow: counts per route, and how far each source was ever read.

use std::collections::BTreeMap;

use redis::Value;

use super::{Store, scripts};
use crate::domain::{Partition, RouteName};
use crate::store::bundle::place_in;
use crate::store::{Counts, StoreError};

impl Store {
    /// Messages, bytes and dead letters of every route that has any, over all partitions: one trip.
    pub async fn counts(&self) -> Result<BTreeMap<String, Counts>, StoreError> {
        let mut pipe = redis::Pipeline::with_capacity(usize::from(self.0.partitions.count()));
        for p in self.0.partitions.all() {
            pipe.cmd("HGETALL").arg(self.0.keys.of(p, "counts"));
        }
        let connected = self.0.side.get().await?;
        let mut connection = connected.connection.clone();
        let found: Vec<Vec<(String, i64)>> =
            pipe.query_async(&mut connection).await.map_err(|error| self.0.side.judge(&connected, &error))?;
        let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
        for (field, n) in found.into_iter().flatten() {
            // Fields without a route are not counts.
            let Some((kind, grave)) = field.split_once(':') else { continue };
            let (route, invalid) = grave.split_once('/').map_or((grave, false), |(route, _)| (route, true));
            let of_route = counts.entry(route.to_owned()).or_default();
            match kind {
                "n" => of_route.messages += n,
                "b" => of_route.bytes += n,
                "d" => {
                    of_route.dead += n;
                    of_route.invalid += if invalid { n } else { 0 };
                }
                "x" => {
                    of_route.dead_bytes += n;
                    of_route.invalid_bytes += if invalid { n } else { 0 };
                }
                _ => {}
            }
        }
        Ok(counts)
    }

    /// The highest offset ever read of a source; `None` if it was never read.
    pub async fn mark(&self, source: &str) -> Result<Option<i64>, StoreError> {
        let connected = self.0.side.get().await?;
        let mut connection = connected.connection.clone();
        let home = self.home(source);
        redis::cmd("HGET")
            .arg(self.0.keys.of(home, "sources"))
            .arg(source)
            .query_async(&mut connection)
            .await
            .map_err(|error| self.0.side.judge(&connected, &error))
    }

    /// Raises that mark; never lowers it.
    pub async fn raise_mark(&self, source: &str, offset: i64) -> Result<(), StoreError> {
        let connected = self.0.side.get().await?;
        let mut connection = connected.connection.clone();
        let key = self.0.keys.of(self.home(source), "sources");
        scripts::MARK
            .prepare_invoke()
            .key(key)
            .arg(source)
            .arg(offset)
            .invoke_async::<Value>(&mut connection)
            .await
            .map_err(|error| self.0.side.judge(&connected, &error))?;
        Ok(())
    }

    /// The partition that keeps a source's mark.
    fn home(&self, source: &str) -> Partition {
        self.0.partitions.of_block(source, u64::MAX)
    }

    /// Where a message of a route lives, or where nobody will find it: a name hashes there, a `~` id says so.
    pub fn home_of(&self, route: &RouteName, id: &str) -> Partition {
        let said = place_in(route, id).map(|(p, _, _)| p).filter(|p| p.0 < self.0.partitions.count());
        said.unwrap_or_else(|| self.0.partitions.of_name(route, id))
    }
}
