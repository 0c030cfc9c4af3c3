//! Prints the table of `scripts/bench --compare`: measurements of two builds, in turns.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::Value;

use crate::report::{median, spread};

/// Values of all rounds, by `BENCH SERIES`.
type Runs = BTreeMap<String, Vec<f64>>;

/// Runs `compared A B A1.json B1.json A2.json B2.json ...`: an argument of this program for the script.
pub fn if_asked(arguments: &[String]) -> Option<ExitCode> {
    let [first, a, b, files @ ..] = arguments else {
        return None;
    };
    if first != "compared" {
        return None;
    }
    let mut of_a = Runs::new();
    let mut of_b = Runs::new();
    for (n, file) in files.iter().enumerate() {
        if let Err(error) = gather(file, if n % 2 == 0 { &mut of_a } else { &mut of_b }) {
            println!("{file}: {error:#}");
            return Some(ExitCode::FAILURE);
        }
    }
    println!("| median (least - most) | {a} | {b} | ratio |\n|---|---:|---:|---:|");
    for (series, values) in &of_a {
        let Some(others) = of_b.get(series) else {
            continue;
        };
        let ratio = median(others) / median(values);
        println!(
            "| {series} | {} | {} | {ratio:.2} |",
            spread(values),
            spread(others)
        );
    }
    Some(ExitCode::SUCCESS)
}

fn gather(file: &str, into: &mut Runs) -> anyhow::Result<()> {
    let benches: BTreeMap<String, Value> = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    for (bench, found) in benches {
        for (name, values) in found["series"].as_object().into_iter().flatten() {
            let values = values["runs"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_f64);
            into.entry(format!("{bench} {name}"))
                .or_default()
                .extend(values);
        }
    }
    Ok(())
}
