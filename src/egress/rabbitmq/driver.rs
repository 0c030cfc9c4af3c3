//! The task of a lane: waits for messages and for the broker, checks the exchange, publishes and gives verdicts.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::channel::ConfirmChannel;
use super::lane::{ExchangeLane, refused};
use super::suspects::SuspectFingerprints;
use crate::backoff::Backoff;
use crate::broker::rabbitmq::{
    AmqpFault, ConnectionHandle, FaultKind, LiveConnection, look_for_exchange, within,
};
use crate::domain::verdict::Refusal;
use crate::domain::{Clock, Verdict};
use crate::lifecycle::Shutdown;

/// Interval at which deadlines of waiting messages are checked while nothing can be published.
pub(super) const EXPIRE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which a missing exchange is looked for while there is demand.
const EXCHANGE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Dependencies of the task of a lane.
pub(super) struct LaneSetup {
    pub(super) exchange: String,
    pub(super) own_user: Option<String>,
    pub(super) lane: Arc<ExchangeLane>,
    pub(super) link: ConnectionHandle,
    pub(super) clock: Clock,
    pub(super) shutdown: Shutdown,
}

/// The task of one lane.
pub(super) struct LaneDriver {
    pub(super) exchange: String,
    pub(super) own_user: Option<String>,
    pub(super) lane: Arc<ExchangeLane>,
    pub(super) clock: Clock,
    pub(super) shutdown: Shutdown,
    pub(super) suspects: SuspectFingerprints,
    /// True after a message closed the channel: messages go one at a time, until the broker has taken one.
    pub(super) cautious: bool,
    link: ConnectionHandle,
}

impl LaneDriver {
    pub(super) fn new(setup: LaneSetup) -> Self {
        let LaneSetup {
            exchange,
            own_user,
            lane,
            link,
            clock,
            shutdown,
        } = setup;
        let suspects = SuspectFingerprints::default();
        Self {
            exchange,
            own_user,
            lane,
            clock,
            shutdown,
            suspects,
            cautious: false,
            link,
        }
    }

    /// Runs until the process drains and all published messages have their verdict.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while let Some(live) = self.ready().await {
            match self.publish_over(&live).await {
                Ok(()) => failures = 0,
                Err(fault) => {
                    failures += 1;
                    self.report_trouble(&fault.to_string());
                    self.pause(Backoff::BROKER.wait(failures)).await;
                }
            }
        }
        self.lane.close();
    }

    /// Waits until there is a message to publish and a connection. `None` when the process drains.
    async fn ready(&mut self) -> Option<LiveConnection> {
        loop {
            let waiting = self.lane.has_waiting();
            tokio::select! {
                biased;
                () = self.shutdown.draining() => return None,
                live = self.link.live(), if waiting => return live,
                () = self.lane.submitted(), if !waiting => {}
                () = tokio::time::sleep(EXPIRE_INTERVAL), if waiting => {
                    self.report_trouble("rabbitmq is away");
                    self.lane.expire(self.clock.mono_us());
                }
            }
        }
    }

    /// Publishes over a connection until it or the channel is lost, or the exchange is missing.
    async fn publish_over(&mut self, live: &LiveConnection) -> Result<(), AmqpFault> {
        let opened = tokio::select! {
            biased;
            () = self.shutdown.draining() => return Ok(()),
            opened = self.open(live) => opened?,
        };
        match opened {
            Ok(channel) => self.pump(live, channel).await,
            Err(absent) => self.refuse_for_a_while(&absent).await,
        }
        Ok(())
    }

    /// Opens a channel to publish on. If the exchange is missing, returns the verdict for all messages to it.
    async fn open(
        &self,
        live: &LiveConnection,
    ) -> Result<Result<ConfirmChannel, Verdict>, AmqpFault> {
        match self.look_for_exchange(live).await? {
            None => Ok(Ok(ConfirmChannel::open(live).await?)),
            Some(absent) => Ok(Err(absent)),
        }
    }

    /// Returns `None` if the exchange is there, else the verdict for all messages to it. Asks on a channel of its own,
    /// because the broker closes the channel if the exchange is missing.
    async fn look_for_exchange(&self, live: &LiveConnection) -> Result<Option<Verdict>, AmqpFault> {
        let channel = live.channel().await?;
        match look_for_exchange(&channel, &self.exchange).await {
            Ok(()) => {
                within("channel.close", channel.close(200, "seen".into())).await?;
                Ok(None)
            }
            Err(fault) if fault.kind == FaultKind::NotFound => {
                Ok(Some(refused(Refusal::UnknownTarget, &fault.to_string())))
            }
            Err(fault) if fault.kind == FaultKind::NotAllowed => {
                Ok(Some(refused(Refusal::NotAllowed, &fault.to_string())))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Gives this verdict to all messages that wait, and that come within [`EXCHANGE_CHECK_INTERVAL`].
    async fn refuse_for_a_while(&self, verdict: &Verdict) {
        if let Verdict::Refused { error, .. } = verdict {
            self.report_trouble(error.as_str());
        }
        let over = tokio::time::sleep(EXCHANGE_CHECK_INTERVAL);
        tokio::pin!(over);
        loop {
            self.lane.answer_waiting(verdict);
            tokio::select! {
                () = &mut over => return,
                () = self.shutdown.draining() => return,
                () = self.lane.submitted() => {}
            }
        }
    }

    async fn pause(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.shutdown.draining() => {}
        }
        self.lane.expire(self.clock.mono_us());
    }

    /// Notes a trouble of the lane.
    pub(super) fn report_trouble(&self, trouble: &str) {
        let exchange = &self.exchange;
        if self.lane.set_trouble(Some(trouble)) {
            debug!(exchange, error = trouble, "publishing to an exchange fails");
        }
    }

    /// Notes that the lane works again.
    pub(super) fn report_recovery(&self) {
        if self.lane.set_trouble(None) {
            debug!(exchange = self.exchange, "publishing to an exchange again");
        }
    }
}
