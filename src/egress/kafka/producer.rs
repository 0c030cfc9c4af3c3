//! One connection's producers: their threads, their delivery reports, and their replacement when a fatal
//! error (idempotence lost) ends one.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use tracing::{info, warn};

use super::StartError;
use super::connection::{Link, Pace};
use super::lane::TopicLane;
use super::outcome::{self, Landing};
use crate::backoff::Backoff;
use crate::broker::kafka::{self, Connection, TopicState};
use crate::domain::{Clock, Text, Verdict};
use crate::egress::Publication;
use crate::lifecycle::{Part, Shutdown, Tasks};

/// How long one look at the event queue takes at most; also how often deadlines of waiting messages are
/// looked at. Of whole milliseconds the client waits the last one in a busy loop, for it cuts off what is left
/// to whole ones and what it waits has cost some microseconds already: those are given on top.
const POLL: Duration = Duration::from_micros(100_020);
/// The same while there are none: each look costs a wake-up.
const POLL_IDLE: Duration = Duration::from_micros(400_020);
/// How long brokers may take to answer about a topic.
const ANSWER: Duration = Duration::from_secs(5);
/// A topic that every cluster with consumer groups has; any answer about it is a sign of life.
const ANY_TOPIC: &str = "__consumer_offsets";

/// Starts a connection's producers and the task that asks its brokers about topics.
pub(super) fn start(
    connection: &Connection,
    clock: Clock,
    part: Part,
    tasks: &Tasks,
    shutdown: &Shutdown,
) -> Result<Arc<Link>, StartError> {
    let link = Link::new(connection.name.clone(), clock);
    let name = format!("egress:kafka:{}", connection.name);
    let failed = |error| StartError::Thread { connection: connection.name.clone(), error };
    for pace in Pace::BOTH {
        let config = connection.producer_config(pace.linger())?;
        let producer = Producer::new(&config, &link).map_err(|error| connection.refused(error))?;
        link.replace(pace, Some(producer));
        let (link, shutdown) = (link.clone(), shutdown.clone());
        let body = move || Engine { link, pace, config, retired: Vec::new() }.run(&shutdown);
        tasks.thread(&name, body).map_err(failed)?;
    }
    let fed = link.clone();
    tasks.thread(&name, move || feed(&fed)).map_err(failed)?;
    tasks.spawn(&name, answer_questions(link.clone(), part));
    Ok(link)
}

/// A message in the producer, not yet reported on.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) publication: Publication,
    pub(super) lane: Arc<TopicLane>,
    pub(super) bytes: usize,
    /// It was sent while nothing else of its lane was in flight: what the broker says is about this one.
    pub(super) alone: bool,
}

/// The messages in one producer. Each is taken out once, so each gets one verdict: by its delivery
/// report, or when the producer is gone.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Mutex<(Vec<Option<Flight>>, Vec<usize>)>,
    /// Delivery reports that the lanes have not heard of yet.
    reports: Mutex<Vec<(usize, Landing)>>,
    /// What ended the producer.
    fatal: OnceLock<RDKafkaErrorCode>,
}

impl Flights {
    /// Enters one; the number is its delivery report's.
    pub(super) fn take_off(&self, flight: Flight) -> usize {
        let (slots, free) = &mut *self.slots.lock();
        if let Some(slot) = free.pop() {
            slots[slot] = Some(flight);
            return slot;
        }
        slots.push(Some(flight));
        slots.len() - 1
    }

    /// Takes one out whose record the producer did not take.
    pub(super) fn land(&self, slot: usize) -> Option<Flight> {
        let (slots, free) = &mut *self.slots.lock();
        let flight = slots.get_mut(slot)?.take()?;
        free.push(slot);
        Some(flight)
    }

    /// Tells the lanes what was reported since the last time: together, for each report by itself would
    /// take their locks as often as there are messages.
    fn tell(&self) {
        let reports = std::mem::take(&mut *self.reports.lock());
        if reports.is_empty() {
            return;
        }
        to_lanes(self.take(reports));
    }

    fn take(&self, reports: Vec<(usize, Landing)>) -> Vec<(Flight, Landing)> {
        let (slots, free) = &mut *self.slots.lock();
        let landed = reports.into_iter().filter_map(|(slot, landing)| {
            let flight = slots.get_mut(slot)?.take()?;
            free.push(slot);
            Some((flight, landing))
        });
        landed.collect()
    }

    /// The producer is gone: nobody will report on what is left.
    fn abandon(&self) {
        self.tell();
        let left: Vec<_> = self.slots.lock().0.drain(..).flatten().collect();
        let closed = || Verdict::Unknown { error: Text::from("its producer was closed") }.into();
        to_lanes(left.into_iter().map(|flight| (flight, closed())).collect());
    }
}

/// Gives each lane its own, in order.
fn to_lanes(landed: Vec<(Flight, Landing)>) {
    let mut landed = landed.into_iter().peekable();
    while let Some(first) = landed.next() {
        let lane = first.0.lane.clone();
        let mut batch = vec![first];
        while let Some(next) = landed.next_if(|(flight, _)| Arc::ptr_eq(&flight.lane, &lane)) {
            batch.push(next);
        }
        lane.landed(batch);
    }
}

/// One librdkafka producer.
pub(super) struct Producer {
    inner: BaseProducer<Context>,
    flights: Arc<Flights>,
}

struct Context {
    link: Arc<Link>,
    flights: Arc<Flights>,
    /// To ask librdkafka what a fatal error was.
    producer: OnceLock<Weak<Producer>>,
}

impl Producer {
    fn new(config: &ClientConfig, link: &Arc<Link>) -> Result<Arc<Self>, KafkaError> {
        let flights = Arc::new(Flights::default());
        let context = Context { link: link.clone(), flights: flights.clone(), producer: OnceLock::new() };
        let inner: BaseProducer<Context> = config.create_with_context(context)?;
        let producer = Arc::new(Self { inner, flights });
        let context: &Arc<Context> = producer.inner.context();
        context.producer.get_or_init(|| Arc::downgrade(&producer));
        Ok(producer)
    }

    pub(super) fn flights(&self) -> &Flights {
        &self.flights
    }

    pub(super) fn client(&self) -> &Client<impl ClientContext> {
        self.inner.client()
    }

    /// Hands a record over. `Err` gives its number back: nothing will be reported on it.
    pub(super) fn send(&self, record: BaseRecord<'_, [u8], [u8], usize>) -> Result<(), (KafkaError, usize)> {
        self.inner.send(record).map_err(|(error, record)| (error, record.delivery_opaque))
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        kafka::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            let producer = self.producer.get().and_then(Weak::upgrade);
            let cause = producer.and_then(|producer| producer.inner.client().fatal_error());
            self.flights.fatal.get_or_init(|| cause.map_or(RDKafkaErrorCode::Fatal, |(code, _)| code));
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            // Until one has answered again.
            self.link.set_reached(false);
        }
        self.link.suspicion.error(&error, reason);
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: usize) {
        let landing = match result {
            Ok(_) => Verdict::Confirmed.into(),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                outcome::landing(code, self.flights.fatal.get().copied())
            }
        };
        let first = {
            let mut reports = self.flights.reports.lock();
            reports.push((slot, landing));
            reports.len() == 1
        };
        if first {
            self.link.ring();
        }
    }
}

/// A producer's thread.
struct Engine {
    link: Arc<Link>,
    pace: Pace,
    config: ClientConfig,
    /// Ended, but still in somebody's hand for a moment.
    retired: Vec<Arc<Producer>>,
}

impl Engine {
    fn run(mut self, shutdown: &Shutdown) {
        let mut failures = 0;
        while !self.is_done(shutdown) {
            if let Some(producer) = self.link.producer(self.pace) {
                let idle = self.link.lanes().iter().all(|lane| lane.backlog() == 0);
                producer.inner.poll(if idle { POLL_IDLE } else { POLL });
                if let Some(cause) = producer.flights.fatal.get() {
                    warn!(connection = %self.link.name, %cause, "kafka producer ended by a fatal error, starting another");
                    self.retired.extend(self.link.replace(self.pace, None));
                    failures += 1;
                }
            } else {
                // A fatal error that comes again at once (no permission) must not spin.
                std::thread::park_timeout(Backoff::CLIENT.wait(failures));
                match Producer::new(&self.config, &self.link) {
                    Ok(producer) => drop(self.link.replace(self.pace, Some(producer))),
                    Err(error) => {
                        warn!(connection = %self.link.name, %error, "kafka producer does not start");
                        failures += 1;
                    }
                }
            }
            self.bury();
            self.link.remind();
            for lane in self.link.lanes() {
                lane.tick(shutdown.is_draining());
            }
        }
        self.end();
    }

    fn is_done(&self, shutdown: &Shutdown) -> bool {
        shutdown.is_forced()
            || (shutdown.is_draining() && self.link.lanes().iter().all(|lane| lane.backlog() == 0))
    }

    /// Drops the ended producers that nobody else holds. It must happen here: dropping one reports on
    /// what it held, and a lane that did it under its lock would wait for itself.
    fn bury(&mut self) {
        for producer in std::mem::take(&mut self.retired) {
            match Arc::try_unwrap(producer) {
                Ok(producer) => {
                    let flights = producer.flights.clone();
                    drop(producer);
                    flights.abandon();
                }
                Err(held) => self.retired.push(held),
            }
        }
    }

    fn end(mut self) {
        self.link.end();
        let lanes = self.link.lanes();
        for lane in &lanes {
            lane.end();
        }
        self.retired.extend(self.link.replace(self.pace, None));
        // Whoever still asks about a topic holds it for as long as that takes.
        while !self.retired.is_empty() {
            self.bury();
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let left: usize = lanes.iter().map(|lane| lane.backlog()).sum();
        if left > 0 {
            warn!(connection = %self.link.name, left, "kafka lanes closed with messages unanswered");
        }
    }
}

/// The feeder: passes delivery reports on to the lanes, together what came together, and hands over for lanes
/// that have much to send, each a run in its turn.
fn feed(link: &Link) {
    while link.until_rung() {
        // What was reported of one that has been replaced is told when that one is given up.
        for producer in Pace::BOTH.into_iter().filter_map(|pace| link.producer(pace)) {
            let flights = producer.flights.clone();
            drop(producer);
            flights.tell();
        }
        for lane in link.waiting() {
            lane.go_on();
        }
    }
}

/// Answers the lanes' questions about their topics, and watches whether the brokers are there.
async fn answer_questions(link: Arc<Link>, part: Part) {
    let (mut reached, mut told, mut failures) = (false, false, 0);
    loop {
        tokio::select! {
            () = link.ended.cancelled() => return,
            () = link.asked.notified() => {}
            () = link.suspicion.raised() => {}
            () = tokio::time::sleep(Backoff::BROKER.wait(failures)), if !reached => {}
        }
        let lanes = link.questions();
        let mut unreachable = None;
        for lane in &lanes {
            let found = match &unreachable {
                Some(error) => TopicState::Unreachable(String::clone(error)),
                None => look_up(&link, lane.topic.clone()).await,
            };
            if let TopicState::Unreachable(error) = &found {
                unreachable = Some(error.clone());
            }
            lane.found(&found);
        }
        if lanes.is_empty()
            && let TopicState::Unreachable(error) = look_up(&link, ANY_TOPIC.to_owned()).await
        {
            unreachable = Some(error);
        }
        reached = unreachable.is_none();
        if let Some(error) = unreachable {
            failures += 1;
            let why = link.suspicion.explain(&error);
            if !told {
                warn!(connection = %link.name, error = %why, "kafka cannot be reached, waiting");
                told = true;
            }
            link.set_trouble(Some(format!("kafka cannot be reached: {why}")));
            part.down(why);
            link.set_reached(false);
        } else {
            failures = 0;
            if std::mem::take(&mut told) {
                info!(connection = %link.name, "kafka is reached again");
            }
            link.set_trouble(None);
            part.up();
            link.set_reached(true);
        }
    }
}

async fn look_up(link: &Arc<Link>, topic: String) -> TopicState {
    let Some(producer) = link.producer(Pace::Prompt) else {
        return TopicState::Unreachable("the producer is being replaced".to_owned());
    };
    let asked = tokio::task::spawn_blocking(move || kafka::look_up(producer.client(), &topic, ANSWER));
    asked.await.unwrap_or_else(|error| TopicState::Unreachable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::domain::{Entry, Message, Origin, Target, UnixMs};
    use crate::egress::{Lane, Verdicts};
    use crate::lifecycle::Readiness;

    fn publication(ticket: u64, verdicts: &Arc<Verdicts>) -> Publication {
        let message =
            Message { origin: Origin::Kafka, key: None, body: None, headers: Vec::new(), properties: None };
        let entry = Entry::new(UnixMs(0), message);
        let target = Arc::new(Target::Kafka { connection: "main".into(), topic: "t".into() });
        Publication::alone(entry, target, ticket, verdicts, i64::MAX)
    }

    /// Nobody listens at this address; the producer only has to hold what it gets.
    fn unreachable() -> Connection {
        Connection { name: "main".into(), brokers: "127.0.0.1:1".into(), properties: BTreeMap::new() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fatal_error_leaves_what_was_in_flight_unknown_and_the_lane_goes_on() {
        let (tasks, shutdown, verdicts) = (Tasks::default(), Shutdown::default(), Arc::default());
        let part = Readiness::default().part("kafka:main", false);
        let link = start(&unreachable(), Clock::start(), part, &tasks, &shutdown).expect("started");
        let lane = link.lane("t");
        lane.submit(publication(1, &verdicts));
        // Nobody answers, and the connection notices that from time to time.
        let reached = || {
            link.set_reached(true);
            lane.0.found(&TopicState::There { partitions: 1 });
        };
        while lane.0.in_flight() == 0 {
            reached();
            tokio::task::yield_now().await;
        }
        let first = link.producer(Pace::Prompt).expect("a producer");
        first.flights.fatal.get_or_init(|| RDKafkaErrorCode::OutOfOrderSequenceNumber);
        let id = Arc::as_ptr(&first);
        drop(first);
        let (ticket, verdict) = verdicts.take().await.remove(0);
        assert_eq!(ticket, 1);
        assert!(matches!(verdict, Verdict::Unknown { .. }), "{verdict:?}");
        lane.submit(publication(2, &verdicts));
        while link
            .producer(Pace::Prompt)
            .is_none_or(|second| Arc::as_ptr(&second) == id || lane.0.in_flight() == 0)
        {
            reached();
            tokio::task::yield_now().await;
        }
        // Forced to stop, nobody can tell of what the second producer held either.
        shutdown.force();
        let (ticket, verdict) = verdicts.take().await.remove(0);
        assert_eq!(ticket, 2);
        assert!(matches!(verdict, Verdict::Unknown { .. }), "{verdict:?}");
        tasks.ended(Duration::from_secs(60)).await.expect("ended");
        assert_eq!(lane.backlog(), 0);
    }

    #[test]
    fn whoever_brings_many_leaves_them_to_the_feeder_which_takes_a_run_at_a_time() {
        let (link, verdicts) = (Link::new("main".into(), Clock::start()), Arc::default());
        let config = unreachable().producer_config(Pace::Bulk.linger()).expect("good settings");
        link.replace(Pace::Bulk, Some(Producer::new(&config, &link).expect("a producer")));
        link.set_reached(true);
        let lane = link.lane("t");
        lane.0.found(&TopicState::There { partitions: 1 });
        lane.submit_all((0..3000).map(|ticket| publication(ticket, &verdicts)).collect());
        let mut in_flight = vec![lane.0.in_flight()];
        while lane.0.in_flight() < 3000 {
            let waiting = link.waiting();
            assert!(
                matches!(&waiting[..], [one] if Arc::ptr_eq(one, &lane.0)),
                "the lane waits for the feeder"
            );
            lane.0.go_on();
            in_flight.push(lane.0.in_flight());
        }
        assert_eq!(in_flight, [0, 1024, 2048, 3000]);
        assert_eq!(lane.backlog(), 3000);
    }
}
