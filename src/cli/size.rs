//! `postdate size`

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::output;
use crate::sizing::{COMPANY_RATE, Load, REPLICA_CORES, Size, size};

/// Compute how many replicas, shards of Redis, and how much memory a load needs
///
/// It connects to nothing. The figures are those of docs/benchmarks.md: a machine of two cores, half of each left free.
/// Measure your own with `postdate bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postdate size --rate 10k --pending 100M --body 400B\n  \
    postdate size --rate 500 --pending 2M --body 1KiB --named --json"
)]
pub(super) struct SizeArgs {
    /// Messages a second: a number, with k or M for thousands or millions
    #[arg(long, value_name = "N", value_parser = number)]
    rate: f64,
    /// Messages that wait at once: a number, with k, M or G
    #[arg(long, value_name = "N", value_parser = number)]
    pending: f64,
    /// Length of a body, as Redis has to keep it: bytes, with B, kB, KiB, MB or MiB. What compresses counts less
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    body: f64,
    /// Messages have names (x-delay-id), and may be cancelled
    #[arg(long)]
    named: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SizeArgs) -> ExitCode {
    let load = Load {
        rate: args.rate,
        pending: args.pending,
        body: args.body,
        is_named: args.named,
    };
    let size = size(&load);
    if args.json {
        output::out(as_json(&size).to_string());
        return ExitCode::SUCCESS;
    }
    for line in lines(&load, &size) {
        output::out(line);
    }
    ExitCode::SUCCESS
}

fn as_json(size: &Size) -> serde_json::Value {
    json!({
        "replicas": size.replicas,
        "replica_cores": REPLICA_CORES,
        "redis_shards": size.shards,
        "maxmemory_each": size.shard_bytes.ceil() as u64,
        "partitions": size.partitions,
        "redis_connections": size.connections,
    })
}

fn lines(load: &Load, size: &Size) -> Vec<String> {
    let cost = load.cost();
    let kind = match (load.is_named, load.rate < COMPANY_RATE) {
        (true, _) => "with a name",
        (false, true) => "alone in its bundle, as most are below 1,000 a second",
        (false, false) => "that shares its bundle",
    };
    let maxmemory = gibibytes(size.shard_bytes);
    let redis = match (size.shards, size.is_by_memory) {
        (1, _) => format!("1 master and its replica, maxmemory {maxmemory}"),
        (masters, true) => {
            format!(
                "{masters} masters and a replica for each, maxmemory {maxmemory} each; memory asks for so many"
            )
        }
        (masters, false) => {
            format!(
                "{masters} masters and a replica for each, maxmemory {maxmemory} each; their one core asks for so many"
            )
        }
    };
    vec![
        format!("replicas      {} of {REPLICA_CORES} cores", size.replicas),
        format!("Redis         {redis}"),
        format!("partitions    {}", size.partitions),
        format!("connections   {} to Redis", size.connections),
        format!(
            "a message     {:.0} us of Redis, {:.0} us of the replicas, {:.0} bytes beyond its body ({kind})",
            cost.redis_us, cost.replica_us, cost.bytes
        ),
    ]
}

fn gibibytes(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    if mib < 1024.0 {
        format!("{:.0} MiB", mib.ceil())
    } else {
        format!("{:.1} GiB", mib / 1024.0)
    }
}

/// Reads a number with one of these units behind it.
fn quantity(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let known = units.iter().find(|(name, _)| *name == unit.trim());
    let number: Option<f64> = digits.parse().ok();
    match (number, known) {
        (Some(number), Some((_, factor))) if number.is_finite() => Ok(number * factor),
        _ => {
            let names: Vec<&str> = units.iter().skip(1).map(|(name, _)| *name).collect();
            Err(format!(
                "it is a number, and behind it nothing or one of {}",
                names.join(", ")
            ))
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    quantity(text, &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)])
}

fn bytes(text: &str) -> Result<f64, String> {
    let units = [
        ("", 1.0),
        ("B", 1.0),
        ("kB", 1e3),
        ("KiB", 1024.0),
        ("MB", 1e6),
        ("MiB", 1_048_576.0),
    ];
    quantity(text, &units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(number("10k"), Ok(10_000.0));
        assert_eq!(number("2.5M"), Ok(2_500_000.0));
        assert_eq!(number("7"), Ok(7.0));
        assert_eq!(bytes("400B"), Ok(400.0));
        assert_eq!(bytes("1 KiB"), Ok(1024.0));
        for wrong in ["", "k", "-1", "1K", "1.2.3", "1e400", "1 000", "ten"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            number("1x"),
            Err("it is a number, and behind it nothing or one of k, M, G".to_owned())
        );
    }
}
