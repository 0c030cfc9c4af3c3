//! Calls whose reply is lost, that come late, or that meet another's call in between.

use std::time::Duration;

use postdate::store::{SettleAnswer, StoreError, WriteOp, WriteResult};
use tokio::time::timeout;

use super::fixture::*;
use super::proxy::Proxy;
use crate::support::{Redis, eventually};

use WriteResult::{Cancelled, Duplicate, InFlight, Replaced, Rescheduled, Stored, TooLate};

pub(super) struct Behind {
    pub(super) proxy: Proxy,
    pub(super) fixture: StoreFixture,
}

/// A store behind a proxy, whose scripts the server knows already.
pub(super) async fn behind() -> Behind {
    let redis = Redis::shared().await;
    let proxy = Proxy::before(redis).await;
    let fixture = proxy.fixture(redis).await;
    fixture.keep(vec![named("warm", past(), "warm")]).await;
    fixture.reschedule("warm", past(), "warm").await;
    let claimed = fixture.claim(0).await.remove(0);
    fixture.extend(&claimed.claim, 0, None).await;
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.give_back(&claimed.claim, None).await;
    let claimed = fixture.claim(LONG).await.remove(0);
    fixture.settle(&claimed).await;
    assert!(fixture.check().await.bundles.is_empty());
    Behind { proxy, fixture }
}

#[tokio::test]
async fn interleaving_24_a_store_whose_reply_is_lost_is_applied_once() {
    let Behind { proxy, fixture, .. } = behind().await;
    proxy.lose_next_reply();
    let letters = vec![unnamed(past(), "u"), named("n", past(), "n")];
    assert_eq!(
        fixture.keep(letters).await,
        [Stored, Stored],
        "not a duplicate of itself"
    );
    assert_eq!(proxy.played(), 1);
    let s = fixture.check().await;
    assert_eq!((s.bundles.len(), s.passing.len()), (1, 0));
    proxy.lose_next_reply();
    assert_eq!(
        fixture.cancel("n").await,
        Cancelled,
        "the answer of the first time"
    );
    fixture.check().await;
    assert_eq!(fixture.store.rollbacks(), 0);
}

#[tokio::test]
async fn interleaving_06_a_store_that_is_sent_again_after_its_bundle_left_brings_no_blob_back() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    let call = proxy.last_call();
    // While it stands, the repeat leaves the blob as it is.
    let answer = proxy.send_again(&call).await;
    let s = fixture.check().await;
    assert_eq!((s.bundles.len(), s.passing.len()), (1, 0), "{answer}");
    // In flight too.
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(
        proxy.send_again(&call).await.matches("$1\r\ns\r\n").count(),
        1,
        "it answers the same"
    );
    assert_eq!(fixture.check().await.bundles.len(), 1);
    fixture.settle(&claimed).await;
    let answer = proxy.send_again(&call).await;
    assert_eq!(answer.matches("$1\r\ns\r\n").count(), 1, "{answer}");
    let s = fixture.check().await;
    assert_eq!((s.bundles.len(), s.passing.len(), s.names.len()), (0, 0, 0));
}

#[tokio::test]
async fn interleaving_06_an_overtaken_store_changes_nothing_and_leaves_no_blob() {
    let Behind { proxy, fixture, .. } = behind().await;
    proxy.withhold_next();
    fixture.keep(vec![unnamed(past(), "first")]).await;
    let late = proxy.withheld();
    fixture.keep(vec![unnamed(past(), "second")]).await;
    let before = fixture.check().await;
    let answer = proxy.send_again(&late).await;
    assert!(answer.contains("OVERTAKEN"), "{answer}");
    let after = fixture.check().await;
    assert_eq!((before.due, before.counts), (after.due, after.counts));
    assert!(after.passing.is_empty());
}

#[tokio::test]
async fn interleaving_24_a_repeat_that_the_store_has_forgotten_does_not_suppress_itself() {
    let Behind { proxy, fixture, .. } = behind().await;
    for policy in [keep, replace] {
        fixture
            .write(vec![policy(vec![
                named("n", past(), "n"),
                unnamed(past(), "u"),
            ])])
            .await;
        let call = proxy.last_call();
        for claimed in [false, true] {
            fixture
                .command::<i64>(&["DEL", &fixture.key("calls")])
                .await;
            let held = if claimed {
                fixture.claim(LONG).await
            } else {
                vec![]
            };
            assert!(proxy.send_again(&call).await.contains("$2\r\nss\r\n"));
            let s = fixture.check().await;
            assert_eq!(
                (
                    s.bundles.len(),
                    s.names.len(),
                    s.counts["n:orders"],
                    s.passing.len()
                ),
                (1, 1, 2, 0)
            );
            for held in held {
                assert_eq!(live(&held), ["n", "u"]);
                fixture.settle(&held).await;
            }
        }
    }
}

#[tokio::test]
async fn interleaving_25_a_claim_whose_reply_is_lost_answers_the_same_bundles() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    fixture.keep(vec![unnamed(past(), "b")]).await;
    let request = fixture.request(LONG).await;
    proxy.lose_next_reply();
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(proxy.played(), 1);
    assert_eq!(claimed.len(), 2);
    assert!(claimed.iter().all(|c| c.expiries == 0));
    assert_eq!(fixture.check().await.claims.len(), 2);
    for c in &claimed {
        assert_eq!(
            fixture.settle(c).await,
            SettleAnswer::Applied(vec![]),
            "its token is the one that holds it"
        );
    }
}

#[tokio::test]
async fn interleaving_25_blobs_that_did_not_come_are_asked_for_again() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let request = fixture.request(LONG).await;
    proxy.cut_at_next_get();
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(proxy.played(), 1);
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["a"]);
    fixture.check().await;
}

#[tokio::test]
async fn a_settle_and_a_divide_whose_reply_is_lost_answer_that_they_were_theirs() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture
        .keep(vec![named("n", past(), "n"), unnamed(past(), "u")])
        .await;
    let claimed = fixture.claim(LONG).await.remove(0);
    let held = postdate::store::Remainder {
        new_bundle: postdate::store::NewBundle {
            route: route(),
            bundle: bundle(vec![named("n", past(), "n")]),
        },
        from: vec![0],
        lease_ms: Some(LONG),
        expiries: 0,
        sequence: None,
    };
    let division = postdate::store::Division {
        claim: claimed.claim,
        confirmed: vec![false, true],
        delivered: vec![],
        freed: vec![],
        remainders: vec![held],
        dead: vec![],
        held_keys: Vec::new(),
    };
    proxy.lose_next_reply();
    let SettleAnswer::Applied(born) = fixture.divide(division).await else {
        panic!("it was ours")
    };
    let s = fixture.check().await;
    assert_eq!(s.claims.keys().collect::<Vec<_>>(), [born[0].id.as_str()]);
    let settled = postdate::store::Settlement {
        claim: born[0].clone(),
        names: vec![("n".into(), 0)],
        delivered: vec![],
    };
    proxy.lose_next_reply();
    assert_eq!(
        fixture.store.settle(P, &[settled]).await,
        Ok(vec![SettleAnswer::Applied(vec![])])
    );
    assert_eq!(proxy.played(), 2);
    assert!(fixture.check().await.bundles.is_empty());
}

#[tokio::test]
async fn interleaving_22_an_extend_whose_reply_is_lost_leaves_the_token() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let claimed = fixture.claim(0).await.remove(0);
    proxy.lose_next_reply();
    let extended = fixture
        .store
        .extend(P, LONG, &[progress(&claimed.claim, None)])
        .await;
    assert!(extended.is_err(), "nobody told its holder");
    assert_eq!(
        fixture.settle(&claimed).await,
        SettleAnswer::Applied(vec![]),
        "and yet it is the holder's"
    );
    assert!(fixture.check().await.bundles.is_empty());
}

#[tokio::test]
async fn a_lost_reply_to_a_reschedule_or_a_replace_changes_once() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![named("n", past(), "n")]).await;
    proxy.lose_next_reply();
    assert_eq!(fixture.reschedule("n", far(), "command").await, Rescheduled);
    proxy.lose_next_reply();
    assert_eq!(fixture.reschedule("m", far(), "command").await, Stored);
    proxy.lose_next_reply();
    let replaced = fixture
        .write(vec![replacement("n", far(), "another")])
        .await;
    assert_eq!(replaced, [[Replaced]]);
    assert_eq!(proxy.played(), 3);
    assert_eq!(fixture.check().await.bundles.len(), 2);
}

/// Play of another process between a call's lookup of its names and the call itself.
async fn in_between(
    before: &str,
    meanwhile: impl AsyncFn(&StoreFixture),
    call: impl Future<Output = Vec<Vec<WriteResult>>> + Send + 'static,
    at: &Behind,
) -> Vec<Vec<WriteResult>> {
    let other = at.fixture.another();
    at.proxy.hold_next();
    let calling = tokio::spawn(call);
    at.proxy.until_played().await;
    // The other store speaks through the same proxy; the held call is the only one that waits.
    meanwhile(&other).await;
    at.proxy.let_go();
    let results = calling.await.expect("runs");
    let s = at.fixture.check().await;
    assert!(
        s.passing.is_empty(),
        "{before}: the refused call left no blob"
    );
    results
}

fn writing(
    fixture: &StoreFixture,
    ops: Vec<postdate::store::WriteOp>,
) -> impl Future<Output = Vec<Vec<WriteResult>>> + use<> {
    let store = fixture.store.clone();
    async move { store.write(P, ops).await.expect("written") }
}

#[tokio::test]
async fn interleaving_35_a_name_that_changed_since_the_look_refuses_the_call_and_it_is_looked_at_again()
 {
    let at = behind().await;
    // Taken meanwhile.
    let call = writing(&at.fixture, vec![keep(vec![named("n", past(), "mine")])]);
    let taken = in_between(
        "taken",
        async |other| {
            assert_eq!(
                other.keep(vec![named("n", past(), "theirs")]).await,
                [Stored]
            );
        },
        call,
        &at,
    );
    assert_eq!(taken.await, [[Duplicate]]);
    // Moved meanwhile: the cancel finds it where it is now.
    let call = writing(&at.fixture, vec![cancel("n")]);
    let moved = in_between(
        "moved",
        async |other| assert_eq!(other.reschedule("n", far(), "x").await, Rescheduled),
        call,
        &at,
    );
    assert_eq!(moved.await, [[Cancelled]]);
    // Claimed meanwhile: it is not moved.
    at.fixture.keep(vec![named("n", past(), "n")]).await;
    let call = writing(&at.fixture, vec![reschedule("n", far(), "x")]);
    let claimed = in_between(
        "claimed",
        async |other| assert_eq!(other.claim(LONG).await.len(), 1),
        call,
        &at,
    );
    assert_eq!(claimed.await, [[TooLate]]);
    assert_eq!(at.fixture.cancel("n").await, InFlight);
    // Gone meanwhile: the command's own message is stored.
    at.fixture.keep(vec![named("m", past(), "m")]).await;
    let call = writing(&at.fixture, vec![reschedule("m", far(), "x")]);
    let gone = in_between(
        "gone",
        async |other| assert_eq!(other.cancel("m").await, Cancelled),
        call,
        &at,
    );
    assert_eq!(gone.await, [[Stored]]);
    assert_eq!(at.fixture.store.rollbacks(), 0);
}

/// The store's own caller of this kind, as `calls` names it.
async fn caller(fixture: &StoreFixture, kind: &str) -> String {
    let callers: Vec<String> = fixture.command(&["HKEYS", &fixture.key("calls")]).await;
    let mut own = callers.into_iter().filter(|caller| caller.ends_with(kind));
    own.next().expect("it has called")
}

/// Moves the time of a caller's last call back by so many seconds.
async fn age(fixture: &StoreFixture, caller: &str, seconds: i64) {
    let calls = fixture.key("calls");
    let entry: Vec<u8> = fixture.command(&["HGET", &calls, caller]).await;
    let mut parts = entry.splitn(3, |byte| *byte == b' ');
    let mut next = || parts.next().expect("number, seconds, answer");
    let (number, at, answer) = (next(), next(), next());
    let at: i64 = String::from_utf8_lossy(at).parse().expect("seconds");
    let aged = (at - seconds).to_string();
    redis::cmd("HSET")
        .arg(&calls)
        .arg(caller)
        .arg([number, aged.as_bytes(), answer].join(&b' '))
        .query_async::<i64>(&mut fixture.raw.clone())
        .await
        .expect("set");
}

#[tokio::test]
async fn interleaving_24_a_write_whose_reply_is_lost_for_ten_minutes_is_applied_once() {
    let Behind { proxy, fixture, .. } = behind().await;
    fixture.keep(vec![named("n0", past(), "theirs")]).await;
    let names = (0..40).map(|n| named(&format!("n{n}"), past(), "n"));
    let ops: Vec<WriteOp> = (0..20)
        .map(|_| keep(vec![unnamed(past(), "u")]))
        .chain([keep(names.collect())])
        .collect();
    proxy.lose_next_reply();
    let calling = tokio::spawn(writing(&fixture, ops));
    proxy.until_played().await;
    // Its next try.
    proxy.hold_next();
    proxy.until_played().await;
    age(&fixture, &caller(&fixture, ".w").await, 11 * 60).await;
    let other = fixture.another();
    other.reached().await;
    let report = other.store.scrub(P).await.expect("scrubbed");
    assert_eq!(report.callers, 0, "the answer is kept");
    proxy.let_go();
    let results = calling.await.expect("runs").concat();
    let expected = [vec![Stored; 20], vec![Duplicate], vec![Stored; 39]].concat();
    assert_eq!(results, expected, "the answer of the first time");
    assert_eq!(fixture.check().await.bundles.len(), 1 + 20 + 1);
    assert_eq!(fixture.store.rollbacks(), 0);
}

#[tokio::test]
async fn a_number_that_no_call_had_keeps_no_caller_waiting() {
    let Behind { proxy, fixture, .. } = behind().await;
    let plant = async |kind: &str, entry: &str| {
        let caller = caller(&fixture, kind).await;
        fixture
            .command::<i64>(&["HSET", &fixture.key("calls"), &caller, entry])
            .await;
    };
    // The caller goes on behind the first one. The others are so high that they count as none.
    let entries = [
        "999999999999 1 x",
        "5000000000000000 1 x",
        "9007199254740991 1 x",
        "99999999999999999999 1 x",
    ];
    let mut rollbacks = 0;
    for entry in entries {
        plant(".w", entry).await;
        rollbacks += 1;
        let name = format!("n{rollbacks}");
        let write = fixture.keep(vec![named(&name, past(), "n"), unnamed(past(), "u")]);
        let written = timeout(Duration::from_secs(20), write).await;
        assert_eq!(written.ok(), Some(vec![Stored, Stored]), "{entry}");
        assert_eq!(fixture.store.rollbacks(), rollbacks, "{entry}: it is said");
        proxy.lose_next_reply();
        assert_eq!(fixture.cancel(&name).await, Cancelled, "{entry}: once");
        fixture.check().await;
    }
    plant(".c", entries[0]).await;
    let request = fixture.request(LONG).await;
    let refused = fixture.store.claim(&request).await.map(drop);
    assert_eq!(refused, Err(StoreError::Overtaken));
    assert_eq!(fixture.claim(LONG).await.len(), entries.len());
    assert_eq!(fixture.store.rollbacks(), rollbacks + 1);
    // A scrub reads past such a number.
    fixture
        .command::<i64>(&["HSET", &fixture.key("calls"), "nobody.s", entries[3]])
        .await;
    fixture.store.scrub(P).await.expect("scrubbed");
    fixture.check().await;
}

#[tokio::test]
async fn a_wiped_store_is_noticed_and_goes_on() {
    let Behind { fixture, .. } = behind().await;
    assert_eq!(fixture.store.rollbacks(), 0);
    let keys: Vec<String> = fixture.command(&["KEYS", &fixture.key("*")]).await;
    for key in keys {
        fixture.command::<()>(&["DEL", &key]).await;
    }
    assert_eq!(fixture.keep(vec![unnamed(past(), "a")]).await, [Stored]);
    assert_eq!(
        fixture.store.rollbacks(),
        1,
        "the write calls are forgotten"
    );
    assert_eq!(fixture.claim(LONG).await.len(), 1);
    assert_eq!(fixture.store.rollbacks(), 2, "the claim calls too");
    fixture.keep(vec![unnamed(past(), "b")]).await;
    assert_eq!(fixture.store.rollbacks(), 2, "it is said once");
    assert!(
        fixture
            .check()
            .await
            .due
            .values()
            .all(|due| *due == past().0)
    );
}

#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_sent_again() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    let flush = async || fixture.command::<()>(&["SCRIPT", "FLUSH", "SYNC"]).await;
    flush().await;
    assert_eq!(fixture.keep(vec![named("n", past(), "n")]).await, [Stored]);
    flush().await;
    assert_eq!(
        fixture.keep(vec![named("n", past(), "n")]).await,
        [Duplicate],
        "behind its blob in MULTI"
    );
    assert!(fixture.check().await.passing.is_empty());
    flush().await;
    assert_eq!(fixture.reschedule("n", past(), "x").await, Rescheduled);
    flush().await;
    let claimed = fixture.claim(0).await.remove(0);
    flush().await;
    fixture.extend(&claimed.claim, 0, None).await;
    flush().await;
    assert_eq!(
        sweep(&fixture.store, P, LONG, false)
            .await
            .expect("swept")
            .expired,
        1
    );
    let claimed = fixture.claim(LONG).await.remove(0);
    flush().await;
    fixture.give_back(&claimed.claim, None).await;
    flush().await;
    assert_eq!(fixture.cancel("n").await, Cancelled);
    flush().await;
    fixture
        .store
        .raise_offset("s", 4, None)
        .await
        .expect("raised");
    assert!(fixture.check().await.bundles.is_empty());
}

#[tokio::test]
async fn a_server_that_dies_is_waited_for_and_nothing_is_done_twice() {
    let mut redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    fixture.keep(vec![named("before", past(), "before")]).await;
    redis.kill9().await;
    let writing = tokio::spawn({
        let fixture = fixture.at(P);
        async move {
            fixture
                .keep(vec![named("meanwhile", past(), "meanwhile")])
                .await
        }
    });
    redis.restart().await;
    assert_eq!(writing.await.expect("runs"), [Stored]);
    assert_eq!(
        fixture.store.rollbacks(),
        0,
        "the append-only file has all of it"
    );
    // The raw connection died with the server.
    let mut fixture = fixture.at(P);
    fixture.raw = redis.connection().await.expect("connected");
    assert_eq!(fixture.check().await.bundles.len(), 2);
    assert_eq!(fixture.cancel("before").await, Cancelled);
    // A look answers that the store is away once it has noticed; whoever looks tries again.
    eventually("a look is answered", async || {
        fixture.store.heads(&[P], past()).await.map(drop)
    })
    .await;
    assert_eq!(
        fixture
            .claim(LONG)
            .await
            .iter()
            .flat_map(live)
            .collect::<Vec<_>>(),
        ["meanwhile"]
    );
    fixture.check().await;
}
