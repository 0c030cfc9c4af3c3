//! Lines of keys, without a store.

use super::*;

const FAR: UnixMs = UnixMs(1_000_000);

/// A line and its looks.
struct Bench(Line, u64);

impl Bench {
    fn new() -> Self {
        let mut line = Line::new("me".into());
        line.took_over(Vec::new());
        Self(line, 0)
    }

    fn enter(&mut self, key: &'static str, due: i64, slot: u64) -> Place {
        let place = Place { slot, entry: 0 };
        self.0.enter(key.into(), OrderPosition { due: UnixMs(due), sequence: slot }, place);
        place
    }

    fn look(&mut self, began: i64, left: Option<OrderPosition>) {
        self.1 += 1;
        self.0.looked(Look { number: self.1, began: UnixMs(began) }, left);
    }

    /// What may be done, with a look-ahead of 250 ms; fresh stamps are from 1000 on.
    fn turns(&mut self, now: i64) -> Vec<Turn> {
        let surroundings = Surroundings { soon: UnixMs(now + 250), stamps: &|_| 1000 };
        std::iter::from_fn(|| self.0.next(&surroundings)).collect()
    }

    fn failed(&mut self, key: &'static str, due: UnixMs) {
        self.0.failed(&key.into(), due, 1000);
        self.0.moved(&key.into(), self.1);
    }
}

fn hand(place: Place) -> Turn {
    Turn::Hand(place)
}

#[test]
fn one_of_a_key_at_a_time_in_order_and_only_what_a_look_has_seen_due() {
    let mut line = Bench::new();
    let (b, a) = (line.enter("k", 20, 2), line.enter("k", 10, 1));
    let other = line.enter("other", 15, 3);
    assert_eq!(line.turns(30), [], "no look has seen it");
    assert_eq!(line.0.next_look(), Some(UnixMs(10)));
    line.look(15, None);
    assert_eq!(line.0.next_look(), Some(UnixMs(20)));
    assert_eq!(line.turns(30), [hand(a), hand(other)]);
    line.0.done(&"k".into());
    assert_eq!(line.turns(30), [], "the next one is due, but a look has to find out what came before it");
    line.look(20, None);
    assert_eq!(line.turns(30), [hand(b)]);
}

#[test]
fn one_that_comes_before_those_that_wait_goes_before_them() {
    let mut line = Bench::new();
    let later = line.enter("k", 20, 1);
    let first = line.enter("k", 12, 2);
    line.look(25, None);
    assert_eq!(line.turns(25), [hand(first)]);
    line.0.done(&"k".into());
    assert_eq!(line.turns(25), [hand(later)]);
}

#[test]
fn nothing_passes_by_what_a_look_left_in_the_store() {
    let mut line = Bench::new();
    let (a, b) = (line.enter("k", 10, 1), line.enter("l", 10, 5));
    line.look(20, Some(OrderPosition { due: UnixMs(10), sequence: 3 }));
    assert_eq!(line.turns(20), [hand(a)]);
    assert!(!line.0.is_stuck(), "one is on its way");
    line.0.done(&"k".into());
    assert_eq!(line.turns(20), []);
    assert!(line.0.is_stuck(), "nothing goes until more is claimed");
    line.look(21, None);
    assert_eq!(line.turns(21), [hand(b)]);
}

#[test]
fn what_waits_for_a_short_retry_stays_and_goes_after_it() {
    let mut line = Bench::new();
    let (first, second) = (line.enter("k", 10, 1), line.enter("k", 11, 2));
    let third = line.enter("k", 120, 3);
    line.look(20, None);
    assert_eq!(line.turns(20), [hand(first)]);
    line.failed("k", UnixMs(100));
    line.look(21, None);
    assert_eq!(line.turns(21), []);
    assert_eq!(line.0.next_look(), Some(UnixMs(100)), "a look is due when it is");
    // What failed has come back.
    line.0.enter("k".into(), OrderPosition { due: UnixMs(100), sequence: 1000 }, Place { slot: 9, entry: 0 });
    line.look(130, None);
    assert_eq!(line.turns(130), [hand(Place { slot: 9, entry: 0 })]);
    for expected in [second, third] {
        line.0.done(&"k".into());
        assert_eq!(line.turns(130), [hand(expected)]);
    }
    assert_eq!(line.0.take_freed(), [Bytes::from("k")]);
}

#[test]
fn what_waits_for_a_long_one_goes_behind_it_bundle_by_bundle() {
    let mut line = Bench::new();
    let first = line.enter("k", 10, 1);
    let entries = [(11, 2, 0), (12, 2, 1), (13, 3, 0), (14, 2, 2)];
    for (due, slot, entry) in entries {
        let position = OrderPosition { due: UnixMs(due), sequence: due as u64 };
        line.0.enter("k".into(), position, Place { slot, entry });
    }
    line.look(20, None);
    assert_eq!(line.turns(20), [hand(first)]);
    line.failed("k", FAR);
    let at = |stamp| OrderPosition { due: FAR, sequence: stamp };
    assert_eq!(line.turns(20), [Turn::Behind(2, vec![(0, at(1001)), (1, at(1002))])]);
    assert_eq!(line.turns(20), [], "the next only once the store has these");
    line.0.moved(&"k".into(), 1);
    assert_eq!(line.turns(20), [Turn::Behind(3, vec![(0, at(1003))])]);
    line.0.moved(&"k".into(), 1);
    assert_eq!(line.turns(20), [Turn::Behind(2, vec![(2, at(1004))])]);
    line.0.moved(&"k".into(), 1);
    assert_eq!(line.0.hold_of(&"k".into()), Some(HeldKey { due: FAR, from: 1000, to: 1004 }));
    // One that nobody had claimed goes behind them when it is due, and not before.
    let late = line.enter("k", 40, 7);
    assert_eq!(line.turns(20), []);
    line.look(40, None);
    assert_eq!(line.turns(40), [Turn::Behind(late.slot, vec![(late.entry, at(1005))])]);
}

#[test]
fn a_hold_is_over_only_when_a_later_look_has_left_nothing_of_it() {
    let mut line = Bench::new();
    let first = line.enter("k", 10, 1);
    let later = line.enter("k", 60, 2);
    line.look(20, None);
    assert_eq!(line.turns(20), [hand(first)]);
    // The store is told after the next look has begun: that one may not have seen it.
    line.0.failed(&"k".into(), UnixMs(50), 1000);
    line.0.moved(&"k".into(), 2);
    line.look(70, None);
    assert_eq!(line.turns(70), []);
    assert_eq!(line.0.next_look(), Some(UnixMs(50)), "another one is needed, now");
    line.look(71, Some(OrderPosition { due: UnixMs(50), sequence: 1000 }));
    assert_eq!(line.turns(71), [], "it was left there");
    line.look(72, None);
    assert_eq!(line.turns(72), [hand(later)], "it was cancelled, or moved");
}

#[test]
fn a_successor_knows_what_is_held() {
    let mut line = Bench::new();
    let hold = HeldKey { due: FAR, from: 500, to: 600 };
    line.0.took_over(vec![("k".into(), hold)]);
    let unclaimed = line.enter("k", 10, 1);
    let other = line.enter("l", 11, 2);
    line.look(20, None);
    let behind = Turn::Behind(unclaimed.slot, vec![(0, OrderPosition { due: FAR, sequence: 1000 })]);
    assert_eq!(line.turns(20), [behind, hand(other)]);
    line.0.moved(&"k".into(), 1);
    assert_eq!(line.turns(20), []);
    line.look(FAR.0, None);
    assert_eq!(line.0.take_freed(), [Bytes::from("k")], "all of it has gone otherwise");
}

#[test]
fn one_claim_tells_of_so_many_freed_keys_and_the_next_one_of_the_rest() {
    let mut line = Bench::new();
    let key = |n: usize| Bytes::from(format!("k{n}"));
    let held = |n| (key(n), HeldKey { due: UnixMs(10), from: 500, to: 600 });
    line.0.took_over((0..FREED + 2).map(held).collect());
    line.look(20, None);
    let (first, rest) = (line.0.take_freed(), line.0.take_freed());
    assert_eq!((first.len(), rest.len()), (FREED, 2));
    let all: HashSet<Bytes> = first.into_iter().chain(rest).collect();
    assert_eq!(all, (0..FREED + 2).map(key).collect());
    assert_eq!(line.0.take_freed(), Vec::<Bytes>::new());
}
