//! A route's consumer: subscribes, reads, and after any loss subscribes again.
//!
//! It subscribes only while the route's gate is open and the store takes messages in. A quorum queue counts each
//! delivery, and drops what was delivered too often: nothing is delivered again and again only to wait here.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::channel::{self, Subscription};
use crate::backoff::Backoff;
use crate::broker::rabbitmq::{Broker, Fault, FaultKind, Link, Live};
use crate::domain::Route;
use crate::ingress::{Feed, Ledger, Sink};
use crate::lifecycle::{Shutdown, Tasks, tick};
use crate::telemetry::RouteMetrics;

/// How often `ingress_unresolved` is set.
const UNRESOLVED_LOOK: Duration = Duration::from_secs(1);

/// Connections lost to something undecodable before a route gets one of its own.
const LOSSES: u32 = 2;

/// What a consumer works with.
pub(super) struct Setup<S> {
    pub(super) route: Arc<Route>,
    pub(super) queue: String,
    pub(super) prefetch: u16,
    pub(super) broker: Arc<Broker>,
    pub(super) link: Link,
    pub(super) sink: Arc<S>,
    pub(super) metrics: Option<Arc<RouteMetrics>>,
    pub(super) tasks: Tasks,
    pub(super) shutdown: Shutdown,
}

/// How far the search for an undecodable delivery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// On the shared connection; so many were lost to it.
    Shared(u32),
    /// On a connection of its own.
    Apart,
    /// The same, and one delivery at a time: it is in this queue.
    OneByOne,
}

/// A route's consumer.
pub(super) struct Consumer<S> {
    setup: Setup<S>,
    care: Care,
    /// What was last said to be wrong.
    trouble: Option<String>,
}

/// How a subscription ended.
enum End {
    /// The process drains.
    Drained,
    /// In order: its deliveries have gone back, and there will be another one once the route's gate is open.
    Paused,
    /// It never began.
    Refused(Fault),
    /// It was lost in its course.
    Lost(Fault),
}

impl<S: Sink> Consumer<S> {
    pub(super) fn new(setup: Setup<S>) -> Self {
        Self { setup, care: Care::Shared(0), trouble: None }
    }

    /// Runs until the process drains.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let live = tokio::select! {
                biased;
                () = self.setup.shutdown.draining() => return,
                live = self.setup.link.live() => live,
            };
            let Some(live) = live else {
                return;
            };
            let fault = match self.subscribe(&live).await {
                End::Drained => return,
                End::Paused => continue,
                End::Refused(fault) => fault,
                End::Lost(fault) => {
                    failures = 0;
                    fault
                }
            };
            failures += 1;
            self.troubled(&fault);
            if fault.kind == FaultKind::Undecodable && !self.take_more_care() {
                self.stop(&fault).await;
                return;
            }
            let backoff = if fault.kind == FaultKind::Lost { Backoff::BROKER } else { Backoff::CLIENT };
            tokio::select! {
                biased;
                () = self.setup.shutdown.draining() => return,
                () = tokio::time::sleep(backoff.wait(failures)) => {}
            }
        }
    }

    /// One subscription, from its begin to its end.
    async fn subscribe(&mut self, live: &Live) -> End {
        let Setup { route, queue, shutdown, .. } = &self.setup;
        let prefetch = if self.care == Care::OneByOne { 1 } else { self.setup.prefetch };
        let name = format!("rabbitmq/{}/{queue}", self.setup.broker.name());
        let begin = async {
            // `None`: shutting down began while it waited for the store.
            let Some(feed) = self.setup.sink.open(route, name).await else { return Ok(None) };
            feed.until_ready().await;
            let subscription = Subscription::open(live, queue, prefetch).await?;
            let consumer = subscription.consume(&format!("postdate.{}", route.name)).await?;
            Ok(Some((subscription, feed, consumer)))
        };
        let begun = tokio::select! {
            biased;
            () = shutdown.draining() => return End::Drained,
            begun = begin => begun,
        };
        let (subscription, feed, consumer) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => return End::Drained,
            Err(fault) => return End::Refused(fault),
        };
        if let Some(metrics) = &self.setup.metrics {
            metrics.source_trouble(None);
        }
        if self.trouble.take().is_some() {
            info!(route = %route.name, queue, "consuming again");
        }
        let ledger = subscription.ledger();
        let end = tokio::select! {
            end = self.serve(subscription, consumer, feed) => end,
            never = self.show_unresolved(&ledger) => match never {},
        };
        if let Some(metrics) = &self.setup.metrics {
            metrics.show_unresolved(0, BTreeMap::new());
        }
        end
    }

    /// Shows how many deliveries are read and not resolved, and which is the oldest of them.
    async fn show_unresolved(&self, ledger: &Ledger) -> Infallible {
        loop {
            if let Some(metrics) = &self.setup.metrics {
                let oldest = ledger.oldest().map(|record| (0, record));
                metrics.show_unresolved(ledger.outstanding(), oldest.into_iter().collect());
            }
            tick(UNRESOLVED_LOOK).await;
        }
    }

    /// Reads a subscription until its end, and ends it in order where it can be.
    async fn serve(
        &self,
        subscription: Subscription,
        mut consumer: lapin::Consumer,
        mut feed: S::Feed,
    ) -> End {
        let Setup { route, queue, shutdown, .. } = &self.setup;
        let end = match subscription.read(&mut consumer, &mut feed, shutdown).await {
            Ok(end) => end,
            Err(fault) => return End::Lost(fault),
        };
        if end == channel::End::Paused {
            info!(route = %route.name, queue, "ingress is paused; what was delivered goes back to its queue");
        }
        if let Err(fault) = subscription.finish(consumer, shutdown).await {
            warn!(route = %route.name, queue, error = %fault, "not closed in order: some may be delivered again");
        }
        match end {
            channel::End::Drained => End::Drained,
            channel::End::Paused => End::Paused,
            channel::End::Abandoned => {
                End::Lost(Fault::new(FaultKind::Lost, "a delivery was given up; it is delivered again"))
            }
        }
    }

    /// The next step of the search; `false` if the queue begins with what cannot be decoded.
    fn take_more_care(&mut self) -> bool {
        self.care = match self.care {
            Care::Shared(losses) if losses + 1 < LOSSES => Care::Shared(losses + 1),
            Care::Shared(_) => {
                let Setup { broker, route, tasks, shutdown, .. } = &self.setup;
                let task = format!("ingress:rabbitmq:{}:{}:connection", broker.name(), route.name);
                self.setup.link = broker.open_apart("consume apart", &task, tasks, shutdown);
                Care::Apart
            }
            Care::Apart => Care::OneByOne,
            Care::OneByOne => return false,
        };
        true
    }

    /// Stops for good: until a person has taken the message out and started us again.
    async fn stop(&self, fault: &Fault) {
        let (route, queue) = (&self.setup.route.name, &self.setup.queue);
        error!(%route, queue, error = %fault, "the queue begins with a message that cannot be decoded; its route stops until it is taken out and postdate restarted");
        if let Some(metrics) = &self.setup.metrics {
            metrics.ingress_paused("undecodable", true);
        }
        self.setup.shutdown.draining().await;
    }

    /// Says what is wrong, once.
    fn troubled(&mut self, fault: &Fault) {
        let text = fault.to_string();
        if let Some(metrics) = &self.setup.metrics {
            metrics.source_trouble(Some(format!("queue {}: {text}", self.setup.queue)));
        }
        if self.trouble.as_ref() != Some(&text) {
            warn!(route = %self.setup.route.name, queue = self.setup.queue, error = text, "cannot consume a queue");
            self.trouble = Some(text);
        }
    }
}
