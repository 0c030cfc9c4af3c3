//! The placement of a route's messages is a function of its `order`. The store remembers it, so that nobody
//! looks for stored messages in the wrong partitions.

use redis::cluster_routing::Slot;

use crate::domain::RouteName;
use crate::store::{PreflightError, Store, StoreError};

impl Store {
    /// Compares each route's placement (with its key where keys leave in order) with the one that its messages
    /// were stored under, and notes it for routes that have none. The inner `Err`: the store holds messages or
    /// dead letters that would not be found.
    pub async fn agree_on_placement(
        &self,
        routes: &[RouteName],
    ) -> Result<Result<(), PreflightError>, StoreError> {
        if routes.is_empty() {
            return Ok(Ok(()));
        }
        let meta = self.0.keys.meta();
        let fields: Vec<String> = routes
            .iter()
            .map(|route| format!("order:{route}"))
            .collect();
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(&meta).arg(&fields);
        let slot = Slot::for_key(&meta);
        let (recorded,): (Vec<Option<String>>,) = self.0.side.pipe(slot, &pipe).await?;
        let of_key = |recorded: &Option<String>| recorded.as_deref() == Some("key");
        let mut changed = Vec::new();
        for (route, recorded) in routes.iter().zip(recorded) {
            if of_key(&recorded) != self.0.order.has(route.as_str()) {
                changed.push((route, recorded));
            }
        }
        if changed.is_empty() {
            return Ok(Ok(()));
        }
        // All counts, or none: messages on a node that is away must not be missed.
        let counts = self
            .0
            .side
            .gather_all::<Vec<(String, i64)>>(self.all_counts())
            .await?;
        let sum = |field: String| -> i64 {
            counts
                .iter()
                .flatten()
                .filter(|(name, _)| *name == field)
                .map(|(_, n)| n)
                .sum()
        };
        let mut pipe = redis::pipe();
        for (route, recorded) in changed {
            let messages = sum(format!("n:{route}"));
            let dead = sum(format!("d:{route}")) + sum(format!("d:{route}/invalid"));
            if messages > 0 || dead > 0 {
                return Ok(Err(refusal(route, of_key(&recorded), messages, dead)));
            }
            if of_key(&recorded) {
                pipe.cmd("HDEL")
                    .arg(&meta)
                    .arg(format!("order:{route}"))
                    .ignore();
            } else {
                pipe.cmd("HSET")
                    .arg(&meta)
                    .arg(format!("order:{route}"))
                    .arg("key")
                    .ignore();
            }
        }
        let () = self.0.side.pipe(slot, &pipe).await?;
        Ok(Ok(()))
    }
}

fn refusal(route: &RouteName, was_of_key: bool, messages: i64, dead: i64) -> PreflightError {
    let (was, is) = if was_of_key {
        ("key", "none")
    } else {
        ("none", "key")
    };
    PreflightError(format!(
        "route `{route}` has {messages} messages and {dead} dead letters in the store from a configuration with order = \
         {was:?}; with order = {is:?} they would not be found: let the messages leave and redrive or drop the dead \
         letters with order = {was:?} first"
    ))
}
