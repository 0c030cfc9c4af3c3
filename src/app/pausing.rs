//! Pausing by the store, once it was reached.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use crate::admin::Pausing;
use crate::domain::{PauseState, RouteName};
use crate::store::{Store, StoreError};

/// The way to what is paused.
pub(super) struct StorePausing(pub(super) Arc<OnceLock<Store>>);

impl Pausing for StorePausing {
    fn set<'a>(
        &'a self,
        route: &'a RouteName,
        what: PauseState,
        pause: bool,
    ) -> BoxFuture<'a, Result<PauseState, StoreError>> {
        Box::pin(async move {
            let away = || StoreError::Unavailable("it has not been reached yet".to_owned());
            let store = self.0.get().ok_or_else(away)?;
            if pause { store.pause(route, what).await } else { store.resume(route, what).await }?;
            store.paused(route).await
        })
    }
}
