//! Routes that were paused by hand: one hash for the whole store, `ROUTE/ingress` and `ROUTE/publishing` ->
//! since when (Unix ms). Every replica reads it twice a second and keeps its last knowledge while the store is
//! away. Until the first read nothing is known, and callers must not do anything that may be paused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;
use redis::cluster_routing::Slot;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::shared_keys::quarantine_shared;
use crate::domain::{PauseState, RouteName, StoreClock, UnixMs};
use crate::lifecycle::{Tasks, tick};
use crate::store::call::keys::Keys;
use crate::store::connection::link::StoreLink;
use crate::store::{Store, StoreError};

/// How often the pauses are read: every replica knows of a change after this time and a round trip.
const READ_INTERVAL: Duration = Duration::from_millis(400);
/// Longest wait for one read. Then the next one tries again.
const READ_DEADLINE: Duration = Duration::from_secs(1);

type KnownPauses = Option<Arc<BTreeMap<String, PauseState>>>;

/// The pauses of all routes, as this replica knows them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RoutePauses(watch::Receiver<KnownPauses>);

impl RoutePauses {
    /// The paused parts of a route. `None` until the store was first asked.
    pub fn of(&self, route: &str) -> Option<PauseState> {
        self.0
            .borrow()
            .as_ref()
            .map(|known| known.get(route).copied().unwrap_or_default())
    }

    /// Reports whether a route's messages may be published: known, and not paused.
    pub fn may_publish(&self, route: &str) -> bool {
        self.of(route).is_some_and(|paused| !paused.publishing)
    }

    /// Waits until the route's messages may be published. Cancel-safe.
    pub async fn until_publishing(&mut self, route: &str) {
        let open = |known: &KnownPauses| {
            known
                .as_ref()
                .is_some_and(|known| known.get(route).is_none_or(|paused| !paused.publishing))
        };
        if self.0.wait_for(open).await.is_err() {
            // The store's tasks have ended: nothing will resume any more, and the callers end too.
            std::future::pending::<()>().await;
        }
    }

    /// Reports whether the pauses have changed since the last call of this or of `changed`.
    pub fn has_changed(&mut self) -> bool {
        // An error means that nothing will change any more.
        let has_changed = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        has_changed
    }

    /// Waits until the pauses have changed since the last call. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps [`RoutePauses`] up to date.
pub(in crate::store) struct PauseWatcher {
    pauses: watch::Receiver<KnownPauses>,
    read_now: Arc<Notify>,
}

impl PauseWatcher {
    pub(in crate::store) fn start(
        side: &StoreLink,
        keys: &Keys,
        clock: &Arc<StoreClock>,
        tasks: &Tasks,
        force: &CancellationToken,
    ) -> Self {
        let (publish, pauses) = watch::channel(None);
        let read_now = Arc::new(Notify::new());
        let side = side.clone();
        let keys = keys.clone();
        let force = force.clone();
        let wake = read_now.clone();
        let clock = clock.clone();
        tasks.spawn("store:pauses", async move {
            loop {
                let seen = tokio::select! {
                    () = force.cancelled() => return,
                    seen = tokio::time::timeout(READ_DEADLINE, read_or_mend(&side, &keys, &clock)) => seen,
                };
                match seen {
                    Ok(Ok(seen)) => publish_pauses(&publish, seen),
                    Ok(Err(why)) => debug!(error = %why, "reading the paused routes failed; retrying"),
                    Err(_) => debug!("reading the paused routes timed out; retrying"),
                }
                tokio::select! {
                    () = force.cancelled() => return,
                    () = wake.notified() => {}
                    () = tick(READ_INTERVAL) => {}
                }
            }
        });
        Self { pauses, read_now }
    }
}

/// Reads the pauses. Moves a key of another type out of the way, because otherwise no route would ever publish.
async fn read_or_mend(
    side: &StoreLink,
    keys: &Keys,
    clock: &StoreClock,
) -> Result<BTreeMap<String, PauseState>, StoreError> {
    let seen = read(side, &keys.paused()).await;
    if let Err(StoreError::Damaged(_)) = &seen {
        quarantine_shared(side, keys, clock.now()).await?;
    }
    seen
}

async fn read(side: &StoreLink, key: &str) -> Result<BTreeMap<String, PauseState>, StoreError> {
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(key);
    let (found,): (Vec<(String, String)>,) = side.pipe(Slot::for_key(key), &pipe).await?;
    let mut seen: BTreeMap<String, PauseState> = BTreeMap::new();
    for (field, _) in found {
        match field.split_once('/') {
            Some((route, "ingress")) => seen.entry(route.to_owned()).or_default().ingress = true,
            Some((route, "publishing")) => {
                seen.entry(route.to_owned()).or_default().publishing = true;
            }
            // A later version may pause more than this one knows of.
            _ => {}
        }
    }
    Ok(seen)
}

fn publish_pauses(publish: &watch::Sender<KnownPauses>, seen: BTreeMap<String, PauseState>) {
    publish.send_if_modified(|known| {
        if known.as_deref() == Some(&seen) {
            return false;
        }
        let had = known.as_deref().cloned().unwrap_or_default();
        for (route, now) in &seen {
            if had.get(route) != Some(now) {
                info!(
                    route,
                    ingress = now.ingress,
                    publishing = now.publishing,
                    "the route is paused"
                );
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
    /// Pauses these parts of a route for all replicas, from now on. A part that is paused already stays as it
    /// is. Each replica knows within half a second, this one as soon as the answer is there.
    pub async fn pause(&self, route: &RouteName, what: PauseState) -> Result<(), StoreError> {
        let now = self.0.clock.now();
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HSETNX").arg(key).arg(field).arg(now.0).ignore();
        })
        .await
    }

    /// Resumes these parts of a route. A part that is not paused stays as it is.
    pub async fn resume(&self, route: &RouteName, what: PauseState) -> Result<(), StoreError> {
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HDEL").arg(key).arg(field).ignore();
        })
        .await
    }

    /// The paused parts of a route, read from the store itself.
    pub async fn paused(&self, route: &RouteName) -> Result<PauseState, StoreError> {
        let paused = read(&self.0.side, &self.0.keys.paused()).await?;
        Ok(paused.get(route.as_str()).copied().unwrap_or_default())
    }

    /// Since when a route's ingress is paused, by Redis's clock. `None`: it is not, or since a moment that cannot be read.
    pub async fn ingress_paused_since(
        &self,
        route: &RouteName,
    ) -> Result<Option<UnixMs>, StoreError> {
        let key = self.0.keys.paused();
        let mut pipe = redis::pipe();
        pipe.cmd("HGET").arg(&key).arg(format!("{route}/ingress"));
        let (since,): (Option<String>,) = self
            .mended(self.0.side.pipe(Slot::for_key(&key), &pipe).await)
            .await?;
        Ok(since.and_then(|since| since.parse().ok()).map(UnixMs))
    }

    /// The pauses of all routes, as this replica knows them.
    pub fn pauses(&self) -> RoutePauses {
        RoutePauses(self.0.pause_watcher.pauses.clone())
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
        let done = self
            .mended(self.0.side.pipe::<()>(Slot::for_key(&key), &pipe).await)
            .await;
        self.0.pause_watcher.read_now.notify_one();
        done
    }
}
