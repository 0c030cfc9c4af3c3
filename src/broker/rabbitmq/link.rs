//! A link keeps one connection up for one role: connects under a deadline, with back-off, for ever.
//!
//! The client library's own recovery is not used: under it no error surfaces and publishes hang. Here a
//! lost connection is gone; whoever used it sees its channels fail, and asks for the next one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::uri::AMQPUri;
use lapin::{ConnectionProperties, Event};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::health::Health;
use super::{Connection, Fault, FaultKind};
use crate::backoff::Backoff;
use crate::lifecycle::{Readiness, Shutdown, Tasks};

/// Longest wait for the broker to answer anything but a publish.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Seconds between heartbeats unless the URL says otherwise; a peer silent for two of them is dead.
const HEARTBEAT: u16 = 10;

/// One configured connection, shared by all that use it.
#[derive(Debug)]
pub struct Broker {
    connection: Connection,
    health: Health,
}

/// A role's connection, kept up. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Links {
    live: Arc<watch::Sender<Option<Live>>>,
}

/// One user's way to a role's connection, whichever it is at the moment. While draining, the
/// connection stays until all of these are gone.
#[derive(Clone, Debug)]
pub struct Link {
    live: watch::Receiver<Option<Live>>,
}

/// A connection that was up a moment ago. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Live {
    connection: Arc<lapin::Connection>,
    blocked: watch::Receiver<bool>,
}

impl Broker {
    /// A broker that nothing has connected to yet. Announces the readiness part `rabbitmq:<name>`.
    pub fn new(connection: Connection, readiness: &Readiness) -> Arc<Self> {
        let health = Health::new(&connection.name, readiness);
        Arc::new(Self { connection, health })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.connection.name
    }

    /// The user it connects as, if the URL is one.
    pub fn user(&self) -> Option<String> {
        self.uri().map(|uri| uri.authority.userinfo.username).ok()
    }

    /// Opens a connection for a role and keeps it up, until `shutdown` drains and every [`Link`] is
    /// gone, or it is forced. Its task is `task`.
    pub fn open(
        self: &Arc<Self>,
        role: &'static str,
        task: &str,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Links {
        let live = Arc::new(watch::Sender::new(None));
        let keeper = Keeper {
            broker: self.clone(),
            role,
            apart: false,
            live: live.clone(),
            shutdown: shutdown.clone(),
        };
        keeper.report(Some("not reached yet".to_owned()));
        tasks.spawn(task, keeper.run());
        Links { live }
    }

    /// Opens one more connection for a single user, until its [`Link`] is gone. Readiness knows nothing
    /// of it.
    pub fn open_apart(
        self: &Arc<Self>,
        role: &'static str,
        task: &str,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> Link {
        let (live, link) = watch::channel(None);
        let (live, shutdown) = (Arc::new(live), shutdown.clone());
        tasks.spawn(task, Keeper { broker: self.clone(), role, apart: true, live, shutdown }.run());
        Link { live: link }
    }

    /// Connects once, under the deadline: for `check --connect`.
    pub(super) async fn connect_once(&self) -> Result<lapin::Connection, Fault> {
        self.connect("check").await
    }

    fn uri(&self) -> Result<AMQPUri, Fault> {
        let not_a_url = |_| Fault::new(FaultKind::Refused, "the url is not an amqp:// or amqps:// URL");
        self.connection.url.expose().parse::<AMQPUri>().map_err(not_a_url)
    }

    pub(super) async fn connect(&self, role: &str) -> Result<lapin::Connection, Fault> {
        let mut uri = self.uri()?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let properties =
            ConnectionProperties::default().with_connection_name(format!("postdate {role}").into());
        match timeout(DEADLINE, lapin::Connection::connect_uri(uri, properties)).await {
            Ok(connection) => Ok(connection?),
            Err(_) => Err(no_answer("connecting")),
        }
    }
}

/// No answer within the deadline.
fn no_answer(what: &str) -> Fault {
    Fault::new(FaultKind::Lost, format!("{what}: no answer within {} s", DEADLINE.as_secs()))
}

impl Links {
    /// A way to the connection for one more user.
    pub fn link(&self) -> Link {
        Link { live: self.live.subscribe() }
    }
}

impl Link {
    /// The connection, once there is one that is up. `None` when there will be none any more.
    /// Cancel-safe.
    pub async fn live(&mut self) -> Option<Live> {
        let open = |live: &Option<Live>| live.as_ref().is_some_and(Live::is_open);
        self.live.wait_for(open).await.ok().and_then(|live| live.clone())
    }
}

impl Live {
    /// Whether it is up, as far as is known.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Opens a channel.
    pub async fn channel(&self) -> Result<lapin::Channel, Fault> {
        within("opening a channel", self.connection.create_channel()).await
    }

    /// Largest frame, as agreed with the broker.
    pub fn frame_max(&self) -> usize {
        self.connection.configuration().frame_max() as usize
    }

    /// Whether the broker has blocked its publishes (an alarm of memory or disk), to be watched.
    pub fn blocked(&self) -> watch::Receiver<bool> {
        self.blocked.clone()
    }
}

/// Waits for an answer of the broker, under the deadline.
pub async fn within<T>(what: &str, call: impl Future<Output = lapin::Result<T>>) -> Result<T, Fault> {
    match timeout(DEADLINE, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(no_answer(what)),
    }
}

/// Keeps a link's connection up.
struct Keeper {
    broker: Arc<Broker>,
    role: &'static str,
    /// For one user only: unneeded once that is gone.
    apart: bool,
    live: Arc<watch::Sender<Option<Live>>>,
    shutdown: Shutdown,
}

impl Keeper {
    async fn run(self) {
        let mut failures = 0;
        loop {
            let connected = tokio::select! {
                biased;
                () = self.unneeded() => return,
                connected = self.broker.connect(self.role) => connected,
            };
            let fault = match connected {
                Ok(connection) => {
                    failures = 0;
                    match self.serve(connection).await {
                        Some(fault) => fault,
                        None => return,
                    }
                }
                Err(fault) => fault,
            };
            self.down(&fault, failures == 0);
            failures += 1;
            tokio::select! {
                biased;
                () = self.unneeded() => return,
                () = tokio::time::sleep(Backoff::BROKER.wait(failures)) => {}
            }
        }
    }

    /// Resolves when nobody needs the connection any more.
    async fn unneeded(&self) {
        let let_go = async {
            if !self.apart {
                self.shutdown.draining().await;
            }
            self.live.closed().await;
        };
        tokio::select! {
            () = let_go => {}
            () = self.shutdown.forced() => {}
        }
    }

    /// Offers a connection until it is lost (why) or no longer needed (`None`; it is closed then).
    async fn serve(&self, connection: lapin::Connection) -> Option<Fault> {
        let mut events = connection.events_listener();
        // Lost before the listener was there: nothing would ever be told of it.
        if !connection.status().connected() {
            return Some(Fault::new(FaultKind::Lost, "the connection has ended"));
        }
        // What came before the listener was there is in the status.
        let (block, blocked) = watch::channel(connection.status().blocked());
        let live = Live { connection: Arc::new(connection), blocked };
        self.live.send_replace(Some(live.clone()));
        self.up();
        let fault = loop {
            let event = tokio::select! {
                biased;
                () = self.unneeded() => break None,
                event = events.next() => event,
            };
            match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    block.send_replace(true);
                    self.blocked(&reason);
                }
                Some(Event::ConnectionUnblocked) => {
                    block.send_replace(false);
                    self.up();
                }
                // Errors of single channels are told here too.
                Some(Event::Error(error)) if !live.is_open() => break Some(Fault::from(error)),
                Some(_) => {}
                None => break Some(Fault::new(FaultKind::Lost, "the connection has ended")),
            }
        };
        self.live.send_replace(None);
        if fault.is_none() && live.is_open() {
            self.close(&live).await;
        }
        fault
    }

    /// Closes in order, unless time has run out.
    async fn close(&self, live: &Live) {
        let closing = within("closing", live.connection.close(200, "bye".into()));
        tokio::select! {
            biased;
            () = self.shutdown.forced() => {}
            closed = closing => {
                if let Err(fault) = closed {
                    debug!(connection = %self.broker.name(), role = self.role, %fault, "not closed in order");
                }
            }
        }
    }

    /// Tells readiness. Returns whether that is news.
    fn report(&self, trouble: Option<String>) -> bool {
        !self.apart && self.broker.health.report(self.role, trouble)
    }

    fn up(&self) {
        if self.report(None) {
            info!(connection = %self.broker.name(), role = self.role, "rabbitmq is up");
        }
    }

    fn blocked(&self, reason: &str) {
        if self.report(Some(format!("blocked by the broker: {reason}"))) {
            warn!(connection = %self.broker.name(), role = self.role, reason, "rabbitmq has blocked publishing");
        }
    }

    fn down(&self, fault: &Fault, first: bool) {
        let url = self.broker.connection.url.redacted_url();
        self.report(Some(fault.to_string()));
        if first {
            warn!(connection = %self.broker.name(), role = self.role, url, error = %fault, "rabbitmq is away");
        } else {
            debug!(connection = %self.broker.name(), role = self.role, url, error = %fault, "rabbitmq is still away");
        }
    }
}
