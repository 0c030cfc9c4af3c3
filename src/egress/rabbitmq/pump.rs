//! Publishes over one channel: fills the window, takes the answers of the broker, gives verdicts.

use std::time::Duration;

use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};
use tokio::sync::watch;

use super::channel::{ConfirmChannel, NumberedConfirm};
use super::driver::{EXPIRE_INTERVAL, LaneDriver};
use super::lane::{refused, unknown};
use super::mapping::{self, AmqpMessage, AmqpRules, UnfitMessage};
use super::validate::checked;
use super::window::{BrokerAnswer, ConfirmWindow, ReturnedMessage};
use crate::broker::rabbitmq::{AmqpFault, FaultKind, LiveConnection, short_name};
use crate::domain::verdict::Refusal;
use crate::domain::{RoutingKey, Target, Verdict};
use crate::egress::{CONFIRM_DEADLINE, Publication};
use crate::mutants::{self, Mutant};

/// Most publications without a confirm at a time. Measured: the rate does not grow beyond.
const MAX_OUTSTANDING: usize = 512;

/// State of publishing over one channel.
struct ChannelFlow {
    channel: ConfirmChannel,
    window: ConfirmWindow,
    frame_max: usize,
    blocked: watch::Receiver<bool>,
    /// True once the connection is known to be gone: it will not report on its blocking any more.
    gone: bool,
    /// True while the message in the window must stay alone there.
    alone: bool,
}

/// A message in types of the client library.
struct PreparedMessage {
    message: AmqpMessage,
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
}

impl ChannelFlow {
    fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    fn takes_more(&self) -> bool {
        !self.alone && !self.is_blocked() && self.window.len() < MAX_OUTSTANDING
    }
}

impl LaneDriver {
    /// Publishes over one channel until it is lost or the process drains. On return all published messages have their
    /// verdict.
    pub(super) async fn pump(&mut self, live: &LiveConnection, channel: ConfirmChannel) {
        let mut flow = ChannelFlow {
            channel,
            window: ConfirmWindow::default(),
            frame_max: live.frame_max(),
            blocked: live.blocked(),
            gone: false,
            alone: false,
        };
        if !self.cautious {
            self.report_recovery();
        }
        while flow.channel.is_open() || !flow.window.is_empty() {
            // Read once a turn: `step` waits for a drain that begins after this.
            let draining = self.shutdown.is_draining();
            if draining {
                self.lane.close();
                if flow.window.is_empty() {
                    return;
                }
            }
            self.fill(&mut flow);
            let fault = self.step(&mut flow, draining).await;
            if let Some(fault) = fault {
                self.lost(&mut flow, &fault);
                return;
            }
        }
    }

    /// Waits for one event. Returns a fault if the channel is of no use any more.
    async fn step(&mut self, flow: &mut ChannelFlow, draining: bool) -> Option<AmqpFault> {
        let outstanding = !flow.window.is_empty();
        let blocked = flow.is_blocked();
        let more = flow.takes_more();
        let confirm_time_left = self.confirm_time_left(&flow.window);
        tokio::select! {
            biased;
            () = self.shutdown.forced() => Some(AmqpFault::new(FaultKind::Lost, "the process was forced to stop")),
            answer = flow.channel.next(), if outstanding => self.take_answers(flow, answer),
            changed = flow.blocked.changed(), if !flow.gone => {
                flow.gone = changed.is_err();
                self.blocking_changed(flow);
                None
            }
            () = tokio::time::sleep(confirm_time_left), if outstanding && !blocked => {
                Some(AmqpFault::new(FaultKind::Lost, format!("no confirm within {} s", CONFIRM_DEADLINE.as_secs())))
            }
            () = self.lane.submitted(), if more && !draining => None,
            () = self.shutdown.draining(), if !draining => None,
            () = tokio::time::sleep(EXPIRE_INTERVAL), if blocked || flow.alone => {
                self.lane.expire(self.clock.mono_us());
                None
            }
        }
    }

    /// The time for which the oldest publication may still wait for its confirm.
    fn confirm_time_left(&self, window: &ConfirmWindow) -> Duration {
        let waited = window
            .oldest_us()
            .map_or(0, |published| self.clock.mono_us() - published);
        CONFIRM_DEADLINE.saturating_sub(Duration::from_micros(waited.max(0) as u64))
    }

    fn blocking_changed(&self, flow: &mut ChannelFlow) {
        if flow.is_blocked() {
            self.report_trouble("the broker blocks publishing (an alarm of memory or disk)");
        } else {
            flow.window.restart_waits(self.clock.mono_us());
            self.report_recovery();
        }
    }

    /// Publishes waiting messages until the window is full.
    fn fill(&mut self, flow: &mut ChannelFlow) {
        flow.alone &= !flow.window.is_empty();
        while flow.takes_more() && flow.channel.is_open() {
            let cautious = self.cautious;
            let empty = flow.window.is_empty();
            let suspects = &self.suspects;
            let mut alone = false;
            let next = self.lane.next(self.clock.mono_us(), |next| {
                alone = cautious || suspects.contains(next);
                !alone || empty
            });
            let Some(publication) = next else {
                return;
            };
            flow.alone = self.publish(flow, publication) && alone;
        }
    }

    /// Publishes one message, unless the broker would surely refuse it. Returns true if it was published.
    fn publish(&mut self, flow: &mut ChannelFlow, publication: Publication) -> bool {
        match self.prepare(flow.frame_max, &publication) {
            Ok(PreparedMessage {
                message,
                exchange,
                routing_key,
                properties,
            }) => {
                let number = flow.window.next_number();
                let AmqpMessage {
                    routing_key: key,
                    body,
                    ..
                } = message;
                flow.window
                    .enter(publication, key, body.clone(), self.clock.mono_us());
                flow.channel
                    .publish(number, exchange, routing_key, body, properties);
                true
            }
            Err((reason, error)) => {
                self.lane.answer(&publication, refused(reason, &error));
                false
            }
        }
    }

    /// Maps a message to AMQP, or returns the reason why the broker would refuse it.
    fn prepare(
        &self,
        frame_max: usize,
        publication: &Publication,
    ) -> Result<PreparedMessage, (Refusal, String)> {
        let routing_key = match &*publication.batch.target {
            Target::Rabbitmq { routing_key, .. } => routing_key,
            Target::Kafka { .. } => &RoutingKey::Key,
        };
        let message = &publication.entry().message;
        let delay_headers = publication.delay_headers();
        let own_user = self.own_user.as_deref();
        let rules = AmqpRules {
            routing_key,
            own_user,
            copies: publication.batch.copies,
        };
        let message = mapping::to_amqp(message, delay_headers, rules)
            .map_err(|UnfitMessage { reason, error }| (reason, error.to_string()))?;
        let properties = checked(&message, own_user, frame_max)?;
        let name = |name| short_name(name).map_err(|fault| (Refusal::TooBig, fault.to_string()));
        let exchange = name(&self.exchange)?;
        let routing_key = name(message.routing_key.as_str())?;
        Ok(PreparedMessage {
            message,
            exchange,
            routing_key,
            properties,
        })
    }

    /// Takes an answer and all others that are there, then gives verdicts. Returns a fault if the channel is lost.
    fn take_answers(
        &mut self,
        flow: &mut ChannelFlow,
        first: NumberedConfirm,
    ) -> Option<AmqpFault> {
        let mut next = Some(first);
        let mut fault: Option<AmqpFault> = None;
        while let Some((number, answer)) = next {
            let (broker_answer, returned) = match answer {
                Ok(Confirmation::Ack(returned)) => (Some(BrokerAnswer::Ack), returned),
                Ok(Confirmation::Nack(returned)) => (Some(BrokerAnswer::Nack), returned),
                Ok(Confirmation::NotRequested) => {
                    fault = Some(AmqpFault::new(
                        FaultKind::Lost,
                        "the channel is not in confirm mode",
                    ));
                    (None, None)
                }
                Err(error) => {
                    let error = AmqpFault::from(error);
                    // The reason of the broker comes first and says more than the "channel is closed" of later errors.
                    if fault
                        .as_ref()
                        .is_none_or(|known| known.kind == FaultKind::Lost)
                    {
                        fault = Some(error);
                    }
                    (None, None)
                }
            };
            if let Some(broker_answer) = broker_answer {
                flow.window.record_answer(number, broker_answer);
            }
            if let Some(returned) = returned.filter(|_| !mutants::is(Mutant::IgnoreReturned)) {
                self.mark_returned(flow, &returned);
            }
            next = flow.channel.try_next();
        }
        while let Some((publication, verdict)) = flow.window.judge() {
            self.suspects.clear(&publication);
            self.lane.answer(&publication, verdict);
            if std::mem::take(&mut self.cautious) {
                self.report_recovery();
            }
        }
        fault
    }

    fn mark_returned(&self, flow: &mut ChannelFlow, message: &BasicReturnMessage) {
        let returned = ReturnedMessage {
            routing_key: message.routing_key.as_str(),
            body: &message.data,
            properties: &message.properties,
            text: format!("{} {}", message.reply_code, message.reply_text),
        };
        let frame_max = flow.frame_max;
        let certain = flow.window.mark_returned(returned, |publication| {
            self.prepare(frame_max, publication)
                .ok()
                .map(|prepared| prepared.properties)
        });
        if !certain {
            tracing::warn!(
                exchange = self.exchange,
                "returned message matches several publications"
            );
        }
    }

    /// Gives verdicts to all outstanding messages of a channel that is lost.
    fn lost(&mut self, flow: &mut ChannelFlow, fault: &AmqpFault) {
        let outstanding = flow.window.abandon();
        let alone = outstanding.len() == 1;
        let error = fault.to_string();
        for (publication, verdict) in outstanding {
            let own = if alone {
                self.own_verdict(&publication, fault, &error)
            } else {
                None
            };
            let verdict = verdict.or(own);
            if verdict.is_some() {
                self.suspects.clear(&publication);
            } else if fault.blames_a_message() {
                self.suspects.add(&publication);
            }
            self.lane
                .answer(&publication, verdict.unwrap_or_else(|| unknown(&error)));
        }
        self.cautious = fault.blames_a_message();
        if !self.shutdown.is_forced() {
            self.report_trouble(&error);
        }
    }

    /// The verdict that follows for a message from the fault of its channel, if it alone was outstanding.
    fn own_verdict(
        &mut self,
        publication: &Publication,
        fault: &AmqpFault,
        error: &str,
    ) -> Option<Verdict> {
        let reason = match fault.kind {
            FaultKind::NotFound => Refusal::UnknownTarget,
            FaultKind::NotAllowed => Refusal::NotAllowed,
            FaultKind::TooBig => Refusal::TooBig,
            // Codes 405 and 406 are about content. Permissions and sizes have codes of their own.
            FaultKind::Refused => Refusal::Unpublishable,
            FaultKind::Poison if self.suspects.strike(publication) => Refusal::Unpublishable,
            FaultKind::Poison | FaultKind::Lost | FaultKind::Tls => return None,
        };
        Some(refused(reason, error))
    }
}
