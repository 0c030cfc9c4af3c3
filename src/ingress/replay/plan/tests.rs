use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::domain::{
    ConsumerRetry, Entry, Flags, Header, HeaderValue, KafkaPosition, Message, Origin, Route,
    testing,
};
use crate::ingress::replay::{RecordJudge, ReplayRecord, StoredRecordsBuilder};

/// Two hours after the first record.
const NOW: UnixMs = UnixMs(BEGAN + 7_200_000);
const BEGAN: i64 = 1_790_000_000_000;
const MINUTE: i64 = 60_000;

/// A log with one record a minute: `store a 30` (a named message that is due 30 minutes after the beginning),
/// `store - 30`, `store a 30 40` (wanted until minute 40), `store a@k 30` (with a key), `cancel a`, `move a 50`, `pass`,
/// `bad`.
struct ReplayFixture {
    route: Arc<Route>,
    stored: Vec<(Partition, Entry, ScannedState)>,
    bounds: ReplayBounds,
}

impl ReplayFixture {
    fn new() -> Self {
        let bounds = ReplayBounds {
            now: NOW,
            until: None,
            due_after: UnixMs(BEGAN),
        };
        Self {
            route: testing::route(),
            stored: Vec::new(),
            bounds,
        }
    }

    fn ordered(mut self) -> Self {
        Arc::make_mut(&mut self.route).policy.ordered = true;
        self
    }

    fn partitions() -> Partitions {
        Partitions::new(1000).expect("a count")
    }

    fn replace(mut self) -> Self {
        Arc::make_mut(&mut self.route).policy.on_duplicate = OnDuplicate::Replace;
        self
    }

    fn record(offset: i64, text: &str) -> ReplayRecord {
        let words: Vec<&str> = text.split(' ').collect();
        let bytes = |text: &str| HeaderValue::Bytes(Bytes::from(text.to_owned()));
        let mut headers = vec![Header::new("kept", bytes("x"))];
        let mut header = |name: &str, value: &str| headers.push(Header::new(name, bytes(value)));
        let (id, key) = match words
            .get(1)
            .map(|id| id.split_once('@').unwrap_or((id, "")))
        {
            Some((id, key)) => (id, Some(key).filter(|key| !key.is_empty())),
            None => ("-", None),
        };
        if id != "-" {
            header("x-delay-id", id);
        }
        if let Some(minutes) = words.get(2) {
            let at = BEGAN + minutes.parse::<i64>().expect("minutes") * MINUTE;
            header("x-deliver-at", &at.to_string());
        }
        if let Some(minutes) = words.get(3) {
            let until = BEGAN + minutes.parse::<i64>().expect("minutes") * MINUTE;
            header("x-delay-expires", &until.to_string());
        }
        match words[0] {
            "cancel" => header("x-delay-op", "cancel"),
            "move" => header("x-delay-op", "reschedule"),
            "replace" => header("x-delay-op", "replace"),
            "bad" => header("x-delay", "soon"),
            word if word.starts_with("back") => {
                header("x-delay-retry", word.trim_start_matches("back"));
            }
            _ => {}
        }
        let body = Some(Bytes::from(format!("{offset}")));
        let message = Message {
            origin: Origin::Kafka,
            key: key.map(|key| Bytes::from(key.to_owned())),
            body,
            headers,
            properties: None,
        };
        let produced = Some(UnixMs(BEGAN + offset * MINUTE));
        ReplayRecord {
            position: KafkaPosition {
                partition: 3,
                offset,
            },
            message,
            malformed: None,
            produced,
        }
    }

    fn judged(&self, offset: i64, text: &str) -> JudgedRecord {
        RecordJudge::new(&self.route, "kafka/main/g/t/3", NOW).judge(Self::record(offset, text))
    }

    /// Adds a message to the store, due at that minute.
    fn has(mut self, offset: i64, text: &str, minutes: i64, standing: ScannedState) -> Self {
        let judge = self.judged(offset, text);
        let mut entry = Entry::new(UnixMs(BEGAN + minutes * MINUTE), judge.message.clone());
        entry.request = judge.asked.filter(|asked| asked.given_back > 0);
        entry.position = Some(KafkaPosition {
            partition: 3,
            offset,
        });
        if let RecordRequest::Delayed { id: Some(id), .. }
        | RecordRequest::Reschedule { id, .. }
        | RecordRequest::Replace { id, .. } = &judge.request
        {
            entry.id = Some(id.clone());
            entry.flags = Flags(Flags::NAMED);
        }
        let id = entry.id.as_ref();
        let key = self.route.order_key(&entry.message);
        let partition = id.map_or(Partition(0), |id| {
            Self::partitions().of_named(&self.route.name, key.as_ref(), id.as_str())
        });
        self.stored.push((partition, entry, standing));
        self
    }

    /// Changes the context of the trace of all stored messages, as their admission does.
    fn traced(mut self) -> Self {
        for (_, entry, _) in &mut self.stored {
            for (name, value) in [
                ("traceparent", "of-the-admission"),
                ("tracestate", "postdate=1"),
            ] {
                entry
                    .message
                    .headers
                    .retain(|header| header.name.as_str() != name);
                entry
                    .message
                    .headers
                    .push(Header::new(name, HeaderValue::Bytes(value.into())));
            }
        }
        self
    }

    fn stored(&self) -> StoredRecords {
        let mut gathering = StoredRecordsBuilder::default();
        for (partition, entry, standing) in &self.stored {
            gathering.add(*partition, entry, *standing, &self.route);
        }
        gathering.finish()
    }

    /// The step for each record, from offset 1 on. Records without a step are left out.
    fn plan(&self, records: &[&str]) -> (Vec<(i64, String)>, ReplayTally) {
        let stored = self.stored();
        let first = KafkaPosition {
            partition: 3,
            offset: 1,
        };
        let (route, partitions) = (&self.route, Self::partitions());
        let mut planner = ReplayPlanner::new(self.bounds, route, partitions, &stored, first);
        let records: Vec<JudgedRecord> = (1..)
            .zip(records)
            .map(|(at, text)| self.judged(at, text))
            .collect();
        for record in &records {
            planner.take(record);
        }
        let plan = planner.finish();
        let minutes = |due: UnixMs| due.since(UnixMs(BEGAN)) / MINUTE;
        let steps = records.iter().filter_map(|record| {
            let said = match plan.step(record, &stored)? {
                ReplayStep::Store {
                    due,
                    name_at,
                    instead_of,
                } => {
                    let name = name_at.map_or("", |_| " named");
                    let instead =
                        instead_of.map_or(String::new(), |at| format!(" instead of {}", at.offset));
                    format!("store at {}{name}{instead}", minutes(due))
                }
                ReplayStep::Cancel { of } => format!("cancel {}", of.offset),
                ReplayStep::Reschedule { of, due } => {
                    format!("move {} to {}", of.offset, minutes(due))
                }
                ReplayStep::DeadLetter => "bury".to_owned(),
            };
            Some((record.position.offset, said))
        });
        let steps: Vec<_> = steps.collect();
        let t = plan.tally;
        let left_out = t.there + t.settled + t.before + t.later + t.passing;
        let counts = (t.steps(), t.steps() + left_out, t.read);
        let records = records.len() as u64;
        assert_eq!(
            counts,
            (steps.len() as u64, records, records),
            "each counts once: {t:?}"
        );
        (steps, t)
    }

    #[track_caller]
    fn comes_to(&self, records: &[&str], expected: &[(i64, &str)]) -> ReplayTally {
        let (steps, tally) = self.plan(records);
        let steps: Vec<_> = steps
            .iter()
            .map(|(at, step)| (*at, step.as_str()))
            .collect();
        assert_eq!(steps, expected);
        tally
    }
}

#[test]
fn of_an_empty_store_all_that_waited_comes_back_and_nothing_that_passed() {
    let tally = ReplayFixture::new().comes_to(
        &[
            "store - 300",
            "pass",
            "store a 300",
            "bad",
            "store - 30",
            "pass",
        ],
        &[
            (1, "store at 300"),
            (3, "store at 300 named"),
            (4, "bury"),
            (5, "store at 30"),
        ],
    );
    assert_eq!(
        (tally.stored, tally.overdue, tally.dead, tally.passing),
        (3, 1, 1, 2)
    );
}

#[test]
fn what_the_store_has_is_left_out_whatever_its_state() {
    for standing in [
        ScannedState::Pending,
        ScannedState::InFlight,
        ScannedState::Ended,
    ] {
        let site = ReplayFixture::new()
            .has(1, "store - 300", 300, standing)
            .has(2, "store a 300", 300, standing);
        let tally = site.comes_to(&["store - 300", "store a 300"], &[]);
        assert_eq!(tally.there, 2);
        let tally = site.traced().comes_to(&["store - 300", "store a 300"], &[]);
        assert_eq!(tally.there, 2, "with the context of another span");
    }
    // The topic was created anew: another record has the same position.
    let site = ReplayFixture::new().has(1, "store - 300", 300, ScannedState::Pending);
    let other = ReplayFixture::record(1, "store - 300");
    let mut judge = RecordJudge::new(&site.route, "s", NOW).judge(other);
    judge.content ^= 1;
    assert!(site.stored().find(judge.position, judge.content).is_none());
}

#[test]
fn a_record_whose_timestamp_cannot_be_true_is_dated_as_one_without_a_timestamp() {
    let route = testing::route();
    for produced in [-1, 0, NOW.0 / 1000, 99_999_999_999] {
        let mut record = ReplayFixture::record(1, "pass");
        record.message.headers = vec![Header::new("x-delay", HeaderValue::Bytes("1h".into()))];
        record.produced = Some(UnixMs(produced));
        let judged = RecordJudge::new(&route, "s", NOW).judge(record);
        assert_eq!(judged.at, None, "{produced}");
        let RecordRequest::Delayed { due, .. } = judged.request else {
            panic!("{:?} is not delayed", judged.request)
        };
        assert_eq!(due.since(NOW), 60 * MINUTE, "{produced}");
    }
}

#[test]
fn a_cancelled_one_is_not_stored_and_one_that_the_store_has_is_cancelled() {
    let tally = ReplayFixture::new().comes_to(&["store a 300", "cancel a", "cancel nobody"], &[]);
    assert_eq!(tally.settled, 3);
    let site = ReplayFixture::new().has(1, "store a 300", 300, ScannedState::Pending);
    site.comes_to(&["store a 300", "cancel a"], &[(2, "cancel 1")]);
    let before = ReplayFixture::new().has(0, "store a 300", 300, ScannedState::Pending);
    before.comes_to(&["cancel a"], &[(1, "cancel 0")]);
    // The cancel came after the due time, but nobody published the message.
    ReplayFixture::new().comes_to(&["store a 2", "pass", "pass", "cancel a"], &[]);
}

#[test]
fn with_key_order_each_partition_of_the_store_has_its_own_message_of_a_name() {
    let keep = ReplayFixture::new().ordered();
    let two_stored = [(1, "store at 300 named"), (2, "store at 400 named")];
    keep.comes_to(&["store a@k 300", "store a@l 400"], &two_stored);
    let replace = ReplayFixture::new().ordered().replace();
    replace.comes_to(&["store a@k 300", "store a@l 400"], &two_stored);
    replace.comes_to(&["store a@k 300", "store a@k 400"], &two_stored[1..]);
    // A command means that of its own key, and else any that waits.
    let two = ["store a@k 300", "store a@l 400"];
    let and = |command| [two[0], two[1], command];
    keep.comes_to(&and("cancel a@l"), &two_stored[..1]);
    keep.comes_to(&and("cancel a@k"), &two_stored[1..]);
    keep.comes_to(
        &and("move a@k 500"),
        &[(1, "store at 500 named"), two_stored[1]],
    );
    keep.comes_to(&[two[0], "cancel a@m"], &[]);
    keep.comes_to(&[two[0], "cancel a"], &[]);
    keep.comes_to(
        &["store a@k 300", "move a@m 500", "replace a@k 600"],
        &[(3, "store at 600 named")],
    );
    // A cancel that came too late counts all the same, whatever key it has.
    keep.comes_to(&["store a@k 2", "pass", "pass", "cancel a"], &[]);
    // A replacement is where the other was, and leaves the partition of its own key to others.
    keep.comes_to(
        &["store a@k 300", "replace a@l 400", "store a@l 500"],
        &[(2, "store at 400 named"), (3, "store at 500 named")],
    );
    // It was stored by itself if the store had lost the other by then, which comes back no more.
    let replaced = ["store a@k 300", "replace a@l 400"];
    let lost = ReplayFixture::new().ordered();
    let lost = lost.has(2, replaced[1], 400, ScannedState::Pending);
    lost.comes_to(&replaced, &[]);
    let both = lost.has(1, replaced[0], 300, ScannedState::Pending);
    both.comes_to(&replaced, &[(2, "cancel 1")]);
    // It replaced one of its own partition that was due and not published, for its route was paused.
    let paused = ["store a@k 300", "store a@l 2", "replace a@l 400"];
    let replaced = ReplayFixture::new()
        .ordered()
        .has(1, paused[0], 300, ScannedState::Pending)
        .has(3, paused[2], 400, ScannedState::Pending);
    replaced.comes_to(&paused, &[(2, "store at 2")]);
    let missed = ReplayFixture::new()
        .ordered()
        .has(1, paused[0], 300, ScannedState::Pending)
        .has(2, paused[1], 2, ScannedState::Pending);
    missed.comes_to(&[paused[0], paused[1], "cancel a@l"], &[(3, "cancel 2")]);
    // One of them is due and gone.
    keep.comes_to(
        &["store a@k 2", "pass", "store a@l 400", "cancel a@k"],
        &[(1, "store at 2")],
    );
    let has = ReplayFixture::new()
        .ordered()
        .has(1, two[0], 300, ScannedState::Pending)
        .has(2, two[1], 400, ScannedState::Pending);
    has.comes_to(&and("cancel a@l"), &[(3, "cancel 2")]);
    has.comes_to(&and("move a@k 500"), &[(3, "move 1 to 500")]);
    has.comes_to(
        &and("replace a@l 500"),
        &[(3, "store at 500 named instead of 2")],
    );
}

#[test]
fn a_moved_one_is_stored_at_its_last_moment() {
    ReplayFixture::new().comes_to(
        &["store a 300", "move a 400", "move a 500"],
        &[(1, "store at 500 named")],
    );
    let unmoved = ReplayFixture::new().has(1, "store a 300", 300, ScannedState::Pending);
    unmoved.comes_to(&["store a 300", "move a 400"], &[(2, "move 1 to 400")]);
    for moved in [400, 450] {
        // The message was moved by this very command, or by somebody since.
        let site = ReplayFixture::new().has(1, "store a 300", moved, ScannedState::Pending);
        site.comes_to(&["store a 300", "move a 400"], &[]);
    }
    // A reschedule without its message became a message then, so it does now.
    ReplayFixture::new().comes_to(&["move a 400"], &[(1, "store at 400 named")]);
    ReplayFixture::new().comes_to(
        &["store a 2", "pass", "pass", "move a 400"],
        &[(1, "store at 2"), (4, "store at 400 named")],
    );
    // The store was wiped between the two records, so the command became a message.
    let wiped = ReplayFixture::new().has(2, "move a 400", 400, ScannedState::Pending);
    wiped.comes_to(
        &["store a 300", "move a 400"],
        &[(1, "store at 400 named instead of 2")],
    );
}

#[test]
fn no_message_is_moved_beyond_the_moment_until_which_it_is_wanted() {
    for (moved, at) in [(399, 399), (400, 300), (500, 300)] {
        let moving = format!("move a {moved}");
        let stored = format!("store at {at} named");
        let fixture = ReplayFixture::new();
        fixture.comes_to(&["store a 300 400", &moving], &[(1, &stored)]);
    }
}

#[test]
fn a_name_is_one_message_while_it_waits() {
    ReplayFixture::new().comes_to(
        &["store a 300", "store a 400"],
        &[(1, "store at 300 named")],
    );
    let replaces = ReplayFixture::new().replace();
    replaces.comes_to(
        &["store a 300", "store a 400"],
        &[(2, "store at 400 named")],
    );
    let kept = ReplayFixture::new()
        .replace()
        .has(1, "store a 300", 300, ScannedState::Pending);
    kept.comes_to(
        &["store a 300", "store a 400"],
        &[(2, "store at 400 named instead of 1")],
    );
    let later = ReplayFixture::new().has(2, "store a 400", 400, ScannedState::Pending);
    later.comes_to(&["store a 300", "store a 400"], &[]);
}

#[test]
fn what_a_consumer_gave_back_is_no_duplicate_of_what_it_had() {
    let retries = || {
        let mut site = ReplayFixture::new();
        let policy = &mut Arc::make_mut(&mut site.route).policy;
        policy.dedupe_ms = 10 * MINUTE;
        policy.consumer_retry = Some(ConsumerRetry {
            attempts: 9,
            initial_ms: MINUTE,
            factor: 1,
            max_ms: MINUTE,
        });
        site
    };
    // It came back within the span in which its name is remembered, and while it waited by its records.
    retries().comes_to(
        &["back0 a 2", "back1 a 4", "back2 a 300"],
        &[
            (1, "store at 2"),
            (2, "store at 4"),
            (3, "store at 300 named"),
        ],
    );
    let long = ["back0 a 300", "back1 a 300"];
    let both = [(1, "store at 300 named"), (2, "store at 300 named")];
    retries().comes_to(&long, &both);
    // A record that was written twice is one while it waits.
    retries().comes_to(&["back1 a 300", "back1 a 300"], &both[..1]);
    let gone = [(1, "store at 2"), (2, "store at 4")];
    retries().comes_to(&["back1 a 2", "back1 a 4"], &gone);
    // The store has the later one, or the earlier one.
    let later = retries().has(2, "back1 a 300", 300, ScannedState::Pending);
    later.comes_to(&long, &both[..1]);
    let earlier = retries().has(1, "back0 a 300", 300, ScannedState::Pending);
    earlier.comes_to(&long, &both[1..]);
}

#[test]
fn a_replacement_is_stored_and_what_it_replaced_is_not() {
    ReplayFixture::new().comes_to(
        &["store a 300", "replace a 400"],
        &[(2, "store at 400 named")],
    );
    ReplayFixture::new().comes_to(&["replace a 400"], &[(1, "store at 400 named")]);
    // The store missed the replacement.
    let site = ReplayFixture::new().has(1, "store a 300", 300, ScannedState::Pending);
    site.comes_to(
        &["store a 300", "replace a 400"],
        &[(2, "store at 400 named instead of 1")],
    );
    let replaced = ReplayFixture::new().has(2, "replace a 400", 400, ScannedState::Pending);
    replaced.comes_to(&["store a 300", "replace a 400"], &[]);
    replaced.comes_to(
        &["store a 300", "replace a 400", "cancel a"],
        &[(3, "cancel 2")],
    );
    // It came too late: its message was due, and its name is remembered.
    let mut remembers = ReplayFixture::new();
    Arc::make_mut(&mut remembers.route).policy.dedupe_ms = 10 * MINUTE;
    remembers.comes_to(
        &["store a 2", "pass", "pass", "replace a 400"],
        &[(1, "store at 2")],
    );
}

#[test]
fn one_that_fell_due_long_ago_leaves_its_name_to_the_next() {
    ReplayFixture::new().comes_to(
        &["store a 2", "pass", "pass", "store a 400"],
        &[(1, "store at 2"), (4, "store at 400 named")],
    );
    let mut remembers = ReplayFixture::new();
    Arc::make_mut(&mut remembers.route).policy.dedupe_ms = 10 * MINUTE;
    remembers.comes_to(
        &["store a 2", "pass", "pass", "store a 400"],
        &[(1, "store at 2")],
    );
    // The store was wiped after the first record. The second one was stored in the new store.
    let wiped = ReplayFixture::new().has(4, "store a 400", 400, ScannedState::Pending);
    wiped.comes_to(
        &["store a 2", "pass", "pass", "store a 400"],
        &[(1, "store at 2")],
    );
}

#[test]
fn bounds_leave_out_but_do_not_blind() {
    let mut site = ReplayFixture::new();
    site.bounds.until = Some(UnixMs(BEGAN + 2 * MINUTE));
    let tally = site.comes_to(
        &[
            "store a 300",
            "store b 300",
            "store - 300",
            "cancel a",
            "move b 400",
        ],
        &[(2, "store at 400 named")],
    );
    assert_eq!((tally.later, tally.settled), (1, 3));
    let mut site = ReplayFixture::new();
    site.bounds.due_after = UnixMs(BEGAN + 60 * MINUTE);
    let tally = site.comes_to(
        &[
            "store - 59",
            "store - 60",
            "store a 59",
            "store b 50",
            "move b 61",
        ],
        &[(2, "store at 60"), (4, "store at 61")],
    );
    assert_eq!((tally.before, tally.overdue), (2, 2));
}

#[test]
fn what_was_due_before_it_came_fell_due_when_it_came() {
    let mut site = ReplayFixture::new();
    site.bounds.due_after = UnixMs(BEGAN + 2 * MINUTE);
    site.comes_to(&["store - -500", "store - -500"], &[(2, "store at -500")]);
}
