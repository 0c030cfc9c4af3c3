//! One subscription: a channel, its ledger, and what is read and acknowledged over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery as AmqpDelivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{FieldTable, ShortString};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::broker::rabbitmq::{Fault, FaultKind, Live, from_amqp, look_for_queue, short_name, within};
use crate::domain::{Flags, Header, HeaderValue, Message, Origin, Text, UnixMs, limits};
use crate::ingress::Feed;
use crate::ingress::{Delivery, Ledger};
use crate::lifecycle::{Shutdown, tick};

/// Most deliveries handed on at once.
const BATCH: usize = 1000;
/// How long a batch is gathered under load. RabbitMQ sends its messages one by one, and a batch of what has come while
/// the last one found its place is of three or four: each then costs the store, and the broker its acknowledgement,
/// almost what a batch of thirty does.
const GATHER: Duration = Duration::from_millis(5);
/// What comes so soon after a batch says that there is load.
const NEAR: Duration = Duration::from_millis(1);
/// How often a channel is looked at while its deliveries wait.
const LOOK: Duration = Duration::from_millis(250);
/// Where a quorum queue counts the deliveries of a message before this one.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// Headers that the queue itself adds, which no producer sent: they stay behind.
const BROKER_HEADERS: [&str; 2] = [DELIVERY_COUNT, "x-acquired-count"];
/// Earlier deliveries that are worth a warning: half of what RabbitMQ 4 allows by default.
const MANY_DELIVERIES: i64 = 10;
/// The least `prefetch` with which anything is gathered: a queue that lends few would wait for us.
const MANY: usize = 64;

/// A channel on which a queue can be consumed.
pub(super) struct Subscription {
    channel: lapin::Channel,
    queue: ShortString,
    prefetch: usize,
    ledger: Arc<Ledger>,
    told_of_count: AtomicBool,
}

/// Why reading ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process drains.
    Drained,
    /// The route's ingress is closed, for a while: what was not taken goes back.
    Paused,
    /// What was taken was given up unresolved: it must be delivered again.
    Abandoned,
}

impl Subscription {
    /// Opens a channel for a queue, which must be there.
    pub(super) async fn open(live: &Live, queue: &str, prefetch: u16) -> Result<Self, Fault> {
        let channel = live.channel().await?;
        look_for_queue(&channel, queue).await?;
        within("basic.qos", channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let (queue, prefetch, told_of_count) = (short_name(queue)?, prefetch.into(), AtomicBool::new(false));
        Ok(Self { channel, queue, prefetch, ledger: Ledger::new(), told_of_count })
    }

    /// What was delivered and is not resolved.
    pub(super) fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
    }

    /// Starts the deliveries.
    pub(super) async fn consume(&self, tag: &str) -> Result<lapin::Consumer, Fault> {
        let tag = ShortString::try_new(tag).unwrap_or_default();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        within("basic.consume", self.channel.basic_consume(self.queue.clone(), tag, options, arguments)).await
    }

    /// Reads until the process drains, what was delivered is to go back, or the channel is lost (`Err`),
    /// acknowledging all the while. Being forced ends it too, in the middle of a batch if need be.
    pub(super) async fn read(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        shutdown: &Shutdown,
    ) -> Result<End, Fault> {
        tokio::select! {
            biased;
            () = shutdown.forced() => Ok(End::Drained),
            end = self.acknowledge_all() => Ok(end),
            end = self.take_all(consumer, feed, shutdown) => end,
        }
    }

    /// Takes what is there as a batch, one after another. Under load, what is not urgent is gathered for a moment;
    /// where little comes, or something urgent does, nothing waits. What cannot be taken yet waits here, with its
    /// channel: no delivery is spent on it unless the channel is lost or the wait is long.
    async fn take_all(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        shutdown: &Shutdown,
    ) -> Result<End, Fault> {
        let mut pace = Pace::new(self.prefetch);
        loop {
            let mut next = tokio::select! {
                biased;
                () = shutdown.draining() => return Ok(End::Drained),
                next = consumer.next() => Some(next),
                () = feed.until_closed() => return Ok(End::Paused),
            };
            if feed.had_time() && pace.is_gathering(Instant::now()) {
                tokio::time::sleep(GATHER).await;
            }
            let mut batch = Vec::new();
            let mut end = None;
            while let Some(delivery) = next {
                match delivery {
                    Some(Ok(delivery)) => batch.push(self.enter(delivery)),
                    Some(Err(error)) => end = Some(Fault::from(error)),
                    None => {
                        end = Some(Fault::new(FaultKind::NotFound, "the broker has cancelled the consumer"));
                    }
                }
                let full = end.is_some() || batch.len() == BATCH;
                next = if full { None } else { consumer.next().now_or_never() };
            }
            pace.note(batch.len(), Instant::now());
            while !batch.is_empty() {
                tokio::select! {
                    biased;
                    () = feed.until_open() => {}
                    () = shutdown.draining() => return Ok(End::Drained),
                    () = feed.until_closed() => return Ok(End::Paused),
                    fault = self.lost() => return Err(fault),
                }
                batch = feed.take(batch).await;
            }
            if let Some(fault) = end {
                return Err(fault);
            }
        }
    }

    /// Waits until the channel is known to be lost: nothing of it can be acknowledged any more.
    async fn lost(&self) -> Fault {
        while self.channel.status().connected() {
            tick(LOOK).await;
        }
        Fault::new(FaultKind::Lost, "the channel was lost while its deliveries waited")
    }

    fn enter(&self, amqp: AmqpDelivery) -> Delivery {
        let receipt = self.ledger.enter(amqp.delivery_tag as i64);
        let (mut headers, properties) = from_amqp(&amqp.properties);
        self.look_at_count(&headers);
        headers.retain(|header| !BROKER_HEADERS.contains(&header.name.as_str()));
        let too_deep = headers.iter().any(|h| h.value.depth() > limits::MAX_HEADER_DEPTH);
        let malformed = too_deep.then(|| {
            headers.clear();
            Text::from(format!("headers nested deeper than {}", limits::MAX_HEADER_DEPTH))
        });
        let flags = Flags::default();
        Delivery {
            malformed,
            produced: properties.timestamp.and_then(produced),
            flags: if amqp.redelivered { flags.with(Flags::SOURCE_REDELIVERY) } else { flags },
            position: None,
            receipt,
            message: Message {
                origin: Origin::Rabbitmq,
                key: Some(Bytes::from(String::from(amqp.routing_key))),
                body: Some(Bytes::from(amqp.data)),
                headers,
                properties: Some(Box::new(properties)),
            },
        }
    }

    /// Says once a subscription that the broker delivers a message for the tenth time or more: a quorum queue with a
    /// delivery limit drops it, or dead-letters it, a few times later.
    fn look_at_count(&self, headers: &[Header]) {
        let count = headers.iter().find(|h| h.name.as_str() == DELIVERY_COUNT).and_then(|h| whole(&h.value));
        if let Some(count) = count.filter(|count| *count >= MANY_DELIVERIES)
            && !self.told_of_count.swap(true, Ordering::Relaxed)
        {
            warn!(
                queue = %self.queue, deliveries = count + 1,
                "the broker has delivered a message many times; beyond the queue's delivery limit it drops it"
            );
        }
    }

    /// Acknowledges whenever the resolved prefix has grown. Returns only once nothing more can be.
    async fn acknowledge_all(&self) -> End {
        loop {
            self.ledger.advanced().await;
            self.acknowledge().await;
            if self.ledger.is_abandoned() {
                return End::Abandoned;
            }
        }
    }

    /// Acknowledges the resolved prefix. A channel that is lost is found out by reading: the broker will
    /// deliver again what this does not reach it for.
    async fn acknowledge(&self) {
        if let Err(fault) = self.give_answers().await {
            debug!(queue = %self.queue, %fault, "an acknowledgement was not sent");
        }
    }

    /// Rejects what is to be rejected, one by one, then acknowledges the rest of the prefix at once: a tag
    /// that was rejected is none that may be acknowledged.
    async fn give_answers(&self) -> Result<(), Fault> {
        let Some(released) = self.ledger.release() else { return Ok(()) };
        for tag in released.rejected {
            let reject = self.channel.basic_reject(tag as u64, BasicRejectOptions { requeue: false });
            within("basic.reject", reject).await?;
        }
        let Some(tag) = released.safe else { return Ok(()) };
        let ack = self.channel.basic_ack(tag as u64, BasicAckOptions { multiple: true });
        within("basic.ack", ack).await
    }

    /// Stops the deliveries, waits until all that was taken is resolved or given up, acknowledges, and closes;
    /// when forced, acknowledges what is resolved and waits for nothing. What was delivered and not taken goes
    /// back to the queue.
    pub(super) async fn finish(self, consumer: lapin::Consumer, shutdown: &Shutdown) -> Result<(), Fault> {
        let in_order = async {
            let cancel = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            within("basic.cancel", cancel).await?;
            loop {
                self.acknowledge().await;
                if self.ledger.is_settled() {
                    return within("channel.close", self.channel.close(200, "done".into())).await;
                }
                tokio::select! {
                    () = self.ledger.advanced() => {}
                    fault = self.lost() => return Err(fault),
                }
            }
        };
        tokio::select! {
            biased;
            () = shutdown.forced() => {}
            drained = in_order => return drained,
        }
        self.give_answers().await
    }
}

/// Whether messages come so fast that they are worth gathering.
struct Pace {
    prefetch: usize,
    /// How many the last batch held, and when it was complete.
    last: Option<(usize, Instant)>,
}

impl Pace {
    fn new(prefetch: usize) -> Self {
        Self { prefetch, last: None }
    }

    /// A first message has come: whether it followed the batch before it closely, and that one was so small that what
    /// comes within [`GATHER`] is less than the queue lends.
    fn is_gathering(&self, now: Instant) -> bool {
        let near = |&(messages, at): &(usize, Instant)| messages * 4 <= self.prefetch && now - at < NEAR;
        self.prefetch >= MANY && self.last.as_ref().is_some_and(near)
    }

    fn note(&mut self, messages: usize, now: Instant) {
        self.last = Some((messages, now));
    }
}

/// A whole number, of whatever width.
fn whole(value: &HeaderValue) -> Option<i64> {
    match value {
        HeaderValue::I8(n) => Some((*n).into()),
        HeaderValue::U8(n) => Some((*n).into()),
        HeaderValue::I16(n) => Some((*n).into()),
        HeaderValue::U16(n) => Some((*n).into()),
        HeaderValue::I32(n) => Some((*n).into()),
        HeaderValue::U32(n) => Some((*n).into()),
        HeaderValue::I64(n) => Some(*n),
        _ => None,
    }
}

/// The end of the second that a message says it was produced in.
fn produced(seconds: u64) -> Option<UnixMs> {
    i64::try_from(seconds).ok()?.checked_mul(1000)?.checked_add(999).map(UnixMs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_fast_and_not_too_fast_is_gathered() {
        let (mut pace, start) = (Pace::new(500), Instant::now());
        assert!(!pace.is_gathering(start), "nothing came before");
        pace.note(3, start);
        assert!(pace.is_gathering(start + NEAR / 2));
        assert!(!pace.is_gathering(start + NEAR), "a trickle");
        pace.note(125, start);
        assert!(pace.is_gathering(start));
        pace.note(126, start);
        assert!(!pace.is_gathering(start), "four times as many are all that the queue lends");
        let mut few = Pace::new(MANY - 1);
        few.note(1, start);
        assert!(!few.is_gathering(start));
    }

    #[test]
    fn a_timestamp_means_the_end_of_its_second_and_an_absurd_one_nothing() {
        assert_eq!(produced(0), Some(UnixMs(999)));
        assert_eq!(produced(1_700_000_000), Some(UnixMs(1_700_000_000_999)));
        assert_eq!(produced(u64::MAX), None);
        assert_eq!(produced(i64::MAX as u64), None);
    }
}
