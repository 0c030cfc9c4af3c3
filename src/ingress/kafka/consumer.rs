//! One group's consumer: its thread, from the first poll to leaving the group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use tokio::runtime::Handle;
use tracing::{debug, info, trace, warn};

use super::Surroundings;
use super::assignment::Position;
use super::context::{Context, GroupClient};
use super::record;
use super::room::Reading;
use super::state::Fixed;
use crate::backoff::Backoff;
use crate::broker::kafka::{self, Connection, Suspicion};
use crate::domain::{Endpoint, Flags, Route};
use crate::ingress::{Delivery, Sink};

/// How long one poll waits for a record.
const POLL: Duration = Duration::from_millis(50);
/// The same while all that was read is stored and committed: each look costs a wake-up.
const POLL_IDLE: Duration = Duration::from_millis(250);
/// The same while a partition is paused: how soon it is noticed that it has room again.
const POLL_PAUSED: Duration = Duration::from_millis(5);
/// How many records are taken before anything else is looked after.
const TOGETHER: usize = 64;
/// How often positions are committed.
const COMMIT_US: i64 = 100_000;
/// How often brokers that do not answer are asked.
const ASK_US: i64 = 1_000_000;
/// How long they may take then.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How long the records of a consumer that must be made anew may take to resolve.
const BROKEN: Duration = Duration::from_secs(2);

/// One group's consumer, before it runs.
pub(super) struct GroupConsumer<S> {
    fixed: Arc<Fixed<S>>,
    config: ClientConfig,
}

/// How long a group may take to give its partitions before that is told.
const JOINING_US: i64 = 3_000_000;
/// What is told then.
const NOT_JOINED: &str = "the group has given this consumer no partitions yet; a member that is gone, perhaps this \
                          consumer's own former self, counts until its session of 10 s ends";

/// Why a consumer's life ended.
enum End {
    Stopped,
    Broken(String),
}

impl<S: Sink> GroupConsumer<S> {
    pub(super) fn new(
        connection: &Connection,
        group: &str,
        routes: Vec<Arc<Route>>,
        around: Surroundings<S>,
        config: ClientConfig,
    ) -> Self {
        let by_topic: BTreeMap<Arc<str>, Arc<Route>> = routes
            .into_iter()
            .filter_map(|route| match &route.from {
                Endpoint::Kafka { topic, .. } => Some((Arc::from(topic.as_str()), route)),
                Endpoint::Rabbitmq { .. } => None,
            })
            .collect();
        let fixed = Fixed {
            owner: format!("{}/{group}", connection.name),
            task: format!("ingress:kafka:{}:{group}", connection.name),
            routes: by_topic,
            around,
            runtime: Handle::current(),
            suspicion: Suspicion::default(),
        };
        Self { fixed: Arc::new(fixed), config }
    }

    pub(super) fn run(self) {
        let mut failures = 0;
        loop {
            let end = self.live().unwrap_or_else(|error| End::Broken(error.to_string()));
            let End::Broken(why) = end else { return };
            failures += 1;
            warn!(consumer = %self.fixed.owner, why, "kafka consumer starts anew");
            self.fixed.around.part.down(why);
            let shutdown = &self.fixed.around.shutdown;
            self.fixed.runtime.block_on(async {
                tokio::select! {
                    () = shutdown.draining() => {}
                    () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
                }
            });
        }
    }

    /// From joining the group to leaving it.
    fn live(&self) -> KafkaResult<End> {
        let clock = self.fixed.around.clock;
        let consumer: GroupClient<S> = self.config.create_with_context(Context::new(self.fixed.clone()))?;
        let topics: Vec<&str> = self.fixed.routes.keys().map(|topic| &**topic).collect();
        consumer.subscribe(&topics)?;
        let mut contact = Contact::default();
        let (mut next_tick, mut next_look, mut patience) = (0, 0, POLL);
        let end = loop {
            if self.fixed.around.shutdown.is_draining() {
                break End::Stopped;
            }
            if let Some(why) = consumer.context().state.lock().broken.take() {
                break End::Broken(why);
            }
            if poll(&consumer, patience) {
                patience = patience.min(POLL);
            }
            let now = clock.mono_us();
            if now >= next_look {
                patience = match consumer.context().resume(&consumer) {
                    Reading::Paused => POLL_PAUSED,
                    Reading::On => POLL,
                    Reading::Settled => POLL_IDLE,
                };
                next_look = now + POLL_PAUSED.as_micros() as i64;
            }
            if now >= next_tick {
                consumer.context().tick(&consumer);
                consumer.context().take_up_late(&consumer);
                contact.look(&self.fixed, &consumer, now);
                next_tick = clock.mono_us() + COMMIT_US;
            }
        };
        leave(consumer, &end);
        Ok(end)
    }
}

/// Commits what can still be, and leaves the group.
fn leave<S: Sink>(consumer: GroupClient<S>, end: &End) {
    let context = consumer.context().clone();
    let keys = context.state.lock().keys();
    let at_most = match end {
        End::Stopped => Duration::MAX, // until forced
        End::Broken(_) => BROKEN,
    };
    context.settle(&consumer, &keys, at_most);
    let mut state = context.state.lock();
    state.closing = true;
    state.assignments.clear();
    drop(state);
    drop(consumer);
    debug!(consumer = %context.fixed.owner, "kafka group left");
}

/// Waits for a record, and takes what is there with it. Returns whether one came.
fn poll<S: Sink>(consumer: &GroupClient<S>, mut patience: Duration) -> bool {
    let mut came = false;
    for _ in 0..TOGETHER {
        match consumer.poll(patience) {
            Some(Ok(message)) => {
                take(consumer, &message);
                came = true;
            }
            Some(Err(error)) if is_damage(&error) => {
                consumer.context().warn_once(&format!("a damaged batch is skipped: {error}"));
            }
            Some(Err(error)) => trace!(%error, "kafka consumer error"),
            None => break,
        }
        patience = Duration::ZERO;
    }
    came
}

/// Whether the client library found records that it cannot read.
fn is_damage(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(error.rdkafka_error_code(), Some(Code::BadMessage | Code::BadCompression | Code::InvalidMessage))
}

/// Takes one record.
fn take<S: Sink>(consumer: &GroupClient<S>, message: &BorrowedMessage<'_>) {
    let (partition, offset) = (message.partition(), message.offset());
    let copied = record::copy(message);
    let context = consumer.context();
    let mut state = context.state.lock();
    let Some(assignment) = state.find(message.topic(), partition) else { return };
    if offset < assignment.next {
        // The log was cut or made anew and is read again from here: what was committed beyond is void.
        warn!(consumer = %context.fixed.owner, topic = message.topic(), partition, offset, expected = assignment.next, "the log went back, reading again");
        let paused = assignment.paused;
        let Some(anew) =
            context.fixed.begin(message.topic(), partition, Position { start: offset, committed: None })
        else {
            return;
        };
        let void = assignment.committed.max(assignment.committing);
        *assignment = anew;
        assignment.paused = paused;
        assignment.void = void;
    }
    let receipt = assignment.ledger.enter(offset);
    let delivery = Delivery {
        message: copied.message,
        malformed: copied.malformed,
        produced: copied.produced,
        flags: Flags::default(),
        position: Some((partition, offset)),
        receipt,
    };
    let full = assignment.read(offset, copied.size, delivery) && !assignment.paused;
    drop(state);
    if full {
        context.relieve(consumer, message.topic(), partition);
    }
}

/// Whether the brokers are there, as far as known.
#[derive(Default)]
struct Contact {
    reached: bool,
    told: bool,
    /// The group gives this consumer nothing yet, or some of its partitions cannot be taken up.
    stalled: bool,
    /// Monotonic microseconds since which the brokers are reached and the group has given nothing.
    joining_us: Option<i64>,
    next_us: i64,
}

impl Contact {
    /// Tells of a group that gives nothing, and of partitions that are this consumer's and cannot be read.
    fn look_at_places<S: Sink>(&mut self, fixed: &Fixed<S>, consumer: &GroupClient<S>, now: i64) {
        if !self.reached {
            self.joining_us = None;
            return;
        }
        let (is_member, unplaced) = {
            let state = consumer.context().state.lock();
            (state.is_member, state.unplaced.first().cloned())
        };
        if is_member {
            self.joining_us = None;
        }
        let is_joining = !is_member && now - *self.joining_us.get_or_insert(now) > JOINING_US;
        let trouble = match unplaced {
            Some((topic, partition)) => {
                Some(format!("{topic}/{partition} has no leader, or no known position"))
            }
            None if is_joining => Some(NOT_JOINED.to_owned()),
            None => None,
        };
        match trouble {
            Some(why) if !std::mem::replace(&mut self.stalled, true) => {
                warn!(consumer = %fixed.owner, why, "kafka consumer is given nothing to read, waiting");
                fixed.around.part.down(why);
            }
            None if std::mem::take(&mut self.stalled) => {
                info!(consumer = %fixed.owner, "kafka consumer reads its partitions again");
                fixed.around.part.up();
            }
            _ => {}
        }
    }

    /// Asks them when there is a reason to.
    fn look<S: Sink>(&mut self, fixed: &Fixed<S>, consumer: &GroupClient<S>, now: i64) {
        if fixed.suspicion.take() {
            self.reached = false;
        }
        self.look_at_places(fixed, consumer, now);
        let Some(topic) = fixed.routes.keys().next() else { return };
        if self.reached || now < self.next_us {
            return;
        }
        match kafka::ask(consumer.client(), topic, SIGN_OF_LIFE) {
            Ok(()) => {
                self.reached = true;
                if std::mem::take(&mut self.told) {
                    info!(consumer = %fixed.owner, "kafka is reached again");
                }
                fixed.around.part.up();
                self.stalled = false;
            }
            Err(error) => {
                self.next_us = now + ASK_US;
                let why = fixed.suspicion.explain(&error);
                if !std::mem::replace(&mut self.told, true) {
                    warn!(consumer = %fixed.owner, error = %why, "kafka cannot be reached, waiting");
                }
                fixed.around.part.down(why);
            }
        }
    }
}
