//! The page that a bench prints and keeps in `docs/benchmarks.md`.

use std::fmt::Write as _;
use std::path::Path;

use crate::lateness::Lateness;
use crate::measure::Rate;
use crate::relay::Command;
use crate::servers::Servers;
use crate::{Scale, machine};

/// One line of the rates' table.
pub struct Row {
    pub what: &'static str,
    pub measured: Result<Rate, String>,
    /// The mirror's rate.
    pub beside: Option<Rate>,
}

/// What was measured, where, and what is missing.
pub struct Page {
    head: String,
    rows: Vec<Row>,
    lateness: Vec<(&'static str, Lateness)>,
    commands: Vec<Command>,
    missing: Vec<String>,
}

impl Page {
    pub fn new(servers: &Servers, scale: Scale) -> Self {
        let Scale { kafka, rabbitmq, seconds, rounds, .. } = scale;
        let mut head =
            format!("Machine: {}. Servers and measured processes share it.\n", machine::describe());
        writeln!(head, "Versions: postdate {}, {}.", env!("CARGO_PKG_VERSION"), servers.versions())
            .expect("a String");
        writeln!(
            head,
            "Runs: {kafka} messages through Kafka, {rabbitmq} through RabbitMQ, medians of {rounds}; lateness over {seconds} s."
        )
        .expect("a String");
        if !scale.kept {
            head.push_str("A quick run: it shows that the bench works, its numbers mean nothing.\n");
        }
        Self { head, rows: vec![], lateness: vec![], commands: vec![], missing: vec![] }
    }

    pub fn row(&mut self, row: Row) {
        if let Err(why) = &row.measured {
            self.missing.push(format!("{}: not measured: {why}.", row.what));
        }
        self.rows.push(row);
    }

    pub fn lateness(&mut self, what: &'static str, measured: Result<Lateness, String>) {
        match measured {
            Ok(lateness) => self.lateness.push((what, lateness)),
            Err(why) => self.missing.push(format!("{what}: not measured: {why}.")),
        }
    }

    /// Redis's commands of the last in-and-out run.
    pub fn commands(&mut self, commands: Vec<Command>) {
        self.commands = commands;
    }

    /// A broker that is not there: no numbers.
    pub fn missing(&mut self, broker: &str, why: &str) {
        self.missing.push(format!("{broker}: not measured: {why}."));
    }

    /// Whether all of it was measured.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// The page in Markdown.
    pub fn text(&self) -> String {
        let mut text = self.head.clone();
        self.rates(&mut text).expect("a String");
        self.latenesses(&mut text).expect("a String");
        self.redis(&mut text).expect("a String");
        for missing in &self.missing {
            writeln!(text, "\n{missing}").expect("a String");
        }
        text
    }

    fn rates(&self, text: &mut String) -> std::fmt::Result {
        let measured =
            || self.rows.iter().filter_map(|row| row.measured.as_ref().ok().map(|rate| (row, rate)));
        if measured().next().is_none() {
            return Ok(());
        }
        writeln!(
            text,
            "\n| | messages/s | to the mirror | CPU us/message: itself | broker | Redis | other load, cores |"
        )?;
        writeln!(text, "|---|---:|---:|---:|---:|---:|---:|")?;
        for (row, rate) in measured() {
            let ratio = row.beside.map_or_else(
                || "1".to_owned(),
                |mirror| format!("{:.2}", rate.per_second / mirror.per_second),
            );
            let cost = rate.cost;
            writeln!(
                text,
                "| {} | {:.0} | {ratio} | {:.1} | {:.1} | {:.1} | {:.1} |",
                row.what, rate.per_second, cost.moves, cost.broker, cost.redis, rate.others
            )?;
        }
        Ok(())
    }

    fn latenesses(&self, text: &mut String) -> std::fmt::Result {
        if self.lateness.is_empty() {
            return Ok(());
        }
        writeln!(text, "\n| 1,000 messages a second, us | p50 | p99 | p99.9 | max | early | messages |")?;
        writeln!(text, "|---|---:|---:|---:|---:|---:|---:|")?;
        for (what, Lateness { p50, p99, p999, max, early, count }) in &self.lateness {
            writeln!(text, "| {what} | {p50} | {p99} | {p999} | {max} | {early} | {count} |")?;
        }
        Ok(())
    }

    fn redis(&self, text: &mut String) -> std::fmt::Result {
        if self.commands.is_empty() {
            return Ok(());
        }
        writeln!(text, "\n| Redis, Kafka in and out | calls for 1,000 messages | us a call |")?;
        writeln!(text, "|---|---:|---:|")?;
        for (name, calls, micros) in self.commands.iter().take(8) {
            writeln!(text, "| {name} | {calls:.2} | {micros:.1} |")?;
        }
        Ok(())
    }
}

/// Writes a page between its marks in the document; what stands around them is written by hand.
pub fn keep(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md");
    let document = std::fs::read_to_string(&path).expect("docs/benchmarks.md");
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = document.split_once(&begin).expect("the mark of its beginning");
    let (_, after) = rest.split_once(&end).expect("the mark of its end");
    std::fs::write(&path, format!("{before}{begin}\n{page}\n{end}{after}")).expect("written");
    println!("kept in {}", path.display());
}
