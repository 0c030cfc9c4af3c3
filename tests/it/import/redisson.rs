//! A delayed queue that the real Redisson writes and serves.

use std::time::Duration;

use anyhow::anyhow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::fixture::{ImportFixture, bodies};
use crate::support::eventually;
use crate::support::not_tested::not_tested;
use crate::support::redisson::{RedissonApplication, RedissonWork, installed};
use crate::support::run::now_ms;

const HOUR_MS: u64 = 3_600_000;
const HOUR_WORK: RedissonWork<'_> = RedissonWork {
    codec: "string",
    prefix: "m",
    count: 100,
    least_ms: HOUR_MS,
    range_ms: 0,
    pause_ms: 0,
    stays: false,
};

/// Redisson's key of what waits in queue `q`.
const TIMEOUTS_KEY: &str = "redisson_delay_queue_timeout:{q}";
/// Its key of the elements.
const ELEMENTS_KEY: &str = "redisson_delay_queue:{q}";

fn is_here(test: &str) -> bool {
    installed().map_err(|why| not_tested(test, &why)).is_ok()
}

async fn left(fixture: &ImportFixture) -> (u64, u64) {
    (
        fixture.source(&["ZCARD", TIMEOUTS_KEY]).await,
        fixture.source(&["LLEN", ELEMENTS_KEY]).await,
    )
}

/// Imports what this codec wrote, with this value of `--codec`.
async fn codec_is_imported(codec: &str, option: Option<&str>) {
    let mut fixture = ImportFixture::new("").await;
    let work = RedissonWork {
        codec,
        prefix: "wert \u{e9} ",
        count: 20,
        least_ms: 30_000,
        range_ms: 4000,
        ..HOUR_WORK
    };
    let mut application = RedissonApplication::start(&fixture.source.url(), "q", work);
    application.has_offered_all().await;
    application.end().await;
    let unwrap: Vec<&str> = option
        .map(|codec| ["--codec", codec])
        .into_iter()
        .flatten()
        .collect();
    let args = [&["redisson", "--queue", "q", "--route", "r"][..], &unwrap].concat();

    let dry = fixture.import(&args).await;
    assert_eq!(
        (dry.code, dry.count("to move"), dry.count("in the queue")),
        (0, 20, 20),
        "{dry:?}"
    );
    assert!(
        dry.out.contains("nothing was changed; add --yes"),
        "{dry:?}"
    );
    let untouched = (left(&fixture).await, fixture.pending().await.len());
    assert_eq!(untouched, ((20, 20), 0), "a dry run changes nothing");

    let done = fixture.import(&[&args[..], &["--yes"]].concat()).await;
    assert_eq!(
        (
            done.code,
            done.count("moved"),
            done.count("left in the queue")
        ),
        (0, 20, 0),
        "{done:?}"
    );
    assert_eq!(
        fixture.source::<Vec<String>>(&["KEYS", "*"]).await,
        Vec::<String>::new()
    );
    let offered = application.offered().into_iter();
    let expected = offered.map(|(value, written)| match option {
        Some(_) => value.into_bytes(),
        None => STANDARD.decode(written).expect("base64"),
    });
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    assert_eq!(fixture.arrived(20).await, expected, "{codec}");
}

#[tokio::test]
async fn what_redisson_wrote_arrives_as_its_codec_wrote_it_or_unwrapped() {
    if !is_here("the import from Redisson") {
        return;
    }
    tokio::join!(
        codec_is_imported("kryo", None),
        codec_is_imported("string", Some("string")),
        codec_is_imported("json", Some("json")),
    );
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_while_redisson_writes_and_serves_the_queue() {
    if !is_here("the import from Redisson") {
        return;
    }
    let mut fixture = ImportFixture::new("").await;
    // Some fall due, and Redisson takes them, while the import moves the rest.
    let work = RedissonWork {
        count: 1500,
        least_ms: 100,
        range_ms: 6000,
        pause_ms: 3,
        stays: true,
        ..HOUR_WORK
    };
    let mut application = RedissonApplication::start(&fixture.source.url(), "q", work);
    application.has_offered(50).await;
    let args = [
        "redisson", "--queue", "q", "--route", "r", "--codec", "string", "--yes",
    ];
    let mut moved = 0;
    let mut offered = 0;
    while offered < work.count {
        offered = application.offered().len();
        let run = fixture.import(&args).await;
        assert_eq!(
            (run.code, run.count("that may arrive twice")),
            (0, 0),
            "{run:?}"
        );
        moved += run.count("moved");
    }
    application.has_offered_all().await;
    moved += fixture.import(&args).await.count("moved");
    eventually("the queue is empty", async || {
        let left = left(&fixture).await;
        if left == (0, 0) {
            Ok(())
        } else {
            Err(anyhow!("{left:?}"))
        }
    })
    .await;
    application.end().await;
    let taken: Vec<String> = fixture.source(&["LRANGE", "q", "0", "-1"]).await;
    assert!(
        moved > 0 && !taken.is_empty(),
        "both had work: {moved} moved, {} taken",
        taken.len()
    );
    assert_eq!(moved as usize + taken.len(), work.count);
    let arrived = fixture.arrived(moved as usize).await;
    let mut all: Vec<_> = arrived.into_iter().chain(bodies(taken)).collect();
    all.sort();
    assert_eq!(all, bodies((0..work.count).map(|n| format!("m{n}"))));
}

#[tokio::test]
async fn an_import_that_was_killed_goes_on_and_repeats_nothing() {
    if !is_here("the import from Redisson") {
        return;
    }
    let mut fixture = ImportFixture::new("").await;
    let work = RedissonWork {
        count: 6000,
        least_ms: 20_000,
        range_ms: 5000,
        ..HOUR_WORK
    };
    let mut application = RedissonApplication::start(&fixture.source.url(), "q", work);
    application.has_offered_all().await;
    application.end().await;
    let args = ["redisson", "--queue", "q", "--route", "r", "--yes"];
    for below in [5700, 4000] {
        let mut import = fixture.start_import(&args);
        eventually("it is under way", async || {
            let left = left(&fixture).await.0;
            if left < below {
                Ok(())
            } else {
                Err(anyhow!("{left}: {}", import.log()))
            }
        })
        .await;
        import.kill9().await;
    }
    assert!(left(&fixture).await.0 > 0, "it was killed before its end");
    // All that is stored falls due, and leaves, before the next run. On a slow machine it has left already.
    let last_due = fixture
        .pending()
        .await
        .into_iter()
        .map(|(_, due)| due)
        .max()
        .unwrap_or_default();
    eventually("all that is stored has left", async || {
        let now = now_ms();
        let waits = fixture.pending().await.len();
        if now > last_due && waits == 0 {
            Ok(())
        } else {
            Err(anyhow!("{waits}, for {} ms", last_due - now))
        }
    })
    .await;
    let last = fixture.import(&args).await;
    assert_eq!(
        (last.code, last.count("left in the queue")),
        (0, 0),
        "{last:?}"
    );
    fixture.arrived(work.count).await;
    // A repeat would be due as late as the last message.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let arrived_at_last = fixture.arrivals();
    let repeats = arrived_at_last.len() - work.count;
    // A trail loses events where Redis does not answer for two seconds, and says so; what it lost may come twice.
    let lost = fixture
        .relay()
        .total("postdate_trail_lost_total", &[])
        .await;
    assert!(lost > 0.0 || repeats == 0, "{repeats}: {last:?}");
    let mut once = arrived_at_last;
    once.dedup();
    assert_eq!(once, bodies((0..work.count).map(|n| format!("m{n}"))));
}

#[tokio::test]
async fn entries_that_redisson_did_not_write_stay_and_are_named() {
    let fixture = ImportFixture::new("").await;
    let far = (now_ms() + HOUR_MS as i64).to_string();
    fixture
        .source::<u64>(&["ZADD", TIMEOUTS_KEY, &far, "order-7\u{1b}[2J"])
        .await;
    fixture
        .source::<u64>(&["RPUSH", ELEMENTS_KEY, "order-8"])
        .await;
    for more in [&[][..], &["--yes"]] {
        let args = [&["redisson", "--queue", "q", "--route", "r"][..], more].concat();
        let refused = fixture.import(&args).await;
        assert_eq!(
            (refused.code, refused.count("that cannot be moved")),
            (1, 2),
            "{refused:?}"
        );
        for said in [
            "no element that Redisson wrote",
            "the first is `order-7\\x1b[2J`",
            "without a due time",
        ] {
            assert!(refused.out.contains(said), "{refused:?}");
        }
    }
    assert_eq!(left(&fixture).await, (1, 1));
    // What Redisson has delivered itself is not in its delayed queue.
    fixture.source::<u64>(&["RPUSH", "q", "one", "two"]).await;
    let delivered = fixture
        .import(&["redisson", "--queue", "q", "--route", "r"])
        .await;
    let said = "2 more were delivered by Redisson already";
    assert!(delivered.out.contains(said), "{delivered:?}");
    let empty = fixture
        .import(&["redisson", "--queue", "other", "--route", "r", "--yes"])
        .await;
    assert!(
        empty.code == 0 && empty.out.contains("redisson_delay_queue_timeout:*"),
        "{empty:?}"
    );
    fixture
        .source::<u64>(&["LPUSH", "redisson_delay_queue_timeout:{list}", "x"])
        .await;
    let other = fixture
        .import(&["redisson", "--queue", "list", "--route", "r"])
        .await;
    assert!(
        other.code == 1 && other.err.contains("is a list, and a zset is needed"),
        "{other:?}"
    );
    assert_eq!(fixture.pending().await, []);
}
