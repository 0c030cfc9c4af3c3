//! Sorted sets of home-made delay queues.

use std::collections::HashMap;
use std::time::Duration;

use super::fixture::{ImportFixture, ImportOutput, bodies};
use crate::support::eventually;
use crate::support::run::now_ms;

const HOUR_MS: i64 = 3_600_000;

async fn add(fixture: &ImportFixture, key: &str, score: &str, member: &str) {
    fixture.source::<u64>(&["ZADD", key, score, member]).await;
}

#[tokio::test]
async fn members_fields_and_hashes_become_bodies_at_their_moment() {
    let mut fixture = ImportFixture::new("").await;
    let soon = now_ms() + 20_000;
    add(&fixture, "plain", &soon.to_string(), "a body").await;
    add(&fixture, "plain", "1500000000000", "long overdue").await;
    let seconds = format!("{}.{:03}", soon / 1000, soon % 1000);
    add(
        &fixture,
        "json",
        &seconds,
        r#"{"id": 1, "payload": {"n": 1.0}}"#,
    )
    .await;
    add(&fixture, "ids", &seconds, "job-1").await;
    fixture
        .source::<u64>(&["HSET", "jobs", "job-1", "the job", "job-2", "another"])
        .await;

    let plain = [
        "zset",
        "--key",
        "plain",
        "--score",
        "ms",
        "--member",
        "body",
        "--route",
        "r",
        "--because",
        "we move",
        "--yes",
    ];
    let preview = fixture.import(&plain[..plain.len() - 1]).await;
    assert_eq!((preview.code, preview.count("to move")), (0, 2));
    for said in [
        "due from 2",
        " to 2",
        "\nthe first body, 12 bytes: `long overdue`\n",
    ] {
        assert!(preview.out.contains(said), "{said}: {preview:?}");
    }
    let plain = fixture.import(&plain).await;
    assert_eq!(
        (
            plain.code,
            plain.count("moved"),
            plain.count("of them due already")
        ),
        (0, 2, 1),
        "{plain:?}"
    );
    let json = [
        "zset",
        "--key",
        "json",
        "--score",
        "s",
        "--member",
        "json:payload",
        "--route",
        "r",
        "--yes",
    ];
    assert_eq!(fixture.import(&json).await.count("moved"), 1);
    let ids = [
        "zset",
        "--key",
        "ids",
        "--score",
        "s",
        "--member",
        "hash:jobs",
        "--route",
        "r",
        "--yes",
    ];
    assert_eq!(fixture.import(&ids).await.count("moved"), 1);
    let on_time = fixture
        .pending()
        .await
        .into_iter()
        .filter(|(_, due)| *due == soon)
        .count();
    assert!(
        on_time == 3 || now_ms() >= soon,
        "the due times are the scores: {on_time}"
    );

    let arrived = fixture.arrived(4).await;
    assert!(now_ms() >= soon, "nothing is early");
    let expected = ["a body", "long overdue", r#"{"n": 1.0}"#, "the job"];
    assert_eq!(arrived, bodies(expected.map(str::to_owned)));
    let left: Vec<String> = fixture.source(&["HKEYS", "jobs"]).await;
    assert_eq!(left, ["job-2"], "a body goes with its member, and no other");
    assert_eq!(
        fixture.source::<Vec<String>>(&["KEYS", "*"]).await,
        ["jobs"]
    );

    // The audit log has who moved what, and nothing of the preview.
    let audit = fixture.relay().read("/api/v1/audit").await;
    let entries = audit["items"].as_array().expect("a list");
    let of_plain: Vec<_> = entries
        .iter()
        .filter(|entry| entry["subject"] == "route r; sorted set plain")
        .map(|entry| ["result", "because"].map(|field| entry[field].as_str().unwrap_or_default()))
        .collect();
    let expected = [["2 messages moved", "we move"], ["begun", "we move"]];
    assert_eq!(of_plain, expected, "{audit}");
    assert!(
        entries.iter().all(|entry| entry["who"]
            .as_str()
            .is_some_and(|who| who.starts_with("command line at "))),
        "{audit}"
    );
}

#[tokio::test]
async fn what_cannot_be_moved_stays_and_the_rest_is_moved() {
    let fixture = ImportFixture::new("max_size = \"100B\"\nmax_delay = \"2h\"").await;
    let far = now_ms() + HOUR_MS;
    let score = |ms: i64| ms.to_string();
    for n in 0..700 {
        add(
            &fixture,
            "k",
            &score(far + n),
            &format!("{{\"p\":\"body {n}\"}}"),
        )
        .await;
    }
    add(&fixture, "k", &score(far), "no JSON").await;
    add(&fixture, "k", &score(far), r#"{"q":1}"#).await;
    add(&fixture, "k", &score(far / 1000), r#"{"p":"seconds"}"#).await;
    add(
        &fixture,
        "k",
        &score(far + 5 * HOUR_MS),
        r#"{"p":"too far"}"#,
    )
    .await;
    add(
        &fixture,
        "k",
        &score(far),
        &format!("{{\"p\":\"{}\"}}", "x".repeat(101)),
    )
    .await;
    add(&fixture, "k", &score(far), &"y".repeat(5000)).await;
    let args = [
        "zset", "--key", "k", "--score", "ms", "--member", "json:p", "--route", "r",
    ];
    let counts = |output: &ImportOutput, moved: &str| {
        (
            output.code,
            output.count(moved),
            output.count("that cannot be moved"),
        )
    };
    let dry = fixture.import(&args).await;
    assert_eq!(counts(&dry, "to move"), (1, 700, 6), "{dry:?}");
    let done = fixture.import(&[&args[..], &["--yes"]].concat()).await;
    assert_eq!(counts(&done, "moved"), (1, 700, 6), "{done:?}");
    for said in [
        "2 cannot be moved: no such JSON",
        "are these seconds?",
        "2 cannot be moved: the route would refuse it",
        "larger than the route's `max_size`",
    ] {
        assert!(done.out.contains(said), "{said}: {done:?}");
    }
    assert_eq!(fixture.source::<u64>(&["ZCARD", "k"]).await, 6);
    assert_eq!(fixture.pending().await.len(), 700);
}

#[tokio::test]
async fn an_import_waits_while_the_route_is_paused_and_a_second_one_is_refused() {
    let fixture = ImportFixture::new("").await;
    add(&fixture, "k", &(now_ms() + HOUR_MS).to_string(), "a body").await;
    fixture.post("/api/v1/routes/r/pause").await;
    let args = [
        "zset", "--key", "k", "--score", "ms", "--member", "body", "--route", "r", "--yes",
    ];
    let mut waiting = fixture.start_import(&args);
    eventually("it waits", async || {
        let log = waiting.log();
        if log.contains("the route's ingress is paused") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let second = fixture.import(&args).await;
    assert_eq!(second.code, 1, "{second:?}");
    for said in [
        "waiting ",
        "it is running: another import of this queue holds its lock",
    ] {
        assert!(second.err.contains(said), "{second:?}");
    }
    assert_eq!(fixture.source::<u64>(&["ZCARD", "k"]).await, 1);
    fixture.post("/api/v1/routes/r/resume").await;
    let ended = waiting
        .wait(Duration::from_secs(60))
        .await
        .expect("it ends");
    assert!(ended.success(), "{}", waiting.log());
    assert_eq!(fixture.pending().await.len(), 1);
    assert_eq!(
        fixture.source::<Vec<String>>(&["KEYS", "*"]).await,
        Vec::<String>::new()
    );
}

/// The event of a message's end comes into the trail some time after the message has left the store.
#[tokio::test]
async fn a_run_after_a_kill_waits_for_what_the_trail_does_not_tell_yet() {
    let mut fixture = ImportFixture::new("").await;
    add(&fixture, "k", "1500000000000", "a body").await;
    let args = [
        "zset", "--key", "k", "--score", "ms", "--member", "body", "--route", "r", "--yes",
    ];
    // A run that was killed has noted the name.
    fixture.post("/api/v1/routes/r/pause").await;
    let mut killed = fixture.start_import(&args);
    eventually("it waits", async || {
        let log = killed.log();
        if log.contains("the route's ingress is paused") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    killed.kill9().await;
    let notes = fixture.store_key(":replays").await;
    let noted: HashMap<String, String> = fixture.store(&["HGETALL", &notes]).await;
    assert_eq!(noted.len(), 1, "{noted:?}");
    // The message leaves, and the trail tells of it.
    fixture.post("/api/v1/routes/r/resume").await;
    assert_eq!(fixture.import(&args).await.count("moved"), 1);
    fixture.arrived(1).await;
    let trail = fixture.store_key(":trail:r").await;
    // So it was a moment before the trail told.
    let hidden = format!("{trail}:hidden");
    fixture.store::<String>(&["RENAME", &trail, &hidden]).await;
    for (field, note) in &noted {
        fixture.store::<u64>(&["HSET", &notes, field, note]).await;
    }
    add(&fixture, "k", "1500000000000", "a body").await;
    let mut resumed = fixture.start_import(&args);
    eventually("it waits for the trail", async || {
        let log = resumed.log();
        if log.contains("waits 5 s to hear what became of 1 ") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    fixture.store::<String>(&["RENAME", &hidden, &trail]).await;
    let ended = resumed
        .wait(Duration::from_secs(60))
        .await
        .expect("it ends");
    let log = resumed.log();
    assert!(
        ended.success() && log.contains("1    of them stored by an earlier run"),
        "{log}"
    );
    assert!(
        log.contains("0  left in the queue") && !log.contains("that may arrive twice"),
        "{log}"
    );
    assert_eq!(fixture.pending().await, [], "it is not stored again");
}
