//! Unreadable keys: blobs that were not seen, bundles of a later version, keys of another program. None of them is
//! destroyed, and none blocks the others.

use std::time::Duration;

use postdate::domain::{DeadReason, RoutePause, UnixMs};
use postdate::store::{CodecError, DeadLetter, Division, KnownStore, ReplicaStatus, SettleAnswer};

use super::fixture::*;
use super::matrix;
use crate::replay::fixture::{ReplayFixture, record};
use crate::support::run::now_ms;
use crate::support::{Redis, eventually};

/// Division by a claimer that found no blob.
fn nothing_there(claimed: &postdate::store::ClaimAnswer) -> Division {
    let dead_letter = DeadLetter {
        route: route(),
        reason: DeadReason::Corrupt,
        bundle: bundle(Vec::new()),
        raw: None,
    };
    Division {
        claim: claimed.claim.clone(),
        confirmed: vec![false; claimed.skip.len()],
        delivered: vec![],
        freed: vec![],
        remainders: vec![],
        dead: vec![dead_letter],
        held_keys: Vec::new(),
    }
}

#[tokio::test]
async fn a_blob_that_was_not_seen_is_not_destroyed_if_it_is_there_after_all() {
    let fixture = StoreFixture::shared().await;
    fixture
        .keep(vec![named("a", past(), "a1"), unnamed(past(), "a2")])
        .await;
    let claimed = fixture.claim(0).await.remove(0);
    // A master that answered for a moment lacked it; this one has it.
    assert_eq!(
        fixture.divide(nothing_there(&claimed)).await,
        SettleAnswer::Stale
    );
    let s = fixture.check().await;
    assert_eq!(
        (s.bundles.len(), s.claims.len(), s.dead.len()),
        (1, 1, 0),
        "all is as it was"
    );
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(live(&claimed), ["a1", "a2"]);
    // Where it is really gone the dead letter says so.
    fixture
        .command::<i64>(&["DEL", &fixture.key(&format!("b:{}", claimed.claim.id))])
        .await;
    assert_eq!(
        fixture.divide(nothing_there(&claimed)).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(fixture.counts().await.dead, 1);
}

/// A blob without a byte is one that is not there: its holder says so, and is believed.
#[tokio::test]
async fn an_empty_blob_becomes_a_dead_letter_and_comes_back_no_more() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let id = fixture
        .check()
        .await
        .bundles
        .into_keys()
        .next()
        .expect("one");
    fixture
        .command::<()>(&["SET", &fixture.key(&format!("b:{id}")), ""])
        .await;
    let claimed = fixture.claim(LONG).await.remove(0);
    assert_eq!(claimed.bundle, Err(CodecError::Missing));
    assert_eq!(
        fixture.divide(nothing_there(&claimed)).await,
        SettleAnswer::Applied(vec![])
    );
    assert_eq!(fixture.counts().await.dead, 1);
}

#[tokio::test]
async fn a_missing_blob_is_asked_for_again_before_it_is_called_missing() {
    let fixture = StoreFixture::shared().await;
    fixture.keep(vec![unnamed(past(), "a")]).await;
    let id = fixture
        .check()
        .await
        .bundles
        .into_keys()
        .next()
        .expect("one");
    let there = fixture.key(&format!("b:{id}"));
    let away = fixture.key("away");
    fixture.command::<()>(&["RENAME", &there, &away]).await;
    let request = fixture.request(LONG).await;
    let back = async {
        eventually("it is claimed", async || {
            let claims: i64 = fixture.command(&["ZCARD", &fixture.key("claims")]).await;
            if claims == 1 { Ok(()) } else { Err(claims) }
        })
        .await;
        fixture.command::<()>(&["RENAME", &away, &there]).await;
    };
    let (claimed, ()) = tokio::join!(fixture.store.claim(&request), back);
    let claimed = claimed.expect("claimed").remove(0);
    // Seen or, on a slow machine, not: it is there for the next holder in any case.
    if claimed.bundle.is_err() {
        assert_eq!(
            fixture.divide(nothing_there(&claimed)).await,
            SettleAnswer::Stale
        );
    }
    assert_eq!(fixture.check().await.bundles.len(), 1);
}

/// Makes a bundle one of a later version.
async fn rewrite(fixture: &StoreFixture, id: &str, version: &str) {
    fixture
        .command::<i64>(&["SETRANGE", &fixture.key(&format!("b:{id}")), "2", version])
        .await;
}

#[tokio::test]
async fn a_bundle_of_a_later_version_waits_and_stands_before_nothing() {
    let redis = Redis::start().await;
    let fixture = StoreFixture::on(&redis, 1).await;
    for n in 0..3 {
        fixture
            .keep(vec![
                unnamed(past().plus(n), "a"),
                unnamed(past().plus(n), "b"),
            ])
            .await;
    }
    let later = fixture.claim(0).await.remove(0).claim.id;
    rewrite(&fixture, later.as_str(), "\u{7f}").await;
    sweep(&fixture.store, P, LONG, false).await.expect("swept");
    // Whoever claimed it and left it is no sign of poison, however often.
    let due: Vec<String> = fixture
        .command(&[
            "ZRANGE",
            &fixture.key(&format!("due:{}", later.due_set())),
            "0",
            "-1",
        ])
        .await;
    for id in &due {
        fixture
            .command::<i64>(&["HSET", &fixture.key("expiries"), id, "51"])
            .await;
    }
    let claimed = fixture.claim(LONG).await;
    let (unread, read): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|c| c.claim.id == later);
    assert_eq!(unread[0].bundle, Err(CodecError::UnknownVersion(0x7f)));
    assert!(
        read.iter().all(|c| c.bundle == Err(CodecError::Poison)),
        "these were left: they are"
    );
    let now = UnixMs(now_ms());
    fixture
        .store
        .put_off(P, &[unread[0].claim.clone()], 600_000)
        .await
        .expect("put off");
    fixture
        .store
        .put_off(P, &[unread[0].claim.clone()], 600_000)
        .await
        .expect("twice is once");
    let due: f64 = fixture
        .command(&[
            "ZSCORE",
            &fixture.key(&format!("due:{}", later.due_set())),
            later.as_str(),
        ])
        .await;
    assert!(due as i64 >= now.0 + 500_000, "{due}");
    // It is the last of its shelf, and of its route: what is due later is not behind it.
    fixture.keep(vec![unnamed(now.plus(-1000), "now")]).await;
    let claimed = fixture.claim(LONG).await;
    assert_eq!(claimed.iter().flat_map(live).collect::<Vec<_>>(), ["now"]);
    for held in &claimed {
        assert_eq!(fixture.settle(held).await, SettleAnswer::Applied(vec![]));
    }
    // Whoever can read it finds it as it was.
    fixture
        .command::<i64>(&["HSET", &fixture.key("expiries"), later.as_str(), "1"])
        .await;
    rewrite(&fixture, later.as_str(), "\u{2}").await;
    let request = postdate::store::ClaimRequest {
        lookahead_ms: 700_000,
        ..fixture.request(LONG).await
    };
    let claimed = fixture.store.claim(&request).await.expect("claimed");
    assert_eq!(
        claimed
            .iter()
            .map(|c| c.claim.id.clone())
            .collect::<Vec<_>>(),
        [later]
    );
}

#[tokio::test]
async fn a_relay_puts_what_a_later_version_wrote_off_and_delivers_all_else() {
    let replay = ReplayFixture::new(1, "").await;
    let due = (now_ms() + 15_000).to_string();
    let headers = |id: &'static str| [("x-delay-id", id), ("x-deliver-at", due.as_str())];
    replay
        .produce(&[record(0, "later", &headers("later"))])
        .await;
    replay.committed().await;
    let mut raw = replay.redis.connection().await.expect("connected");
    let blobs = replay.blobs().await;
    redis::cmd("SETRANGE")
        .arg(&blobs[0])
        .arg(2)
        .arg("\u{7f}")
        .query_async::<i64>(&mut raw)
        .await
        .expect("set");
    replay
        .produce(&[record(0, "other", &headers("other"))])
        .await;
    replay.arrived_at_least(&["other".to_owned()]).await;
    let relay = replay.relay();
    eventually("it is put off", async || {
        let metrics = relay.request("GET", "/metrics", None, "").await?.1;
        let times = metrics
            .lines()
            .find_map(|l| l.strip_prefix("postdate_unknown_versions_total "));
        match times.and_then(|n| n.parse::<u32>().ok()) {
            Some(1..) => anyhow::Ok(()),
            other => Err(anyhow::anyhow!("{other:?}")),
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let metrics = relay
        .request("GET", "/metrics", None, "")
        .await
        .expect("metrics")
        .1;
    assert!(
        metrics.contains("postdate_unknown_versions_total 1\n"),
        "no look meets it again: {metrics}"
    );
    assert_eq!(relay.log().matches("bundles of a later version").count(), 1);
    assert!(!replay.arrivals().contains(&"later".to_owned()));
    let dead: Vec<String> = redis::cmd("KEYS")
        .arg("*:d:*")
        .query_async(&mut raw)
        .await
        .expect("keys");
    assert!(dead.is_empty(), "{dead:?}");
}

#[tokio::test]
async fn a_delivered_message_is_not_buried_though_its_claims_have_expired_too_often() {
    let replay = ReplayFixture::new(1, "").await;
    let due = (now_ms() + 8000).to_string();
    let headers = [("x-deliver-at", due.as_str())];
    replay.produce(&[record(0, "delivered", &headers)]).await;
    replay.committed().await;
    let mut redis = replay.redis.connection().await.expect("connected");
    let blobs = replay.blobs().await;
    let [blob] = &blobs[..] else {
        panic!("one bundle: {blobs:?}")
    };
    let (partition, id) = blob.split_once(":b:").expect("a blob");
    // Its confirm came after its claim had expired, and was noted; then that claim's next ones expired too.
    for (hash, value) in [("done", "1"), ("expiries", "50")] {
        let mut set = redis::cmd("HSET");
        set.arg(format!("{partition}:{hash}")).arg(id).arg(value);
        set.query_async::<i64>(&mut redis).await.expect("set");
    }
    assert!(
        now_ms() < due.parse().expect("a number"),
        "nothing was claimed before"
    );
    eventually("nothing is left of it", async || {
        let left = redis::cmd("EXISTS")
            .arg(blob)
            .query_async::<bool>(&mut redis)
            .await?;
        anyhow::ensure!(!left, "it is there");
        anyhow::Ok(())
    })
    .await;
    let dead = replay.get("/api/v1/dead").await.1;
    assert_eq!(dead["items"].as_array().map(Vec::len), Some(0), "{dead}");
    assert_eq!(replay.arrivals(), [""; 0], "it was delivered before");
}

/// A bundle may kill whoever decodes it: who claims it after fifty-one expiries does not. A redrive brings back its
/// messages, but not the one that was cancelled before.
#[tokio::test]
async fn interleaving_26_a_bundle_that_expired_too_often_is_buried_unopened_and_can_be_redriven() {
    let replay = ReplayFixture::new(1, "").await;
    let due = (now_ms() + 15_000).to_string();
    let bodies: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let headers = [("x-deliver-at", due.as_str())];
    replay
        .produce(
            &bodies
                .iter()
                .map(|body| record(0, body, &headers))
                .collect::<Vec<_>>(),
        )
        .await;
    replay.committed().await;
    let (_, page) = replay.get("/api/v1/messages?route=r&limit=1").await;
    let path = format!(
        "/api/v1/routes/r/messages/{}",
        page["items"][0]["id"].as_str().expect("an id")
    );
    let (status, answer) = replay
        .relay()
        .request("DELETE", &path, None, "")
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let mut redis = replay.redis.connection().await.expect("connected");
    let blobs = replay.blobs().await;
    let mut bundles = 0;
    let mut single = 0;
    for blob in &blobs {
        let (partition, id) = blob.split_once(":b:").expect("a blob");
        if postdate::store::BundleId::parse(id).expect("an id").count() == 1 {
            single += 1;
            continue;
        }
        bundles += 1;
        let mut set = redis::cmd("HSET");
        set.arg(format!("{partition}:expiries")).arg(id).arg(51);
        set.query_async::<i64>(&mut redis).await.expect("set");
    }
    assert!(bundles > 0, "what is due together lies together: {blobs:?}");
    assert!(
        now_ms() < due.parse().expect("a number"),
        "nothing was claimed before"
    );
    eventually("they are dead letters", async || {
        let dead = replay
            .relay()
            .metrics()
            .await?
            .sum("postdate_dead_letters_total", &[("reason", "crashes")]);
        anyhow::ensure!(dead as usize == bundles, "{dead} of {bundles}");
        anyhow::Ok(())
    })
    .await;
    let arrived = async |expected: usize| {
        eventually(&format!("{expected} have arrived"), async || {
            let arrived = replay.arrivals().len();
            if arrived == expected {
                Ok(())
            } else {
                Err(format!("{arrived}"))
            }
        })
        .await;
    };
    arrived(single).await;
    let (_, page) = replay.get("/api/v1/dead?reason=crashes").await;
    let dead = page["items"].as_array().expect("a list");
    let names_it = |dead: &serde_json::Value| {
        dead["error"].as_str().is_some_and(|error| {
            error
                .starts_with("its claims expired too often, and it was not opened again; it holds ")
        })
    };
    assert!(dead.iter().all(names_it), "{page}");
    let ids: Vec<_> = dead.iter().map(|dead| dead["dead_id"].clone()).collect();
    let body = serde_json::json!({ "ids": ids }).to_string();
    let redriven = replay
        .relay()
        .request("POST", "/api/v1/dead/redrive", None, &body)
        .await
        .expect("an answer");
    assert_eq!(redriven.0, 200, "{}", redriven.1);
    arrived(bodies.len() - 1).await;
    let arrivals: std::collections::BTreeSet<String> = replay.arrivals().into_iter().collect();
    assert_eq!(
        arrivals.len(),
        bodies.len() - 1,
        "each of the others once: {arrivals:?}"
    );
}

/// The keys that `docs/store.md` names: those of a partition, and those outside of them.
fn documented() -> (Vec<&'static str>, Vec<&'static str>) {
    let text = include_str!("../../../docs/store.md");
    let keys = text
        .split("\n## ")
        .find(|part| part.starts_with("Keys"))
        .expect("the keys");
    let named = |line: &'static str, begin: &str| line.strip_prefix(begin)?.split('`').next();
    let of_partition = keys.lines().filter_map(|line| named(line, "| `"));
    let shared = keys.lines().filter_map(|line| named(line, "`P:"));
    (of_partition.collect(), shared.collect())
}

#[test]
fn every_key_that_is_documented_is_in_the_matrix_of_damages() {
    let (of_partition, shared) = documented();
    for key in &of_partition {
        let begin = key.find(':').map_or(*key, |colon| &key[..=colon]);
        assert!(
            begin == "quarantine:" || matrix::KEYS.contains(&begin),
            "{key}"
        );
    }
    assert_eq!((of_partition.len(), shared.len()), (24, 8));
}

#[tokio::test]
async fn a_key_outside_of_the_partitions_that_is_not_ours_gets_out_of_the_way_at_its_first_use() {
    for name in documented().1 {
        if name == "meta" {
            // Refused at start, by name.
            continue;
        }
        let redis = Redis::start().await;
        let fixture = StoreFixture::on(&redis, 1).await;
        let day = fixture.store.clock().now().0 / 86_400_000;
        let own = name
            .replace("DAY", &day.to_string())
            .replace("CALLER", "me");
        let key = format!("{}:{own}", fixture.config.prefix);
        fixture.command::<()>(&["SET", &key, "not ours"]).await;
        let use_it = async || match name {
            "{audit}:callers" | "{audit}:of:CALLER" => {
                fixture
                    .store
                    .append_to_audit_log("me", &[("who", "me")])
                    .await
            }
            "{members}:activity:DAY" => fixture.store.add_activity(&[("dead", 1)]).await,
            "replays" => {
                fixture
                    .store
                    .note_replay(&route(), None, Some("so far"))
                    .await
            }
            "paused" => fixture.store.paused(&route()).await.map(|_: RoutePause| ()),
            _ => fixture
                .store
                .heartbeat(&ReplicaStatus::default(), &KnownStore::default())
                .await
                .map(drop),
        };
        eventually(&format!("{name} can be used"), async || use_it().await).await;
        let kind: String = fixture.command(&["TYPE", &key]).await;
        assert_ne!(kind, "string", "{name}");
        let pattern = format!("{}:quarantine:*", fixture.config.prefix);
        let aside: Vec<String> = fixture.command(&["KEYS", &pattern]).await;
        assert_eq!(aside.len(), 1, "{name}: {aside:?}");
        assert_eq!(
            fixture.command::<String>(&["GET", &aside[0]]).await,
            "not ours"
        );
    }
}

#[tokio::test]
async fn a_relay_that_starts_beside_keys_that_are_not_ours_delivers() {
    let mut replay = ReplayFixture::new(1, "").await;
    replay.end().await;
    let mut raw = replay.redis.connection().await.expect("connected");
    let meta: Vec<String> = redis::cmd("KEYS")
        .arg("*:meta")
        .query_async(&mut raw)
        .await
        .expect("keys");
    let prefix = meta[0].strip_suffix(":meta").expect("a prefix").to_owned();
    for key in ["paused", "{members}:replicas"] {
        let key = format!("{prefix}:{key}");
        redis::cmd("SET")
            .arg(&key)
            .arg("not ours")
            .query_async::<()>(&mut raw)
            .await
            .expect("set");
    }
    replay.begin().await;
    replay
        .produce(&[record(
            0,
            "a",
            &[("x-deliver-at", &(now_ms() + 1500).to_string())],
        )])
        .await;
    replay.arrived_at_least(&["a".to_owned()]).await;
    assert!(
        replay
            .relay()
            .log()
            .contains("a key of a wrong type was quarantined"),
        "{}",
        replay.relay().log()
    );
}
