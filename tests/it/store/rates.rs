//! Token buckets: what all replicas together are granted stays under the line, and nothing but use empties one.

use postdate::domain::RateLimit;
use postdate::store::RateGrant;

use super::fixture::{StoreFixture, route};

/// Redis's own clock, microseconds.
async fn now_us(fixture: &StoreFixture) -> i64 {
    let (seconds, micros): (i64, i64) = fixture.command(&["TIME"]).await;
    seconds * 1_000_000 + micros
}

async fn lease(fixture: &StoreFixture, rate: RateLimit, wanted: u32) -> RateGrant {
    fixture
        .store
        .take_tokens(&route(), rate, wanted)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn a_full_bucket_gives_its_burst_and_then_its_rate() {
    let fixture = StoreFixture::shared().await;
    // So slow that nothing comes back while this test looks.
    let rate = RateLimit {
        per_second: 1,
        burst: 10_000,
    };
    assert_eq!(lease(&fixture, rate, 4000).await.granted, 4000);
    let rest = lease(&fixture, rate, u32::MAX).await.granted;
    assert!(
        (6000..6600).contains(&rest),
        "what was left, and what came meanwhile: {rest}"
    );
    let empty = lease(&fixture, rate, 1).await;
    assert!(
        empty.granted <= 1 && empty.wait_us > 0 && empty.wait_us <= 1_000_000,
        "{empty:?}"
    );
    assert!(empty.until(3, rate) > empty.until(1, rate));
    let other = postdate::domain::RouteName::new("mail").expect("a name");
    let full = fixture
        .store
        .take_tokens(&other, rate, 5)
        .await
        .expect("an answer");
    assert_eq!(full.granted, 5, "each route has its own");
    assert!(full.wait_us <= 0, "and more is there: {full:?}");
}

#[tokio::test]
async fn two_replicas_together_stay_under_the_line_and_use_it_up() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    let rate = RateLimit {
        per_second: 2000,
        burst: 50,
    };
    assert_eq!(rate.capacity(), 200, "a tenth of a second's worth");
    let started = now_us(&fixture).await;
    let mut granted = 0u64;
    let mut past_full = 0;
    while granted < 2000 {
        let (a, b) = tokio::join!(lease(&fixture, rate, 30), lease(&other, rate, 50));
        granted += u64::from(a.granted + b.granted);
        let passed_us = now_us(&fixture).await - started;
        let line = 200 + passed_us as u64 * 2000 / 1_000_000 + 1;
        assert!(granted <= line, "{granted} granted, at most {line} by now");
        past_full += u64::from(a.granted + b.granted == 80);
    }
    println!("{granted} granted; {past_full} times nobody had to wait");
}

#[tokio::test]
async fn a_clock_that_stepped_back_or_damage_costs_a_bucket_at_most() {
    let fixture = StoreFixture::shared().await;
    let key = format!("{}:{{0}}:rates", fixture.config.prefix);
    let rate = RateLimit {
        per_second: 10,
        burst: 10,
    };
    let far = (now_us(&fixture).await + 3_600_000_000).to_string();
    fixture
        .command::<i64>(&["HSET", &key, "orders", &far])
        .await;
    let lease_now = lease(&fixture, rate, 1).await;
    assert!(
        lease_now.wait_us <= 100_000,
        "the next token is one interval away: {lease_now:?}"
    );
    fixture
        .command::<i64>(&["HSET", &key, "orders", "no number"])
        .await;
    assert_eq!(
        lease(&fixture, rate, 10).await.granted,
        10,
        "what cannot be read is a full bucket"
    );
    fixture.command::<i64>(&["DEL", &key]).await;
    fixture.command::<String>(&["SET", &key, "x"]).await;
    assert!(
        fixture.store.take_tokens(&route(), rate, 1).await.is_err(),
        "a key that is not ours is not touched"
    );
}
