//! Judgement of one run of a client: the messages that it must have led to.

use super::arrivals::{SeenAt, SeenMessage};
use super::table::BrokerKind;

/// Highest lateness that is still on time.
const MAX_LATENESS_MS: i64 = 2_000;
/// Longest time between the relay's and the tap's sight of a message on RabbitMQ, which both get at once.
const TAP_TOLERANCE_MS: i64 = 2_000;
/// Bodies that every program sends and that must arrive, each with its delay.
const DELAYED_BODIES: [(&str, Expected); 4] = [
    ("in two seconds", Expected::After(2_000)),
    ("at a moment", Expected::AtHeader),
    ("sooner", Expected::AfterCommand(3_000)),
    ("the new text", Expected::After(3_000)),
];
/// Body of the message that every program cancels.
const CANCELLED_BODY: &str = "never";
/// A cancel that comes this long before the message is due, or later, may be too late: it can be claimed already.
const TOO_LATE_MS: i64 = 500;
/// Longest delay of a message that a program sends, if it is not moved or cancelled.
pub(crate) const LONGEST_DELAY_MS: i64 = 3_000;

/// Due time of a message.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// So many ms after it was sent.
    After(i64),
    /// At the moment that its header names.
    AtHeader,
    /// So many ms after the command that moved it was sent.
    AfterCommand(i64),
}

/// Result of one run.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) faults: Vec<String>,
    /// Highest lateness.
    pub(crate) late_ms: i64,
    /// Types on the wire: of the delay, and of the moment.
    pub(crate) delay_kind: &'static str,
    pub(crate) moment_kind: &'static str,
}

/// Number of messages that must have arrived.
pub(crate) const ARRIVAL_COUNT: usize = DELAYED_BODIES.len();

/// Judges what was seen since the program started.
pub(crate) fn judge(broker: BrokerKind, started_ms: i64, seen: &[SeenMessage]) -> Judgement {
    let mut judgement = Judgement::default();
    let ingress: Vec<_> = seen
        .iter()
        .filter(|message| message.at == SeenAt::Ingress)
        .collect();
    let target: Vec<_> = seen
        .iter()
        .filter(|message| message.at == SeenAt::Target)
        .collect();
    for (body, expected) in DELAYED_BODIES {
        let arrived: Vec<_> = target
            .iter()
            .filter(|message| message.body == body)
            .collect();
        if arrived.len() != 1 {
            judgement
                .faults
                .push(format!("\"{body}\" arrived {} times", arrived.len()));
            continue;
        }
        let sent = ingress.iter().find(|message| match expected {
            Expected::AfterCommand(_) => message.header("x-delay-op") == Some("reschedule"),
            Expected::After(_) | Expected::AtHeader => message.body == body,
        });
        let Some(sent) = sent else {
            judgement
                .faults
                .push(format!("\"{body}\" was not seen on its way in"));
            continue;
        };
        judgement.judge_times(body, expected, started_ms, sent, arrived[0]);
        judgement.judge_id(body, arrived[0]);
    }
    for message in target
        .iter()
        .filter(|message| DELAYED_BODIES.iter().all(|(body, _)| *body != message.body))
    {
        judgement.judge_unexpected(message, &ingress);
    }
    judgement.judge_wire(broker, &ingress);
    judgement
}

impl Judgement {
    fn judge_times(
        &mut self,
        body: &str,
        expected: Expected,
        started_ms: i64,
        sent: &SeenMessage,
        arrived: &SeenMessage,
    ) {
        let Some(said_due) = arrived.number("x-delay-due") else {
            return self.faults.push(format!("\"{body}\" has no x-delay-due"));
        };
        let due = match expected {
            Expected::AtHeader => sent.number("x-deliver-at").unwrap_or(i64::MAX),
            Expected::After(delay) | Expected::AfterCommand(delay) => {
                let read_ms = said_due - delay;
                let is_near = (read_ms - sent.received_ms).abs() <= TAP_TOLERANCE_MS;
                // RabbitMQ keeps no moment: the relay's is between the program's start and the tap's sight of it.
                if sent.produced_ms.is_none() && (read_ms < started_ms || !is_near) {
                    self.faults.push(format!(
                        "\"{body}\" counts from {read_ms}, seen {}",
                        sent.received_ms
                    ));
                }
                sent.produced_ms
                    .map_or(said_due, |produced| produced + delay)
            }
        };
        if said_due != due {
            self.faults
                .push(format!("\"{body}\" was due at {due}, says {said_due}"));
        }
        let late = arrived.received_ms - due;
        if !(0..=MAX_LATENESS_MS).contains(&late) {
            self.faults
                .push(format!("\"{body}\" came {late} ms after it was due"));
        }
        self.late_ms = self.late_ms.max(late);
    }

    /// A message that must not arrive, unless the broker had the cancel from its program when it was too late.
    fn judge_unexpected(&mut self, arrived: &SeenMessage, ingress: &[&SeenMessage]) {
        let mut fault = format!("\"{}\" arrived and must not", arrived.body);
        let is_cancel = |message: &&&SeenMessage| message.header("x-delay-op") == Some("cancel");
        let cancel = ingress.iter().find(is_cancel);
        if arrived.body == CANCELLED_BODY
            && let (Some(cancel), Some(due)) = (cancel, arrived.number("x-delay-due"))
        {
            let early_ms = due - cancel.received_ms;
            if early_ms <= TOO_LATE_MS {
                return;
            }
            fault += &format!(": its cancel was there {early_ms} ms before it was due");
        }
        self.faults.push(fault);
    }

    fn judge_id(&mut self, body: &str, arrived: &SeenMessage) {
        let id = arrived.header("x-delay-id").unwrap_or_default();
        let is_right = match body {
            "sooner" => id == "order-8",
            "the new text" => id == "order-11",
            _ => id.starts_with('~'),
        };
        if !is_right {
            self.faults
                .push(format!("\"{body}\" has the x-delay-id \"{id}\""));
        }
        if !arrived.is_persistent {
            self.faults.push(format!("\"{body}\" arrived transient"));
        }
    }

    fn judge_wire(&mut self, broker: BrokerKind, ingress: &[&SeenMessage]) {
        for message in ingress.iter().filter(|message| !message.is_persistent) {
            self.faults
                .push(format!("\"{}\" was sent transient", message.body));
        }
        let kind = |body: &str, name: &str| {
            let message = ingress.iter().find(|message| message.body == body)?;
            message.headers.get(name).map(|header| header.kind)
        };
        self.delay_kind = kind("in two seconds", "x-delay").unwrap_or("nothing");
        self.moment_kind = kind("at a moment", "x-deliver-at").unwrap_or("nothing");
        let known = ["bytes", "long string"].contains(&self.delay_kind)
            || self.delay_kind.ends_with("integer");
        if !known || (broker == BrokerKind::Kafka && self.delay_kind != "bytes") {
            self.faults
                .push(format!("x-delay went out as {}", self.delay_kind));
        }
    }
}
