//! Reads the arguments of `scripts/chaos`.

use crate::rows::{self, Row};

/// Messages a second. Two cores that brokers, Redis, producers, collectors and three unoptimised replicas share are busy
/// with a thousand: then all is late, whatever the fault.
const RATE: u64 = 400;
/// Seed of a short run without `--seed`: a developer wants the verdict on a change, so it is
/// the same schedule each time. Full runs explore.
const SHORT_SEED: u64 = 22;
/// Rows that a short run plays at the same time: it judges no times, and most of a cycle is waiting.
const SHORT_TOGETHER: usize = 3;
/// Messages a second of each of them: together they stay below what keeps the machine busy.
const SHORT_RATE: u64 = 200;
/// How long a full run may go on beginning cycles, minutes.
const FULL: u64 = 50;

/// The command line, read.
pub(crate) struct Arguments {
    pub(crate) rows: Vec<&'static Row>,
    /// Cycles of each row; `None`: as many as the row itself says.
    pub(crate) cycles: Option<u64>,
    pub(crate) seed: u64,
    /// No cycle begins after so many; `None`: there is no end but that of the cycles.
    pub(crate) minutes: Option<u64>,
    /// Messages a second.
    pub(crate) rate: u64,
    /// Rows that are played at the same time.
    pub(crate) together: usize,
    /// One cycle of the most telling rows, in which times are told and not judged.
    pub(crate) short: bool,
    /// Planted faults, and whether they are caught.
    pub(crate) mutants: bool,
    /// Play nothing: write the page anew from the numbers.
    pub(crate) page: bool,
    /// Forget what earlier runs found of these rows.
    pub(crate) anew: bool,
    dry: bool,
}

impl Arguments {
    /// Reports whether the results are to be kept in the document.
    pub(crate) fn keeps(&self) -> bool {
        !self.short && !self.dry
    }
}

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = arguments.peekable();
    let mut parsed = Arguments {
        rows: Vec::new(),
        cycles: None,
        seed: 0,
        minutes: None,
        rate: RATE,
        together: 1,
        short: false,
        mutants: false,
        page: false,
        anew: false,
        dry: false,
    };
    let mut seed = None;
    let mut rate = None;
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().unwrap_or_default();
            text.parse::<u64>()
                .map_err(|error| format!("{argument} {text}: {error}"))
        };
        match argument.as_str() {
            "--cycles" => parsed.cycles = Some(number()?.max(1)),
            "--minutes" => parsed.minutes = Some(number()?),
            "--seed" => seed = Some(number()?),
            "--rate" => rate = Some(number()?.max(40)),
            "--together" => parsed.together = number()?.max(1) as usize,
            "--short" => parsed.short = true,
            "mutants" => parsed.mutants = true,
            "--page" => parsed.page = true,
            "--dry" => parsed.dry = true,
            "--anew" => parsed.anew = true,
            name => {
                let row = rows::all().find(|row| row.id.eq_ignore_ascii_case(name));
                parsed.rows.push(
                    row.ok_or_else(|| format!("there is no row {name}; there are {}", names()))?,
                );
            }
        }
    }
    parsed.seed = seed.unwrap_or_else(|| {
        if parsed.short {
            SHORT_SEED
        } else {
            fastrand::u64(..1 << 32)
        }
    });
    if parsed.short {
        parsed.cycles.get_or_insert(1);
        parsed.together = SHORT_TOGETHER;
        parsed.rate = SHORT_RATE;
    }
    parsed.rate = rate.unwrap_or(parsed.rate);
    if parsed.rows.is_empty() {
        if parsed.cycles.is_none() && !parsed.mutants {
            parsed.minutes.get_or_insert(FULL);
        }
        parsed.rows = rows::all()
            .filter(|row| row.short || !parsed.short)
            .collect();
    }
    Ok(parsed)
}

fn names() -> String {
    rows::all().map(|row| row.id).collect::<Vec<_>>().join(" ")
}
