//! One subscription: a channel, its ledger, and what is read and acknowledged over it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery as AmqpDelivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{FieldTable, ShortString};
use tokio::time::Instant;
use tracing::debug;

use crate::broker::rabbitmq::{Fault, FaultKind, Live, from_amqp, look_for_queue, short_name, within};
use crate::domain::{Flags, Message, Origin, Text, UnixMs, limits};
use crate::ingress::Feed;
use crate::ingress::{Delivery, Ledger};
use crate::lifecycle::Shutdown;

/// Most deliveries handed on at once.
const BATCH: usize = 1000;
/// How long a batch is gathered under load. RabbitMQ sends its messages one by one, and a batch of what has come while
/// the last one found its place is of three or four: each then costs the store, and the broker its acknowledgement,
/// almost what a batch of thirty does.
const GATHER: Duration = Duration::from_millis(5);
/// What comes so soon after a batch says that there is load.
const NEAR: Duration = Duration::from_millis(1);
/// The least `prefetch` with which anything is gathered: a queue that lends few would wait for us.
const MANY: usize = 100;

/// A channel on which a queue can be consumed.
pub(super) struct Subscription {
    channel: lapin::Channel,
    queue: ShortString,
    prefetch: usize,
    ledger: Arc<Ledger>,
}

impl Subscription {
    /// Opens a channel for a queue, which must be there.
    pub(super) async fn open(live: &Live, queue: &str, prefetch: u16) -> Result<Self, Fault> {
        let channel = live.channel().await?;
        look_for_queue(&channel, queue).await?;
        within("basic.qos", channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        Ok(Self { channel, queue: short_name(queue)?, prefetch: prefetch.into(), ledger: Ledger::new() })
    }

    /// Starts the deliveries.
    pub(super) async fn consume(&self, tag: &str) -> Result<lapin::Consumer, Fault> {
        let tag = ShortString::try_new(tag).unwrap_or_default();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        within("basic.consume", self.channel.basic_consume(self.queue.clone(), tag, options, arguments)).await
    }

    /// Reads until the process drains (`Ok`) or the channel is lost, acknowledging all the while. Being
    /// forced ends it too, in the middle of a batch if need be.
    pub(super) async fn read(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        shutdown: &Shutdown,
    ) -> Result<(), Fault> {
        tokio::select! {
            biased;
            () = shutdown.forced() => Ok(()),
            () = self.acknowledge_all() => Ok(()),
            end = self.take_all(consumer, feed, shutdown) => end,
        }
    }

    /// Takes what is there as a batch, one after another. Under load, what is not urgent is gathered for a moment;
    /// where little comes, or something urgent does, nothing waits.
    async fn take_all(
        &self,
        consumer: &mut lapin::Consumer,
        feed: &mut impl Feed,
        shutdown: &Shutdown,
    ) -> Result<(), Fault> {
        let mut pace = Pace::new(self.prefetch);
        loop {
            let mut next = tokio::select! {
                biased;
                () = shutdown.draining() => return Ok(()),
                next = consumer.next() => Some(next),
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
            if !batch.is_empty() {
                feed.take(batch).await;
            }
            if let Some(fault) = end {
                return Err(fault);
            }
        }
    }

    fn enter(&self, amqp: AmqpDelivery) -> Delivery {
        let receipt = self.ledger.enter(amqp.delivery_tag as i64);
        let (mut headers, properties) = from_amqp(&amqp.properties);
        let too_deep = headers.iter().any(|h| h.value.depth() > limits::HEADER_DEPTH);
        let malformed = too_deep.then(|| {
            headers.clear();
            Text::from(format!("headers nested deeper than {}", limits::HEADER_DEPTH))
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

    /// Never returns: acknowledges whenever the resolved prefix has grown.
    async fn acknowledge_all(&self) {
        loop {
            self.ledger.advanced().await;
            self.acknowledge().await;
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

    /// Stops the deliveries, waits until all that was taken is resolved, acknowledges, and closes; when
    /// forced, acknowledges what is resolved and waits for nothing. What was delivered and not taken goes
    /// back to the queue.
    pub(super) async fn finish(self, consumer: lapin::Consumer, shutdown: &Shutdown) -> Result<(), Fault> {
        let in_order = async {
            let cancel = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            within("basic.cancel", cancel).await?;
            loop {
                self.acknowledge().await;
                if self.ledger.outstanding() == 0 {
                    return Ok::<_, Fault>(());
                }
                self.ledger.advanced().await;
            }
        };
        tokio::select! {
            biased;
            () = shutdown.forced() => {}
            drained = in_order => {
                drained?;
                return within("channel.close", self.channel.close(200, "drained".into())).await;
            }
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
        let mut few = Pace::new(99);
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
