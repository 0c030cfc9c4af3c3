//! A consumer's contact with its brokers and its group. The consumer can read if a broker answers, if the group
//! has given it partitions, and if each of them has a leader. Each trouble is a reason in `/readyz`, one log
//! line when it begins, and one when it ends.

use std::time::Duration;

use rdkafka::consumer::Consumer;
use tracing::{info, warn};

use super::group_state::{GroupSetup, Unplaced};
use super::rebalance::GroupClient;
use crate::broker::kafka;
use crate::ingress::Sink;

/// Time between two questions to brokers that do not answer.
const ASK_INTERVAL_US: i64 = 1_000_000;
/// Longest wait for an answer to such a question.
const ASK_DEADLINE: Duration = Duration::from_secs(1);
/// Time for the group to give partitions before the wait counts as trouble.
const JOIN_DEADLINE_US: i64 = 3_000_000;
/// Longest wait for the group, twice its session. A consumer that has been given nothing by then restarts, since an
/// answer to its join may never come: of a coordinator that died meanwhile, for instance.
const JOIN_LIMIT_US: i64 = 20_000_000;
/// The reason that is reported after [`JOIN_DEADLINE_US`].
const NOT_JOINED: &str = "the group has given this consumer no partitions yet; a member that is gone, perhaps this \
                          consumer's own former self, counts until its session of 10 s ends";

/// The trouble of a consumer, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContactTrouble {
    /// No broker answers.
    Unreachable(String),
    /// Brokers answer, but the consumer has no partitions, or some that cannot be read.
    NothingToRead(String),
    /// The consumer ended, and another one is on its way.
    Broken(String),
}

/// The state that was last reported.
#[derive(Debug, Default, PartialEq, Eq)]
enum ReportedContact {
    #[default]
    Nothing,
    Well,
    Trouble(ContactTrouble),
}

/// A consumer's contact with its brokers and its group. Outlives the restarts of the consumer.
#[derive(Default)]
pub(super) struct GroupContact {
    is_reached: bool,
    /// Set once any broker has answered this consumer.
    was_reached: bool,
    reported: ReportedContact,
    /// Monotonic microseconds since which brokers answer and the group has given nothing.
    joining_since_us: Option<i64>,
    next_ask_us: i64,
}

impl GroupContact {
    /// Checks the contact: asks the brokers if there is a reason to, and reports a change.
    pub(super) fn check<S: Sink>(
        &mut self,
        setup: &GroupSetup<S>,
        consumer: &GroupClient<S>,
        now_us: i64,
    ) {
        if setup.suspicion.take() {
            self.is_reached = false;
        }
        if !self.is_reached {
            self.joining_since_us = None;
            if now_us < self.next_ask_us {
                return;
            }
            let topic = setup.topics.lock().topics().next().cloned();
            if let Err(error) = kafka::ask(consumer.client(), topic.as_deref(), ASK_DEADLINE) {
                self.next_ask_us = now_us + ASK_INTERVAL_US;
                let why = setup.suspicion.explain(&error);
                let explaining = setup.connection.explained(why, self.was_reached);
                let why = setup.runtime.block_on(explaining);
                self.report(setup, Some(ContactTrouble::Unreachable(why)));
                return;
            }
            setup.suspicion.answered();
            self.is_reached = true;
            self.was_reached = true;
        }
        if self.has_waited_too_long(consumer, now_us) {
            let why = format!(
                "the group has given nothing for {} s",
                JOIN_LIMIT_US / 1_000_000
            );
            consumer.context().state.lock().mark_broken(why);
            return;
        }
        let is_member = consumer.context().state.lock().is_member;
        match self.nothing_to_read(consumer, now_us) {
            Some(why) => self.report(setup, Some(ContactTrouble::NothingToRead(why))),
            // The consumer has time to join the group. Earlier trouble is not over before it has joined.
            None if !is_member && self.is_reported_idle() => {}
            None => self.report(setup, None),
        }
    }

    fn is_reported_idle(&self) -> bool {
        matches!(
            self.reported,
            ReportedContact::Trouble(ContactTrouble::NothingToRead(_) | ContactTrouble::Broken(_))
        )
    }

    /// Reports whether the group has given nothing for [`JOIN_LIMIT_US`], although it could.
    fn has_waited_too_long<S: Sink>(&self, consumer: &GroupClient<S>, now_us: i64) -> bool {
        let is_over = self
            .joining_since_us
            .is_some_and(|since_us| now_us - since_us > JOIN_LIMIT_US);
        is_over && consumer.context().state.lock().is_owed_partitions()
    }

    /// The reason why a consumer whose brokers answer reads nothing, or not all of its partitions.
    fn nothing_to_read<S: Sink>(
        &mut self,
        consumer: &GroupClient<S>,
        now_us: i64,
    ) -> Option<String> {
        let state = consumer.context().state.lock();
        if state.is_member || !state.is_subscribed {
            self.joining_since_us = None;
        } else if now_us - *self.joining_since_us.get_or_insert(now_us) > JOIN_DEADLINE_US {
            let refusal = state.group_refusal.clone();
            return Some(refusal.unwrap_or_else(|| NOT_JOINED.to_owned()));
        }
        state.unplaced.first().map(Unplaced::to_string)
    }

    /// Reports that the consumer ended. Its successor asks the brokers anew.
    pub(super) fn report_broken<S>(&mut self, setup: &GroupSetup<S>, why: String) {
        *self = Self {
            reported: std::mem::take(&mut self.reported),
            ..Self::default()
        };
        self.report(setup, Some(ContactTrouble::Broken(why)));
    }

    /// Reports a change to readiness and the log.
    fn report<S>(&mut self, setup: &GroupSetup<S>, trouble: Option<ContactTrouble>) {
        let now = trouble.map_or(ReportedContact::Well, ReportedContact::Trouble);
        if self.reported == now {
            return;
        }
        let consumer = &setup.owner;
        let part = &setup.deps.part;
        let was = std::mem::replace(&mut self.reported, now);
        let was_unreachable = matches!(
            was,
            ReportedContact::Trouble(ContactTrouble::Unreachable(_))
        );
        match &self.reported {
            ReportedContact::Trouble(ContactTrouble::Unreachable(why)) => {
                // The reason may change with each question: one line is enough.
                if !was_unreachable {
                    warn!(%consumer, error = %why, "kafka cannot be reached, waiting");
                }
                part.down_unanswered(why.clone());
                return;
            }
            // A client that could not log in ends like that.
            ReportedContact::Trouble(ContactTrouble::Broken(_)) => {}
            _ if was_unreachable => info!(%consumer, "kafka is reached again"),
            _ => {}
        }
        match &self.reported {
            ReportedContact::Trouble(ContactTrouble::NothingToRead(why)) => {
                warn!(%consumer, why, "kafka consumer is given nothing to read, waiting");
                if why == NOT_JOINED {
                    part.down_unanswered(why.clone());
                } else {
                    part.down(why.clone());
                }
            }
            ReportedContact::Trouble(ContactTrouble::Broken(why)) => {
                warn!(%consumer, why, "kafka consumer restarts");
                part.down(why.clone());
            }
            ReportedContact::Well
                if matches!(was, ReportedContact::Trouble(_)) && !was_unreachable =>
            {
                info!(%consumer, "kafka consumer reads its partitions again");
                part.up();
            }
            ReportedContact::Well if was == ReportedContact::Nothing => {
                info!(%consumer, "kafka is reached");
                part.up();
            }
            _ => {
                part.up();
            }
        }
    }
}
