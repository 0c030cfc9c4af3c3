//! Every transition with its refusals, and all invariants after each step.

use std::collections::BTreeMap;

use postdate::domain::limits::MAX_EXPIRIES;
use postdate::domain::{
    Entry, FirstStart, Flags, Latest, OnDuplicate, ReadMark, RouteName, Text, UnixMs,
};
use postdate::store::{
    BrowseQuery, DeadLetter, Division, IntendedMessage, MessageFilter, NewBundle, Remainder,
    SettleAnswer, SweepOutcome, WriteOp, WriteResult,
};

use super::fixture::*;

use WriteResult::{
    Cancelled, Duplicate, InFlight, Replaced, Rescheduled, Stored, TooLate, Unknown,
};

fn dead_of(body: &str) -> DeadLetter {
    dead_letter(unnamed(past(), body))
}

#[tokio::test]
async fn what_is_stored_is_claimed_as_it_was_and_settled_leaves_nothing() {
    let fixture = StoreFixture::shared().await;
    let stored = vec![
        unnamed(past().plus(7), "a"),
        unnamed(past(), "b"),
        unnamed(past().plus(3), "c"),
    ];
    assert_eq!(fixture.keep(stored.clone()).await, [Stored; 3]);
    let s = fixture.check().await;
    assert_eq!((s.due.len(), s.claims.len()), (1, 0));
    assert_eq!(
        s.due.values().copied().collect::<Vec<_>>(),
        [past().0],
        "due when its first is"
    );
    assert_eq!(fixture.heads().await[0].due, past());

    let claimed = fixture.claim(LONG).await;
    let s = fixture.check().await;
    assert_eq!((s.due.len(), s.claims.len()), (0, 1));
    assert_eq!(entries(&claimed[0]), stored);
    assert_eq!((claimed[0].due, claimed[0].expiries), (past(), 0));
    assert_eq!(claimed[0].skip, [false; 3]);
    assert_eq!(
        i64::try_from(claimed[0].blob.len()),
        Ok(fixture.counts().await.bytes)
    );
    assert!(
        fixture.claim(LONG).await.is_empty(),
        "what is claimed is nobody else's"
    );

    assert_eq!(
        fixture.settle(&claimed[0]).await,
        SettleAnswer::Applied(vec![])
    );
    let s = fixture.check().await;
    assert!(s.bundles.is_empty() && s.claims.is_empty() && s.passing.is_empty());
    assert_eq!(fixture.settle(&claimed[0]).await, SettleAnswer::Stale);
    let counts = fixture.check().await.counts;
    assert_eq!(
        counts
            .iter()
            .filter(|(field, _)| field.contains(':'))
            .map(|(_, n)| *n)
            .max(),
        Some(0)
    );
}

#[tokio::test]
async fn nothing_is_claimed_before_its_look_ahead_nor_from_other_shelves() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(far(), "later")]).await;
    fixture.keep(vec![unnamed(past(), "now")]).await;
    let mut request = fixture.request(LONG).await;
    assert_eq!(request.due_sets.len(), 2);
    request.due_sets.reverse();
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["now"]);
    fixture.check().await;
    // Far enough ahead, it is claimed.
    request.lookahead_ms = far().0 - past().0;
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        1
    );
    fixture.check().await;
}

#[tokio::test]
async fn a_claim_takes_at_most_what_it_asks_for_and_always_the_first_of_a_shelf() {
    let fixture = StoreFixture::shared().await;
    for n in 0..5 {
        fixture
            .keep(vec![
                unnamed(past().plus(n), "x"),
                unnamed(past().plus(n), "y"),
            ])
            .await;
    }
    let mut request = fixture.request(LONG).await;
    request.due_sets[0].1 = 5;
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        2,
        "five messages at most"
    );
    request.due_sets[0].1 = 0;
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        1,
        "the first is always taken"
    );
    (request.due_sets[0].1, request.max_bundles) = (1000, 1);
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        1,
        "one bundle at most"
    );
    request.max_bundles = 100_000;
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        1,
        "the rest"
    );
    assert!(fixture.heads().await.is_empty());
    fixture.check().await;
}

#[tokio::test]
async fn a_claim_of_many_bundles_takes_the_earliest_and_no_more_than_it_may() {
    let fixture = StoreFixture::shared().await;
    for n in (0..100).rev() {
        fixture.keep(vec![unnamed(past().plus(n), "x")]).await;
    }
    let mut request = fixture.request(LONG).await;
    request.max_bundles = 1000;
    for (messages, expected) in [(16, 0..16), (70, 16..86), (70, 86..100)] {
        request.due_sets[0].1 = messages;
        let claimed = fixture.store.claim(&request).await.expect("claimed");
        let dues: Vec<UnixMs> = claimed.iter().map(|c| entries(c)[0].due).collect();
        assert_eq!(dues, expected.map(|n| past().plus(n)).collect::<Vec<_>>());
        fixture.check().await;
    }
    assert!(fixture.heads().await.is_empty());
}

#[tokio::test]
async fn names_suppress_replace_cancel_and_move() {
    let fixture = StoreFixture::shared().await;
    assert_eq!(
        fixture
            .keep(vec![named("a", past(), "a1"), named("b", past(), "b1")])
            .await,
        [Stored, Stored]
    );
    assert_eq!(
        fixture
            .keep(vec![named("a", past(), "a2"), named("c", past(), "c1")])
            .await,
        [Duplicate, Stored]
    );
    let s = fixture.check().await;
    assert_eq!((s.counts["n:orders"], s.gone.len()), (3, 1));
    // All of it suppressed: nothing is added.
    assert_eq!(
        fixture
            .keep(vec![named("a", past(), "a3"), named("b", past(), "b3")])
            .await,
        [Duplicate, Duplicate]
    );
    assert_eq!(fixture.check().await.bundles.len(), 2);

    let results = fixture
        .write(vec![replace(vec![named("a", past(), "a4")])])
        .await;
    assert_eq!(results, [[Replaced]]);
    fixture.check().await;
    assert_eq!(
        (
            fixture.cancel("b").await,
            fixture.cancel("b").await,
            fixture.cancel("z").await
        ),
        (Cancelled, Unknown, Unknown)
    );
    let s = fixture.check().await;
    assert_eq!(
        s.bundles.len(),
        2,
        "a bundle whose last message left is gone"
    );
    assert_eq!(fixture.reschedule("a", far(), "command").await, Rescheduled);
    assert_eq!(fixture.reschedule("new", far(), "command").await, Stored);
    let s = fixture.check().await;
    let due: Vec<_> = s
        .bundles
        .values()
        .map(|b| (body(&b.entries[0]), b.first_due() == far()))
        .collect();
    assert_eq!(due.iter().filter(|(_, far)| *far).count(), 2, "{due:?}");

    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["c1"]);
    assert_eq!(fixture.cancel("c").await, InFlight);
    assert_eq!(fixture.reschedule("c", far(), "command").await, TooLate);
    let late = replacement("c", far(), "command");
    assert_eq!(fixture.write(vec![late]).await, [[TooLate]]);
    fixture.check().await;
    fixture.settle(&claimed[0]).await;
    assert_eq!(fixture.cancel("c").await, Unknown);
    assert_eq!(fixture.check().await.names.len(), 2);
}

#[tokio::test]
async fn a_replacement_is_all_that_is_left_of_a_name() {
    let fixture = StoreFixture::shared().await;
    let keep = vec![named("a", far(), "a1"), named("b", far(), "b1")];
    fixture.keep(keep).await;
    let seen = async |id: &str| {
        let found = fixture.store.find(&route(), id).await.expect("answered");
        found.expect("it waits")
    };
    let before = seen("a").await;
    let of = |version: &Text, or_store| WriteOp::Replace {
        route: route(),
        id: Text::from("a"),
        bundle: bundle(vec![named("a", far(), "a2")]),
        or_store,
        of: Some(IntendedMessage::Seen(version.clone())),
    };
    let results = fixture.write(vec![of(&"other".into(), false)]).await;
    assert_eq!(results, [[Unknown]], "another message than was meant");
    assert_eq!(
        fixture.write(vec![of(&before.version, false)]).await,
        [[Replaced]]
    );
    assert_eq!(fixture.body_of("a").await.as_deref(), Some("a2"));
    assert_eq!(fixture.check().await.bundles.len(), 2);
    let unknown = WriteOp::Replace {
        route: route(),
        id: Text::from("z"),
        bundle: bundle(vec![named("z", far(), "z1")]),
        or_store: false,
        of: None,
    };
    assert_eq!(fixture.write(vec![unknown]).await, [[Unknown]]);
    let new = replacement("z", past(), "z2");
    assert_eq!(fixture.write(vec![new]).await, [[Stored]]);
    assert_eq!(fixture.body_of("z").await.as_deref(), Some("z2"));
    // Its own `~` id names a message too.
    let nameless = fixture.keep(vec![Entry {
        id: None,
        flags: Flags::default(),
        ..named("x", far(), "x1")
    }]);
    assert_eq!(nameless.await, [Stored]);
    let query = BrowseQuery {
        route: Some(route()),
        from: far(),
        to: far(),
        after: None,
        limit: 10,
        filter: MessageFilter::default(),
    };
    let page = fixture.store.browse(&query).await.expect("answered");
    let own = page
        .found
        .iter()
        .find(|one| one.id.as_str().starts_with('~'));
    let own = own.expect("it waits").id.clone();
    let op = WriteOp::Replace {
        route: route(),
        id: own.clone(),
        bundle: bundle(vec![Entry {
            id: None,
            flags: Flags::default(),
            ..named("x", far(), "x2")
        }]),
        or_store: false,
        of: None,
    };
    assert_eq!(fixture.write(vec![op]).await, [[Replaced]]);
    assert_eq!(seen(own.as_str()).await.id, own, "it keeps its id");
    assert_eq!(fixture.body_of(own.as_str()).await.as_deref(), Some("x2"));
    assert_eq!(fixture.check().await.bundles.len(), 4);
}

#[tokio::test]
async fn within_one_call_names_are_judged_in_order_of_delivery() {
    let fixture = StoreFixture::shared().await;
    let results = fixture
        .write(vec![
            cancel("n"),
            keep(vec![
                named("n", past(), "1"),
                named("m", past(), "m"),
                named("n", past(), "2"),
            ]),
            cancel("n"),
            keep(vec![named("n", past(), "3")]),
            replace(vec![named("n", past(), "4"), named("n", past(), "5")]),
            cancel("m"),
        ])
        .await;
    let expected: [&[WriteResult]; 6] = [
        &[Unknown],
        &[Stored, Stored, Duplicate],
        &[Cancelled],
        &[Stored],
        &[Replaced, Replaced],
        &[Cancelled],
    ];
    assert_eq!(results, expected);
    let s = fixture.check().await;
    assert_eq!((s.bundles.len(), s.counts["n:orders"]), (1, 1));
    assert_eq!(
        fixture
            .claim(LONG)
            .await
            .iter()
            .flat_map(live)
            .collect::<Vec<_>>(),
        ["5"]
    );
}

#[tokio::test]
async fn unnamed_messages_beside_named_ones_are_no_duplicates_of_each_other() {
    let fixture = StoreFixture::shared().await;
    let mixed = || {
        vec![
            unnamed(past(), "u1"),
            named("n", past(), "n"),
            unnamed(past(), "u2"),
        ]
    };
    assert_eq!(fixture.keep(mixed()).await, [Stored, Stored, Stored]);
    assert_eq!(fixture.keep(mixed()).await, [Stored, Duplicate, Stored]);
    assert_eq!(fixture.check().await.counts["n:orders"], 5);
}

#[tokio::test]
async fn a_batch_longer_than_a_call_is_cut_and_answered_in_order() {
    let fixture = StoreFixture::shared().await;
    let mut ops = Vec::new();
    for n in 0..120 {
        ops.push(keep(vec![named(&format!("n{n}"), past().plus(n), "x")]));
        if n % 40 == 7 {
            ops.push(reschedule(&format!("n{n}"), far(), "y"));
            ops.push(WriteOp::DeadLetter(dead_of("z")));
        }
    }
    let results = fixture.write(ops).await;
    assert_eq!(results.len(), 126);
    assert_eq!(results.iter().filter(|r| **r == [Rescheduled]).count(), 3);
    let s = fixture.check().await;
    assert_eq!((s.counts["n:orders"], s.dead.len()), (120, 3));
}

#[tokio::test]
async fn a_buried_message_is_kept_with_its_reason_in_its_id() {
    let fixture = StoreFixture::shared().await;
    assert_eq!(
        fixture
            .write(vec![
                WriteOp::DeadLetter(dead_of("x")),
                WriteOp::DeadLetter(dead_of("x"))
            ])
            .await,
        [[Stored], [Stored]]
    );
    let s = fixture.check().await;
    assert_eq!(s.dead.len(), 2, "they never overwrite each other");
    assert!(s.dead.keys().all(|id| id.starts_with("orders.attempts.0.")));
    assert_eq!(fixture.counts().await.dead, 2);
}

#[tokio::test]
async fn a_divided_bundle_leaves_its_parts_where_they_belong() {
    let fixture = StoreFixture::shared().await;
    let stored: Vec<_> = ["confirmed", "back", "held", "dead"]
        .iter()
        .map(|n| named(n, past(), n))
        .collect();
    fixture.keep(stored.clone()).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    let back = Remainder {
        new_bundle: NewBundle {
            route: route(),
            bundle: bundle(vec![named("back", past().plus(9), "back")]),
        },
        from: vec![1],
        lease_ms: None,
        expiries: 2,
        sequence: None,
    };
    let held = Remainder {
        new_bundle: NewBundle {
            route: route(),
            bundle: bundle(vec![stored[2].clone()]),
        },
        from: vec![2],
        lease_ms: Some(LONG),
        expiries: 0,
        sequence: None,
    };
    let division = Division {
        claim: claimed.claim.clone(),
        confirmed: vec![true, false, false, false],
        delivered: vec![],
        freed: vec![("confirmed".into(), 0), ("dead".into(), 3)],
        remainders: vec![back, held],
        dead: vec![dead_of("dead")],
        held_keys: Vec::new(),
    };
    let SettleAnswer::Applied(born) = fixture.divide(division.clone()).await else {
        panic!("it was ours")
    };
    let s = fixture.check().await;
    assert_eq!(
        (s.due.len(), s.claims.len(), s.dead.len(), s.names.len()),
        (1, 1, 1, 2)
    );
    assert_eq!(
        s.due.values().copied().collect::<Vec<_>>(),
        [past().plus(9).0]
    );
    assert_eq!(s.claims.keys().collect::<Vec<_>>(), [born[0].id.as_str()]);
    assert_eq!(s.expiries.values().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(
        (
            fixture.cancel("held").await,
            fixture.cancel("confirmed").await
        ),
        (InFlight, Unknown)
    );
    assert_eq!(
        fixture.divide(division).await,
        SettleAnswer::Stale,
        "it is nobody's any more"
    );
    fixture.check().await;

    // A bundle that is born claimed is settled like any other.
    let settled = postdate::store::Settlement {
        claim: born[0].clone(),
        names: vec![("held".into(), 0)],
        delivered: vec![],
    };
    assert_eq!(
        fixture.store.settle(P, &[settled]).await,
        Ok(vec![SettleAnswer::Applied(vec![])])
    );
    let again = fixture.claim(LONG).await.remove(0);
    assert_eq!((live(&again), again.expiries), (vec!["back".to_owned()], 2));
    fixture.settle(&again).await;
    let s = fixture.check().await;
    assert!(s.bundles.is_empty() && s.names.is_empty());
}

#[tokio::test]
async fn a_stale_token_only_notes_what_is_confirmed() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![
            unnamed(past(), "a"),
            unnamed(past(), "b"),
            unnamed(past(), "c"),
        ])
        .await;
    let first = fixture.claim(0).await.remove(0);
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome {
            expired: 1,
            clamped: 0
        })
    );
    fixture.check().await;
    let stale = Division {
        claim: first.claim.clone(),
        confirmed: vec![false, true, false],
        delivered: vec![],
        freed: vec![],
        remainders: vec![],
        dead: vec![dead_of("b")],
        held_keys: Vec::new(),
    };
    assert_eq!(fixture.divide(stale).await, SettleAnswer::Stale);
    assert_eq!(
        fixture
            .extend(&first.claim, LONG, Some(vec![true, false, false]))
            .await,
        SettleAnswer::Stale
    );
    assert_eq!(
        fixture.give_back(&first.claim, None).await,
        SettleAnswer::Stale
    );
    let s = fixture.check().await;
    assert!(s.dead.is_empty() && s.claims.is_empty());
    let second = fixture.claim(LONG).await.remove(0);
    assert_eq!((live(&second), second.expiries), (vec!["c".to_owned()], 1));
    // A stale settle says that all of it is confirmed; the holder goes on undisturbed.
    assert_eq!(fixture.settle(&first).await, SettleAnswer::Stale);
    assert_eq!(
        fixture.extend(&second.claim, LONG, None).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(
        fixture.give_back(&second.claim, None).await,
        SettleAnswer::Applied(vec![])
    );
    fixture.check().await;
    let third = fixture.claim(LONG).await.remove(0);
    assert_eq!(third.skip, [true; 3]);
    fixture.settle(&third).await;
    assert!(fixture.check().await.bundles.is_empty());
}

#[tokio::test]
async fn extend_moves_the_deadline_and_give_back_keeps_the_place_in_time() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![unnamed(past(), "a"), unnamed(past(), "b")])
        .await;
    let claimed = fixture.claim(0).await.remove(0);
    let before = fixture.check().await.claims[claimed.claim.id.as_str()];
    assert_eq!(
        fixture
            .extend(&claimed.claim, LONG, Some(vec![true, false]))
            .await,
        SettleAnswer::Applied(vec![])
    );
    let s = fixture.check().await;
    assert!(s.claims[claimed.claim.id.as_str()] >= before + LONG as i64);
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome::default()),
        "it was extended"
    );
    assert_eq!(
        fixture
            .give_back(&claimed.claim, Some(vec![true, false]))
            .await,
        SettleAnswer::Applied(vec![])
    );
    let s = fixture.check().await;
    assert_eq!(s.due[claimed.claim.id.as_str()], past().0);
    assert_eq!(live(&fixture.claim(LONG).await[0]), ["b"]);
}

#[tokio::test]
async fn a_bundle_is_opened_until_its_claims_have_expired_more_often_than_they_may() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![unnamed(past(), "a"), unnamed(past(), "b")])
        .await;
    fixture.keep(vec![unnamed(past(), "alone")]).await;
    for expiries in 0..=MAX_EXPIRIES + 2 {
        for claimed in fixture.claim(0).await {
            assert_eq!(claimed.expiries, expiries);
            assert_eq!(
                claimed.bundle.is_ok(),
                expiries <= MAX_EXPIRIES,
                "{expiries}: {:?}",
                claimed.bundle
            );
        }
        assert_eq!(
            sweep(&fixture.store, P, LONG, false).await,
            Ok(SweepOutcome {
                expired: 2,
                clamped: 0
            })
        );
    }
    fixture.check().await;
}

#[tokio::test]
async fn a_sweep_takes_all_that_has_expired_in_calls_that_are_bounded() {
    let fixture = StoreFixture::shared().await;
    for _ in 0..630 {
        fixture.keep(vec![unnamed(past(), "x")]).await;
    }
    let mut request = fixture.request(0).await;
    request.max_bundles = 1000;
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        630
    );
    let mut swept = Vec::new();
    for _ in 0..2 {
        swept.push(
            sweep(&fixture.store, P, LONG, false)
                .await
                .expect("swept")
                .expired,
        );
        fixture.check().await;
    }
    assert_eq!(swept, [630, 0]);
}

#[tokio::test]
async fn the_first_start_of_a_source_is_noted_once_for_all() {
    let fixture = StoreFixture::shared().await;
    let seen = |at_ms, topics: &[(&str, i32)], ends: &[(&str, i32, i64)]| {
        let mut by_topic: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
        for (topic, partition, end) in ends {
            let of_topic = by_topic.entry((*topic).to_owned()).or_default();
            of_topic.insert(*partition, *end);
        }
        FirstStart {
            at_ms,
            partitions: topics
                .iter()
                .map(|(topic, count)| ((*topic).to_owned(), *count))
                .collect(),
            ends: by_topic,
        }
    };
    let first = seen(7, &[("a", 2), ("b", 1)], &[("a", 0, 5), ("b", 0, 0)]);
    let store = &fixture.store;
    assert_eq!(
        store.first_start("s", first.clone()).await,
        Ok(first.clone())
    );
    let later = seen(9, &[("a", 3), ("c", 1)], &[("a", 0, 6)]);
    assert_eq!(
        store.first_start("s", later.clone()).await,
        Ok(first.clone())
    );
    assert_eq!(store.first_start("other", later.clone()).await, Ok(later));
    let since = Some(Latest::Since(UnixMs(7)));
    for (topic, partition, end, latest) in [
        ("a", 0, 5, Some(Latest::At(5))),
        ("a", 0, 9, Some(Latest::At(5))),
        ("a", 0, 4, since),
        ("a", 1, 9, since),
        ("a", 2, 9, None),
        ("a", -1, 9, None),
        ("b", 0, 0, Some(Latest::At(0))),
        ("c", 0, 9, None),
    ] {
        let found = first.latest(topic, partition, end);
        assert_eq!(found, latest, "{topic}/{partition} that ends at {end}");
    }
}

#[tokio::test]
async fn interleaving_23_marks_never_go_down_and_counts_are_of_all_partitions() {
    let redis = crate::support::Redis::shared().await;
    let fixture = StoreFixture::on(redis, 3).await;
    for p in fixture.store.partitions().all() {
        let two = bundle(vec![unnamed(past(), "a"), unnamed(past(), "b")]);
        let op = WriteOp::Store {
            route: route(),
            on_duplicate: OnDuplicate::Keep,
            bundle: two,
        };
        fixture.store.write(p, vec![op]).await.expect("written");
    }
    let counts = fixture.counts().await;
    assert_eq!((counts.messages, counts.dead), (6, 0));
    assert!(counts.bytes > 0);
    assert_eq!(fixture.store.read_mark("kafka:t:0").await, Ok(None));
    let mut was = None;
    for (raised, time, is, is_of) in [
        (5, None, 5, None),
        (4, Some(70), 5, None),
        (6, Some(80), 6, Some(80)),
        (7, None, 7, Some(80)),
        (10_000_000_000, Some(90), 10_000_000_000, Some(90)),
        (6, Some(95), 10_000_000_000, Some(90)),
    ] {
        let time = time.map(UnixMs);
        assert_eq!(
            fixture.store.raise_offset("kafka:t:0", raised, time).await,
            Ok(was)
        );
        was = Some(is);
        assert_eq!(
            fixture.store.read_mark("kafka:t:0").await,
            Ok(Some(ReadMark {
                until: is + 1,
                resolved: is_of.map(UnixMs)
            }))
        );
    }
    assert_eq!(fixture.store.read_mark("kafka:t:1").await, Ok(None));
}

#[tokio::test]
async fn a_store_rings_for_what_is_earlier_than_all_before() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(far(), "x")]).await;
    fixture.store.wake().rung(0).await;
    assert_eq!(fixture.store.wake().peek(0), Some(far()));
    fixture.keep(vec![unnamed(past(), "y")]).await;
    fixture.store.wake().rung(0).await;
    assert_eq!(fixture.store.wake().take(0), Some(past()));
    assert_eq!(fixture.store.wake().take(0), None::<UnixMs>);
}

#[tokio::test]
async fn a_name_is_its_own_routes_and_another_route_may_have_it_too() {
    let fixture = StoreFixture::shared().await;
    let mail = RouteName::new("mail").expect("a name");
    let of_mail = |due: UnixMs| WriteOp::Store {
        route: mail.clone(),
        on_duplicate: OnDuplicate::Keep,
        bundle: bundle(vec![named("a", due, "mail")]),
    };
    assert_eq!(
        fixture.keep(vec![named("a", past(), "orders")]).await,
        [Stored]
    );
    assert_eq!(
        fixture.write(vec![of_mail(past())]).await,
        [[Stored]],
        "not a duplicate of another route's"
    );
    assert_eq!(fixture.check().await.names.len(), 2);
    assert_eq!(fixture.cancel("a").await, Cancelled);
    assert_eq!(
        fixture.cancel("a").await,
        Unknown,
        "the other one is not its route's"
    );
    fixture.check().await;
    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["mail"]);
    fixture.settle(&claimed[0]).await;
    assert_eq!(
        fixture.write(vec![of_mail(far())]).await,
        [[Stored]],
        "its name is free again"
    );
    fixture.check().await;
}
