//! Records that the client library cannot open: what stands, what is passed over, and what is told of it.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postdate::domain::{SkipGoal, SkipOutcome};

use super::fixture::{IngressFixture, RecordingSink, commits, committed, produce, read_all, text};
use super::raw::{self, RawRecord, part};
use crate::support::relay::{self, Config, Relay};
use crate::support::{Kafka, Redis, eventually, names};

/// A kind of batch that the client library cannot open, and how a good one becomes it in the broker's file.
pub(super) struct Kind {
    name: &'static str,
    is_compressed: bool,
    pub(super) damage: fn(&mut [u8]),
}

/// Bits that no codec has.
pub(super) const UNKNOWN_CODEC: Kind = Kind {
    name: "unknown codec",
    is_compressed: false,
    damage: |batch| batch[part::ATTRIBUTES] |= 7,
};
pub(super) const GARBAGE: Kind = Kind {
    name: "garbage",
    is_compressed: true,
    damage: |batch| batch[part::RECORDS..].fill(0xAB),
};
/// The only record says that it goes on behind the end of its batch.
pub(super) const CUT_SHORT: Kind = Kind {
    name: "cut short",
    is_compressed: false,
    damage: |batch| batch[part::RECORDS] = 0x7E,
};
const KINDS: [Kind; 5] = [
    UNKNOWN_CODEC,
    GARBAGE,
    CUT_SHORT,
    Kind {
        name: "checksum",
        is_compressed: false,
        damage: |batch| batch[part::CHECKSUM] ^= 0xFF,
    },
    Kind {
        name: "unknown format",
        is_compressed: false,
        damage: |batch| batch[part::FORMAT] = 9,
    },
];

/// Longest time until a standing partition is told, and a little for a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn good(kafka: &Kafka, topic: &str, body: &[u8], is_compressed: bool) {
    let record = RawRecord {
        body,
        header: (b"a", b"1"),
    };
    if is_compressed {
        raw::produce_zstd(kafka, topic, &record);
    } else {
        raw::produce(kafka, topic, 5, &record);
    }
}

/// Waits until a route is shown with a partition that stands at an offset.
pub(super) async fn stands(reader: &IngressFixture, route: &str, offset: i64) {
    let place = format!("partition 0 stands at offset {offset},");
    eventually(&format!("{route} stands at {offset}"), async || {
        let why = reader.route(route).source_waits().unwrap_or_default();
        let paused = reader.route(route).waits_for();
        if why.contains(&place) && paused == ["undecodable"] {
            Ok(())
        } else {
            Err(format!("{why} {paused:?}"))
        }
    })
    .await;
}

pub(super) async fn is_read_on(reader: &IngressFixture, route: &str) {
    eventually(&format!("{route} is read on"), async || {
        let why = reader.route(route).source_waits();
        if why.is_none() && reader.route(route).waits_for().is_empty() {
            Ok(())
        } else {
            Err(format!("{why:?}"))
        }
    })
    .await;
}

async fn skip(reader: &IngressFixture, route: &str, partition: i32, offset: i64) -> SkipOutcome {
    reader.skip(route, partition, SkipGoal::Past(offset)).await
}

/// Each kind in a topic of its own: `m-0`, a batch that cannot be opened, `m-1`. Returns the topics.
pub(super) async fn damaged(kafka: &mut Kafka) -> Vec<String> {
    let mut topics = Vec::new();
    for kind in &KINDS {
        let topic = kafka.unique_topic("bad", 1).await;
        produce(kafka, &topic, "m", 0..1);
        good(kafka, &topic, b"bad", kind.is_compressed);
        produce(kafka, &topic, "m", 1..2);
        topics.push(topic);
    }
    kafka.terminate().await;
    for (kind, topic) in KINDS.iter().zip(&topics) {
        raw::damage(&kafka.segment(topic, 0), 1, kind.damage);
    }
    kafka.restart().await;
    topics
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_opened_stands_is_told_and_goes_on_once_it_is_skipped() {
    let mut kafka = Kafka::start().await;
    let mut topics = damaged(&mut kafka).await;
    topics.pop().expect("the one of an unknown format");
    let sound = topics.pop().expect("the one with a wrong checksum");
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let names: Vec<&str> = topics
        .iter()
        .map(String::as_str)
        .chain([sound.as_str()])
        .collect();
    let reader = IngressFixture::start(&kafka, &group, &names, &memory);
    let began = Instant::now();
    for (index, topic) in topics.iter().enumerate() {
        commits(&kafka, &group, topic, 1).await;
        stands(&reader, &format!("r{index}"), 1).await;
        println!("{}: told after {:?}", KINDS[index].name, began.elapsed());
    }
    // Without `check.crcs` nobody looks at the checksum, and the record is whole.
    commits(&kafka, &group, &sound, 3).await;
    // The others flow meanwhile, and nobody calls them standing.
    produce(&kafka, &sound, "n", 0..100);
    memory.has("n", 100).await;
    assert_eq!(reader.route("r3").source_waits(), None);
    // Nothing but the offset at which a partition stands can be skipped.
    assert_eq!(
        skip(&reader, "r0", 0, 0).await,
        SkipOutcome::StandsElsewhere(1)
    );
    assert_eq!(
        skip(&reader, "r0", 0, 2).await,
        SkipOutcome::StandsElsewhere(1)
    );
    assert_eq!(skip(&reader, "r0", 1, 1).await, SkipOutcome::NotHere);
    assert!(matches!(
        skip(&reader, "r3", 0, 1).await,
        SkipOutcome::DoesNotStand(_)
    ));
    assert_eq!(skip(&reader, "nobody", 0, 1).await, SkipOutcome::NotHere);
    assert_eq!(memory.bodies()["m-0"], names.len());
    assert_eq!(committed(&kafka, &group, &topics[0], 0), Some(1));
    for (index, topic) in topics.iter().enumerate() {
        let route = format!("r{index}");
        assert_eq!(
            skip(&reader, &route, 0, 1).await,
            SkipOutcome::GoesOn(2),
            "{}",
            KINDS[index].name
        );
        commits(&kafka, &group, topic, 3).await;
        is_read_on(&reader, &route).await;
        assert!(matches!(
            skip(&reader, &route, 0, 1).await,
            SkipOutcome::DoesNotStand(3)
        ));
        assert_eq!(reader.lost(&route), 0);
    }
    assert_eq!(memory.records()["m-1"], 1, "of offset 2 each");
    assert_eq!(memory.bodies()["m-1"], names.len());
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skip_commits_nothing_past_a_record_that_is_not_resolved() {
    let mut kafka = Kafka::start().await;
    let topics = damaged(&mut kafka).await;
    let memory = Arc::new(RecordingSink::default()).keeping();
    let group = names::unique("g");
    let reader = IngressFixture::start(&kafka, &group, &[&topics[0]], &memory);
    stands(&reader, "r0", 1).await;
    assert_eq!(skip(&reader, "r0", 0, 1).await, SkipOutcome::GoesOn(2));
    memory.has("m", 2).await;
    memory.resolve(|offset| offset == 2);
    commits(&kafka, &group, &topics[0], 0).await;
    memory.resolve(|offset| offset == 0);
    commits(&kafka, &group, &topics[0], 3).await;
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_checksum_stands_if_checksums_are_looked_at_and_what_the_client_passes_over_is_counted()
 {
    let mut kafka = Kafka::start().await;
    let topics = damaged(&mut kafka).await;
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let checks = [("check.crcs", "true")];
    let reader =
        IngressFixture::start_with(&kafka, &group, &[&topics[3], &topics[4]], &memory, &checks);
    // Kafka's client goes on behind a batch of a format that it does not know.
    commits(&kafka, &group, &topics[4], 3).await;
    assert_eq!(reader.lost("r1"), 1);
    stands(&reader, "r0", 1).await;
    assert_eq!(skip(&reader, "r0", 0, 1).await, SkipOutcome::GoesOn(2));
    commits(&kafka, &group, &topics[3], 3).await;
    is_read_on(&reader, "r0").await;
    assert_eq!(reader.lost("r0"), 0);
    assert!(!memory.bodies().contains_key("bad"));
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_once_decompressed_stands_within_seconds_and_the_others_flow() {
    let kafka = Kafka::shared().await;
    let topic = kafka.unique_topic("bomb", 1).await;
    let other = kafka.unique_topic("other", 3).await;
    let memory = Arc::new(RecordingSink::default());
    let group = names::unique("g");
    let reader = IngressFixture::start(kafka, &group, &[&topic, &other], &memory);
    produce(kafka, &topic, "m", 0..1);
    memory.has("m", 1).await;
    good(kafka, &topic, &vec![0; 120 << 20], true);
    produce(kafka, &topic, "m", 1..2);
    let began = Instant::now();
    stands(&reader, "r0", 1).await;
    println!("told after {:?}", began.elapsed());
    assert!(began.elapsed() < 6 * TOLD_WITHIN, "{:?}", began.elapsed());
    produce(kafka, &other, "n", 0..300);
    memory.has("n", 300).await;
    assert_eq!(reader.route("r1").source_waits(), None);
    assert_eq!(skip(&reader, "r0", 0, 1).await, SkipOutcome::GoesOn(2));
    memory.has("m", 2).await;
    is_read_on(&reader, "r0").await;
    reader.stop().await;
}

/// `postdate skip` against a relay.
async fn skip_command(relay: &Relay, route: &str, goal: &str, offset: i64) -> Output {
    let mut command = Command::new(relay::binary());
    let offset = offset.to_string();
    command.args(["skip", "--route", route, "--partition", "0", goal, &offset]);
    command.env_clear().env("POSTDATE_URL", relay.url());
    tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
        .await
        .expect("no panic")
}

/// The most memory that a process had, in MiB.
pub(super) fn peak_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("its peak");
    peak.trim()
        .trim_end_matches(" kB")
        .trim()
        .parse::<u64>()
        .expect("a number")
        / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_reads_the_offset_in_the_log_and_skips_it_and_bombs_cost_no_memory() {
    let (redis, kafka) = tokio::join!(Redis::start(), Kafka::shared());
    let from = kafka.unique_topic("from", 1).await;
    let flood = kafka.unique_topic("flood", 1).await;
    let to = kafka.unique_topic("to", 1).await;
    let bomb = raw::zstd_batch(&RawRecord {
        body: &vec![0; 60 << 20],
        header: (b"a", b"1"),
    });
    produce(kafka, &from, "m", 0..3);
    raw::send(kafka, &from, &bomb);
    produce(kafka, &from, "m", 3..6);
    for _ in 0..40 {
        raw::send(kafka, &flood, &bomb);
    }
    let group = names::unique("g");
    let ingress =
        |topic: &str| format!("{{ kafka = \"main\", topic = \"{topic}\", group = \"{group}\" }}");
    let target = format!("{{ kafka = \"main\", topic = \"{to}\" }}");
    let config = Config::new(&redis)
        .kafka("main", kafka)
        .route("orders", &ingress(&from), &target, "")
        .route("flood", &ingress(&flood), &target, "");
    let relay = Relay::start(&config).await;
    for (route, offset) in [("orders", 3), ("flood", 0)] {
        eventually(&format!("{route} stands"), async || {
            let (_, ready) = relay.get("/readyz").await?;
            anyhow::ensure!(
                ready.contains(&format!("stands at offset {offset},")),
                "{ready}"
            );
            let paused = [("route", route), ("reason", "undecodable")];
            anyhow::ensure!(
                relay
                    .metrics()
                    .await?
                    .sum("postdate_ingress_paused", &paused)
                    > 0.5,
                "{route}"
            );
            anyhow::Ok(())
        })
        .await;
    }
    let log = relay.log();
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains("partition stands at"))
        .collect();
    assert_eq!(told.len(), 2, "one line each: {told:#?}");
    let line = told
        .iter()
        .find(|line| line.contains(&from))
        .expect("the topic");
    assert!(line.contains(r#""partition":0,"offset":3"#), "{line}");
    let elsewhere = skip_command(&relay, "orders", "--offset", 2).await;
    assert_eq!(elsewhere.status.code(), Some(1));
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(
        said.contains("stands at offset 3, not at 2; nothing was skipped (409)"),
        "{said}"
    );
    for (goal, at) in [("--to", 2), ("--since", 1_700_000_000_000)] {
        let placed = skip_command(&relay, "orders", goal, at).await;
        let said = String::from_utf8_lossy(&placed.stderr).into_owned();
        assert!(
            said.contains("does not wait for a word: its next record is expected at offset 3; nothing was skipped (409)"),
            "{said}"
        );
    }
    let skipped = skip_command(&relay, "orders", "--offset", 3).await;
    let said = String::from_utf8_lossy(&skipped.stdout).into_owned();
    assert!(skipped.status.success(), "{skipped:?}");
    assert_eq!(
        said,
        format!("orders: skipped offset 3 of {from}/0; reading goes on at 4\n")
    );
    let mut arrived: Vec<_> = read_all(kafka, &to, 6).iter().map(text).collect();
    arrived.sort();
    assert_eq!(
        arrived,
        (0..6).map(|i| format!("m-{i}")).collect::<Vec<_>>()
    );
    commits(kafka, &group, &from, 7).await;
    let counted = [("route", "orders"), ("reason", "skipped")];
    assert_eq!(
        relay.total("postdate_dropped_total", &counted).await as u64,
        1
    );
    let (_, audit) = relay.get("/api/v1/audit").await.expect("an answer");
    assert!(audit.contains("\"skipped offset 3\""), "{audit}");
    let peak = peak_mib(relay.id());
    println!("peak {peak} MiB");
    assert!(peak < 256, "{peak} MiB");
}
