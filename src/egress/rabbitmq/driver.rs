//! The one task of a lane: waits for work and for the broker, looks for the exchange, publishes, judges.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::channel::ConfirmChannel;
use super::lane::{ExchangeLane, refused};
use super::quarantine::Suspects;
use crate::backoff::Backoff;
use crate::broker::rabbitmq::{
    AmqpFault, ConnectionHandle, FaultKind, LiveConnection, look_for_exchange, within,
};
use crate::domain::verdict::Refusal;
use crate::domain::{Clock, Verdict};
use crate::lifecycle::Shutdown;

/// How often what waits is looked through for passed deadlines while nothing can be published.
pub(super) const EXPIRE_EVERY: Duration = Duration::from_millis(250);
/// How often a missing exchange is looked for while there is demand.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What a lane's task works with.
pub(super) struct Setup {
    pub(super) exchange: String,
    pub(super) own_user: Option<String>,
    pub(super) lane: Arc<ExchangeLane>,
    pub(super) link: ConnectionHandle,
    pub(super) clock: Clock,
    pub(super) shutdown: Shutdown,
}

/// A lane's task.
pub(super) struct Driver {
    pub(super) exchange: String,
    pub(super) own_user: Option<String>,
    pub(super) lane: Arc<ExchangeLane>,
    pub(super) clock: Clock,
    pub(super) shutdown: Shutdown,
    pub(super) suspects: Suspects,
    /// One message at a time, until the broker has taken one: the last one closed the channel.
    pub(super) cautious: bool,
    link: ConnectionHandle,
}

impl Driver {
    pub(super) fn new(setup: Setup) -> Self {
        let Setup { exchange, own_user, lane, link, clock, shutdown } = setup;
        let suspects = Suspects::default();
        Self { exchange, own_user, lane, clock, shutdown, suspects, cautious: false, link }
    }

    /// Runs until the process drains and all that was published is judged.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        while let Some(live) = self.ready().await {
            match self.publish_over(&live).await {
                Ok(()) => failures = 0,
                Err(fault) => {
                    failures += 1;
                    self.troubled(&fault.to_string());
                    self.pause(Backoff::BROKER.wait(failures)).await;
                }
            }
        }
        self.lane.close();
    }

    /// Waits until there is something to publish and a connection; `None` when draining.
    async fn ready(&mut self) -> Option<LiveConnection> {
        loop {
            let waiting = self.lane.has_waiting();
            tokio::select! {
                biased;
                () = self.shutdown.draining() => return None,
                live = self.link.live(), if waiting => return live,
                () = self.lane.submitted(), if !waiting => {}
                () = tokio::time::sleep(EXPIRE_EVERY), if waiting => {
                    self.troubled("rabbitmq is away");
                    self.lane.expire(self.clock.mono_us());
                }
            }
        }
    }

    /// Publishes over a connection until it or the channel is lost, or the exchange is not there.
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

    /// A channel to publish on; or, if the exchange is not there, the verdict on all that would go to it.
    async fn open(&self, live: &LiveConnection) -> Result<Result<ConfirmChannel, Verdict>, AmqpFault> {
        match self.look_for_exchange(live).await? {
            None => Ok(Ok(ConfirmChannel::open(live).await?)),
            Some(absent) => Ok(Err(absent)),
        }
    }

    /// `None` if the exchange is there, else the verdict on all that would go to it. On a channel of its
    /// own, which the broker closes if it is not.
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

    /// Answers all that waits, and all that comes, for [`LOOK_AGAIN`].
    async fn refuse_for_a_while(&self, verdict: &Verdict) {
        if let Verdict::Refused { error, .. } = verdict {
            self.troubled(error.as_str());
        }
        let over = tokio::time::sleep(LOOK_AGAIN);
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

    /// Notes what is wrong, and says it once.
    pub(super) fn troubled(&self, trouble: &str) {
        let exchange = &self.exchange;
        if self.lane.set_trouble(Some(trouble)) {
            warn!(exchange, error = trouble, "cannot publish to an exchange as it should be");
        }
    }

    /// All is well again.
    pub(super) fn healthy(&self) {
        if self.lane.set_trouble(None) {
            info!(exchange = self.exchange, "publishing to an exchange again");
        }
    }
}
