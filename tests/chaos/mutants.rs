//! Is the suite awake? Each planted fault must be caught by its row, on the seed on which the relay without
//! a fault passes.

use crate::arguments::Arguments;
use crate::document::{Catch, Document};
use crate::outcome::{Outcome, Verdict};
use crate::rows;
use crate::scenario::Scale;

/// A planted fault, the row that must catch it, which is not there for it alone, and how what it finds begins.
pub(crate) struct Planted {
    pub(crate) name: &'static str,
    /// Behaviour of a relay with the fault.
    pub(crate) does: &'static str,
    pub(crate) row: &'static str,
    sign: &'static str,
}

/// All of them.
pub(crate) const PLANTED: &[Planted] = &[
    Planted {
        name: "settle_before_confirm",
        does: "settles a message when it is handed over, whatever its broker says",
        row: "F25",
        sign: "lost",
    },
    Planted {
        name: "no_fencing",
        does: "publishes what it has claimed, whoever has the claim by then",
        row: "F04",
        sign: LOST_CLAIM,
    },
    Planted {
        name: "sweep_at_start_only",
        does: "looks for claims that expired when it starts, and never again",
        row: "F01",
        sign: "lost",
    },
    Planted {
        name: "ack_before_store",
        does: "commits and acknowledges before the store has answered",
        row: "F02r",
        sign: "lost",
    },
    Planted {
        name: "gone_cleared_by_claim",
        does: "forgets with a claim what of a bundle was cancelled",
        row: "F01c",
        sign: "aborted",
    },
    Planted {
        name: "deadline_as_token",
        does: "takes a claim to be anybody's whose deadline has not passed, whatever token he has",
        row: "F05",
        sign: LOST_CLAIM,
    },
    Planted {
        name: "no_wait",
        does: "waits for no replica, whatever the tier",
        row: "F13",
        sign: "lost",
    },
    Planted {
        name: "drift_is_a_step",
        does: "takes any loss of Redis's clock for a step, however slow",
        row: "F36",
        sign: "say that the clock of Redis stepped",
    },
    Planted {
        name: "unbounded_claims",
        does: "claims and reads whatever is due, whatever its bytes",
        row: "F38",
        // One read of all that is due never comes to its end over the slow link.
        sign: "lost",
    },
    Planted {
        name: "fixed_deadlines",
        does: "gives a call to Redis the same time whatever its bytes",
        row: "F39",
        sign: "lost",
    },
    Planted {
        name: "subscribe_while_waiting",
        does: "subscribes to a queue while its ingress waits, and holds what is delivered",
        row: "F40",
        sign: "lost",
    },
    Planted {
        name: "stay_paused",
        does: "leaves a partition paused that was paused when it was taken away",
        row: "F41",
        sign: "lost",
    },
    Planted {
        name: "blame_batch",
        does: "believes of each record of a batch what the broker says of the batch",
        row: "F42",
        sign: "lost",
    },
    Planted {
        name: "outage_counts",
        does: "counts an attempt where a message waits for a Kafka target that is away",
        row: "F43",
        sign: "became dead letters",
    },
    Planted {
        name: "leaderless_counts",
        does: "counts an attempt where a message waits for a Kafka partition without a leader",
        row: "F45",
        sign: "became dead letters",
    },
    Planted {
        name: "verdicts_in_order",
        does: "judges no publish to RabbitMQ before all that were published before it are answered",
        row: "F46",
        sign: "lateness p99",
    },
    Planted {
        name: "never_worn",
        does: "never thinks of a delivery that its queue may drop it",
        row: "F47",
        sign: "lost",
    },
    Planted {
        name: "forget_master",
        does: "takes a new master of the store for the one before it",
        row: "F48",
        sign: "nothing was counted as a repeat",
    },
];
/// How rows say that a message was published by someone who had lost it.
pub(crate) const LOST_CLAIM: &str = "published on a claim that was lost";
/// A fault may need the right moment: so many seeds are tried.
const TRIES: u64 = 3;

/// Plays the planted faults; answers whether each was caught. With rows named, only the faults that they must catch.
pub(crate) async fn all_caught(arguments: &Arguments) -> bool {
    let mut all = true;
    let mut document = Document::read();
    for planted in PLANTED
        .iter()
        .filter(|p| arguments.rows.iter().any(|row| row.id == p.row))
    {
        let catch = catch(planted, arguments).await;
        println!("{}: {catch}", planted.name);
        all &= catch.caught;
        if arguments.keeps() {
            document.enter_mutant(planted.name, catch);
            document.write();
        }
    }
    all
}

async fn catch(planted: &Planted, arguments: &Arguments) -> Catch {
    let Planted {
        name,
        row: by,
        sign,
        ..
    } = planted;
    let row = rows::all().find(|row| row.id == *by).expect("a row");
    let mut passed = false;
    let mut caught = false;
    let mut found = String::new();
    let mut last = arguments.seed;
    for seed in arguments.seed..arguments.seed + TRIES {
        let play = async |mutant| {
            let scale = Scale {
                seed,
                rate: arguments.rate,
                cycles: 1,
                mutant,
            };
            let played = tokio::task::spawn_local((row.play)(scale)).await;
            played.unwrap_or_else(|panic| Outcome::panicked(seed, &panic))
        };
        let without = play(None).await;
        println!("{by}, seed {seed}, without a fault: {without}");
        last = seed;
        if without.verdict() != Verdict::Passed {
            continue;
        }
        passed = true;
        let with = play(Some(*name)).await;
        println!("{by}, seed {seed}, {name}: {with}");
        if let Some(line) = with
            .faults
            .iter()
            .chain(&with.missed)
            .find(|line| line.contains(sign))
        {
            (caught, found) = (true, line.split(" (").next().unwrap_or(line).to_owned());
            break;
        }
    }
    Catch::new(passed, caught, found, last, arguments.rate)
}
