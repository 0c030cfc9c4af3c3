//! Calls that are made again while the store is away.

use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;
use crate::backoff::Backoff;

/// Makes a call again and again while the store is not available, and for so long at most. For calls that change nothing
/// when they are repeated, and that nobody else would make again.
pub async fn until_available<T, F: Future<Output = Result<T, StoreError>>>(
    limit: Duration,
    call: impl Fn() -> F,
) -> Result<T, StoreError> {
    let end = Instant::now() + limit;
    let mut failures = 0;
    loop {
        let answer = tokio::time::timeout_at(end, call()).await;
        let answer =
            answer.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".into())));
        failures += 1;
        let wait = Backoff::CLIENT.wait(failures);
        if !matches!(answer, Err(StoreError::Unavailable(_))) || Instant::now() + wait >= end {
            return answer;
        }
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const TRY_LIMIT: Duration = Duration::from_secs(5);

    fn away() -> StoreError {
        StoreError::Unavailable("gone".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_made_until_the_store_is_back_or_the_time_is_over() {
        let calls = Cell::new(0);
        let back_at_third = || {
            calls.set(calls.get() + 1);
            let answer = if calls.get() < 3 {
                Err(away())
            } else {
                Ok(calls.get())
            };
            std::future::ready(answer)
        };
        assert_eq!(until_available(TRY_LIMIT, back_at_third).await, Ok(3));
        let began = Instant::now();
        let never = until_available(TRY_LIMIT, || std::future::ready(Err::<(), _>(away()))).await;
        assert_eq!((never, began.elapsed() <= TRY_LIMIT), (Err(away()), true));
        let silent =
            until_available(TRY_LIMIT, std::future::pending::<Result<(), StoreError>>).await;
        assert!(
            matches!(silent, Err(StoreError::Unavailable(_))),
            "{silent:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_waiting_does_not_mend_is_answered_at_once() {
        let damaged = || std::future::ready(Err::<(), _>(StoreError::Damaged("a key".into())));
        let began = Instant::now();
        assert_eq!(
            until_available(TRY_LIMIT, damaged).await,
            Err(StoreError::Damaged("a key".into()))
        );
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
