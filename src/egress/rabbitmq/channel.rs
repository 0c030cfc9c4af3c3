//! A channel in confirm mode, with the confirms that it owes. One task uses it.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};

use crate::broker::rabbitmq::{AmqpFault, LiveConnection, ReturnCounter, within};

/// Number of a publication and the answer of the broker to it.
pub(super) type NumberedConfirm = (u64, lapin::Result<Confirmation>);
type PendingConfirm = Pin<Box<dyn Future<Output = NumberedConfirm> + Send>>;

/// A channel in confirm mode.
pub(super) struct ConfirmChannel {
    channel: lapin::Channel,
    confirms: FuturesUnordered<PendingConfirm>,
    returns: ReturnCounter,
}

impl ConfirmChannel {
    pub(super) async fn open(live: &LiveConnection) -> Result<Self, AmqpFault> {
        let channel = live.channel().await?;
        let returns = live.count_returns(&channel);
        within(
            "confirm.select",
            channel.confirm_select(ConfirmSelectOptions::default()),
        )
        .await?;
        Ok(Self {
            channel,
            confirms: FuturesUnordered::new(),
            returns,
        })
    }

    /// The number of messages that the broker has returned. It counts all that it returned before the answers known.
    pub(super) fn returned(&self) -> u64 {
        self.returns.seen()
    }

    pub(super) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// Publishes a message. [`Self::next`] returns its answer.
    pub(super) fn publish(
        &mut self,
        number: u64,
        exchange: ShortString,
        routing_key: ShortString,
        body: Bytes,
        properties: BasicProperties,
    ) {
        let channel = self.channel.clone();
        let mut pending: PendingConfirm = Box::pin(async move {
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let sent = channel
                .basic_publish(exchange, routing_key, options, &body, properties)
                .await;
            // The answer may never come, and must not keep the body so long.
            drop(body);
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

    /// Waits for the next answer; forever if none is owed. Cancel-safe.
    pub(super) async fn next(&mut self) -> NumberedConfirm {
        match self.confirms.next().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// The next answer, if it is there already.
    pub(super) fn try_next(&mut self) -> Option<NumberedConfirm> {
        self.confirms.next().now_or_never().flatten()
    }
}
