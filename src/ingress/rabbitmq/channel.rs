//! One subscription: a channel with its ledger, the deliveries that are read from it, and their
//! acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lapin::message::Delivery as AmqpDelivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::incoming::{Incoming, Received};
use super::reading_mode::ReadingMode;
use super::silence;
use crate::broker::rabbitmq::{
    AmqpFault, FaultKind, LiveConnection, QueueTraits, consume, from_amqp, take_left_out,
    unreadable_reason, within,
};
use crate::domain::{Flags, Message, Origin, UnixMs};
use crate::ingress::{Delivery, Feed, HandOver, Ledger, Missing, Receipt};
use crate::lifecycle::{Shutdown, tick};
use crate::mutants::{self, Mutant};

/// Most deliveries in one batch.
const MAX_BATCH: usize = 1000;
/// How long a batch is gathered under load. RabbitMQ sends its messages one by one, and a batch of those that
/// came while the last one found its place has three or four. Each batch then costs the store, and the broker
/// its acknowledgement, almost as much as a batch of thirty.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// A message that comes within this time of a batch shows that there is load.
const LOAD_GAP: Duration = Duration::from_millis(1);
/// How often a channel is checked while its deliveries wait.
const CHANNEL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long worn deliveries of a lost channel may take to be stored.
const WORN_GRACE: Duration = Duration::from_secs(5);
/// Header in which a quorum queue counts the earlier deliveries of a message.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// Headers that the queue adds and no producer sent. They are removed.
const BROKER_HEADERS: [&str; 3] = [DELIVERY_COUNT, "x-acquired-count", STREAM_OFFSET];
/// Header in which a stream numbers its messages.
const STREAM_OFFSET: &str = "x-stream-offset";
/// The delivery limit that a queue is taken to have if nobody tells its limit. It may be smaller.
const ASSUMED_DELIVERY_LIMIT: i64 = 4;
/// Smallest `prefetch` with which a batch is gathered: a queue that lends few messages would wait for us.
const MIN_GATHER_PREFETCH: usize = 64;

/// A channel on which a queue can be consumed.
pub(super) struct Subscription {
    channel: lapin::Channel,
    queue: String,
    prefetch: usize,
    /// Nobody could tell whether the queue is a stream: its first delivery does.
    may_be_stream: bool,
    /// The broker may lose the consumer of this queue, and the queue does not go with its last consumer.
    loses_consumers: bool,
    /// The number of earlier deliveries from which on a message is worn.
    worn_from: i64,
    ledger: Arc<Ledger>,
    has_warned: AtomicBool,
}

/// The reason why reading ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadExit {
    /// The process drains.
    Drained,
    /// The route's gate is closed for a while. Deliveries that were not taken go back.
    Paused,
    /// A delivery was given up unresolved, and must be delivered again.
    Abandoned,
    /// The queue is a stream. Nothing of it was taken.
    IsStream,
    /// The deliveries were stopped, and all of them were taken: the queue must be read in its other mode, or nothing came.
    Renewal,
}

/// The deliveries that were there at one moment.
#[derive(Default)]
struct Batch {
    deliveries: Vec<Delivery>,
    /// Receipts of those that must be delivered again.
    given_back: Vec<Receipt>,
    end: Option<BatchEnd>,
}

/// The reason why nothing follows a batch.
enum BatchEnd {
    /// The consumer is cancelled, by this subscription or by the broker.
    Cancelled,
    Fault(AmqpFault),
}

impl Subscription {
    /// Opens a channel for a queue with these traits, which hands over so much at a time.
    pub(super) async fn open(
        live: &LiveConnection,
        queue: &str,
        hand_over: HandOver,
        traits: &QueueTraits,
    ) -> Result<Self, AmqpFault> {
        let channel = live.channel().await?;
        live.limit_bodies(&channel, hand_over.largest_body);
        within(
            "basic.qos",
            channel.basic_qos(hand_over.prefetch, BasicQosOptions::default()),
        )
        .await?;
        let prefetch = hand_over.prefetch.into();
        let has_warned = AtomicBool::new(false);
        Ok(Self {
            channel,
            queue: queue.to_owned(),
            prefetch,
            may_be_stream: traits.is_stream.is_none(),
            loses_consumers: live.is_rabbitmq_3() && traits.is_auto_delete == Some(false),
            worn_from: worn_from(traits.delivery_limit),
            ledger: Ledger::of_queue(singly_from(prefetch)),
            has_warned,
        })
    }

    /// Reports whether its queue may drop what it has delivered too often.
    pub(super) fn may_drop(&self) -> bool {
        self.worn_from < i64::MAX
    }

    /// The ledger of the deliveries that are not resolved.
    pub(super) fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
    }

    /// Starts the deliveries.
    pub(super) async fn consume(&self, tag: &str) -> Result<lapin::Consumer, AmqpFault> {
        consume(&self.channel, &self.queue, tag, FieldTable::default()).await
    }

    /// Reads and acknowledges until the process drains, the deliveries must go back, or the channel is lost
    /// (`Err`). Forcing shutdown ends it too, even in the middle of a batch.
    pub(super) async fn read(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        mode: &mut ReadingMode,
        shutdown: &Shutdown,
    ) -> Result<ReadExit, AmqpFault> {
        let take_all = async {
            let end = self.take_all(consumer, feed, mode, shutdown).await;
            if end.is_err() {
                self.keep_worn().await;
            }
            end
        };
        tokio::select! {
            biased;
            () = shutdown.forced() => Ok(ReadExit::Drained),
            end = self.acknowledge_all() => Ok(end),
            end = take_all => end,
            // The feed is dropped with the ledger. Whatever its deliveries wait for, they come again, but for what is worn.
            fault = self.lost() => Err(fault),
        }
    }

    /// Takes the deliveries that are there as a batch, one batch after another. Under load, deliveries that are
    /// not urgent are gathered for a moment. In a trickle, or with something urgent, nothing waits. Deliveries
    /// that cannot be taken yet wait here with their channel: none is delivered again unless the channel is
    /// lost or the wait is long. Before a renewal the deliveries are stopped and those that are there are taken.
    async fn take_all(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        mode: &mut ReadingMode,
        shutdown: &Shutdown,
    ) -> Result<ReadExit, AmqpFault> {
        let mut pace = ArrivalPace::new(self.prefetch);
        let mut incoming = Incoming::new(self, consumer);
        let mut asks_first = self.may_be_stream;
        let mut is_cancelled = false;
        loop {
            let next = tokio::select! {
                biased;
                () = shutdown.draining() => return Ok(ReadExit::Drained),
                next = incoming.next() => next,
                () = feed.until_closed() => return Ok(ReadExit::Paused),
                silence = self.long_silence(feed), if !is_cancelled => {
                    silence?;
                    debug!(queue = %self.queue, "nothing came for long; the subscription is renewed");
                    self.stop(incoming.consumer).await;
                    is_cancelled = true;
                    continue;
                }
            };
            if feed.had_time() && pace.is_gathering(Instant::now()) {
                tokio::time::sleep(GATHER_TIME).await;
            }
            if std::mem::take(&mut asks_first)
                && let Some(Ok(received)) = &next
                && is_of_stream(&received.amqp)
            {
                return Ok(ReadExit::IsStream);
            }
            let mut batch = gather(next, &mut incoming, mode);
            pace.note(batch.deliveries.len(), Instant::now());
            if !is_cancelled && batch.end.is_none() && mode.must_change(Instant::now()) {
                self.stop(incoming.consumer).await;
                is_cancelled = true;
            }
            // Not before the deliveries are stopped: this mode would leave them out again.
            batch.given_back.into_iter().for_each(Receipt::give_back);
            while !batch.deliveries.is_empty() {
                tokio::select! {
                    biased;
                    () = feed.until_open() => {}
                    () = shutdown.draining() => return Ok(ReadExit::Drained),
                    () = feed.until_closed() => return Ok(ReadExit::Paused),
                }
                // What waits must not hide from us what comes behind it.
                batch.deliveries = tokio::select! {
                    // First, for it clears the press on an earlier batch, which is none on this one.
                    biased;
                    never = incoming.look_ahead() => match never {},
                    rest = feed.take(batch.deliveries) => rest,
                };
            }
            match batch.end {
                None => {}
                Some(BatchEnd::Cancelled) if is_cancelled => return Ok(ReadExit::Renewal),
                Some(BatchEnd::Cancelled) => {
                    return Err(AmqpFault::new(
                        FaultKind::NotFound,
                        "the broker has cancelled the consumer",
                    ));
                }
                Some(BatchEnd::Fault(fault)) => return Err(fault),
            }
        }
    }

    /// Waits until the subscription is to be renewed, see [`silence`]. Never while the route's gate is closed: then the
    /// deliveries of the next one would wait. Never where the queue may go with its last consumer.
    async fn long_silence(&self, feed: &impl Feed) -> Result<(), AmqpFault> {
        let may_be_renewed = || self.loses_consumers && feed.until_open().now_or_never().is_some();
        silence::long_silence(&self.channel, &self.queue, &self.ledger, may_be_renewed).await
    }

    /// Stops the deliveries before a renewal. If no answer comes in time, it comes later, or the channel is lost: see
    /// [`Self::lost`].
    async fn stop(&self, consumer: &lapin::Consumer) {
        if let Err(fault) = self.cancel(consumer).await {
            debug!(queue = %self.queue, %fault, "the deliveries are not stopped yet");
        }
    }

    /// Stops the deliveries. Those that the broker sent before still come.
    async fn cancel(&self, consumer: &lapin::Consumer) -> Result<(), AmqpFault> {
        let cancel = self
            .channel
            .basic_cancel(consumer.tag(), BasicCancelOptions::default());
        within("basic.cancel", cancel).await
    }

    /// Waits until the channel is known to be lost, so that nothing can be acknowledged on it, and what is worn is stored.
    async fn lost(&self) -> AmqpFault {
        while self.channel.status().connected() {
            tick(CHANNEL_CHECK_INTERVAL).await;
        }
        self.keep_worn().await;
        AmqpFault::new(
            FaultKind::Lost,
            "the channel was lost while its deliveries waited",
        )
    }

    /// Waits until what is worn is stored, for a while: its queue may have delivered it for the last time, and then
    /// nobody else has it.
    async fn keep_worn(&self) {
        if self.ledger.worn() > 0 {
            self.ledger.press();
        }
        let stored = tokio::time::timeout(WORN_GRACE, self.ledger.without_worn()).await;
        if stored.is_err() {
            let messages = self.ledger.worn();
            warn!(
                queue = %self.queue, messages,
                "messages of a lost channel could not be stored in time; their queue may have dropped them"
            );
        }
    }

    /// Enters a delivery into the ledger.
    pub(super) fn enter(&self, amqp: AmqpDelivery) -> Received {
        let mut receipt = self.ledger.enter(amqp.delivery_tag as i64);
        if self.is_worn(&amqp) {
            receipt.mark_worn();
        }
        Received { amqp, receipt }
    }

    /// Reports whether the queue may drop a message after a few deliveries more, and warns of that once a subscription.
    fn is_worn(&self, delivery: &AmqpDelivery) -> bool {
        let count = delivery_count(delivery);
        let is_worn = count >= self.worn_from && !mutants::is(Mutant::NeverWorn);
        if is_worn && count > 0 && !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(
                queue = %self.queue, deliveries = count + 1,
                "the broker has delivered a message many times; beyond the queue's delivery limit it drops it"
            );
        }
        is_worn
    }

    /// Acknowledges whenever there is something to release. Returns once a delivery is abandoned.
    async fn acknowledge_all(&self) -> ReadExit {
        loop {
            self.ledger.advanced().await;
            self.acknowledge().await;
            if self.ledger.is_abandoned() {
                return ReadExit::Abandoned;
            }
        }
    }

    /// Answers what has ended. Reading finds out that a channel is lost, and the broker then delivers
    /// the unacknowledged messages again.
    async fn acknowledge(&self) {
        if let Err(fault) = self.send_answers().await {
            debug!(queue = %self.queue, %fault, "an acknowledgement was not sent");
        }
    }

    /// Sends rejections, and what is given back, one by one, then acknowledges the rest of the prefix at once, and singly
    /// what is behind one that waits. The acknowledged tag must be none of theirs.
    async fn send_answers(&self) -> Result<(), AmqpFault> {
        let Some(released) = self.ledger.release() else {
            return Ok(());
        };
        let channel = &self.channel;
        let mut answers: Vec<BoxFuture<'_, lapin::Result<()>>> = Vec::new();
        for tag in released.rejected {
            let options = BasicRejectOptions { requeue: false };
            answers.push(channel.basic_reject(tag as u64, options).boxed());
        }
        for tag in released.given_back {
            let options = BasicNackOptions {
                requeue: true,
                ..Default::default()
            };
            answers.push(channel.basic_nack(tag as u64, options).boxed());
        }
        let prefix = released.safe.map(|tag| (tag, true));
        let singly = released.safe_singly.into_iter().map(|tag| (tag, false));
        for (tag, multiple) in prefix.into_iter().chain(singly) {
            let options = BasicAckOptions { multiple };
            answers.push(channel.basic_ack(tag as u64, options).boxed());
        }
        // The client library takes an answer at the first poll. All are handed to it before anything is awaited: the
        // ledger has forgotten them, and whoever gives up waiting here must not lose some.
        let mut waiting = Vec::new();
        for mut answer in answers {
            match (&mut answer).now_or_never() {
                Some(answered) => answered?,
                None => waiting.push(answer),
            }
        }
        for answer in waiting {
            within("basic.ack", answer).await?;
        }
        Ok(())
    }

    /// Stops the deliveries, waits until every delivery that was taken is resolved or given up, acknowledges,
    /// and closes the channel. If shutdown is forced, acknowledges the resolved prefix and waits for nothing.
    /// Deliveries that were not taken go back to the queue.
    pub(super) async fn finish(
        self,
        consumer: lapin::Consumer,
        shutdown: &Shutdown,
    ) -> Result<(), AmqpFault> {
        self.ledger.end_reading();
        let in_order = async {
            if let Err(fault) = self.cancel(&consumer).await {
                self.keep_worn().await;
                return Err(fault);
            }
            let mut lost = std::pin::pin!(self.lost());
            loop {
                self.acknowledge().await;
                if self.ledger.is_finished() {
                    return within("channel.close", self.channel.close(200, "done".into())).await;
                }
                tokio::select! {
                    () = self.ledger.advanced() => {}
                    fault = &mut lost => return Err(fault),
                }
            }
        };
        tokio::select! {
            biased;
            () = shutdown.forced() => {}
            drained = in_order => return drained,
        }
        self.send_answers().await
    }
}

/// Gathers a delivery and those that are there with it.
fn gather(
    first: Option<lapin::Result<Received>>,
    incoming: &mut Incoming<'_>,
    mode: &mut ReadingMode,
) -> Batch {
    let mut batch = Batch::default();
    let mut next = Some(first);
    while let Some(received) = next {
        match received {
            Some(Ok(received)) => add(received, mode, &mut batch),
            Some(Err(error)) => batch.end = Some(BatchEnd::Fault(error.into())),
            None => batch.end = Some(BatchEnd::Cancelled),
        }
        let full = batch.end.is_some() || batch.deliveries.len() == MAX_BATCH;
        next = if full {
            None
        } else {
            incoming.next().now_or_never()
        };
    }
    batch
}

/// Adds a delivery to a batch.
fn add(received: Received, mode: &mut ReadingMode, batch: &mut Batch) {
    let Received { amqp, receipt } = received;
    let (mut headers, properties) = from_amqp(&amqp.properties);
    let left_out = take_left_out(&mut headers);
    let body_len = left_out.unwrap_or(amqp.data.len() as u64);
    if mode.note(body_len, Instant::now()) {
        batch.given_back.push(receipt);
        return;
    }
    headers.retain(|header| !BROKER_HEADERS.contains(&header.name.as_str()));
    let malformed = unreadable_reason(&headers);
    if malformed.is_some() {
        headers.clear();
    }
    let missing = match left_out {
        Some(bytes) => Some(Missing::Body { bytes, malformed }),
        None => malformed.map(Missing::Headers),
    };
    let flags = Flags::default();
    batch.deliveries.push(Delivery {
        missing,
        produced: properties.timestamp.and_then(produced),
        flags: if amqp.redelivered {
            flags.with(Flags::SOURCE_REDELIVERY)
        } else {
            flags
        },
        position: None,
        resolved_time: None,
        receipt,
        message: Message {
            origin: Origin::Rabbitmq,
            key: Some(Bytes::from(String::from(amqp.routing_key))),
            body: Some(Bytes::from(amqp.data)),
            headers,
            properties: Some(Box::new(properties)),
        },
    });
}

/// The pace of arrivals, which decides whether gathering pays.
struct ArrivalPace {
    prefetch: usize,
    /// The last batch.
    last: Option<LastBatch>,
}

struct LastBatch {
    messages: usize,
    completed: Instant,
}

impl ArrivalPace {
    fn new(prefetch: usize) -> Self {
        Self {
            prefetch,
            last: None,
        }
    }

    /// Reports, when a first message has come, whether to gather more: the message followed the last batch
    /// closely, and that batch was so small that the messages of one [`GATHER_TIME`] are fewer than the queue
    /// lends.
    fn is_gathering(&self, now: Instant) -> bool {
        let Some(last) = &self.last else { return false };
        self.prefetch >= MIN_GATHER_PREFETCH
            && last.messages * 4 <= self.prefetch
            && now - last.completed < LOAD_GAP
    }

    fn note(&mut self, messages: usize, now: Instant) {
        self.last = Some(LastBatch {
            messages,
            completed: now,
        });
    }
}

/// The number of earlier deliveries from which on a message is worn, by the delivery limit of its queue: half of it. A
/// channel may be lost before what came on it is stored, so each delivery after that is one more chance. A negative limit
/// is none.
fn worn_from(delivery_limit: Option<i64>) -> i64 {
    match delivery_limit.unwrap_or(ASSUMED_DELIVERY_LIMIT) {
        ..0 => i64::MAX,
        limit => limit / 2,
    }
}

/// The number of messages that have ended behind one that has not from which on they are acknowledged singly: a part of
/// what the queue lends, so that it always has something to lend.
fn singly_from(prefetch: usize) -> usize {
    (prefetch / 4).max(1)
}

/// How often its queue has delivered a message before. Only quorum queues count: a classic queue's `redelivered` says
/// nothing.
fn delivery_count(delivery: &AmqpDelivery) -> i64 {
    // Whoever published the message may have copied the header of another queue.
    if !delivery.redelivered {
        return 0;
    }
    let headers = delivery.properties.headers().as_ref();
    let count = headers.and_then(|headers| headers.inner().get(DELIVERY_COUNT));
    count.and_then(whole).unwrap_or_default()
}

/// Reports whether a delivery comes from a stream.
fn is_of_stream(delivery: &AmqpDelivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    headers.is_some_and(|headers| headers.inner().contains_key(STREAM_OFFSET))
}

/// The value of an integer of any width.
fn whole(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::ShortShortInt(n) => Some((*n).into()),
        AMQPValue::ShortShortUInt(n) => Some((*n).into()),
        AMQPValue::ShortInt(n) => Some((*n).into()),
        AMQPValue::ShortUInt(n) => Some((*n).into()),
        AMQPValue::LongInt(n) => Some((*n).into()),
        AMQPValue::LongUInt(n) => Some((*n).into()),
        AMQPValue::LongLongInt(n) => Some(*n),
        _ => None,
    }
}

/// The end of the second in which a message says it was produced.
fn produced(seconds: u64) -> Option<UnixMs> {
    i64::try_from(seconds)
        .ok()?
        .checked_mul(1000)?
        .checked_add(999)
        .map(UnixMs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_fast_and_not_too_fast_is_gathered() {
        let mut pace = ArrivalPace::new(500);
        let start = Instant::now();
        assert!(!pace.is_gathering(start), "nothing came before");
        pace.note(3, start);
        assert!(pace.is_gathering(start + LOAD_GAP / 2));
        assert!(!pace.is_gathering(start + LOAD_GAP), "a trickle");
        pace.note(125, start);
        assert!(pace.is_gathering(start));
        pace.note(126, start);
        assert!(
            !pace.is_gathering(start),
            "four times as many are all that the queue lends"
        );
        let mut few = ArrivalPace::new(MIN_GATHER_PREFETCH - 1);
        few.note(1, start);
        assert!(!few.is_gathering(start));
    }

    #[test]
    fn a_message_is_worn_from_half_of_its_deliveries_on() {
        let limits = [None, Some(20), Some(3), Some(2), Some(1), Some(0), Some(-1)];
        assert_eq!(limits.map(worn_from), [2, 10, 1, 1, 0, 0, i64::MAX]);
    }

    #[test]
    fn a_timestamp_means_the_end_of_its_second_and_an_absurd_one_nothing() {
        assert_eq!(produced(0), Some(UnixMs(999)));
        assert_eq!(produced(1_700_000_000), Some(UnixMs(1_700_000_000_999)));
        assert_eq!(produced(u64::MAX), None);
        assert_eq!(produced(i64::MAX as u64), None);
    }
}
