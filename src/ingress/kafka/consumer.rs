//! One group's consumer: its thread, from the first poll to leaving the group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message as _;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::runtime::Handle;
use tracing::{debug, trace, warn};

use super::assignment::Position;
use super::backpressure::Reading;
use super::group_contact::Contact;
use super::group_state::Fixed;
use super::rebalance::{Context, GroupClient};
use super::{Surroundings, record};
use crate::backoff::Backoff;
use crate::broker::kafka::{Connection, Suspicion};
use crate::domain::{Endpoint, Flags, KafkaPosition, Route};
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
/// How long a consumer that ends may take to give its partitions back: a rebalance has to end first.
const RETURN_US: i64 = 5_000_000;
/// The same once time has run out for it.
const FORCED_RETURN_US: i64 = 1_000_000;
/// How long the records of a consumer that must be made anew may take to resolve.
const BROKEN: Duration = Duration::from_secs(2);

/// One group's consumer, before it runs.
pub(super) struct GroupConsumer<S> {
    fixed: Arc<Fixed<S>>,
    config: ClientConfig,
}

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
        let mut contact = Contact::default();
        loop {
            let end = self.live(&mut contact).unwrap_or_else(|error| End::Broken(error.to_string()));
            let End::Broken(why) = end else { return };
            failures += 1;
            contact.breaks(&self.fixed, why);
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
    fn live(&self, contact: &mut Contact) -> KafkaResult<End> {
        let clock = self.fixed.around.clock;
        let consumer: GroupClient<S> = self.config.create_with_context(Context::new(self.fixed.clone()))?;
        let topics: Vec<&str> = self.fixed.routes.keys().map(|topic| &**topic).collect();
        consumer.subscribe(&topics)?;
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
    unsubscribe(&consumer);
    drop(consumer);
    debug!(consumer = %context.fixed.owner, "kafka group left");
}

/// Gives all partitions back, upon which the client library leaves the group. Its close alone does not: a member with
/// an instance id keeps its place until its session ends, and nobody reads its partitions meanwhile. The last question
/// goes the way of the partitions' end, behind it: when it is answered, the close can no longer overtake the leaving.
fn unsubscribe<S: Sink>(consumer: &GroupClient<S>) {
    let around = &consumer.context().fixed.around;
    let began_us = around.clock.mono_us();
    let limit_us = || if around.shutdown.is_forced() { FORCED_RETURN_US } else { RETURN_US };
    consumer.unsubscribe();
    while has_partitions(consumer) && around.clock.mono_us() - began_us < limit_us() {
        drop(consumer.poll(POLL_PAUSED));
    }
}

/// True until a consumer that has unsubscribed has heard that all its partitions are taken from it. During a rebalance the
/// client library puts the end of the subscription off.
fn has_partitions<S: Sink>(consumer: &GroupClient<S>) -> bool {
    let some = |list: KafkaResult<TopicPartitionList>| list.is_ok_and(|list| list.count() > 0);
    let unplaced = !consumer.context().state.lock().unplaced.is_empty();
    unplaced || some(consumer.subscription()) || some(consumer.assignment())
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
        position: Some(KafkaPosition { partition, offset }),
        receipt,
    };
    let full = assignment.read(offset, copied.size, delivery) && !assignment.paused;
    drop(state);
    if full {
        context.relieve(consumer, message.topic(), partition);
    }
}
