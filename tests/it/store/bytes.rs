//! Large contents: over a link on which they take longer than a small call may.

use std::sync::atomic::AtomicI64;

use bytes::Bytes;
use postdate::domain::Entry;
use postdate::store::{SettleAnswer, WriteResult};

use super::fixture::{LONG, StoreFixture, named, past, route, unnamed};
use crate::support::proxy::Mode;
use crate::support::{Proxy, Redis};

const MIB: usize = 1 << 20;

/// A message of so many bytes that no compression makes smaller.
fn large(name: &str, size: usize) -> Entry {
    let mut body = vec![0; size];
    fastrand::Rng::with_seed(7).fill(&mut body);
    let mut entry = named(name, past(), "");
    entry.message.body = Some(Bytes::from(body));
    entry
}

struct Slow {
    proxy: Proxy,
    fixture: StoreFixture,
}

/// A store behind a link of so many bytes a second.
async fn behind(rate: usize) -> Slow {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis.port()).await;
    let fixture =
        StoreFixture::through(redis, &format!("redis://127.0.0.1:{}", proxy.port()), 1).await;
    proxy.set(Mode::Rate(rate as u64));
    Slow { proxy, fixture }
}

#[tokio::test]
async fn a_message_that_takes_longer_than_a_small_call_may_is_stored_found_and_claimed() {
    let Slow { proxy, fixture } = behind(5 * MIB).await;
    let connections = proxy.standing();
    let entry = large("large", 16 * MIB);
    // Probes and small calls of the same connections go on behind it.
    assert_eq!(
        fixture.keep(vec![entry.clone()]).await,
        [WriteResult::Stored]
    );
    let found = fixture
        .store
        .find(&route(), "large")
        .await
        .expect("an answer")
        .expect("it is there");
    assert_eq!(found.size, 16 * MIB);
    let claimed = fixture.claim(LONG).await.remove(0);
    let bundle = claimed.bundle.as_ref().expect("it can be read");
    assert_eq!(bundle.entries[0].message.body, entry.message.body);
    assert_eq!(
        fixture.settle(&claimed).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(proxy.standing(), connections, "no connection was given up");
    fixture.check().await;
}

#[tokio::test]
async fn a_claim_that_takes_longer_than_a_small_call_may_is_read_in_steps() {
    let Slow { proxy, fixture } = behind(64 * MIB).await;
    for n in 0..24 {
        fixture.keep(vec![large(&format!("n{n}"), MIB / 2)]).await;
    }
    for n in 0..10 {
        fixture
            .keep(vec![unnamed(past(), &format!("small {n}"))])
            .await;
    }
    proxy.set(Mode::Rate(4 * MIB as u64));
    let connections = proxy.standing();
    let request = fixture.request(LONG).await;
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.len(), 34);
    assert!(claimed.iter().all(|c| c.bundle.is_ok() && c.expiries == 0));
    assert_eq!(proxy.standing(), connections, "no connection was given up");
    fixture.check().await;
}

#[tokio::test]
async fn a_claim_says_how_large_its_bundles_are_when_opened_before_they_are_read() {
    let fixture = StoreFixture::shared().await;
    let mut zeros = named("zeros", past(), "");
    zeros.message.body = Some(Bytes::from(vec![0; 3 * MIB]));
    fixture.keep(vec![zeros]).await;
    fixture.keep(vec![large("random", 2 * MIB)]).await;
    fixture.keep(vec![unnamed(past(), "small")]).await;
    let request = fixture.request(LONG).await;
    let claimed = fixture.store.claim_unread(&request).await.expect("claimed");
    let until_us = AtomicI64::new(i64::MAX);
    let measured = fixture
        .store
        .measure_claimed(request.partition, claimed, &until_us)
        .await
        .expect("measured");
    let mut mebibytes: Vec<usize> = measured.iter().map(|one| one.bytes / MIB).collect();
    mebibytes.sort_unstable();
    assert_eq!(
        mebibytes,
        [0, 2, 3],
        "three MiB of zeros are three MiB, however few lie in the store"
    );
    for one in &measured {
        assert_eq!(
            fixture.give_back(&one.claimed.claim, None).await,
            SettleAnswer::Applied(vec![])
        );
    }
    let again = fixture.claim(LONG).await;
    assert!(
        again.iter().all(|c| c.bundle.is_ok() && c.expiries == 0),
        "what was given back comes whole"
    );
    fixture.check().await;
}
