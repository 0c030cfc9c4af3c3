//! `postdate replay` on real servers: a store that was lost, one that was restored from a backup, a replay that
//! was killed, one that must wait; and all that it refuses.

pub(crate) mod fixture;
mod refusals;

use std::time::Duration;

use self::fixture::{Record, ReplayFixture, ago, record};
use crate::support::eventually;
use crate::support::run::now_ms;

const HOUR: i64 = 3_600_000;

#[tokio::test]
async fn what_a_lost_store_held_comes_back_and_a_dry_run_changes_nothing() {
    let mut fixture = ReplayFixture::new(2, "").await;
    let far = now_ms() + HOUR;
    let farther = now_ms() + 2 * HOUR;
    let at = |ms: i64| ms.to_string();
    let mut records: Vec<_> = (0..20)
        .map(|n| record(n % 2, &format!("u{n}"), &[("x-deliver-at", &at(far))]))
        .collect();
    records.extend([
        record(0, "a", &[("x-delay-id", "a"), ("x-deliver-at", &at(far))]),
        record(0, "b", &[("x-delay-id", "b"), ("x-deliver-at", &at(far))]),
        record(0, "-", &[("x-delay-id", "b"), ("x-delay-op", "cancel")]),
        record(1, "c", &[("x-delay-id", "c"), ("x-deliver-at", &at(far))]),
        record(
            1,
            "-",
            &[
                ("x-delay-id", "c"),
                ("x-delay-op", "reschedule"),
                ("x-deliver-at", &at(farther)),
            ],
        ),
        record(1, "passes", &[]),
        record(1, "bad", &[("x-delay", "soon")]),
        record(1, "d", &[("x-delay-id", "d"), ("x-delay", "300")]),
    ]);
    fixture.produce(&records).await;
    fixture.arrived(&["passes", "d"]).await;
    // What has arrived is of one partition; the other may be yet to be read.
    fixture.committed().await;
    fixture.end().await;
    let before = fixture.keys().await;
    assert!(!before.is_empty());
    fixture.wipe().await;

    let since = ago(&fixture);
    let dry = fixture.replay(&["--since", &since, "--dry-run"]).await;
    assert_eq!(dry.code, 0, "{dry:?}");
    assert_eq!(dry.counts(), [28, 23, 1, 0, 0, 1, 0, 3, 0, 0, 1], "{dry:?}");
    assert!(
        fixture.keys().await.is_empty(),
        "a dry run changes nothing: {:?}",
        fixture.keys().await
    );

    let done = fixture.replay(&["--since", &since, "--yes"]).await;
    assert_eq!((done.code, done.counts()), (0, dry.counts()), "{done:?}");
    assert!(
        done.out
            .contains("done: 24 message(s) stored, dead letters included"),
        "{done:?}"
    );
    fixture.begin().await;
    // What was delivered since then comes again.
    fixture.arrived(&["passes", "d", "d"]).await;
    let waits = fixture.pending().await;
    let mut expected: Vec<_> = (0..20).map(|n| (format!("u{n}"), far)).collect();
    expected.extend([("a".to_owned(), far), ("c".to_owned(), farther)]);
    expected.sort();
    assert_eq!(waits, expected);
    assert_eq!(
        fixture.get("/api/v1/routes/r/messages/b").await.0,
        404,
        "it was cancelled"
    );
    let (status, a) = fixture.get("/api/v1/routes/r/messages/a").await;
    assert_eq!((status, a["state"].as_str()), (200, Some("pending")), "{a}");
    let dead = fixture.get("/api/v1/dead").await.1;
    assert_eq!(dead["items"].as_array().map(Vec::len), Some(1), "{dead}");

    // And what is there is not stored again, with the relay running.
    let due_after = now_ms().to_string();
    let again = fixture
        .replay(&["--since", &since, "--due-after", &due_after, "--yes"])
        .await;
    assert_eq!(
        again.counts(),
        [28, 0, 0, 0, 0, 0, 23, 3, 1, 0, 1],
        "{again:?}"
    );
    assert_eq!(fixture.pending().await, expected);
    assert_eq!(fixture.note().await, None, "no replay is under way");
}

#[tokio::test]
async fn an_old_backup_gets_what_came_after_it_and_hears_the_commands_that_it_missed() {
    let mut fixture = ReplayFixture::new(1, "").await;
    let far = now_ms() + HOUR;
    let farther = now_ms() + 2 * HOUR;
    let at = |ms: i64| ms.to_string();
    let unnamed = |n: i32| record(0, &format!("u{n}"), &[("x-deliver-at", &at(far))]);
    let named = |id: &'static str, body: &str| {
        record(0, body, &[("x-delay-id", id), ("x-deliver-at", &at(far))])
    };
    let mut first: Vec<_> = (0..10).map(unnamed).collect();
    first.extend([named("a", "a"), named("b", "b"), named("c", "c")]);
    fixture.produce(&first).await;
    fixture.committed().await;
    let backup = fixture.dump().await;
    let mut second: Vec<_> = (10..20).map(unnamed).collect();
    second.extend([
        record(0, "-", &[("x-delay-id", "a"), ("x-delay-op", "cancel")]),
        record(
            0,
            "-",
            &[
                ("x-delay-id", "b"),
                ("x-delay-op", "reschedule"),
                ("x-deliver-at", &at(farther)),
            ],
        ),
        named("c", "not c"),
        named("d", "d"),
        named("a", "another a"),
    ]);
    fixture.produce(&second).await;
    fixture.committed().await;
    fixture.end().await;
    fixture.wipe().await;
    fixture.restore(&backup).await;
    fixture.begin().await;

    // The relays go on meanwhile, and are asked for no more than a moment's patience.
    let done = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        done.counts(),
        [28, 12, 0, 1, 1, 0, 13, 1, 0, 0, 0],
        "{done:?}"
    );
    let mut expected: Vec<_> = (0..20).map(|n| (format!("u{n}"), far)).collect();
    let rest = [("another a", far), ("b", farther), ("c", far), ("d", far)];
    expected.extend(rest.map(|(body, due)| (body.to_owned(), due)));
    expected.sort();
    assert_eq!(fixture.pending().await, expected);
}

#[tokio::test]
async fn a_command_that_an_ordered_route_missed_finds_its_message_whatever_key_it_has() {
    let mut fixture = ReplayFixture::new(1, "order = \"key\"").await;
    let far = now_ms() + HOUR;
    let farther = now_ms() + 2 * HOUR;
    let (far_text, farther_text) = (far.to_string(), farther.to_string());
    let keys = |n: usize| [Some(format!("k{n}")), Some(format!("other{n}")), None];
    let with_key = |record: Record, key: Option<String>| match key {
        Some(key) => record.keyed(&key),
        None => record,
    };
    let mut messages = Vec::new();
    let mut commands = Vec::new();
    let mut expected = Vec::new();
    for (n, op) in ["cancel", "reschedule", "replace"].into_iter().enumerate() {
        for (at, key) in keys(n).into_iter().enumerate() {
            let id = format!("{op}-{at}");
            let named = [("x-delay-id", id.as_str()), ("x-deliver-at", &far_text)];
            messages.push(record(0, &id, &named).keyed(&format!("k{n}")));
            let commanded = [
                ("x-delay-id", id.as_str()),
                ("x-delay-op", op),
                ("x-deliver-at", &farther_text),
            ];
            let body = format!("{op} by {key:?}");
            commands.push(with_key(record(0, &body, &commanded), key));
            match op {
                "cancel" => {}
                "reschedule" => expected.push((id, farther)),
                _ => expected.push((body, farther)),
            }
        }
    }
    fixture.produce(&messages).await;
    fixture.committed().await;
    let backup = fixture.dump().await;
    fixture.produce(&commands).await;
    fixture.committed().await;
    expected.sort();
    assert_eq!(fixture.pending().await, expected, "as it was");
    fixture.end().await;
    fixture.wipe().await;
    fixture.restore(&backup).await;
    fixture.begin().await;
    assert_eq!(
        fixture.pending().await.len(),
        messages.len(),
        "an old backup"
    );
    let done = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(fixture.pending().await, expected, "{done:?}");
}

/// On a route with key order two messages of different keys may have one name.
#[tokio::test]
async fn of_two_messages_of_a_name_an_ordered_route_gets_both_back_as_commands_left_them() {
    let mut fixture = ReplayFixture::new(1, "order = \"key\"").await;
    let far = (now_ms() + HOUR).to_string();
    let farther = (now_ms() + 2 * HOUR).to_string();
    let mut messages = Vec::new();
    let mut commands = Vec::new();
    for op in ["none", "cancel", "reschedule", "replace"] {
        for by in ["one", "two"] {
            let id = format!("{op} by {by}");
            for key in ["one", "two"] {
                let headers = [("x-delay-id", id.as_str()), ("x-deliver-at", &far)];
                messages.push(record(0, &format!("{id}: {key}"), &headers).keyed(key));
            }
            if op != "none" {
                let headers = [
                    ("x-delay-id", id.as_str()),
                    ("x-delay-op", op),
                    ("x-deliver-at", &farther),
                ];
                commands.push(record(0, &format!("{id}: new"), &headers).keyed(by));
            }
        }
    }
    fixture.produce(&messages).await;
    fixture.committed().await;
    let backup = fixture.dump().await;
    fixture.produce(&commands).await;
    fixture.committed().await;
    let expected = fixture.pending().await;
    assert_eq!(expected.len(), 14, "{expected:?}");
    for backup in [None, Some(&backup)] {
        fixture.end().await;
        fixture.wipe().await;
        if let Some(backup) = backup {
            fixture.restore(backup).await;
        }
        fixture.begin().await;
        let done = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(fixture.pending().await, expected, "{done:?}");
    }
}

#[tokio::test]
async fn one_that_was_killed_goes_on_where_it_was() {
    const PARTITIONS: i32 = 24;
    const EACH: i32 = 200;
    let mut fixture = ReplayFixture::new(PARTITIONS, "").await;
    let far = (now_ms() + HOUR).to_string();
    let mut records = Vec::new();
    for n in 0..EACH {
        let due = if n % 2 == 0 {
            far.as_str()
        } else {
            "1700000000000"
        };
        records.extend(
            (0..PARTITIONS).map(|p| record(p, &format!("{p}/{n}"), &[("x-deliver-at", due)])),
        );
    }
    fixture.produce(&records).await;
    fixture.committed().await;
    let mut once: Vec<String> = records.iter().map(|r| r.body.clone()).collect();
    once.retain(|body| {
        body.rsplit('/')
            .next()
            .is_some_and(|n| n.parse::<i32>().is_ok_and(|n| n % 2 == 1))
    });
    fixture.arrived_all(once.clone()).await;
    fixture.end().await;
    fixture.wipe().await;

    let since = ago(&fixture);
    let mut running = fixture.start_replay(&["--since", &since, "--yes"]);
    let done = eventually("some partitions are done", async || {
        let note = fixture.note().await.unwrap_or_default();
        let done = fixture::finished_partitions(&note);
        if done.is_empty() { Err(note) } else { Ok(done) }
    })
    .await;
    running.kill9().await;
    let note = fixture.note().await.expect("a replay is under way");
    let done = if fixture::finished_partitions(&note).len() >= done.len() {
        fixture::finished_partitions(&note)
    } else {
        done
    };
    assert!(
        done.len() < PARTITIONS as usize,
        "it was killed in the middle"
    );
    // What was stored so far goes out, before it goes on.
    fixture.begin().await;
    fixture.relay().unobserved(
        "what is stored was due years ago, so its route is late whenever more of it comes",
    );
    let of_done: Vec<String> = once
        .iter()
        .filter(|body| {
            let partition = body
                .split('/')
                .next()
                .expect("a partition")
                .parse::<i32>()
                .expect("a number");
            done.contains(&partition)
        })
        .cloned()
        .collect();
    let mut twice = once.clone();
    twice.extend(of_done.clone());
    fixture.arrived_at_least(&twice).await;

    let rest = fixture.replay(&["--since", &since, "--yes"]).await;
    assert_eq!(rest.code, 0, "{rest:?}");
    assert!(
        rest.out
            .contains("an earlier run was not finished: it goes on behind the first "),
        "{rest:?}"
    );
    assert_eq!(fixture.note().await, None);
    let all = [once.clone(), once].concat();
    fixture.arrived_at_least(&all).await;
    let arrivals = fixture.arrivals();
    for body in of_done {
        assert_eq!(
            arrivals.iter().filter(|a| **a == body).count(),
            2,
            "{body}: once at first, once replayed"
        );
    }
    let mut waits: Vec<String> = fixture
        .pending()
        .await
        .into_iter()
        .map(|(body, _)| body)
        .collect();
    assert_eq!(waits.len() as i32, PARTITIONS * EACH / 2);
    waits.dedup();
    assert_eq!(
        waits.len() as i32,
        PARTITIONS * EACH / 2,
        "none is there twice"
    );
}

#[tokio::test]
async fn it_waits_while_the_route_is_paused_or_full() {
    let fixture = ReplayFixture::new(1, "max_pending = 4").await;
    let far = (now_ms() + HOUR).to_string();
    let lost: Vec<_> = (0..4)
        .map(|n| record(0, &format!("u{n}"), &[("x-deliver-at", &far)]))
        .collect();
    fixture.produce(&lost).await;
    fixture.committed().await;
    fixture.wipe_messages().await;
    let ids = ["a", "b", "c", "d"];
    let full = ids.map(|id| record(0, id, &[("x-delay-id", id), ("x-deliver-at", &far)]));
    fixture.produce(&full).await;
    fixture.committed().await;

    fixture.pause().await;
    let mut running = fixture.start_replay(&["--since", &ago(&fixture), "--yes"]);
    fixture::logs(&running, "waits: the route's ingress is paused").await;
    fixture.resume().await;
    fixture::logs(&running, "ingress waits: max_pending").await;
    assert_eq!(fixture.pending().await.len(), 4, "nothing is stored");
    for id in ids {
        let path = format!("/api/v1/routes/r/messages/{id}");
        assert_eq!(
            fixture
                .relay()
                .request("DELETE", &path, None, "")
                .await
                .expect("an answer")
                .0,
            200
        );
    }
    let status = running
        .wait(Duration::from_secs(60))
        .await
        .expect("it ends");
    assert!(status.success(), "{}", running.log());
    let waits: Vec<_> = fixture
        .pending()
        .await
        .into_iter()
        .map(|(body, _)| body)
        .collect();
    assert_eq!(waits, ["u0", "u1", "u2", "u3"]);
}

#[tokio::test]
async fn it_says_that_it_waits_for_a_store_that_does_not_answer() {
    let mut fixture = ReplayFixture::new(1, "").await;
    let far = (now_ms() + HOUR).to_string();
    fixture
        .produce(&[record(0, "u", &[("x-deliver-at", &far)])])
        .await;
    fixture.committed().await;
    fixture.wipe_messages().await;
    fixture.pause().await;
    let running = fixture.start_replay(&["--since", &ago(&fixture), "--yes"]);
    fixture::logs(&running, "waits: the route's ingress is paused").await;
    fixture.redis.stop();
    fixture::logs(&running, "redis is away; waiting for it").await;
    fixture.redis.cont();
}

/// The relays answer `unknown` to a cancel whose message the replay has yet to store.
#[tokio::test]
async fn a_cancel_that_comes_before_its_message_is_replayed_is_carried_out_by_the_next_replay() {
    let fixture = ReplayFixture::new(1, "").await;
    let far = now_ms() + HOUR;
    let named = |id: &'static str| {
        record(
            0,
            id,
            &[("x-delay-id", id), ("x-deliver-at", &far.to_string())],
        )
    };
    fixture.produce(&[named("a"), named("b")]).await;
    fixture.committed().await;
    fixture.wipe_messages().await;
    fixture.pause().await;
    // It has found out what is missing, and has stored nothing of it yet.
    let mut running = fixture.start_replay(&["--since", &ago(&fixture), "--yes"]);
    fixture::logs(&running, "waits: the route's ingress is paused").await;
    running.kill9().await;
    fixture.resume().await;
    fixture
        .produce(&[record(
            0,
            "-",
            &[("x-delay-id", "a"), ("x-delay-op", "cancel")],
        )])
        .await;
    fixture.committed().await;
    let rest = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(rest.code, 0, "{rest:?}");
    assert!(
        rest.out
            .contains("the relays have read 1 offset(s) since it was begun: a cancel"),
        "{rest:?}"
    );
    let both = ["a", "b"].map(|body| (body.to_owned(), far));
    assert_eq!(
        fixture.pending().await,
        both,
        "the first run had seen no cancel"
    );
    let again = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert!(!again.out.contains("since it was begun"), "{again:?}");
    assert_eq!(fixture.pending().await, both[1..], "now it is cancelled");
}

#[tokio::test]
async fn what_is_later_than_until_is_left_out_and_its_commands_hold() {
    let mut fixture = ReplayFixture::new(1, "").await;
    let far = now_ms() + HOUR;
    let named = |id: &'static str| {
        record(
            0,
            id,
            &[("x-delay-id", id), ("x-deliver-at", &far.to_string())],
        )
    };
    fixture.produce(&[named("a"), named("b")]).await;
    fixture.committed().await;
    let until = now_ms();
    while now_ms() <= until {
        tokio::task::yield_now().await;
    }
    let cancel = record(0, "-", &[("x-delay-id", "a"), ("x-delay-op", "cancel")]);
    fixture.produce(&[named("c"), cancel]).await;
    fixture.committed().await;
    fixture.end().await;
    fixture.wipe().await;
    let until = until.to_string();
    let done = fixture
        .replay(&["--since", &ago(&fixture), "--until", &until, "--yes"])
        .await;
    assert_eq!((done.code, done.counts()[1]), (0, 1), "{done:?}");
    fixture.begin().await;
    assert_eq!(
        fixture.pending().await,
        [("b".to_owned(), far)],
        "`a` was cancelled later, `c` came later"
    );
}

/// As a wiped store is while relays run: they store on, and their messages are not doubled.
#[tokio::test]
async fn a_store_that_is_wiped_under_a_running_relay_is_refilled() {
    let fixture = ReplayFixture::new(1, "").await;
    let far = now_ms() + HOUR;
    let one = |n: i32| record(0, &format!("u{n}"), &[("x-deliver-at", &far.to_string())]);
    let named = record(
        0,
        "n",
        &[("x-delay-id", "n"), ("x-deliver-at", &far.to_string())],
    );
    fixture.produce(&[one(0), named, one(1)]).await;
    fixture.committed().await;
    fixture.wipe_messages().await;
    fixture
        .produce(&[
            one(2),
            record(
                0,
                "n again",
                &[("x-delay-id", "n"), ("x-deliver-at", &far.to_string())],
            ),
        ])
        .await;
    fixture.committed().await;
    let done = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    let expected = ["n again", "u0", "u1", "u2"].map(|body| (body.to_owned(), far));
    assert_eq!(fixture.pending().await, expected);
}
