//! Pausing and resuming a route by hand, on all replicas.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Extract;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::audit::Noted;
use super::extract::{Asked, InRoute, OfRoute};
use super::problem::Problem;
use super::router::Admin;
use crate::domain::{Paused, RouteName};
use crate::store::{Store, StoreError};

/// Longest wait for the store.
const DEADLINE: Duration = Duration::from_secs(5);

/// Which part of a route.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Part {
    /// Reading its topic or queue.
    Ingress,
    /// Publishing its messages.
    Publishing,
}

/// What is to be paused or resumed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct What {
    /// Only this part; without it both.
    #[param(required = false, nullable = false)]
    only: Option<Part>,
}

impl What {
    fn parts(&self) -> Paused {
        match self.only {
            None => Paused { ingress: true, publishing: true },
            Some(Part::Ingress) => Paused { ingress: true, publishing: false },
            Some(Part::Publishing) => Paused { ingress: false, publishing: true },
        }
    }
}

/// What of a route is paused by hand.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Paused)]
pub(super) struct View {
    /// The route.
    route: String,
    /// Nothing is read from its topic or queue.
    ingress: bool,
    /// Nothing of it is claimed or published.
    publishing: bool,
}

type Answer = (Extension<Noted>, Json<View>);

/// Pause a route
///
/// Its ingress, its publishing, or both, on every replica within a second, until it is resumed; restarts change
/// nothing about it. What was claimed already (of the next 250 ms, or two seconds' worth of a limited rate) may
/// still go out. What is paused already stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/pause", operation_id = "pauseRoute", params(InRoute, What),
    responses(
        (status = 200, description = "What of it is paused now.", body = View),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 503, description = "The store does not answer; it may be paused all the same.")
    )
)]
pub(super) async fn pause(
    Extract(admin): Extract<Arc<Admin>>,
    OfRoute(route): OfRoute,
    Asked(what): Asked<What>,
) -> Result<Answer, Problem> {
    let store = admin.store()?;
    done(store, &route.name, store.pause(&route.name, what.parts())).await
}

/// Resume a route
///
/// Its ingress, its publishing, or both, on every replica within a second. What is not paused stays so.
#[utoipa::path(
    post, path = "/api/v1/routes/{route}/resume", operation_id = "resumeRoute", params(InRoute, What),
    responses(
        (status = 200, description = "What of it is paused still.", body = View),
        (status = 400, description = "No such part."),
        (status = 404, description = "No such route."),
        (status = 503, description = "The store does not answer; it may be resumed all the same.")
    )
)]
pub(super) async fn resume(
    Extract(admin): Extract<Arc<Admin>>,
    OfRoute(route): OfRoute,
    Asked(what): Asked<What>,
) -> Result<Answer, Problem> {
    let store = admin.store()?;
    done(store, &route.name, store.resume(&route.name, what.parts())).await
}

/// Makes the call, and asks the store what is paused after it.
async fn done(
    store: &Store,
    route: &RouteName,
    call: impl Future<Output = Result<(), StoreError>>,
) -> Result<Answer, Problem> {
    let asked = tokio::time::timeout(DEADLINE, async {
        call.await?;
        store.paused(route).await
    });
    let paused = match asked.await {
        Ok(Ok(paused)) => paused,
        Ok(Err(why)) => return Err(Problem::unavailable(format!("{why}; ask again"))),
        Err(_) => return Err(Problem::unavailable("the store did not answer in time; ask again")),
    };
    let word = |paused| if paused { "paused" } else { "running" };
    let result = format!("ingress {}, publishing {}", word(paused.ingress), word(paused.publishing));
    let view = View { route: route.to_string(), ingress: paused.ingress, publishing: paused.publishing };
    Ok((Extension(Noted::new("", result)), Json(view)))
}
