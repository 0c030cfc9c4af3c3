//! The dead letters for the API: the store's, under the rules of their routes.

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::admin::{Graves, Redriven};
use crate::domain::{Route, RouteName, UnixMs};
use crate::ingress;
use crate::store::{DeadBody, DeadFilter, DeadId, DeadMark, DeadPage, Store, StoreError};

/// The store once it is there, and the routes.
pub(super) struct StoreGraves {
    pub(super) store: Arc<OnceLock<Store>>,
    pub(super) routes: Vec<Arc<Route>>,
}

impl StoreGraves {
    fn store(&self) -> Result<&Store, StoreError> {
        self.store.get().ok_or_else(|| StoreError::Unavailable("it has not been reached yet".to_owned()))
    }

    async fn again(&self, id: &DeadId, target: Option<&str>) -> Result<Redriven, StoreError> {
        let store = self.store()?;
        let Some(body) = store.dead_letters(std::slice::from_ref(id)).await?.pop().flatten() else {
            return Ok(Redriven::Unknown);
        };
        let Some(route) = self.routes.iter().find(|route| route.name.as_str() == id.route()) else {
            return Ok(Redriven::Refused("its route is not in this configuration (any more)".to_owned()));
        };
        let letter = match body.bundle {
            Ok(letter) => letter,
            Err(why) => return Ok(Redriven::Refused(format!("it cannot be read: {why}"))),
        };
        let now = store.clock().now();
        match ingress::redrive(&letter, id.reason(), route, target, now) {
            Err(why) => Ok(Redriven::Refused(why)),
            Ok(bundle) => {
                let done = store.redrive(id, &bundle).await?;
                Ok(if done { Redriven::Done } else { Redriven::Unknown })
            }
        }
    }
}

impl Graves for StoreGraves {
    fn page<'a>(
        &'a self,
        filter: &'a DeadFilter,
        after: Option<&'a DeadMark>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DeadPage, StoreError>> {
        async move { self.store()?.dead_page(filter, after, limit).await }.boxed()
    }

    fn read<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<Option<DeadBody>>, StoreError>> {
        async move { self.store()?.dead_letters(ids).await }.boxed()
    }

    fn at<'a>(&'a self, id: &'a DeadId) -> BoxFuture<'a, Result<Option<UnixMs>, StoreError>> {
        async move { self.store()?.dead_at(id).await }.boxed()
    }

    fn find<'a>(
        &'a self,
        route: &'a RouteName,
        message: &'a str,
    ) -> BoxFuture<'a, Result<Vec<DeadId>, StoreError>> {
        async move { self.store()?.dead_of_message(route, message).await }.boxed()
    }

    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        target: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Redriven, StoreError>> {
        self.again(id, target).boxed()
    }

    fn drop_dead<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        async move { self.store()?.drop_dead(ids).await }.boxed()
    }
}
