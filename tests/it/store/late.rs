//! When the oldest message of each route was to be delivered, by the store's word, whatever moved its due time since.

use std::collections::BTreeMap;

use postdate::domain::UnixMs;
use postdate::store::{Division, Remainder, SettleAnswer, StoreError};

use super::fixture::*;

fn of_route(asked: UnixMs) -> BTreeMap<String, UnixMs> {
    BTreeMap::from([(route().as_str().to_owned(), asked)])
}

/// Puts everything that is due back, to be tried again in an hour, and remembers since when it is late.
async fn put_back(fixture: &StoreFixture, asked: UnixMs) -> SettleAnswer {
    let claimed = fixture.claim(LONG).await.remove(0);
    let mut entry = unnamed(fixture.store.clock().now().plus(3_600_000), "again");
    entry.asked = Some(asked);
    entry.id = Some("~again".into());
    let fresh = postdate::store::NewBundle { route: route(), bundle: bundle(vec![entry]) };
    let back = Remainder { new_bundle: fresh, from: vec![0], lease_ms: None, expiries: 0, sequence: None };
    let division = Division {
        claim: claimed.claim,
        confirmed: vec![false],
        delivered: vec![],
        freed: vec![],
        remainders: vec![back],
        dead: vec![],
        held_keys: Vec::new(),
    };
    fixture.divide(division).await
}

#[tokio::test]
async fn what_was_put_back_is_late_from_the_moment_that_was_asked_for_until_it_has_left() {
    let fixture = StoreFixture::shared().await;
    assert_eq!(fixture.store.oldest_overdue().await.expect("asked").waiting, BTreeMap::new());
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let late = fixture.store.oldest_overdue().await.expect("asked");
    assert_eq!((late.waiting, late.put_back), (of_route(past()), BTreeMap::new()));

    assert!(matches!(put_back(&fixture, past()).await, SettleAnswer::Applied(_)));
    let late = fixture.store.oldest_overdue().await.expect("asked");
    assert_eq!(
        (late.waiting, late.put_back),
        (BTreeMap::new(), of_route(past())),
        "due in an hour, and late"
    );
    let key = fixture.key("put_back");
    assert_eq!(fixture.command::<i64>(&["ZCARD", &key]).await, 1);

    // It leaves by whatever way; here its blob is gone.
    let blobs: Vec<String> = fixture.command(&["KEYS", &fixture.key("b:*")]).await;
    fixture.command::<i64>(&["DEL", &blobs[0]]).await;
    let late = fixture.store.oldest_overdue().await.expect("asked");
    assert_eq!(late.put_back, BTreeMap::new());
    assert_eq!(fixture.command::<i64>(&["EXISTS", &key]).await, 0, "nothing is left of it");
}

#[tokio::test]
async fn put_back_of_another_type_refuses_the_call_and_hides_nothing_else() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.command::<()>(&["SET", &fixture.key("put_back"), "not ours"]).await;
    let division = Division {
        claim: claimed.claim,
        confirmed: vec![true],
        delivered: vec![],
        freed: vec![],
        remainders: vec![],
        dead: vec![],
        held_keys: Vec::new(),
    };
    let refused = fixture.store.divide(&division).await;
    assert!(matches!(refused, Err(StoreError::Damaged(_))), "{refused:?}");
    fixture.keep(vec![unnamed(past(), "b")]).await;
    let late = fixture.store.oldest_overdue().await.expect("asked");
    assert_eq!((late.waiting, late.put_back), (of_route(past()), BTreeMap::new()));
    let report = fixture.store.scrub(P).await.expect("scrubbed");
    assert_eq!(report.quarantined, ["put_back"]);
    assert!(matches!(fixture.store.divide(&division).await, Ok(SettleAnswer::Applied(_))));
}

#[tokio::test]
async fn the_memory_of_the_fullest_master_is_told() {
    let fixture = StoreFixture::shared().await;
    let memory = fixture.store.redis_memory().await.expect("asked");
    assert!(memory.used > 100_000, "{memory:?}");
    assert_eq!(memory.limit, 0);
}
