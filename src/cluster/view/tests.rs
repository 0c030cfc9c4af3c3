//! Tests of what follows from the members of the registry.

use super::*;
use crate::store::ReplicaStatus;

const BEAT_MS: i64 = 1000;

fn empty() -> ReplicaView {
    ReplicaView::new(Duration::from_millis(500))
}

fn member(nonce: &str, heartbeat: u64) -> RegisteredReplica {
    let presence = ReplicaStatus {
        name: format!("name-{nonce}"),
        heartbeat_ms: BEAT_MS,
        joined: heartbeat,
        routes: vec!["orders".to_owned()],
        ..ReplicaStatus::default()
    };
    RegisteredReplica {
        nonce: nonce.to_owned(),
        heartbeat,
        silent_ms: 0,
        status: presence,
    }
}

fn silent(mut member: RegisteredReplica, ms: i64) -> RegisteredReplica {
    member.silent_ms = ms;
    member
}

fn with(
    mut member: RegisteredReplica,
    change: impl FnOnce(&mut ReplicaStatus),
) -> RegisteredReplica {
    change(&mut member.status);
    member
}

fn hear(
    view: &mut ReplicaView,
    now_ms: i64,
    silence_ms: i64,
    members: &[RegisteredReplica],
) -> Result<(), NameRefusal> {
    let news = RegistryNews {
        members: members.to_vec(),
        silence_ms: Some(silence_ms),
        now_us: now_ms * 1000,
    };
    view.hear("a", news)
}

/// The same, where the registry does not know this replica (any more).
fn hear_unknown(
    view: &mut ReplicaView,
    now_ms: i64,
    members: &[RegisteredReplica],
) -> Result<(), NameRefusal> {
    let news = RegistryNews {
        members: members.to_vec(),
        silence_ms: None,
        now_us: now_ms * 1000,
    };
    view.hear("a", news)
}

fn owned(view: &ReplicaView) -> OwnedPartitions {
    owned_by("a", view)
}

fn owned_by(me: &str, view: &ReplicaView) -> OwnedPartitions {
    view.owned(me, Partitions::new(12).expect("some"))
}

/// The number of partitions in which a route is served.
fn count(owned: &OwnedPartitions, route: &str) -> usize {
    (0..12)
        .filter(|&p| owned.serves(Partition(p), route))
        .count()
}

#[test]
fn the_dead_own_nothing_and_their_death_is_awaited() {
    let mut view = empty();
    let a = member("a", 1);
    let b = member("b", 2);
    assert_eq!(
        hear(&mut view, 0, 400, &[a.clone(), silent(b.clone(), 3000)]),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    assert_eq!(view.next_death_ms("a"), Some(0));
    assert_eq!(
        hear(&mut view, 400, 400, &[a.clone(), silent(b.clone(), 2000)]),
        Ok(())
    );
    assert_eq!(view.next_death_ms("a"), Some(1000));
    assert_eq!(hear(&mut view, 800, 400, &[a, silent(b, 3001)]), Ok(()));
    assert_eq!(owned(&view).count(), 12);
    assert_eq!(view.next_death_ms("a"), None);
}

#[test]
fn who_was_not_answered_itself_takes_nobody_for_dead_at_once() {
    let mut view = empty();
    let a = member("a", 1);
    let b = member("b", 2);
    assert_eq!(hear(&mut view, 0, 400, &[a.clone(), b.clone()]), Ok(()));
    // Redis was away for all. Its clock may have stepped far, so b's entry has ended.
    assert_eq!(
        hear(&mut view, 9000, 9000, &[a.clone(), silent(b, 9400)]),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    assert_eq!(
        hear(&mut view, 11_999, 400, std::slice::from_ref(&a)),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    assert_eq!(hear(&mut view, 12_000, 400, &[a]), Ok(()));
    assert_eq!(owned(&view).count(), 12, "dead after all");
}

#[test]
fn who_was_silent_until_its_entry_was_gone_takes_nobody_for_dead_at_once() {
    let mut view = empty();
    let a = member("a", 1);
    let b = member("b", 2);
    assert_eq!(hear_unknown(&mut view, 0, &[a.clone(), b.clone()]), Ok(()));
    assert_eq!(
        hear(&mut view, 400, 400, std::slice::from_ref(&a)),
        Ok(()),
        "it joins: nobody was silent"
    );
    assert_eq!(owned(&view).count(), 12);
    assert_eq!(hear(&mut view, 800, 400, &[a.clone(), b]), Ok(()));
    // Redis was away for all. Whoever was answered first removed the others' entries.
    assert_eq!(
        hear_unknown(&mut view, 70_000, std::slice::from_ref(&a)),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    assert_eq!(
        hear(&mut view, 72_999, 400, std::slice::from_ref(&a)),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    assert_eq!(hear(&mut view, 73_000, 400, &[a]), Ok(()));
    assert_eq!(owned(&view).count(), 12, "dead after all");
}

#[test]
fn an_entry_is_kept_until_its_claims_have_ended_and_for_a_minute_at_least() {
    for (heartbeat_ms, claim_ms, kept_ms) in [
        (1_300, 10_000, 60_000),
        (1_300, 120_000, 123_900),
        (25_000, 10_000, 85_000),
    ] {
        let replica = with(member("a", 1), |p| {
            p.heartbeat_ms = heartbeat_ms;
            p.claim_ms = claim_ms;
        });
        assert_eq!(replica.kept_ms(), kept_ms);
        assert!(replica.kept_ms() > replica.lifetime_ms());
    }
}

#[test]
fn a_process_with_a_shard_that_hangs_or_a_slow_clock_is_no_owner_unless_all_are_such() {
    let mut view = empty();
    let hangs = |p: &mut ReplicaStatus| p.rounds = vec![10, 3001];
    let a = member("a", 1);
    let b = with(member("b", 2), hangs);
    assert_eq!(hear(&mut view, 0, 400, &[a.clone(), b.clone()]), Ok(()));
    assert_eq!(owned(&view).count(), 12);
    assert_eq!(
        hear(&mut view, 0, 400, &[with(a.clone(), hangs), b]),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 6);
    let skewed = |ms| with(member("b", 2), |p| p.skew_ms = ms);
    assert_eq!(hear(&mut view, 0, 400, &[a.clone(), skewed(-501)]), Ok(()));
    assert_eq!(owned(&view).count(), 12, "its clock calls nothing due");
    assert_eq!(hear(&mut view, 0, 400, &[a, skewed(3_600_000)]), Ok(()));
    assert_eq!(owned(&view).count(), 6, "it publishes by redis's clock");
}

#[test]
fn a_route_that_only_some_know_is_shared_among_those() {
    let mut view = empty();
    let also = |p: &mut ReplicaStatus| p.routes.push("mail".to_owned());
    let a = with(member("a", 1), also);
    let b = member("b", 2);
    let c = with(member("c", 3), also);
    assert_eq!(hear(&mut view, 0, 400, &[a, b, c.clone()]), Ok(()));
    let of_a = owned(&view);
    let of_c = owned_by("c", &view);
    assert_eq!((count(&of_a, "orders"), count(&of_a, "mail")), (4, 6));
    assert!(
        (0..12).all(|p| of_a.serves(Partition(p), "mail") != of_c.serves(Partition(p), "mail"))
    );
    assert_eq!(
        (0..12).filter(|&p| of_a.serves_any(Partition(p))).count(),
        6
    );
    assert!(!of_a.serves(Partition(0), "nobody's"));
}

#[test]
fn a_route_that_only_a_process_with_a_shard_that_hangs_knows_stays_with_it() {
    let mut view = empty();
    let a = with(member("a", 1), |p| {
        p.routes.push("mail".to_owned());
        p.rounds = vec![10, 3001];
    });
    assert_eq!(hear(&mut view, 0, 400, &[a, member("b", 2)]), Ok(()));
    let of_a = owned(&view);
    let of_b = owned_by("b", &view);
    assert_eq!((count(&of_a, "orders"), count(&of_a, "mail")), (0, 12));
    assert_eq!((count(&of_b, "orders"), count(&of_b, "mail")), (12, 0));
}

#[test]
fn of_two_with_one_name_the_later_goes_once_the_earlier_is_heard_of() {
    let named = |member: RegisteredReplica| with(member, |p| p.name = "same".to_owned());
    let newcomer = with(named(member("a", 5)), |p| p.joining = true);
    let mut view = empty();
    // Nobody knows yet whether the earlier one is dead, and the newcomer serves in its place.
    assert_eq!(
        hear(
            &mut view,
            0,
            400,
            &[newcomer.clone(), named(member("b", 2))]
        ),
        Ok(())
    );
    assert_eq!(owned(&view).count(), 12);
    let heard = RegisteredReplica {
        heartbeat: 6,
        ..named(member("b", 2))
    };
    assert_eq!(
        hear(&mut view, 400, 400, &[newcomer.clone(), heard.clone()]),
        Err(NameRefusal::Taken("same".to_owned()))
    );
    // After joining, the newcomer has the name, and the earlier one goes, because it had been silent.
    let settled = with(newcomer, |p| p.joining = false);
    assert_eq!(
        hear(&mut view, 400, 400, &[settled.clone(), heard.clone()]),
        Ok(())
    );
    let news = RegistryNews {
        members: vec![settled, heard],
        silence_ms: Some(9000),
        now_us: 0,
    };
    assert_eq!(
        empty().hear("b", news),
        Err(NameRefusal::Replaced("same".to_owned(), 9000))
    );
}

#[test]
fn who_was_silent_until_its_entry_was_gone_has_lost_its_name_to_its_successor() {
    let named = |member: RegisteredReplica| with(member, |p| p.name = "same".to_owned());
    let mut view = empty();
    let a = named(member("a", 2));
    assert_eq!(hear(&mut view, 0, 400, std::slice::from_ref(&a)), Ok(()));
    let again = RegisteredReplica { heartbeat: 9, ..a };
    let successor = named(member("b", 5));
    assert_eq!(
        hear_unknown(&mut view, 65_000, &[again, successor]),
        Err(NameRefusal::Replaced("same".to_owned(), 60_000))
    );
}

#[test]
fn an_earlier_one_that_was_never_silent_for_long_stays() {
    let named = |member: RegisteredReplica| with(member, |p| p.name = "same".to_owned());
    let mut view = empty();
    let newcomer = with(named(member("b", 5)), |p| p.joining = true);
    assert_eq!(
        hear(&mut view, 0, 400, &[named(member("a", 1)), newcomer]),
        Ok(())
    );
    assert_eq!(
        owned(&view).count(),
        0,
        "for as long as the newcomer is there"
    );
}
