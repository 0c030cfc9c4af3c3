//! The races of one process against another's death, clock or memory, by their numbers.

use postdate::domain::{Flags, RouteName};
use postdate::store::{
    ClaimAnswer, Division, NewBundle, Remainder, SettleAnswer, SweepOutcome, WriteOp, WriteResult,
};

use super::fixture::*;
use crate::support::{Redis, eventually};

use WriteResult::{Cancelled, Duplicate, InFlight, Rescheduled, Stored, TooLate, Unknown};

/// Everything of it goes back, a second later.
fn all_back(claimed: &ClaimAnswer) -> Division {
    let due = past().plus(1000);
    let entries: Vec<_> = entries(claimed)
        .iter()
        .cloned()
        .map(|e| postdate::domain::Entry { due, ..e })
        .collect();
    Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false; entries.len()],
        delivered: vec![],
        freed: vec![],
        remainders: vec![Remainder {
            from: (0..entries.len() as u32).collect(),
            new_bundle: NewBundle {
                route: route(),
                bundle: bundle(entries),
            },
            lease_ms: None,
            expiries: claimed.expiries,
            sequence: None,
        }],
        dead: vec![],
        held_keys: Vec::new(),
    }
}

async fn expire(fixture: &StoreFixture) {
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome {
            expired: 1,
            clamped: 0
        })
    );
}

#[tokio::test]
async fn interleaving_12_what_was_cancelled_stays_so_when_a_claim_expires() {
    let fixture = StoreFixture::shared().await;
    let names = ["a", "b", "c", "d"];
    fixture
        .keep(names.iter().map(|n| named(n, past(), n)).collect())
        .await;
    assert_eq!(fixture.cancel("b").await, Cancelled);
    assert_eq!(fixture.reschedule("c", far(), "x").await, Rescheduled);
    for _ in 0..3 {
        let claimed = fixture.claim(0).await.remove(0);
        assert_eq!(live(&claimed), ["a", "d"]);
        fixture.check().await;
        expire(&fixture).await;
        fixture.check().await;
    }
}

#[tokio::test]
async fn interleaving_14_all_but_storing_works_at_maxmemory() {
    let redis = Redis::start_with("redis-server", &["--maxmemory", "12mb"]).await;
    let fixture = StoreFixture::on(&redis, 1).await;
    for n in [
        "settle", "divide", "back", "sweep", "cancel", "move", "dead",
    ] {
        fixture
            .keep(vec![named(n, past(), n), unnamed(past(), n)])
            .await;
    }
    let mut claimed = fixture.claim(0).await;
    let mut take = |name: &str| {
        let at = claimed
            .iter()
            .position(|c| live(c)[0] == name)
            .expect("claimed");
        claimed.remove(at)
    };
    let settle = take("settle");
    let divide = take("divide");
    let back = take("back");
    let dead = take("dead");
    for free in [take("cancel"), take("move")] {
        fixture.give_back(&free.claim, None).await;
    }
    // Filled to the brim with what is not ours.
    let mut filled = 0;
    loop {
        let mut set = redis::cmd("SET");
        set.arg(format!("filler{filled}")).arg(vec![b'x'; 100_000]);
        match set.query_async::<()>(&mut fixture.raw.clone()).await {
            Ok(()) => filled += 1,
            Err(error) => {
                assert_eq!(error.code(), Some("OOM"));
                break;
            }
        }
    }
    // And a little further, so that even the smallest store is refused.
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "4mb"])
        .await;
    let storing = tokio::spawn({
        let store = fixture.at(postdate::domain::Partition(0));
        async move { store.keep(vec![unnamed(past(), "waits")]).await }
    });
    eventually("the store is refused", async || {
        let info: String = fixture.command(&["INFO", "errorstats"]).await;
        if info.contains("errorstat_OOM") || info.contains("errorstat_EXECABORT") {
            Ok(())
        } else {
            Err(info)
        }
    })
    .await;
    assert_eq!(fixture.settle(&settle).await, SettleAnswer::Applied(vec![]));
    assert_eq!(
        fixture.divide(all_back(&divide)).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(
        fixture
            .extend(&back.claim, LONG, Some(vec![true, false]))
            .await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(
        fixture.give_back(&back.claim, None).await,
        SettleAnswer::Applied(vec![])
    );
    let all_dead = Division {
        claim: dead.claim.clone(),
        confirmed: vec![true, false],
        delivered: vec![],
        freed: vec![("dead".into(), 0)],
        remainders: vec![],
        dead: vec![dead_letter(entries(&dead)[1].clone())],
        held_keys: Vec::new(),
    };
    assert_eq!(
        fixture.divide(all_dead).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(
        sweep(&fixture.store, P, LONG, false).await,
        Ok(SweepOutcome {
            expired: 1,
            clamped: 0
        })
    );
    assert_eq!(fixture.claim(LONG).await.len(), 5);
    fixture
        .store
        .raise_offset("source", 7, None)
        .await
        .expect("raised");
    assert!(!storing.is_finished(), "it still waits");
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    assert_eq!(
        storing.await.expect("runs"),
        [Stored],
        "and goes on by itself"
    );
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_14_cancels_and_moves_work_at_maxmemory() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture
        .keep(vec![named("a", past(), "a"), named("b", past(), "b")])
        .await;
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    assert_eq!(fixture.reschedule("a", far(), "x").await, Rescheduled);
    assert_eq!(
        (fixture.cancel("a").await, fixture.cancel("b").await),
        (Cancelled, Cancelled)
    );
    assert!(fixture.check().await.bundles.is_empty());
}

/// A cancel makes room; it must not wait for room.
#[tokio::test]
async fn interleaving_14_commands_do_not_wait_behind_what_there_is_no_memory_for() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture
        .keep(vec![named("a", past(), "a"), named("b", past(), "b")])
        .await;
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let storing = |body: &'static str| {
        let fixture = fixture.at(P);
        tokio::spawn(async move { fixture.keep(vec![unnamed(past(), body)]).await })
    };
    let waiting: Vec<_> = ["c", "d", "e"].into_iter().map(storing).collect();
    eventually("the store is refused", async || {
        fixture.store.write_failure().map(drop).ok_or("not yet")
    })
    .await;
    let moving = WriteOp::Reschedule {
        route: route(),
        id: "b".into(),
        due: far(),
        fallback: None,
        of: None,
    };
    assert_eq!(fixture.store.command(P, moving).await, Ok(Rescheduled));
    for name in ["a", "b"] {
        assert_eq!(fixture.store.command(P, cancel(name)).await, Ok(Cancelled));
    }
    assert_eq!(fixture.store.command(P, cancel("a")).await, Ok(Unknown));
    assert!(
        waiting.iter().all(|storing| !storing.is_finished()),
        "there is no memory yet"
    );
    fixture
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    for storing in waiting {
        assert_eq!(storing.await.expect("runs"), [Stored]);
    }
    assert_eq!(
        fixture
            .check()
            .await
            .bundles
            .values()
            .map(|b| b.entries.len())
            .sum::<usize>(),
        3
    );
    assert_eq!(fixture.store.rollbacks(), 0);
}

#[tokio::test]
async fn interleaving_16_a_deadline_too_far_ahead_is_brought_back_and_after_a_jump_nothing_expires()
{
    let fixture = StoreFixture::shared().await;
    for body in ["ahead", "expired"] {
        fixture.keep(vec![unnamed(past(), body)]).await;
    }
    let claimed = fixture.claim(0).await;
    let ahead = claimed
        .iter()
        .find(|c| live(c) == ["ahead"])
        .expect("claimed");
    // The master before had a clock that was an hour ahead.
    let id = ahead.claim.id.as_str();
    fixture
        .command::<()>(&["ZINCRBY", &fixture.key("claims"), "3600000", id])
        .await;
    assert_eq!(
        sweep(&fixture.store, P, 10_000, true).await,
        Ok(SweepOutcome {
            expired: 0,
            clamped: 1
        })
    );
    let s = fixture.check().await;
    let now: (i64, i64) = fixture.command(&["TIME"]).await;
    assert!(
        s.claims[id] <= (now.0 * 1000 + now.1 / 1000 + 10_000),
        "at most a lease from now"
    );
    assert_eq!(
        s.claims.len(),
        2,
        "nothing expires while the clock is not trusted"
    );
    assert_eq!(
        sweep(&fixture.store, P, 10_000, false).await,
        Ok(SweepOutcome {
            expired: 1,
            clamped: 0
        })
    );
    assert_eq!(
        fixture.extend(&ahead.claim, LONG, None).await,
        SettleAnswer::Applied(vec![]),
        "it is still the holder's"
    );
}

#[tokio::test]
async fn interleaving_17_a_claim_takes_only_what_its_caller_serves_and_no_backlog_hides_another() {
    let fixture = StoreFixture::shared().await;
    let mail = RouteName::new("mail").expect("a name");
    // Slices of routes that nobody serves, all overdue: more of them than any page of any look.
    let slice = 1 << 20;
    let unknown = |n: i64| WriteOp::Store {
        route: RouteName::new(["unknown", "paused", "full"][n as usize % 3]).expect("a name"),
        on_duplicate: postdate::domain::OnDuplicate::Keep,
        bundle: bundle(vec![unnamed(past().plus(-n * slice), "unknown")]),
    };
    fixture.write((0..4500).map(unknown).collect()).await;
    fixture.keep(vec![unnamed(past(), "orders")]).await;
    fixture
        .write(vec![WriteOp::Store {
            route: mail.clone(),
            on_duplicate: postdate::domain::OnDuplicate::Keep,
            bundle: bundle(vec![unnamed(past(), "mail")]),
        }])
        .await;
    let heads = fixture.store.heads(&[P], past()).await.expect("heads");
    assert_eq!(heads.len(), 5, "a shelf a route");
    let mut request = fixture.request(LONG).await;
    request.due_sets = heads
        .iter()
        .filter(|h| h.route() == "mail")
        .map(|h| (h.due_set.clone(), 10))
        .collect();
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["mail"]);
    assert_eq!(
        fixture
            .store
            .heads(&[P], past())
            .await
            .expect("heads")
            .len(),
        4
    );
    fixture.check().await;
}

#[tokio::test]
async fn a_look_shows_the_earliest_shelves_of_what_is_open_and_says_where_there_is_more() {
    let fixture = StoreFixture::shared().await;
    let slice = 1 << 20;
    let due = |n: i64| past().plus(n * slice);
    // Stored backwards: each new shelf is its route's head for a while.
    for n in (0..150).rev() {
        fixture.keep(vec![unnamed(due(n), &n.to_string())]).await;
    }
    let closed = fixture
        .store
        .due_heads(&[P], due(149), far(), &|_| false)
        .await
        .expect("looked");
    assert_eq!(
        closed.heads.iter().map(|head| head.due).collect::<Vec<_>>(),
        [due(0)]
    );
    assert_eq!(closed.heads[0].partition_route(), (P, "orders".to_owned()));
    let beyond = closed.beyond[&closed.heads[0].partition_route()];
    assert!(
        beyond > due(0) && beyond <= due(1),
        "the next slice's begin: {beyond}"
    );
    let mut seen = Vec::new();
    let mut looks = 0;
    loop {
        let looked = fixture.look(due(139)).await;
        let dues: Vec<_> = looked.heads.iter().map(|head| head.due).collect();
        if dues.iter().all(|at| *at > due(139)) {
            assert_eq!(
                (dues.len(), looked.beyond.len()),
                (0, 0),
                "what is due later was not asked for"
            );
            break;
        }
        looks += 1;
        let expected: Vec<_> = (seen.len() as i64..140).map(due).take(64).collect();
        assert_eq!(dues, expected, "the earliest, in their order");
        let next = expected.last().expect("some").plus(slice);
        assert_eq!(
            looked.beyond.values().next().copied(),
            (next <= due(139)).then_some(next)
        );
        let claimed = fixture.claim_of(&looked).await;
        seen.extend(claimed.iter().flat_map(live));
        fixture.check().await;
    }
    assert_eq!(looks, 3);
    assert_eq!(seen, (0..140).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Whatever one of the indexes lacks or has wrong, a claim that finds nothing of it or a scrub sets it right.
#[tokio::test]
async fn an_index_that_is_wrong_is_set_right_by_a_claim_of_it_or_a_scrub() {
    let redis = crate::support::Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture.keep(vec![unnamed(far(), "far")]).await;
    let late = fixture.heads().await.remove(0);
    let place = format!(
        "orders/{:016}/{}",
        late.due.0,
        late.due_set.split_once('/').expect("a shelf").1
    );
    let none = "orders/0000000000000077/none";
    for (key, score, member) in [
        ("heads", "77", late.due_set.as_str()),
        ("heads", "77", "orders/none"),
        ("idx", "77", "orders/none"),
    ] {
        fixture
            .command::<i64>(&["ZADD", &fixture.key(key), score, member])
            .await;
        let looked = fixture
            .store
            .due_heads(&[P], past(), past(), &|_| false)
            .await
            .expect("looked");
        assert_eq!(fixture.claim_of(&looked).await.len(), 0, "{key} {member}");
        if key == "heads" {
            fixture.check().await;
        }
        fixture.store.scrub(P).await.expect("scrubbed");
        fixture.check().await;
    }
    for wrong in [
        vec!["ZREM", "heads", &late.due_set],
        vec!["ZREM", "shelves", &place],
        vec!["ZADD", "shelves", "0", "not ours"],
        vec!["ZADD", "shelves", "0", none],
    ] {
        let mut command = wrong.clone();
        let key = fixture.key(wrong[1]);
        command[1] = &key;
        fixture.command::<i64>(&command).await;
        let report = fixture.store.scrub(P).await.expect("scrubbed");
        assert_eq!(
            wrong.last() == Some(&none),
            report.is_clean(),
            "{wrong:?}: {report:?}"
        );
        fixture.check().await;
    }
}

/// Whoever drains slowly may have lost its claim by then. What it published is published all the same.
#[tokio::test]
async fn a_claim_that_comes_back_too_late_still_tells_what_was_confirmed() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![unnamed(past(), "a"), unnamed(past(), "b")])
        .await;
    let lapsed = fixture.claim(0).await.remove(0);
    sweep(&fixture.store, fixture.p, LONG, false)
        .await
        .expect("swept");
    assert_eq!(
        fixture
            .give_back(&lapsed.claim, Some(vec![true, false]))
            .await,
        SettleAnswer::Stale
    );
    let again = fixture.claim(LONG).await.remove(0);
    assert_eq!(again.skip, [true, false]);
    fixture.settle(&again).await;
    assert_eq!(
        fixture
            .give_back(&lapsed.claim, Some(vec![true, true]))
            .await,
        SettleAnswer::Stale
    );
    let left = fixture.check().await;
    assert_eq!(left.bundles.len(), 0, "nothing is noted of what is gone");
}

#[tokio::test]
async fn interleaving_22_two_claims_of_one_millisecond_have_two_tokens() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let first = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        fixture.give_back(&first.claim, None).await,
        SettleAnswer::Applied(vec![])
    );
    let second = fixture.another().claim(LONG).await.remove(0);
    // The same deadline, as if in the same millisecond.
    assert_ne!(first.claim.token, second.claim.token);
    let deadline = fixture.check().await.claims;
    assert_eq!(
        fixture.give_back(&first.claim, None).await,
        SettleAnswer::Stale
    );
    assert_eq!(
        fixture.extend(&first.claim, 0, None).await,
        SettleAnswer::Stale
    );
    assert_eq!(fixture.divide(all_back(&first)).await, SettleAnswer::Stale);
    let s = fixture.check().await;
    assert_eq!(
        (s.claims, s.due.len()),
        (deadline, 0),
        "the second claim is as it was"
    );
    assert_eq!(fixture.settle(&second).await, SettleAnswer::Applied(vec![]));
}

#[tokio::test]
async fn interleaving_26_expiries_go_with_the_parts_of_a_bundle() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![unnamed(past(), "innocent"), unnamed(past(), "poison")])
        .await;
    for _ in 0..2 {
        fixture.claim(0).await;
        expire(&fixture).await;
    }
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(claimed.expiries, 2);
    // Taken apart before anything of it is published.
    let mut apart = all_back(&claimed);
    apart.remainders = (0..2u32)
        .map(|i| Remainder {
            new_bundle: NewBundle {
                route: route(),
                bundle: bundle(vec![entries(&claimed)[i as usize].clone()]),
            },
            from: vec![i],
            lease_ms: None,
            expiries: claimed.expiries,
            sequence: None,
        })
        .collect();
    assert_eq!(fixture.divide(apart).await, SettleAnswer::Applied(vec![]));
    fixture.check().await;
    let mut singles = fixture.claim(0).await;
    assert!(
        singles
            .iter()
            .all(|c| (c.expiries, entries(c).len()) == (2, 1))
    );
    let innocent = singles
        .iter()
        .position(|c| live(c) == ["innocent"])
        .expect("claimed");
    fixture.settle(&singles.remove(innocent)).await;
    expire(&fixture).await;
    let poison = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        (live(&poison), poison.expiries),
        (vec!["poison".to_owned()], 3)
    );
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_28_a_name_means_its_message_wherever_its_bundle_is() {
    let fixture = StoreFixture::shared().await;
    // Claimed and expired: pending again, under its name.
    fixture.keep(vec![named("a", past(), "a1")]).await;
    fixture.claim(0).await;
    assert_eq!(fixture.cancel("a").await, InFlight);
    expire(&fixture).await;
    assert_eq!(
        fixture.keep(vec![named("a", past(), "a2")]).await,
        [Duplicate]
    );
    assert_eq!(fixture.cancel("a").await, Cancelled);
    fixture.check().await;

    // Given back, retried: so too.
    fixture.keep(vec![named("b", past(), "b1")]).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.give_back(&claimed.claim, None).await;
    assert_eq!(
        fixture.keep(vec![named("b", past(), "b2")]).await,
        [Duplicate]
    );
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.divide(all_back(&claimed)).await;
    fixture.check().await;
    assert_eq!(
        fixture.keep(vec![named("b", past(), "b3")]).await,
        [Duplicate]
    );
    assert_eq!(fixture.cancel("b").await, Cancelled);
    fixture.check().await;
}

#[tokio::test]
async fn interleaving_28_who_comes_back_and_finds_its_name_taken_goes_on_nameless() {
    for way in ["give back", "retry", "expire"] {
        let fixture = StoreFixture::shared().await;
        fixture.keep(vec![named("a", past(), "old")]).await;
        let old = fixture.claim(0).await.remove(0);
        assert_eq!(
            fixture.keep(vec![named("a", past().plus(5), "new")]).await,
            [Stored],
            "in flight: free"
        );
        match way {
            "give back" => {
                assert_eq!(
                    fixture.give_back(&old.claim, None).await,
                    SettleAnswer::Applied(vec![])
                );
            }
            "retry" => assert_eq!(
                fixture.divide(all_back(&old)).await,
                SettleAnswer::Applied(vec![])
            ),
            _ => expire(&fixture).await,
        }
        fixture.check().await;
        // The name means the new one, and the old one's end does not change that.
        let mut both = fixture.claim(LONG).await;
        assert_eq!(both.len(), 2, "{way}");
        let at = both
            .iter()
            .position(|c| live(c) == ["old"])
            .expect("claimed");
        assert_eq!(
            fixture.settle(&both.remove(at)).await,
            SettleAnswer::Applied(vec![])
        );
        assert_eq!(fixture.cancel("a").await, InFlight, "{way}");
        fixture.give_back(&both[0].claim, None).await;
        assert_eq!(fixture.cancel("a").await, Cancelled, "{way}");
        assert!(fixture.check().await.bundles.is_empty());
    }
}

#[tokio::test]
async fn interleaving_29_a_made_up_id_follows_its_message_through_a_retry() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![unnamed(past(), "a"), unnamed(past(), "b")])
        .await;
    let claimed = fixture.claim(LONG).await.remove(0);
    let id = claimed.claim.id.message_id(P, 1, past());
    let mut division = all_back(&claimed);
    let mut retried = entries(&claimed)[1].clone();
    (retried.id, retried.due) = (Some(id.clone()), far());
    let fresh = NewBundle {
        route: route(),
        bundle: bundle(vec![retried]),
    };
    division.remainders = vec![Remainder {
        new_bundle: fresh,
        from: vec![1],
        lease_ms: None,
        expiries: 0,
        sequence: None,
    }];
    division.confirmed = vec![true, false];
    assert_eq!(
        fixture.divide(division).await,
        SettleAnswer::Applied(vec![])
    );
    let s = fixture.check().await;
    let entry = &s.bundles.values().next().expect("one").entries[0];
    assert!(
        !entry.flags.has(Flags::NAMED),
        "it is not the producer's own"
    );
    assert_eq!(
        fixture.reschedule(id.as_str(), past(), "x").await,
        Rescheduled
    );
    fixture.check().await;
    // A second retry takes it along.
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.divide(all_back(&claimed)).await;
    fixture.check().await;
    assert_eq!(
        (
            fixture.cancel(id.as_str()).await,
            fixture.cancel(id.as_str()).await
        ),
        (Cancelled, Unknown)
    );
    let s = fixture.check().await;
    assert!(s.bundles.is_empty() && s.names.is_empty());
}

#[tokio::test]
async fn interleaving_32_cancelled_messages_leave_the_counts_and_their_bundle_its_memory() {
    let fixture = StoreFixture::shared().await;
    let names = ["a", "b", "c"];
    fixture
        .keep(names.iter().map(|n| named(n, far(), n)).collect())
        .await;
    let whole = fixture.counts().await;
    fixture.cancel("a").await;
    assert_eq!(fixture.reschedule("b", far(), "x").await, Rescheduled);
    let s = fixture.check().await;
    assert_eq!(fixture.counts().await.messages, 2);
    assert!(
        fixture.counts().await.bytes > whole.bytes,
        "bytes are counted until the blob is gone"
    );
    assert_eq!(s.bundles.len(), 2);
    fixture.cancel("c").await;
    let s = fixture.check().await;
    assert_eq!(
        s.bundles.len(),
        1,
        "the first bundle went with its last message"
    );
    fixture.cancel("b").await;
    assert_eq!(
        (
            fixture.counts().await.messages,
            fixture.counts().await.bytes
        ),
        (0, 0)
    );
    assert!(fixture.check().await.bundles.is_empty());
}

#[tokio::test]
async fn interleaving_35_suppressed_and_replaced_messages_are_never_handed_out() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![named("a", past(), "a1"), named("b", past(), "b1")])
        .await;
    let twice = vec![
        named("a", past(), "a2"),
        named("c", past(), "c1"),
        named("c", past(), "c2"),
    ];
    assert_eq!(fixture.keep(twice).await, [Duplicate, Stored, Duplicate]);
    fixture
        .write(vec![replace(vec![
            named("b", past(), "b2"),
            named("d", past(), "d1"),
        ])])
        .await;
    fixture.check().await;
    let mut out: Vec<_> = fixture.claim(LONG).await.iter().flat_map(live).collect();
    out.sort();
    assert_eq!(out, ["a1", "b2", "c1", "d1"]);
    assert_eq!(fixture.reschedule("a", far(), "x").await, TooLate);
}
