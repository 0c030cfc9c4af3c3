//! The registry: who beats, and what a beat tells of the store.

use postdate::domain::{Partition, UnixMs};
use postdate::store::{HeartbeatReply, KnownStore, RegisteredReplica, ReplicaStatus, StoreError};

use super::fixture::StoreFixture;
use crate::support::{Proxy, Redis, eventually};

fn presence(name: &str, held: &[u16]) -> ReplicaStatus {
    let held = held.iter().copied().map(Partition).collect();
    ReplicaStatus {
        name: name.to_owned(),
        heartbeat_ms: 1000,
        partitions: held,
        ..ReplicaStatus::default()
    }
}

/// A beat that is answered by the store that it knows.
async fn beat(
    fixture: &StoreFixture,
    presence: &ReplicaStatus,
    known: &KnownStore,
) -> (KnownStore, Option<i64>, Vec<RegisteredReplica>) {
    match fixture.store.heartbeat(presence, known).await {
        Ok(HeartbeatReply::Same {
            known,
            silence_ms,
            replicas: members,
            ..
        }) => (known, silence_ms, members),
        other => panic!("{other:?}"),
    }
}

fn key(fixture: &StoreFixture, name: &str) -> String {
    format!("{}:{{members}}:{name}", fixture.config.prefix)
}

#[tokio::test]
async fn each_hears_what_all_say_until_they_leave_or_were_silent_for_long() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    let here = presence("a", &[0, 1, 2, 7]);
    let there = presence("b", &[]);
    let (known, silence, members) = beat(&fixture, &here, &KnownStore::default()).await;
    assert_eq!(
        (known.heartbeat, silence, known.rolled_back_at),
        (1, None, UnixMs(0))
    );
    assert_eq!(
        (members[0].nonce.as_str(), &members[0].status),
        (fixture.store.nonce(), &here)
    );
    let (of_other, _, members) = beat(&other, &there, &KnownStore::default()).await;
    assert_eq!(
        (of_other.heartbeat, &of_other.identity),
        (2, &known.identity),
        "one store, one generation"
    );
    assert_eq!(members.len(), 2);
    assert_eq!(other.store.replicas().await.expect("asked").len(), 2);

    // One that fell silent is heard of for a minute. The clock stepped back: it is not from the future.
    let registry = key(&fixture, "replicas");
    let now: Vec<i64> = fixture.command(&["TIME"]).await;
    let at = |ms: i64| {
        format!(
            "2 {} {}",
            now[0] * 1000 + ms,
            serde_json::to_string(&there).expect("json")
        )
    };
    fixture
        .command::<i64>(&["HSET", &registry, other.store.nonce(), &at(-30_000)])
        .await;
    let (known, silence, members) = beat(&fixture, &here, &known).await;
    assert!(silence.is_some_and(|ms| ms >= 0), "{silence:?}");
    let silent = members
        .iter()
        .find(|m| m.nonce == other.store.nonce())
        .expect("it is there");
    assert!(
        !silent.is_alive() && silent.silent_ms >= 30_000,
        "{silent:?}"
    );
    fixture
        .command::<i64>(&["HSET", &registry, other.store.nonce(), &at(3_600_000)])
        .await;
    let (known, _, members) = beat(&fixture, &here, &known).await;
    assert!(members.iter().all(RegisteredReplica::is_alive));
    let entry: String = fixture
        .command(&["HGET", &registry, other.store.nonce()])
        .await;
    let written: i64 = entry
        .split(' ')
        .nth(1)
        .and_then(|ms| ms.parse().ok())
        .expect("a moment");
    assert!(
        written < now[0] * 1000 + 3_000_000,
        "its silence counts from here: {entry}"
    );
    fixture
        .command::<i64>(&["HSET", &registry, other.store.nonce(), &at(-90_000)])
        .await;
    fixture
        .command::<i64>(&["HSET", &registry, "whose", "nobody's"])
        .await;
    let (known, _, members) = beat(&fixture, &here, &known).await;
    assert_eq!(members.len(), 1, "{members:?}");
    assert_eq!(
        fixture.command::<i64>(&["HLEN", &registry]).await,
        1,
        "they are gone"
    );

    fixture.store.unregister().await.expect("left");
    assert_eq!(fixture.command::<i64>(&["EXISTS", &registry]).await, 0);
    assert_eq!(
        beat(&fixture, &here, &known).await.1,
        None,
        "nobody knows it any more"
    );
}

/// The replica has every beat, and who knew what it lacks may be gone.
#[tokio::test]
async fn another_master_is_told_by_its_first_beat_to_those_who_knew_the_former_and_to_those_who_start()
 {
    let former = Redis::start().await;
    let follow = format!("127.0.0.1 {}", former.port());
    let master = Redis::start_with("redis-server", &["--replicaof", &follow]).await;
    let proxy = Proxy::before(former.port()).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let fixture = StoreFixture::through(&master, &url, 1).await;
    let here = presence("a", &[]);
    let (known, _, _) = beat(&fixture, &here, &KnownStore::default()).await;
    let (known, _, _) = beat(&fixture, &here, &known).await;
    assert_eq!(known.new_master_at, UnixMs(0), "the same server");
    eventually("the replica has the beats", async || {
        let beats: Option<String> = fixture
            .command(&["HGET", &key(&fixture, "store"), "beats"])
            .await;
        if beats.as_deref() == Some("2") {
            Ok(())
        } else {
            Err(format!("{beats:?}"))
        }
    })
    .await;
    master
        .command::<()>(&["REPLICAOF", "NO", "ONE"])
        .await
        .expect("promoted");
    proxy.lead_to(master.port());
    proxy.reset();
    let before: Vec<i64> = fixture.command(&["TIME"]).await;
    let again = eventually("the new master answers", async || {
        match fixture.store.heartbeat(&here, &known).await {
            Ok(HeartbeatReply::Same { known, .. }) => Ok(known),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(again.heartbeat, 3, "no beat is missing");
    assert!(
        again.new_master_at.0 >= before[0] * 1000,
        "{:?}",
        again.new_master_at
    );
    assert_eq!(
        again.rolled_back_at,
        UnixMs(0),
        "nothing is known to be lost"
    );
    let starting = fixture.another();
    let (heard, _, _) = beat(&starting, &presence("b", &[]), &KnownStore::default()).await;
    assert_eq!(heard.new_master_at, again.new_master_at, "once, for all");
}

#[tokio::test]
async fn interleaving_25_an_older_copy_is_known_by_its_beats_and_everybody_hears_of_it() {
    let fixture = StoreFixture::shared().await;
    let other = fixture.another();
    let here = presence("a", &[]);
    let there = presence("b", &[]);
    let (mut known, _, _) = beat(&fixture, &here, &KnownStore::default()).await;
    let copies: Vec<(String, Vec<u8>)> = {
        let mut copies = Vec::new();
        for name in ["replicas", "store"] {
            copies.push((
                key(&fixture, name),
                fixture.command(&["DUMP", &key(&fixture, name)]).await,
            ));
        }
        copies
    };
    for _ in 0..3 {
        known = beat(&fixture, &here, &known).await.0;
    }
    let (of_other, _, _) = beat(&other, &there, &KnownStore::default()).await;
    assert_eq!(
        (known.rolled_back_at, of_other.rolled_back_at),
        (UnixMs(0), UnixMs(0))
    );
    for (key, copy) in &copies {
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(copy).arg("REPLACE");
        restore
            .exec_async(&mut fixture.raw.clone())
            .await
            .expect("restored");
    }
    let (of_other, silence, _) = beat(&other, &there, &of_other).await;
    assert_eq!(silence, None, "the copy is from before it came");
    assert!(
        of_other.rolled_back_at > UnixMs(0),
        "fewer beats than it was answered"
    );
    let (again, silence, _) = beat(&fixture, &here, &known).await;
    assert!(again.rolled_back_at >= of_other.rolled_back_at && silence.is_some());
    let (late, _, _) = beat(&fixture.another(), &there, &KnownStore::default()).await;
    assert_eq!(
        late.rolled_back_at, again.rolled_back_at,
        "one that comes later hears of it too"
    );
    assert_eq!(
        beat(&fixture, &here, &again).await.0.rolled_back_at,
        again.rolled_back_at,
        "once is enough"
    );
}

#[tokio::test]
async fn a_wiped_or_replaced_store_is_strange_and_nothing_is_written_to_it() {
    let fixture = StoreFixture::shared().await;
    let here = presence("a", &[]);
    let (known, _, _) = beat(&fixture, &here, &KnownStore::default()).await;
    for name in ["replicas", "store"] {
        fixture.command::<i64>(&["DEL", &key(&fixture, name)]).await;
    }
    assert_eq!(
        fixture.store.heartbeat(&here, &known).await,
        Ok(HeartbeatReply::Replaced(None))
    );
    assert_eq!(
        fixture
            .command::<i64>(&[
                "EXISTS",
                &key(&fixture, "replicas"),
                &key(&fixture, "store")
            ])
            .await,
        0
    );
    let (fresh, _, _) = beat(
        &fixture,
        &here,
        &KnownStore {
            rolled_back_at: UnixMs(5),
            ..KnownStore::default()
        },
    )
    .await;
    assert_ne!(fresh.identity, known.identity);
    assert_eq!(fresh.rolled_back_at, UnixMs(5), "what it noticed is kept");
    assert_eq!(
        fixture.store.heartbeat(&here, &known).await,
        Ok(HeartbeatReply::Replaced(fresh.identity))
    );
}

#[tokio::test]
async fn a_key_of_another_kind_is_refused_before_anything_is_written() {
    let fixture = StoreFixture::shared().await;
    fixture
        .command::<String>(&["SET", &key(&fixture, "store"), "another's"])
        .await;
    let answer = fixture
        .store
        .heartbeat(&presence("a", &[]), &KnownStore::default())
        .await;
    assert!(matches!(answer, Err(StoreError::Damaged(_))), "{answer:?}");
    assert_eq!(
        fixture
            .command::<i64>(&["EXISTS", &key(&fixture, "replicas")])
            .await,
        0
    );
}
