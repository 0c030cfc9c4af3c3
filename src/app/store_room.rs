//! The store's capacity to take messages in: the part `store:room`.

use crate::health::StoreHealth;
use crate::ingress::ALL_WAIT_SHARE;
use crate::store::Store;

/// Why the store takes nothing in; `None` if it takes messages in, as far as is known.
pub(super) fn trouble(store: Option<&Store>, health: &StoreHealth) -> Option<String> {
    if let Some(why) = health.count_failure() {
        return Some(format!("the store does not answer: {why}"));
    }
    if let Some(why) = store.and_then(Store::write_failure) {
        return Some(format!("the store takes nothing in: {why}"));
    }
    if let Some(why) = store.and_then(Store::not_durable) {
        return Some(format!("writes and claims are not confirmed: {why}"));
    }
    let share = health.memory().share();
    let percent = (share * 100.0) as u64;
    (share >= ALL_WAIT_SHARE).then(|| format!("redis uses {percent} % of maxmemory, ingress waits"))
}
