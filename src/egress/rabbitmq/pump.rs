//! Publishing over one channel: fill the window, hear the broker, give verdicts.

use std::time::Duration;

use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation};
use tokio::sync::watch;

use super::channel::{Answer, ConfirmChannel};
use super::driver::{Driver, EXPIRE_EVERY};
use super::lane::{refused, unknown};
use super::mapping::{self, AmqpMessage, Unfit};
use super::validate::checked;
use super::window::{Returned, Window, Word};
use crate::broker::rabbitmq::{AmqpFault, FaultKind, LiveConnection, short_name};
use crate::domain::verdict::{DeadReason, Refusal};
use crate::domain::{RoutingKey, Target, Verdict};
use crate::egress::{CONFIRM_DEADLINE, Publication};
use crate::mutants::{self, Mutant};

/// Most publications with the broker at a time. Measured: the rate no longer grows beyond.
const WINDOW: usize = 512;

/// One channel's publishing.
struct Flow {
    channel: ConfirmChannel,
    window: Window,
    frame_max: usize,
    blocked: watch::Receiver<bool>,
    /// Whether the connection is known to be gone: nothing will be said of its blocking any more.
    gone: bool,
    /// What is in the window must stay alone there.
    alone: bool,
}

/// A message in the client library's words.
struct Prepared {
    message: AmqpMessage,
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
}

impl Flow {
    fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    fn takes_more(&self) -> bool {
        !self.alone && !self.is_blocked() && self.window.len() < WINDOW
    }
}

impl Driver {
    /// Publishes over one channel until it is lost or the process drains. All that was published is
    /// judged on return.
    pub(super) async fn pump(&mut self, live: &LiveConnection, channel: ConfirmChannel) {
        let mut flow = Flow {
            channel,
            window: Window::default(),
            frame_max: live.frame_max(),
            blocked: live.blocked(),
            gone: false,
            alone: false,
        };
        if !self.cautious {
            self.healthy();
        }
        while flow.channel.is_open() || !flow.window.is_empty() {
            // Asked once a turn: a drain that begins after this is one of the things that a step waits for.
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

    /// Waits for one thing to happen. `Some`: the channel is of no use any more.
    async fn step(&mut self, flow: &mut Flow, draining: bool) -> Option<AmqpFault> {
        let (outstanding, blocked, more) = (!flow.window.is_empty(), flow.is_blocked(), flow.takes_more());
        let patience = self.patience(&flow.window);
        tokio::select! {
            biased;
            () = self.shutdown.forced() => Some(AmqpFault::new(FaultKind::Lost, "the process is made to stop")),
            answer = flow.channel.next(), if outstanding => self.hear(flow, answer),
            changed = flow.blocked.changed(), if !flow.gone => {
                flow.gone = changed.is_err();
                self.blocking_changed(flow);
                None
            }
            () = tokio::time::sleep(patience), if outstanding && !blocked => {
                Some(AmqpFault::new(FaultKind::Lost, format!("no confirm within {} s", CONFIRM_DEADLINE.as_secs())))
            }
            () = self.lane.submitted(), if more && !draining => None,
            () = self.shutdown.draining(), if !draining => None,
            () = tokio::time::sleep(EXPIRE_EVERY), if blocked || flow.alone => {
                self.lane.expire(self.clock.mono_us());
                None
            }
        }
    }

    /// How long the oldest publication may still be awaited.
    fn patience(&self, window: &Window) -> Duration {
        let waited = window.oldest_us().map_or(0, |handed| self.clock.mono_us() - handed);
        CONFIRM_DEADLINE.saturating_sub(Duration::from_micros(waited.max(0) as u64))
    }

    fn blocking_changed(&self, flow: &mut Flow) {
        if flow.is_blocked() {
            self.troubled("the broker blocks publishing (an alarm of memory or disk)");
        } else {
            flow.window.restart_waits(self.clock.mono_us());
            self.healthy();
        }
    }

    /// Publishes what waits, as far as the window allows.
    fn fill(&mut self, flow: &mut Flow) {
        flow.alone &= !flow.window.is_empty();
        while flow.takes_more() && flow.channel.is_open() {
            let (cautious, empty) = (self.cautious, flow.window.is_empty());
            let suspects = &self.suspects;
            let mut alone = false;
            let next = self.lane.next(self.clock.mono_us(), |next| {
                alone = cautious || suspects.holds(next);
                !alone || empty
            });
            let Some(publication) = next else {
                return;
            };
            flow.alone = self.hand_over(flow, publication) && alone;
        }
    }

    /// Publishes one message, unless it is known to be refused. Returns whether it is with the broker.
    fn hand_over(&mut self, flow: &mut Flow, publication: Publication) -> bool {
        match self.prepare(flow.frame_max, &publication) {
            Ok(Prepared { message, exchange, routing_key, properties }) => {
                let number = flow.window.next_number();
                let AmqpMessage { routing_key: key, body, .. } = message;
                flow.window.enter(publication, key, body.clone(), self.clock.mono_us());
                flow.channel.publish(number, exchange, routing_key, body, properties);
                true
            }
            Err((reason, error)) => {
                self.lane.answer(&publication, refused(reason, &error));
                false
            }
        }
    }

    /// What is published for a message, or why the broker would refuse it.
    fn prepare(&self, frame_max: usize, publication: &Publication) -> Result<Prepared, (Refusal, String)> {
        let routing_key = match &*publication.batch.target {
            Target::Rabbitmq { routing_key, .. } => routing_key,
            Target::Kafka { .. } => &RoutingKey::Key,
        };
        let (message, stamp) = (&publication.entry().message, publication.stamp());
        let own_user = self.own_user.as_deref();
        let message = mapping::to_amqp(message, stamp, routing_key, own_user)
            .map_err(|Unfit { reason, error }| (reason, error.to_string()))?;
        let properties = checked(&message, own_user, frame_max)?;
        let name = |name| short_name(name).map_err(|fault| (Refusal::TooBig, fault.to_string()));
        let (exchange, routing_key) = (name(&self.exchange)?, name(message.routing_key.as_str())?);
        Ok(Prepared { message, exchange, routing_key, properties })
    }

    /// Takes an answer and all others that are there, then judges. `Some`: the channel is lost.
    fn hear(&mut self, flow: &mut Flow, first: Answer) -> Option<AmqpFault> {
        let mut next = Some(first);
        let mut fault: Option<AmqpFault> = None;
        while let Some((number, answer)) = next {
            let (word, returned) = match answer {
                Ok(Confirmation::Ack(returned)) => (Some(Word::Ack), returned),
                Ok(Confirmation::Nack(returned)) => (Some(Word::Nack), returned),
                Ok(Confirmation::NotRequested) => {
                    fault = Some(AmqpFault::new(FaultKind::Lost, "the channel is not in confirm mode"));
                    (None, None)
                }
                Err(error) => {
                    let error = AmqpFault::from(error);
                    // The broker's reason says more than the "channel is closed" of those behind it.
                    if fault.as_ref().is_none_or(|known| known.kind == FaultKind::Lost) {
                        fault = Some(error);
                    }
                    (None, None)
                }
            };
            if let Some(word) = word {
                flow.window.heard(number, word);
            }
            if let Some(returned) = returned.filter(|_| !mutants::is(Mutant::IgnoreReturned)) {
                self.came_back(flow, &returned);
            }
            next = flow.channel.try_next();
        }
        while let Some((publication, verdict)) = flow.window.judge() {
            self.suspects.clear(&publication);
            self.lane.answer(&publication, verdict);
            if std::mem::take(&mut self.cautious) {
                self.healthy();
            }
        }
        fault
    }

    fn came_back(&self, flow: &mut Flow, message: &BasicReturnMessage) {
        let returned = Returned {
            routing_key: message.routing_key.as_str(),
            body: &message.data,
            properties: &message.properties,
            text: format!("{} {}", message.reply_code, message.reply_text),
        };
        let frame_max = flow.frame_max;
        let certain = flow.window.came_back(returned, |publication| {
            self.prepare(frame_max, publication).ok().map(|prepared| prepared.properties)
        });
        if !certain {
            tracing::warn!(exchange = self.exchange, "a returned message cannot be told from others");
        }
    }

    /// Judges all that is outstanding on a channel that is lost.
    fn lost(&mut self, flow: &mut Flow, fault: &AmqpFault) {
        let outstanding = flow.window.abandon();
        let alone = outstanding.len() == 1;
        let error = fault.to_string();
        for (publication, verdict) in outstanding {
            let own = if alone { self.own_verdict(&publication, fault, &error) } else { None };
            let verdict = verdict.or(own);
            if verdict.is_some() {
                self.suspects.clear(&publication);
            } else if fault.blames_a_message() {
                self.suspects.add(&publication);
            }
            self.lane.answer(&publication, verdict.unwrap_or_else(|| unknown(&error)));
        }
        self.cautious = fault.blames_a_message();
        if !self.shutdown.is_forced() {
            self.troubled(&error);
        }
    }

    /// What the broker's closing of the channel says of the only message that was outstanding.
    fn own_verdict(&mut self, publication: &Publication, fault: &AmqpFault, error: &str) -> Option<Verdict> {
        let reason = match fault.kind {
            FaultKind::NotFound => Refusal::UnknownTarget,
            FaultKind::NotAllowed => Refusal::NotAllowed,
            FaultKind::TooBig => Refusal::TooBig,
            // 405, 406: what it holds; permissions and sizes have codes of their own.
            FaultKind::Refused => Refusal::Hopeless(DeadReason::NotAllowed),
            FaultKind::Poison if self.suspects.strike(publication) => {
                Refusal::Hopeless(DeadReason::NotAllowed)
            }
            FaultKind::Poison | FaultKind::Undecodable | FaultKind::Lost => return None,
        };
        Some(refused(reason, error))
    }
}
