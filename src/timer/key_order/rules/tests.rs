//! Tests of key queues, without a store.

use super::*;

const FAR: UnixMs = UnixMs(1_000_000);

/// A key queue and the number of its polls.
struct QueueBench(KeyQueue, u64);

impl QueueBench {
    fn new() -> Self {
        let mut key_queue = KeyQueue::new("me".into());
        key_queue.took_over(Vec::new());
        Self(key_queue, 0)
    }

    fn enter(&mut self, key: &'static str, due: i64, slot: u64) -> EntryPlace {
        let place = EntryPlace { slot, entry: 0 };
        self.0.enter(
            key.into(),
            OrderPosition {
                due: UnixMs(due),
                sequence: slot,
            },
            place,
        );
        place
    }

    fn poll(&mut self, began: i64, left: Option<OrderPosition>) {
        self.1 += 1;
        self.0.polled(
            StorePoll {
                number: self.1,
                began: UnixMs(began),
            },
            left,
        );
    }

    /// The next actions, with a lookahead of 250 ms. Fresh sequence numbers begin at 1000.
    fn actions(&mut self, now: i64) -> Vec<KeyAction> {
        let context = MoveContext {
            soon: UnixMs(now + 250),
            sequence_numbers: &|_| 1000,
        };
        std::iter::from_fn(|| self.0.next(&context)).collect()
    }

    fn freed(&mut self) -> Vec<Bytes> {
        let freed = self.0.take_freed();
        freed.into_iter().map(|(key, _)| key).collect()
    }

    fn failed(&mut self, key: &'static str, due: UnixMs) {
        self.0.failed(&key.into(), due, 1000);
        self.0.moved(&key.into(), self.1);
    }
}

fn hand(place: EntryPlace) -> KeyAction {
    KeyAction::HandOver(place)
}

#[test]
fn one_of_a_key_at_a_time_in_order_and_only_what_a_poll_has_seen_due() {
    let mut key_queue = QueueBench::new();
    let b = key_queue.enter("k", 20, 2);
    let a = key_queue.enter("k", 10, 1);
    let other = key_queue.enter("other", 15, 3);
    assert_eq!(key_queue.actions(30), [], "no poll has seen it");
    assert_eq!(key_queue.0.next_poll(), Some(UnixMs(10)));
    key_queue.poll(15, None);
    assert_eq!(key_queue.0.next_poll(), Some(UnixMs(20)));
    assert_eq!(key_queue.actions(30), [hand(a), hand(other)]);
    key_queue.0.done(&"k".into());
    assert_eq!(
        key_queue.actions(30),
        [],
        "the next one is due, but a poll has to find out what came before it"
    );
    key_queue.poll(20, None);
    assert_eq!(key_queue.actions(30), [hand(b)]);
}

#[test]
fn one_that_comes_before_those_that_wait_goes_before_them() {
    let mut key_queue = QueueBench::new();
    let later = key_queue.enter("k", 20, 1);
    let first = key_queue.enter("k", 12, 2);
    key_queue.poll(25, None);
    assert_eq!(key_queue.actions(25), [hand(first)]);
    key_queue.0.done(&"k".into());
    assert_eq!(key_queue.actions(25), [hand(later)]);
}

#[test]
fn nothing_passes_by_what_a_poll_left_in_the_store() {
    let mut key_queue = QueueBench::new();
    let a = key_queue.enter("k", 10, 1);
    let b = key_queue.enter("l", 10, 5);
    key_queue.poll(
        20,
        Some(OrderPosition {
            due: UnixMs(10),
            sequence: 3,
        }),
    );
    assert_eq!(key_queue.actions(20), [hand(a)]);
    assert!(!key_queue.0.is_stuck(), "one is on its way");
    key_queue.0.done(&"k".into());
    assert_eq!(key_queue.actions(20), []);
    assert!(key_queue.0.is_stuck(), "nothing goes until more is claimed");
    key_queue.poll(21, None);
    assert_eq!(key_queue.actions(21), [hand(b)]);
}

#[test]
fn what_waits_for_a_short_retry_stays_and_goes_after_it() {
    let mut key_queue = QueueBench::new();
    let first = key_queue.enter("k", 10, 1);
    let second = key_queue.enter("k", 11, 2);
    let third = key_queue.enter("k", 120, 3);
    key_queue.poll(20, None);
    assert_eq!(key_queue.actions(20), [hand(first)]);
    key_queue.failed("k", UnixMs(100));
    key_queue.poll(21, None);
    assert_eq!(key_queue.actions(21), []);
    assert_eq!(
        key_queue.0.next_poll(),
        Some(UnixMs(100)),
        "a poll is due when it is"
    );
    // The failed message has come back.
    key_queue.0.enter(
        "k".into(),
        OrderPosition {
            due: UnixMs(100),
            sequence: 1000,
        },
        EntryPlace { slot: 9, entry: 0 },
    );
    key_queue.poll(130, None);
    assert_eq!(
        key_queue.actions(130),
        [hand(EntryPlace { slot: 9, entry: 0 })]
    );
    for expected in [second, third] {
        key_queue.0.done(&"k".into());
        assert_eq!(key_queue.actions(130), [hand(expected)]);
    }
    assert_eq!(key_queue.freed(), [Bytes::from("k")]);
}

#[test]
fn what_waits_for_a_long_one_goes_behind_it_bundle_by_bundle() {
    let mut key_queue = QueueBench::new();
    let first = key_queue.enter("k", 10, 1);
    let entries = [(11, 2, 0), (12, 2, 1), (13, 3, 0), (14, 2, 2)];
    for (due, slot, entry) in entries {
        let position = OrderPosition {
            due: UnixMs(due),
            sequence: due as u64,
        };
        key_queue
            .0
            .enter("k".into(), position, EntryPlace { slot, entry });
    }
    key_queue.poll(20, None);
    assert_eq!(key_queue.actions(20), [hand(first)]);
    key_queue.failed("k", FAR);
    let at = |sequence| OrderPosition { due: FAR, sequence };
    assert_eq!(
        key_queue.actions(20),
        [KeyAction::MoveBehind(2, vec![(0, at(1001)), (1, at(1002))])]
    );
    assert_eq!(
        key_queue.actions(20),
        [],
        "the next only once the store has these"
    );
    key_queue.0.moved(&"k".into(), 1);
    assert_eq!(
        key_queue.actions(20),
        [KeyAction::MoveBehind(3, vec![(0, at(1003))])]
    );
    key_queue.0.moved(&"k".into(), 1);
    assert_eq!(
        key_queue.actions(20),
        [KeyAction::MoveBehind(2, vec![(2, at(1004))])]
    );
    key_queue.0.moved(&"k".into(), 1);
    assert_eq!(
        key_queue.0.hold_of(&"k".into()),
        Some(HeldKey {
            due: FAR,
            from: 1000,
            to: 1004
        })
    );
    // A message that nobody had claimed goes behind the others when it is due, and not before.
    let late = key_queue.enter("k", 40, 7);
    assert_eq!(key_queue.actions(20), []);
    key_queue.poll(40, None);
    assert_eq!(
        key_queue.actions(40),
        [KeyAction::MoveBehind(
            late.slot,
            vec![(late.entry, at(1005))]
        )]
    );
}

#[test]
fn a_hold_is_over_only_when_a_later_poll_has_left_nothing_of_it() {
    let mut key_queue = QueueBench::new();
    let first = key_queue.enter("k", 10, 1);
    let later = key_queue.enter("k", 60, 2);
    key_queue.poll(20, None);
    assert_eq!(key_queue.actions(20), [hand(first)]);
    // The store is told after the next poll has begun, so that poll may not have seen it.
    key_queue.0.failed(&"k".into(), UnixMs(50), 1000);
    key_queue.0.moved(&"k".into(), 2);
    key_queue.poll(70, None);
    assert_eq!(key_queue.actions(70), []);
    assert_eq!(
        key_queue.0.next_poll(),
        Some(UnixMs(50)),
        "another one is needed, now"
    );
    key_queue.poll(
        71,
        Some(OrderPosition {
            due: UnixMs(50),
            sequence: 1000,
        }),
    );
    assert_eq!(key_queue.actions(71), [], "it was left there");
    key_queue.poll(72, None);
    assert_eq!(
        key_queue.actions(72),
        [hand(later)],
        "it was cancelled, or moved"
    );
}

#[test]
fn a_successor_knows_what_is_held() {
    let mut key_queue = QueueBench::new();
    let hold = HeldKey {
        due: FAR,
        from: 500,
        to: 600,
    };
    key_queue.0.took_over(vec![("k".into(), hold)]);
    let unclaimed = key_queue.enter("k", 10, 1);
    let other = key_queue.enter("l", 11, 2);
    key_queue.poll(20, None);
    let behind = KeyAction::MoveBehind(
        unclaimed.slot,
        vec![(
            0,
            OrderPosition {
                due: FAR,
                sequence: 1000,
            },
        )],
    );
    assert_eq!(key_queue.actions(20), [behind, hand(other)]);
    key_queue.0.moved(&"k".into(), 1);
    assert_eq!(key_queue.actions(20), []);
    key_queue.poll(FAR.0, None);
    assert_eq!(
        key_queue.freed(),
        [Bytes::from("k")],
        "all of it has gone otherwise"
    );
}

#[test]
fn one_claim_tells_of_so_many_freed_keys_and_the_next_one_of_the_rest() {
    let mut key_queue = QueueBench::new();
    let key = |n: usize| Bytes::from(format!("k{n}"));
    let held = |n| {
        (
            key(n),
            HeldKey {
                due: UnixMs(10),
                from: 500,
                to: 600,
            },
        )
    };
    key_queue
        .0
        .took_over((0..MAX_FREED_KEYS + 2).map(held).collect());
    key_queue.poll(20, None);
    let first = key_queue.0.take_freed();
    let rest = key_queue.0.take_freed();
    assert_eq!((first.len(), rest.len()), (MAX_FREED_KEYS, 2));
    let all: HashMap<Bytes, HeldKey> = first.into_iter().chain(rest).collect();
    assert_eq!(all, (0..MAX_FREED_KEYS + 2).map(held).collect());
    assert_eq!(key_queue.0.take_freed(), []);
}

/// A claim that takes its time, and polls that find the store empty meanwhile.
#[test]
fn a_poll_that_finds_nothing_while_a_claim_is_on_its_way_lets_nothing_pass_what_that_claim_brings()
{
    let mut key_queue = QueueBench::new();
    let first = key_queue.enter("k", 10, 1);
    let second = key_queue.enter("k", 11, 2);
    let other = key_queue.enter("other", 18, 3);
    key_queue.poll(12, None);
    assert_eq!(key_queue.actions(12), [hand(first)]);
    key_queue.failed("k", UnixMs(15));
    // This poll sees the failed message, and a message of another key. The claim takes both.
    key_queue.0.claiming = true;
    let claimed_by = StorePoll {
        number: key_queue.1 + 1,
        began: UnixMs(20),
    };
    for began in 21..25 {
        key_queue.1 = claimed_by.number + 1;
        key_queue.0.found_nothing(StorePoll {
            number: key_queue.1,
            began: UnixMs(began),
        });
        assert_eq!(
            key_queue.actions(began),
            [],
            "what is claimed has not come yet"
        );
    }
    let before = key_queue.enter("other", 17, 4);
    let again = EntryPlace { slot: 9, entry: 0 };
    key_queue.0.enter(
        "k".into(),
        OrderPosition {
            due: UnixMs(15),
            sequence: 1000,
        },
        again,
    );
    key_queue.0.claiming = false;
    key_queue.0.polled(claimed_by, None);
    assert_eq!(key_queue.actions(25), [hand(again), hand(before)]);
    for key in ["k", "other"] {
        key_queue.0.done(&key.into());
    }
    key_queue.0.found_nothing(StorePoll {
        number: key_queue.1 + 1,
        began: UnixMs(26),
    });
    assert_eq!(key_queue.actions(26), [hand(second), hand(other)]);
}
