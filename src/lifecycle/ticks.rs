//! Common ticks: periodic work of the whole process wakes up together, and an idle process sleeps in between. A wake-up
//! costs more than most of the work behind it.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

static TICK_ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next tick of this period. All callers with one period share its ticks, and each of them is also a tick
/// of every period that divides it. Cancel-safe.
pub async fn tick(period: Duration) {
    tokio::time::sleep(until_tick(period)).await;
}

/// The time until the next tick of this period: above zero, at most the period. The period must not be zero.
pub fn until_tick(period: Duration) -> Duration {
    let since = Instant::now().saturating_duration_since(*TICK_ORIGIN);
    period.saturating_sub(Duration::from_nanos(
        (since.as_nanos() % period.as_nanos()) as u64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_one_period_or_a_part_of_it_wakes_up_together() {
        for waited in [1, 370, 999, 1000, 4321] {
            tokio::time::sleep(Duration::from_millis(waited)).await;
            let next = until_tick(SECOND);
            assert!(next > Duration::ZERO && next <= SECOND, "{next:?}");
            let parts = until_tick(SECOND / 4);
            assert_eq!(
                parts.as_nanos(),
                (next.as_nanos() - 1) % (SECOND / 4).as_nanos() + 1
            );
            let began = Instant::now();
            tick(SECOND).await;
            assert!(began.elapsed() >= next && began.elapsed() < next + Duration::from_millis(2));
        }
    }
}
