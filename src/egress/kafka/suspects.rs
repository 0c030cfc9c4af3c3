//! Finds the culprit in a batch that a broker refused for the content of some record.
//!
//! The broker names no culprit, and writes nothing of such a batch. Its messages become *suspects*. They are retried in
//! groups, one after another, while nothing else of their partition is in flight. A group that is refused is halved; after a
//! group that passes, the next is twice as large. A message that is refused alone is the culprit. One culprit among
//! thousands costs some twenty round trips, not thousands. Suspects keep their order among themselves; messages that
//! were in flight behind their batch may have gone before them.

use std::collections::VecDeque;

use crate::egress::Publication;

/// Suspects of one partition, and the state of the group that is in flight.
#[derive(Debug, Default)]
pub(super) struct SuspectGroups {
    waiting: VecDeque<Publication>,
    /// Suspects that were refused, in order, while others of their group are still in flight.
    refused: Vec<Publication>,
    /// True while a group of suspects is in flight.
    probing: bool,
    /// Size of the next group; 0 before the first, which has one message.
    group: usize,
}

impl SuspectGroups {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.refused.len()
    }

    /// Reports whether there are no suspects. While there are any, nothing else of the partition may go.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a message whose batch was refused.
    pub(super) fn refused(&mut self, publication: Publication) {
        self.refused.push(publication);
    }

    /// Takes out the next group, in order. Call it while nothing of the partition is in flight.
    pub(super) fn next_group(&mut self) -> Vec<Publication> {
        self.probing = true;
        let count = self
            .group
            .clamp(1, self.waiting.len().max(1))
            .min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }

    /// Takes back a message of a group that was not sent. The last one of a group comes first.
    pub(super) fn put_back(&mut self, publication: Publication) {
        self.waiting.push_front(publication);
    }

    /// Chooses the size of the next group, once no message of the last one is in flight.
    pub(super) fn regroup(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        let probing = std::mem::take(&mut self.probing);
        if !refused.is_empty() {
            self.group = refused.len() / 2;
        } else if probing {
            self.group = self.group.max(1).saturating_mul(2);
        }
        self.put_first(refused);
    }

    /// Keeps those waiting suspects for which `keeps` returns true.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&Publication) -> bool) {
        self.waiting.retain(&mut keeps);
    }

    /// Takes out all suspects.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Publication> {
        self.refused.drain(..).chain(self.waiting.drain(..))
    }

    fn put_first(
        &mut self,
        publications: impl IntoIterator<Item = Publication, IntoIter: DoubleEndedIterator>,
    ) {
        for publication in publications.into_iter().rev() {
            self.waiting.push_front(publication);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::domain::{Entry, Message, Origin, Target, UnixMs};

    fn publication(ticket: u64) -> Publication {
        let message = Message {
            origin: Origin::Kafka,
            key: None,
            body: None,
            headers: Vec::new(),
            properties: None,
        };
        let target = Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: "t".into(),
        });
        Publication::alone(
            Entry::new(UnixMs(0), message),
            target,
            ticket,
            &Arc::default(),
            i64::MAX,
        )
    }

    /// Plays a broker that refuses groups with a bad message. Returns the messages that pass, in order, those that are
    /// refused alone, and the number of rounds.
    fn play(count: u64, bad: &BTreeSet<u64>) -> (Vec<u64>, BTreeSet<u64>, usize) {
        let mut suspects = SuspectGroups::default();
        for ticket in 0..count {
            suspects.refused(publication(ticket));
        }
        suspects.regroup();
        let mut passed = Vec::new();
        let mut dead = BTreeSet::new();
        let mut rounds = 0;
        while !suspects.is_empty() {
            rounds += 1;
            let group = suspects.next_group();
            let tickets: Vec<u64> = group.iter().map(|one| one.ticket().batch).collect();
            if !tickets.iter().any(|ticket| bad.contains(ticket)) {
                passed.extend(tickets);
            } else if let [alone] = tickets[..] {
                dead.insert(alone);
            } else {
                for publication in group {
                    suspects.refused(publication);
                }
            }
            suspects.regroup();
        }
        (passed, dead, rounds)
    }

    #[test]
    fn only_culprits_are_refused_and_few_of_them_cost_few_round_trips() {
        for (bad, most) in [
            (BTreeSet::new(), 12),
            (BTreeSet::from([0]), 40),
            (BTreeSet::from([500]), 40),
            (BTreeSet::from([1999]), 40),
            (BTreeSet::from([7, 8, 900]), 100),
            ((0..2000).step_by(2).collect(), 5000),
            ((0..2000).collect(), 4100),
        ] {
            let (passed, dead, rounds) = play(2000, &bad);
            assert_eq!(dead, bad);
            let good: Vec<u64> = (0..2000).filter(|ticket| !bad.contains(ticket)).collect();
            assert_eq!(passed, good, "in order");
            assert!(rounds <= most, "{} bad: {rounds} rounds", bad.len());
        }
    }
}
