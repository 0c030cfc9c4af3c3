//! A channel in confirm mode and the confirms it owes. Used by one task only.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};

use crate::broker::rabbitmq::{AmqpFault, LiveConnection, within};

/// The number of a publication and the broker's answer to it.
pub(super) type Answer = (u64, lapin::Result<Confirmation>);
type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A channel in confirm mode.
pub(super) struct ConfirmChannel {
    channel: lapin::Channel,
    confirms: FuturesUnordered<Pending>,
}

impl ConfirmChannel {
    pub(super) async fn open(live: &LiveConnection) -> Result<Self, AmqpFault> {
        let channel = live.channel().await?;
        within("confirm.select", channel.confirm_select(ConfirmSelectOptions::default())).await?;
        Ok(Self { channel, confirms: FuturesUnordered::new() })
    }

    pub(super) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// Hands a message over; its answer comes out of [`Self::next`].
    pub(super) fn publish(
        &mut self,
        number: u64,
        exchange: ShortString,
        routing_key: ShortString,
        body: Bytes,
        properties: BasicProperties,
    ) {
        let channel = self.channel.clone();
        let mut pending: Pending = Box::pin(async move {
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let sent = channel.basic_publish(exchange, routing_key, options, &body, properties).await;
            let answer = match sent {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (number, answer)
        });
        // The first poll numbers the message and queues its frames, so it happens here, in order.
        match pending.as_mut().now_or_never() {
            Some(answer) => self.confirms.push(Box::pin(std::future::ready(answer))),
            None => self.confirms.push(pending),
        }
    }

    /// The next answer; never, if none is owed. Cancel-safe.
    pub(super) async fn next(&mut self) -> Answer {
        match self.confirms.next().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// An answer that is already there.
    pub(super) fn try_next(&mut self) -> Option<Answer> {
        self.confirms.next().now_or_never().flatten()
    }
}
