//! Messages of one route that are in flight, by the claims of all partitions.

use crate::domain::RouteName;
use crate::store::model::bundle::BundleId;
use crate::store::{Store, StoreError};

impl Store {
    /// The number of messages in a route's claimed bundles, with those of them that are confirmed already. Small reads,
    /// as for all queries of people.
    pub async fn in_flight(&self, route: &RouteName) -> Result<u64, StoreError> {
        let mut count = 0;
        for p in self.0.partitions.all() {
            let claimed = self.members(p, &self.0.keys.of(p, "claims")).await?;
            let ids = claimed.iter().filter_map(|id| BundleId::parse(id));
            count += ids
                .filter(|id| id.route() == route.as_str())
                .map(|id| id.count() as u64)
                .sum::<u64>();
        }
        Ok(count)
    }
}
