//! For tests: the server on a free port, in front of an ingress that records. It has no store: calls that need one
//! answer 503.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::auth::AccessTokens;
use super::config::{NamedToken, TokenList};
use super::connection::OpenConnections;
use super::context::Admin;
use super::pulse::Pulse;
use super::refusals::Refusals;
use super::server::{BoundServer, ListenAddresses};
use super::{
    AdminState, AdmittedMessage, Config, Inject, InjectError, InvalidMessage, Redrive,
    RedriveOrder, RedriveOutcome, Skip,
};
use crate::domain::{
    Clock, DelayRequest, Endpoint, Header, HeaderValue, InvalidReason, Message, RequestedTime,
    Route, RouteName, RoutingKey, SkipGoal, SkipOutcome, Target, Topics, UnixMs, testing,
};
use crate::health::Health;
use crate::lifecycle::{Shutdown, Tasks};
use crate::store::{DeadId, StoreError};
use crate::telemetry::{BurstLog, FollowRegistry, Metrics};

/// An id of the form of a dead letter's.
pub(crate) const DEAD_ID: &str = "orders.attempts.0.n.1";
pub(crate) const READ_TOKEN: &str = "canary-read-Pa55";
pub(crate) const WRITE_TOKEN: &str = "canary-write-Pa55";

/// Behaviour of the double after it has recorded a message.
#[derive(Clone)]
pub(crate) enum InjectBehaviour {
    Confirm,
    Fail(InjectError),
    Panic,
    /// Waits for `release`.
    Hold,
}

/// An ingress that records. It takes delays in whole milliseconds and calls any other `bad_delay`.
pub(crate) struct RecordingIngress {
    pub(crate) injected: Mutex<Vec<(RouteName, Message)>>,
    pub(crate) behaviour: Mutex<InjectBehaviour>,
    pub(crate) arrived: Notify,
    pub(crate) release: Notify,
    clock: Clock,
}

/// A redrive that succeeds at once. Without a store no test here reaches it.
struct InstantRedrive;

impl Redrive for InstantRedrive {
    fn redrive<'a>(
        &'a self,
        _: &'a DeadId,
        _: RedriveOrder<'a>,
    ) -> BoxFuture<'a, Result<RedriveOutcome, StoreError>> {
        async { Ok(RedriveOutcome::Done) }.boxed()
    }
}

/// Skips of partitions. Partition 0 stands at offset 7, 1 does not stand, and 3 waits for a word, with a log from 5 to 9.
/// This replica reads no other.
struct StandingAtSeven;

impl Skip for StandingAtSeven {
    fn skip<'a>(
        &'a self,
        _: &'a RouteName,
        _: &'a str,
        partition: i32,
        goal: SkipGoal,
    ) -> BoxFuture<'a, SkipOutcome> {
        let result = match (partition, goal) {
            (0, SkipGoal::Past(7)) => SkipOutcome::GoesOn(8),
            (0, _) => SkipOutcome::StandsElsewhere(7),
            (1, _) => SkipOutcome::DoesNotStand(7),
            (3, SkipGoal::Past(_)) => SkipOutcome::NotRead("it waits".to_owned()),
            (3, SkipGoal::To(offset @ 5..=9)) => SkipOutcome::GoesOn(offset),
            (3, SkipGoal::To(_)) => SkipOutcome::OutsideLog(5, 9),
            (3, SkipGoal::Since(_)) => SkipOutcome::GoesOn(6),
            _ => SkipOutcome::NotHere,
        };
        std::future::ready(result).boxed()
    }
}

/// The value of a header that holds text; `None` if there is no such header.
pub(crate) fn text(headers: &[Header], name: &str) -> Option<String> {
    headers
        .iter()
        .find(|h| h.name.as_str() == name)
        .map(|h| match &h.value {
            HeaderValue::Bytes(b) | HeaderValue::LongString(b) => {
                String::from_utf8(b.to_vec()).expect("UTF-8")
            }
            other => panic!("not a text: {other:?}"),
        })
}

impl Inject for RecordingIngress {
    fn admit(&self, route: &Route, message: Message) -> Result<AdmittedMessage, InvalidMessage> {
        let names = &route.policy.headers;
        let delay = text(&message.headers, &names.delay)
            .map(|t| t.parse().map(|ms| self.clock.wall().plus(ms)));
        let at = text(&message.headers, &names.deliver_at).map(|t| t.parse().map(UnixMs));
        let due = delay.or(at).expect("a delay header, always");
        let due = due.map_err(|_| InvalidMessage {
            reason: InvalidReason::BadDelay,
            error: "not a delay".to_owned(),
        })?;
        Ok(AdmittedMessage {
            due,
            request: DelayRequest {
                received: self.clock.wall(),
                time: RequestedTime::At(due),
                expires: None,
                given_back: 0,
            },
            target: route.to.clone(),
            message,
        })
    }

    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>> {
        async move {
            self.injected.lock().push((route.name.clone(), message));
            self.arrived.notify_one();
            let behaviour = self.behaviour.lock().clone();
            match behaviour {
                InjectBehaviour::Confirm => Ok(()),
                InjectBehaviour::Fail(error) => Err(error),
                InjectBehaviour::Panic => panic!("planted"),
                InjectBehaviour::Hold => {
                    self.release.notified().await;
                    Ok(())
                }
            }
        }
        .boxed()
    }
}

pub(crate) fn route(name: &str, from: Endpoint) -> Arc<Route> {
    let dead_letter_to = matches!(from, Endpoint::Rabbitmq { .. }).then(|| {
        Arc::new(Target::Rabbitmq {
            connection: "main".to_owned(),
            exchange: "dead".to_owned(),
            routing_key: RoutingKey::Fixed("key".to_owned()),
        })
    });
    let to = match &from {
        Endpoint::Kafka { .. } => testing::kafka_target("orders"),
        Endpoint::Rabbitmq { .. } => Target::Rabbitmq {
            connection: "main".to_owned(),
            exchange: "mail".to_owned(),
            routing_key: RoutingKey::Preserve,
        },
    };
    Arc::new(Route {
        dead_letter_to,
        ..testing::route_between(name, from, to)
    })
}

/// A Kafka route `orders`, a RabbitMQ route `mail`, and one with names of its own for the headers.
pub(crate) fn routes() -> Vec<Arc<Route>> {
    let text = str::to_owned;
    let kafka = testing::kafka_source(Topics::one("orders.delayed"), "postdate");
    let queue = Endpoint::Rabbitmq {
        connection: text("main"),
        queue: text("mail.delayed"),
        prefetch: 500,
    };
    let mut renamed = Route::clone(&route("renamed", kafka.clone()));
    renamed.policy.headers.delay = text("after");
    renamed.policy.headers.id = text("name");
    vec![
        route("orders", kafka),
        route("mail", queue),
        Arc::new(renamed),
    ]
}

/// A state around a recording ingress.
pub(crate) fn state() -> (AdminState, Arc<RecordingIngress>) {
    let clock = Clock::start();
    let recorder = Arc::new(RecordingIngress {
        injected: Mutex::default(),
        behaviour: Mutex::new(InjectBehaviour::Confirm),
        arrived: Notify::new(),
        release: Notify::new(),
        clock,
    });
    let mut registry = Registry::default();
    let routes = routes();
    let metrics = Metrics::new(&mut registry, routes.iter().map(|r| r.name.clone()));
    let state = AdminState {
        routes,
        metrics,
        registry: Arc::new(registry),
        health: Health::default(),
        watch: Arc::new(FollowRegistry::default()),
        bursts: Arc::new(BurstLog::new(clock)),
        inject: Arc::clone(&recorder) as Arc<dyn Inject>,
        redrive: Arc::new(InstantRedrive),
        skip: Arc::new(StandingAtSeven),
        clock,
        store: Arc::default(),
        replica: "this-one".to_owned(),
    };
    (state, recorder)
}

pub(crate) fn config(read: &[&str], write: &[&str]) -> Config {
    let tokens = |texts: &[&str]| TokenList {
        tokens: texts
            .iter()
            .map(|text| NamedToken::parse(text).expect("a token"))
            .collect(),
        file: None,
    };
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        listen,
        probe_listen: None,
        tls: None,
        read_tokens: tokens(read),
        write_tokens: tokens(write),
    }
}

/// The context of a server without tokens and connections.
pub(super) fn open_admin(state: AdminState) -> Arc<Admin> {
    let tokens = Arc::new(AccessTokens::new(&config(&[], &[])));
    let refusals = Refusals::new(state.metrics.clone(), state.bursts.clone());
    let pulse = Pulse::new(state.clock);
    let gone = CancellationToken::new().drop_guard();
    Admin::new(
        state,
        tokens,
        refusals,
        pulse,
        gone,
        Tasks::default(),
        Shutdown::default(),
    )
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) recorder: Arc<RecordingIngress>,
    pub(crate) tasks: Tasks,
    pub(crate) shutdown: Shutdown,
    pub(crate) health: Health,
    pub(crate) watch: Arc<FollowRegistry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(super) addresses: ListenAddresses,
    pub(super) connections: Arc<OpenConnections>,
}

/// An answer as it was on the wire.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next()
    }
}

impl TestServer {
    /// With a read and a write token.
    pub(crate) async fn start() -> Self {
        let read = format!("looker {READ_TOKEN}");
        let write = format!("actor {WRITE_TOKEN}");
        Self::with(config(&[&read], &[&write])).await
    }

    /// On the runtime of the test, whose clock and log it shares.
    pub(crate) async fn with(config: Config) -> Self {
        let (state, recorder) = state();
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let health = state.health.clone();
        let watch = Arc::clone(&state.watch);
        let metrics = Arc::clone(&state.metrics);
        let pulse = Pulse::new(state.clock);
        let bound = BoundServer::bind(&config, state, &tasks, shutdown.clone(), pulse)
            .await
            .expect("bound");
        let address = bound.addresses.admin;
        let addresses = bound.addresses;
        let connections = bound.connections();
        tasks.spawn("admin", bound.serve(tasks.clone()));
        Self {
            address,
            recorder,
            tasks,
            shutdown,
            health,
            watch,
            metrics,
            addresses,
            connections,
        }
    }

    /// Sends bytes on a connection of their own and reads all that comes back.
    pub(crate) async fn raw(&self, request: String) -> HttpAnswer {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.expect("connected");
            stream.write_all(request.as_bytes()).await.expect("written");
            let mut answer = String::new();
            stream
                .read_to_string(&mut answer)
                .await
                .expect("an answer in UTF-8");
            answer
        };
        let answer = tokio::time::timeout(Duration::from_secs(30), exchange)
            .await
            .expect("an answer in time");
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .expect("a status");
        HttpAnswer {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// One request, with a token if one is given.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> HttpAnswer {
        let token = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = token
            .iter()
            .map(|token| ("authorization", token.as_str()))
            .collect();
        self.call_with(method, path, &headers, body).await
    }

    /// The same with these headers.
    pub(crate) async fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> HttpAnswer {
        let headers: String = headers
            .iter()
            .flat_map(|(name, value)| [*name, ": ", *value, "\r\n"])
            .collect();
        let host = self.address;
        let length = body.len();
        self.raw(format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    /// `POST /api/v1/routes/{route}/messages` with the write token.
    pub(crate) async fn send(&self, route: &str, body: serde_json::Value) -> HttpAnswer {
        self.call(
            "POST",
            &format!("/api/v1/routes/{route}/messages"),
            Some(WRITE_TOKEN),
            &body.to_string(),
        )
        .await
    }

    /// Ends the server; all its tasks must end.
    pub(crate) async fn end(self) {
        self.shutdown.begin();
        assert_eq!(self.tasks.ended(Duration::from_secs(30)).await, Ok(()));
        assert!(!self.tasks.has_panicked());
    }
}
