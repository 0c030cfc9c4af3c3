use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::domain::{Entry, Flags, Header, HeaderValue, KafkaPosition, Message, Origin, Route, testing};
use crate::ingress::replay::{Gathering, Judge, Reread};

/// Two hours after all began.
const NOW: UnixMs = UnixMs(BEGAN + 7_200_000);
const BEGAN: i64 = 1_790_000_000_000;
const MINUTE: i64 = 60_000;

/// A record a minute: `store a 30` (a named message due that many minutes after the beginning), `store - 30`,
/// `cancel a`, `move a 50`, `pass`, `bad`.
struct Site {
    route: Arc<Route>,
    known: Vec<(Entry, ScannedState)>,
    bounds: Bounds,
}

impl Site {
    fn new() -> Self {
        let bounds = Bounds { now: NOW, until: None, due_after: UnixMs(BEGAN) };
        Self { route: testing::route(), known: Vec::new(), bounds }
    }

    fn replace(mut self) -> Self {
        Arc::make_mut(&mut self.route).policy.on_duplicate = OnDuplicate::Replace;
        self
    }

    fn record(offset: i64, text: &str) -> Reread {
        let words: Vec<&str> = text.split(' ').collect();
        let bytes = |text: &str| HeaderValue::Bytes(Bytes::from(text.to_owned()));
        let mut headers = vec![Header::new("kept", bytes("x"))];
        let mut header = |name: &str, value: &str| headers.push(Header::new(name, bytes(value)));
        if let Some(id) = words.get(1).filter(|id| **id != "-") {
            header("x-delay-id", id);
        }
        if let Some(minutes) = words.get(2) {
            let at = BEGAN + minutes.parse::<i64>().expect("minutes") * MINUTE;
            header("x-deliver-at", &at.to_string());
        }
        match words[0] {
            "cancel" => header("x-delay-op", "cancel"),
            "move" => header("x-delay-op", "reschedule"),
            "bad" => header("x-delay", "soon"),
            _ => {}
        }
        let body = Some(Bytes::from(format!("{offset}")));
        let message = Message { origin: Origin::Kafka, key: None, body, headers, properties: None };
        let produced = Some(UnixMs(BEGAN + offset * MINUTE));
        Reread { position: KafkaPosition { partition: 3, offset }, message, malformed: None, produced }
    }

    fn judged(&self, offset: i64, text: &str) -> Again {
        Judge::new(&self.route, "kafka/main/g/t/3", NOW).judge(Self::record(offset, text))
    }

    /// The store has this one, due at that minute.
    fn has(mut self, offset: i64, text: &str, minutes: i64, standing: ScannedState) -> Self {
        let again = self.judged(offset, text);
        let mut entry = Entry::new(UnixMs(BEGAN + minutes * MINUTE), again.message.clone());
        entry.position = Some(KafkaPosition { partition: 3, offset });
        if let Asks::Delayed { id: Some(id), .. } | Asks::Reschedule { id, .. } = &again.asks {
            entry.id = Some(id.clone());
            entry.flags = Flags(Flags::NAMED);
        }
        self.known.push((entry, standing));
        self
    }

    fn known(&self) -> Known {
        let mut gathering = Gathering::default();
        for (entry, standing) in &self.known {
            gathering.add(entry, *standing, &self.route);
        }
        gathering.finish()
    }

    /// What is to be done with each record, from offset 1 on; what is nothing is left out.
    fn plan(&self, records: &[&str]) -> (Vec<(i64, String)>, Tally) {
        let known = self.known();
        let mut planner =
            Planner::new(self.bounds, &self.route.policy, &known, KafkaPosition { partition: 3, offset: 1 });
        let records: Vec<Again> = (1..).zip(records).map(|(at, text)| self.judged(at, text)).collect();
        for record in &records {
            planner.take(record);
        }
        let plan = planner.finish();
        let minutes = |due: UnixMs| due.since(UnixMs(BEGAN)) / MINUTE;
        let steps = records.iter().filter_map(|record| {
            let said = match plan.step(record, &known)? {
                Step::Store { due, named, instead_of } => {
                    let name = if named { " named" } else { "" };
                    let instead = instead_of.map_or(String::new(), |at| format!(" instead of {at}"));
                    format!("store at {}{name}{instead}", minutes(due))
                }
                Step::Cancel { of } => format!("cancel {of}"),
                Step::Reschedule { of, due } => format!("move {of} to {}", minutes(due)),
                Step::Bury => "bury".to_owned(),
            };
            Some((record.position.offset, said))
        });
        let steps: Vec<_> = steps.collect();
        let t = plan.tally;
        let left_out = t.there + t.settled + t.before + t.later + t.passing;
        let counts = (t.steps(), t.steps() + left_out, t.read);
        let records = records.len() as u64;
        assert_eq!(counts, (steps.len() as u64, records, records), "each counts once: {t:?}");
        (steps, t)
    }

    #[track_caller]
    fn comes_to(&self, records: &[&str], expected: &[(i64, &str)]) -> Tally {
        let (steps, tally) = self.plan(records);
        let steps: Vec<_> = steps.iter().map(|(at, step)| (*at, step.as_str())).collect();
        assert_eq!(steps, expected);
        tally
    }
}

#[test]
fn of_an_empty_store_all_that_waited_comes_back_and_nothing_that_passed() {
    let tally = Site::new().comes_to(
        &["store - 300", "pass", "store a 300", "bad", "store - 30", "pass"],
        &[(1, "store at 300"), (3, "store at 300 named"), (4, "bury"), (5, "store at 30")],
    );
    assert_eq!((tally.stored, tally.overdue, tally.dead, tally.passing), (3, 1, 1, 2));
}

#[test]
fn what_the_store_has_is_left_out_whatever_its_state() {
    for standing in [ScannedState::Pending, ScannedState::InFlight, ScannedState::Ended] {
        let site = Site::new().has(1, "store - 300", 300, standing).has(2, "store a 300", 300, standing);
        let tally = site.comes_to(&["store - 300", "store a 300"], &[]);
        assert_eq!(tally.there, 2);
    }
    // The topic was made anew: the same position, another record.
    let site = Site::new().has(1, "store - 300", 300, ScannedState::Pending);
    let other = Site::record(1, "store - 300");
    let mut again = Judge::new(&site.route, "s", NOW).judge(other);
    again.content ^= 1;
    assert!(site.known().find(again.position, again.content).is_none());
}

#[test]
fn a_cancelled_one_is_not_stored_and_one_that_the_store_has_is_cancelled() {
    let tally = Site::new().comes_to(&["store a 300", "cancel a", "cancel nobody"], &[]);
    assert_eq!(tally.settled, 3);
    let site = Site::new().has(1, "store a 300", 300, ScannedState::Pending);
    site.comes_to(&["store a 300", "cancel a"], &[(2, "cancel 1")]);
    let before = Site::new().has(0, "store a 300", 300, ScannedState::Pending);
    before.comes_to(&["cancel a"], &[(1, "cancel 0")]);
    // It was cancelled when its time had come, but nobody published it.
    Site::new().comes_to(&["store a 2", "pass", "pass", "cancel a"], &[]);
}

#[test]
fn a_moved_one_is_stored_at_its_last_moment() {
    Site::new().comes_to(&["store a 300", "move a 400", "move a 500"], &[(1, "store at 500 named")]);
    let unmoved = Site::new().has(1, "store a 300", 300, ScannedState::Pending);
    unmoved.comes_to(&["store a 300", "move a 400"], &[(2, "move 1 to 400")]);
    for moved in [400, 450] {
        // By the command already, or by somebody since.
        let site = Site::new().has(1, "store a 300", moved, ScannedState::Pending);
        site.comes_to(&["store a 300", "move a 400"], &[]);
    }
    // A reschedule without its message is a message; so it was then.
    Site::new().comes_to(&["move a 400"], &[(1, "store at 400 named")]);
    Site::new().comes_to(
        &["store a 2", "pass", "pass", "move a 400"],
        &[(1, "store at 2"), (4, "store at 400 named")],
    );
    // The store was wiped between the two, so that it took the command for a message.
    let wiped = Site::new().has(2, "move a 400", 400, ScannedState::Pending);
    wiped.comes_to(&["store a 300", "move a 400"], &[(1, "store at 400 named instead of 2")]);
}

#[test]
fn a_name_is_one_message_while_it_waits() {
    Site::new().comes_to(&["store a 300", "store a 400"], &[(1, "store at 300 named")]);
    let replaces = Site::new().replace();
    replaces.comes_to(&["store a 300", "store a 400"], &[(2, "store at 400 named")]);
    let kept = Site::new().replace().has(1, "store a 300", 300, ScannedState::Pending);
    kept.comes_to(&["store a 300", "store a 400"], &[(2, "store at 400 named instead of 1")]);
    let later = Site::new().has(2, "store a 400", 400, ScannedState::Pending);
    later.comes_to(&["store a 300", "store a 400"], &[]);
}

#[test]
fn one_that_fell_due_long_ago_leaves_its_name_to_the_next() {
    Site::new().comes_to(
        &["store a 2", "pass", "pass", "store a 400"],
        &[(1, "store at 2"), (4, "store at 400 named")],
    );
    let mut remembers = Site::new();
    Arc::make_mut(&mut remembers.route).policy.dedupe_ms = 10 * MINUTE;
    remembers.comes_to(&["store a 2", "pass", "pass", "store a 400"], &[(1, "store at 2")]);
    // The store was wiped after the first; the second came into the new one.
    let wiped = Site::new().has(4, "store a 400", 400, ScannedState::Pending);
    wiped.comes_to(&["store a 2", "pass", "pass", "store a 400"], &[(1, "store at 2")]);
}

#[test]
fn bounds_leave_out_but_do_not_blind() {
    let mut site = Site::new();
    site.bounds.until = Some(UnixMs(BEGAN + 2 * MINUTE));
    let tally = site.comes_to(
        &["store a 300", "store b 300", "store - 300", "cancel a", "move b 400"],
        &[(2, "store at 400 named")],
    );
    assert_eq!((tally.later, tally.settled), (1, 3));
    let mut site = Site::new();
    site.bounds.due_after = UnixMs(BEGAN + 60 * MINUTE);
    let tally = site.comes_to(
        &["store - 59", "store - 60", "store a 59", "store b 50", "move b 61"],
        &[(2, "store at 60"), (4, "store at 61")],
    );
    assert_eq!((tally.before, tally.overdue), (2, 2));
}

#[test]
fn what_was_due_before_it_came_fell_due_when_it_came() {
    let mut site = Site::new();
    site.bounds.due_after = UnixMs(BEGAN + 2 * MINUTE);
    site.comes_to(&["store - -500", "store - -500"], &[(2, "store at -500")]);
}
