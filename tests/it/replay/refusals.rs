//! What cannot be replayed, and what is said of it.

use std::time::Duration;

use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

use super::rig::{Rig, ago, record};
use crate::support::run::now_ms;

#[tokio::test]
async fn what_is_wrong_is_said_before_anything_is_read() {
    let rig = Rig::new(1, "").await;
    let (since, future) = (ago(&rig), (now_ms() + 3_600_000).to_string());
    let cases: &[(&[&str], &str)] = &[
        (&["--route", "rr", "--since", &since, "--yes"], "there is no route `rr`; did you mean r?"),
        (&["--route", "nothing-like-it", "--since", &since, "--yes"], "there is no route `nothing-like-it`"),
        (&["--route", "r", "--since", &future, "--yes"], "--since is in the future: "),
        (
            &["--route", "r", "--since", &since, "--until", "1700000000000", "--yes"],
            "--until is before --since: ",
        ),
        (&["--route", "r", "--since", &since], "look with --dry-run, then add --yes"),
        (&["--route", "r", "--since", "yesterday", "--yes"], "RFC 3339 is expected"),
        (&["--route", "r", "--since", "2026-11-21T10:00:00", "--yes"], "the offset is missing"),
        (&["--route", "r", "--yes"], "--since"),
    ];
    for (args, part) in cases {
        let said = rig.run("", args).await;
        assert_eq!((said.code, said.out.as_str()), (64, ""), "{args:?}: {said:?}");
        assert!(said.err.contains(part), "{args:?}: {said:?}");
    }
    let mail = "[rabbitmq.main]\nurl = \"amqp://127.0.0.1:1\"\n\n[routes.mail]\nfrom = { rabbitmq = \"main\", queue = \"in\" }\n\
        to = { rabbitmq = \"main\", exchange = \"\", routing_key = \"out\" }";
    let said = rig.run(mail, &["--route", "mail", "--since", &since, "--yes"]).await;
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.err.contains("a queue forgets what was acknowledged"), "{said:?}");
}

#[tokio::test]
async fn a_topic_that_is_gone_or_cut_is_no_secret() {
    let mut rig = Rig::new(1, "").await;
    let far = (now_ms() + 3_600_000).to_string();
    let some: Vec<_> = (0..10).map(|n| record(0, &format!("u{n}"), &[("x-deliver-at", &far)])).collect();
    rig.produce(&some).await;
    rig.committed().await;
    rig.end().await;
    rig.wipe().await;
    let mut cut = TopicPartitionList::new();
    cut.add_partition_offset(&rig.topic, 0, Offset::Offset(4)).expect("an offset");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    rig.kafka.admin().delete_records(&cut, &options).await.expect("cut");
    let said = rig.replay(&["--since", &ago(&rig), "--dry-run"]).await;
    assert_eq!((said.code, said.counts()[1]), (0, 6), "{said:?}");
    assert!(said.out.contains("partition 0: the records before offset 4 are no longer there"), "{said:?}");

    rig.kafka.delete_topic(&rig.topic).await;
    let said = rig.replay(&["--since", &ago(&rig), "--yes"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains(&format!("topic {} is not there", rig.topic)), "{said:?}");
}

/// A group of another name, or one whose positions have expired, makes an empty replay; that has its reason.
#[tokio::test]
async fn what_a_group_has_never_committed_is_not_replayed_and_that_is_said() {
    let rig = Rig::new(2, "").await;
    let far = (now_ms() + 3_600_000).to_string();
    rig.produce(&[record(0, "u", &[("x-deliver-at", &far)])]).await;
    rig.committed().await;
    let since = ago(&rig);
    let said = rig.replay(&["--since", &since, "--dry-run"]).await;
    assert!(said.code == 0 && !said.out.contains("has committed no position"), "{said:?}");
    let another = ["--set", "routes.r.from.group=nobody", "--since", &since, "--dry-run"];
    let said = rig.replay(&another).await;
    assert_eq!((said.code, said.counts()), (0, [0; 11]), "{said:?}");
    let part = format!("group nobody has committed no position in partition 0 of topic {}: ", rig.topic);
    assert!(said.out.contains(&part), "{said:?}");
    rig.produce(&[record(1, "v", &[("x-deliver-at", &far)])]).await;
    let said = rig.replay(&another).await;
    let part = format!("group nobody has committed no position in topic {}: ", rig.topic);
    assert!(said.out.contains(&part) && said.out.contains("; nothing of it is replayed"), "{said:?}");
}

#[tokio::test]
async fn servers_that_are_away_end_it() {
    let mut rig = Rig::new(1, "").await;
    rig.end().await;
    for (key, part) in [
        ("redis.url=redis://127.0.0.1:1", "the store cannot be used: "),
        ("kafka.main.brokers=127.0.0.1:1", "127.0.0.1:1"),
    ] {
        let said = rig.replay(&["--set", key, "--since", &ago(&rig), "--yes"]).await;
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.contains(part), "{said:?}");
    }
}
