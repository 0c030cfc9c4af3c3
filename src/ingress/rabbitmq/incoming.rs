//! The deliveries of a subscription, on their way from the client library.

use std::collections::VecDeque;
use std::convert::Infallible;

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery as AmqpDelivery;

use super::channel::Subscription;
use crate::ingress::Receipt;

/// A delivery, and the right to resolve it.
pub(super) struct Received {
    pub(super) amqp: AmqpDelivery,
    pub(super) receipt: Receipt,
}

/// The deliveries of a consumer, some of which were looked at before their turn.
pub(super) struct Incoming<'a> {
    subscription: &'a Subscription,
    pub(super) consumer: &'a mut lapin::Consumer,
    /// At most `prefetch`, for the broker lends no more; `None` behind them is the end.
    ahead: VecDeque<Option<lapin::Result<Received>>>,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(subscription: &'a Subscription, consumer: &'a mut lapin::Consumer) -> Self {
        Self {
            subscription,
            consumer,
            ahead: VecDeque::new(),
        }
    }

    /// The next delivery. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<lapin::Result<Received>> {
        match self.ahead.pop_front() {
            Some(next) => next,
            None => self.receive().await,
        }
    }

    /// Waits for a delivery and enters it into the ledger. Cancel-safe.
    async fn receive(&mut self) -> Option<lapin::Result<Received>> {
        let next = self.consumer.next().await?;
        Some(next.map(|amqp| self.subscription.enter(amqp)))
    }

    /// Looks at deliveries before their turn, and presses on those before them if one must not wait. Cancel-safe.
    pub(super) async fn look_ahead(&mut self) -> Infallible {
        let presses = |next: &Option<lapin::Result<Received>>| match next {
            Some(Ok(received)) => received.receipt.is_worn(),
            Some(Err(_)) | None => false,
        };
        let ledger = self.subscription.ledger();
        // What pressed on an earlier batch has had its turn since, or is still here.
        ledger.pressed().now_or_never();
        if self.ahead.iter().any(presses) {
            ledger.press();
        }
        while !matches!(self.ahead.back(), Some(None | Some(Err(_)))) {
            let next = self.receive().await;
            if presses(&next) {
                ledger.press();
            }
            self.ahead.push_back(next);
        }
        std::future::pending().await
    }
}
