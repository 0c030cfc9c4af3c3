//! Publishes over one channel: fills the window, takes the answers of the broker, gives verdicts.

use std::time::Duration;

use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::channel::{ConfirmChannel, NumberedConfirm};
use super::driver::{EXPIRE_INTERVAL, LaneDriver};
use super::lane::{not_confirmed, refused, unanswered};
use super::mapping::{self, AmqpMessage, AmqpRules, UnfitMessage};
use super::queue::{Admission, routing_key};
use super::validate::checked;
use super::window::{AbandonedPublication, BrokerAnswer, ConfirmWindow, ReturnedMessage};
use crate::broker::rabbitmq::{AmqpFault, FaultKind, LiveConnection, short_name};
use crate::domain::verdict::Refusal;
use crate::domain::{RoutingKey, Target, Verdict};
use crate::egress::{CONFIRM_DEADLINE, Publication};

/// Hand-overs after which a message that is with the broker when the connection is lost is suspected to be the cause. Outages
/// alone hardly meet one message so often.
const SUSPECT_HANDOUTS: u32 = 2;

/// State of publishing over one channel.
struct ChannelFlow {
    channel: ConfirmChannel,
    window: ConfirmWindow,
    frame_max: usize,
    blocked: watch::Receiver<bool>,
    /// True once the connection is known to be gone: it will not report on its blocking any more.
    gone: bool,
    /// True while no other message may follow the last one.
    alone: bool,
    /// True if messages waited at the end of the last round.
    is_holding: bool,
    /// Moment at which deadlines are checked, and all messages that wait are tried, monotonic microseconds.
    next_sweep_us: i64,
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
        !self.alone && !self.is_blocked()
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
            is_holding: false,
            next_sweep_us: 0,
        };
        if !self.cautious {
            self.report_recovery();
        }
        self.pump_channel(&mut flow).await;
        self.lane.forget_hanging();
    }

    async fn pump_channel(&mut self, flow: &mut ChannelFlow) {
        while flow.channel.is_open() || !flow.window.is_empty() {
            // Read once a turn: `step` waits for a drain that begins after this.
            let draining = self.shutdown.is_draining();
            if draining {
                self.lane.close();
                if flow.window.is_empty() {
                    return;
                }
            }
            let fault = match self.fill(flow) {
                None => self.step(flow, draining).await,
                fault => fault,
            };
            if let Some(fault) = fault {
                self.lost(flow, &fault);
                return;
            }
        }
    }

    /// Waits for one event. Returns a fault if the channel is of no use any more.
    async fn step(&mut self, flow: &mut ChannelFlow, draining: bool) -> Option<AmqpFault> {
        let undecided = !flow.window.is_empty();
        let owes_answers = flow.window.owes_answers();
        let blocked = flow.is_blocked();
        let more = flow.takes_more();
        let confirm_time_left = self.confirm_time_left(&flow.window);
        tokio::select! {
            biased;
            () = self.shutdown.forced() => Some(AmqpFault::new(FaultKind::Lost, "the process was forced to stop")),
            answer = flow.channel.next(), if owes_answers => self.take_answers(flow, answer),
            changed = flow.blocked.changed(), if !flow.gone => {
                flow.gone = changed.is_err();
                self.blocking_changed(flow);
                None
            }
            () = tokio::time::sleep(confirm_time_left), if undecided && !blocked => self.take_overdue(flow),
            () = self.lane.submitted(), if more && !draining => None,
            () = self.shutdown.draining(), if !draining => None,
            () = tokio::time::sleep(EXPIRE_INTERVAL), if blocked || flow.alone || flow.is_holding => None,
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

    /// Publishes waiting messages whose routing key has a share. Checks deadlines at times, as the waits of
    /// [`Self::step`] may never end while answers come. Returns a fault if the channel is of no use any more.
    fn fill(&mut self, flow: &mut ChannelFlow) -> Option<AmqpFault> {
        let now_us = self.clock.mono_us();
        let sweeps = now_us >= flow.next_sweep_us;
        if sweeps {
            flow.next_sweep_us = now_us + EXPIRE_INTERVAL.as_micros() as i64;
            if flow.is_holding {
                self.lane.expire(now_us);
            }
            if !flow.is_blocked()
                && let Some(fault) = self.take_overdue(flow)
            {
                return Some(fault);
            }
        }
        flow.alone &= !flow.window.is_settled(now_us);
        let released = flow.window.released();
        self.lane.begin_round(released, sweeps);
        released.clear();
        while flow.takes_more() && flow.channel.is_open() {
            let now_us = self.clock.mono_us();
            let cautious = self.cautious;
            let suspects = &self.suspects;
            let window = &flow.window;
            let mut alone = false;
            let next = self.lane.next(now_us, |next| {
                alone = cautious || suspects.contains(next);
                if !window.has_share(routing_key(next), now_us) {
                    Admission::NoShare
                } else if alone && !window.is_settled(now_us) {
                    Admission::Stop
                } else {
                    Admission::Publish
                }
            });
            let Some(publication) = next else {
                break;
            };
            flow.alone = self.publish(flow, publication) && alone;
        }
        flow.is_holding = self.lane.has_waiting();
        None
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
                publication.sent();
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
        let now_us = self.clock.mono_us();
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
                flow.window.record_answer(number, broker_answer, now_us);
            }
            if let Some(returned) = returned {
                self.mark_returned(flow, &returned);
            }
            next = flow.channel.try_next();
        }
        self.judge(flow);
        fault
    }

    /// Gives verdicts to the publications that can be judged.
    fn judge(&mut self, flow: &mut ChannelFlow) {
        let returned = flow.channel.returned();
        let frame_max = flow.frame_max;
        while let Some((publication, verdict)) = flow
            .window
            .judge(returned, |one| self.properties(frame_max, one))
        {
            self.suspects.clear(&publication);
            self.lane.answer(&publication, verdict);
            if std::mem::take(&mut self.cautious) {
                self.report_recovery();
            }
        }
        for key in flow.window.recovered().drain(..) {
            debug!(exchange = self.exchange, %key, "a routing key is confirmed again");
            self.lane.clear_hanging(&key);
        }
    }

    /// Gives verdicts to the publications without an answer at their deadline. Returns a fault if no message can leave
    /// over the channel any more, and none of it is without a verdict.
    fn take_overdue(&mut self, flow: &mut ChannelFlow) -> Option<AmqpFault> {
        let now_us = self.clock.mono_us();
        let frame_max = flow.frame_max;
        while let Some((publication, verdict, late_key)) = flow
            .window
            .take_overdue(now_us, |one| self.properties(frame_max, one))
        {
            // The broker has read it long ago, and the channel is there.
            self.suspects.clear(&publication);
            self.lane.answer(&publication, verdict);
            if let Some(key) = late_key
                && self.lane.set_hanging(&key)
            {
                let error = not_confirmed(&key);
                debug!(
                    exchange = self.exchange,
                    error, "publishing to a routing key fails"
                );
            }
        }
        flow.window
            .is_exhausted()
            .then(|| AmqpFault::new(FaultKind::Lost, "too many messages are not confirmed"))
    }

    /// The properties that a message is published with.
    fn properties(&self, frame_max: usize, publication: &Publication) -> Option<BasicProperties> {
        self.prepare(frame_max, publication)
            .ok()
            .map(|prepared| prepared.properties)
    }

    fn mark_returned(&self, flow: &mut ChannelFlow, message: &BasicReturnMessage) {
        let returned = ReturnedMessage {
            routing_key: message.routing_key.as_str(),
            body: &message.data,
            properties: &message.properties,
            text: format!("{} {}", message.reply_code, message.reply_text),
        };
        let frame_max = flow.frame_max;
        let certain = flow
            .window
            .mark_returned(returned, |one| self.properties(frame_max, one));
        if !certain {
            warn!(
                exchange = self.exchange,
                "returned message matches several publications"
            );
        }
    }

    /// Gives verdicts to all outstanding messages of a channel that is lost.
    fn lost(&mut self, flow: &mut ChannelFlow, fault: &AmqpFault) {
        let returned = flow.channel.returned();
        let frame_max = flow.frame_max;
        let outstanding = flow.window.abandon(returned, self.clock.mono_us(), |one| {
            self.properties(frame_max, one)
        });
        let may_be_blamed = outstanding
            .iter()
            .filter(|one| one.verdict.is_none() && !one.was_read);
        let alone = may_be_blamed.count() == 1;
        let error = fault.to_string();
        for abandoned in outstanding {
            let AbandonedPublication {
                publication,
                verdict,
                was_read,
            } = abandoned;
            let own = if alone && verdict.is_none() && !was_read {
                self.own_verdict(&publication, fault, &error)
            } else {
                None
            };
            let verdict = verdict.or(own);
            // Whatever drops the connection without a word may do so for the sake of one message.
            let often = publication.entry().handouts >= SUSPECT_HANDOUTS;
            if verdict.is_some() {
                self.suspects.clear(&publication);
            } else if (fault.blames_a_message() || often) && !was_read {
                self.suspects.add(&publication);
            }
            let is_suspected = alone && often && !was_read;
            self.lane.answer(
                &publication,
                verdict.unwrap_or_else(|| unanswered(fault, is_suspected)),
            );
        }
        self.cautious = fault.blames_a_message();
        if !self.shutdown.is_forced() {
            self.report_trouble(&error);
        }
    }

    /// The verdict that follows for a message from the fault of its channel, if it alone may be the cause.
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
