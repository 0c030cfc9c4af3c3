//! For tests: the server on a free port, in front of an ingress that records.

use std::collections::BTreeMap;
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

use super::{Config, Graves, Inject, InjectError, Pausing, Redriven, State, Unfit, start};
use crate::domain::route::{DelayFrom, HeaderNames, OnDuplicate, OnInvalid, OnRefused, RetryPolicy};
use crate::domain::{
    Clock, Endpoint, Header, HeaderValue, InvalidReason, Message, PauseState, Route, RouteName, RoutePolicy,
    RoutingKey, Secret, Target, TargetRef, UnixMs,
};
use crate::lifecycle::{Readiness, Shutdown, Tasks};
use crate::store::{Bundle, CodecError, DeadBody, DeadFilter, DeadId, DeadMark, DeadPage, StoreError};
use crate::telemetry::{FollowRegistry, Metrics};

/// A dead letter that is always there.
pub(crate) const DEAD: &str = "orders.attempts.0.n.1";
pub(crate) const READ: &str = "canary-read-Pa55";
pub(crate) const WRITE: &str = "canary-write-Pa55";

/// What the double does with a message after recording it.
#[derive(Clone)]
pub(crate) enum Then {
    Confirm,
    Fail(InjectError),
    Panic,
    /// Waits for `release`.
    Hold,
}

/// What is paused, in memory.
#[derive(Default)]
pub(crate) struct Pauses(Mutex<BTreeMap<RouteName, PauseState>>);

impl Pausing for Pauses {
    fn set<'a>(
        &'a self,
        route: &'a RouteName,
        what: PauseState,
        pause: bool,
    ) -> BoxFuture<'a, Result<PauseState, StoreError>> {
        let mut all = self.0.lock();
        let paused = all.entry(route.clone()).or_default();
        if what.ingress {
            paused.ingress = pause;
        }
        if what.publishing {
            paused.publishing = pause;
        }
        let paused = *paused;
        // A route by this name stands for a store that is away.
        let away = route.as_str() == "renamed";
        let away = away.then(|| StoreError::Unavailable("connection refused".to_owned()));
        async move { away.map_or(Ok(paused), Err) }.boxed()
    }
}

/// An ingress that records. It takes delays in whole milliseconds and calls any other `bad_delay`.
pub(crate) struct Recorder {
    pub(crate) injected: Mutex<Vec<(RouteName, Message)>>,
    pub(crate) then: Mutex<Then>,
    pub(crate) arrived: Notify,
    pub(crate) release: Notify,
    clock: Clock,
}

/// Ten dead letters of `orders` that stay whatever is done, one a millisecond from 1000 on; those of the message
/// `twice` are the first two, `order-3` is the third. One cannot be read, one may not be redriven.
pub(crate) struct Yard;

fn dead(n: usize) -> DeadId {
    DeadId::parse(&format!("orders.attempts.0.n.{n}")).expect("an id")
}

impl Graves for Yard {
    fn page<'a>(
        &'a self,
        filter: &'a DeadFilter,
        after: Option<&'a DeadMark>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DeadPage, StoreError>> {
        let marks = (0..10).map(|n| DeadMark { at: UnixMs(1000 + n), id: dead(n as usize) });
        let marks = marks.filter(|mark| after.is_none_or(|after| mark > after));
        let mut marks: Vec<_> = marks.filter(|m| filter.to.is_none_or(|to| m.at < to)).collect();
        let next = (marks.len() > limit).then(|| marks[limit - 1].clone());
        marks.truncate(limit);
        async move { Ok(DeadPage { marks, next }) }.boxed()
    }

    fn read<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<Option<DeadBody>>, StoreError>> {
        let body = |id: &DeadId| {
            let mut entry = crate::domain::testing::entry(UnixMs(1), b"body");
            entry.message.headers.push(Header::new("h", HeaderValue::Bytes(vec![255].into())));
            let bundle = Bundle { target: TargetRef::Own, entries: Arc::new(vec![entry]) };
            let bundle = if *id == dead(9) { Err(CodecError::Checksum) } else { Ok(bundle) };
            Some(DeadBody { bytes: 7, bundle, unopened: None })
        };
        let bodies = ids.iter().map(body).collect();
        async move { Ok(bodies) }.boxed()
    }

    fn at<'a>(&'a self, id: &'a DeadId) -> BoxFuture<'a, Result<Option<UnixMs>, StoreError>> {
        let found = (0..10).find(|&n| dead(n) == *id).map(|n| UnixMs(1000 + n as i64));
        async move { Ok(found) }.boxed()
    }

    fn find<'a>(
        &'a self,
        route: &'a RouteName,
        message: &'a str,
    ) -> BoxFuture<'a, Result<Vec<DeadId>, StoreError>> {
        let found = match (route.as_str(), message) {
            ("orders", "twice") => vec![dead(0), dead(1)],
            ("orders", "order-3") => vec![dead(2)],
            _ => Vec::new(),
        };
        async move { Ok(found) }.boxed()
    }

    fn redrive<'a>(
        &'a self,
        id: &'a DeadId,
        target: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Redriven, StoreError>> {
        let refused = target.is_some() || *id == dead(9);
        async move { Ok(if refused { Redriven::Refused("no".to_owned()) } else { Redriven::Done }) }.boxed()
    }

    fn drop_dead<'a>(&'a self, ids: &'a [DeadId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        async move { Ok(vec![true; ids.len()]) }.boxed()
    }
}

pub(crate) fn text(headers: &[Header], name: &str) -> Option<String> {
    headers.iter().find(|h| h.name.as_str() == name).map(|h| match &h.value {
        HeaderValue::Bytes(b) | HeaderValue::LongString(b) => String::from_utf8(b.to_vec()).expect("UTF-8"),
        other => panic!("not a text: {other:?}"),
    })
}

impl Inject for Recorder {
    fn judge(&self, route: &Route, message: &Message) -> Result<UnixMs, Unfit> {
        let names = &route.policy.headers;
        let delay =
            text(&message.headers, &names.delay).map(|t| t.parse().map(|ms| self.clock.wall().plus(ms)));
        let at = text(&message.headers, &names.deliver_at).map(|t| t.parse().map(UnixMs));
        let due = delay.or(at).expect("a delay header, always");
        due.map_err(|_| Unfit { reason: InvalidReason::BadDelay, error: "not a delay".to_owned() })
    }

    fn inject<'a>(
        &'a self,
        route: &'a Arc<Route>,
        message: Message,
    ) -> BoxFuture<'a, Result<(), InjectError>> {
        async move {
            self.injected.lock().push((route.name.clone(), message));
            self.arrived.notify_one();
            let then = self.then.lock().clone();
            match then {
                Then::Confirm => Ok(()),
                Then::Fail(error) => Err(error),
                Then::Panic => panic!("planted"),
                Then::Hold => {
                    self.release.notified().await;
                    Ok(())
                }
            }
        }
        .boxed()
    }
}

pub(crate) fn route(name: &str, from: Endpoint) -> Arc<Route> {
    let policy = RoutePolicy {
        headers: HeaderNames::default(),
        delay_from: DelayFrom::Produced,
        max_delay_ms: 2_592_000_000,
        max_size: 1 << 20,
        max_headers: 1 << 16,
        max_pending: 10_000_000,
        on_invalid: OnInvalid::DeadLetter,
        on_refused: OnRefused::Retry,
        on_duplicate: OnDuplicate::Keep,
        dedupe_ms: 0,
        rate: None,
        jitter_ms: 0,
        ordered: false,
        retry: RetryPolicy { attempts: 16, initial_ms: 1000, max_ms: 300_000 },
        dead_letters: crate::domain::DeadLetterLimits::default(),
    };
    let graveyard = matches!(from, Endpoint::Rabbitmq { .. }).then(|| {
        let (connection, exchange) = ("main".to_owned(), "dead".to_owned());
        let routing_key = RoutingKey::Fixed("key".to_owned());
        Arc::new(Target::Rabbitmq { connection, exchange, routing_key })
    });
    let name = RouteName::new(name).expect("a name");
    let to = match &from {
        Endpoint::Kafka { .. } => Target::Kafka { connection: "main".to_owned(), topic: "orders".to_owned() },
        Endpoint::Rabbitmq { .. } => Target::Rabbitmq {
            connection: "main".to_owned(),
            exchange: "mail".to_owned(),
            routing_key: RoutingKey::Preserve,
        },
    };
    Arc::new(Route {
        name,
        from,
        to: Arc::new(to),
        allow_targets: Vec::new(),
        dead_letter_to: graveyard,
        policy,
    })
}

/// A Kafka route `orders`, a RabbitMQ route `mail`, and one with names of its own for the headers.
pub(crate) fn routes() -> Vec<Arc<Route>> {
    let text = str::to_owned;
    let kafka =
        Endpoint::Kafka { connection: text("main"), topic: text("orders.delayed"), group: text("postdate") };
    let queue = Endpoint::Rabbitmq { connection: text("main"), queue: text("mail.delayed"), prefetch: 500 };
    let mut renamed = Route::clone(&route("renamed", kafka.clone()));
    renamed.policy.headers.delay = text("after");
    renamed.policy.headers.id = text("name");
    vec![route("orders", kafka), route("mail", queue), Arc::new(renamed)]
}

/// A state around a recording ingress.
pub(crate) fn state() -> (State, Arc<Recorder>) {
    let clock = Clock::start();
    let recorder = Arc::new(Recorder {
        injected: Mutex::default(),
        then: Mutex::new(Then::Confirm),
        arrived: Notify::new(),
        release: Notify::new(),
        clock,
    });
    let mut registry = Registry::default();
    let routes = routes();
    let metrics = Metrics::new(&mut registry, routes.iter().map(|r| r.name.clone()));
    let state = State {
        routes,
        metrics,
        registry: Arc::new(registry),
        readiness: Readiness::default(),
        watch: Arc::new(FollowRegistry::default()),
        inject: Arc::clone(&recorder) as Arc<dyn Inject>,
        pausing: Arc::new(Pauses::default()),
        graves: Arc::new(Yard),
        clock,
        store: Arc::default(),
        replica: "this-one".to_owned(),
    };
    (state, recorder)
}

pub(crate) fn config(read: &[&str], write: &[&str]) -> Config {
    let secrets = |texts: &[&str]| texts.iter().map(|t| Secret::new(*t)).collect();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Config { listen, read_tokens: secrets(read), write_tokens: secrets(write) }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) tasks: Tasks,
    pub(crate) shutdown: Shutdown,
    pub(crate) readiness: Readiness,
    pub(crate) watch: Arc<FollowRegistry>,
    pub(crate) metrics: Arc<Metrics>,
}

/// An answer as it stood on the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

impl Server {
    /// With a read and a write token.
    pub(crate) async fn start() -> Self {
        Self::with(config(&[READ], &[WRITE])).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let (state, recorder) = state();
        let (tasks, shutdown) = (Tasks::default(), Shutdown::default());
        let (readiness, watch) = (state.readiness.clone(), Arc::clone(&state.watch));
        let metrics = Arc::clone(&state.metrics);
        let address = start(&config, state, &tasks, shutdown.clone()).await.expect("started");
        Self { address, recorder, tasks, shutdown, readiness, watch, metrics }
    }

    /// Sends bytes on a connection of their own and reads all that comes back.
    pub(crate) async fn raw(&self, request: String) -> Answer {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.expect("connected");
            stream.write_all(request.as_bytes()).await.expect("written");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer in UTF-8");
            answer
        };
        let answer =
            tokio::time::timeout(Duration::from_secs(30), exchange).await.expect("an answer in time");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// One request, with a token if one is given.
    pub(crate) async fn call(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let token = token.map(|t| format!("authorization: Bearer {t}\r\n")).unwrap_or_default();
        let host = self.address;
        let length = body.len();
        self.raw(format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{token}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    /// `POST /api/v1/routes/{route}/messages` with the write token.
    pub(crate) async fn send(&self, route: &str, body: serde_json::Value) -> Answer {
        self.call("POST", &format!("/api/v1/routes/{route}/messages"), Some(WRITE), &body.to_string()).await
    }

    /// Ends the server; all its tasks must end.
    pub(crate) async fn end(self) {
        self.shutdown.begin();
        assert_eq!(self.tasks.ended(Duration::from_secs(30)).await, Ok(()));
        assert!(!self.tasks.has_panicked());
    }
}
