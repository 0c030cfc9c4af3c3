//! Routes that were paused by hand: one hash for the whole store, `ROUTE/ingress` and `ROUTE/publishing` ->
//! since when, by whom and why. Every replica reads it every 400 ms and keeps its last knowledge while the store is
//! away. Until the first read nothing is known, and callers must not do anything that may be paused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;
use redis::cluster_routing::Slot;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::shared_keys::quarantine_shared;
use crate::domain::{
    Actor, Because, Pause, RouteName, RouteParts, RoutePause, StoreClock, Text, UnixMs,
};
use crate::lifecycle::{Tasks, tick};
use crate::store::call::keys::Keys;
use crate::store::connection::link::StoreLink;
use crate::store::{Store, StoreError};

/// How often the pauses are read: every replica knows of a change after this time and a round trip.
const READ_INTERVAL: Duration = Duration::from_millis(400);
/// Longest wait for one read. Then the next one tries again.
const READ_DEADLINE: Duration = Duration::from_secs(1);

type KnownPauses = Option<Arc<BTreeMap<String, RoutePause>>>;

/// A pause as the hash keeps it.
#[derive(Deserialize)]
struct StoredPause {
    at: i64,
    by: String,
    because: Option<Because>,
}

/// The pauses of all routes, as this replica knows them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RoutePauses(watch::Receiver<KnownPauses>);

impl RoutePauses {
    /// The paused parts of a route. `None` until the store was first asked.
    pub fn of(&self, route: &str) -> Option<RoutePause> {
        self.0
            .borrow()
            .as_ref()
            .map(|known| known.get(route).cloned().unwrap_or_default())
    }

    /// Reports whether a route's messages may be published: known, and not paused.
    pub fn may_publish(&self, route: &str) -> bool {
        may_publish(&self.0.borrow(), route)
    }

    /// Waits until the route's messages may be published. Cancel-safe.
    pub async fn until_publishing(&mut self, route: &str) {
        let has_ended = self
            .0
            .wait_for(|known| may_publish(known, route))
            .await
            .is_err();
        if has_ended {
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

fn may_publish(known: &KnownPauses, route: &str) -> bool {
    known.as_ref().is_some_and(|known| {
        known
            .get(route)
            .is_none_or(|paused| paused.publishing.is_none())
    })
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
) -> Result<BTreeMap<String, RoutePause>, StoreError> {
    let seen = read(side, &keys.paused()).await;
    if let Err(StoreError::Damaged(_)) = &seen {
        quarantine_shared(side, keys, clock.now()).await?;
    }
    seen
}

async fn read(side: &StoreLink, key: &str) -> Result<BTreeMap<String, RoutePause>, StoreError> {
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(key);
    let (found,): (Vec<(String, String)>,) = side.pipe(Slot::for_key(key), &pipe).await?;
    let mut seen: BTreeMap<String, RoutePause> = BTreeMap::new();
    for (field, stored) in found {
        let pause = || Some(Arc::new(read_pause(&stored)));
        match field.split_once('/') {
            Some((route, "ingress")) => seen.entry(route.to_owned()).or_default().ingress = pause(),
            Some((route, "publishing")) => {
                seen.entry(route.to_owned()).or_default().publishing = pause();
            }
            // A later version may pause more than this one knows of.
            _ => {}
        }
    }
    Ok(seen)
}

/// Reads a pause. What somebody else wrote there pauses all the same.
fn read_pause(stored: &str) -> Pause {
    match serde_json::from_str(stored) {
        Ok(StoredPause { at, by, because }) => Pause {
            since: Some(UnixMs(at)),
            by: Actor {
                name: by.into(),
                because,
            },
        },
        Err(_) => Pause {
            since: None,
            by: Actor::new(Text::from_static("somebody unknown")),
        },
    }
}

fn publish_pauses(publish: &watch::Sender<KnownPauses>, seen: BTreeMap<String, RoutePause>) {
    publish.send_if_modified(|known| {
        if known.as_deref() == Some(&seen) {
            return false;
        }
        let had = known.as_deref().cloned().unwrap_or_default();
        for (route, now) in &seen {
            if had.get(route) != Some(now) {
                log_pause(route, now);
            }
        }
        for route in had.keys().filter(|route| !seen.contains_key(*route)) {
            info!(route, "the route is resumed");
        }
        *known = Some(Arc::new(seen));
        true
    });
}

fn log_pause(route: &str, paused: &RoutePause) {
    let RouteParts {
        ingress,
        publishing,
    } = paused.parts();
    let Some(Pause { by, .. }) = paused
        .publishing
        .as_ref()
        .or(paused.ingress.as_ref())
        .map(|p| &**p)
    else {
        return;
    };
    let because = by.because.as_ref().map(Because::as_str);
    info!(route, ingress, publishing, by = %by.name, because, "the route is paused");
}

impl Store {
    /// Pauses these parts of a route for all replicas, from now on. A part that is paused already stays as it
    /// is. Each replica knows within half a second, this one as soon as the answer is there.
    pub async fn pause(
        &self,
        route: &RouteName,
        what: RouteParts,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let at = self.0.clock.now().0;
        let because = by.because.as_ref().map(Because::as_str);
        let stored = json!({ "at": at, "by": by.name.as_str(), "because": because }).to_string();
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HSETNX").arg(key).arg(field).arg(&stored).ignore();
        })
        .await
    }

    /// Resumes these parts of a route. A part that is not paused stays as it is.
    pub async fn resume(&self, route: &RouteName, what: RouteParts) -> Result<(), StoreError> {
        self.set_pauses(route, what, |pipe, key, field| {
            pipe.cmd("HDEL").arg(key).arg(field).ignore();
        })
        .await
    }

    /// The paused parts of a route, read from the store itself.
    pub async fn paused(&self, route: &RouteName) -> Result<RoutePause, StoreError> {
        let read = read(&self.0.side, &self.0.keys.paused()).await;
        let mut paused = self.mended(read).await?;
        Ok(paused.remove(route.as_str()).unwrap_or_default())
    }

    /// The pauses of all routes, as this replica knows them.
    pub fn pauses(&self) -> RoutePauses {
        RoutePauses(self.0.pause_watcher.pauses.clone())
    }

    async fn set_pauses(
        &self,
        route: &RouteName,
        what: RouteParts,
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
