//! Reports the time that Redis spends in each command by its own count (`INFO commandstats`), the dearest first.

use crate::report::Report;
use crate::support::Redis;

/// Commands in the table of the page. The JSON has all commands.
const TABLE_COMMANDS: usize = 8;
const COMMAND_COLUMN: &str = "command us";

/// Adds the time of each command in a Redis that was started for this round, microseconds a message.
pub async fn add(report: &mut Report, redis: &Redis, messages: u64) -> anyhow::Result<()> {
    let mut connection = redis.connection().await?;
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut connection)
        .await?;
    for (command, micros) in text.lines().filter_map(spent) {
        report.add(command, COMMAND_COLUMN, micros / messages as f64);
    }
    Ok(())
}

/// Parses a line `cmdstat_NAME:calls=N,usec=N,...`.
fn spent(line: &str) -> Option<(&str, f64)> {
    let (command, account) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let micros = account
        .split(',')
        .find_map(|part| part.strip_prefix("usec="))?;
    Some((command, micros.parse().ok()?))
}

/// Adds the dearest commands as a table.
pub fn table(report: &mut Report, corner: &str) {
    let mut commands = report.rows(COMMAND_COLUMN);
    commands.sort_by(|a, b| {
        report
            .median(b, COMMAND_COLUMN)
            .total_cmp(&report.median(a, COMMAND_COLUMN))
    });
    commands.truncate(TABLE_COMMANDS);
    let rows: Vec<_> = commands
        .iter()
        .map(|command| (command.as_str(), command.as_str()))
        .collect();
    report.table(corner, &rows, &[(COMMAND_COLUMN, "us/message")]);
}
