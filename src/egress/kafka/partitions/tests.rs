use std::sync::Arc;

use super::*;
use crate::domain::{Entry, Message, Origin, Target, UnixMs};
use crate::egress::{PublishBatch, VerdictInbox};

const HEALTHY: PartitionState = PartitionState {
    has_leader: true,
    in_sync: 2,
    replicas: 2,
};
const LEADERLESS: PartitionState = PartitionState {
    has_leader: false,
    ..HEALTHY
};

/// Makes publications that are numbered in the order in which they are made.
#[derive(Default)]
struct Maker {
    verdicts: Arc<VerdictInbox>,
    made: u64,
}

impl Maker {
    fn message(key: Option<&str>) -> Message {
        Message {
            origin: Origin::Kafka,
            key: key.map(|key| key.to_owned().into()),
            body: None,
            headers: Vec::new(),
            properties: None,
        }
    }

    fn publication(&mut self, key: Option<&str>, is_delayed: bool) -> Publication {
        let target = Target::Kafka {
            connection: "main".into(),
            topic: "t".into(),
        };
        self.made += 1;
        let ids = is_delayed.then(|| "id".into());
        let batch = PublishBatch {
            entries: Arc::new(vec![Entry::new(UnixMs(0), Self::message(key))]),
            ids: ids.into_iter().collect(),
            expiries: 0,
            spans: Vec::new(),
            target: Arc::new(target),
            clock: None,
            copies: false,
            number: self.made,
            verdicts: self.verdicts.clone(),
            listener: None,
            not_after_us: i64::MAX.into(),
        };
        Publication {
            batch: Arc::new(batch),
            index: 0,
        }
    }

    async fn put_off(&self) -> Vec<u64> {
        let verdicts = self.verdicts.take().await;
        let tickets = verdicts.into_iter().map(|(ticket, verdict)| {
            assert!(
                matches!(
                    verdict,
                    Verdict::Refused {
                        reason: Refusal::PartitionAway,
                        ..
                    }
                ),
                "{verdict:?}"
            );
            ticket.batch
        });
        tickets.collect()
    }
}

fn queues(partitions: &[PartitionState]) -> PartitionQueues {
    let mut queues = PartitionQueues::default();
    queues.learn("t", partitions, Some(2), 0);
    queues
}

/// A key of this partition of two.
fn key_of(partition: usize) -> String {
    let mut keys = (0..).map(|n: u32| n.to_string());
    keys.find(|key| partition_of_key(key.as_bytes(), 2) == partition)
        .expect("some key")
}

/// All that may go now: partition and ticket.
fn taken(queues: &mut PartitionQueues) -> Vec<(usize, u64)> {
    let runs = std::iter::from_fn(|| queues.take("t", 0));
    runs.flat_map(|run| run.messages)
        .map(|message| (message.partition, message.publication.ticket().batch))
        .collect()
}

#[test]
fn keys_go_where_java_producers_put_them() {
    // From the tests of Kafka's clients.
    for (key, hash) in [
        ("kafka", 0xd067_cf64),
        ("giberish123456789", 0x8f55_2b0c),
        ("1234", 0x9fc9_7b14),
        ("234", 0xe7c0_09ca),
        ("34", 0x8739_30da),
        ("4", 0x5a4b_5ca1),
        ("PreAmbleWillBeRemoved,ThePrePartThatIs", 0x7842_4f1c),
        ("reAmbleWillBeRemoved,ThePrePartThatIs", 0x4a62_b377),
        ("eAmbleWillBeRemoved,ThePrePartThatIs", 0xe0e4_e09e),
        ("AmbleWillBeRemoved,ThePrePartThatIs", 0x62b8_b43f),
        ("", 0x106e_08d9),
    ] {
        assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
    }
}

#[test]
fn what_the_brokers_say_decides_whether_a_partition_can_be_written() {
    use PartitionHealth::{Blocked, Weakened, Writable};
    let too_few = Blocked(Obstacle::TooFewReplicas {
        in_sync: 1,
        needed: 2,
    });
    // Replicas in sync of three; how many must be; the health.
    for (in_sync, least, health) in [
        (3, None, Writable),
        (2, None, Weakened),
        (1, Some(1), Writable),
        (2, Some(2), Writable),
        (1, Some(2), too_few),
        (3, Some(5), Writable),
    ] {
        let state = PartitionState {
            has_leader: true,
            in_sync,
            replicas: 3,
        };
        let found = PartitionHealth::of(state, least);
        assert_eq!(found, health, "{in_sync} of 3, {least:?} needed");
        let leaderless = PartitionState {
            has_leader: false,
            ..state
        };
        let found = PartitionHealth::of(leaderless, least);
        assert_eq!(found, Blocked(Obstacle::NoLeader));
    }
}

#[test]
fn a_partition_that_does_not_answer_leaves_room_for_the_others() {
    let mut maker = Maker::default();
    let mut queues = queues(&[HEALTHY, HEALTHY]);
    let hanging = key_of(1);
    let many = (0..2 * WINDOW_MESSAGES).map(|_| maker.publication(Some(&hanging), true));
    queues.submit(many.collect());
    assert_eq!(taken(&mut queues).len(), WINDOW_MESSAGES / 2);
    let healthy = key_of(0);
    let some = (0..WINDOW_MESSAGES).map(|_| maker.publication(Some(&healthy), true));
    queues.submit(some.collect());
    let healthy = taken(&mut queues);
    assert_eq!(healthy.len(), WINDOW_MESSAGES / 4);
    assert!(healthy.iter().all(|(partition, _)| *partition == 0));
    // What is confirmed makes room, and the share of the one that hangs does not grow.
    for _ in 0..10 {
        queues.end_flight(0, weight(&maker.publication(Some(&key_of(0)), true)), 0);
    }
    assert!(
        taken(&mut queues)
            .iter()
            .all(|(partition, _)| *partition == 0)
    );
}

#[test]
fn the_share_of_a_window() {
    // Places held by the partition and by all; others beside it; whether it may take one more.
    for (own, held, others, may) in [
        (0, 0, true, true),
        (49, 49, true, true),
        (50, 50, true, false),
        (25, 74, true, true),
        (25, 75, true, false),
        (9, 200, true, true),
        (10, 200, true, false),
        (99, 99, false, true),
        (100, 100, false, false),
    ] {
        assert_eq!(
            is_within(own, held, 100, 10, others),
            may,
            "{own} of {held}"
        );
    }
}

#[test]
fn while_a_partition_has_no_leader_its_messages_wait_in_order_and_others_pass_them() {
    let mut maker = Maker::default();
    let mut queues = queues(&[HEALTHY, LEADERLESS]);
    let keys = [key_of(0), key_of(1)];
    let one = maker.publication(Some(&keys[1]), false);
    let two = maker.publication(Some(&keys[0]), true);
    let three = maker.publication(None, false);
    let four = maker.publication(Some(&keys[1]), true);
    queues.submit(vec![one, two, three, four]);
    assert_eq!(taken(&mut queues), [(0, 2), (0, 3)]);
    assert_eq!((queues.backlog(), queues.sendable()), (4, 0));
    let sentences: Vec<_> = queues
        .obstacles()
        .map(|(n, o)| o.sentence("t", n))
        .collect();
    assert_eq!(sentences, ["partition 1 of t has no leader"]);
    assert!(queues.was_unhealthy(1, 5) && !queues.was_unhealthy(0, 0));
    let change = queues.learn("t", &[HEALTHY, HEALTHY], None, 10);
    assert_eq!((change.begun, change.ended), (vec![], vec![1]));
    assert!(queues.was_unhealthy(1, 10) && !queues.was_unhealthy(1, 11));
    let five = maker.publication(Some(&keys[1]), false);
    queues.submit(vec![five]);
    assert_eq!(taken(&mut queues), [(1, 1), (1, 4), (1, 5)]);
}

#[tokio::test]
async fn a_lane_holds_few_messages_of_a_partition_without_a_leader_and_all_while_no_partition_has_one()
 {
    let mut maker = Maker::default();
    let mut queues = queues(&[LEADERLESS, LEADERLESS]);
    let key = key_of(1);
    let passing: Vec<_> = (0..HELD_MESSAGES)
        .map(|_| maker.publication(Some(&key), false))
        .collect();
    let delayed: Vec<_> = (0..2 * HELD_MESSAGES)
        .map(|_| maker.publication(Some(&key), true))
        .collect();
    let all = passing.len() + delayed.len();
    queues.submit(passing);
    queues.submit(delayed);
    assert_eq!(taken(&mut queues), []);
    assert_eq!(queues.backlog(), all);
    queues.learn("t", &[HEALTHY, LEADERLESS], None, 0);
    let put_off = maker.put_off().await;
    let last: Vec<u64> = (2 * HELD_MESSAGES as u64 + 1..=all as u64).collect();
    assert_eq!(put_off, last, "the last ones go back to the store");
    queues.learn("t", &[HEALTHY, HEALTHY], None, 0);
    assert_eq!(taken(&mut queues).len(), 2 * HELD_MESSAGES);
}

#[test]
fn a_topic_that_grows_gives_keys_other_partitions() {
    let mut maker = Maker::default();
    let mut queues = queues(&[LEADERLESS]);
    queues.submit(
        (0..20)
            .map(|n| maker.publication(Some(&n.to_string()), true))
            .collect(),
    );
    assert_eq!(taken(&mut queues), []);
    queues.learn("t", &[HEALTHY, HEALTHY, HEALTHY], None, 0);
    let mut all = taken(&mut queues);
    for (partition, ticket) in &all {
        let key = (ticket - 1).to_string();
        assert_eq!(*partition, partition_of_key(key.as_bytes(), 3), "{key}");
    }
    all.sort_unstable_by_key(|(_, ticket)| *ticket);
    assert_eq!(all.len(), 20);
}

/// The topic was made anew, with fewer partitions, while messages were in the producer.
#[test]
fn a_message_that_comes_back_for_a_partition_that_is_gone_goes_to_one_that_is_there() {
    for suspects in [false, true] {
        let mut maker = Maker::default();
        let mut queues = queues(&[HEALTHY, HEALTHY]);
        let key = key_of(1);
        queues.submit(
            (0..3)
                .map(|_| maker.publication(Some(&key), true))
                .collect(),
        );
        let run = queues.take("t", 0).expect("all may go");
        assert!(run.messages.iter().all(|message| message.partition == 1));
        queues.learn("t", &[HEALTHY], None, 0);
        let weights: Vec<usize> = run
            .messages
            .iter()
            .map(|message| weight(&message.publication))
            .collect();
        queues.put_back(run.messages, suspects);
        for bytes in weights {
            queues.end_flight(1, bytes, 0);
        }
        assert_eq!(
            taken(&mut queues),
            [(0, 1), (0, 2), (0, 3)],
            "suspects: {suspects}"
        );
        assert_eq!((queues.backlog(), queues.in_flight()), (3, 3));
    }
}
