//! Where Redis's time goes by its own account (`INFO commandstats`): the dearest commands first.

use crate::report::Report;
use crate::support::Redis;

/// So many are told; the page keeps to what matters, the JSON has them all.
const TOLD: usize = 8;
const COLUMN: &str = "command us";

/// Adds what a Redis that was started for this round has spent in each command, microseconds a message.
pub async fn add(report: &mut Report, redis: &Redis, messages: u64) -> anyhow::Result<()> {
    let mut connection = redis.connection().await?;
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
    for (command, micros) in text.lines().filter_map(spent) {
        report.add(command, COLUMN, micros / messages as f64);
    }
    Ok(())
}

/// Of a line `cmdstat_NAME:calls=N,usec=N,...`.
fn spent(line: &str) -> Option<(&str, f64)> {
    let (command, account) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
    let micros = account.split(',').find_map(|part| part.strip_prefix("usec="))?;
    Some((command, micros.parse().ok()?))
}

/// The dearest of them as a table.
pub fn table(report: &mut Report, corner: &str) {
    let mut commands = report.rows(COLUMN);
    commands.sort_by(|a, b| report.median(b, COLUMN).total_cmp(&report.median(a, COLUMN)));
    commands.truncate(TOLD);
    let rows: Vec<_> = commands.iter().map(|command| (command.as_str(), command.as_str())).collect();
    report.table(corner, &rows, &[(COLUMN, "us/message")]);
}
