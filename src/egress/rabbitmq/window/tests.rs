use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::domain::{Entry, Message, Origin, RoutingKey, Target, UnixMs};

const DEADLINE_US: i64 = CONFIRM_DEADLINE.as_micros() as i64;

fn publication(ticket: u64) -> Publication {
    let message = Message {
        origin: Origin::Rabbitmq,
        key: None,
        body: None,
        headers: vec![],
        properties: None,
    };
    let entry = Entry::new(UnixMs(0), message);
    let target = Arc::new(Target::Rabbitmq {
        connection: String::new(),
        exchange: String::new(),
        routing_key: RoutingKey::Key,
    });
    Publication::alone(entry, target, ticket, &Arc::default(), 0)
}

/// Enters publications of these bodies; each was published with its ticket as message id.
fn window(bodies: &[&'static str]) -> ConfirmWindow {
    let mut window = ConfirmWindow::default();
    for (ticket, body) in bodies.iter().enumerate() {
        let body = Bytes::from_static(body.as_bytes());
        window.enter(publication(ticket as u64), "key".into(), body, 0);
    }
    window
}

fn properties(id: u64) -> BasicProperties {
    BasicProperties::default().with_message_id(id.to_string().into())
}

#[expect(clippy::unnecessary_wraps, reason = "the window takes such a function")]
fn own_properties(publication: &Publication) -> Option<BasicProperties> {
    Some(properties(publication.ticket().batch))
}

fn mark_returned(window: &mut ConfirmWindow, body: &str, properties: &BasicProperties) -> bool {
    let returned = ReturnedMessage {
        routing_key: "key",
        body: body.as_bytes(),
        properties,
        text: "no route".into(),
    };
    window.mark_returned(returned, own_properties)
}

fn letter(verdict: &Verdict) -> char {
    match verdict {
        Verdict::Confirmed(_) => 'c',
        Verdict::Unknown { .. } | Verdict::Interrupted { .. } => '?',
        Verdict::Refused {
            reason: Refusal::Unroutable,
            ..
        } => 'u',
        Verdict::Refused { .. } => 'n',
        Verdict::NotTried | Verdict::Expired => '-',
    }
}

/// The verdicts while the broker has returned so many messages.
fn judged(window: &mut ConfirmWindow, returned: u64) -> String {
    std::iter::from_fn(|| window.judge(returned, own_properties))
        .map(|(publication, verdict)| format!("{}{}", publication.ticket().batch, letter(&verdict)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn abandoned(window: &mut ConfirmWindow, returned: u64) -> String {
    let mut all = String::new();
    for one in window.abandon(returned, 0, own_properties) {
        all.push(one.verdict.as_ref().map_or('.', letter));
    }
    all
}

#[test]
fn each_is_judged_by_its_own_answer() {
    let mut window = window(&["a", "b", "c"]);
    window.record_answer(2, BrokerAnswer::Ack, 0);
    window.record_answer(1, BrokerAnswer::Nack, 0);
    assert_eq!(judged(&mut window, 0), "2c 1?");
    window.record_answer(0, BrokerAnswer::Ack, 0);
    assert_eq!(judged(&mut window, 0), "0c");
    assert_eq!((window.next_number(), window.owes_answers()), (3, false));
}

#[test]
fn none_is_judged_while_a_returned_message_is_on_its_way() {
    let mut window = window(&["a", "b", "c"]);
    window.record_answer(1, BrokerAnswer::Ack, 0);
    window.record_answer(2, BrokerAnswer::Ack, 0);
    assert_eq!(judged(&mut window, 1), "");
    assert!(mark_returned(&mut window, "b", &properties(1)));
    assert_eq!(judged(&mut window, 1), "1u 2c");
}

#[test]
fn a_return_is_recognised_by_its_properties_then_by_its_body() {
    let mut window = window(&["same", "same", "other"]);
    assert!(mark_returned(&mut window, "same", &properties(1)));
    // The properties differ, but only one publication has this body.
    assert!(mark_returned(&mut window, "other", &properties(99)));
    for number in 0..3 {
        window.record_answer(number, BrokerAnswer::Ack, 0);
    }
    assert_eq!(judged(&mut window, 2), "0c 1u 2u");
}

#[test]
fn what_cannot_be_told_apart_is_not_called_confirmed() {
    let mut window = window(&["same", "same", "other"]);
    assert!(!mark_returned(&mut window, "same", &properties(99)));
    for number in 0..3 {
        window.record_answer(number, BrokerAnswer::Ack, 0);
    }
    assert_eq!(judged(&mut window, 1), "0? 1? 2c");
    let mut window = self::window(&["a", "b"]);
    assert!(!mark_returned(
        &mut window,
        "never published",
        &properties(0)
    ));
    for number in 0..2 {
        window.record_answer(number, BrokerAnswer::Ack, 0);
    }
    assert_eq!(judged(&mut window, 1), "0? 1?");
}

#[test]
fn a_lost_channel_leaves_what_the_broker_has_answered() {
    let channel = || {
        let mut window = window(&["a", "b", "c", "d", "e"]);
        window.record_answer(1, BrokerAnswer::Nack, 0);
        window.record_answer(2, BrokerAnswer::Ack, 0);
        assert!(mark_returned(&mut window, "d", &properties(3)));
        window
    };
    assert_eq!(abandoned(&mut channel(), 1), ".?cu.");
    assert_eq!(
        abandoned(&mut channel(), 2),
        ".?.u.",
        "c's return may have been on its way"
    );
    let read: Vec<_> = channel()
        .abandon(1, 0, own_properties)
        .into_iter()
        .map(|one| one.was_read)
        .collect();
    assert_eq!(read, [true, true, true, false, false]);
    let long_ago = channel().abandon(1, SETTLED_US, own_properties);
    assert!(
        long_ago.iter().all(|one| one.was_read),
        "what hangs for long is not what closed the channel"
    );
}

#[test]
fn one_that_is_overdue_keeps_its_share_until_it_is_answered() {
    let mut window = window(&["a", "b"]);
    window.enter(publication(2), "well".into(), Bytes::new(), 1);
    window.record_answer(1, BrokerAnswer::Ack, 0);
    assert_eq!(judged(&mut window, 0), "1c");
    assert!(
        window
            .take_overdue(DEADLINE_US - 1, own_properties)
            .is_none()
    );
    let overdue = window.take_overdue(DEADLINE_US, own_properties);
    let (publication, verdict, key) = overdue.expect("it is overdue");
    let expected = "no confirm within 30 s for routing key \"key\"";
    assert!(matches!(verdict, Verdict::Unknown { error } if error.as_str() == expected));
    assert_eq!((publication.ticket().batch, key), (0, Some("key".into())));
    assert!(window.take_overdue(DEADLINE_US, own_properties).is_none());
    window.record_answer(2, BrokerAnswer::Ack, 0);
    assert_eq!(judged(&mut window, 0), "2c");
    assert_eq!((window.is_empty(), window.owes_answers()), (true, true));
    window.released.clear();
    window.record_answer(0, BrokerAnswer::Ack, 0);
    assert!(judged(&mut window, 1).is_empty() && window.owes_answers());
    assert_eq!(judged(&mut window, 0), "");
    let keys: &[Text] = &["key".into()];
    assert_eq!(
        (&window.recovered[..], window.owes_answers()),
        (keys, false)
    );
    assert_eq!(&window.released[..], keys);
}

#[test]
fn a_late_return_is_that_of_the_overdue_one() {
    let mut window = window(&["same", "same"]);
    assert!(window.take_overdue(DEADLINE_US, own_properties).is_some());
    window.enter(publication(2), "key".into(), "same".into(), DEADLINE_US);
    window.record_answer(0, BrokerAnswer::Ack, 0);
    assert!(mark_returned(&mut window, "same", &properties(0)));
    window.record_answer(2, BrokerAnswer::Ack, 0);
    assert_eq!(judged(&mut window, 1), "2c");
}

#[test]
fn what_was_published_last_may_be_the_reason_for_the_end_of_the_channel() {
    let mut window = window(&["a", "b", "c"]);
    assert!(!window.is_settled(0));
    window.record_answer(1, BrokerAnswer::Ack, 0);
    assert!(!window.is_settled(0));
    assert!(
        window.is_settled(SETTLED_US),
        "the broker would have closed the channel"
    );
    window.record_answer(2, BrokerAnswer::Nack, 0);
    assert!(window.is_settled(0), "a was read before c");
}

/// What the broker does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ack,
    Nack,
    Return,
    Hang,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Publishes a message of one of a few contents. `None`: it has an id of its own.
    Publish(Fate, Option<u8>),
    /// The broker returns the next message that it returns.
    Return,
    /// The broker answers one of those that it can answer.
    Answer(usize),
    /// The lane takes one of the answers that are there.
    Take(usize),
    Judge,
    /// Hanging messages are answered from now on.
    Recover,
    TimeOut,
}

#[derive(Clone, Debug)]
struct Published {
    fate: Fate,
    content: Option<u8>,
    returned: bool,
    answered: bool,
    /// The lane has seen the answer.
    seen: bool,
    verdicts: Vec<Verdict>,
}

/// A broker, the client library, and the lane with its window.
#[derive(Default)]
struct World {
    window: ConfirmWindow,
    published: Vec<Published>,
    now_us: i64,
    /// Counted by the guard.
    counted: u64,
    /// Returned messages that the client library has and no confirm has brought.
    waiting: VecDeque<usize>,
    /// Completed confirms that the lane has not taken, with a returned message each.
    confirms: Vec<(usize, Option<usize>)>,
    /// A returned message of those that are equal could not be matched.
    in_doubt: bool,
}

fn id_of(published: &[Published], ticket: usize) -> u64 {
    published[ticket]
        .content
        .map_or(ticket as u64, |content| 1_000_000 + u64::from(content))
}

impl World {
    fn play(&mut self, event: Event) {
        match event {
            Event::Publish(fate, content) => {
                let ticket = self.published.len() as u64;
                let body = Bytes::from_static(b"same");
                self.window
                    .enter(publication(ticket), "key".into(), body, self.now_us);
                self.published.push(Published {
                    fate,
                    content,
                    returned: false,
                    answered: false,
                    seen: false,
                    verdicts: vec![],
                });
            }
            Event::Return => {
                let next = self
                    .published
                    .iter()
                    .position(|one| one.fate == Fate::Return && !one.returned);
                if let Some(next) = next {
                    self.published[next].returned = true;
                    self.counted += 1;
                    self.waiting.push_back(next);
                }
            }
            Event::Answer(pick) => {
                let can = |one: &Published| match one.fate {
                    Fate::Return => one.returned,
                    Fate::Hang => false,
                    Fate::Ack | Fate::Nack => true,
                };
                let ready: Vec<_> = (0..self.published.len())
                    .filter(|&at| !self.published[at].answered && can(&self.published[at]))
                    .collect();
                if let Some(&at) = ready.get(pick % ready.len().max(1)) {
                    self.published[at].answered = true;
                    let returned = self.waiting.pop_front();
                    self.confirms.push((at, returned));
                }
            }
            Event::Take(pick) => {
                if self.confirms.is_empty() {
                    return;
                }
                let (at, returned) = self.confirms.remove(pick % self.confirms.len());
                let nack = self.published[at].fate == Fate::Nack;
                let answer = if nack {
                    BrokerAnswer::Nack
                } else {
                    BrokerAnswer::Ack
                };
                self.window.record_answer(at as u64, answer, 0);
                self.published[at].seen = true;
                if let Some(returned) = returned {
                    let published = &self.published;
                    let returned_at = returned;
                    let properties = properties(id_of(published, returned));
                    let returned = ReturnedMessage {
                        routing_key: "key",
                        body: b"same",
                        properties: &properties,
                        text: "no route".into(),
                    };
                    let found = self
                        .window
                        .mark_returned(returned, properties_in(published));
                    let is_unique = published[returned_at].content.is_none();
                    assert!(found || !is_unique, "it was published as it was returned");
                    self.in_doubt |= !found;
                }
            }
            Event::Judge => {
                let counted = self.counted;
                while let Some((publication, verdict)) =
                    self.window.judge(counted, properties_in(&self.published))
                {
                    let one = &mut self.published[publication.ticket().batch as usize];
                    let certain = !self.in_doubt
                        && one.content.is_none()
                        && matches!(one.fate, Fate::Ack | Fate::Hang);
                    assert!(
                        !certain || verdict == Verdict::Confirmed(None),
                        "{verdict:?} of {one:?}"
                    );
                    one.verdicts.push(verdict);
                }
            }
            Event::Recover => {
                for one in &mut self.published {
                    if one.fate == Fate::Hang {
                        one.fate = Fate::Ack;
                    }
                }
            }
            Event::TimeOut => {
                self.now_us += DEADLINE_US;
                while let Some((publication, verdict, _)) = self
                    .window
                    .take_overdue(self.now_us, properties_in(&self.published))
                {
                    self.published[publication.ticket().batch as usize]
                        .verdicts
                        .push(verdict);
                }
            }
        }
    }

    fn lose_channel(&mut self) {
        let is_clear = self.window.matched == self.counted && !self.in_doubt;
        for one in self
            .window
            .abandon(self.counted, 0, properties_in(&self.published))
        {
            let published = &mut self.published[one.publication.ticket().batch as usize];
            let certain = published.content.is_none() && published.fate == Fate::Ack;
            if certain && published.seen && is_clear {
                assert_eq!(one.verdict, Some(Verdict::Confirmed(None)), "{published:?}");
            }
            let verdict = one.verdict.unwrap_or_else(|| unknown("lost"));
            published.verdicts.push(verdict);
        }
    }

    fn check(&self) {
        for (ticket, one) in self.published.iter().enumerate() {
            assert_eq!(one.verdicts.len(), 1, "{ticket}: {one:?}");
            if one.content.is_none() && one.verdicts[0] == Verdict::Confirmed(None) {
                assert!(one.answered && one.fate == Fate::Ack, "{ticket}: {one:?}");
            }
        }
        // Of equal messages no more are confirmed than were taken.
        for content in 0..3 {
            let equal = || {
                self.published
                    .iter()
                    .filter(|one| one.content == Some(content))
            };
            let confirmed = equal()
                .filter(|one| one.verdicts[0] == Verdict::Confirmed(None))
                .count();
            let taken = equal()
                .filter(|one| one.answered && one.fate == Fate::Ack)
                .count();
            assert!(confirmed <= taken, "{confirmed} of {taken}");
        }
    }
}

fn properties_in(published: &[Published]) -> impl Fn(&Publication) -> Option<BasicProperties> {
    |publication| {
        Some(properties(id_of(
            published,
            publication.ticket().batch as usize,
        )))
    }
}

fn event() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        4 => Just(Fate::Ack),
        1 => Just(Fate::Nack),
        2 => Just(Fate::Return),
        2 => Just(Fate::Hang),
    ];
    prop_oneof![
        6 => (fate, prop::option::of(0_u8..3)).prop_map(|(fate, content)| Event::Publish(fate, content)),
        2 => Just(Event::Return),
        6 => any::<usize>().prop_map(Event::Answer),
        6 => any::<usize>().prop_map(Event::Take),
        3 => Just(Event::Judge),
        1 => Just(Event::Recover),
        1 => Just(Event::TimeOut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_publication_gets_one_verdict_and_a_true_one(
        events in prop::collection::vec(event(), 1..80),
        is_lost in any::<bool>(),
    ) {
        let mut world = World::default();
        for event in events {
            world.play(event);
        }
        if is_lost {
            world.lose_channel();
            world.check();
            return Ok(());
        }
        // The broker ends what it has begun, and the lane takes all of it.
        world.play(Event::Recover);
        for _ in 0..world.published.len() {
            world.play(Event::Return);
        }
        for _ in 0..world.published.len() {
            world.play(Event::Answer(0));
        }
        while !world.confirms.is_empty() {
            world.play(Event::Take(0));
        }
        world.play(Event::Judge);
        prop_assert!(world.window.is_empty() && !world.window.owes_answers());
        prop_assert!(world.window.late.is_empty());
        world.check();
    }
}
