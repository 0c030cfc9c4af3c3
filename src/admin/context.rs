//! The context of every handler: configured routes, access to the store, and the limits of that access.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio_util::sync::DropGuard;

use super::AdminState;
use super::auth::AccessTokens;
use super::caches::{DueMonths, LastOverview};
use super::problem::Problem;
use super::pulse::Pulse;
use super::refusals::Refusals;
use super::rendered::RenderedMetrics;
use super::store_turns::StoreTurns;
use crate::domain::{Route, RouteName, nearest};
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{Store, StoreError};

/// Longest wait for the store.
const STORE_DEADLINE: Duration = Duration::from_secs(5);

/// Context that every handler is given.
pub(super) struct Admin {
    pub(super) state: AdminState,
    pub(super) tokens: Arc<AccessTokens>,
    pub(super) shutdown: Shutdown,
    pub(super) tasks: Tasks,
    pub(super) refusals: Refusals,
    pub(super) pulse: Pulse,
    pub(super) rendered: RenderedMetrics,
    pub(super) live: LastOverview,
    pub(super) months: DueMonths,
    /// Dropped with the last connection and the last audit entry, which tells the listener's thread to end.
    _ended: DropGuard,
    turns: StoreTurns,
    by_name: BTreeMap<RouteName, Arc<Route>>,
}

impl Admin {
    pub(super) fn new(
        state: AdminState,
        tokens: Arc<AccessTokens>,
        refusals: Refusals,
        pulse: Pulse,
        ended: DropGuard,
        tasks: Tasks,
        shutdown: Shutdown,
    ) -> Arc<Self> {
        let by_name = state
            .routes
            .iter()
            .map(|r| (r.name.clone(), Arc::clone(r)))
            .collect();
        let rendered = RenderedMetrics::default();
        Arc::new(Self {
            state,
            tokens,
            shutdown,
            tasks,
            refusals,
            pulse,
            rendered,
            live: LastOverview::default(),
            months: DueMonths::default(),
            _ended: ended,
            turns: StoreTurns::new(),
            by_name,
        })
    }

    /// All routes, by name.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_name.values()
    }

    /// The route that a path or a query names; 404 with the nearest name if there is none.
    pub(super) fn route(&self, name: &str) -> Result<&Arc<Route>, Problem> {
        RouteName::new(name)
            .and_then(|name| self.by_name.get(&name))
            .ok_or_else(|| {
                let nearest =
                    nearest(name, self.by_name.keys().map(RouteName::as_str)).map(str::to_owned);
                Problem::not_found(format!("there is no route `{}`", name.escape_debug()))
                    .nearest(nearest)
            })
    }

    /// The store, if it can be reached right now; 503 if not. No call waits for a store that is known to be away.
    pub(super) fn store(&self) -> Result<&Store, Problem> {
        let store = self.state.store.get().filter(|store| store.is_reachable());
        store.ok_or_else(|| {
            Problem::unavailable("Redis cannot be reached right now; nothing was done, try again")
        })
    }

    /// Waits for a call to the store, [`STORE_DEADLINE`] at most.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let answer = tokio::time::timeout(STORE_DEADLINE, call).await;
        let answer = answer.map_err(|_| {
            let detail =
                "Redis did not answer in time; what was asked for may have been done: ask again";
            Problem::new(StatusCode::GATEWAY_TIMEOUT, detail)
        })?;
        answer.map_err(|error| Problem::unavailable(error.to_string()))
    }

    /// Waits for a turn at the store, and for a call that reads much.
    pub(super) async fn browse<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let turn = tokio::time::timeout(STORE_DEADLINE, self.turns.next()).await;
        let _turn =
            turn.map_err(|_| Problem::unavailable("too many calls wait at once; try again"))?;
        self.ask(call).await
    }
}
