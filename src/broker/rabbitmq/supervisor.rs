//! Supervised connections: one task keeps the connection of one role up. It connects under a deadline, with
//! back-off, for ever.
//!
//! The client library's own recovery is not used: under it no error surfaces, and publishes hang. Here a lost
//! connection is gone. Its users see their channels fail, and ask for the next connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{ConnectionProperties, Event};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::guarded_channels::{GuardedChannels, ReturnCounter};
use super::guarded_connect;
use super::health::RoleHealth;
use super::{AmqpFault, Connection, FaultKind, UnusableHosts};
use crate::backoff::Backoff;
use crate::health::Health;
use crate::health::{NOT_REACHED, WAITS_FOR_STORE};
use crate::lifecycle::{Shutdown, Tasks};
use crate::tls::{Expected, examine};

/// Longest wait for the broker to answer anything but a publish.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the broker to agree that a connection closes. Publications have their answers by then and
/// acknowledgements are on their way, so a process that ends must not be late for it.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);
/// A connection that lasted so long shows that its host can be used.
const LASTING: Duration = Duration::from_secs(1);
/// Time without an answer to the first attempt to connect after which the log says so.
const SLOW_ANSWER: Duration = Duration::from_secs(4);
/// Seconds between heartbeats, unless the URL says otherwise. A peer that is silent for two of them is dead.
const HEARTBEAT_SECONDS: u16 = 10;
/// Bytes of the largest frame that we ask for, unless the URL says otherwise: RabbitMQ's own default.
const FRAME_MAX: u32 = 128 * 1024;
/// Most that the URL can ask for.
const MOST_FRAME_MAX: u32 = 1024 * 1024;

/// One configured connection, shared by all of its users.
#[derive(Debug)]
pub struct Broker {
    connection: Connection,
    health: RoleHealth,
}

/// The connection of a role, kept up by its supervisor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedConnection {
    live: Arc<watch::Sender<Option<LiveConnection>>>,
}

/// One user's handle to a role's connection, whichever it is at the moment. While draining, the connection
/// stays until all handles are gone.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    live: watch::Receiver<Option<LiveConnection>>,
}

/// A connection that was up a moment ago. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveConnection {
    connection: Arc<lapin::Connection>,
    channels: GuardedChannels,
    blocked: watch::Receiver<bool>,
}

impl Broker {
    /// A broker without a connection yet. Announces the readiness part `rabbitmq:<name>`.
    pub fn new(connection: Connection, health: &Health) -> Arc<Self> {
        let health = RoleHealth::new(&connection.name, health);
        Arc::new(Self { connection, health })
    }

    /// Announces a role that will be opened once the store is there. The readiness part is not up before it is.
    pub fn announce(&self, role: &'static str) {
        self.health.announce(role, WAITS_FOR_STORE);
    }

    /// The configuration of the connection.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The connection's name.
    pub fn name(&self) -> &str {
        &self.connection.name
    }

    /// The user of the connection, if the URL is valid.
    pub fn user(&self) -> Option<String> {
        self.uri(0).map(|uri| uri.authority.userinfo.username).ok()
    }

    /// Opens a connection for a role and keeps it up, until `shutdown` drains and every [`ConnectionHandle`] is
    /// gone, or it is forced. `task` is the name of the supervisor's task.
    pub fn open(
        self: &Arc<Self>,
        role: &'static str,
        task: &str,
        tasks: &Tasks,
        shutdown: &Shutdown,
    ) -> SharedConnection {
        let live = Arc::new(watch::Sender::new(None));
        let supervisor = RoleSupervisor {
            broker: self.clone(),
            role,
            live: live.clone(),
            shutdown: shutdown.clone(),
        };
        self.health.announce(role, NOT_REACHED);
        tasks.spawn(task, supervisor.run());
        SharedConnection { live }
    }

    /// Connects once to the first host that can be reached, for `check --connect`, and says which it is. Waits for each at
    /// most so long.
    pub(super) async fn connect_once(
        &self,
        at_most: Duration,
    ) -> Result<(usize, lapin::Connection), UnusableHosts> {
        let mut unusable = Vec::new();
        for turn in 0..self.connection.hosts() {
            match self.connect_within(turn, at_most).await {
                Ok(connection) => return Ok((turn, connection)),
                Err(fault) => unusable.push((self.redacted_url(turn), fault)),
            }
        }
        Err(UnusableHosts(unusable))
    }

    /// Tries each host of several. Answers which cannot be used, and why. Waits for each at most so long.
    pub async fn unusable_hosts(&self, at_most: Duration) -> UnusableHosts {
        let mut unusable = Vec::new();
        for turn in 0..self.connection.hosts() {
            match self.connect_within(turn, at_most).await {
                // It is closed in order, or ends with the process.
                Ok(connection) => {
                    drop(within("closing", connection.close(200, "bye".into())).await);
                }
                Err(fault) => unusable.push((self.redacted_url(turn), fault)),
            }
        }
        UnusableHosts(unusable)
    }

    async fn connect_within(
        &self,
        turn: usize,
        at_most: Duration,
    ) -> Result<lapin::Connection, AmqpFault> {
        match timeout(at_most, self.connect("check", turn)).await {
            Ok(connected) => connected.map(|(connection, _)| connection),
            Err(_) => Err(no_answer("connecting", at_most)),
        }
    }

    /// The URL of a host without its secrets.
    pub(super) fn redacted_url(&self, turn: usize) -> String {
        self.connection.url_of(turn).configured().redacted_url()
    }

    /// The URL of a host as its file has it now.
    fn uri(&self, turn: usize) -> Result<AMQPUri, AmqpFault> {
        let url = self.connection.url_of(turn).current();
        let url = url.map_err(|why| AmqpFault::new(FaultKind::Lost, why))?;
        url.expose().parse::<AMQPUri>().map_err(|_| {
            AmqpFault::new(
                FaultKind::Refused,
                "the url is not an amqp:// or amqps:// URL",
            )
        })
    }

    async fn connect(
        &self,
        role: &str,
        turn: usize,
    ) -> Result<(lapin::Connection, GuardedChannels), AmqpFault> {
        let mut uri = self.uri(turn)?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        // The client library takes 64 times as much for its buffers.
        uri.query.frame_max = Some(match uri.query.frame_max {
            None | Some(0) => FRAME_MAX,
            Some(asked) => asked.min(MOST_FRAME_MAX),
        });
        let properties =
            ConnectionProperties::default().with_connection_name(format!("postdate {role}").into());
        let connecting = guarded_connect::connect(uri.clone(), properties, &self.connection.tls);
        match timeout(ANSWER_DEADLINE, connecting).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(self.explained(error.into(), &uri).await),
            Err(_) => Err(no_answer("connecting", ANSWER_DEADLINE)),
        }
    }

    /// The fault of a connection that did not come about, with the sentence of its cause if TLS is the cause. Connects
    /// once more to find out.
    async fn explained(&self, fault: AmqpFault, uri: &AMQPUri) -> AmqpFault {
        // Of any other kind the broker has understood.
        if fault.kind != FaultKind::Lost {
            return fault;
        }
        let expected = match uri.scheme {
            AMQPScheme::AMQP => Expected::Plain,
            AMQPScheme::AMQPS => Expected::Tls(&self.connection.tls),
        };
        match examine(&uri.authority.host, uri.authority.port, expected).await {
            Some(trouble) => {
                let sentence = trouble.sentence(&self.connection.tls_hints());
                AmqpFault::new(FaultKind::Tls, format!("{sentence} ({fault})"))
            }
            None if fault.to_string().contains("Connection refused") => {
                let address = format!("{}:{}", uri.authority.host, uri.authority.port);
                AmqpFault::new(fault.kind, format!("{address} refuses connections"))
            }
            None => fault,
        }
    }
}

/// The fault of a call without an answer in time.
pub(super) fn no_answer(what: &str, at_most: Duration) -> AmqpFault {
    AmqpFault::new(
        FaultKind::Lost,
        format!("{what}: no answer within {} s", at_most.as_secs()),
    )
}

impl SharedConnection {
    /// A handle for one more user.
    pub fn handle(&self) -> ConnectionHandle {
        ConnectionHandle {
            live: self.live.subscribe(),
        }
    }
}

impl ConnectionHandle {
    /// Waits for a connection that is up. `None` if there will be none any more. Cancel-safe.
    pub async fn live(&mut self) -> Option<LiveConnection> {
        self.live
            .wait_for(|live| live.as_ref().is_some_and(LiveConnection::is_open))
            .await
            .ok()
            .and_then(|live| live.clone())
    }
}

impl LiveConnection {
    /// Reports whether the connection is up, as far as is known.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// Reports whether the broker is RabbitMQ 3.
    pub fn is_rabbitmq_3(&self) -> bool {
        self.channels.is_rabbitmq_3()
    }

    /// Opens a channel.
    pub async fn channel(&self) -> Result<lapin::Channel, AmqpFault> {
        within("opening a channel", self.connection.create_channel()).await
    }

    /// Counter of the messages that the broker returns on a channel. Call it before the channel's first publish.
    pub fn count_returns(&self, channel: &lapin::Channel) -> ReturnCounter {
        self.channels.count_returns(channel.id())
    }

    /// Has the bodies of messages that come on a channel left out if they are larger than `bytes`. Call it before the
    /// channel's first delivery. See [`take_left_out`](super::take_left_out).
    pub fn limit_bodies(&self, channel: &lapin::Channel, bytes: u64) {
        self.channels.set_largest_body(channel.id(), bytes);
    }

    /// The largest frame, as agreed with the broker.
    pub fn frame_max(&self) -> usize {
        self.connection.configuration().frame_max() as usize
    }

    /// Tells whether the broker blocks publishes (an alarm of memory or disk), as a watch.
    pub fn blocked(&self) -> watch::Receiver<bool> {
        self.blocked.clone()
    }
}

/// Waits for an answer of the broker, under the deadline.
pub async fn within<T>(
    what: &str,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, AmqpFault> {
    within_at_most(ANSWER_DEADLINE, what, call).await
}

async fn within_at_most<T>(
    at_most: Duration,
    what: &str,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, AmqpFault> {
    match timeout(at_most, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(no_answer(what, at_most)),
    }
}

/// Failures of hosts in a row. A connection that did not last is one, too: a host may take each and drop it.
struct Failures {
    count: u32,
    hosts: u32,
}

impl Failures {
    fn of(hosts: usize) -> Self {
        Self {
            count: 0,
            hosts: hosts as u32,
        }
    }

    /// Counts one more, after a connection that lasted so long, and says how long to wait before the next try. None of the
    /// hosts is waited for before all have had their turn.
    fn wait_after(&mut self, lasted: Duration) -> Option<Duration> {
        if lasted >= LASTING {
            self.count = 0;
        }
        self.count += 1;
        let is_round = self.count.is_multiple_of(self.hosts);
        is_round.then(|| Backoff::BROKER.wait(self.count / self.hosts))
    }
}

/// Keeps the connection of one role up.
struct RoleSupervisor {
    broker: Arc<Broker>,
    role: &'static str,
    live: Arc<watch::Sender<Option<LiveConnection>>>,
    shutdown: Shutdown,
}

impl RoleSupervisor {
    async fn run(self) {
        // Whose turn it is: after a loss and after a failure it is the next host's.
        let mut turn = 0;
        let hosts = self.broker.connection.hosts();
        let mut failures = Failures::of(hosts);
        // The trouble that the log told last.
        let mut told = None;
        loop {
            let connected = tokio::select! {
                biased;
                () = self.unneeded() => return,
                connected = self.connect(turn, &mut told) => connected,
            };
            let mut lasted = Duration::ZERO;
            let fault = match connected {
                Ok((connection, channels)) => {
                    told = None;
                    let begin = Instant::now();
                    let end = self.serve(connection, channels).await;
                    lasted = begin.elapsed();
                    match end {
                        Some(fault) => fault,
                        None => return,
                    }
                }
                Err(fault) => fault,
            };
            self.down(&fault, turn, &mut told);
            turn = (turn + 1) % hosts;
            let Some(wait) = failures.wait_after(lasted) else {
                continue;
            };
            tokio::select! {
                biased;
                () = self.unneeded() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Connects. Says so if a host lets it wait for long and nothing was said yet.
    async fn connect(
        &self,
        turn: usize,
        told: &mut Option<String>,
    ) -> Result<(lapin::Connection, GuardedChannels), AmqpFault> {
        let mut connecting = std::pin::pin!(self.broker.connect(self.role, turn));
        let slow = timeout(SLOW_ANSWER, &mut connecting).await;
        if let Ok(connected) = slow {
            return connected;
        }
        if told.is_none() {
            self.down(&no_answer("connecting", SLOW_ANSWER), turn, told);
        }
        connecting.await
    }

    /// Waits until nobody needs the connection any more.
    async fn unneeded(&self) {
        let let_go = async {
            self.shutdown.draining().await;
            self.live.closed().await;
        };
        tokio::select! {
            () = let_go => {}
            () = self.shutdown.forced() => {}
        }
    }

    /// Offers a connection until it is lost (returns the fault) or no longer needed (closes it and returns
    /// `None`).
    async fn serve(
        &self,
        connection: lapin::Connection,
        channels: GuardedChannels,
    ) -> Option<AmqpFault> {
        let mut events = connection.events_listener();
        // The connection was lost before the listener was there, so no event would tell of it.
        if !connection.status().connected() {
            return Some(AmqpFault::new(FaultKind::Lost, "the connection has ended"));
        }
        // The status has what came before the listener was there.
        let (block, blocked) = watch::channel(connection.status().blocked());
        let live = LiveConnection {
            connection: Arc::new(connection),
            channels,
            blocked,
        };
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
                // Errors of single channels come here too.
                Some(Event::Error(error)) if !live.is_open() => break Some(AmqpFault::from(error)),
                Some(_) => {}
                None => break Some(AmqpFault::new(FaultKind::Lost, "the connection has ended")),
            }
        };
        self.live.send_replace(None);
        if fault.is_none() && live.is_open() {
            self.close(&live).await;
        }
        fault
    }

    /// Closes in order, unless shutdown is forced.
    async fn close(&self, live: &LiveConnection) {
        let close = live.connection.close(200, "bye".into());
        tokio::select! {
            biased;
            () = self.shutdown.forced() => {}
            closed = within_at_most(CLOSE_DEADLINE, "closing", close) => {
                if let Err(fault) = closed {
                    debug!(connection = %self.broker.name(), role = self.role, %fault, "not closed in order");
                }
            }
        }
    }

    /// Sets the role's readiness. Reports whether that is news.
    fn report(&self, trouble: Option<String>) -> bool {
        self.broker.health.report(self.role, trouble)
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

    /// Sets the role's readiness, and logs the fault unless the log told the same one last.
    fn down(&self, fault: &AmqpFault, turn: usize, told: &mut Option<String>) {
        let url = self.broker.redacted_url(turn);
        let text = fault.to_string();
        self.report(Some(text.clone()));
        if told.as_ref() == Some(&text) {
            debug!(connection = %self.broker.name(), role = self.role, url, error = %fault, "rabbitmq is still away");
        } else {
            warn!(connection = %self.broker.name(), role = self.role, url, error = %fault, "rabbitmq is away");
            *told = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_drop_each_connection_are_waited_for_longer_each_round() {
        let mut failures = Failures::of(3);
        for round in 1..10 {
            for lasted in [Duration::ZERO, LASTING / 2] {
                assert_eq!(failures.wait_after(lasted), None, "all have their turn");
            }
            let wait = failures.wait_after(LASTING / 2).expect("a wait");
            let ceiling = Backoff::BROKER.ceiling(round);
            assert!((ceiling / 2..=ceiling).contains(&wait), "{round}: {wait:?}");
        }
    }

    #[test]
    fn after_a_connection_that_lasted_the_next_host_has_its_turn_at_once() {
        let mut several = Failures::of(2);
        assert_eq!(several.wait_after(Duration::ZERO), None);
        for _ in 0..10 {
            assert_eq!(several.wait_after(LASTING), None);
        }
        let mut one = Failures::of(1);
        for _ in 0..10 {
            let wait = one.wait_after(LASTING).expect("it is the only one");
            assert!(wait <= Backoff::BROKER.ceiling(1), "{wait:?}");
        }
    }
}
