//! Which cycle comes next: in rounds, one of each row that still wants some, so that a run that ends early, or is
//! stopped, has something of every row. What was found is written after each.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;

use crate::arguments::Arguments;
use crate::document::Document;
use crate::outcome::{self, Outcome, Verdict};
use crate::rows::Row;
use crate::stage::Scale;

/// Rows that a short run plays at the same time: it judges no times, and most of a cycle is waiting.
const TOGETHER: usize = 3;

/// A row on its way through the rounds.
struct Course {
    row: &'static Row,
    wanted: u64,
    /// Cycles that were played, and those of them in which the fault bit.
    played: u64,
    conclusive: u64,
    outcomes: Vec<Outcome>,
}

/// Plays the rows that were asked for; whether all of them passed.
pub(crate) async fn play(arguments: &Arguments) -> bool {
    let mut document = Document::read();
    let ends = arguments.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut courses: Vec<_> = arguments.rows.iter().map(|row| Course::new(row, arguments)).collect();
    if arguments.short {
        let all = courses.iter_mut().map(|course| course.play_all(arguments));
        futures_util::stream::iter(all).buffer_unordered(TOGETHER).collect::<()>().await;
        return told(&courses, arguments);
    }
    while courses.iter().any(Course::goes_on) {
        for course in courses.iter_mut().filter(|course| course.goes_on()) {
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                return told(&courses, arguments);
            }
            let is_first = course.played == 0;
            course.play(arguments).await;
            if arguments.keeps()
                && let Some(outcome) = course.outcomes.last()
            {
                let anew = arguments.anew && is_first;
                document.enter(course.row, arguments.rate, outcome, anew);
                document.write();
            }
        }
    }
    told(&courses, arguments)
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
        Self { row, wanted, played: 0, conclusive: 0, outcomes: Vec::new() }
    }

    /// A cycle in which the fault did not bite says nothing, so others take its place, as many again at most.
    fn goes_on(&self) -> bool {
        self.conclusive < self.wanted && self.played < 2 * self.wanted
    }

    async fn play_all(&mut self, arguments: &Arguments) {
        while self.goes_on() {
            self.play(arguments).await;
        }
    }

    /// Plays one cycle, or as many on one stage as the row can.
    async fn play(&mut self, arguments: &Arguments) {
        let Row { id, fault, at_once, play, .. } = self.row;
        if self.played == 0 {
            println!("{id}: {fault}");
        }
        let seed = arguments.seed.wrapping_add(self.played);
        let cycles = (self.wanted - self.conclusive).min(*at_once);
        let (began, scale) = (Instant::now(), Scale { seed, rate: arguments.rate, cycles, mutant: None });
        let outcome = tokio::task::spawn_local(play(scale)).await;
        let outcome = outcome.unwrap_or_else(|panic| Outcome::panicked(seed, &panic));
        let took = began.elapsed().as_secs();
        println!("{id} cycle {} of {}, seed {seed}, {took} s: {outcome}", self.played + 1, self.wanted);
        let bit = if outcome.verdict() == Verdict::Inconclusive { 0 } else { outcome.cycles as u64 };
        self.conclusive += bit;
        self.played += (outcome.cycles + outcome.blunt) as u64;
        self.outcomes.push(outcome);
    }
}
