//! The races of one process against another's death, clock or memory, by their numbers.

use postdate::domain::{Flags, RouteName};
use postdate::store::{Claimed, Division, Fresh, Held, Remainder, Swept, WriteOp, WriteResult};

use super::room::*;
use crate::support::{Redis, eventually};

use WriteResult::{Cancelled, Duplicate, InFlight, Rescheduled, Stored, TooLate, Unknown};

/// Everything of it goes back, a second later.
fn all_back(claimed: &Claimed) -> Division {
    let due = past().plus(1000);
    let entries: Vec<_> =
        entries(claimed).iter().cloned().map(|e| postdate::domain::Entry { due, ..e }).collect();
    Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false; entries.len()],
        delivered: vec![],
        freed: vec![],
        remainders: vec![Remainder {
            from: (0..entries.len() as u32).collect(),
            fresh: Fresh { route: route(), bundle: bundle(entries) },
            lease_ms: None,
            expiries: claimed.expiries,
            stamp: None,
        }],
        dead: vec![],
        holds: Vec::new(),
    }
}

async fn expire(room: &Room) {
    assert_eq!(sweep(&room.store, P, LONG, false).await, Ok(Swept { expired: 1, clamped: 0 }));
}

#[tokio::test]
async fn interleaving_12_what_was_cancelled_stays_so_when_a_claim_expires() {
    let room = Room::shared().await;
    let names = ["a", "b", "c", "d"];
    room.keep(names.iter().map(|n| named(n, past(), n)).collect()).await;
    assert_eq!(room.cancel("b").await, Cancelled);
    assert_eq!(room.reschedule("c", far(), "x").await, Rescheduled);
    for _ in 0..3 {
        let claimed = room.claim(0).await.remove(0);
        assert_eq!(live(&claimed), ["a", "d"]);
        room.check().await;
        expire(&room).await;
        room.check().await;
    }
}

#[tokio::test]
async fn interleaving_14_all_but_storing_works_at_maxmemory() {
    let redis = Redis::start_with("redis-server", &["--maxmemory", "12mb"]).await;
    let room = Room::on(&redis, 1).await;
    for n in ["settle", "divide", "back", "sweep", "cancel", "move", "dead"] {
        room.keep(vec![named(n, past(), n), unnamed(past(), n)]).await;
    }
    let mut claimed = room.claim(0).await;
    let mut take = |name: &str| {
        let at = claimed.iter().position(|c| live(c)[0] == name).expect("claimed");
        claimed.remove(at)
    };
    let (settle, divide, back, dead) = (take("settle"), take("divide"), take("back"), take("dead"));
    for free in [take("cancel"), take("move")] {
        room.give_back(&free.claim, None).await;
    }
    // Filled to the brim with what is not ours.
    let mut filled = 0;
    loop {
        let mut set = redis::cmd("SET");
        set.arg(format!("filler{filled}")).arg(vec![b'x'; 100_000]);
        match set.query_async::<()>(&mut room.raw.clone()).await {
            Ok(()) => filled += 1,
            Err(error) => {
                assert_eq!(error.code(), Some("OOM"));
                break;
            }
        }
    }
    // And a little further, so that even the smallest store is refused.
    room.command::<()>(&["CONFIG", "SET", "maxmemory", "4mb"]).await;
    let storing = tokio::spawn({
        let store = room.at(postdate::domain::Partition(0));
        async move { store.keep(vec![unnamed(past(), "waits")]).await }
    });
    eventually("the store is refused", async || {
        let info: String = room.command(&["INFO", "errorstats"]).await;
        if info.contains("errorstat_OOM") || info.contains("errorstat_EXECABORT") {
            Ok(())
        } else {
            Err(info)
        }
    })
    .await;
    assert_eq!(room.settle(&settle).await, Held::Done(vec![]));
    assert_eq!(room.divide(all_back(&divide)).await, Held::Done(vec![]));
    assert_eq!(room.extend(&back.claim, LONG, Some(vec![true, false])).await, Held::Done(vec![]));
    assert_eq!(room.give_back(&back.claim, None).await, Held::Done(vec![]));
    let grave = Division {
        claim: dead.claim.clone(),
        confirmed: vec![true, false],
        delivered: vec![],
        freed: vec![("dead".into(), 0)],
        remainders: vec![],
        dead: vec![dead_letter(entries(&dead)[1].clone())],
        holds: Vec::new(),
    };
    assert_eq!(room.divide(grave).await, Held::Done(vec![]));
    assert_eq!(sweep(&room.store, P, LONG, false).await, Ok(Swept { expired: 1, clamped: 0 }));
    assert_eq!(room.claim(LONG).await.len(), 5);
    room.store.raise_mark("source", 7).await.expect("raised");
    assert!(!storing.is_finished(), "it still waits");
    room.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(storing.await.expect("runs"), [Stored], "and goes on by itself");
    room.check().await;
}

#[tokio::test]
async fn interleaving_14_cancels_and_moves_work_at_maxmemory() {
    let redis = Redis::start().await;
    let room = Room::on(&redis, 1).await;
    room.keep(vec![named("a", past(), "a"), named("b", past(), "b")]).await;
    room.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(room.reschedule("a", far(), "x").await, Rescheduled);
    assert_eq!((room.cancel("a").await, room.cancel("b").await), (Cancelled, Cancelled));
    assert!(room.check().await.bundles.is_empty());
}

/// What people cancel makes room; it must not wait for room.
#[tokio::test]
async fn interleaving_14_commands_do_not_wait_behind_what_there_is_no_memory_for() {
    let redis = Redis::start().await;
    let room = Room::on(&redis, 1).await;
    room.keep(vec![named("a", past(), "a"), named("b", past(), "b")]).await;
    room.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let storing = |body: &'static str| {
        let room = room.at(P);
        tokio::spawn(async move { room.keep(vec![unnamed(past(), body)]).await })
    };
    let waiting: Vec<_> = ["c", "d", "e"].into_iter().map(storing).collect();
    eventually("the store is refused", async || room.store.writes_wait().map(drop).ok_or("not yet")).await;
    let moving = WriteOp::Reschedule { route: route(), id: "b".into(), due: far(), fallback: None, of: None };
    assert_eq!(room.store.command(P, moving).await, Ok(Rescheduled));
    for name in ["a", "b"] {
        assert_eq!(room.store.command(P, cancel(name)).await, Ok(Cancelled));
    }
    assert_eq!(room.store.command(P, cancel("a")).await, Ok(Unknown));
    assert!(waiting.iter().all(|storing| !storing.is_finished()), "there is no memory yet");
    room.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for storing in waiting {
        assert_eq!(storing.await.expect("runs"), [Stored]);
    }
    assert_eq!(room.check().await.bundles.values().map(|b| b.entries.len()).sum::<usize>(), 3);
    assert_eq!(room.store.went_back(), 0);
}

#[tokio::test]
async fn interleaving_16_a_deadline_too_far_ahead_is_brought_back_and_after_a_jump_nothing_expires() {
    let room = Room::shared().await;
    for body in ["ahead", "expired"] {
        room.keep(vec![unnamed(past(), body)]).await;
    }
    let claimed = room.claim(0).await;
    let ahead = claimed.iter().find(|c| live(c) == ["ahead"]).expect("claimed");
    // The master before had a clock that was an hour ahead.
    let id = ahead.claim.id.as_str();
    room.command::<()>(&["ZINCRBY", &room.key("claims"), "3600000", id]).await;
    assert_eq!(sweep(&room.store, P, 10_000, true).await, Ok(Swept { expired: 0, clamped: 1 }));
    let s = room.check().await;
    let now: (i64, i64) = room.command(&["TIME"]).await;
    assert!(s.claims[id] <= (now.0 * 1000 + now.1 / 1000 + 10_000), "at most a lease from now");
    assert_eq!(s.claims.len(), 2, "nothing expires while the clock is not trusted");
    assert_eq!(sweep(&room.store, P, 10_000, false).await, Ok(Swept { expired: 1, clamped: 0 }));
    assert_eq!(room.extend(&ahead.claim, LONG, None).await, Held::Done(vec![]), "it is still the holder's");
}

#[tokio::test]
async fn interleaving_17_a_claim_takes_only_what_its_caller_serves_and_no_backlog_hides_another() {
    let room = Room::shared().await;
    let mail = RouteName::new("mail").expect("a name");
    // Slices of routes that nobody serves, all overdue: more of them than any page of any look.
    let slice = 1 << 20;
    let unknown = |n: i64| WriteOp::Store {
        route: RouteName::new(["unknown", "paused", "full"][n as usize % 3]).expect("a name"),
        on_duplicate: postdate::domain::OnDuplicate::Keep,
        bundle: bundle(vec![unnamed(past().plus(-n * slice), "unknown")]),
    };
    room.write((0..4500).map(unknown).collect()).await;
    room.keep(vec![unnamed(past(), "orders")]).await;
    room.write(vec![WriteOp::Store {
        route: mail.clone(),
        on_duplicate: postdate::domain::OnDuplicate::Keep,
        bundle: bundle(vec![unnamed(past(), "mail")]),
    }])
    .await;
    let heads = room.store.heads(&[P], past()).await.expect("heads");
    assert_eq!(heads.len(), 5, "a shelf a route");
    let mut request = room.request(LONG).await;
    request.shelves = heads.iter().filter(|h| h.route() == "mail").map(|h| (h.shelf.clone(), 10)).collect();
    let claimed = room.store.claim(&request).await.expect("claimed");
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["mail"]);
    assert_eq!(room.store.heads(&[P], past()).await.expect("heads").len(), 4);
    room.check().await;
}

#[tokio::test]
async fn a_look_shows_the_earliest_shelves_of_what_is_open_and_says_where_there_is_more() {
    let room = Room::shared().await;
    let slice = 1 << 20;
    let due = |n: i64| past().plus(n * slice);
    // Stored backwards: each new shelf is its route's head for a while.
    for n in (0..150).rev() {
        room.keep(vec![unnamed(due(n), &n.to_string())]).await;
    }
    let closed = room.store.look(&[P], due(149), far(), &|_| false).await.expect("looked");
    assert_eq!(closed.heads.iter().map(|head| head.due).collect::<Vec<_>>(), [due(0)]);
    assert_eq!(closed.heads[0].line(), (P, "orders".to_owned()));
    let beyond = closed.beyond[&closed.heads[0].line()];
    assert!(beyond > due(0) && beyond <= due(1), "the next slice's begin: {beyond}");
    let (mut seen, mut looks) = (Vec::new(), 0);
    loop {
        let looked = room.look(due(139)).await;
        let dues: Vec<_> = looked.heads.iter().map(|head| head.due).collect();
        if dues.iter().all(|at| *at > due(139)) {
            assert_eq!((dues.len(), looked.beyond.len()), (0, 0), "what is due later was not asked for");
            break;
        }
        looks += 1;
        let expected: Vec<_> = (seen.len() as i64..140).map(due).take(64).collect();
        assert_eq!(dues, expected, "the earliest, in their order");
        let next = expected.last().expect("some").plus(slice);
        assert_eq!(looked.beyond.values().next().copied(), (next <= due(139)).then_some(next));
        let claimed = room.claim_of(&looked).await;
        seen.extend(claimed.iter().flat_map(live));
        room.check().await;
    }
    assert_eq!(looks, 3);
    assert_eq!(seen, (0..140).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Whatever one of the indexes lacks or has wrong, a claim that finds nothing of it or an audit sets it right.
#[tokio::test]
async fn an_index_that_is_wrong_is_set_right_by_a_claim_of_it_or_an_audit() {
    let redis = crate::support::Redis::start().await;
    let room = Room::on(&redis, 1).await;
    room.keep(vec![unnamed(far(), "far")]).await;
    let late = room.heads().await.remove(0);
    let place = format!("orders/{:016}/{}", late.due.0, late.shelf.split_once('/').expect("a shelf").1);
    let none = "orders/0000000000000077/none";
    for (key, score, member) in
        [("heads", "77", late.shelf.as_str()), ("heads", "77", "orders/none"), ("idx", "77", "orders/none")]
    {
        room.command::<i64>(&["ZADD", &room.key(key), score, member]).await;
        let looked = room.store.look(&[P], past(), past(), &|_| false).await.expect("looked");
        assert_eq!(room.claim_of(&looked).await.len(), 0, "{key} {member}");
        if key == "heads" {
            room.check().await;
        }
        room.store.audit(P).await.expect("audited");
        room.check().await;
    }
    for wrong in [
        vec!["ZREM", "heads", &late.shelf],
        vec!["ZREM", "shelves", &place],
        vec!["ZADD", "shelves", "0", "not ours"],
        vec!["ZADD", "shelves", "0", none],
    ] {
        let mut command = wrong.clone();
        let key = room.key(wrong[1]);
        command[1] = &key;
        room.command::<i64>(&command).await;
        let report = room.store.audit(P).await.expect("audited");
        assert_eq!(wrong.last() == Some(&none), report.is_clean(), "{wrong:?}: {report:?}");
        room.check().await;
    }
}

#[tokio::test]
async fn interleaving_22_two_claims_of_one_millisecond_have_two_tokens() {
    let room = Room::shared().await;
    room.keep(vec![unnamed(past(), "a")]).await;
    let first = room.claim(LONG).await.remove(0);
    assert_eq!(room.give_back(&first.claim, None).await, Held::Done(vec![]));
    let second = room.another().claim(LONG).await.remove(0);
    // The same deadline, as if in the same millisecond.
    assert_ne!(first.claim.token, second.claim.token);
    let deadline = room.check().await.claims;
    assert_eq!(room.give_back(&first.claim, None).await, Held::Stale);
    assert_eq!(room.extend(&first.claim, 0, None).await, Held::Stale);
    assert_eq!(room.divide(all_back(&first)).await, Held::Stale);
    let s = room.check().await;
    assert_eq!((s.claims, s.due.len()), (deadline, 0), "the second claim is as it was");
    assert_eq!(room.settle(&second).await, Held::Done(vec![]));
}

#[tokio::test]
async fn interleaving_26_expiries_go_with_the_parts_of_a_bundle() {
    let room = Room::shared().await;
    room.keep(vec![unnamed(past(), "innocent"), unnamed(past(), "poison")]).await;
    for _ in 0..2 {
        room.claim(0).await;
        expire(&room).await;
    }
    let claimed = room.claim(LONG).await.remove(0);
    assert_eq!((claimed.expiries, claimed.opened), (2, 1));
    // Taken apart before anything of it is published.
    let mut apart = all_back(&claimed);
    apart.remainders = (0..2u32)
        .map(|i| Remainder {
            fresh: Fresh { route: route(), bundle: bundle(vec![entries(&claimed)[i as usize].clone()]) },
            from: vec![i],
            lease_ms: None,
            expiries: claimed.expiries,
            stamp: None,
        })
        .collect();
    assert_eq!(room.divide(apart).await, Held::Done(vec![]));
    room.check().await;
    let mut singles = room.claim(0).await;
    assert!(singles.iter().all(|c| (c.expiries, c.opened, entries(c).len()) == (2, 0, 1)));
    let innocent = singles.iter().position(|c| live(c) == ["innocent"]).expect("claimed");
    room.settle(&singles.remove(innocent)).await;
    expire(&room).await;
    let poison = room.claim(LONG).await.remove(0);
    assert_eq!((live(&poison), poison.expiries, poison.opened), (vec!["poison".to_owned()], 3, 0));
    room.check().await;
}

#[tokio::test]
async fn interleaving_28_a_name_means_its_message_wherever_its_bundle_is() {
    let room = Room::shared().await;
    // Claimed and expired: pending again, under its name.
    room.keep(vec![named("a", past(), "a1")]).await;
    room.claim(0).await;
    assert_eq!(room.cancel("a").await, InFlight);
    expire(&room).await;
    assert_eq!(room.keep(vec![named("a", past(), "a2")]).await, [Duplicate]);
    assert_eq!(room.cancel("a").await, Cancelled);
    room.check().await;

    // Given back, retried: so too.
    room.keep(vec![named("b", past(), "b1")]).await;
    let claimed = room.claim(LONG).await.remove(0);
    room.give_back(&claimed.claim, None).await;
    assert_eq!(room.keep(vec![named("b", past(), "b2")]).await, [Duplicate]);
    let claimed = room.claim(LONG).await.remove(0);
    room.divide(all_back(&claimed)).await;
    room.check().await;
    assert_eq!(room.keep(vec![named("b", past(), "b3")]).await, [Duplicate]);
    assert_eq!(room.cancel("b").await, Cancelled);
    room.check().await;
}

#[tokio::test]
async fn interleaving_28_who_comes_back_and_finds_its_name_taken_goes_on_nameless() {
    for way in ["give back", "retry", "expire"] {
        let room = Room::shared().await;
        room.keep(vec![named("a", past(), "old")]).await;
        let old = room.claim(0).await.remove(0);
        assert_eq!(room.keep(vec![named("a", past().plus(5), "new")]).await, [Stored], "in flight: free");
        match way {
            "give back" => assert_eq!(room.give_back(&old.claim, None).await, Held::Done(vec![])),
            "retry" => assert_eq!(room.divide(all_back(&old)).await, Held::Done(vec![])),
            _ => expire(&room).await,
        }
        room.check().await;
        // The name means the new one, and the old one's end does not change that.
        let mut both = room.claim(LONG).await;
        assert_eq!(both.len(), 2, "{way}");
        let at = both.iter().position(|c| live(c) == ["old"]).expect("claimed");
        assert_eq!(room.settle(&both.remove(at)).await, Held::Done(vec![]));
        assert_eq!(room.cancel("a").await, InFlight, "{way}");
        room.give_back(&both[0].claim, None).await;
        assert_eq!(room.cancel("a").await, Cancelled, "{way}");
        assert!(room.check().await.bundles.is_empty());
    }
}

#[tokio::test]
async fn interleaving_29_a_made_up_id_follows_its_message_through_a_retry() {
    let room = Room::shared().await;
    room.keep(vec![unnamed(past(), "a"), unnamed(past(), "b")]).await;
    let claimed = room.claim(LONG).await.remove(0);
    let id = claimed.claim.id.message_id(P, 1, past());
    let mut division = all_back(&claimed);
    let mut retried = entries(&claimed)[1].clone();
    (retried.id, retried.due) = (Some(id.clone()), far());
    let fresh = Fresh { route: route(), bundle: bundle(vec![retried]) };
    division.remainders = vec![Remainder { fresh, from: vec![1], lease_ms: None, expiries: 0, stamp: None }];
    division.confirmed = vec![true, false];
    assert_eq!(room.divide(division).await, Held::Done(vec![]));
    let s = room.check().await;
    let entry = &s.bundles.values().next().expect("one").entries[0];
    assert!(!entry.flags.has(Flags::NAMED), "it is not the producer's own");
    assert_eq!(room.reschedule(id.as_str(), past(), "x").await, Rescheduled);
    room.check().await;
    // A second retry takes it along.
    let claimed = room.claim(LONG).await.remove(0);
    room.divide(all_back(&claimed)).await;
    room.check().await;
    assert_eq!((room.cancel(id.as_str()).await, room.cancel(id.as_str()).await), (Cancelled, Unknown));
    let s = room.check().await;
    assert!(s.bundles.is_empty() && s.names.is_empty());
}

#[tokio::test]
async fn interleaving_32_cancelled_messages_leave_the_counts_and_their_bundle_its_memory() {
    let room = Room::shared().await;
    let names = ["a", "b", "c"];
    room.keep(names.iter().map(|n| named(n, far(), n)).collect()).await;
    let whole = room.counts().await;
    room.cancel("a").await;
    assert_eq!(room.reschedule("b", far(), "x").await, Rescheduled);
    let s = room.check().await;
    assert_eq!(room.counts().await.messages, 2);
    assert!(room.counts().await.bytes > whole.bytes, "bytes are counted until the blob is gone");
    assert_eq!(s.bundles.len(), 2);
    room.cancel("c").await;
    let s = room.check().await;
    assert_eq!(s.bundles.len(), 1, "the first bundle went with its last message");
    room.cancel("b").await;
    assert_eq!((room.counts().await.messages, room.counts().await.bytes), (0, 0));
    assert!(room.check().await.bundles.is_empty());
}

#[tokio::test]
async fn interleaving_35_suppressed_and_replaced_messages_are_never_handed_out() {
    let room = Room::shared().await;
    room.keep(vec![named("a", past(), "a1"), named("b", past(), "b1")]).await;
    let twice = vec![named("a", past(), "a2"), named("c", past(), "c1"), named("c", past(), "c2")];
    assert_eq!(room.keep(twice).await, [Duplicate, Stored, Duplicate]);
    room.write(vec![replace(vec![named("b", past(), "b2"), named("d", past(), "d1")])]).await;
    room.check().await;
    let mut out: Vec<_> = room.claim(LONG).await.iter().flat_map(live).collect();
    out.sort();
    assert_eq!(out, ["a1", "b2", "c1", "d1"]);
    assert_eq!(room.reschedule("a", far(), "x").await, TooLate);
}
