//! When the oldest message of each route was to be delivered, by the store's word, whatever moved its due time since.

use std::collections::BTreeMap;

use postdate::domain::{Entry, Partition, RouteName, UnixMs};
use postdate::store::{Claim, Division, Remainder, RetryMark, SettleAnswer, StoreError};

use super::fixture::*;

fn of_route(asked: UnixMs) -> BTreeMap<String, UnixMs> {
    BTreeMap::from([(route().as_str().to_owned(), asked)])
}

/// When the oldest message of each route was to be delivered: of what waits, and of what was put back.
async fn asked(fixture: &StoreFixture) -> [BTreeMap<String, UnixMs>; 2] {
    let late = fixture.store.oldest_overdue().await.expect("an answer");
    [late.waiting, late.put_back].map(|place| {
        let oldest = place.into_iter();
        oldest
            .map(|(route, oldest)| (route, oldest.asked))
            .collect()
    })
}

/// Puts everything that is due back, to be tried again in an hour, and remembers since when it is late.
async fn put_back(fixture: &StoreFixture, asked: UnixMs) -> SettleAnswer {
    let mut entry = unnamed(fixture.store.clock().now().plus(3_600_000), "again");
    entry.asked = Some(asked);
    entry.id = Some("~again".into());
    put_back_as(fixture, vec![entry]).await
}

/// Puts the only bundle that is due back as these messages.
async fn put_back_as(fixture: &StoreFixture, entries: Vec<Entry>) -> SettleAnswer {
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.divide(all_back(claimed.claim, entries)).await
}

/// The division that puts all of a bundle back, as these messages.
fn all_back(claim: Claim, entries: Vec<Entry>) -> Division {
    let count = entries.len();
    let from = (0..count as u32).collect();
    let fresh = postdate::store::NewBundle {
        route: route(),
        bundle: bundle(entries),
    };
    let back = Remainder {
        new_bundle: fresh,
        from,
        lease_ms: None,
        expiries: 0,
        sequence: None,
    };
    Division {
        claim,
        confirmed: vec![false; count],
        delivered: vec![],
        freed: vec![],
        remainders: vec![back],
        dead: vec![],
        held_keys: Vec::new(),
    }
}

#[tokio::test]
async fn what_was_put_back_is_late_from_the_moment_that_was_asked_for_until_it_has_left() {
    let fixture = StoreFixture::shared().await;
    assert_eq!(asked(&fixture).await[0], BTreeMap::new());
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let [waiting, returned] = asked(&fixture).await;
    assert_eq!((waiting, returned), (of_route(past()), BTreeMap::new()));

    assert!(matches!(
        put_back(&fixture, past()).await,
        SettleAnswer::Applied(_)
    ));
    let [waiting, returned] = asked(&fixture).await;
    assert_eq!(
        (waiting, returned),
        (BTreeMap::new(), of_route(past())),
        "due in an hour, and late"
    );
    let key = fixture.key("put_back");
    assert_eq!(fixture.command::<i64>(&["ZCARD", &key]).await, 1);

    // Its blob is gone: the scrub takes all of it away.
    let blobs: Vec<String> = fixture.command(&["KEYS", &fixture.key("b:*")]).await;
    fixture.command::<i64>(&["DEL", &blobs[0]]).await;
    fixture.store.scrub(P).await.expect("scrubbed");
    let [_, returned] = asked(&fixture).await;
    assert_eq!(returned, BTreeMap::new());
    assert_eq!(
        fixture.command::<i64>(&["EXISTS", &key]).await,
        0,
        "nothing is left of it"
    );
}

/// More bundles than one read of the set shows fail again and again.
#[tokio::test]
async fn put_back_holds_the_bundles_that_are_put_back_and_no_other_however_often_they_fail() {
    const BUNDLES: i64 = 600;
    let fixture = StoreFixture::shared().await;
    let key = fixture.key("put_back");
    let listed = async || fixture.command::<i64>(&["ZCARD", &key]).await;
    for n in 0..BUNDLES {
        fixture.keep(vec![unnamed(past().plus(n), "a")]).await;
    }
    for tries in 1..=4 {
        let mut claimed = Vec::new();
        while claimed.len() < BUNDLES as usize {
            claimed.extend(fixture.claim(LONG).await);
        }
        for claimed in claimed {
            let mut again = entries(&claimed).to_vec();
            again[0].asked = Some(past());
            let answer = fixture.divide(all_back(claimed.claim, again)).await;
            assert!(matches!(answer, SettleAnswer::Applied(_)));
        }
        asked(&fixture).await;
        assert_eq!(listed().await, BUNDLES, "after {tries} tries");
    }
    while !fixture.heads().await.is_empty() {
        for claimed in fixture.claim(LONG).await {
            fixture.settle(&claimed).await;
        }
    }
    assert_eq!(listed().await, 0, "all have left");
    fixture.check().await;
}

#[tokio::test]
async fn put_back_of_another_type_refuses_the_call_and_hides_nothing_else() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.keep(vec![unnamed(past(), "b")]).await;
    fixture
        .command::<()>(&["SET", &fixture.key("put_back"), "not ours"])
        .await;
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
    assert!(
        matches!(refused, Err(StoreError::Damaged(_))),
        "{refused:?}"
    );
    let [waiting, returned] = asked(&fixture).await;
    assert_eq!((waiting, returned), (of_route(past()), BTreeMap::new()));
    let report = fixture.store.scrub(P).await.expect("scrubbed");
    assert_eq!(report.quarantined, ["put_back"]);
    assert!(matches!(
        fixture.store.divide(&division).await,
        Ok(SettleAnswer::Applied(_))
    ));
}

#[tokio::test]
async fn the_memory_of_the_fullest_master_is_told() {
    let fixture = StoreFixture::shared().await;
    let memory = fixture.store.redis_memory().await.expect("asked");
    assert!(memory.used > 100_000, "{memory:?}");
    assert_eq!(memory.limit, 0);
}

/// All pages of the retries of a route, each no longer than asked for.
async fn retries(fixture: &StoreFixture, of: Option<&RouteName>, limit: usize) -> Vec<String> {
    let (mut found, mut after): (_, Option<RetryMark>) = (Vec::new(), None);
    loop {
        let page = fixture
            .store
            .retries(of, after.as_ref(), limit)
            .await
            .expect("listed");
        assert!(page.found.len() <= limit, "{limit}: {}", page.found.len());
        found.extend(page.found.into_iter().map(|message| message.id.to_string()));
        assert!(
            page.next.is_none() || page.next != after,
            "no progress at {after:?}"
        );
        after = page.next;
        if after.is_none() {
            found.sort();
            return found;
        }
    }
}

#[tokio::test]
async fn what_failed_and_waits_is_listed_once_whatever_the_page_and_nothing_else_is() {
    let fixture = StoreFixture::on(crate::support::Redis::shared().await, 3).await;
    let later = fixture.store.clock().now().plus(3_600_000);
    let mut expected = Vec::new();
    for n in 0..40_u32 {
        let fixture = fixture.at(Partition((n % 3) as u16));
        // Some share the moment for which they were asked, so that pages end among equals.
        let asked = past().plus(i64::from(n / 7));
        let count = 1 + n % 4;
        let was = |_| unnamed(asked, "first");
        fixture.keep((0..count).map(was).collect()).await;
        let again = (0..count).map(|m| {
            let id = format!("~{n}.{m}");
            // One in five was given back, but has never failed.
            let failures = u32::from((n + m) % 5 > 0);
            if failures > 0 {
                expected.push(id.clone());
            }
            Entry {
                id: Some(id.as_str().into()),
                asked: Some(asked),
                failures,
                ..unnamed(later, "again")
            }
        });
        assert!(matches!(
            put_back_as(&fixture, again.collect()).await,
            SettleAnswer::Applied(_)
        ));
        // What waits for the first time is no retry.
        fixture.keep(vec![unnamed(far(), "waits")]).await;
    }
    expected.sort();
    for limit in [1, 2, 7, 1000] {
        assert_eq!(
            retries(&fixture, None, limit).await,
            expected,
            "limit {limit}"
        );
        assert_eq!(
            retries(&fixture, Some(&route()), limit).await,
            expected,
            "limit {limit}"
        );
    }
    let other = RouteName::new("another").expect("a name");
    assert_eq!(
        retries(&fixture, Some(&other), 3).await,
        Vec::<String>::new()
    );
}
