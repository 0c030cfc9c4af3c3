//! `docs/chaos.md` and the numbers behind it, `docs/chaos.json`: written by the run itself, row by row.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::mutants::PLANTED;
use crate::outcome::{self, Outcome, Sum, Verdict};
use crate::rows::{self, NOT_PLAYED, Row};

/// Text before the tables.
const PREFACE: &str = include_str!("preface.md");

/// Findings of each row, by its id, in all runs since the row began anew.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    rows: BTreeMap<String, Found>,
    /// Which planted faults were caught, by their names.
    #[serde(default)]
    mutants: BTreeMap<String, Catch>,
}

/// Result of a planted fault.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Catch {
    commit: String,
    date: String,
    seed: u64,
    rate: u64,
    /// Set where the row passes without the planted fault.
    passed: bool,
    pub(crate) caught: bool,
    /// Finding of the row.
    found: String,
}

impl Catch {
    pub(crate) fn new(passed: bool, caught: bool, found: String, seed: u64, rate: u64) -> Self {
        Self {
            commit: commit(),
            date: today(),
            seed,
            rate,
            passed,
            caught,
            found,
        }
    }
}

impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.passed, self.caught) {
            (_, true) => write!(f, "caught: {}", self.found),
            (true, false) => f.write_str("**not caught**"),
            (false, false) => f.write_str("**not shown**: the row does not pass without it"),
        }
    }
}

/// When a cycle was played, of what, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Played {
    commit: String,
    date: String,
    seed: u64,
    rate: u64,
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            commit,
            date,
            seed,
            rate,
        } = self;
        write!(
            f,
            "{date} at `{commit}` ({rate} messages a second, seed {seed})"
        )
    }
}

/// All cycles of a row since it was begun anew.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// The row's version that was played.
    version: u32,
    first: Played,
    last: Played,
    #[serde(flatten)]
    sum: Sum,
}

impl Document {
    /// Reads the findings of earlier runs.
    pub(crate) fn read() -> Self {
        std::fs::read_to_string(path("chaos.json"))
            .map(|text| serde_json::from_str(&text).expect("docs/chaos.json is ours"))
            .unwrap_or_default()
    }

    /// Adds a cycle to its row. The row begins anew if it was asked for, or if its definition has changed since.
    pub(crate) fn enter(&mut self, row: &Row, rate: u64, outcome: &Outcome, anew: bool) {
        let played = Played {
            commit: commit(),
            date: today(),
            seed: outcome.seed,
            rate,
        };
        let sum = outcome::sum(std::slice::from_ref(outcome));
        let known = self
            .rows
            .get_mut(row.id)
            .filter(|found| !anew && found.version == row.version);
        if let Some(found) = known {
            found.last = played;
            found.sum.add(sum);
            return;
        }
        let found = Found {
            version: row.version,
            first: played.clone(),
            last: played,
            sum,
        };
        self.rows.insert(row.id.to_owned(), found);
    }

    /// Takes in what came of a planted fault.
    pub(crate) fn enter_mutant(&mut self, name: &str, catch: Catch) {
        self.mutants.insert(name.to_owned(), catch);
    }

    /// Writes both files.
    pub(crate) fn write(&self) {
        let numbers = serde_json::to_string_pretty(self).expect("numbers") + "\n";
        std::fs::write(path("chaos.json"), numbers).expect("docs/chaos.json");
        std::fs::write(path("chaos.md"), self.page()).expect("docs/chaos.md");
    }

    /// The page.
    pub(crate) fn page(&self) -> String {
        let mut page = PREFACE.to_owned();
        self.sum_up(&mut page);
        page.push_str(
            "\n| row | fault | n | messages | repeated | recovery |\n|---|---|---:|---:|---:|---:|\n",
        );
        for row in rows::all() {
            match self.rows.get(row.id) {
                Some(found) => page.push_str(&line(row, &found.sum)),
                None => writeln!(page, "| {} | {} | not yet played ||||", row.id, row.fault)
                    .expect("a string grows"),
            }
        }
        self.list_mutants(&mut page);
        page.push_str(
            "\n## Not played here\n\n| row | fault | what stands for it |\n|---|---|---|\n",
        );
        for (id, fault, instead) in NOT_PLAYED {
            writeln!(page, "| {id} | {fault} | {instead} |").expect("a string grows");
        }
        page
    }

    /// What all rows found together, and each that did not pass.
    fn sum_up(&self, page: &mut String) {
        let sums: Vec<&Sum> = self.rows.values().map(|found| &found.sum).collect();
        let total = |of: fn(&Sum) -> usize| sums.iter().copied().map(of).sum::<usize>();
        let dates = || {
            self.rows
                .values()
                .flat_map(|found| [&found.first.date, &found.last.date])
        };
        let (first, last) = (dates().min(), dates().max());
        writeln!(
            page,
            "\n## What was found\n\n{} rows, {} cycles, {} messages, from {} to {}. Lost, but for what the fault itself takes: {}. \
             Early: {}. Otherwise wrong: {}. Repeated without an explanation: {}.",
            sums.len(),
            total(|sum| sum.cycles),
            total(|sum| sum.messages),
            first.map_or("?", String::as_str),
            last.map_or("?", String::as_str),
            total(|sum| sum.lost),
            total(|sum| sum.early),
            total(|sum| sum.wrong),
            total(|sum| sum.unexplained),
        )
        .expect("a string grows");
        for (id, found) in &self.rows {
            let sum = &found.sum;
            if sum.verdict != Verdict::Passed {
                let bad = if sum.failed > 0 {
                    sum.failed
                } else {
                    sum.missed
                };
                writeln!(
                    page,
                    "\n**{id}: {:?}**, {bad} of {} plays.",
                    sum.verdict, sum.plays
                )
                .expect("a string grows");
            }
        }
    }

    fn list_mutants(&self, page: &mut String) {
        let caught = |name: &str| self.mutants.get(name).is_some_and(|catch| catch.caught);
        let count = PLANTED
            .iter()
            .filter(|planted| caught(planted.name))
            .count();
        writeln!(
            page,
            "\n## Is the suite awake?\n\n`scripts/chaos mutants` plants {} faults into the relay (`src/mutants.rs`), one at a time. A row must \
             catch each, and pass on the same seed without it. {count} were caught.",
            PLANTED.len()
        )
        .expect("a string grows");
        for planted in PLANTED.iter().filter(|planted| !caught(planted.name)) {
            let came = self
                .mutants
                .get(planted.name)
                .map_or_else(|| "not yet played".to_owned(), ToString::to_string);
            writeln!(
                page,
                "\n- A relay that {} (`{}`), row {}: {came}",
                planted.does, planted.name, planted.row
            )
            .expect("a string grows");
        }
    }
}

fn line(row: &Row, sum: &Sum) -> String {
    let recovery = sum
        .recovery_ms
        .map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1e3));
    format!(
        "| {} | {} | {} | {} | {} | {recovery} |\n",
        row.id, row.fault, sum.cycles, sum.messages, sum.explained
    )
}

fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name)
}

/// The commit that was built, with a mark if the source differs from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        output
            .ok()
            .filter(|output| output.status.success())
            .map(|output| output.stdout)
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".into();
    };
    let commit = String::from_utf8_lossy(&commit).trim().to_owned();
    let clean =
        git(&["status", "--porcelain", "--", "src", "Cargo.lock"]).is_some_and(|s| s.is_empty());
    if clean { commit } else { format!("{commit}+") }
}
