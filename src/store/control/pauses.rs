//! Which routes were paused by hand: one hash for the whole store, `ROUTE/ingress` and `ROUTE/publishing` ->
//! since when (Unix ms). Every replica reads it twice a second and keeps what it knew last while the store is
//! away. Until it was first read nothing is known, and whoever asks must do nothing of what may be paused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;
use redis::cluster_routing::Slot;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::shared_keys::quarantine_shared;
use crate::domain::{PauseState, RouteName, StoreClock};
use crate::lifecycle::{Tasks, tick};
use crate::store::call::keys::Keys;
use crate::store::connection::link::Link;
use crate::store::{Store, StoreError};

/// Every replica knows of a change after this and a round trip.
const LOOK: Duration = Duration::from_millis(400);
/// Longest wait for one look; then the next one tries again.
const DEADLINE: Duration = Duration::from_secs(1);

type Known = Option<Arc<BTreeMap<String, PauseState>>>;

/// What is paused, as this replica knows it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pauses(watch::Receiver<Known>);

impl Pauses {
    /// What of a route is paused; `None` until the store was first asked.
    pub fn of(&self, route: &str) -> Option<PauseState> {
        self.0.borrow().as_ref().map(|known| known.get(route).copied().unwrap_or_default())
    }

    /// Whether a route's messages may be published: known, and not paused.
    pub fn may_publish(&self, route: &str) -> bool {
        self.of(route).is_some_and(|paused| !paused.publishing)
    }

    /// Waits until they may be. Cancel-safe.
    pub async fn until_publishing(&mut self, route: &str) {
        let open = |known: &Known| {
            known.as_ref().is_some_and(|known| known.get(route).is_none_or(|paused| !paused.publishing))
        };
        if self.0.wait_for(open).await.is_err() {
            // The store's tasks have ended: nothing will open any more, and its callers end too.
            std::future::pending::<()>().await;
        }
    }

    /// Whether something else is known than at the last call of this one or of `changed`.
    pub fn has_changed(&mut self) -> bool {
        // An error means that nothing will change any more.
        let has_changed = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        has_changed
    }

    /// Waits until something else is known than at the last call. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// What keeps [`Pauses`] fresh.
pub(in crate::store) struct Lookout {
    hears: watch::Receiver<Known>,
    look_now: Arc<Notify>,
}

impl Lookout {
    pub(in crate::store) fn start(
        side: &Link,
        keys: &Keys,
        clock: &Arc<StoreClock>,
        tasks: &Tasks,
        force: &CancellationToken,
    ) -> Self {
        let (tell, hears) = watch::channel(None);
        let look_now = Arc::new(Notify::new());
        let (side, keys, force, told) = (side.clone(), keys.clone(), force.clone(), look_now.clone());
        let clock = clock.clone();
        tasks.spawn("store:pauses", async move {
            loop {
                let seen = tokio::select! {
                    () = force.cancelled() => return,
                    seen = tokio::time::timeout(DEADLINE, look_or_mend(&side, &keys, &clock)) => seen,
                };
                match seen {
                    Ok(Ok(seen)) => tell_of(&tell, seen),
                    Ok(Err(why)) => debug!(error = %why, "cannot read which routes are paused; trying on"),
                    Err(_) => debug!("no answer in time about which routes are paused; trying on"),
                }
                tokio::select! {
                    () = force.cancelled() => return,
                    () = told.notified() => {}
                    () = tick(LOOK) => {}
                }
            }
        });
        Self { hears, look_now }
    }
}

/// A key of another type is in nobody's way for longer than a look: else no route would publish, for ever.
async fn look_or_mend(
    side: &Link,
    keys: &Keys,
    clock: &StoreClock,
) -> Result<BTreeMap<String, PauseState>, StoreError> {
    let seen = look(side, &keys.paused()).await;
    if let Err(StoreError::Damaged(_)) = &seen {
        quarantine_shared(side, keys, clock.now()).await?;
    }
    seen
}

async fn look(side: &Link, key: &str) -> Result<BTreeMap<String, PauseState>, StoreError> {
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(key);
    let (found,): (Vec<(String, String)>,) = side.pipe(Slot::for_key(key), &pipe).await?;
    let mut seen: BTreeMap<String, PauseState> = BTreeMap::new();
    for (field, _) in found {
        match field.split_once('/') {
            Some((route, "ingress")) => seen.entry(route.to_owned()).or_default().ingress = true,
            Some((route, "publishing")) => seen.entry(route.to_owned()).or_default().publishing = true,
            // A later version may pause more than this one knows of.
            _ => {}
        }
    }
    Ok(seen)
}

fn tell_of(tell: &watch::Sender<Known>, seen: BTreeMap<String, PauseState>) {
    tell.send_if_modified(|known| {
        if known.as_deref() == Some(&seen) {
            return false;
        }
        let had = known.as_deref().cloned().unwrap_or_default();
        for (route, now) in &seen {
            if had.get(route) != Some(now) {
                info!(route, ingress = now.ingress, publishing = now.publishing, "the route is paused");
            }
        }
        for route in had.keys().filter(|route| !seen.contains_key(*route)) {
            info!(route, "the route is resumed");
        }
        *known = Some(Arc::new(seen));
        true
    });
}

impl Store {
    /// Pauses these parts of a route for all replicas, from `now` on; what is paused already stays as it is.
    /// Each replica knows within half a second, this one as soon as the answer is there.
    pub async fn pause(&self, route: &RouteName, what: PauseState) -> Result<(), StoreError> {
        let now = self.0.clock.now();
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HSETNX").arg(key).arg(field).arg(now.0).ignore();
        })
        .await
    }

    /// Resumes these parts of a route; what is not paused stays as it is.
    pub async fn resume(&self, route: &RouteName, what: PauseState) -> Result<(), StoreError> {
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HDEL").arg(key).arg(field).ignore();
        })
        .await
    }

    /// What of a route is paused, asked of the store itself.
    pub async fn paused(&self, route: &RouteName) -> Result<PauseState, StoreError> {
        let paused = look(&self.0.side, &self.0.keys.paused()).await?;
        Ok(paused.get(route.as_str()).copied().unwrap_or_default())
    }

    /// What is paused, as this replica knows it.
    pub fn pauses(&self) -> Pauses {
        Pauses(self.0.lookout.hears.clone())
    }

    async fn set_pauses(
        &self,
        route: &RouteName,
        what: PauseState,
        set: impl Fn(&mut Pipeline, &str, String),
    ) -> Result<(), StoreError> {
        let key = self.0.keys.paused();
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (field, wanted) in [("ingress", what.ingress), ("publishing", what.publishing)] {
            if wanted {
                set(&mut pipe, &key, format!("{route}/{field}"));
            }
        }
        let done = self.mended(self.0.side.pipe::<()>(Slot::for_key(&key), &pipe).await).await;
        self.0.lookout.look_now.notify_one();
        done
    }
}
