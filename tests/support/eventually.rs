//! Waiting for a condition of another process, which offers no event to wait for.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long anything may take here before a test gives up. Generous: nothing is asserted on speed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Longest wait for the start of a broker: beside many others one was seen to take more than a minute.
pub const START_LIMIT: Duration = Duration::from_secs(150);

/// How long one attempt may take: rabbitmqctl, a virtual machine of its own, takes seconds on a busy machine.
const ATTEMPT: Duration = Duration::from_secs(15);

/// Calls `attempt` until it succeeds and returns what it returned; panics with the last error when
/// [`PATIENCE`] runs out. One attempt may take [`ATTEMPT`] at most.
pub async fn eventually<T, E: Display>(
    what: &str,
    attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    match within(PATIENCE, attempt).await {
        Ok(value) => value,
        Err(last) => panic!("{what}: not within {PATIENCE:?}; last: {last}"),
    }
}

/// The same with a limit of its own; returns the last error.
pub async fn within<T, E: Display>(
    limit: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, String> {
    let end = Instant::now() + limit;
    loop {
        let last = match tokio::time::timeout(ATTEMPT, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {ATTEMPT:?}"),
        };
        if Instant::now() >= end {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
