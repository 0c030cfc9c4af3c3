//! The messages in one producer, and the sorting of those that timed out there.
//!
//! A message that timed out was perhaps sent, perhaps not: the client library does not say. Its statistics say how
//! many messages of each partition it has put into requests, and it sends those of a partition in the order in which
//! it got them. So a message whose number among those handed over is beyond that count has never left this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::statistics::Statistics;

use super::lane::TopicLane;
use super::outcome::{self, DeliveryOutcome};
use crate::domain::{KafkaPosition, Text, Verdict};
use crate::egress::Publication;

/// A message in a producer, without a delivery report yet.
#[derive(Debug)]
pub(super) struct InFlightMessage {
    pub(super) publication: Publication,
    pub(super) lane: Arc<TopicLane>,
    pub(super) partition: usize,
    pub(super) bytes: usize,
    /// The moment of the hand-over, monotonic microseconds.
    pub(super) handed_us: i64,
    /// True if nothing else of its partition was in flight when it was sent: a refusal is about this message.
    pub(super) alone: bool,
}

/// The messages in one producer. Each is taken out once and so gets one verdict: with its delivery report, or when the
/// producer is gone.
#[derive(Debug, Default)]
pub(super) struct InFlightTable {
    slots: Mutex<Slots>,
    reports: Mutex<Reports>,
    /// The fatal error that ended the producer.
    pub(super) fatal: OnceLock<RDKafkaErrorCode>,
}

#[derive(Debug, Default)]
struct Slots {
    messages: Vec<Option<(InFlightMessage, u64)>>,
    free: Vec<usize>,
    /// By topic and partition.
    tallies: HashMap<String, BTreeMap<usize, HandOverTally>>,
}

#[derive(Debug, Default)]
struct Reports {
    /// Delivery reports that the lanes have not got yet.
    ready: Vec<(usize, DeliveryOutcome)>,
    /// Time-outs that the next statistics sort.
    time_outs: Vec<TimeOut>,
}

#[derive(Debug)]
struct TimeOut {
    slot: usize,
    /// Messages of its partition that failed before it.
    failed_before: u64,
}

/// The messages of one partition that one producer got, counted from a moment at which it had none of them.
#[derive(Debug, Default)]
struct HandOverTally {
    handed: u64,
    ended: u64,
    failed: u64,
    /// The client's count of messages in requests at that moment.
    sent_before: u64,
    /// The client's last count.
    sent: u64,
    /// The client gave no count, or one that went back: its partition was made anew.
    is_void: bool,
}

impl HandOverTally {
    fn learn(&mut self, sent: Option<u64>) {
        self.is_void |= sent.is_none_or(|sent| sent < self.sent);
        self.sent = sent.unwrap_or(self.sent);
    }

    /// Counts from now on, if no message is in flight.
    fn begin_anew(&mut self) {
        if self.handed == self.ended {
            *self = Self {
                sent_before: self.sent,
                sent: self.sent,
                ..Self::default()
            };
        }
    }

    /// Reports whether the message with this number was surely never in a request, if so many failed before it. Of the
    /// messages up to it all but those were in a request before it; a message that is retried counts again.
    fn is_unsent(&self, number: u64, failed_before: u64) -> bool {
        let sent = self.sent.saturating_sub(self.sent_before);
        !self.is_void && sent < number.saturating_sub(failed_before)
    }
}

impl InFlightTable {
    /// Adds a message. Returns the number that its delivery report will have.
    pub(super) fn insert(&self, message: InFlightMessage) -> usize {
        let slots = &mut *self.slots.lock();
        let tally = slots.tally(&message.lane.topic, message.partition);
        tally.handed += 1;
        let entry = Some((message, tally.handed));
        if let Some(slot) = slots.free.pop() {
            slots.messages[slot] = entry;
            return slot;
        }
        slots.messages.push(entry);
        slots.messages.len() - 1
    }

    /// Takes out a message that the producer did not accept.
    pub(super) fn remove(&self, slot: usize) -> Option<InFlightMessage> {
        let slots = &mut *self.slots.lock();
        let (message, _) = slots.messages.get_mut(slot)?.take()?;
        slots.free.push(slot);
        slots.tally(&message.lane.topic, message.partition).handed -= 1;
        Some(message)
    }

    /// Takes a delivery report, of a message that was stored with its place if that is known. Returns true if it is the
    /// first for [`Self::tell_lanes`].
    pub(super) fn report(
        &self,
        slot: usize,
        result: Result<Option<KafkaPosition>, RDKafkaErrorCode>,
    ) -> bool {
        let outcome = match result {
            Ok(landed) => Verdict::Confirmed(landed).into(),
            Err(code) => {
                let failed_before = self.slots.lock().failed(slot);
                if code == RDKafkaErrorCode::MessageTimedOut {
                    let time_out = TimeOut {
                        slot,
                        failed_before,
                    };
                    self.reports.lock().time_outs.push(time_out);
                    return false;
                }
                outcome::delivery_outcome(code, self.fatal.get().copied())
            }
        };
        let mut reports = self.reports.lock();
        reports.ready.push((slot, outcome));
        reports.ready.len() == 1
    }

    /// Sorts the time-outs by what the client has sent. Returns true if there were any.
    pub(super) fn sort_time_outs(&self, statistics: &Statistics) -> bool {
        let slots = &mut *self.slots.lock();
        for (topic, tallies) in &mut slots.tallies {
            let topic = statistics.topics.get(topic);
            for (&partition, tally) in tallies {
                let partition = topic.and_then(|topic| topic.partitions.get(&(partition as i32)));
                tally.learn(partition.map(|partition| partition.txmsgs));
            }
        }
        let mut reports = self.reports.lock();
        let time_outs = std::mem::take(&mut reports.time_outs);
        let any = !time_outs.is_empty();
        for TimeOut {
            slot,
            failed_before,
        } in time_outs
        {
            let outcome = if slots.is_unsent(slot, failed_before) {
                Verdict::NotTried.into()
            } else {
                outcome::delivery_outcome(RDKafkaErrorCode::MessageTimedOut, None)
            };
            reports.ready.push((slot, outcome));
        }
        drop(reports);
        for tally in slots.tallies.values_mut().flat_map(BTreeMap::values_mut) {
            tally.begin_anew();
        }
        any
    }

    /// Gives the lanes all reports since the last call. Together, because single reports would take the locks of the
    /// lanes as often as there are messages.
    pub(super) fn tell_lanes(&self) {
        let reports = std::mem::take(&mut self.reports.lock().ready);
        if reports.is_empty() {
            return;
        }
        to_lanes(self.take(reports));
    }

    fn take(
        &self,
        reports: Vec<(usize, DeliveryOutcome)>,
    ) -> Vec<(InFlightMessage, DeliveryOutcome)> {
        let slots = &mut *self.slots.lock();
        let mut reported = Vec::with_capacity(reports.len());
        for (slot, outcome) in reports {
            let Some((message, _)) = slots.messages.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            slots.free.push(slot);
            slots.tally(&message.lane.topic, message.partition).ended += 1;
            reported.push((message, outcome));
        }
        reported
    }

    /// Gives all messages that are left the verdict `Unknown`: the producer is gone and will report on none of them.
    pub(super) fn abandon(&self) {
        self.tell_lanes();
        let left: Vec<_> = self.slots.lock().messages.drain(..).flatten().collect();
        let closed = || {
            Verdict::Unknown {
                error: Text::from("its producer was closed"),
            }
            .into()
        };
        to_lanes(
            left.into_iter()
                .map(|(message, _)| (message, closed()))
                .collect(),
        );
    }
}

impl Slots {
    fn tally(&mut self, topic: &str, partition: usize) -> &mut HandOverTally {
        let tallies = self.tallies.entry(topic.to_owned()).or_default();
        tallies.entry(partition).or_default()
    }

    /// Counts a failed message. Returns how many of its partition failed before it.
    fn failed(&mut self, slot: usize) -> u64 {
        let Some(Some((message, _))) = self.messages.get(slot) else {
            return 0;
        };
        let tallies = self.tallies.get_mut(&message.lane.topic);
        let Some(tally) = tallies.and_then(|tallies| tallies.get_mut(&message.partition)) else {
            return 0;
        };
        tally.failed += 1;
        tally.failed - 1
    }

    fn is_unsent(&self, slot: usize, failed_before: u64) -> bool {
        let Some(Some((message, number))) = self.messages.get(slot) else {
            return false;
        };
        let tallies = self.tallies.get(&message.lane.topic);
        let tally = tallies.and_then(|tallies| tallies.get(&message.partition));
        tally.is_some_and(|tally| tally.is_unsent(*number, failed_before))
    }
}

/// Gives each lane its reports, in order.
fn to_lanes(reported: Vec<(InFlightMessage, DeliveryOutcome)>) {
    let mut reported = reported.into_iter().peekable();
    while let Some(first) = reported.next() {
        let lane = first.0.lane.clone();
        let mut batch = vec![first];
        while let Some(next) = reported.next_if(|(message, _)| Arc::ptr_eq(&message.lane, &lane)) {
            batch.push(next);
        }
        lane.take_reports(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened; the client's count before and its counts since; the message's number and how many failed before it;
    /// whether it surely never left.
    type Case = (&'static str, u64, &'static [u64], u64, u64, bool);

    #[test]
    fn a_time_out_is_not_tried_only_if_the_message_was_in_no_request() {
        let tally = |sent_before, counts: &[u64]| {
            let mut tally = HandOverTally {
                sent_before,
                sent: sent_before,
                ..HandOverTally::default()
            };
            for &sent in counts {
                tally.learn(Some(sent));
            }
            tally
        };
        let table: [Case; 10] = [
            ("nothing was sent", 0, &[0], 1, 0, true),
            ("nothing was sent since", 70, &[70, 70], 1, 0, true),
            (
                "nothing was sent, the third time-out",
                70,
                &[70],
                3,
                2,
                true,
            ),
            ("it was sent", 70, &[71], 1, 0, false),
            ("the one before it was sent", 70, &[71], 2, 0, true),
            ("the one before it was sent twice", 70, &[72], 2, 0, false),
            (
                "the one before it was never sent, it was",
                70,
                &[71],
                2,
                1,
                false,
            ),
            ("of six three were sent", 0, &[3], 4, 0, true),
            ("of six four were sent", 0, &[4], 4, 0, false),
            ("the partition was made anew", 70, &[72, 0], 6, 0, false),
        ];
        for (what, before, counts, number, failed_before, unsent) in table {
            let tally = tally(before, counts);
            assert_eq!(tally.is_unsent(number, failed_before), unsent, "{what}");
        }
    }

    #[test]
    fn a_tally_begins_anew_only_while_nothing_is_in_flight() {
        let mut tally = HandOverTally {
            handed: 3,
            ended: 2,
            failed: 1,
            ..HandOverTally::default()
        };
        tally.learn(Some(9));
        tally.begin_anew();
        assert!(!tally.is_unsent(3, 0), "one is in flight");
        tally.ended = 3;
        tally.begin_anew();
        assert_eq!((tally.handed, tally.failed), (0, 0));
        assert!(tally.is_unsent(1, 0));
        tally.learn(Some(10));
        assert!(!tally.is_unsent(1, 0));
    }
}
