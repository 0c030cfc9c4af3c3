//! Redrive of dead letters for the API: the store's dead letters, under the rules of their routes.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use crate::admin::{Redrive, RedriveOrder, RedriveOutcome};
use crate::domain::Route;
use crate::ingress;
use crate::store::{DeadId, Store, StoreError};

/// Makes dead letters of the store due again.
pub(super) struct StoreRedrive {
    /// The store, once it may be used.
    pub(super) store: Arc<OnceLock<Store>>,
    /// All configured routes.
    pub(super) routes: Vec<Arc<Route>>,
}

impl StoreRedrive {
    async fn redrive_one(
        &self,
        id: &DeadId,
        order: RedriveOrder<'_>,
    ) -> Result<RedriveOutcome, StoreError> {
        let Some(store) = self.store.get() else {
            let why = "it has not been reached yet";
            return Err(StoreError::Unavailable(why.to_owned()));
        };
        let Some(body) = store
            .dead_letters(std::slice::from_ref(id))
            .await?
            .pop()
            .flatten()
        else {
            return Ok(RedriveOutcome::Unknown);
        };
        let Some(route) = self
            .routes
            .iter()
            .find(|route| route.name.as_str() == id.route())
        else {
            let why = "its route is not in this configuration (any more)";
            return Ok(RedriveOutcome::Refused(why.to_owned()));
        };
        let dead = match body.open() {
            Ok(bundle) => bundle,
            Err(why) => return Ok(RedriveOutcome::Refused(format!("it cannot be read: {why}"))),
        };
        let now = store.clock().now();
        let due = order.due.max(now);
        match ingress::redrive(&dead, id.reason(), route, order.target, due, now) {
            Err(why) => Ok(RedriveOutcome::Refused(why)),
            Ok(bundle) => {
                let done = store.redrive_by(id, &bundle, order.by).await?;
                Ok(if done {
                    RedriveOutcome::Done
                } else {
                    RedriveOutcome::Unknown
                })
            }
        }
    }
}

impl Redrive for StoreRedrive {
    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        order: RedriveOrder<'a>,
    ) -> BoxFuture<'a, Result<RedriveOutcome, StoreError>> {
        Box::pin(self.redrive_one(id, order))
    }
}
