//! The exporter on paused time, with a collector that answers by a script.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::*;
use crate::lifecycle::{Shutdown, Tasks};
use crate::telemetry::traces::queue::{MAX_BATCH_SPANS, MAX_SPAN_BYTES, SpanQueue, span_queue};
use crate::telemetry::traces::testing::span;

/// Time for a shutdown, of which the last spans have a twentieth.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Answer of the scripted collector to one try.
#[derive(Clone, Debug)]
enum Answer {
    Take(u64),
    Refuse,
    Fail(SpanLoss, Option<Duration>),
}

impl Answer {
    fn result(&self) -> PostResult {
        match self {
            Self::Take(rejected) => Ok(TakenRequest {
                rejected: *rejected,
                ..TakenRequest::default()
            }),
            Self::Refuse => Err(PostFailure::Refused("no".to_owned())),
            Self::Fail(cause, retry_after) => Err(PostFailure::Passing {
                cause: *cause,
                error: "not now".to_owned(),
                retry_after: *retry_after,
            }),
        }
    }
}

/// An exporter with its collector.
struct ExportFixture {
    queue: SpanQueue,
    losses: SpanLosses,
    shutdown: Shutdown,
    /// Moments of the tries, with the sizes of their bodies.
    tries: Arc<Mutex<Vec<(Instant, usize)>>>,
    began: Instant,
    tasks: Tasks,
}

impl ExportFixture {
    /// Answers by the script, and then always by `last`.
    fn start(script: impl IntoIterator<Item = Answer>, last: Answer) -> Self {
        let script: Mutex<VecDeque<Answer>> = Mutex::new(script.into_iter().collect());
        Self::post(move || {
            script
                .lock()
                .pop_front()
                .unwrap_or_else(|| last.clone())
                .result()
        })
    }

    fn post(answer: impl Fn() -> PostResult + Send + Sync + 'static) -> Self {
        let losses = SpanLosses::default();
        let shutdown = Shutdown::default();
        let tries: Arc<Mutex<Vec<(Instant, usize)>>> = Arc::default();
        let began = Instant::now();
        let (queue, spans) = span_queue(losses.clone());
        let noted = tries.clone();
        let transport = SpanTransport {
            endpoint: "http://collector/v1/traces".to_owned(),
            post: Arc::new(move |body| {
                noted.lock().push((Instant::now(), body.len()));
                answer()
            }),
        };
        let exporter = SpanExporter::new(
            transport,
            "replica".to_owned(),
            spans,
            losses.clone(),
            SHUTDOWN_TIMEOUT,
        );
        let ends = shutdown.clone();
        let tasks = Tasks::default();
        tasks.spawn("traces", async move { exporter.run(ends.draining()).await });
        Self {
            queue,
            losses,
            shutdown,
            tries,
            began,
            tasks,
        }
    }

    fn record(&self, spans: usize) {
        for _ in 0..spans {
            self.queue.record(span(10));
        }
    }

    fn tries(&self) -> Vec<Instant> {
        self.tries.lock().iter().map(|(at, _)| *at).collect()
    }

    /// Ends the exporter. Returns the time that it took.
    async fn end(self) -> Duration {
        let began = Instant::now();
        self.shutdown.begin();
        self.tasks
            .ended(SHUTDOWN_TIMEOUT)
            .await
            .expect("the exporter ends");
        began.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_away_is_tried_for_half_a_minute_with_growing_waits() {
    let away = Answer::Fail(SpanLoss::Away, None);
    let fixture = ExportFixture::start([], away);
    fixture.record(3);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        fixture.losses.count(SpanLoss::Away),
        0,
        "nothing is lost at once"
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.losses.count(SpanLoss::Away), 3);
    let tries = fixture.tries();
    assert_eq!(tries[0], fixture.began + GATHER_TIME);
    assert_eq!(
        *tries.last().expect("tries"),
        tries[0] + RETRY_LIMIT,
        "the last try is at the limit"
    );
    for (failures, pair) in (1..).zip(tries.windows(2)) {
        let wait = pair[1] - pair[0];
        let ceiling = Backoff::CLIENT.ceiling(failures);
        // Tokio's clock has whole milliseconds.
        assert!(
            wait <= ceiling + Duration::from_millis(1),
            "{failures}: {wait:?}"
        );
        let is_last = failures as usize == tries.len() - 1;
        assert!(is_last || wait >= ceiling / 2, "{failures}: {wait:?}");
    }
    assert!((16..=60).contains(&tries.len()), "{tries:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_at_last_loses_nothing_and_is_the_same_one() {
    let script = [
        Answer::Fail(SpanLoss::Away, None),
        Answer::Fail(SpanLoss::Busy, None),
        Answer::Fail(SpanLoss::Busy, Some(Duration::from_secs(7))),
    ];
    let fixture = ExportFixture::start(script, Answer::Take(0));
    fixture.record(3);
    tokio::time::sleep(Duration::from_secs(12)).await;
    let tries = fixture.tries.lock().clone();
    assert_eq!(tries.len(), 4, "{tries:?}");
    let wait = tries[3].0 - tries[2].0;
    let rounding = Duration::from_millis(1);
    assert!(
        wait >= Duration::from_secs(7) && wait <= Duration::from_secs(7) + rounding,
        "{wait:?}"
    );
    assert!(
        tries.iter().all(|(_, bytes)| *bytes == tries[0].1),
        "{tries:?}"
    );
    assert_eq!(fixture.losses.total(), 0);
    fixture.record(1);
    assert!(
        fixture.end().await < Duration::from_millis(10),
        "a good collector delays no stop"
    );
}

#[tokio::test(start_paused = true)]
async fn the_wait_that_a_collector_asks_for_is_bounded() {
    let fixture = ExportFixture::start([], Answer::Fail(SpanLoss::Busy, Some(Duration::MAX)));
    fixture.record(1);
    tokio::time::sleep(Duration::from_secs(32)).await;
    assert_eq!(fixture.losses.count(SpanLoss::Busy), 1);
    fixture.record(1);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fixture.losses.count(SpanLoss::Busy), 2);
    // The next request waits as well before it is tried at all.
    let expected: Vec<Instant> = (0..4)
        .map(|n| fixture.began + GATHER_TIME + n * RETRY_LIMIT)
        .collect();
    let tries = fixture.tries();
    assert_eq!(tries.len(), expected.len(), "{tries:?}");
    for (at, expected) in tries.into_iter().zip(expected) {
        assert!(
            at >= expected && at - expected < Duration::from_millis(20),
            "{at:?}, not {expected:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_or_rejected_is_lost_at_once_and_counted_by_its_cause() {
    let fixture = ExportFixture::start([Answer::Refuse, Answer::Take(2)], Answer::Take(1000));
    for _ in 0..3 {
        fixture.record(5);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(fixture.tries().len(), 3, "none is sent again");
    assert_eq!(fixture.losses.count(SpanLoss::Refused), 5);
    assert_eq!(
        fixture.losses.count(SpanLoss::Rejected),
        2 + 5,
        "no more than were sent"
    );
    assert_eq!(fixture.losses.total(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_stop_tries_each_request_once_more_and_takes_a_second_at_most() {
    let fixture = ExportFixture::start([], Answer::Fail(SpanLoss::Away, Some(RETRY_LIMIT)));
    fixture.record(MAX_BATCH_SPANS + 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.tries().len(), 1);
    let losses = fixture.losses.clone();
    let tries = fixture.tries.clone();
    let stopped_at = Instant::now();
    let took = fixture.end().await;
    assert!(took <= FLUSH_LIMIT, "{took:?}");
    assert_eq!(losses.total(), MAX_BATCH_SPANS as u64 + 1);
    let last: Vec<Duration> = tries.lock()[1..]
        .iter()
        .map(|(at, _)| *at - stopped_at)
        .collect();
    assert_eq!(
        last,
        [FLUSH_LIMIT / 2; 2],
        "one try for each of the two requests"
    );
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_hangs_delays_a_stop_by_a_second_and_all_spans_are_accounted_for() {
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let hangs = Mutex::new(hangs);
    let fixture = ExportFixture::post(move || {
        // Returns when the test is over, as its sender is dropped.
        let ended = hangs.lock().recv();
        Err(PostFailure::Refused(format!("the test is over: {ended:?}")))
    });
    let recorded = 3 * MAX_BATCH_SPANS;
    fixture.record(recorded);
    while fixture.tries().is_empty() {
        tokio::task::yield_now().await;
    }
    let losses = fixture.losses.clone();
    fixture.shutdown.begin();
    tokio::task::yield_now().await;
    // A blocking call holds the paused clock.
    tokio::time::advance(FLUSH_LIMIT).await;
    fixture
        .tasks
        .ended(SHUTDOWN_TIMEOUT)
        .await
        .expect("the exporter ends");
    assert_eq!(losses.count(SpanLoss::Shutdown), recorded as u64);
    assert_eq!(losses.total(), recorded as u64);
    fixture.queue.record(span(1));
    assert_eq!(
        losses.count(SpanLoss::Shutdown),
        recorded as u64 + 1,
        "nobody takes it any more"
    );
    drop(release);
}

#[tokio::test(start_paused = true)]
async fn beside_a_collector_that_is_away_the_queue_is_bounded_and_empties_once_it_is_back() {
    let script = (0..5).map(|_| Answer::Fail(SpanLoss::Away, None));
    let fixture = ExportFixture::start(script, Answer::Take(0));
    let fit = MAX_SPAN_BYTES / span(10).size();
    fixture.record(fit + 100);
    assert_eq!(fixture.losses.count(SpanLoss::QueueFull), 100);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.losses.total(), 100, "all others were taken");
    fixture.record(fit);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.losses.total(), 100, "the bytes are free again");
}

#[test]
fn the_last_spans_have_less_time_than_the_last_stage_of_a_drain() {
    for timeout in [
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(600),
    ] {
        let limit = (timeout / FLUSH_SHARE).min(FLUSH_LIMIT);
        assert!(
            limit < timeout / 16 && limit <= Duration::from_secs(1),
            "{timeout:?}"
        );
    }
}
