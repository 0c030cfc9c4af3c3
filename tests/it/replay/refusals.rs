//! Replays that are refused, and the message of each refusal.

use std::time::Duration;

use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

use super::fixture::{ReplayFixture, ago, record};
use crate::support::run::now_ms;

#[tokio::test]
async fn what_is_wrong_is_said_before_anything_is_read() {
    let fixture = ReplayFixture::new(1, "").await;
    let since = ago(&fixture);
    let future = (now_ms() + 3_600_000).to_string();
    let cases: &[(&[&str], &str)] = &[
        (
            &["--route", "rr", "--since", &since, "--yes"],
            "there is no route `rr`; did you mean r?",
        ),
        (
            &["--route", "nothing-like-it", "--since", &since, "--yes"],
            "there is no route `nothing-like-it`",
        ),
        (
            &["--route", "r", "--since", &future, "--yes"],
            "--since is in the future: ",
        ),
        (
            &[
                "--route",
                "r",
                "--since",
                &since,
                "--until",
                "1700000000000",
                "--yes",
            ],
            "--until is before --since: ",
        ),
        (
            &["--route", "r", "--since", &since],
            "look with --dry-run, then add --yes",
        ),
        (
            &["--route", "r", "--since", "yesterday", "--yes"],
            "RFC 3339 is expected",
        ),
        (
            &["--route", "r", "--since", "2026-11-21T10:00:00", "--yes"],
            "the offset is missing",
        ),
        (&["--route", "r", "--yes"], "--since"),
    ];
    for (args, part) in cases {
        let output = fixture.run("", args).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (64, ""),
            "{args:?}: {output:?}"
        );
        assert!(output.err.contains(part), "{args:?}: {output:?}");
    }
    let mail = "[rabbitmq.main]\nurl = \"amqp://127.0.0.1:1\"\n\n[routes.mail]\nfrom = { rabbitmq = \"main\", queue = \"in\" }\n\
        to = { rabbitmq = \"main\", exchange = \"\", routing_key = \"out\" }";
    let output = fixture
        .run(mail, &["--route", "mail", "--since", &since, "--yes"])
        .await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(
        output.err.contains("a queue forgets what was acknowledged"),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_topic_that_is_gone_or_cut_is_no_secret() {
    let mut fixture = ReplayFixture::new(1, "").await;
    let far = (now_ms() + 3_600_000).to_string();
    let some: Vec<_> = (0..10)
        .map(|n| record(0, &format!("u{n}"), &[("x-deliver-at", &far)]))
        .collect();
    fixture.produce(&some).await;
    fixture.committed().await;
    fixture.end().await;
    fixture.wipe().await;
    let mut cut = TopicPartitionList::new();
    cut.add_partition_offset(&fixture.topic, 0, Offset::Offset(4))
        .expect("an offset");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    fixture
        .kafka
        .admin()
        .delete_records(&cut, &options)
        .await
        .expect("cut");
    let output = fixture
        .replay(&["--since", &ago(&fixture), "--dry-run"])
        .await;
    assert_eq!((output.code, output.counts()[1]), (0, 6), "{output:?}");
    assert!(
        output
            .out
            .contains("partition 0: the records before offset 4 are no longer there"),
        "{output:?}"
    );

    fixture.kafka.delete_topic(&fixture.topic).await;
    let output = fixture.replay(&["--since", &ago(&fixture), "--yes"]).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(
        output
            .err
            .contains(&format!("topic {} is not there", fixture.topic)),
        "{output:?}"
    );
}

/// A group of another name, or one whose positions have expired, makes an empty replay; that has its reason.
#[tokio::test]
async fn what_a_group_has_never_committed_is_not_replayed_and_that_is_said() {
    let fixture = ReplayFixture::new(2, "").await;
    let far = (now_ms() + 3_600_000).to_string();
    fixture
        .produce(&[record(0, "u", &[("x-deliver-at", &far)])])
        .await;
    fixture.committed().await;
    let since = ago(&fixture);
    let output = fixture.replay(&["--since", &since, "--dry-run"]).await;
    assert!(
        output.code == 0 && !output.out.contains("has committed no position"),
        "{output:?}"
    );
    let another = [
        "--set",
        "routes.r.from.group=nobody",
        "--since",
        &since,
        "--dry-run",
    ];
    let output = fixture.replay(&another).await;
    assert_eq!((output.code, output.counts()), (0, [0; 11]), "{output:?}");
    let part = format!(
        "group nobody has committed no position in partition 0 of topic {}: ",
        fixture.topic
    );
    assert!(output.out.contains(&part), "{output:?}");
    fixture
        .produce(&[record(1, "v", &[("x-deliver-at", &far)])])
        .await;
    let output = fixture.replay(&another).await;
    let part = format!(
        "group nobody has committed no position in topic {}: ",
        fixture.topic
    );
    assert!(
        output.out.contains(&part) && output.out.contains("; nothing of it is replayed"),
        "{output:?}"
    );
}

#[tokio::test]
async fn servers_that_are_away_end_it() {
    let mut fixture = ReplayFixture::new(1, "").await;
    fixture.end().await;
    for (key, part) in [
        (
            "redis.url=redis://127.0.0.1:1",
            "the store cannot be used: ",
        ),
        ("kafka.main.brokers=127.0.0.1:1", "127.0.0.1:1"),
    ] {
        let output = fixture
            .replay(&["--set", key, "--since", &ago(&fixture), "--yes"])
            .await;
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.err.contains(part), "{output:?}");
    }
}
