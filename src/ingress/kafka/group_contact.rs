//! A consumer's contact with its brokers and its group. The consumer can read if a broker answers, if the group has given
//! it partitions, and if each of them has a leader. Each trouble is a reason in `/readyz`, one line of the log when it
//! begins, and one when it ends.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use tracing::{info, warn};

use super::group_state::Fixed;
use super::rebalance::GroupClient;
use crate::broker::kafka;
use crate::ingress::Sink;

/// Time between two questions to brokers that do not answer.
const ASK_INTERVAL_US: i64 = 1_000_000;
/// Longest wait for an answer to such a question.
const ASK_DEADLINE: Duration = Duration::from_secs(1);
/// A group may take this long to give its partitions before that counts as trouble.
const JOIN_DEADLINE_US: i64 = 3_000_000;
/// The reason that is told then.
const NOT_JOINED: &str = "the group has given this consumer no partitions yet; a member that is gone, perhaps this \
                          consumer's own former self, counts until its session of 10 s ends";

/// The trouble of a consumer, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// No broker answers.
    Unreachable(String),
    /// Brokers answer, and the consumer has no partitions, or some that cannot be read.
    NothingToRead(String),
    /// The consumer ended, and another one is on its way.
    Broken(String),
}

/// The state that was last told.
#[derive(Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    Well,
    Trouble(Trouble),
}

/// A consumer's contact with its brokers and its group, over all lives of the consumer.
#[derive(Default)]
pub(super) struct Contact {
    is_reached: bool,
    told: Told,
    /// Monotonic microseconds since which brokers answer and the group has given nothing.
    joining_since_us: Option<i64>,
    next_ask_us: i64,
}

impl Contact {
    /// Looks, asks the brokers if there is a reason to, and tells what has changed.
    pub(super) fn look<S: Sink>(&mut self, fixed: &Fixed<S>, consumer: &GroupClient<S>, now_us: i64) {
        if fixed.suspicion.take() {
            self.is_reached = false;
        }
        if !self.is_reached {
            self.joining_since_us = None;
            if now_us < self.next_ask_us {
                return;
            }
            let Some(topic) = fixed.routes.keys().next() else { return };
            if let Err(error) = kafka::ask(consumer.client(), topic, ASK_DEADLINE) {
                self.next_ask_us = now_us + ASK_INTERVAL_US;
                self.tell(fixed, Some(Trouble::Unreachable(fixed.suspicion.explain(&error))));
                return;
            }
            self.is_reached = true;
        }
        let is_member = consumer.context().state.lock().is_member;
        match self.nothing_to_read(consumer, now_us) {
            Some(why) => self.tell(fixed, Some(Trouble::NothingToRead(why))),
            // It has the time to join the group; what kept it from reading is not over before that.
            None if !is_member && self.is_told_not_to_read() => {}
            None => self.tell(fixed, None),
        }
    }

    fn is_told_not_to_read(&self) -> bool {
        matches!(self.told, Told::Trouble(Trouble::NothingToRead(_) | Trouble::Broken(_)))
    }

    /// Why a consumer whose brokers answer reads nothing, or not all of its partitions.
    fn nothing_to_read<S: Sink>(&mut self, consumer: &GroupClient<S>, now_us: i64) -> Option<String> {
        let state = consumer.context().state.lock();
        if state.is_member {
            self.joining_since_us = None;
        } else if now_us - *self.joining_since_us.get_or_insert(now_us) > JOIN_DEADLINE_US {
            return Some(NOT_JOINED.to_owned());
        }
        let (topic, partition) = state.unplaced.first()?;
        Some(format!("{topic}/{partition} has no leader, or no known position"))
    }

    /// Tells that the consumer ended; its next life asks anew.
    pub(super) fn breaks<S>(&mut self, fixed: &Fixed<S>, why: String) {
        *self = Self { told: std::mem::take(&mut self.told), ..Self::default() };
        self.tell(fixed, Some(Trouble::Broken(why)));
    }

    /// Tells the part of readiness and the log, if it is news.
    fn tell<S>(&mut self, fixed: &Fixed<S>, trouble: Option<Trouble>) {
        let now = trouble.map_or(Told::Well, Told::Trouble);
        if self.told == now {
            return;
        }
        let consumer = &fixed.owner;
        let part = &fixed.around.part;
        let was = std::mem::replace(&mut self.told, now);
        let was_unreachable = matches!(was, Told::Trouble(Trouble::Unreachable(_)));
        match &self.told {
            Told::Trouble(Trouble::Unreachable(why)) => {
                // The reason may change with each question: one line is enough.
                if !was_unreachable {
                    warn!(%consumer, error = %why, "kafka cannot be reached, waiting");
                }
                part.down(why.clone());
                return;
            }
            _ if was_unreachable => info!(%consumer, "kafka is reached again"),
            _ => {}
        }
        match &self.told {
            Told::Trouble(Trouble::NothingToRead(why)) => {
                warn!(%consumer, why, "kafka consumer is given nothing to read, waiting");
                part.down(why.clone());
            }
            Told::Trouble(Trouble::Broken(why)) => {
                warn!(%consumer, why, "kafka consumer starts anew");
                part.down(why.clone());
            }
            Told::Well if matches!(was, Told::Trouble(_)) && !was_unreachable => {
                info!(%consumer, "kafka consumer reads its partitions again");
                part.up();
            }
            _ => {
                part.up();
            }
        }
    }
}
