//! A route's consumer of a queue: subscribes, reads, and subscribes again after any loss.
//!
//! It subscribes only while the route's gate is open and the store accepts writes. A quorum queue counts each
//! delivery, and drops messages that were delivered too often, so no message is delivered again and again only
//! to wait here.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::channel::{self, Subscription};
use super::reading_mode::ReadingMode;
use crate::backoff::Backoff;
use crate::broker::rabbitmq::{
    AmqpFault, Broker, ConnectionHandle, FaultKind, LiveConnection, QueueTraits, stream_refusal,
};
use crate::domain::{Route, Text};
use crate::health::RouteHealth;
use crate::ingress::{Feed, Ledger, QueueLimits, Sink};
use crate::lifecycle::{Shutdown, tick};
use crate::telemetry::RouteMetrics;

/// How often `ingress_unresolved` is set.
const UNRESOLVED_INTERVAL: Duration = Duration::from_secs(1);

/// Wait for the gate and the store from which on the broker's last fault is told no more: nobody asks the broker meanwhile,
/// so it may be over. What the wait is for is told by whoever keeps the gate.
const FAULT_TOLD: Duration = Duration::from_secs(1);

/// Everything that a queue's consumer is built from.
pub(super) struct QueueSetup<S> {
    pub(super) route: Arc<Route>,
    pub(super) queue: String,
    pub(super) limits: QueueLimits,
    pub(super) broker: Arc<Broker>,
    pub(super) connection: ConnectionHandle,
    pub(super) sink: Arc<S>,
    pub(super) metrics: Option<Arc<RouteMetrics>>,
    pub(super) health: Arc<RouteHealth>,
    pub(super) shutdown: Shutdown,
}

/// A route's consumer of a queue.
pub(super) struct QueueConsumer<S> {
    setup: QueueSetup<S>,
    /// The trouble that was reported last.
    trouble: Option<String>,
    /// A delivery has shown that the queue is a stream.
    has_seen_stream: bool,
    mode: ReadingMode,
}

/// The way in which a subscription ended.
enum SubscriptionExit {
    /// The process drains.
    Drained,
    /// Ended in order: its deliveries have gone back. The next one begins once the route's gate is open.
    Paused,
    /// Ended in order: all its deliveries were taken. The next one begins at once, in the other mode if that is due.
    Renewal,
    /// Never began.
    Refused(AmqpFault),
    /// The queue cannot be a source, for this reason. Nothing of it was taken.
    Unfit(String),
    /// Lost while it ran.
    Lost(AmqpFault),
}

impl<S: Sink> QueueConsumer<S> {
    pub(super) fn new(setup: QueueSetup<S>) -> Self {
        let mode = ReadingMode::new(setup.limits);
        Self {
            setup,
            trouble: None,
            has_seen_stream: false,
            mode,
        }
    }

    /// Runs until the process drains.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let live = tokio::select! {
                biased;
                () = self.setup.shutdown.draining() => return,
                live = self.setup.connection.live() => live,
            };
            let Some(live) = live else {
                return;
            };
            let backoff = match self.subscribe(&live).await {
                SubscriptionExit::Drained => return,
                SubscriptionExit::Paused | SubscriptionExit::Renewal => continue,
                SubscriptionExit::Unfit(reason) => {
                    self.unfit(&reason);
                    Backoff::CLIENT
                }
                SubscriptionExit::Refused(fault) => self.troubled(&fault),
                SubscriptionExit::Lost(fault) => {
                    failures = 0;
                    self.troubled(&fault)
                }
            };
            failures += 1;
            tokio::select! {
                biased;
                () = self.setup.shutdown.draining() => return,
                () = tokio::time::sleep(backoff.wait(failures)) => {}
            }
        }
    }

    /// Runs one subscription after the other, in whichever mode.
    async fn subscribe(&mut self, live: &LiveConnection) -> SubscriptionExit {
        let QueueSetup {
            route,
            queue,
            shutdown,
            ..
        } = &self.setup;
        let name = format!("rabbitmq/{}/{queue}", self.setup.broker.name());
        let begin = async {
            let mut ready = pin!(async {
                let feed = self.setup.sink.open(route, name).await?;
                feed.until_ready().await;
                Some(feed)
            });
            let feed = tokio::select! {
                feed = ready.as_mut() => feed,
                () = tokio::time::sleep(FAULT_TOLD) => {
                    self.setup.health.source_trouble(None);
                    ready.await
                }
            };
            // `None`: shutting down began during the wait for the store.
            let Some(feed) = feed else {
                return Ok(None);
            };
            let mut traits = self.setup.broker.queue_traits(live, queue).await?;
            if self.has_seen_stream {
                traits.is_stream.get_or_insert(true);
            }
            if let Some(reason) = traits.refusal() {
                return Err(SubscriptionExit::Unfit(reason));
            }
            Ok(Some((feed, traits)))
        };
        let begun = tokio::select! {
            biased;
            () = shutdown.draining() => return SubscriptionExit::Drained,
            begun = begin => begun,
        };
        let (mut feed, traits) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => return SubscriptionExit::Drained,
            Err(exit) => return exit,
        };
        self.mode
            .begin(traits.delivery_limit != Some(0), Instant::now());
        loop {
            match self.subscribe_once(live, &traits, &mut feed).await {
                SubscriptionExit::Renewal => self.change_mode(Instant::now()),
                end => return end,
            }
        }
    }

    /// Changes the mode between two subscriptions, if that is due.
    fn change_mode(&mut self, now: Instant) {
        if !self.mode.must_change(now) {
            return;
        }
        self.mode.change(now);
        let QueueSetup { route, queue, .. } = &self.setup;
        let prefetch = self.mode.hand_over().prefetch;
        if self.mode.is_careful() {
            info!(route = %route.name, queue, prefetch, "a queue has a body over max_size; it is read with few messages at a time until none came for a minute");
        } else {
            debug!(route = %route.name, queue, prefetch, "a queue is read with many messages at a time");
        }
    }

    /// Runs one subscription.
    async fn subscribe_once(
        &mut self,
        live: &LiveConnection,
        traits: &QueueTraits,
        feed: &mut S::Feed,
    ) -> SubscriptionExit {
        let QueueSetup {
            route,
            queue,
            shutdown,
            ..
        } = &self.setup;
        let hand_over = self.mode.hand_over();
        let begin = async {
            let subscription = Subscription::open(live, queue, hand_over, traits).await?;
            let tag = format!("postdate.{}", route.name);
            let consumer = subscription.consume(&tag).await?;
            Ok((subscription, consumer))
        };
        let begun = tokio::select! {
            biased;
            () = shutdown.draining() => return SubscriptionExit::Drained,
            begun = begin => begun,
        };
        let (subscription, consumer) = match begun {
            Ok(begun) => begun,
            Err(fault) => return SubscriptionExit::Refused(fault),
        };
        self.setup.health.source_trouble(None);
        if self.trouble.take().is_some() {
            debug!(route = %route.name, queue, "consuming again");
        }
        let ledger = subscription.ledger();
        let end = tokio::select! {
            end = serve(&self.setup, subscription, consumer, feed, &mut self.mode) => end,
            never = show_unresolved(&self.setup, &ledger) => match never {},
        };
        self.has_seen_stream |= matches!(end, SubscriptionExit::Unfit(_));
        show_counts(&self.setup, 0, None);
        end
    }

    /// Reports a fault, and logs a change of it. Returns the back-off that suits it.
    fn troubled(&mut self, fault: &AmqpFault) -> Backoff {
        let text = fault.to_string();
        if self.report(format!("queue {}: {text}", self.setup.queue)) {
            debug!(route = %self.setup.route.name, queue = self.setup.queue, error = text, "cannot consume a queue");
        }
        if fault.kind == FaultKind::Lost {
            Backoff::BROKER
        } else {
            Backoff::CLIENT
        }
    }

    /// Reports that the queue cannot be a source, and logs it once.
    fn unfit(&mut self, reason: &str) {
        if self.report(reason.to_owned()) {
            error!(route = %self.setup.route.name, queue = self.setup.queue, reason, "a queue cannot be a source; nothing of it is read");
        }
    }

    /// Shows the trouble as that of the source. Returns whether it is another one than before.
    fn report(&mut self, trouble: String) -> bool {
        self.setup.health.source_trouble(Some(trouble.clone()));
        let is_new = self.trouble.as_ref() != Some(&trouble);
        self.trouble = Some(trouble);
        is_new
    }
}

/// Shows the number of unresolved deliveries, and the oldest of them.
async fn show_unresolved<S>(setup: &QueueSetup<S>, ledger: &Ledger) -> Infallible {
    loop {
        show_counts(setup, ledger.outstanding(), ledger.oldest());
        tick(UNRESOLVED_INTERVAL).await;
    }
}

/// Shows so many unresolved deliveries, and the oldest.
fn show_counts<S>(setup: &QueueSetup<S>, unresolved: usize, oldest: Option<u64>) {
    if let Some(metrics) = &setup.metrics {
        metrics.ingress_unresolved.set(unresolved as i64);
    }
    let oldest = oldest.map(|record| ((Text::default(), 0), record));
    setup.health.unresolved(oldest.into_iter().collect());
}

/// Reads a subscription until its end, and closes it in order if possible.
async fn serve<S>(
    setup: &QueueSetup<S>,
    subscription: Subscription,
    mut consumer: lapin::Consumer,
    feed: &mut impl Feed,
    mode: &mut ReadingMode,
) -> SubscriptionExit {
    let QueueSetup {
        route,
        queue,
        shutdown,
        ..
    } = setup;
    let end = subscription.read(&mut consumer, feed, mode, shutdown).await;
    feed.give_up();
    let end = match end {
        Ok(end) => end,
        Err(fault) => {
            if subscription.may_drop() {
                mode.lost(Instant::now());
            }
            return SubscriptionExit::Lost(fault);
        }
    };
    if end == channel::ReadExit::Paused {
        info!(route = %route.name, queue, "ingress is paused; what was delivered goes back to its queue");
    }
    if let Err(fault) = subscription.finish(consumer, shutdown).await {
        warn!(route = %route.name, queue, error = %fault, "not closed in order: some may be delivered again");
    }
    match end {
        channel::ReadExit::Drained => SubscriptionExit::Drained,
        channel::ReadExit::Paused => SubscriptionExit::Paused,
        channel::ReadExit::Renewal => SubscriptionExit::Renewal,
        channel::ReadExit::IsStream => SubscriptionExit::Unfit(stream_refusal(queue)),
        channel::ReadExit::Abandoned => SubscriptionExit::Lost(AmqpFault::new(
            FaultKind::Lost,
            "a delivery was given up; it is delivered again",
        )),
    }
}

impl From<AmqpFault> for SubscriptionExit {
    fn from(fault: AmqpFault) -> Self {
        Self::Refused(fault)
    }
}
