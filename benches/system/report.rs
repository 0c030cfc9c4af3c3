//! Reports the findings of a bench: series of values by name, one value a round; tables of their medians and spreads,
//! verdicts on the bars, plots. A report is printed, and kept in `benches/README.md` and `docs/benchmarks.json`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::Scale;
use crate::machine;
use crate::measure::MeasuredRate;

/// Requirement of a bar.
#[derive(Clone, Copy, Debug)]
pub enum BarLimit {
    AtLeast(f64),
    AtMost(f64),
}

struct BarVerdict {
    number: u8,
    what: String,
    value: f64,
    limit: BarLimit,
}

impl BarVerdict {
    fn is_met(&self) -> bool {
        match self.limit {
            BarLimit::AtLeast(least) => self.value >= least,
            BarLimit::AtMost(most) => self.value <= most,
        }
    }
}

/// Findings of one bench.
pub struct Report {
    name: &'static str,
    scale: Scale,
    series: BTreeMap<String, Vec<f64>>,
    tables: String,
    bars: Vec<BarVerdict>,
    plots: Vec<(String, String)>,
}

impl Report {
    pub fn new(name: &'static str, scale: &Scale) -> Self {
        let series = BTreeMap::new();
        let bars = vec![];
        let plots = vec![];
        Self {
            name,
            scale: scale.clone(),
            series,
            tables: String::new(),
            bars,
            plots,
        }
    }

    /// Adds the value of a further round.
    pub fn add(&mut self, row: &str, column: &str, value: f64) {
        self.series
            .entry(format!("{row}.{column}"))
            .or_default()
            .push(value);
    }

    /// Adds the rate and costs of a further round.
    pub fn rate(&mut self, row: &str, rate: &MeasuredRate) {
        println!(
            "  {row}: {} a second, {:.2} us a message",
            number(rate.per_second),
            rate.cpu()
        );
        for (column, value) in [
            ("rate", rate.per_second),
            ("cpu", rate.cpu()),
            ("itself", rate.cost.moves),
            ("broker", rate.cost.broker),
            ("redis", rate.cost.redis),
            ("others", rate.others),
        ] {
            self.add(row, column, value);
        }
    }

    /// The values of all rounds so far.
    pub fn values(&self, row: &str, column: &str) -> &[f64] {
        self.series
            .get(&format!("{row}.{column}"))
            .map_or(&[], Vec::as_slice)
    }

    /// The rows that have values in a column.
    pub fn rows(&self, column: &str) -> Vec<String> {
        let end = format!(".{column}");
        self.series
            .keys()
            .filter_map(|name| Some(name.strip_suffix(&end)?.to_owned()))
            .collect()
    }

    /// The median of all rounds; not a number if there was none.
    pub fn median(&self, row: &str, column: &str) -> f64 {
        median(self.values(row, column))
    }

    /// Adds a line of text to the page.
    pub fn say(&mut self, text: &str) {
        writeln!(self.tables, "\n{text}").expect("a String");
    }

    /// Adds a table of medians with their spreads: rows and columns by name and heading.
    pub fn table(&mut self, corner: &str, rows: &[(&str, &str)], columns: &[(&str, &str)]) {
        let headings: Vec<&str> = columns.iter().map(|&(_, heading)| heading).collect();
        let rule = "---:|".repeat(columns.len());
        let mut text = format!("\n| {corner} | {} |\n|---|{rule}\n", headings.join(" | "));
        for &(row, what) in rows {
            let cells: Vec<String> = columns
                .iter()
                .map(|&(column, _)| spread(self.values(row, column)))
                .collect();
            writeln!(text, "| {what} | {} |", cells.join(" | ")).expect("a String");
        }
        self.tables.push_str(&text);
    }

    /// Adds the usual table of rates and costs.
    pub fn rates(&mut self, rows: &[(&str, &str)]) {
        self.table(
            "median (least - most)",
            rows,
            &[
                ("rate", "messages/s"),
                ("cpu", "CPU us/message"),
                ("itself", "of it relay or mirror"),
                ("broker", "broker"),
                ("redis", "Redis"),
                ("others", "other load, cores"),
            ],
        );
    }

    /// Adds a bar: a ratio or another value, and its limit.
    pub fn bar(&mut self, number: u8, what: &str, value: f64, limit: BarLimit) {
        self.bars.push(BarVerdict {
            number,
            what: what.to_owned(),
            value,
            limit,
        });
    }

    /// Adds a bar on the ratio of the medians of two rows.
    pub fn ratio(
        &mut self,
        number: u8,
        what: &str,
        column: &str,
        rows: (&str, &str),
        limit: BarLimit,
    ) {
        let value = self.median(rows.0, column) / self.median(rows.1, column);
        self.bar(number, what, value, limit);
    }

    /// Adds a picture, which is kept beside the document.
    pub fn plot(&mut self, title: &str, file: &str, svg: String) {
        writeln!(self.tables, "\n![{title}](../docs/benchmarks/{file}.svg)").expect("a String");
        self.plots.push((file.to_owned(), svg));
    }

    /// The page in Markdown.
    fn text(&self, versions: &str) -> String {
        let mut text = format!(
            "Machine: {}. Servers and measured processes share it.\n",
            machine::describe()
        );
        writeln!(text, "Versions: {versions}.").expect("a String");
        let rounds = self.scale.rounds;
        writeln!(
            text,
            "Command: `scripts/bench {} --rounds {rounds}`, {}.",
            self.name,
            commit()
        )
        .expect("a String");
        if self.scale.quick {
            text.push_str(
                "A quick run: it shows that the bench works, its numbers mean nothing.\n",
            );
        }
        text.push_str(&self.tables);
        if !self.bars.is_empty() && !self.scale.quick {
            text.push_str("\n| bar | | measured | asked | |\n|---:|---|---:|---:|---|\n");
            for bar in &self.bars {
                let asked = match bar.limit {
                    BarLimit::AtLeast(least) => format!(">= {least}"),
                    BarLimit::AtMost(most) => format!("<= {most}"),
                };
                let met = if bar.is_met() { "met" } else { "**missed**" };
                writeln!(
                    text,
                    "| {} | {} | {} | {asked} | {met} |",
                    bar.number,
                    bar.what,
                    number(bar.value)
                )
                .expect("a String");
            }
        }
        text
    }

    /// Prints the report, and keeps it in the documents or in a file.
    pub fn finish(&self, versions: &str) {
        let text = self.text(versions);
        println!("\n{text}");
        if let Some(file) = &self.scale.json {
            merge(file, self.name, self.json(versions));
        }
        if self.scale.quick || self.scale.json.is_some() {
            return;
        }
        keep(self.name, &text);
        merge(
            &docs().join("benchmarks.json"),
            self.name,
            self.json(versions),
        );
        for (file, svg) in &self.plots {
            let folder = docs().join("benchmarks");
            std::fs::create_dir_all(&folder).expect("docs/benchmarks");
            std::fs::write(folder.join(format!("{file}.svg")), svg).expect("written");
        }
    }

    fn json(&self, versions: &str) -> Value {
        let series: BTreeMap<_, _> = self
            .series
            .iter()
            .map(|(name, values)| {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let median = median(values);
                (
                    name,
                    json!({ "median": median, "least": least, "most": most, "runs": values }),
                )
            })
            .collect();
        let bars = self.bars.iter().map(|bar| {
            let (asks, limit) = match bar.limit {
                BarLimit::AtLeast(least) => ("at_least", least),
                BarLimit::AtMost(most) => ("at_most", most),
            };
            json!({ "bar": bar.number, "what": bar.what, "measured": bar.value, asks: limit, "met": bar.is_met() })
        });
        json!({
            "commit": commit(),
            "machine": machine::describe(),
            "versions": versions,
            "rounds": self.scale.rounds,
            "bars": bars.collect::<Vec<_>>(),
            "series": series,
        })
    }
}

/// The median. Of an even number it is the lower of the two, so that it is a value that was measured.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::NAN)
}

/// The median, with the lowest and the highest value of the rounds.
pub fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 => String::new(),
        1 => number(least),
        _ => format!(
            "{} ({} - {})",
            number(median(values)),
            number(least),
            number(most)
        ),
    }
}

/// A number with three or four significant digits.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    match value.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{:.0}", value.abs());
            let groups: Vec<&str> = digits
                .as_bytes()
                .rchunks(3)
                .rev()
                .filter_map(|g| str::from_utf8(g).ok())
                .collect();
            format!("{}{}", if value < 0.0 { "-" } else { "" }, groups.join(","))
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The commit that is measured, with a mark if the tree differs from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        output
            .ok()
            .filter(|out| out.status.success())
            .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    match (
        git(&["rev-parse", "--short", "HEAD"]),
        git(&["status", "--porcelain", "--", "src", "Cargo.lock"]),
    ) {
        (Some(commit), Some(changes)) if changes.is_empty() => format!("commit {commit}"),
        (Some(commit), _) => format!("commit {commit} with changes"),
        (None, _) => "commit unknown".to_owned(),
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// Sets one key of a JSON file.
fn merge(path: &Path, name: &str, value: Value) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|_| "{}".to_owned());
    let mut all: BTreeMap<String, Value> = serde_json::from_str(&text).expect("benchmarks.json");
    all.insert(name.to_owned(), value);
    let text = serde_json::to_string_pretty(&all).expect("JSON");
    std::fs::write(path, text + "\n").expect("written");
}

/// Writes a page between its marks in the document. Text around the marks is written by hand.
fn keep(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/README.md");
    let document = std::fs::read_to_string(&path).expect("benches/README.md");
    let begin = format!("<!-- {name}: begin -->\n");
    let end = format!("<!-- {name}: end -->");
    let (before, rest) = document
        .split_once(&begin)
        .expect("the mark of its beginning");
    let (_, after) = rest.split_once(&end).expect("the mark of its end");
    std::fs::write(&path, format!("{before}{begin}\n{page}\n{end}{after}")).expect("written");
    println!("kept in {}", path.display());
}
