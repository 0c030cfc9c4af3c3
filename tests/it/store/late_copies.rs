//! Copies of numbered calls that come late: a connection that timed out had sent its bytes all the same. Whatever the
//! call was answered, a copy changes nothing, although what refused the call is gone by then. It writes all the same:
//! whoever sends a call again may be waiting for replicas, and a wait after a call that wrote nothing confirms nothing
//! (Valkey then says yes at once).

use postdate::store::{
    DeadFilter, DeadId, Division, NewBundle, Remainder, SettleAnswer, WriteOp, WriteResult,
};

use super::damage::all;
use super::fixture::*;
use super::lost_replies::{Behind, behind};
use super::proxy::Proxy;
use crate::support::Redis;

use WriteResult::{
    Cancelled, Duplicate, InFlight, Published, Replaced, Rescheduled, Stored, TooLate, Unknown,
};

/// Answer to a call whose caller waits for no replica: the caller has used another number by then.
const OVERTAKEN: &str = "OVERTAKEN";

/// Plays a copy of a call on ground where it could be applied anew: what it was about is gone, and other messages wait
/// under its names. The copy gets the answer of the call.
async fn plays(at: &Behind, what: &str, call: &[u8], answer: &str) {
    at.fixture.wipe().await;
    let other = at.fixture.another();
    other
        .keep(vec![
            named("n", past(), "other"),
            named("m", far(), "other"),
            unnamed(past(), "other"),
        ])
        .await;
    let before = all(&at.fixture).await;
    at.fixture.watch("calls").await;
    let again = at.proxy.send_again(call).await;
    let wrote = at.fixture.has_been_written().await;
    assert!(again.contains(answer), "{what}: {again}");
    assert_eq!(
        wrote,
        answer != OVERTAKEN,
        "{what}: whether the copy wrote something that can be waited for"
    );
    assert_eq!(
        all(&at.fixture).await,
        before,
        "{what}: the copy was applied"
    );
    at.fixture.wipe().await;
}

/// The same of the call that was made last.
async fn last(at: &Behind, what: &str, answer: &str) {
    plays(at, what, &at.proxy.last_call(), answer).await;
}

/// Makes a call that is refused once and goes on by itself, and plays a copy of it before the second try is sent.
async fn between_tries(
    at: &Behind,
    what: &str,
    op: WriteOp,
    meanwhile: impl AsyncFnOnce(&StoreFixture),
    answer: &str,
) -> WriteResult {
    let store = at.fixture.store.clone();
    at.proxy.hold_next();
    let calling = tokio::spawn(async move { store.write(P, vec![op]).await.expect("written") });
    at.proxy.until_played().await;
    let call = at.proxy.last_call();
    meanwhile(&at.fixture.another()).await;
    at.proxy.hold_next();
    at.proxy.let_go();
    at.proxy.until_played().await;
    plays(at, what, &call, answer).await;
    at.proxy.let_go();
    let result = calling.await.expect("runs")[0][0];
    at.fixture.check().await;
    at.fixture.wipe().await;
    result
}

#[tokio::test]
async fn interleaving_10_a_late_copy_of_a_write_changes_nothing_whatever_its_answer_was() {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis).await;
    let fixture = proxy.fixture_with(redis, LONG as i64).await;
    let at = Behind { proxy, fixture };
    let fixture = &at.fixture;
    let single = |letter: &str| format!("$1\r\n{letter}\r\n");

    assert_eq!(fixture.keep(vec![named("n", past(), "n")]).await, [Stored]);
    last(&at, "stored", &single("s")).await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    assert_eq!(
        fixture.keep(vec![named("n", past(), "again")]).await,
        [Duplicate]
    );
    last(&at, "a duplicate", &single("d")).await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    assert_eq!(
        fixture
            .write(vec![replace(vec![named("n", past(), "again")])])
            .await[0],
        [Replaced]
    );
    last(&at, "replaced", &single("r")).await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    assert_eq!(fixture.cancel("n").await, Cancelled);
    last(&at, "cancelled", &single("c")).await;
    assert_eq!(fixture.cancel("n").await, Unknown);
    last(&at, "unknown", &single("u")).await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(fixture.cancel("n").await, InFlight);
    let in_flight = at.proxy.last_call();
    fixture.settle(&claimed).await;
    assert_eq!(fixture.cancel("n").await, Published);
    last(&at, "published", &single("p")).await;
    // Overtaken by now.
    plays(&at, "in flight", &in_flight, OVERTAKEN).await;
}

#[tokio::test]
async fn interleaving_10_a_late_copy_of_a_refused_write_is_not_applied_beside_its_second_try() {
    let at = behind().await;
    at.fixture.keep(vec![named("n", past(), "n")]).await;
    assert_eq!(at.fixture.cancel("n").await, Cancelled);
    let two = || keep(vec![unnamed(past(), "u"), named("n", past(), "n")]);
    let taken = async |other: &StoreFixture| {
        assert_eq!(
            other.keep(vec![named("n", past(), "theirs")]).await,
            [Stored]
        );
    };
    assert_eq!(
        between_tries(&at, "a name was taken", two(), taken, "CHANGED").await,
        Stored
    );
    let appears = async |other: &StoreFixture| {
        assert_eq!(
            other.keep(vec![named("n", past(), "theirs")]).await,
            [Stored]
        );
    };
    assert_eq!(
        between_tries(&at, "a name to cancel", cancel("n"), appears, "CHANGED").await,
        Unknown
    );
    let appears = async |other: &StoreFixture| {
        assert_eq!(
            other.keep(vec![named("n", past(), "theirs")]).await,
            [Stored]
        );
    };
    let moved = between_tries(
        &at,
        "a name to move",
        reschedule("n", far(), "n"),
        appears,
        "CHANGED",
    )
    .await;
    assert_eq!(moved, Stored);
    let spoil = async |other: &StoreFixture| {
        other
            .command::<()>(&["SET", &other.key("claims"), "not ours"])
            .await;
    };
    assert_eq!(
        between_tries(&at, "damage", two(), spoil, "WRONGTYPE").await,
        Stored
    );
    let spoil = async |other: &StoreFixture| {
        other
            .command::<()>(&["SET", &other.key("claims"), "not ours"])
            .await;
    };
    let moved = between_tries(
        &at,
        "damage",
        reschedule("n", far(), "n"),
        spoil,
        "WRONGTYPE",
    )
    .await;
    assert_eq!(moved, Stored);
    assert_eq!(at.fixture.store.rollbacks(), 0);
}

#[tokio::test]
async fn interleaving_10_a_late_copy_of_a_write_with_a_stamp_from_behind_is_not_applied_beside_its_second_try()
 {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis).await;
    let fixture = proxy.ordered_fixture(redis).await;
    let at = Behind { proxy, fixture };
    at.fixture
        .keep(vec![unnamed(past(), "known to the server")])
        .await;
    let ahead = async |other: &StoreFixture| {
        // Microseconds, some centuries from now.
        other
            .command::<i64>(&["HSET", &other.key("order"), "stamp", "8000000000000000"])
            .await;
    };
    let op = keep(vec![unnamed(past(), "u"), unnamed(past(), "v")]);
    assert_eq!(
        between_tries(&at, "a sequence number from behind", op, ahead, "BEHIND").await,
        Stored
    );
}

#[tokio::test]
async fn interleaving_10_a_late_copy_of_a_reschedule_a_claim_or_a_settle_changes_nothing_whatever_its_answer_was()
 {
    let at = behind().await;
    let fixture = &at.fixture;
    let single = |letter: &str| format!("$1\r\n{letter}\r\n");
    let spoil = async || {
        fixture
            .command::<()>(&["SET", &fixture.key("gone"), "not ours"])
            .await;
    };

    fixture.keep(vec![named("n", past(), "n")]).await;
    assert_eq!(fixture.reschedule("n", far(), "x").await, Rescheduled);
    last(&at, "moved", &single("r")).await;
    assert_eq!(fixture.reschedule("n", far(), "x").await, Stored);
    last(&at, "stored by a reschedule", &single("s")).await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    fixture.claim(LONG).await;
    assert_eq!(fixture.reschedule("n", far(), "x").await, TooLate);
    last(&at, "too late", &single("l")).await;

    fixture
        .keep(vec![named("n", past(), "n"), unnamed(past(), "u")])
        .await;
    let request = fixture.request(LONG).await;
    let claimed = fixture
        .store
        .claim(&request)
        .await
        .expect("claimed")
        .remove(0);
    let claim = at.proxy.last_call();
    assert_eq!(
        fixture.store.claim(&request).await.expect("claimed").len(),
        0
    );
    last(&at, "nothing to claim", "*0\r\n").await;
    plays(&at, "claimed", &claim, OVERTAKEN).await;
    spoil().await;
    assert!(fixture.store.claim(&request).await.is_err());
    last(&at, "a claim and damage", "WRONGTYPE").await;

    assert_eq!(fixture.settle(&claimed).await, SettleAnswer::Stale);
    last(&at, "a stale settle", &single("s")).await;
    fixture
        .keep(vec![named("n", past(), "n"), unnamed(past(), "u")])
        .await;
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        fixture.settle(&claimed).await,
        SettleAnswer::Applied(vec![])
    );
    last(&at, "settled", &single("o")).await;
    spoil().await;
    assert!(
        fixture
            .store
            .settle(P, &[settlement(&claimed)])
            .await
            .is_err()
    );
    last(&at, "a settle and damage", "WRONGTYPE").await;
}

#[tokio::test]
async fn interleaving_10_a_late_copy_of_a_divide_a_redrive_or_a_drop_changes_nothing_whatever_its_answer_was()
 {
    let at = behind().await;
    let fixture = &at.fixture;
    let single = |letter: &str| format!("$1\r\n{letter}\r\n");
    let spoil = async || {
        fixture
            .command::<()>(&["SET", &fixture.key("gone"), "not ours"])
            .await;
    };
    let division = |claimed: &postdate::store::ClaimAnswer| Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false, false],
        delivered: vec![],
        freed: vec![],
        remainders: vec![Remainder {
            new_bundle: NewBundle {
                route: route(),
                bundle: bundle(vec![named("n", past(), "n")]),
            },
            from: vec![0],
            lease_ms: None,
            expiries: 0,
            sequence: None,
        }],
        dead: vec![dead_letter(unnamed(past(), "u"))],
        held_keys: Vec::new(),
    };
    let taken = async || {
        fixture
            .keep(vec![named("n", past(), "n"), unnamed(past(), "u")])
            .await;
        fixture.claim(LONG).await.remove(0)
    };
    let claimed = taken().await;
    assert_eq!(
        fixture.divide(division(&claimed)).await,
        SettleAnswer::Applied(vec![])
    );
    last(&at, "divided", &single("o")).await;
    assert_eq!(
        fixture.divide(division(&claimed)).await,
        SettleAnswer::Stale
    );
    last(&at, "a stale division", &single("s")).await;
    spoil().await;
    assert!(fixture.store.divide(&division(&claimed)).await.is_err());
    last(&at, "a division and damage", "WRONGTYPE").await;

    let dead = async || {
        fixture
            .write(vec![WriteOp::DeadLetter(dead_letter(named(
                "n",
                past(),
                "d",
            )))])
            .await;
        let page = fixture
            .store
            .dead_page(&DeadFilter::default(), None, 1)
            .await
            .expect("a page");
        page.marks[0].id.clone()
    };
    let again = bundle(vec![named("n", past(), "d")]);
    let redrive = async |id: &DeadId| fixture.store.redrive(id, &again).await;
    let id = dead().await;
    assert_eq!(redrive(&id).await, Ok(true));
    last(&at, "redriven", &single("o")).await;
    assert_eq!(redrive(&id).await, Ok(false));
    last(&at, "nothing to redrive", &single("u")).await;
    let id = dead().await;
    spoil().await;
    assert!(redrive(&id).await.is_err());
    last(&at, "a redrive and damage", "WRONGTYPE").await;
    let id = dead().await;
    assert_eq!(
        fixture.store.drop_dead(std::slice::from_ref(&id)).await,
        Ok(vec![true])
    );
    last(&at, "dropped", &single("o")).await;
    assert_eq!(
        fixture.store.drop_dead(std::slice::from_ref(&id)).await,
        Ok(vec![false])
    );
    last(&at, "nothing to drop", &single("u")).await;
    spoil().await;
    assert!(fixture.store.drop_dead(&[id]).await.is_err());
    last(&at, "a drop and damage", "WRONGTYPE").await;
}

#[tokio::test]
async fn interleaving_10_a_mark_writes_also_where_it_raises_nothing() {
    let fixture = StoreFixture::shared().await;
    for (offset, before) in [(5, None), (5, Some(5)), (4, Some(5)), (6, Some(5))] {
        fixture.watch("sources").await;
        assert_eq!(
            fixture.store.raise_offset("s", offset, None).await,
            Ok(before)
        );
        assert!(fixture.has_been_written().await, "{offset}");
    }
}
