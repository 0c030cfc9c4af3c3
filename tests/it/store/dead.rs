//! Dead letters: pages over all partitions, redrives and drops that are applied once, names and queues.

use std::collections::BTreeSet;
use std::time::Duration;

use postdate::domain::{DeadReason, Flags, InvalidReason, RouteName, UnixMs};
use postdate::store::{
    CodecError, DeadFilter, DeadId, DeadLetter, DeadMark, DeadOrder, MessageFilter, StoreError,
    WriteOp, WriteResult,
};

use super::fixture::*;
use super::proxy::Proxy;
use crate::support::Redis;

fn write_dead(route: &str, reason: DeadReason, body: &str) -> WriteOp {
    let route = RouteName::new(route).expect("a name");
    WriteOp::DeadLetter(DeadLetter {
        route,
        reason,
        bundle: bundle(vec![unnamed(past(), body)]),
        raw: None,
    })
}

const INVALID: DeadReason = DeadReason::Invalid(InvalidReason::BadDelay);

/// All that a filter means, by pages. The other order tells the same.
async fn pages(fixture: &StoreFixture, filter: &DeadFilter, limit: usize) -> Vec<DeadMark> {
    let all = ordered_pages(fixture, filter, limit).await;
    assert!(all.is_sorted(), "oldest first");
    let newest_first = DeadFilter {
        order: DeadOrder::NewestFirst,
        ..filter.clone()
    };
    let mut reversed = ordered_pages(fixture, &newest_first, limit).await;
    reversed.reverse();
    assert_eq!(reversed, all, "newest first");
    all
}

async fn ordered_pages(fixture: &StoreFixture, filter: &DeadFilter, limit: usize) -> Vec<DeadMark> {
    let (mut all, mut after): (Vec<DeadMark>, _) = (Vec::new(), None);
    loop {
        let page = fixture
            .store
            .dead_page(filter, after.as_ref(), limit)
            .await
            .expect("a page");
        assert!(page.marks.len() <= limit);
        all.extend(page.marks);
        after = page.next;
        if after.is_none() {
            assert_eq!(
                all.iter().collect::<BTreeSet<_>>().len(),
                all.len(),
                "each once"
            );
            return all;
        }
    }
}

async fn only(fixture: &StoreFixture) -> DeadId {
    let page = fixture
        .store
        .dead_page(&DeadFilter::default(), None, 10)
        .await
        .expect("a page");
    assert_eq!(page.marks.len(), 1);
    page.marks[0].id.clone()
}

#[tokio::test]
async fn pages_are_in_order_over_all_partitions_and_routes_whatever_their_size() {
    let fixture = StoreFixture::on(Redis::shared().await, 3).await;
    for n in 0..20 {
        for p in fixture.store.partitions().all() {
            let ops = vec![
                write_dead("orders", DeadReason::Attempts, &format!("a{n}")),
                write_dead("orders", DeadReason::Unroutable, &format!("u{n}")),
                write_dead("orders", INVALID, &format!("i{n}")),
                write_dead("mail", INVALID, &format!("m{n}")),
            ];
            fixture.store.write(p, ops).await.expect("written");
        }
    }
    let all = DeadFilter::default();
    let whole = pages(&fixture, &all, 1000).await;
    assert_eq!(whole.len(), 240);
    for limit in [1, 7, 100] {
        assert_eq!(pages(&fixture, &all, limit).await, whole);
    }
    let of = async |filter: DeadFilter| pages(&fixture, &filter, 9).await.len();
    let route = RouteName::new("orders");
    assert_eq!(
        of(DeadFilter {
            route: route.clone(),
            ..all.clone()
        })
        .await,
        180
    );
    assert_eq!(
        of(DeadFilter {
            route,
            reason: Some(INVALID),
            ..all.clone()
        })
        .await,
        60
    );
    assert_eq!(
        of(DeadFilter {
            reason: Some(DeadReason::Unroutable),
            ..all.clone()
        })
        .await,
        60
    );
    assert_eq!(
        of(DeadFilter {
            invalid: Some(true),
            ..all.clone()
        })
        .await,
        120
    );
    assert_eq!(
        of(DeadFilter {
            reason: Some(DeadReason::Crashes),
            ..all.clone()
        })
        .await,
        0
    );
    assert_eq!(
        of(DeadFilter {
            route: RouteName::new("none"),
            ..all.clone()
        })
        .await,
        0
    );
    let at = whole[100].at;
    let since = whole.iter().filter(|mark| mark.at >= at).count();
    assert_eq!(
        of(DeadFilter {
            from: Some(at),
            ..all.clone()
        })
        .await,
        since
    );
    assert_eq!(
        of(DeadFilter {
            to: Some(at),
            ..all.clone()
        })
        .await,
        240 - since
    );
    let counts = fixture.counts().await;
    assert_eq!((counts.dead, counts.invalid), (180, 60));
    assert!(counts.invalid_bytes > 0 && counts.dead_bytes > 2 * counts.invalid_bytes);
    let dropped = fixture
        .store
        .drop_dead(&whole.into_iter().map(|m| m.id).collect::<Vec<_>>())
        .await;
    assert_eq!(dropped, Ok(vec![true; 240]));
    assert_eq!(pages(&fixture, &all, 10).await, []);
    let counts = fixture.counts().await;
    assert_eq!(
        (
            counts.dead,
            counts.dead_bytes,
            counts.invalid,
            counts.invalid_bytes
        ),
        (0, 0, 0, 0)
    );
}

#[tokio::test]
async fn more_of_one_millisecond_than_a_page_holds_are_all_seen() {
    let fixture = StoreFixture::shared().await;
    // One script has one time.
    let ops = (0..48)
        .map(|n| write_dead("orders", DeadReason::Attempts, &format!("{n}")))
        .collect();
    fixture.write(ops).await;
    assert_eq!(pages(&fixture, &DeadFilter::default(), 1).await.len(), 48);
}

#[tokio::test]
async fn a_redriven_name_is_its_own_again_unless_it_is_taken() {
    let fixture = StoreFixture::shared().await;
    for taken in [false, true] {
        fixture.wipe().await;
        let dead = dead_letter(named("n", past(), "dead"));
        fixture.write(vec![WriteOp::DeadLetter(dead.clone())]).await;
        if taken {
            fixture.keep(vec![named("n", far(), "new")]).await;
        }
        let id = only(&fixture).await;
        assert_eq!(
            fixture
                .store
                .redrive(&id, &bundle(vec![named("n", far(), "dead")]))
                .await,
            Ok(true)
        );
        let s = fixture.check().await;
        assert_eq!(
            (s.dead.len(), s.bundles.len()),
            (0, if taken { 2 } else { 1 })
        );
        assert_eq!(
            fixture.store.redrive(&id, &dead.bundle).await,
            Ok(false),
            "it is not there any more"
        );
        assert_eq!(fixture.cancel("n").await, WriteResult::Cancelled);
        let left = fixture.check().await;
        let bodies: Vec<_> = left.bundles.values().map(|b| body(&b.entries[0])).collect();
        assert_eq!(
            bodies,
            if taken { vec!["dead"] } else { vec![] },
            "the cancel meant the name's owner"
        );
    }
}

/// A message on its way to the dead letters has given up its name, and one that a replay leaves to the next never had it.
#[tokio::test]
async fn an_id_that_is_no_name_takes_none() {
    let fixture = StoreFixture::shared().await;
    for dying in [false, true] {
        for store in [keep as fn(Vec<_>) -> WriteOp, replace] {
            fixture.wipe().await;
            let mut other = named("n", far(), "other");
            other.flags = if dying {
                Flags(Flags::DYING)
            } else {
                Flags::default()
            };
            let own = named("n", far(), "own");
            for op in [
                store(vec![other.clone()]),
                store(vec![own]),
                store(vec![other]),
            ] {
                assert_eq!(
                    fixture.write(vec![op]).await,
                    [[WriteResult::Stored]],
                    "dying {dying}"
                );
            }
            assert_eq!(fixture.check().await.bundles.len(), 3, "dying {dying}");
            assert_eq!(fixture.body_of("n").await.as_deref(), Some("own"));
        }
    }
}

/// A `~` id says where its message once was, in a bundle or on its way past the store.
#[tokio::test]
async fn a_redriven_message_is_found_and_cancelled_by_its_id_whoever_gave_that() {
    let fixture = StoreFixture::shared().await;
    for id in ["~1p.0.k3x9.1z.2.1", "~k3x9.0.7", "n"] {
        fixture.wipe().await;
        let mut entry = named(id, far(), "d");
        if id.starts_with('~') {
            entry.flags = Flags::default();
        }
        let dead = dead_letter(entry);
        fixture.write(vec![WriteOp::DeadLetter(dead.clone())]).await;
        let dead_id = only(&fixture).await;
        assert_eq!(
            fixture.store.redrive(&dead_id, &dead.bundle).await,
            Ok(true)
        );
        let found = fixture
            .store
            .find_whole(&route(), id)
            .await
            .expect("looked");
        assert_eq!(found.map(|found| body(&found.entry)), Some("d".to_owned()));
        let op = WriteOp::Cancel {
            route: route(),
            id: id.into(),
            of: None,
        };
        let p = fixture.store.home_of(&route(), id);
        assert_eq!(
            fixture.store.command(p, op).await,
            Ok(WriteResult::Cancelled),
            "{id}"
        );
        assert_eq!(fixture.check().await.bundles.len(), 0, "{id}");
    }
}

#[tokio::test]
async fn a_redrive_rings_and_is_claimed_at_once() {
    let fixture = StoreFixture::shared().await;
    fixture
        .write(vec![write_dead("orders", DeadReason::Attempts, "d")])
        .await;
    fixture.store.wake().take(0);
    let id = only(&fixture).await;
    assert_eq!(
        fixture
            .store
            .redrive(&id, &bundle(vec![unnamed(past(), "d")]))
            .await,
        Ok(true)
    );
    assert_eq!(fixture.store.wake().peek(0), Some(past()));
    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["d"]);
}

#[tokio::test]
async fn interleaving_33_a_redrive_or_a_drop_whose_reply_is_lost_is_applied_once_and_says_so() {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis).await;
    let fixture = proxy.fixture(redis).await;
    let keep_dead = async |body| {
        fixture
            .write(vec![write_dead("orders", DeadReason::Attempts, body)])
            .await
    };
    keep_dead("warm").await;
    let id = only(&fixture).await;
    fixture
        .store
        .redrive(&id, &bundle(vec![unnamed(far(), "warm")]))
        .await
        .expect("redriven");
    keep_dead("warm").await;
    fixture
        .store
        .drop_dead(&[only(&fixture).await])
        .await
        .expect("dropped");
    keep_dead("a").await;
    let id = only(&fixture).await;
    proxy.lose_next_reply();
    assert_eq!(
        fixture
            .store
            .redrive(&id, &bundle(vec![unnamed(far(), "a")]))
            .await,
        Ok(true)
    );
    keep_dead("b").await;
    let id = only(&fixture).await;
    proxy.lose_next_reply();
    assert_eq!(fixture.store.drop_dead(&[id]).await, Ok(vec![true]));
    assert_eq!(proxy.played(), 2);
    let s = fixture.check().await;
    assert_eq!((s.bundles.len(), s.dead.len()), (2, 0));
}

#[tokio::test]
async fn two_who_redrive_the_same_letter_publish_it_once() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    for _ in 0..50 {
        fixture
            .write(vec![write_dead("orders", DeadReason::Attempts, "d")])
            .await;
        let id = only(&fixture).await;
        let again = bundle(vec![unnamed(far(), "d")]);
        let (a, b) = tokio::join!(
            fixture.store.redrive(&id, &again),
            other.store.redrive(&id, &again)
        );
        assert_ne!(a.expect("answered"), b.expect("answered"), "one of them");
    }
    assert_eq!(fixture.check().await.bundles.len(), 50);
}

#[tokio::test]
async fn what_cannot_be_read_is_shown_as_such_and_can_be_dropped() {
    let fixture = StoreFixture::shared().await;
    let raw = Some(bytes::Bytes::from_static(b"not a bundle"));
    let reason = DeadReason::Corrupt;
    let corrupt = DeadLetter {
        route: route(),
        reason,
        bundle: bundle(vec![]),
        raw,
    };
    fixture.write(vec![WriteOp::DeadLetter(corrupt)]).await;
    let id = only(&fixture).await;
    let found = fixture
        .store
        .dead_letters(std::slice::from_ref(&id))
        .await
        .expect("read")
        .remove(0);
    let found = found.expect("it is there");
    assert_eq!(
        (found.bytes, found.bundle.err()),
        (12, Some(CodecError::NotABundle))
    );
    assert!(fixture.store.dead_at(&id).await.expect("asked").is_some());
    assert_eq!(
        fixture.store.drop_dead(&[id.clone(), id.clone()]).await,
        Ok(vec![true, false])
    );
    assert_eq!(fixture.store.dead_at(&id).await, Ok(None::<UnixMs>));
    assert!(fixture.store.dead_letters(&[id]).await.expect("read")[0].is_none());
    let elsewhere = DeadId::parse("orders.attempts.zz.n.1").expect("an id");
    assert_eq!(
        fixture
            .store
            .drop_dead(std::slice::from_ref(&elsewhere))
            .await,
        Ok(vec![false])
    );
    assert_eq!(
        fixture
            .store
            .redrive(&elsewhere, &bundle(vec![unnamed(past(), "x")]))
            .await,
        Ok(false)
    );
}

#[tokio::test]
async fn a_grave_or_a_blob_of_the_wrong_type_refuses_before_any_write() {
    let fixture = StoreFixture::shared().await;
    fixture
        .write(vec![write_dead("orders", DeadReason::Attempts, "d")])
        .await;
    let id = only(&fixture).await;
    let again = bundle(vec![unnamed(past(), "d")]);
    for spoilt in ["dead:orders".to_owned(), format!("d:{id}")] {
        let key = fixture.key(&spoilt);
        let saved = fixture.key("saved");
        fixture.command::<()>(&["RENAME", &key, &saved]).await;
        fixture.command::<i64>(&["HSET", &key, "not", "ours"]).await;
        assert!(
            matches!(
                fixture.store.redrive(&id, &again).await,
                Err(StoreError::Damaged(_))
            ),
            "{spoilt}"
        );
        let dropped = fixture.store.drop_dead(std::slice::from_ref(&id)).await;
        assert!(matches!(dropped, Err(StoreError::Damaged(_))), "{spoilt}");
        fixture.command::<()>(&["RENAME", &saved, &key]).await;
        assert_eq!(fixture.check().await.dead.len(), 1);
    }
    assert_eq!(fixture.store.redrive(&id, &again).await, Ok(true));
}

/// A store that hangs longer than a page of a search may take.
#[tokio::test]
async fn a_search_looks_at_something_however_long_its_queues_take_to_read() {
    const HANGS: Duration = Duration::from_millis(200);
    let redis = Redis::shared().await;
    let wire = Proxy::before(redis).await;
    let fixture = wire.fixture(redis).await;
    let body = "wanted";
    for _ in 0..3 {
        fixture
            .write(vec![write_dead("orders", INVALID, body)])
            .await;
    }
    let filter = DeadFilter {
        message: MessageFilter {
            contains: Some(body.to_owned()),
            ..MessageFilter::default()
        },
        ..DeadFilter::default()
    };
    wire.hold_next_range();
    let goes_on = async {
        wire.until_played().await;
        tokio::time::sleep(HANGS).await;
        wire.let_go();
    };
    let (page, ()) = tokio::join!(fixture.store.dead_page(&filter, None, 10), goes_on);
    assert_eq!(page.expect("a page").marks.len(), 3);
}
