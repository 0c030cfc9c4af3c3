//! Model of what becomes of a message: every history of small worlds, and millions of long ones by dice.
//!
//! `store.rs` is the pure model that `tests/it/store` compares with real Redis call by call; here it stands among
//! actors: ingresses that read, store and acknowledge, timers that claim, publish, settle, divide, sweep and drain,
//! a broker that confirms, refuses or keeps silent, a replica that takes over. They crash, their replies get lost,
//! their calls arrive late, their deadlines pass while they have a claim. Of each world must be true:
//!
//! | rule | |
//! |---|---|
//! | `lost` | what a source was told is stored is in the store, was delivered, is dead, or was cancelled, replaced or suppressed |
//! | `early` | nothing is handed over before its due time |
//! | `two places` | a message stands in one bundle or among the dead letters |
//! | `fencing` | a call under a lost claim changes nothing that another holds |
//! | `cancelled` | what was answered `cancelled` or `replaced` is not handed over afterwards |
//! | `given back` | what a consumer gave back comes again, or it got the same once more itself |
//! | `stale` | what is not wanted any more is not handed over |
//! | `unexplained` | of all deliveries of a message, all but one say that they may be a repeat |
//! | `remembered` | a name that is remembered is delivered once, where nobody let go of it |
//! | `spent` | a wait costs a record of a source that drops what came back too often one delivery at most |
//! | `stuck` | where nothing goes on by itself any more, the store is empty and every source read to its end |
//!
//! Each fault that can be planted must be found, by the search of everything and by dice.
//! `scripts/chaos model` does the same with an optimiser and a million histories: nothing here needs a crate.
#![allow(unreachable_pub, reason = "one binary, one module of tests")]
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(
    clippy::print_stdout,
    reason = "what was seen, for whoever asks with --nocapture"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a test binary has no configuration"
)]

mod checks;
mod claimed_bundle;
mod drift;
mod master;
mod possible;
mod search;
mod settings;
mod step;
#[allow(dead_code, reason = "some of it is for the comparison with real Redis")]
mod store;
mod timer;
mod wires;
mod world;

use std::collections::BTreeSet;

use drift::Drift;
use search::{Dice, everything, history};
use settings::with;
use store::StoreFault;
use world::{Fault, Setting};

/// Beyond this many states a world is too large to see all of.
const STATES: usize = 5_000_000;

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() {
        otherwise
    } else {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: no number: {text}"))
    }
}

/// Sees all of each of these worlds.
fn all_hold(settings: Vec<Setting>) {
    for setting in settings {
        match everything(&setting, STATES) {
            Ok(seen) => {
                println!(
                    "{}: {} states, {} of them at rest",
                    setting.name, seen.states, seen.rests
                );
                assert!(seen.rests > 0, "{}: it never comes to rest", setting.name);
            }
            Err(found) => panic!("{found}"),
        }
    }
}

#[test]
fn no_history_of_a_small_world_breaks_a_rule() {
    all_hold(settings::small());
}

/// With `POSTDATE_MODEL_DEEP=1`: too many states for a build without an optimiser.
#[test]
fn no_history_of_a_larger_world_breaks_a_rule() {
    if number("POSTDATE_MODEL_DEEP", 0) > 0 {
        all_hold(settings::deep());
    }
}

/// Each fault, where the search of everything finds it, and by which rule.
fn faults() -> Vec<(Fault, Setting, &'static str)> {
    vec![
        (Fault::SettleBeforeConfirm, settings::crash(), "lost"),
        (
            Fault::Store(StoreFault::NoFencing),
            settings::pause(),
            "fencing",
        ),
        (Fault::SweepAtStart, settings::crash(), "stuck"),
        (Fault::CommitBeforeStore, settings::lost_reply(), "lost"),
        (
            Fault::Store(StoreFault::GoneCleared),
            settings::cancel(),
            "cancelled",
        ),
        (
            Fault::Store(StoreFault::DeadlineToken),
            settings::give_back(),
            "fencing",
        ),
        (Fault::NoWait, settings::failover(), "lost"),
        (Fault::Early, settings::lookahead(), "early"),
        (
            Fault::Store(StoreFault::Unnumbered),
            settings::lost_reply(),
            "two places",
        ),
        (
            Fault::ForgetExpiry,
            settings::crash_and_refusal(),
            "unexplained",
        ),
        (
            Fault::Store(StoreFault::MoveForgets),
            settings::command(),
            "unexplained",
        ),
        (
            Fault::Store(StoreFault::RefusalForgotten),
            settings::refusal(),
            "two places",
        ),
        (
            Fault::MarkWithoutWait,
            settings::failover_and_crash(),
            "unexplained",
        ),
        (Fault::DriftIsAStep, settings::slow_store(), "stuck"),
        (Fault::HoldForEver, settings::steps(), "stuck"),
        (Fault::OwnClock, settings::slow_store(), "early"),
        (Fault::NoAllowance, settings::slow_holder(), "cancelled"),
        (Fault::SubscribeWhileWaiting, settings::waiting(), "spent"),
        (Fault::CreditKept, settings::held_back(), "credit"),
        (
            Fault::Store(StoreFault::SpreadBlindly),
            settings::growing(),
            "cancelled",
        ),
        (
            Fault::Store(StoreFault::ReplaceLeaves),
            settings::replaced(),
            "cancelled",
        ),
        (Fault::ExpiryAtClaim, settings::expiry(), "stale"),
        (
            Fault::Store(StoreFault::CountIgnored),
            settings::given_back(),
            "given back",
        ),
    ]
}

#[test]
fn each_planted_fault_has_a_shortest_history_that_shows_it() {
    for (fault, setting, rule) in faults() {
        let found = everything(&with(fault, setting), STATES).expect_err("it is planted");
        println!("{fault:?}\n{found}");
        assert_eq!(found.broken.rule, rule, "{fault:?}\n{found}");
        assert!(
            found.to_string().contains(&found.broken.what),
            "its history can be played again"
        );
    }
}

#[test]
fn the_tier_async_loses_in_a_failover_what_it_says_it_may() {
    let tier = Setting {
        replicated: false,
        ..settings::failover()
    };
    let found = everything(&tier, STATES).expect_err("nothing waits for the replica");
    assert_eq!(found.broken.rule, "lost", "{found}");
}

/// `POSTDATE_MODEL_HISTORIES` of them, from the seed `POSTDATE_MODEL_SEED` on; history n has the seed S + n.
#[test]
fn no_history_by_dice_breaks_a_rule() {
    let seed = number("POSTDATE_MODEL_SEED", 1);
    let count = number("POSTDATE_MODEL_HISTORIES", 2000);
    println!("{count} histories from seed {seed} on");
    let mut steps = 0;
    let mut kinds = BTreeSet::new();
    for seed in seed..seed + count {
        let mut dice = Dice::new(seed);
        let setting = settings::by_chance(&mut dice);
        let end = history(&setting, &mut dice, &mut kinds);
        steps += end.unwrap_or_else(|found| {
            panic!("seed {seed} (again: scripts/chaos model --seed {seed} --histories 1)\n{found}{setting:?}")
        });
    }
    println!(
        "{count} histories, {steps} steps, {} kinds of them: no rule was broken",
        kinds.len()
    );
    if count >= 1000 {
        let all: BTreeSet<u8> = (0..46).chain([47, 48]).collect();
        assert_eq!(
            kinds, all,
            "everything that can happen did happen, and every answer had a late copy"
        );
    }
}

#[test]
fn dice_find_each_planted_fault_too() {
    for (fault, smallest, _) in faults() {
        let found = (1..20_000).find_map(|seed| {
            let mut dice = Dice::new(seed);
            let mut setting = with(fault, settings::by_chance(&mut dice));
            // Where a fault shows under clocks that differ, the dice have no say in them.
            if smallest.drift != Drift::default() {
                setting.drift = smallest.drift;
            }
            history(&setting, &mut dice, &mut BTreeSet::new())
                .err()
                .map(|found| (seed, found))
        });
        let (seed, found) = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!(
            "{fault:?}: seed {seed}, {} steps: {}",
            found.actions.len(),
            found.broken.rule
        );
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let fault = Fault::SettleBeforeConfirm;
    let play = |seed| {
        let mut dice = Dice::new(seed);
        let setting = with(fault, settings::by_chance(&mut dice));
        history(&setting, &mut dice, &mut BTreeSet::new()).map_err(|found| found.to_string())
    };
    let all: Vec<_> = (1..50).map(play).collect();
    assert_eq!(all, (1..50).map(play).collect::<Vec<_>>());
    assert!(all.iter().any(Result::is_ok) && all.iter().any(Result::is_err));
}
