//! Pausing by the store, once it was reached.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use crate::admin::Pausing;
use crate::domain::{Paused, RouteName};
use crate::store::Store;

/// The way to what is paused.
pub(super) struct StorePausing(pub(super) Arc<OnceLock<Store>>);

impl Pausing for StorePausing {
    fn set<'a>(
        &'a self,
        route: &'a RouteName,
        what: Paused,
        pause: bool,
    ) -> BoxFuture<'a, Result<Paused, String>> {
        Box::pin(async move {
            let store = self.0.get().ok_or("the store was not reached yet")?;
            let done = if pause { store.pause(route, what).await } else { store.resume(route, what).await };
            done.map_err(|why| why.to_string())?;
            store.paused(route).await.map_err(|why| why.to_string())
        })
    }
}
