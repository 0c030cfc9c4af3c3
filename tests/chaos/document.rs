//! `docs/chaos.md` and the numbers behind it, `docs/chaos.json`: written by the run itself, row by row.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::mutants::PLANTED;
use crate::outcome::{self, Outcome, Sum};
use crate::rows::{self, NOT_PLAYED, Row};

/// Text before the tables.
const PREFACE: &str = include_str!("preface.md");
/// Remarks that a row shows at most.
const REMARKS: usize = 6;

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
        page.push_str(
            "\n## What was found\n\n| row | n | messages | in flight at the fault | lost | early | otherwise wrong | \
             duplicates explained | unexplained | takeover | recovery | verdict |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for row in rows::all() {
            match self.rows.get(row.id) {
                Some(found) => page.push_str(&line(row, &found.sum)),
                None => writeln!(page, "| {} | not yet played ||||||||||| ", row.id)
                    .expect("a string grows"),
            }
        }
        self.list_mutants(&mut page);
        page.push_str("\n## The rows\n");
        for row in rows::all() {
            self.describe(row, &mut page);
        }
        page.push_str(
            "\n## Not played here\n\n| row | fault | what stands for it |\n|---|---|---|\n",
        );
        for (id, fault, instead) in NOT_PLAYED {
            writeln!(page, "| {id} | {fault} | {instead} |").expect("a string grows");
        }
        page
    }

    fn list_mutants(&self, page: &mut String) {
        page.push_str(
            "\n## Is the suite awake?\n\n`scripts/chaos mutants` plants faults into the relay (`src/mutants.rs`), one at a \
             time. A row must catch each, and pass on the same seed\nwithout it.\n\n| a relay that | row | what came of \
             it | played |\n|---|---|---|---|\n",
        );
        for planted in PLANTED {
            let (came, played) =
                self.mutants
                    .get(planted.name)
                    .map_or_else(Default::default, |catch| {
                        let Catch {
                            commit,
                            date,
                            seed,
                            rate,
                            ..
                        } = catch;
                        (
                            catch.to_string(),
                            format!("{date}, `{commit}`, {rate} messages a second, seed {seed}"),
                        )
                    });
            let came = if came.is_empty() {
                "not yet played".to_owned()
            } else {
                came
            };
            writeln!(
                page,
                "| {} (`{}`) | {} | {came} | {played} |",
                planted.does, planted.name, planted.row
            )
            .expect("a string grows");
        }
    }

    fn describe(&self, row: &Row, page: &mut String) {
        let Row {
            id,
            fault,
            precondition,
            limit,
            differs,
            ..
        } = row;
        write!(
            page,
            "\n**{id}**: {fault}.\n- Counts if {precondition}.\n- Limit: {limit}.\n"
        )
        .expect("a string grows");
        if !differs.is_empty() {
            writeln!(page, "- Not as in the matrix: {differs}.").expect("a string grows");
        }
        let Some(Found {
            first, last, sum, ..
        }) = self.rows.get(*id)
        else {
            return;
        };
        let since = if sum.plays + sum.inconclusive > 1 {
            format!("from {first} to {last}")
        } else {
            format!("on {last}")
        };
        writeln!(page, "- Played {since}.").expect("a string grows");
        for remark in sum.remarks.iter().take(REMARKS) {
            writeln!(page, "- Remark: {remark}.").expect("a string grows");
        }
        if sum.remarks.len() > REMARKS {
            writeln!(page, "- And {} remarks more.", sum.remarks.len() - REMARKS)
                .expect("a string grows");
        }
    }
}

fn line(row: &Row, sum: &Sum) -> String {
    let Sum {
        cycles,
        inconclusive,
        messages,
        in_flight: (least, most),
        ..
    } = sum;
    let bad = |count: usize| {
        if count == 0 {
            "0".to_owned()
        } else {
            format!("**{count}**")
        }
    };
    let taken = if sum.taken > 0 {
        format!("; {} by the fault itself", sum.taken)
    } else {
        String::new()
    };
    let seconds = |ms: Option<i64>| ms.map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1e3));
    let not_held = match if sum.failed > 0 {
        sum.failed
    } else {
        sum.missed
    } {
        0 => String::new(),
        n => format!(", {n} of {} plays", sum.plays),
    };
    let beside = if *inconclusive > 0 {
        format!(" (+{inconclusive} inconclusive)")
    } else {
        String::new()
    };
    let range = if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    };
    format!(
        "| {} | {cycles}{beside} | {messages} | {range} | {}{taken} | {} | {} | {} | {} | {} | {} | {:?}{not_held} |\n",
        row.id,
        bad(sum.lost),
        bad(sum.early),
        bad(sum.wrong),
        sum.explained,
        bad(sum.unexplained),
        seconds(sum.takeover_ms),
        seconds(sum.recovery_ms),
        sum.verdict,
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
