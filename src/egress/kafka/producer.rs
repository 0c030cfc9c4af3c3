//! The producers of one connection: their threads, their delivery reports, and their replacement when a fatal error
//! (idempotence lost) ends one, or it is of no use any more.

use std::error::Error;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use tracing::{debug, info, warn};

use super::ProducerStartError;
use super::connection::{ProducerConnection, ProducerKind};
use super::in_flight::InFlightTable;
use super::topics;
use crate::backoff::Backoff;
use crate::broker::kafka::{self, ClientWatch, ConfigError, Connection, KnownBrokers};
use crate::domain::KafkaPosition;
use crate::health::Part;
use crate::lifecycle::{Shutdown, Tasks};

/// Longest poll of the event queue, and so the interval at which deadlines of waiting messages are checked. librdkafka
/// cuts the time that is left down to whole milliseconds, and would spend the last millisecond of 100 in a busy loop:
/// the 20 microseconds on top prevent that.
const POLL_TIMEOUT: Duration = Duration::from_micros(100_020);
/// Longest poll while no messages wait: each poll costs a wake-up.
const IDLE_POLL_TIMEOUT: Duration = Duration::from_micros(400_020);
/// Longest wait for the messages in flight of a producer that is of no use any more: if a broker refuses its credentials,
/// another may still know them.
const RENEWAL_FLUSH: Duration = Duration::from_secs(1);

/// Starts the producers of a connection, its feeder, and the task that asks its brokers about topics.
pub(super) fn start(
    connection: Arc<ProducerConnection>,
    settings: &Connection,
    part: Part,
    tasks: &Tasks,
    shutdown: &Shutdown,
) -> Result<Arc<ProducerConnection>, ProducerStartError> {
    let name = format!("egress:kafka:{}", settings.name);
    let failed = |error| ProducerStartError::Thread {
        connection: settings.name.clone(),
        error,
    };
    for producer_kind in ProducerKind::ALL {
        let watch = ClientWatch::new(settings, connection.suspicion.refusals());
        let producer = KafkaProducer::new(settings, producer_kind, &connection)?;
        connection.replace(producer_kind, Some(producer));
        let thread = ProducerThread {
            connection: connection.clone(),
            producer_kind,
            settings: settings.clone(),
            watch,
            retired: Vec::new(),
        };
        let shutdown = shutdown.clone();
        tasks
            .thread(&name, move || thread.run(&shutdown))
            .map_err(failed)?;
    }
    let fed_connection = connection.clone();
    tasks
        .thread(&name, move || feed(&fed_connection))
        .map_err(failed)?;
    tasks.spawn(
        &name,
        topics::answer_questions(connection.clone(), settings.clone(), part),
    );
    Ok(connection)
}

/// One librdkafka producer.
pub(super) struct KafkaProducer {
    inner: BaseProducer<ProducerCallbacks>,
    in_flight: Arc<InFlightTable>,
}

struct ProducerCallbacks {
    connection: Arc<ProducerConnection>,
    settings: Connection,
    producer_kind: ProducerKind,
    in_flight: Arc<InFlightTable>,
    brokers: KnownBrokers,
    /// The producer, of which librdkafka is asked for the cause of a fatal error.
    producer: OnceLock<Weak<KafkaProducer>>,
}

impl KafkaProducer {
    fn new(
        settings: &Connection,
        producer_kind: ProducerKind,
        connection: &Arc<ProducerConnection>,
    ) -> Result<Arc<Self>, ConfigError> {
        let config = settings.producer_config(producer_kind.linger())?;
        let in_flight = Arc::new(InFlightTable::default());
        let context = ProducerCallbacks {
            connection: connection.clone(),
            settings: settings.clone(),
            producer_kind,
            in_flight: in_flight.clone(),
            brokers: KnownBrokers::default(),
            producer: OnceLock::new(),
        };
        let inner: BaseProducer<ProducerCallbacks> = config
            .create_with_context(context)
            .map_err(|error| settings.refused(error))?;
        let producer = Arc::new(Self { inner, in_flight });
        let context: &Arc<ProducerCallbacks> = producer.inner.context();
        context.producer.get_or_init(|| Arc::downgrade(&producer));
        Ok(producer)
    }

    pub(super) fn in_flight(&self) -> &InFlightTable {
        &self.in_flight
    }

    pub(super) fn client(&self) -> &Client<impl ClientContext> {
        self.inner.client()
    }

    /// Gives a record to librdkafka. `Err` returns its number: it will have no delivery report.
    pub(super) fn send(
        &self,
        record: BaseRecord<'_, [u8], [u8], usize>,
    ) -> Result<(), (KafkaError, usize)> {
        self.inner
            .send(record)
            .map_err(|(error, record)| (error, record.delivery_opaque))
    }
}

impl ClientContext for ProducerCallbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.settings.oauth_token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            let producer = self.producer.get().and_then(Weak::upgrade);
            let cause = producer.and_then(|producer| producer.inner.client().fatal_error());
            self.in_flight
                .fatal
                .get_or_init(|| cause.map_or(RDKafkaErrorCode::Fatal, |(code, _)| code));
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            // `answer_questions` sets it again once a broker answers.
            self.connection.set_reached(false);
        }
        self.connection.suspicion.error(&error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        self.brokers.report(&statistics);
        let ProducerConnection { name, reports, .. } = &*self.connection;
        reports.show(
            name,
            self.producer_kind.name(),
            kafka::client_report(&statistics),
        );
        if self.in_flight.sort_time_outs(&statistics) {
            self.connection.wake_feeder();
        }
    }
}

impl ProducerContext for ProducerCallbacks {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: usize) {
        let result = result
            .as_ref()
            .map(landed)
            .map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail));
        if self.in_flight.report(slot, result) {
            self.connection.wake_feeder();
        }
    }
}

/// Where a record was stored. A retry of a record that was stored already is not told where.
fn landed(record: &BorrowedMessage<'_>) -> Option<KafkaPosition> {
    (record.offset() >= 0).then(|| KafkaPosition {
        partition: record.partition(),
        offset: record.offset(),
    })
}

/// The thread of one producer.
struct ProducerThread {
    connection: Arc<ProducerConnection>,
    producer_kind: ProducerKind,
    settings: Connection,
    /// Over the current producer.
    watch: ClientWatch,
    /// Producers that have ended but are still in use by another thread for a moment.
    retired: Vec<Arc<KafkaProducer>>,
}

impl ProducerThread {
    fn run(mut self, shutdown: &Shutdown) {
        let mut failures = 0;
        while !self.is_done(shutdown) {
            if let Some(producer) = self.connection.producer(self.producer_kind) {
                let idle = self
                    .connection
                    .lanes()
                    .iter()
                    .all(|lane| lane.backlog() == 0);
                producer.inner.poll(if idle {
                    IDLE_POLL_TIMEOUT
                } else {
                    POLL_TIMEOUT
                });
                if let Some(cause) = producer.in_flight.fatal.get() {
                    warn!(connection = %self.connection.name, %cause, "kafka producer ended by a fatal error, starting another");
                    self.retired
                        .extend(self.connection.replace(self.producer_kind, None));
                    failures += 1;
                } else if let Some(why) = self.renewal(&producer) {
                    drop(producer);
                    self.retire(why);
                }
            } else {
                // A fatal error that comes again at once (no permission) must not spin.
                std::thread::park_timeout(Backoff::CLIENT.wait(failures));
                let refusals = self.connection.suspicion.refusals();
                self.watch = ClientWatch::new(&self.settings, refusals);
                match KafkaProducer::new(&self.settings, self.producer_kind, &self.connection) {
                    Ok(producer) => {
                        drop(self.connection.replace(self.producer_kind, Some(producer)));
                    }
                    Err(error) => {
                        warn!(connection = %self.connection.name, %error, "kafka producer does not start");
                        failures += 1;
                    }
                }
            }
            self.drop_retired();
            self.connection.wake_feeder_if_needed();
            for lane in self.connection.lanes() {
                lane.tick(shutdown.is_draining());
            }
        }
        self.end();
    }

    fn renewal(&mut self, producer: &KafkaProducer) -> Option<&'static str> {
        let refusals = self.connection.suspicion.refusals();
        let now_us = self.connection.clock.mono_us();
        let brokers = &producer.inner.context().brokers;
        self.watch.renewal(refusals, brokers, now_us)
    }

    /// Takes the producer away, with time for what is in flight at brokers that answer it still.
    fn retire(&mut self, why: &str) {
        info!(connection = %self.connection.name, why, "starting another kafka producer");
        let Some(producer) = self.connection.replace(self.producer_kind, None) else {
            return;
        };
        if let Err(error) = producer.inner.flush(RENEWAL_FLUSH) {
            debug!(connection = %self.connection.name, %error, "messages in flight in a producer that is replaced");
        }
        self.retired.push(producer);
    }

    fn is_done(&self, shutdown: &Shutdown) -> bool {
        shutdown.is_forced()
            || (shutdown.is_draining()
                && self
                    .connection
                    .lanes()
                    .iter()
                    .all(|lane| lane.backlog() == 0))
    }

    /// Drops the ended producers that no other thread uses. Only this thread may do so: the drop of a producer reports
    /// on its messages, and a lane that dropped one under its lock would wait for itself.
    fn drop_retired(&mut self) {
        for producer in std::mem::take(&mut self.retired) {
            match Arc::try_unwrap(producer) {
                Ok(producer) => {
                    let in_flight = producer.in_flight.clone();
                    drop(producer);
                    in_flight.abandon();
                }
                Err(in_use) => self.retired.push(in_use),
            }
        }
    }

    fn end(mut self) {
        self.connection.end();
        let lanes = self.connection.lanes();
        for lane in &lanes {
            lane.end();
        }
        self.retired
            .extend(self.connection.replace(self.producer_kind, None));
        // A question about a topic that is under way keeps its producer in use.
        while !self.retired.is_empty() {
            self.drop_retired();
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let left: usize = lanes.iter().map(|lane| lane.backlog()).sum();
        if left > 0 {
            warn!(connection = %self.connection.name, left, "kafka lanes closed with messages unanswered");
        }
    }
}

/// The feeder: passes delivery reports on to the lanes, those that came together in one go. It also sends for lanes
/// with many messages, one run of each lane in turn.
fn feed(connection: &ProducerConnection) {
    while connection.wait_until_woken() {
        // The reports of a replaced producer are passed on when it is dropped.
        for producer in ProducerKind::ALL
            .into_iter()
            .filter_map(|producer_kind| connection.producer(producer_kind))
        {
            let in_flight = producer.in_flight.clone();
            drop(producer);
            in_flight.tell_lanes();
        }
        for lane in connection.waiting() {
            lane.pump_as_feeder();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::topics::TopicAnswer;
    use super::*;
    use crate::broker::kafka::{PartitionState, TopicState};
    use crate::domain::{Clock, Entry, Message, Origin, Target, UnixMs, Verdict};
    use crate::egress::{Lane, Publication, VerdictInbox};
    use crate::health::Health;
    use crate::telemetry::KafkaClients;

    fn publication(ticket: u64, verdicts: &Arc<VerdictInbox>) -> Publication {
        let message = Message {
            origin: Origin::Kafka,
            key: None,
            body: None,
            headers: Vec::new(),
            properties: None,
        };
        let entry = Entry::new(UnixMs(0), message);
        let target = Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: "t".into(),
        });
        Publication::alone(entry, target, ticket, verdicts, i64::MAX)
    }

    fn answer(topic: TopicState) -> TopicAnswer {
        TopicAnswer { topic, ..there() }
    }

    /// A topic of one partition.
    fn there() -> TopicAnswer {
        let partition = PartitionState {
            has_leader: true,
            in_sync: 1,
            replicas: 1,
        };
        TopicAnswer {
            topic: TopicState::There { partitions: 1 },
            partitions: vec![partition],
            least_replicas: None,
        }
    }

    /// A connection to an address without a listener: the producer only keeps what it gets.
    fn unreachable() -> Connection {
        Connection::plain("main", "127.0.0.1:1")
    }

    /// No broker was reached at times, so it may also be an outage.
    fn is_unknown(verdict: &Verdict) -> bool {
        matches!(
            verdict,
            Verdict::Unknown { .. } | Verdict::Interrupted { .. }
        )
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fatal_error_leaves_what_was_in_flight_unknown_and_the_lane_goes_on() {
        let tasks = Tasks::default();
        let shutdown = Shutdown::default();
        let verdicts = Arc::default();
        let part = Health::default().part("kafka:main", false);
        let connection =
            ProducerConnection::new("main".into(), Clock::start(), KafkaClients::default());
        let connection =
            start(connection, &unreachable(), part, &tasks, &shutdown).expect("started");
        let lane = connection.lane("t");
        lane.submit(publication(1, &verdicts));
        // No broker answers, and the connection notices that from time to time.
        let reached = || {
            connection.set_reached(true);
            lane.0.found(&there());
        };
        while lane.0.in_flight() == 0 {
            reached();
            tokio::task::yield_now().await;
        }
        let first = connection
            .producer(ProducerKind::Prompt)
            .expect("a producer");
        first
            .in_flight
            .fatal
            .get_or_init(|| RDKafkaErrorCode::OutOfOrderSequenceNumber);
        let id = Arc::as_ptr(&first);
        drop(first);
        let (ticket, verdict) = verdicts.take().await.remove(0);
        assert_eq!(ticket.batch, 1);
        assert!(is_unknown(&verdict), "{verdict:?}");
        lane.submit(publication(2, &verdicts));
        while connection
            .producer(ProducerKind::Prompt)
            .is_none_or(|second| Arc::as_ptr(&second) == id || lane.0.in_flight() == 0)
        {
            reached();
            tokio::task::yield_now().await;
        }
        // After a forced stop the messages of the second producer are unknown too.
        shutdown.force();
        let (ticket, verdict) = verdicts.take().await.remove(0);
        assert_eq!(ticket.batch, 2);
        assert!(is_unknown(&verdict), "{verdict:?}");
        tasks.ended(Duration::from_secs(60)).await.expect("ended");
        assert_eq!(lane.backlog(), 0);
    }

    #[test]
    fn a_refused_topic_is_in_trouble_until_it_is_there_and_is_asked_for_without_messages() {
        let connection =
            ProducerConnection::new("main".into(), Clock::start(), KafkaClients::default());
        connection.set_reached(true);
        let lane = connection.lane("t");
        assert!(
            connection.questions().is_empty(),
            "nobody has asked for it yet"
        );
        lane.0.found(&answer(TopicState::Missing));
        assert_eq!(lane.trouble().as_deref(), Some("topic t is missing"));
        connection.set_trouble(Some("no broker answers".to_owned()));
        lane.0
            .found(&TopicAnswer::unreachable("no broker answers".to_owned()));
        assert_eq!(
            lane.trouble().as_deref(),
            Some("no broker answers"),
            "nobody knows more meanwhile"
        );
        connection.set_trouble(None);
        assert_eq!(lane.trouble().as_deref(), Some("topic t is missing"));
        assert_eq!(connection.questions().len(), 1, "it is asked for again");
        lane.0.found(&answer(TopicState::NotAllowed));
        assert_eq!(
            lane.trouble().as_deref(),
            Some("not allowed to write to topic t")
        );
        lane.0.found(&there());
        assert_eq!(lane.trouble(), None);
        assert_eq!(lane.backlog(), 0);
    }

    #[test]
    fn whoever_brings_many_leaves_them_to_the_feeder_which_takes_a_run_at_a_time() {
        let connection =
            ProducerConnection::new("main".into(), Clock::start(), KafkaClients::default());
        let verdicts = Arc::default();
        let producer = KafkaProducer::new(&unreachable(), ProducerKind::Bulk, &connection)
            .expect("a producer");
        connection.replace(ProducerKind::Bulk, Some(producer));
        connection.set_reached(true);
        let lane = connection.lane("t");
        lane.0.found(&there());
        lane.submit_all(
            (0..3000)
                .map(|ticket| publication(ticket, &verdicts))
                .collect(),
        );
        let mut in_flight = vec![lane.0.in_flight()];
        while lane.0.in_flight() < 3000 {
            let waiting = connection.waiting();
            assert!(
                matches!(&waiting[..], [one] if Arc::ptr_eq(one, &lane.0)),
                "the lane waits for the feeder"
            );
            lane.0.pump_as_feeder();
            in_flight.push(lane.0.in_flight());
        }
        assert_eq!(in_flight, [0, 1024, 2048, 3000]);
        assert_eq!(lane.backlog(), 3000);
    }
}
