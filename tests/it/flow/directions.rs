//! Every direction x every form of every header x every content, in one relay.

use std::collections::BTreeMap;

use super::contents::{self, Content};
use super::fixture::{FlowFixture, Path, Side, await_metric, config};
use super::forms::{Form, When};
use super::wire::{Arrival, Stamp, Wire, table, text};
use crate::support::Relay;
use crate::support::run::now_ms;

/// Expected result of a message.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    path: usize,
    sent: Wire,
    /// Kafka's timestamp: what a delay counts from. AMQP's is when it arrives, so no earlier.
    base_ms: i64,
    /// `None`: it passes through.
    when: Option<When>,
    /// The producer's own id.
    id: Option<&'static str>,
    /// Set where the message goes to the other, allowed target.
    other: bool,
    expected: Wire,
}

/// How a content is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    PassThrough,
    PassToOther,
    Delayed,
    DelayedToOther,
    /// With the headers of a message that Postdate had sent.
    SentOn,
}

const MODES: [Mode; 5] = [
    Mode::PassThrough,
    Mode::PassToOther,
    Mode::Delayed,
    Mode::DelayedToOther,
    Mode::SentOn,
];

/// Nine pairs of ends, 31 forms from Kafka and 45 from AMQP, named and not; 7 contents from Kafka and 8
/// from AMQP in five modes. A binary key cannot be a routing key, so it does not go to an exchange.
const CASES: usize = 3 * 31 * 2 + 6 * 45 * 2 + (3 * 7 - 1) * 5 + 6 * 8 * 5;

/// A simple message; how it must come out on the same technology, and on the other one.
fn simple(from: Side, case: &str) -> (Wire, Wire, Wire) {
    let sent = from.plain(case, "key", b"body");
    let record = Side::Kafka.plain(case, "key", b"body");
    if from != Side::Kafka {
        return (sent.clone(), sent, record);
    }
    let Wire::Amqp(mut amqp) = Side::Classic.plain(case, "key", b"body") else {
        panic!("from a queue")
    };
    amqp.headers.insert("kafka.key".into(), text("key"));
    amqp.properties = amqp.properties.with_delivery_mode(2);
    (sent.clone(), sent, Wire::Amqp(amqp))
}

fn form_cases(at: usize, path: &Path, base_ms: i64, cases: &mut Vec<Case>) {
    let soon_ms = (base_ms / 1000 + 4) * 1000;
    let forms = if path.from == Side::Kafka {
        Form::on_kafka(soon_ms)
    } else {
        Form::on_amqp(soon_ms)
    };
    for form in forms {
        for id in [None, Some("order-7")] {
            let name = format!(
                "{} | {} | {}",
                path.route,
                form.name,
                id.unwrap_or("unnamed")
            );
            let (mut sent, same, across) = simple(path.from, &name);
            sent = form.on(sent);
            if id.is_some() {
                sent = sent.header("x-delay-id", &name);
            }
            let expected = if same_technology(path) { same } else { across };
            cases.push(Case {
                name,
                path: at,
                sent,
                base_ms,
                when: Some(form.when),
                id,
                other: false,
                expected,
            });
        }
    }
}

fn content_cases(at: usize, path: &Path, base_ms: i64, cases: &mut Vec<Case>) {
    let count = if path.from == Side::Kafka {
        contents::on_kafka("").len()
    } else {
        contents::on_amqp("").len()
    };
    for mode in MODES {
        for n in 0..count {
            let name = format!("{} | content {n} | {mode:?}", path.route);
            let content = match path.from {
                Side::Kafka => contents::on_kafka(&name).swap_remove(n),
                _ => contents::on_amqp(&name).swap_remove(n),
            };
            let to_exchange = path.to == Side::Classic && path.from == Side::Kafka;
            if !(content.unroutable && to_exchange) {
                cases.push(content_case(at, path, base_ms, mode, &name, content));
            }
        }
    }
}

fn content_case(
    at: usize,
    path: &Path,
    base_ms: i64,
    mode: Mode,
    name: &str,
    content: Content,
) -> Case {
    let other = matches!(mode, Mode::PassToOther | Mode::DelayedToOther);
    let delayed = !matches!(mode, Mode::PassThrough | Mode::PassToOther);
    let mut sent = content.sent;
    if other {
        sent = sent.header("X-Delay-Target", &path.other_text());
    }
    if delayed {
        sent = sent.header("x-delay", "1400");
    }
    if mode == Mode::SentOn {
        sent = sent
            .header("x-delay-id", "~old")
            .header("x-delay-due", "17")
            .header("x-delay-attempt", "3");
    }
    let mut expected = if same_technology(path) {
        content.same
    } else {
        content.across
    };
    if let (Wire::Amqp(amqp), true) = (&mut expected, content.sender_selected) {
        amqp.headers = amqp
            .headers
            .inner()
            .iter()
            .filter(|(name, _)| name.as_str() != "CC")
            .fold(table([]), |mut rest, (name, value)| {
                rest.insert(name.clone(), value.clone());
                rest
            });
    }
    let when = delayed.then_some(When::Delay(1400));
    Case {
        name: format!("{name} ({})", content.name),
        path: at,
        sent,
        base_ms,
        when,
        id: None,
        other,
        expected,
    }
}

fn same_technology(path: &Path) -> bool {
    (path.from == Side::Kafka) == (path.to == Side::Kafka)
}

/// Says what is wrong with an arrival; nothing if all is right.
fn judge(case: &Case, path: &Path, arrival: &Arrival) -> Option<String> {
    let (stamp, wire) = arrival.wire.clone().take_stamp();
    let mut expected = case.expected.clone();
    if let Wire::Amqp(amqp) = &mut expected {
        amqp.routing_key = if case.other {
            path.other.clone()
        } else {
            path.routing_key(&case.sent)
        };
    }
    let ordered = path.from == Side::Kafka;
    let got = wire.comparable(ordered);
    let wanted = expected.comparable(ordered);
    if got != wanted {
        return Some(format!("came as {got:?}, not as {wanted:?}"));
    }
    let at = if case.other {
        &path.other
    } else {
        &path.target
    };
    if arrival.at != *at {
        return Some(format!("came to {}, not to {at}", arrival.at));
    }
    let Some(when) = case.when else {
        return (stamp != Stamp::default()).then(|| format!("passed through with {stamp:?}"));
    };
    let Some(due_ms) = stamp.due_ms else {
        return Some("without x-delay-due".into());
    };
    let right_due = match when {
        When::At(at) => due_ms == at,
        When::Delay(ms) if path.from == Side::Kafka => due_ms == case.base_ms + ms,
        When::Delay(ms) => (case.base_ms + ms..=arrival.received_ms).contains(&due_ms),
    };
    if !right_due {
        return Some(format!("due {due_ms}, sent {}, {when:?}", case.base_ms));
    }
    if arrival.received_ms < due_ms || arrival.created_ms.is_some_and(|at| at < due_ms) {
        return Some(format!("early: due {due_ms}, {arrival:?}"));
    }
    let right_id = match (&case.id, &stamp.id) {
        (Some(_), Some(id)) => *id == case.name,
        (None, Some(id)) => id.starts_with('~') && id != "~old",
        (_, None) => false,
    };
    (!right_id || stamp.attempt.is_some()).then(|| format!("stamped {stamp:?}"))
}

#[tokio::test]
async fn every_direction_form_and_content() {
    let fixture = FlowFixture::new().await;
    let pairs = Side::ALL
        .iter()
        .flat_map(|&from| Side::ALL.map(|to| (from, to)));
    let paths: Vec<_> = pairs
        .map(|(from, to)| Path::new(format!("{}-to-{}", from.word(), to.word()), from, to))
        .collect();
    fixture.open(&paths).await;
    let config = paths
        .iter()
        .fold(config(&fixture), |config, path| path.configure(config, ""));
    let mut relay = Relay::start(&config).await;

    let mut sent = BTreeMap::new();
    for (at, path) in paths.iter().enumerate() {
        // Made now, so that a path's moments lie ahead however long the others took. A Kafka record is
        // a little old, as one is that waited: its delay counts from its own time.
        let mut cases = Vec::new();
        form_cases(
            at,
            path,
            now_ms() - if path.from == Side::Kafka { 150 } else { 0 },
            &mut cases,
        );
        content_cases(
            at,
            path,
            now_ms() - if path.from == Side::Kafka { 150 } else { 0 },
            &mut cases,
        );
        let messages: Vec<_> = cases
            .iter()
            .map(|case| (case.sent.clone(), case.base_ms))
            .collect();
        fixture.send(path, &messages).await;
        sent.extend(cases.into_iter().map(|case| (case.expected.case(), case)));
    }
    println!("{} cases on {} routes", sent.len(), paths.len());
    assert_eq!(sent.len(), CASES);

    fixture
        .await_cases(&sent.keys().cloned().collect::<Vec<_>>())
        .await;
    let delayed = sent.values().filter(|case| case.when.is_some()).count();
    await_metric(&relay, "published_total", &[], delayed as u32).await;
    await_metric(
        &relay,
        "passed_through_total",
        &[],
        (CASES - delayed) as u32,
    )
    .await;
    for gauge in ["pending", "in_flight", "dead"] {
        await_metric(&relay, gauge, &[], 0).await;
    }
    assert!(relay.terminate().await.success(), "a clean end");

    let mut wrong = Vec::new();
    for (name, arrivals) in fixture.arrived() {
        match (sent.get(&name), &arrivals[..]) {
            (Some(case), [once]) => {
                let judged = judge(case, &paths[case.path], once);
                wrong.extend(judged.map(|why| format!("{}: {why}", case.name)));
            }
            (case, arrivals) => wrong.push(format!("{case:?}: arrived {} times", arrivals.len())),
        }
    }
    let some = &wrong[..wrong.len().min(20)];
    assert!(
        wrong.is_empty(),
        "{} of {CASES} wrong, such as:\n{}",
        wrong.len(),
        some.join("\n")
    );
}
