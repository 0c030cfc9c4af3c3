//! Which cycle comes next: in rounds, one of each row that still wants some, so that a run that ends early, or is
//! stopped, has something of every row. What was found is written after each.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::arguments::Arguments;
use crate::document::Document;
use crate::outcome::{self, Outcome, Verdict};
use crate::rows::Row;
use crate::scenario::Scale;

/// A row on its way through the rounds.
struct Course {
    row: &'static Row,
    wanted: u64,
    /// Cycles that were played, and the conclusive ones among them.
    played: u64,
    conclusive: u64,
    outcomes: Vec<Outcome>,
}

/// Courses that wait for their next cycle, and those that are over.
struct Rounds {
    waiting: VecDeque<Course>,
    over: Vec<Course>,
    document: Document,
}

/// Plays the rows that were asked for, so many at a time; whether all of them passed.
pub(crate) async fn play(arguments: &Arguments) -> bool {
    let ends = arguments
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let rounds = RefCell::new(Rounds {
        waiting: arguments
            .rows
            .iter()
            .map(|row| Course::new(row, arguments))
            .collect(),
        over: Vec::new(),
        document: Document::read(),
    });
    let players = (0..arguments.together).map(|_| async {
        loop {
            // Not in the `while let`, which would keep it borrowed over the cycle.
            let next = rounds.borrow_mut().waiting.pop_front();
            let Some(mut course) = next else { return };
            let in_time = ends.is_none_or(|ends| Instant::now() < ends);
            if in_time && course.goes_on() {
                course.play(arguments).await;
                rounds.borrow_mut().note(course, arguments);
            } else {
                rounds.borrow_mut().over.push(course);
            }
        }
    });
    join_all(players).await;
    told(&rounds.into_inner().over, arguments)
}

impl Rounds {
    /// Writes down what the last cycle found; the course's next one comes after those of all others.
    fn note(&mut self, course: Course, arguments: &Arguments) {
        if arguments.keeps()
            && let Some(outcome) = course.outcomes.last()
        {
            let anew = arguments.anew && course.outcomes.len() == 1;
            self.document
                .enter(course.row, arguments.rate, outcome, anew);
            self.document.write();
        }
        self.waiting.push_back(course);
    }
}

/// Says what came of each; whether all is well.
fn told(courses: &[Course], arguments: &Arguments) -> bool {
    println!();
    let mut good = true;
    for Course { row, outcomes, .. } in courses {
        let sum = outcome::sum(outcomes);
        println!("{}: {sum}", row.id);
        good &= sum.verdict.is_good(arguments.short);
    }
    good
}

impl Course {
    fn new(row: &'static Row, arguments: &Arguments) -> Self {
        let wanted = arguments.cycles.unwrap_or(row.cycles);
        Self {
            row,
            wanted,
            played: 0,
            conclusive: 0,
            outcomes: Vec::new(),
        }
    }

    /// Reports whether another cycle is wanted. An inconclusive cycle is replaced, as many again at most.
    fn goes_on(&self) -> bool {
        self.conclusive < self.wanted && self.played < 2 * self.wanted
    }

    /// Plays one cycle, or as many in one scenario as the row can.
    async fn play(&mut self, arguments: &Arguments) {
        let Row {
            id,
            fault,
            precondition,
            limit,
            differs,
            at_once,
            play,
            ..
        } = self.row;
        if self.played == 0 {
            println!("{id}: {fault}\n  counts if {precondition}; limit: {limit}");
            if !differs.is_empty() {
                println!("  not as intended: {differs}");
            }
        }
        let seed = arguments.seed.wrapping_add(self.played);
        let cycles = (self.wanted - self.conclusive).min(*at_once);
        let began = Instant::now();
        let scale = Scale {
            seed,
            rate: arguments.rate,
            cycles,
            mutant: None,
        };
        let outcome = tokio::task::spawn_local(play(scale)).await;
        let outcome = outcome.unwrap_or_else(|panic| Outcome::panicked(seed, &panic));
        let took = began.elapsed().as_secs();
        println!(
            "{id} cycle {} of {}, seed {seed}, {took} s: {outcome}",
            self.played + 1,
            self.wanted
        );
        let conclusive = if outcome.verdict() == Verdict::Inconclusive {
            0
        } else {
            outcome.cycles as u64
        };
        self.conclusive += conclusive;
        self.played += (outcome.cycles + outcome.unmet_cycles) as u64;
        self.outcomes.push(outcome);
    }
}
