//! The settings that are searched: small ones, of which everything is seen, and large ones that chance makes.

use super::drift::Drift;
use super::search::Dice;
use super::store::{Moment, Name};
use super::world::{Budget, Fault, Record, Setting, Source};

const NONE: Budget = Budget {
    crashes: 0,
    lost_replies: 0,
    pauses: 0,
    refusals: 0,
    rejections: 0,
    unknowns: 0,
    failovers: 0,
    drains: 0,
    redrives: 0,
    notes: 0,
    splits: 0,
    closings: 0,
};

const ALIKE: Drift = Drift {
    gain: 0,
    steps: false,
};

const fn put(name: Option<Name>, due: Moment) -> Record {
    Record::Put { name, due }
}

fn one_by_one(records: Vec<Record>) -> Source {
    Source {
        records,
        batch: 1,
        limit: None,
    }
}

fn setting(
    name: &'static str,
    records: &[Record],
    batch: usize,
    timers: usize,
    budget: Budget,
) -> Setting {
    Setting {
        name,
        sources: vec![Source {
            records: records.to_vec(),
            batch,
            limit: None,
        }],
        timers,
        wires: false,
        replace: false,
        remembers: false,
        ordered: false,
        grows: false,
        wanted_for: None,
        replicated: false,
        lookahead: 0,
        credit: usize::MAX,
        drift: ALIKE,
        budget,
        fault: None,
    }
}

pub fn crash() -> Setting {
    setting(
        "a crash",
        &[put(None, 0), put(None, 1)],
        2,
        2,
        Budget { crashes: 1, ..NONE },
    )
}

/// Credit for one message at a time, and a holder that loses what it has claimed.
pub fn held_back() -> Setting {
    let budget = Budget {
        pauses: 1,
        notes: 1,
        ..NONE
    };
    let records = [put(None, 0), put(None, 1), put(None, 1)];
    Setting {
        lookahead: 1,
        credit: 1,
        ..setting("a credit of one message", &records, 2, 2, budget)
    }
}

pub fn pause() -> Setting {
    let budget = Budget {
        pauses: 1,
        unknowns: 1,
        ..NONE
    };
    setting("a pause", &[put(None, 0)], 1, 2, budget)
}

pub fn crash_and_refusal() -> Setting {
    let budget = Budget {
        crashes: 1,
        refusals: 1,
        ..NONE
    };
    setting("a crash and a refusal", &[put(None, 0)], 1, 2, budget)
}

pub fn lookahead() -> Setting {
    let budget = Budget { crashes: 1, ..NONE };
    Setting {
        lookahead: 1,
        ..setting("a look-ahead", &[put(None, 1), put(None, 2)], 2, 1, budget)
    }
}

pub fn cancel() -> Setting {
    let records = [put(Some("a"), 0), put(None, 0), Record::Cancel("a")];
    setting(
        "one of two is cancelled",
        &records,
        2,
        1,
        Budget { pauses: 1, ..NONE },
    )
}

pub fn cancel_and_crash() -> Setting {
    let budget = Budget {
        crashes: 1,
        pauses: 1,
        ..NONE
    };
    Setting {
        name: "one of two is cancelled, and a crash",
        budget,
        ..cancel()
    }
}

pub fn two_crashes() -> Setting {
    let budget = Budget {
        crashes: 2,
        pauses: 1,
        ..NONE
    };
    Setting {
        name: "two crashes and a pause",
        budget,
        ..pause()
    }
}

pub fn three_of_a_name() -> Setting {
    let records = [put(Some("a"), 1), Record::Cancel("a"), put(Some("a"), 0)];
    let budget = Budget {
        crashes: 1,
        pauses: 1,
        ..NONE
    };
    Setting {
        lookahead: 1,
        ..setting("a cancel between two of one name", &records, 1, 1, budget)
    }
}

/// Another source sends the commands: nothing orders them against the first.
pub fn command() -> Setting {
    let records = [put(Some("a"), 0), put(Some("b"), 0)];
    let budget = Budget { pauses: 1, ..NONE };
    let mut setting = setting("commands from elsewhere", &records, 2, 1, budget);
    setting
        .sources
        .push(one_by_one(vec![Record::Cancel("a"), Record::Move("b", 1)]));
    setting
}

pub fn replace() -> Setting {
    let records = [put(Some("a"), 0), put(Some("a"), 0)];
    let budget = Budget { crashes: 1, ..NONE };
    Setting {
        replace: true,
        ..setting("one takes the other's place", &records, 1, 1, budget)
    }
}

/// A command puts another message in the place of one.
pub fn replaced() -> Setting {
    let records = [put(Some("a"), 0), put(Some("b"), 1)];
    let budget = Budget { pauses: 1, ..NONE };
    let mut setting = setting("a command replaces one", &records, 2, 1, budget);
    setting
        .sources
        .push(one_by_one(vec![Record::Replace("a", 0)]));
    setting
}

pub fn replaced_and_crash() -> Setting {
    let budget = Budget { crashes: 1, ..NONE };
    let mut setting = Setting {
        name: "a command replaces one, and a crash",
        budget,
        ..replaced()
    };
    setting.sources[1].records.push(Record::Replace("c", 1));
    setting
}

/// Messages that are wanted at their own moment alone.
pub fn expiry() -> Setting {
    let budget = Budget {
        crashes: 1,
        refusals: 1,
        redrives: 1,
        ..NONE
    };
    let records = [put(Some("a"), 0), put(None, 1)];
    Setting {
        wanted_for: Some(0),
        ..setting("not wanted any more", &records, 2, 1, budget)
    }
}

pub fn expiry_by_two_clocks() -> Setting {
    let drift = Drift { gain: 1, ..ALIKE };
    let records = [put(None, 1), put(None, 2)];
    Setting {
        drift,
        wanted_for: Some(1),
        ..setting("wanted by two clocks", &records, 2, 1, NONE)
    }
}

pub fn remembered() -> Setting {
    let records = [put(Some("a"), 0), put(Some("a"), 0)];
    let budget = Budget {
        crashes: 1,
        pauses: 1,
        notes: 1,
        ..NONE
    };
    Setting {
        remembers: true,
        ..setting("names are remembered", &records, 1, 1, budget)
    }
}

/// A consumer gives back what it got, as soon as it got it.
pub fn given_back() -> Setting {
    let records = (1..=3).map(|count| Record::Back("a", 0, count));
    let records: Vec<Record> = records.collect();
    let budget = Budget {
        notes: 1,
        pauses: 1,
        ..NONE
    };
    Setting {
        remembers: true,
        ..setting("a consumer gives back", &records, 1, 1, budget)
    }
}

pub fn given_back_and_crash() -> Setting {
    let budget = Budget {
        crashes: 1,
        unknowns: 1,
        ..NONE
    };
    Setting {
        name: "a consumer gives back, and a crash",
        budget,
        ..given_back()
    }
}

pub fn hanging() -> Setting {
    let budget = Budget {
        pauses: 1,
        splits: 1,
        notes: 1,
        unknowns: 1,
        ..NONE
    };
    setting(
        "one of two hangs",
        &[put(Some("a"), 0), put(None, 0)],
        2,
        1,
        budget,
    )
}

/// The division that holds on to what hangs is the only one whose answer is a claim.
pub fn hanging_and_lost_reply() -> Setting {
    let budget = Budget {
        splits: 1,
        lost_replies: 1,
        ..NONE
    };
    let setting = setting(
        "one of two hangs, and a reply is lost",
        &[put(None, 0), put(None, 0)],
        2,
        1,
        budget,
    );
    Setting {
        wires: true,
        ..setting
    }
}

pub fn dead() -> Setting {
    let budget = Budget {
        crashes: 1,
        rejections: 1,
        redrives: 1,
        ..NONE
    };
    setting("dead, and redriven", &[put(Some("a"), 0)], 1, 2, budget)
}

pub fn apart() -> Setting {
    let budget = Budget { pauses: 2, ..NONE };
    setting(
        "expired twice and taken apart",
        &[put(Some("a"), 0), put(None, 0)],
        2,
        1,
        budget,
    )
}

pub fn drain() -> Setting {
    let budget = Budget {
        drains: 1,
        pauses: 1,
        refusals: 1,
        ..NONE
    };
    setting(
        "a rolling restart",
        &[put(None, 0), put(None, 1)],
        2,
        1,
        budget,
    )
}

pub fn lost_reply() -> Setting {
    let budget = Budget {
        lost_replies: 1,
        crashes: 1,
        ..NONE
    };
    Setting {
        wires: true,
        ..setting(
            "a lost reply and a late call",
            &[put(None, 0)],
            1,
            1,
            budget,
        )
    }
}

/// One source's name is taken by the other's between its look and its call.
pub fn refusal() -> Setting {
    let records = [put(None, 0), put(Some("a"), 0)];
    let budget = Budget {
        lost_replies: 1,
        ..NONE
    };
    let mut setting = setting("a refused call that comes twice", &records, 2, 1, budget);
    setting
        .sources
        .push(one_by_one(vec![put(Some("a"), 0), Record::Cancel("a")]));
    Setting {
        wires: true,
        ..setting
    }
}

/// Each takes its place in the order before its call: the later call may have the earlier place.
pub fn refused_order() -> Setting {
    let budget = Budget {
        lost_replies: 1,
        ..NONE
    };
    let mut setting = setting(
        "a place in the order that comes too late",
        &[put(None, 0)],
        1,
        1,
        budget,
    );
    setting.sources.push(one_by_one(vec![put(None, 0)]));
    Setting {
        wires: true,
        ordered: true,
        ..setting
    }
}

pub fn give_back() -> Setting {
    let budget = Budget {
        lost_replies: 1,
        drains: 1,
        ..NONE
    };
    Setting {
        wires: true,
        lookahead: 1,
        ..setting(
            "a return whose reply is lost",
            &[put(None, 1)],
            1,
            2,
            budget,
        )
    }
}

pub fn failover() -> Setting {
    let budget = Budget {
        failovers: 1,
        ..NONE
    };
    Setting {
        wires: true,
        replicated: true,
        ..setting(
            "a failover, each answer on a replica first",
            &[put(None, 0)],
            1,
            1,
            budget,
        )
    }
}

pub fn failover_and_crash() -> Setting {
    let budget = Budget {
        failovers: 1,
        crashes: 1,
        ..NONE
    };
    Setting {
        name: "a failover and a crash",
        budget,
        ..failover()
    }
}

pub fn two_timers_and_a_failover() -> Setting {
    Setting {
        name: "a failover between two timers",
        timers: 2,
        ..failover()
    }
}

/// The store's clock loses against the timer's own, without an end.
pub fn slow_store() -> Setting {
    let drift = Drift { gain: 1, ..ALIKE };
    let budget = Budget {
        crashes: 1,
        pauses: 1,
        ..NONE
    };
    Setting {
        drift,
        lookahead: 1,
        ..setting("the store's clock is slower", &[put(None, 2)], 1, 1, budget)
    }
}

/// The holder's own clock loses against the store's.
pub fn slow_holder() -> Setting {
    let drift = Drift { gain: -1, ..ALIKE };
    let records = [put(Some("a"), 0), Record::Cancel("a")];
    let budget = Budget { pauses: 2, ..NONE };
    Setting {
        drift,
        ..setting("a holder's clock is slower", &records, 1, 1, budget)
    }
}

pub fn steps() -> Setting {
    let drift = Drift {
        steps: true,
        ..ALIKE
    };
    let budget = Budget { crashes: 1, ..NONE };
    Setting {
        drift,
        ..setting(
            "the store's clock steps for ever",
            &[put(None, 0)],
            1,
            1,
            budget,
        )
    }
}

/// A queue that drops what comes back twice; while its ingress waits, its process dies or loses it twice.
pub fn waiting() -> Setting {
    let budget = Budget {
        crashes: 2,
        closings: 1,
        ..NONE
    };
    let mut setting = setting("a source that waits", &[put(None, 0)], 1, 1, budget);
    setting.sources[0].limit = Some(1);
    setting
}

pub fn waiting_with_calls_on_their_way() -> Setting {
    Setting {
        name: "a source that waits, with calls on their way",
        wires: true,
        ..waiting()
    }
}

/// A message joins a growing bundle, and a command from elsewhere cancels it.
pub fn growing() -> Setting {
    let budget = Budget { pauses: 1, ..NONE };
    let mut setting = setting(
        "what grows, and a cancel",
        &[put(Some("a"), 1), put(Some("b"), 1)],
        2,
        1,
        budget,
    );
    setting.grows = true;
    setting.sources.push(one_by_one(vec![Record::Cancel("a")]));
    setting
}

pub fn growing_and_moved() -> Setting {
    let mut setting = Setting {
        name: "what grows, and a command that moves it",
        ..growing()
    };
    setting.sources[1] = one_by_one(vec![Record::Move("a", 1)]);
    setting
}

pub fn growing_and_crash() -> Setting {
    let budget = Budget { crashes: 1, ..NONE };
    let records = [put(Some("a"), 1), put(Some("a"), 1)];
    Setting {
        grows: true,
        replace: true,
        ..setting("what grows, and a crash", &records, 1, 1, budget)
    }
}

pub fn growing_with_calls_on_their_way() -> Setting {
    Setting {
        name: "what grows, with calls on their way",
        wires: true,
        ..growing()
    }
}

/// Settings that every run of the tests searches wholly.
pub fn small() -> Vec<Setting> {
    vec![
        crash(),
        pause(),
        held_back(),
        crash_and_refusal(),
        lookahead(),
        cancel(),
        command(),
        replace(),
        replaced(),
        expiry(),
        expiry_by_two_clocks(),
        remembered(),
        given_back(),
        hanging(),
        hanging_and_lost_reply(),
        dead(),
        apart(),
        drain(),
        lost_reply(),
        refusal(),
        refused_order(),
        give_back(),
        failover(),
        slow_store(),
        slow_holder(),
        steps(),
        waiting(),
        growing(),
        growing_and_moved(),
        growing_and_crash(),
    ]
}

/// Settings for which an optimised build needs a minute.
pub fn deep() -> Vec<Setting> {
    vec![
        failover_and_crash(),
        two_timers_and_a_failover(),
        cancel_and_crash(),
        replaced_and_crash(),
        given_back_and_crash(),
        two_crashes(),
        three_of_a_name(),
        waiting_with_calls_on_their_way(),
        growing_with_calls_on_their_way(),
    ]
}

/// A setting by chance, for one history: some sources, timers and faults.
pub fn by_chance(dice: &mut Dice) -> Setting {
    let names = [None, Some("a"), Some("b"), Some("c")];
    let source = |dice: &mut Dice| {
        let count = 1 + dice.below(6);
        let record = |dice: &mut Dice| {
            let name = names[1 + dice.below(3)];
            let due = dice.below(4) as Moment;
            match (dice.below(9), name) {
                (0, Some(name)) => Record::Cancel(name),
                (1, Some(name)) => Record::Move(name, due),
                (2, Some(name)) => Record::Replace(name, due),
                (3..=5, _) => put(None, due),
                _ => put(name, due),
            }
        };
        let records = (0..count).map(|_| record(dice)).collect();
        Source {
            records,
            batch: 1 + dice.below(3),
            limit: [None, Some(1)][dice.below(2)],
        }
    };
    let sources = (0..=dice.below(2)).map(|_| source(dice)).collect();
    let mut up_to = |most: usize| dice.below(most + 1) as u8;
    let budget = Budget {
        crashes: up_to(3),
        lost_replies: up_to(3),
        pauses: up_to(4),
        refusals: up_to(3),
        rejections: up_to(1),
        unknowns: up_to(2),
        failovers: up_to(4).saturating_sub(2),
        drains: up_to(1),
        redrives: up_to(1),
        notes: up_to(3),
        splits: up_to(2),
        closings: up_to(4).saturating_sub(2),
    };
    let timers = 1 + dice.below(3);
    let drift = Drift {
        gain: [0, 0, -1, 1][dice.below(4)],
        steps: dice.below(6) == 0,
    };
    let replace = dice.below(2) == 0;
    let remembers = dice.below(3) == 0;
    let ordered = dice.below(4) == 0;
    let grows = !ordered && dice.below(4) == 0;
    let wanted_for = [None, None, None, Some(0), Some(1)][dice.below(5)];
    let mut sources: Vec<Source> = sources;
    // What dies is not given back.
    if wanted_for.is_none() && budget.rejections == 0 && dice.below(3) == 0 {
        let records = (1..=1 + dice.below(3) as u32).map(|count| Record::Back("d", 0, count));
        sources.push(one_by_one(records.collect()));
    }
    Setting {
        name: "by chance",
        sources,
        timers,
        wires: budget.failovers > 0 || dice.below(3) > 0,
        replace,
        remembers,
        ordered,
        grows,
        wanted_for,
        replicated: true,
        lookahead: dice.below(3) as Moment,
        credit: if dice.below(2) == 0 { 1 } else { usize::MAX },
        drift,
        budget,
        fault: None,
    }
}

pub fn with(fault: Fault, setting: Setting) -> Setting {
    Setting {
        fault: Some(fault),
        ..setting
    }
}
