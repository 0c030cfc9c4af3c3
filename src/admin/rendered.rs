//! The text of `/metrics`: rendered at most once a second, however many ask, and shared by all who do.

use std::time::Duration;

use axum::body::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use crate::domain::Clock;

/// Shortest time between two renderings. Integration tests poll the metrics for what they wait for: in a build for tests
/// it is shorter.
const RENDER_INTERVAL: Duration = Duration::from_millis(if cfg!(feature = "test-util") {
    50
} else {
    1000
});

/// The last rendering.
#[derive(Default)]
pub(super) struct RenderedMetrics(Mutex<Option<Rendering>>);

struct Rendering {
    /// Begin of the rendering, monotonic microseconds.
    at_us: i64,
    text: Bytes,
}

impl RenderedMetrics {
    /// The text, never older than this call: a call that comes too soon after a rendering waits for the next one, at most
    /// [`RENDER_INTERVAL`], and shares it with the others that wait.
    pub(super) async fn text(
        &self,
        registry: &Registry,
        clock: Clock,
    ) -> Result<Bytes, std::fmt::Error> {
        let asked_us = clock.mono_us();
        let mut last = self.0.lock().await;
        if let Some(Rendering { at_us, text }) = &*last {
            if *at_us >= asked_us {
                return Ok(text.clone());
            }
            let since = Duration::from_micros((clock.mono_us() - at_us).max(0).unsigned_abs());
            tokio::time::sleep(RENDER_INTERVAL.saturating_sub(since)).await;
        }
        let at_us = clock.mono_us();
        let mut text = String::new();
        encode(&mut text, registry)?;
        let text = Bytes::from(text);
        *last = Some(Rendering {
            at_us,
            text: text.clone(),
        });
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[tokio::test]
    async fn all_who_ask_too_soon_share_one_rendering_that_is_not_older_than_their_question() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("things", "Things", counter.clone());
        let rendered = RenderedMetrics::default();
        let clock = Clock::start();
        let ask = || async { rendered.text(&registry, clock).await.expect("rendered") };
        let first = ask().await;
        counter.inc();
        let began = clock.mono_us();
        let texts = join_all((0..100).map(|_| ask())).await;
        let waited = Duration::from_micros((clock.mono_us() - began).unsigned_abs());
        assert!(
            std::str::from_utf8(&first)
                .expect("text")
                .contains("things_total 0"),
            "{first:?}"
        );
        for text in &texts {
            assert!(
                std::str::from_utf8(text)
                    .expect("text")
                    .contains("things_total 1"),
                "{text:?}"
            );
            assert_eq!(text.as_ptr(), texts[0].as_ptr(), "rendered again");
        }
        assert!(waited > RENDER_INTERVAL / 2, "{waited:?}");
    }
}
