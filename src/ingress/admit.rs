//! Admit: read the headers of one record and decide what it is. Pure.

use std::sync::Arc;

use super::headers::{self, Found, Op};
use crate::domain::route::DelayFrom;
use crate::domain::{
    Arrival, Header, InvalidReason, Message, Route, Target, Text, UnixMs, duration, message::stamped,
};

/// What a record is, by its headers.
#[derive(Clone, Debug, PartialEq)]
pub enum Admitted {
    /// No delay header: to be published at once, byte for byte (only `x-delay-target` is taken out).
    PassThrough {
        /// The route's own target, or the allowed one it names.
        target: Arc<Target>,
        /// The message.
        message: Message,
    },
    /// To be published at its moment, without its delay headers.
    Delayed {
        /// The moment; it may be past already.
        due: UnixMs,
        /// The producer's own name for it.
        id: Option<Text>,
        /// The route's own target, or the allowed one it names.
        target: Arc<Target>,
        /// The message.
        message: Message,
    },
    /// `x-delay-op: cancel`
    Cancel {
        /// The name.
        id: Text,
    },
    /// `x-delay-op: reschedule`
    Reschedule {
        /// The name.
        id: Text,
        /// The new moment.
        due: UnixMs,
        /// Where the message goes if the name is unknown and the command becomes a message.
        target: Arc<Target>,
        /// The command's own body and headers, for that case.
        message: Message,
    },
    /// The route's `on_invalid` decides.
    Invalid {
        /// The contract's reason.
        reason: InvalidReason,
        /// What exactly, for a person; quotes at most 64 bytes of the input, escaped.
        error: Text,
        /// The message as it came, all its headers included.
        message: Message,
    },
}

/// Reads a message's delay headers and decides what it is.
///
/// `malformed` is what the broker's client could not read of its headers, `produced` when it was
/// produced (if its broker says so), `arrival` when it was read.
///
/// The limits hold for every message that is read, with a delay header or without. Beyond them only
/// what is needed is judged, so that a refusal always concerns what was asked for: of a message that
/// passes through the target, of a cancel the id. If several things are wrong, the first in this order
/// is the reason: `bad_headers`, `too_big`, `ambiguous`, `bad_op`, `bad_id`, `forbidden_target`,
/// `bad_delay` or `bad_time`, `too_far`.
pub fn admit(
    mut message: Message,
    malformed: Option<Text>,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
) -> Admitted {
    let decision = match within_limits(&message, malformed, route) {
        Ok(()) => decide(&message, produced, route, arrival),
        Err(refused) => Err(refused),
    };
    match decision {
        Ok(Decision::PassThrough { target, named }) => {
            if named {
                message.headers.retain(|h| !headers::is(h, &route.policy.headers.target));
            }
            Admitted::PassThrough { target, message }
        }
        Ok(Decision::Delayed { due, id, target }) => {
            message.headers.retain(|h| !is_ours(h, route));
            Admitted::Delayed { due, id, target, message }
        }
        Ok(Decision::Cancel { id }) => Admitted::Cancel { id },
        Ok(Decision::Reschedule { id, due, target }) => {
            message.headers.retain(|h| !is_ours(h, route));
            Admitted::Reschedule { id, due, target, message }
        }
        Err((reason, error)) => Admitted::Invalid { reason, error: Text::from(error), message },
    }
}

/// What is decided, the message itself apart.
enum Decision {
    PassThrough { target: Arc<Target>, named: bool },
    Delayed { due: UnixMs, id: Option<Text>, target: Arc<Target> },
    Cancel { id: Text },
    Reschedule { id: Text, due: UnixMs, target: Arc<Target> },
}

type Refused = (InvalidReason, String);

pub(super) fn within_limits(
    message: &Message,
    malformed: Option<Text>,
    route: &Route,
) -> Result<(), Refused> {
    if let Some(malformed) = malformed {
        return Err((InvalidReason::BadHeaders, malformed.as_str().to_owned()));
    }
    // Kafka's client ends a name at a NUL: the header would arrive under another one.
    let is_cut = |header: &Header| header.name.as_str().contains('\0');
    if matches!(*route.to, Target::Kafka { .. }) && message.headers.iter().any(is_cut) {
        return Err((InvalidReason::BadHeaders, "a header's name holds a NUL byte".to_owned()));
    }
    let (bytes, most) = (message.headers_len(), route.policy.max_headers);
    if bytes > most {
        let error = format!("headers of {bytes} bytes, over max_headers of {most}");
        return Err((InvalidReason::BadHeaders, error));
    }
    let (bytes, most) = (message.body_len(), route.policy.max_size);
    if bytes > most {
        return Err((InvalidReason::TooBig, format!("a body of {bytes} bytes, over max_size of {most}")));
    }
    Ok(())
}

fn decide(
    message: &Message,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
) -> Result<Decision, Refused> {
    let names = &route.policy.headers;
    let found = headers::find(&message.headers, names);
    // Each may stand once, needed or not: two ids on a message that passes through are no less odd.
    if let Some(name) = found.repeated {
        return Err((InvalidReason::Ambiguous, format!("{name} stands there twice")));
    }
    if found.delay.is_some() && found.deliver_at.is_some() {
        return Err((InvalidReason::Ambiguous, format!("both {} and {}", names.delay, names.deliver_at)));
    }
    let origin = message.origin;
    let op = found.op.map(|value| headers::op(value, origin)).transpose();
    let op = op.map_err(|e| (InvalidReason::BadOp, format!("{}: {e}", names.op)))?;
    let delayed = found.delay.is_some() || found.deliver_at.is_some();
    if op.is_none() && !delayed {
        // An id alone asks for nothing: what Postdate published may pass through again as it is.
        let target = target(&found, message, route)?;
        return Ok(Decision::PassThrough { target, named: found.target.is_some() });
    }
    let bad_id = |e: String| (InvalidReason::BadId, format!("{}: {e}", names.id));
    let id = found.id.map(|value| headers::id(value, origin)).transpose().map_err(bad_id)?;
    let Some(op) = op else {
        let target = target(&found, message, route)?;
        let due = due(&found, message, produced, route, arrival)?;
        return Ok(Decision::Delayed { due, id: id.flatten(), target });
    };
    let id = match id {
        Some(Some(id)) => id,
        Some(None) => {
            return Err(bad_id(
                "an id that begins with ~ was made by Postdate, no command takes it".to_owned(),
            ));
        }
        None => return Err(bad_id(format!("missing, {} needs it", names.op))),
    };
    if op == Op::Cancel {
        // A producer may cancel by sending the same message again with this one header more: its
        // delay and target ask for nothing then, and must not keep it from being cancelled.
        return Ok(Decision::Cancel { id });
    }
    let target = target(&found, message, route)?;
    Ok(Decision::Reschedule { id, due: due(&found, message, produced, route, arrival)?, target })
}

/// The route's own target, or the allowed one that the message names.
fn target(found: &Found<'_>, message: &Message, route: &Route) -> Result<Arc<Target>, Refused> {
    let Some(value) = found.target else { return Ok(route.to.clone()) };
    let text = headers::text(value, message.origin).and_then(Text::from_utf8);
    let target = text.and_then(|name| route.named_target(name.as_str()).cloned());
    target.ok_or_else(|| {
        let named = headers::describe(value, message.origin);
        let name = &route.policy.headers.target;
        (InvalidReason::ForbiddenTarget, format!("{name}: {named} is neither the route's target nor allowed"))
    })
}

/// When the message is to be published.
fn due(
    found: &Found<'_>,
    message: &Message,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
) -> Result<UnixMs, Refused> {
    let policy = &route.policy;
    let names = &policy.headers;
    let (due, name) = match (found.delay, found.deliver_at) {
        (Some(value), _) => {
            let delay = headers::delay_ms(value, message.origin);
            let delay = delay.map_err(|e| (InvalidReason::BadDelay, format!("{}: {e}", names.delay)))?;
            let from = base(produced, policy.delay_from, arrival.latest);
            // Nothing to wait for, and what arrived is due, though `latest` may not have come yet.
            let nothing = delay == 0 && from == arrival.latest;
            (if nothing { arrival.earliest } else { from.plus(delay) }, &names.delay)
        }
        (None, Some(value)) => {
            let due = headers::deliver_at(value, message.origin);
            (
                due.map_err(|e| (InvalidReason::BadTime, format!("{}: {e}", names.deliver_at)))?,
                &names.deliver_at,
            )
        }
        // Only a reschedule comes here without either.
        (None, None) => {
            let error = format!("{} or {}: missing, {} needs one", names.delay, names.deliver_at, names.op);
            return Err((InvalidReason::BadDelay, error));
        }
    };
    let ahead = due.since(arrival.latest);
    if ahead > policy.max_delay_ms {
        let (ahead, most) = (duration::render(ahead), duration::render(policy.max_delay_ms));
        return Err((InvalidReason::TooFar, format!("{name}: due in {ahead}, over max_delay of {most}")));
    }
    // RFC 3339 reaches back to the year 0. All that is past is due at once, and the store need not
    // know of moments before 1970.
    Ok(due.max(UnixMs(0)))
}

/// The moment a delay counts from. What lies in the future, or before 1970 (Kafka's -1: no timestamp),
/// says nothing about when the message was produced.
fn base(produced: Option<UnixMs>, from: DelayFrom, arrival: UnixMs) -> UnixMs {
    let known = produced.filter(|at| from == DelayFrom::Produced && (UnixMs(0)..=arrival).contains(at));
    known.unwrap_or(arrival)
}

/// Whether a header is one that a delayed message does not keep: the five of the route, and the three
/// that are set on the way out (an inbound one is from an earlier life of the message).
pub(super) fn is_ours(header: &Header, route: &Route) -> bool {
    let names = &route.policy.headers;
    [&names.delay, &names.deliver_at, &names.id, &names.op, &names.target]
        .iter()
        .any(|n| headers::is(header, n))
        || stamped::ALL.iter().any(|n| headers::is(header, n))
}

#[cfg(test)]
mod tests;
