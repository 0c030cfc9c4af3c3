//! Messages that wait in a lane, as streams.
//!
//! A stream is what leaves in order: the passing messages of one submitter, or the delayed messages of one routing key.
//! New messages form one line. A message whose routing key has no share starts a stream that is held, and the later
//! messages of the stream line up behind it. So a routing key without a share delays its own streams only. While no
//! stream is held, a message costs one push and one pop.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::domain::{RoutingKey, Target, Text, Verdict};
use crate::egress::Publication;

/// Held streams that are tried in each round, besides those that are likely to go on. All are tried in turn.
const STREAMS_PER_ROUND: usize = 16;

/// What may be done with a message now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Publish,
    /// Its routing key has no share: the messages of other streams may go.
    NoShare,
    /// No message may go.
    Stop,
}

/// The next message to deal with.
#[derive(Debug)]
pub(super) enum NextMessage {
    Publish(Publication),
    /// It is too late to send it: its verdict.
    TooLate(Publication, Verdict),
}

/// Name of a stream.
#[derive(Debug)]
enum StreamName {
    /// The address of a submitter's inbox.
    Passing(usize),
    Delayed(Bytes),
}

/// The messages that wait in one lane.
#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    /// New messages, in the order submitted.
    new: VecDeque<Publication>,
    /// Held streams of passing messages, by the address of their submitter's inbox. None is empty.
    passing: BTreeMap<usize, VecDeque<Publication>>,
    /// Held streams of delayed messages, by routing key. None is empty.
    delayed: BTreeMap<Bytes, VecDeque<Publication>>,
    /// Held streams that are still to be tried in this round, from the last to the first.
    to_try: Vec<StreamName>,
    /// Routing key of the stream with which the last round ended.
    cursor: Bytes,
}

impl LaneQueue {
    pub(super) fn push_all(&mut self, publications: Vec<Publication>) {
        self.new.extend(publications);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.passing.is_empty() && self.delayed.is_empty()
    }

    /// Begins a round: held streams are tried anew. Those of routing keys that were answered go first. `all` tries all
    /// streams, otherwise some of the delayed ones are tried in turn.
    pub(super) fn begin_round(&mut self, answered: &[Text], all: bool) {
        self.to_try.clear();
        if self.delayed.is_empty() && self.passing.is_empty() {
            return;
        }
        let count = if all {
            self.delayed.len()
        } else {
            STREAMS_PER_ROUND
        };
        let after = (Bound::Excluded(&self.cursor), Bound::Unbounded);
        let until = (Bound::Unbounded, Bound::Included(&self.cursor));
        let in_turn = self.delayed.range::<Bytes, _>(after);
        let in_turn = in_turn.chain(self.delayed.range::<Bytes, _>(until));
        let in_turn = in_turn.map(|(key, _)| StreamName::Delayed(key.clone()));
        self.to_try.extend(in_turn.take(count));
        if let Some(StreamName::Delayed(last)) = self.to_try.last() {
            self.cursor = last.clone();
        }
        let passing = self.passing.keys().copied();
        self.to_try.extend(passing.map(StreamName::Passing));
        let answered = answered.iter().map(|key| key.bytes().clone());
        self.to_try.extend(answered.map(StreamName::Delayed));
    }

    /// Takes out the next message of this round. `None` if there is none, or if none may go.
    pub(super) fn next(
        &mut self,
        now_us: i64,
        mut admit: impl FnMut(&Publication) -> Admission,
    ) -> Option<NextMessage> {
        while let Some(name) = self.to_try.last() {
            let stream = match name {
                StreamName::Passing(submitter) => self.passing.get(submitter),
                StreamName::Delayed(key) => self.delayed.get(key),
            };
            let Some(front) = stream.and_then(VecDeque::front) else {
                self.to_try.pop();
                continue;
            };
            if let Some(verdict) = front.too_late(now_us) {
                return Some(NextMessage::TooLate(self.pop_tried()?, verdict));
            }
            match admit(front) {
                Admission::Publish => return self.pop_tried().map(NextMessage::Publish),
                Admission::NoShare => drop(self.to_try.pop()),
                Admission::Stop => return None,
            }
        }
        loop {
            let front = self.new.front()?;
            if let Some(verdict) = front.too_late(now_us) {
                return Some(NextMessage::TooLate(self.new.pop_front()?, verdict));
            }
            if self.stream_of(front).is_some() {
                self.hold_first();
                continue;
            }
            match admit(front) {
                Admission::Publish => return self.new.pop_front().map(NextMessage::Publish),
                Admission::NoShare => self.hold_first(),
                Admission::Stop => return None,
            }
        }
    }

    /// The held stream that a message belongs to.
    fn stream_of(&self, publication: &Publication) -> Option<&VecDeque<Publication>> {
        if publication.delay_headers().is_some() {
            self.delayed.get(routing_key(publication))
        } else {
            self.passing.get(&submitter(publication))
        }
    }

    /// Moves the first new message to the end of its stream.
    fn hold_first(&mut self) {
        let Some(first) = self.new.pop_front() else {
            return;
        };
        let stream = if first.delay_headers().is_none() {
            self.passing.entry(submitter(&first)).or_default()
        } else if let Some(stream) = self.delayed.get_mut(routing_key(&first)) {
            stream
        } else {
            let key = Bytes::copy_from_slice(routing_key(&first));
            self.delayed.entry(key).or_default()
        };
        stream.push_back(first);
    }

    /// Takes out the first message of the stream that is tried.
    fn pop_tried(&mut self) -> Option<Publication> {
        match self.to_try.last()? {
            StreamName::Passing(submitter) => {
                let stream = self.passing.get_mut(submitter)?;
                let first = stream.pop_front();
                if stream.is_empty() {
                    self.passing.remove(submitter);
                }
                first
            }
            StreamName::Delayed(key) => {
                let stream = self.delayed.get_mut(key)?;
                let first = stream.pop_front();
                if stream.is_empty() {
                    self.delayed.remove(key);
                }
                first
            }
        }
    }

    /// Takes out all messages that it is too late to send, with their verdicts.
    pub(super) fn take_late(&mut self, now_us: i64) -> Vec<(Publication, Verdict)> {
        let mut late = Vec::new();
        let mut keep = |publication: &Publication| {
            let verdict = publication.too_late(now_us);
            let is_kept = verdict.is_none();
            late.extend(verdict.map(|verdict| (publication.clone(), verdict)));
            is_kept
        };
        self.new.retain(&mut keep);
        self.passing.retain(|_, stream| {
            stream.retain(&mut keep);
            !stream.is_empty()
        });
        self.delayed.retain(|_, stream| {
            stream.retain(&mut keep);
            !stream.is_empty()
        });
        late
    }

    /// Takes out all messages: first those of held streams.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Publication> + use<> {
        let passing = std::mem::take(&mut self.passing).into_values();
        let delayed = std::mem::take(&mut self.delayed).into_values();
        let new = std::mem::take(&mut self.new);
        passing.chain(delayed).flatten().chain(new)
    }
}

fn submitter(publication: &Publication) -> usize {
    Arc::as_ptr(&publication.batch.verdicts).addr()
}

/// The routing key that a message will be published with. It need not be UTF-8: such a message is refused later.
pub(super) fn routing_key(publication: &Publication) -> &[u8] {
    if let Some(key) = fixed_key(&publication.batch.target) {
        return key.as_bytes();
    }
    let key = publication.entry().message.key.as_deref();
    key.unwrap_or_default()
}

/// The routing key of all messages to a target, if it is always the same.
pub(super) fn fixed_key(target: &Target) -> Option<&str> {
    match target {
        Target::Rabbitmq {
            routing_key: RoutingKey::Fixed(key),
            ..
        } => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::{UnixMs, testing};
    use crate::egress::{PublishBatch, VerdictInbox};

    const KEYS: [&str; 4] = ["a", "b", "c", "d"];

    /// A message for this routing key. `submitter`: it passes through.
    fn publication(
        ticket: u64,
        key: usize,
        submitter: Option<&Arc<VerdictInbox>>,
        not_after_us: i64,
    ) -> Publication {
        let target = Arc::new(Target::Rabbitmq {
            connection: String::new(),
            exchange: String::new(),
            routing_key: RoutingKey::Fixed(KEYS[key].to_owned()),
        });
        let entry = testing::entry(UnixMs(0), b"body");
        if let Some(submitter) = submitter {
            return Publication::alone(entry, target, ticket, submitter, not_after_us);
        }
        let batch = PublishBatch {
            entries: Arc::new(vec![entry]),
            ids: vec!["id".into()],
            expiries: 0,
            spans: Vec::new(),
            target,
            clock: None,
            copies: false,
            number: ticket,
            verdicts: Arc::default(),
            listener: None,
            not_after_us: not_after_us.into(),
        };
        Publication {
            batch: Arc::new(batch),
            index: 0,
        }
    }

    /// One round in which these routing keys have a share. Returns what leaves.
    fn round(queue: &mut LaneQueue, open: &BTreeSet<&str>, all: bool) -> Vec<Publication> {
        queue.begin_round(&[], all);
        let mut left = Vec::new();
        let admit = |next: &Publication| {
            let key = std::str::from_utf8(routing_key(next)).expect("a key of the test");
            if open.contains(key) {
                Admission::Publish
            } else {
                Admission::NoShare
            }
        };
        while let Some(next) = queue.next(1, admit) {
            match next {
                NextMessage::Publish(publication) => left.push(publication),
                NextMessage::TooLate(publication, _) => panic!("{}", publication.ticket().batch),
            }
        }
        left
    }

    fn tickets(publications: &[Publication]) -> Vec<u64> {
        publications.iter().map(|one| one.ticket().batch).collect()
    }

    #[test]
    fn a_held_stream_is_passed_by_others_and_goes_on_in_order() {
        let submitters = [(); 2].map(|()| Arc::<VerdictInbox>::default());
        let mut queue = LaneQueue::default();
        let [one, two] = submitters.each_ref();
        queue.push_all(vec![
            publication(0, 0, None, 9),
            publication(1, 1, None, 9),
            publication(2, 0, Some(one), 9),
            publication(3, 1, Some(one), 9),
            publication(4, 1, Some(two), 9),
            publication(5, 0, None, 9),
        ]);
        assert_eq!(tickets(&round(&mut queue, &["b"].into(), false)), [1, 4]);
        queue.push_all(vec![
            publication(6, 1, Some(one), 9),
            publication(7, 1, None, 9),
        ]);
        assert_eq!(tickets(&round(&mut queue, &["b"].into(), false)), [7]);
        let rest = round(&mut queue, &["a", "b"].into(), false);
        assert_eq!(tickets(&rest), [2, 3, 6, 0, 5]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_answered_routing_key_is_tried_first_and_all_are_in_turn() {
        let mut queue = LaneQueue::default();
        let batch: Vec<_> = (0..100)
            .map(|ticket| {
                let mut entry = testing::entry(UnixMs(0), b"body");
                entry.message.key = Some(Bytes::from(format!("{ticket:03}")));
                let one = publication(ticket, 0, None, 9);
                let target = Arc::new(Target::Rabbitmq {
                    connection: String::new(),
                    exchange: String::new(),
                    routing_key: RoutingKey::Key,
                });
                let batch = PublishBatch {
                    entries: Arc::new(vec![entry]),
                    ids: one.batch.ids.clone(),
                    expiries: 0,
                    spans: Vec::new(),
                    target,
                    clock: None,
                    copies: false,
                    number: ticket,
                    verdicts: Arc::default(),
                    listener: None,
                    not_after_us: 9.into(),
                };
                Publication {
                    batch: Arc::new(batch),
                    index: 0,
                }
            })
            .collect();
        queue.push_all(batch);
        assert!(round(&mut queue, &BTreeSet::new(), false).is_empty());
        queue.begin_round(&["042".into()], false);
        let mut tried = Vec::new();
        assert!(
            queue
                .next(1, |next| {
                    tried.push(next.ticket().batch);
                    Admission::NoShare
                })
                .is_none()
        );
        assert_eq!((tried[0], tried.len()), (42, 1 + STREAMS_PER_ROUND));
        let mut seen = BTreeSet::new();
        for _ in 0..7 {
            queue.begin_round(&[], false);
            let next = queue.next(1, |next| {
                seen.insert(next.ticket().batch);
                Admission::NoShare
            });
            assert!(next.is_none());
        }
        assert_eq!(seen.len(), 100);
        assert_eq!(queue.take_all().count(), 100);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_too_late_leaves_from_everywhere() {
        let submitter = Arc::<VerdictInbox>::default();
        let mut queue = LaneQueue::default();
        let all = |first: u64, not_after_us| {
            vec![
                publication(first, 0, None, not_after_us),
                publication(first + 1, 0, Some(&submitter), not_after_us),
            ]
        };
        queue.push_all(all(0, 5));
        queue.push_all(all(2, 9));
        assert!(round(&mut queue, &BTreeSet::new(), false).is_empty());
        queue.push_all(all(4, 5));
        assert!(queue.take_late(4).is_empty());
        let late = queue
            .take_late(5)
            .into_iter()
            .unzip::<_, _, Vec<_>, Vec<_>>();
        assert_eq!(tickets(&late.0), [4, 5, 1, 0]);
        assert!(late.1.iter().all(|verdict| *verdict == Verdict::NotTried));
        queue.push_all(all(6, 5));
        queue.begin_round(&[], false);
        let mut expired = Vec::new();
        while let Some(NextMessage::TooLate(next, _)) = queue.next(9, |_| Admission::Publish) {
            expired.push(next.ticket().batch);
        }
        expired.sort_unstable();
        assert_eq!(expired, [2, 3, 6, 7]);
        assert!(queue.is_empty());
    }

    proptest! {
        #[test]
        fn each_leaves_once_and_in_its_order(
            rounds in prop::collection::vec(
                (
                    prop::collection::vec((0_usize..4, prop::option::of(0_usize..2)), 0..8),
                    prop::collection::btree_set(prop::sample::select(KEYS.to_vec()), 0..4),
                    any::<bool>(),
                ),
                1..12,
            ),
        ) {
            let submitters = [(); 2].map(|()| Arc::<VerdictInbox>::default());
            let mut queue = LaneQueue::default();
            let mut submitted = Vec::new();
            let mut left = Vec::new();
            for (new, open, all) in rounds {
                for (key, submitter) in new {
                    let ticket = submitted.len() as u64;
                    let submitter = submitter.map(|at| &submitters[at]);
                    let one = publication(ticket, key, submitter, i64::MAX);
                    queue.push_all(vec![one.clone()]);
                    submitted.push(one);
                }
                left.extend(round(&mut queue, &open, all));
            }
            left.extend(round(&mut queue, &KEYS.into(), true));
            prop_assert!(queue.is_empty());
            let mut all = tickets(&left);
            for submitter in &submitters {
                let of_it = |one: &&Publication| Arc::ptr_eq(&one.batch.verdicts, submitter);
                prop_assert!(left.iter().filter(of_it).map(|one| one.ticket().batch).is_sorted());
            }
            for key in KEYS {
                let of_it = |one: &&Publication| {
                    one.delay_headers().is_some() && routing_key(one) == key.as_bytes()
                };
                prop_assert!(left.iter().filter(of_it).map(|one| one.ticket().batch).is_sorted());
            }
            all.sort_unstable();
            prop_assert_eq!(all, tickets(&submitted));
        }
    }
}
