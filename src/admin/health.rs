//! Probes and metrics: open, cheap, and answered whatever the data plane does.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::problem::Problem;
use super::router::Admin;
use crate::lifecycle::readiness::State;

/// 200 while the process turns: whoever can answer, does.
pub(super) async fn live() -> Json<Value> {
    Json(json!({ "live": true }))
}

/// 200 or 503; the same form in both, naming each part.
pub(super) async fn ready(Extract(admin): Extract<Arc<Admin>>) -> impl IntoResponse {
    let readiness = &admin.state.readiness;
    let ready = readiness.is_ready();
    let parts: Vec<_> = readiness
        .parts()
        .into_iter()
        .map(|(name, state)| match state {
            State::Up => json!({ "name": name, "state": "up" }),
            State::Waiting(why) => json!({ "name": name, "state": "waiting", "why": why }),
            State::Degraded(why) => json!({ "name": name, "state": "degraded", "why": why }),
        })
        .collect();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "draining": readiness.is_draining(), "parts": parts })))
}

/// Every metric, in OpenMetrics text.
pub(super) async fn metrics(Extract(admin): Extract<Arc<Admin>>) -> Result<impl IntoResponse, Problem> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &admin.state.registry).map_err(|e| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be written: {e}"))
    })?;
    Ok(([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}
