//! Common ticks: what recurs wakes up together with what else does. An idle process sleeps in between; a wake-up by
//! itself costs more than most of what it is for.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next tick of this period. The ticks of a period are the same for all who wait for them, and are among
/// those of its parts. Cancel-safe.
pub async fn tick(period: Duration) {
    tokio::time::sleep(until_tick(period)).await;
}

/// How long until then: all of the period at most. It is not zero, nor may the period be.
pub fn until_tick(period: Duration) -> Duration {
    let since = Instant::now().saturating_duration_since(*START);
    period.saturating_sub(Duration::from_nanos((since.as_nanos() % period.as_nanos()) as u64))
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
            assert_eq!(parts.as_nanos(), (next.as_nanos() - 1) % (SECOND / 4).as_nanos() + 1);
            let began = Instant::now();
            tick(SECOND).await;
            assert!(began.elapsed() >= next && began.elapsed() < next + Duration::from_millis(2));
        }
    }
}
