//! All orders of two sequences of calls on one bundle of three messages, each compared with the model.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use postdate::domain::Partition;

use super::driver::{Driver, SharePlan, Step};
use super::fixture::{LONG, StoreFixture};
use crate::support::Redis;

use SharePlan::{Back, Confirmed, Dead, InFlight};

type Word = Vec<Step>;

fn claim(who: usize) -> Step {
    Step::Claim { who, expires: true }
}

fn settle(who: usize) -> Step {
    Step::Settle { who }
}

fn give_back(who: usize) -> Step {
    Step::GiveBack {
        who,
        first_confirmed: true,
    }
}

fn retry(who: usize) -> Step {
    Step::Divide {
        who,
        shares: [Confirmed, Back, Back],
    }
}

fn split(who: usize) -> Step {
    Step::Divide {
        who,
        shares: [InFlight, Confirmed, Dead],
    }
}

fn store() -> Step {
    Step::Store(vec![Some("a"), Some("b"), None], false, true)
}

fn cancel() -> Step {
    Step::Cancel("a")
}

fn reschedule() -> Step {
    Step::Reschedule("b", true)
}

/// A call that cannot be made (nothing is in that hand) or means nothing (a sweep before any claim).
fn makes_sense(word: &[Step], next: &Step) -> bool {
    let claimed = |who| word.contains(&claim(who));
    match next {
        Step::Settle { who } | Step::GiveBack { who, .. } | Step::Divide { who, .. } => {
            claimed(*who)
        }
        Step::Sweep => claimed(0) || claimed(1),
        // The two holders are alike: the first to claim is holder 0.
        Step::Claim { who: 1, .. } => claimed(0),
        _ => true,
    }
}

/// Every word of `length` over all calls: all orders of all two sequences of so many calls together.
fn all_words(length: usize) -> BTreeSet<Word> {
    let mut calls = vec![store(), cancel(), reschedule(), Step::Sweep];
    for who in [0, 1] {
        calls.extend([
            claim(who),
            settle(who),
            give_back(who),
            retry(who),
            split(who),
        ]);
    }
    let mut words: BTreeSet<Word> = [Vec::new()].into();
    for _ in 0..length {
        let longer = words.iter().flat_map(|word| {
            let next = calls.iter().filter(|call| makes_sense(word, call));
            next.map(|call| [&word[..], std::slice::from_ref(call)].concat())
        });
        words = longer.collect();
    }
    words
}

/// All orders of two sequences.
fn merged(a: &[Step], b: &[Step]) -> Vec<Word> {
    match (a, b) {
        ([], rest) | (rest, []) => vec![rest.to_vec()],
        ([first, a_rest @ ..], [second, b_rest @ ..]) => {
            let led = |by: &Step, words: Vec<Word>| {
                words
                    .into_iter()
                    .map(|w| [vec![by.clone()], w].concat())
                    .collect::<Vec<_>>()
            };
            let mut words = led(first, merged(a_rest, b));
            words.extend(led(second, merged(a, b_rest)));
            words
        }
    }
}

/// All orders of pairs of sequences of four calls each: what a holder does, and what others do meanwhile.
fn four_and_four() -> BTreeSet<Word> {
    let holders = [
        [claim(0), settle(0), claim(0), settle(0)],
        [claim(0), give_back(0), claim(0), settle(0)],
        [claim(0), retry(0), claim(0), settle(0)],
        [claim(0), split(0), settle(0), settle(0)],
        [claim(0), retry(0), claim(0), give_back(0)],
        [claim(0), split(0), give_back(0), claim(0)],
    ];
    let others = [
        [Step::Redrive, store(), Step::Redrive, cancel()],
        [cancel(), Step::DropDead, Step::Redrive, Step::Sweep],
        [cancel(), store(), cancel(), store()],
        [reschedule(), cancel(), store(), reschedule()],
        [Step::Sweep, claim(1), settle(1), Step::Sweep],
        [Step::Sweep, claim(1), retry(1), store()],
        [claim(1), Step::Sweep, cancel(), give_back(1)],
        [store(), Step::Sweep, reschedule(), store()],
        [Step::Sweep, cancel(), claim(1), split(1)],
    ];
    let pairs = holders
        .iter()
        .flat_map(|a| others.iter().map(move |b| (a, b)));
    pairs.flat_map(|(a, b)| merged(a, b)).collect()
}

/// Runs histories on partitions of their own; compares after each step that no history before it has
/// compared already.
async fn run(words: BTreeSet<Word>, dedupe_ms: i64) -> usize {
    const AT_ONCE: u16 = 8;
    let redis = Redis::start().await;
    let fixture = StoreFixture::with(&redis, &redis.url(), AT_ONCE, dedupe_ms).await;
    let words: Arc<Vec<Word>> = Arc::new(words.into_iter().collect());
    let share = words.len().div_ceil(usize::from(AT_ONCE));
    let lines = (0..AT_ONCE).map(|p| {
        let words = words.clone();
        let fixture = fixture.at(Partition(p));
        tokio::spawn(async move {
            let mut before: &[Step] = &[];
            let mine = words.iter().skip(usize::from(p) * share).take(share);
            let mut done = 0;
            for word in mine {
                let mut driver = Driver::new(&fixture);
                driver.step(&store()).await;
                let known = before.iter().zip(word).take_while(|(a, b)| a == b).count();
                for (n, step) in word.iter().enumerate() {
                    driver.step(step).await;
                    if n >= known {
                        driver.compare().await;
                    }
                }
                fixture.wipe().await;
                before = word;
                done += 1;
            }
            done
        })
    });
    join_all(lines)
        .await
        .into_iter()
        .map(|done| done.expect("no history differs"))
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_orders_of_all_sequences_of_four_calls_together() {
    let words = all_words(4);
    assert_eq!(words.len(), 1642);
    let done = run(words, 0).await;
    println!("{done} histories of four calls, each as in the model");
    assert_eq!(done, 1642);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_orders_of_four_calls_together_where_names_are_remembered() {
    let done = run(all_words(4), LONG as i64).await;
    println!("{done} histories of four calls, each as in the model that remembers");
    assert_eq!(done, 1642);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_orders_of_two_sequences_of_four_calls_each() {
    let words = four_and_four();
    assert_eq!(words.len(), 6 * 9 * 70);
    let done = run(words, 0).await;
    println!("{done} histories of eight calls, each as in the model");
    assert_eq!(done, 3780);
}
