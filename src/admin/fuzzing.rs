//! Entry point for fuzzing: requests to the API, with no store and no ingress behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Method, Request, header};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::auth::AccessTokens;
use super::context::Admin;
use super::pulse::Pulse;
use super::refusals::Refusals;
use super::router::router;
use super::{
    AdminState, AdmittedMessage, Config, Inject, InjectError, InvalidMessage, Redrive,
    RedriveOrder, RedriveOutcome, Skip,
};
use crate::api::BECAUSE_HEADER;
use crate::domain::{
    Clock, DelayRequest, Endpoint, Message, RequestedTime, Route, RouteName, SkipGoal, SkipOutcome,
    UnixMs, testing,
};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{DeadId, StoreError};
use crate::telemetry::{BurstLog, FollowRegistry, Metrics};

/// Content type of an answer that has no end of its own.
const EVENT_STREAM: &str = "text/event-stream";
/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Longest time of a call that waits for nothing.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// An answer of the API.
#[derive(Debug)]
pub struct ApiAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The body; empty for a stream of events.
    pub body: Vec<u8>,
}

/// The API of a replica without tokens, with a route from Kafka, `orders`, and one from RabbitMQ, `mail`.
#[allow(missing_debug_implementations)] // neither part has one
pub struct Api {
    runtime: Runtime,
    service: TowerToHyperService<Router>,
}

/// Everything that the API asks for but the store: nothing is there.
struct Nothing;

impl Inject for Nothing {
    fn admit(&self, route: &Route, message: Message) -> Result<AdmittedMessage, InvalidMessage> {
        Ok(AdmittedMessage {
            due: UnixMs(0),
            request: DelayRequest {
                received: UnixMs(0),
                time: RequestedTime::Delay(0),
                expires: None,
                given_back: 0,
            },
            target: route.to.clone(),
            message,
        })
    }

    fn inject<'a>(
        &'a self,
        _: &'a Arc<Route>,
        _: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>> {
        async { Err(InjectError::Unreachable("there is none".to_owned())) }.boxed()
    }
}

impl Redrive for Nothing {
    fn redrive<'a>(
        &'a self,
        _: &'a DeadId,
        _: RedriveOrder<'a>,
    ) -> BoxFuture<'a, Result<RedriveOutcome, StoreError>> {
        async { Ok(RedriveOutcome::Done) }.boxed()
    }
}

impl Skip for Nothing {
    fn skip<'a>(
        &'a self,
        _: &'a RouteName,
        _: &'a str,
        _: i32,
        _: SkipGoal,
    ) -> BoxFuture<'a, SkipOutcome> {
        std::future::ready(SkipOutcome::NotHere).boxed()
    }
}

impl Api {
    /// Makes the API.
    ///
    /// # Panics
    /// If the system gives no runtime.
    pub fn new() -> Self {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => panic!("no runtime: {error}"),
        };
        Self {
            runtime,
            service: TowerToHyperService::new(router(admin())),
        }
    }

    /// Answers a request from this machine. `None` if its method or URI is none.
    ///
    /// # Panics
    /// If the call panics, or does not end.
    pub fn answer(&self, method: &str, uri: &str, body: &[u8]) -> Option<ApiAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_vec()))
            .ok()?;
        // A call that takes no body says in a header why it is made.
        let because = HeaderValue::from_bytes(body).ok();
        if let Some(because) = because.filter(|_| request.method() == Method::DELETE) {
            request.headers_mut().insert(BECAUSE_HEADER, because);
        }
        let answered = async {
            let Ok(response) = self.service.call(request).await;
            let status = response.status().as_u16();
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type =
                content_type.map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
            let content_type = content_type.unwrap_or_default();
            // Events go on while somebody reads them.
            if content_type == EVENT_STREAM {
                return ApiAnswer {
                    status,
                    content_type,
                    body: Vec::new(),
                };
            }
            let body = match to_bytes(response.into_body(), MAX_ANSWER_BYTES).await {
                Ok(body) => body.to_vec(),
                Err(error) => panic!("{method} {uri}: no whole answer: {error}"),
            };
            ApiAnswer {
                status,
                content_type,
                body,
            }
        };
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(ANSWER_DEADLINE, answered).await });
        assert!(answer.is_ok(), "{method} {uri}: no answer");
        answer.ok()
    }
}

impl Default for Api {
    fn default() -> Self {
        Self::new()
    }
}

fn admin() -> Arc<Admin> {
    let clock = Clock::start();
    let orders = testing::route();
    let mut mail = Route::clone(&orders);
    mail.from = Endpoint::Rabbitmq {
        connection: "main".into(),
        queue: "mail.delayed".into(),
        prefetch: 500,
    };
    mail.name = RouteName::new("mail").unwrap_or_else(|| orders.name.clone());
    let routes = vec![orders, Arc::new(mail)];
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry, routes.iter().map(|route| route.name.clone()));
    let bursts = Arc::new(BurstLog::new(clock));
    let state = AdminState {
        routes,
        metrics: Arc::clone(&metrics),
        registry: Arc::new(registry),
        health: Health::default(),
        watch: Arc::new(FollowRegistry::default()),
        bursts: Arc::clone(&bursts),
        inject: Arc::new(Nothing),
        redrive: Arc::new(Nothing),
        skip: Arc::new(Nothing),
        clock,
        store: Arc::default(),
        replica: "this-one".to_owned(),
    };
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let none = super::config::TokenList::default();
    let config = Config {
        listen,
        probe_listen: None,
        tls: None,
        read_tokens: none.clone(),
        write_tokens: none,
    };
    let tokens = Arc::new(AccessTokens::new(&config));
    let refusals = Refusals::new(metrics, bursts);
    let ended = CancellationToken::new().drop_guard();
    Admin::new(
        state,
        tokens,
        refusals,
        Pulse::new(clock),
        ended,
        Tasks::default(),
        Shutdown::default(),
    )
}
