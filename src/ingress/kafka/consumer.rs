//! One group's consumer: its thread, from the first poll to leaving the group.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::Message as _;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::runtime::Handle;
use tracing::{debug, trace};

use super::assignment::OffsetRange;
use super::group_contact::GroupContact;
use super::group_state::{ConsumerPhase, GroupSetup, ReadProgress};
use super::placement::PlacementCause;
use super::reading_mode::ReadingMode;
use super::rebalance::{GroupClient, GroupContext};
use super::source_topics::SourceTopics;
use super::subscription::Subscription;
use super::{KafkaDependencies, largest_record, record};
use crate::backoff::Backoff;
use crate::broker::kafka::{ClientWatch, ConfigError, Connection, FetchSizes, OutageSuspicion};
use crate::domain::{Flags, KafkaPosition, Route};
use crate::ingress::{Delivery, Missing, Sink};

/// How long one poll waits for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// Poll timeout while every record that was read is stored and committed: each poll costs a wake-up.
const IDLE_POLL_TIMEOUT: Duration = Duration::from_millis(250);
/// Poll timeout while a partition is paused: capacity is noticed this soon.
const PAUSED_POLL_TIMEOUT: Duration = Duration::from_millis(5);
/// Most records between two checks of anything else.
const POLL_BATCH: usize = 64;
/// Time between two commits.
const COMMIT_INTERVAL_US: i64 = 100_000;
/// Longest time in which a stopping consumer gives its partitions back: a rebalance has to end first.
const LEAVE_LIMIT_US: i64 = 5_000_000;
/// Longest time for that once shutdown is forced.
const FORCED_LEAVE_LIMIT_US: i64 = 1_000_000;
/// Longest wait for unresolved records of a consumer that must be restarted.
const BROKEN_DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for those of a consumer whose successor fetches other sizes. Nothing is wrong, so a slow store may take
/// all that was read, and nothing is read twice.
const MODE_CHANGE_DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// One group's consumer, before it runs.
pub(super) struct GroupConsumer<S> {
    setup: Arc<GroupSetup<S>>,
    instance_id: String,
}

/// The reason why a consumer ended.
enum ConsumerExit {
    /// The process drains.
    Stopped,
    /// The consumer has left its group, for this reason. Another one begins after a while.
    Broken(String),
    /// Another one takes its place in the group, and fetches other sizes.
    ModeChange,
}

impl<S: Sink> GroupConsumer<S> {
    pub(super) fn new(
        connection: &Connection,
        group: &str,
        routes: Vec<Arc<Route>>,
        deps: KafkaDependencies<S>,
    ) -> Self {
        let skips = deps.skips.open(&routes);
        let setup = GroupSetup {
            owner: format!("{}/{group}", connection.name),
            connection: connection.clone(),
            task: format!("ingress:kafka:{}:{group}", connection.name),
            topics: Mutex::new(SourceTopics::new(&routes)),
            first_starts: Mutex::default(),
            routes,
            deps,
            runtime: Handle::current(),
            suspicion: OutageSuspicion::default(),
            skips,
        };
        Self {
            setup: Arc::new(setup),
            instance_id: instance_id(),
        }
    }

    /// The configuration of a client, by the connection's properties as they are now.
    pub(super) fn config(&self, sizes: FetchSizes) -> Result<ClientConfig, ConfigError> {
        let largest = largest_record(self.setup.routes.iter().map(|route| &**route));
        let connection = &self.setup.connection;
        let mut config = connection.consumer_config(self.setup.group(), largest, sizes)?;
        config.set("group.instance.id", &self.instance_id);
        Ok(config)
    }

    pub(super) fn run(self) {
        let mut failures = 0;
        let mut contact = GroupContact::default();
        let mut mode = ReadingMode::new(self.setup.connection.has_own_fetch_sizes());
        loop {
            let end = self
                .run_once(&mut contact, &mut mode)
                .unwrap_or_else(|error| ConsumerExit::Broken(error.to_string()));
            let why = match end {
                ConsumerExit::Stopped => return,
                ConsumerExit::ModeChange => continue,
                ConsumerExit::Broken(why) => why,
            };
            failures += 1;
            contact.report_broken(&self.setup, why);
            let shutdown = &self.setup.deps.shutdown;
            self.setup.runtime.block_on(async {
                tokio::select! {
                    () = shutdown.draining() => {}
                    () = tokio::time::sleep(Backoff::CLIENT.wait(failures)) => {}
                }
            });
        }
    }

    /// Runs one consumer, from joining the group to its end.
    fn run_once(
        &self,
        contact: &mut GroupContact,
        mode: &mut ReadingMode,
    ) -> KafkaResult<ConsumerExit> {
        let clock = self.setup.deps.clock;
        let refusals = self.setup.suspicion.refusals();
        let mut watch = ClientWatch::new(&self.setup.connection, refusals);
        let config = match self.config(mode.sizes()) {
            Ok(config) => config,
            Err(error) => return Ok(ConsumerExit::Broken(error.to_string())),
        };
        let consumer: GroupClient<S> =
            config.create_with_context(GroupContext::new(self.setup.clone()))?;
        mode.begin(clock.mono_us());
        let mut subscription = Subscription::default();
        subscription.keep(&consumer, clock.mono_us())?;
        let mut next_tick = 0;
        let mut next_resume = 0;
        let mut poll_timeout = POLL_TIMEOUT;
        let end = loop {
            if self.setup.deps.shutdown.is_draining() {
                break ConsumerExit::Stopped;
            }
            if let ConsumerPhase::Broken(why) = &consumer.context().state.lock().phase {
                break ConsumerExit::Broken(why.clone());
            }
            if poll(&consumer, poll_timeout) {
                poll_timeout = poll_timeout.min(POLL_TIMEOUT);
            }
            let now = clock.mono_us();
            if now >= next_resume {
                poll_timeout = match consumer.context().state.lock().resume(&consumer) {
                    ReadProgress::Paused => PAUSED_POLL_TIMEOUT,
                    ReadProgress::Active => POLL_TIMEOUT,
                    ReadProgress::Idle => IDLE_POLL_TIMEOUT,
                };
                next_resume = now + PAUSED_POLL_TIMEOUT.as_micros() as i64;
            }
            if now >= next_tick {
                consumer.context().commit_tick(&consumer);
                consumer.context().retry_unplaced(&consumer);
                consumer.context().carry_out_skips(&consumer);
                consumer.context().skip_undecodable(&consumer);
                subscription.keep(&consumer, now)?;
                contact.check(&self.setup, &consumer, now);
                let refusals = self.setup.suspicion.refusals();
                let brokers = &consumer.context().brokers;
                if let Some(why) = watch.renewal(refusals, brokers, now) {
                    let state = &consumer.context().state;
                    state.lock().mark_broken(why.to_owned());
                }
                let counts = consumer.context().state.lock().fetch_counts.take();
                if let Some(counts) = counts
                    && mode.note(counts, now)
                    && self.can_be_renewed()
                {
                    mode.change(now);
                    let sizes = mode.sizes();
                    debug!(consumer = %self.setup.owner, ?sizes, "kafka reading mode changes");
                    break ConsumerExit::ModeChange;
                }
                next_tick = clock.mono_us() + COMMIT_INTERVAL_US;
            }
        };
        end_consumer(consumer, &end);
        Ok(end)
    }

    /// Reports whether another client can be made by the properties as they are now. A file that cannot be used leaves
    /// the present client in place.
    fn can_be_renewed(&self) -> bool {
        self.config(FetchSizes::Careful).is_ok()
    }
}

/// Makes the id that a consumer keeps through all of its restarts, and shares with no other. The client library
/// joins the group as a new member when no coordinator has answered for a session's time. By this id the group
/// recognises the consumer, gives it its former partitions at once, and does not wait for the former session to
/// end. The id is random, because a second member with the same id would be thrown out for the first.
fn instance_id() -> String {
    format!("postdate-{:016x}", fastrand::u64(..))
}

/// Commits the resolved records, and leaves the group, unless a successor takes the place in it.
fn end_consumer<S: Sink>(consumer: GroupClient<S>, end: &ConsumerExit) {
    let context = consumer.context().clone();
    let keys = context.state.lock().keys();
    let at_most = match end {
        ConsumerExit::Stopped => Duration::MAX, // until forced
        ConsumerExit::Broken(_) => BROKEN_DRAIN_LIMIT,
        ConsumerExit::ModeChange => MODE_CHANGE_DRAIN_LIMIT,
    };
    context.drain_partitions(&consumer, &keys, at_most);
    let mut state = context.state.lock();
    state.phase = ConsumerPhase::Leaving;
    state.assignments.clear();
    drop(state);
    context.show_troubles();
    match end {
        ConsumerExit::Stopped | ConsumerExit::Broken(_) => {
            unsubscribe(&consumer);
            debug!(consumer = %context.setup.owner, "kafka group left");
        }
        // By its instance id the successor gets the same partitions, and the group's other members notice nothing.
        ConsumerExit::ModeChange => {}
    }
    drop(consumer);
}

/// Gives all partitions back, upon which the client library leaves the group. Its close alone does not: a
/// member with an instance id keeps its place until its session ends, and nobody reads its partitions
/// meanwhile. The last call of `assignment` is queued behind the end of the partitions: once it is answered, the
/// close cannot overtake the leave request.
fn unsubscribe<S: Sink>(consumer: &GroupClient<S>) {
    let deps = &consumer.context().setup.deps;
    let began_us = deps.clock.mono_us();
    consumer.unsubscribe();
    while has_partitions(consumer) {
        let limit_us = if deps.shutdown.is_forced() {
            FORCED_LEAVE_LIMIT_US
        } else {
            LEAVE_LIMIT_US
        };
        if deps.clock.mono_us() - began_us >= limit_us {
            break;
        }
        drop(consumer.poll(PAUSED_POLL_TIMEOUT));
    }
}

/// Reports whether an unsubscribed consumer still has partitions. During a rebalance the client library puts
/// the end of the subscription off.
fn has_partitions<S: Sink>(consumer: &GroupClient<S>) -> bool {
    let some = |list: KafkaResult<TopicPartitionList>| list.is_ok_and(|list| list.count() > 0);
    let unplaced = !consumer.context().state.lock().unplaced.is_empty();
    unplaced || some(consumer.subscription()) || some(consumer.assignment())
}

/// Polls for a record, and takes the records that are there with it. Reports whether one came.
fn poll<S: Sink>(consumer: &GroupClient<S>, mut poll_timeout: Duration) -> bool {
    let mut came = false;
    for _ in 0..POLL_BATCH {
        match consumer.poll(poll_timeout) {
            Some(Ok(message)) => {
                take(consumer, &message);
                came = true;
            }
            // `GroupContext::error` has taken the error, with its reason, before.
            Some(Err(error)) => trace!(%error, "kafka consumer error"),
            None => break,
        }
        poll_timeout = Duration::ZERO;
    }
    came
}

/// Takes one record.
fn take<S: Sink>(consumer: &GroupClient<S>, message: &BorrowedMessage<'_>) {
    let partition = message.partition();
    let offset = message.offset();
    let copied = record::copy(message);
    let context = consumer.context();
    let mut state = context.state.lock();
    let reported_batch = state.decode_reports.take_batch();
    let Some(assignment) = state.find(message.topic(), partition) else {
        return;
    };
    if let Some(batch) = reported_batch.filter(|batch| (assignment.next..offset).contains(batch)) {
        let passed = OffsetRange {
            from: batch,
            to: offset,
        };
        context.take_passed_over(assignment, passed);
    }
    if offset < assignment.next {
        drop(state);
        let key = (message.topic().to_owned(), partition);
        context.place_anew(consumer, key, PlacementCause::WentBack(offset));
        return;
    }
    // A clock of a producer that is ahead would hide records that are younger than they seem.
    let now = context.setup.deps.clock.wall();
    let time = copied.produced.map(|produced| produced.min(now));
    let receipt = assignment.ledger.enter(offset);
    let delivery = Delivery {
        message: copied.message,
        missing: copied.malformed.map(Missing::Headers),
        produced: copied.produced,
        flags: Flags::default(),
        position: Some(KafkaPosition { partition, offset }),
        resolved_time: assignment.resolved_time,
        receipt,
    };
    let full = assignment.read(offset, copied.size, time, delivery) && !assignment.paused;
    drop(state);
    if full {
        context.wait_or_pause(consumer, message.topic(), partition);
    }
}
