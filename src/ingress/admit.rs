//! Admission of one record: reads its headers and decides what it is. Pure.

use std::sync::Arc;

use super::Missing;
use super::headers::{self, DelayHeader, DelayHeaders, ExpiryHeader, HeaderCommand, Said};
use crate::domain::route::DelayFrom;
use crate::domain::{
    Arrival, ConsumerRetry, DelayRequest, Expiry, Header, InvalidReason, Message, RequestedTime,
    Route, Target, Text, UnixMs, duration, message::stamped,
};

/// The part of a wait between a consumer's retries by which it is shorter at most.
const RETRY_SPREAD: i64 = 5;

/// The kind of a record, by its headers.
#[derive(Clone, Debug, PartialEq)]
pub enum Admitted {
    /// A message without a delay header, to be published at once, byte for byte (without `x-delay-target`).
    PassThrough {
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
        /// The message.
        message: Message,
    },
    /// A message to be published at its due time, without its delay headers.
    Delayed {
        /// The due time, which may be past already.
        due: UnixMs,
        /// What was asked for.
        request: DelayRequest,
        /// The producer's own name for the message.
        id: Option<Text>,
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
        /// The message.
        message: Message,
        /// By how much its due time may be put off to spread what waits alike, ms; beside the route's jitter.
        spread_ms: i64,
    },
    /// A message that consumers have given back more often than its route allows. It becomes a dead letter.
    Spent {
        /// The producer's own name for the message.
        id: Option<Text>,
        /// What was asked for.
        request: DelayRequest,
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
        /// The message without its delay headers.
        message: Message,
    },
    /// `x-delay-op: cancel`
    Cancel {
        /// The name of the message to cancel.
        id: Text,
    },
    /// `x-delay-op: reschedule` or `replace`
    Change {
        /// The message takes the place of the pending one. Otherwise that one only gets the new due time.
        replaces: bool,
        /// The name of the message to change.
        id: Text,
        /// The new due time.
        due: UnixMs,
        /// What was asked for.
        request: DelayRequest,
        /// Target of the message that the command brings.
        target: Arc<Target>,
        /// The command's own body and headers. It is stored if the name is unknown.
        message: Message,
    },
    /// An invalid message. The route's `on_invalid` decides what becomes of it.
    Invalid {
        /// The reason, as documented.
        reason: InvalidReason,
        /// The exact error, for a person. Quotes at most 64 bytes of the input, escaped.
        error: Text,
        /// The message as it came, with all of its headers.
        message: Message,
    },
}

/// Reads a message's delay headers and decides what it is.
///
/// `malformed` is the reason why the broker's client could not read the headers, `produced` the time of
/// production (if the broker says so), `arrival` the time at which the record was read.
///
/// The limits apply to every message, with a delay header or without. Beyond them only what is needed is
/// judged, so that a refusal always concerns what was asked for: the target of a passing message, the id of a
/// cancel. If several things are wrong, the first in this order is the reason: `bad_headers`, `too_big`,
/// `ambiguous`, `bad_op`, `bad_id`, `forbidden_target`, `bad_retry`, `bad_delay` or `bad_time`, `too_far`, `bad_expiry`.
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
        Ok(AdmitDecision::PassThrough { target, named }) => {
            if named {
                message
                    .headers
                    .retain(|h| !headers::has_name(h, &route.policy.headers.target));
            }
            Admitted::PassThrough { target, message }
        }
        Ok(AdmitDecision::Delayed {
            due,
            request,
            spread_ms,
            id,
            target,
        }) => {
            message.headers.retain(|h| !is_delay_header(h, route));
            Admitted::Delayed {
                due,
                request,
                id,
                target,
                message,
                spread_ms,
            }
        }
        Ok(AdmitDecision::Spent {
            id,
            request,
            target,
        }) => {
            message.headers.retain(|h| !is_delay_header(h, route));
            Admitted::Spent {
                id,
                request,
                target,
                message,
            }
        }
        Ok(AdmitDecision::Cancel { id }) => Admitted::Cancel { id },
        Ok(AdmitDecision::Change {
            replaces,
            id,
            due,
            request,
            target,
        }) => {
            message.headers.retain(|h| !is_delay_header(h, route));
            Admitted::Change {
                replaces,
                id,
                due,
                request,
                target,
                message,
            }
        }
        Err((reason, error)) => Admitted::Invalid {
            reason,
            error: Text::from(error),
            message,
        },
    }
}

/// The decision about a message that lacks a part of its record.
pub(super) fn refuse_incomplete(message: Message, missing: Missing, route: &Route) -> Admitted {
    let (reason, error) = match missing {
        Missing::Headers(malformed)
        | Missing::Body {
            malformed: Some(malformed),
            ..
        } => (InvalidReason::BadHeaders, malformed),
        Missing::Body {
            bytes,
            malformed: None,
        } => (InvalidReason::TooBig, too_big(bytes, route).into()),
        Missing::Everything(why) => (InvalidReason::Undecodable, why),
    };
    Admitted::Invalid {
        reason,
        error,
        message,
    }
}

fn too_big(bytes: u64, route: &Route) -> String {
    let most = route.policy.max_size;
    format!("a body of {bytes} bytes, over max_size of {most}")
}

/// An [`Admitted`] without its message.
enum AdmitDecision {
    PassThrough {
        target: Arc<Target>,
        named: bool,
    },
    Delayed {
        due: UnixMs,
        request: DelayRequest,
        spread_ms: i64,
        id: Option<Text>,
        target: Arc<Target>,
    },
    Spent {
        id: Option<Text>,
        request: DelayRequest,
        target: Arc<Target>,
    },
    Cancel {
        id: Text,
    },
    Change {
        replaces: bool,
        id: Text,
        due: UnixMs,
        request: DelayRequest,
        target: Arc<Target>,
    },
}

type InvalidCause = (InvalidReason, String);

pub(super) fn within_limits(
    message: &Message,
    malformed: Option<Text>,
    route: &Route,
) -> Result<(), InvalidCause> {
    if let Some(malformed) = malformed {
        return Err((InvalidReason::BadHeaders, malformed.as_str().to_owned()));
    }
    // Kafka's client cuts a name at a NUL byte: the header would arrive under another name.
    let is_cut = |header: &Header| header.name.as_str().contains('\0');
    if matches!(*route.to, Target::Kafka { .. }) && message.headers.iter().any(is_cut) {
        return Err((
            InvalidReason::BadHeaders,
            "a header's name holds a NUL byte".to_owned(),
        ));
    }
    let bytes = message.headers_len();
    let most = route.policy.max_headers;
    if bytes > most {
        let error = format!("headers of {bytes} bytes, over max_headers of {most}");
        return Err((InvalidReason::BadHeaders, error));
    }
    let bytes = message.body_len();
    if bytes > route.policy.max_size {
        return Err((InvalidReason::TooBig, too_big(bytes as u64, route)));
    }
    Ok(())
}

fn decide(
    message: &Message,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
) -> Result<AdmitDecision, InvalidCause> {
    let names = &route.policy.headers;
    let found = headers::find_delay_headers(&message.headers, &route.policy);
    // Each header may appear once, needed or not: two ids on a passing message are no less odd.
    if let Some(name) = found.repeated {
        return Err((
            InvalidReason::Ambiguous,
            format!("{name} appears more than once"),
        ));
    }
    if let (Some(delay), Some(deliver_at)) = (found.delay.first(), found.deliver_at.first()) {
        return Err((
            InvalidReason::Ambiguous,
            format!("both {} and {}", delay.name, deliver_at.name),
        ));
    }
    let origin = message.origin;
    let op = found.op.map(|value| headers::op(value, origin)).transpose();
    let op = op.map_err(|e| (InvalidReason::BadOp, format!("{}: {e}", names.op)))?;
    if op.is_some() && !route.policy.commands {
        return Err((
            InvalidReason::BadOp,
            format!("{}: the route takes no commands", names.op),
        ));
    }
    let delayed = found.delay.first().is_some() || found.deliver_at.first().is_some();
    if op.is_none() && !delayed && route.policy.consumer_retry.is_none() {
        if let Some(name) = headers::untranslated(&message.headers, &route.policy) {
            let why = "it holds a delay header of an AMQP 1.0 client, which RabbitMQ before 4.0 does not translate";
            return Err((InvalidReason::BadHeaders, format!("{name}: {why}")));
        }
        // An id alone asks for nothing: a message that Postdate published may pass through again unchanged.
        let target = target(&found, message, route)?;
        return Ok(AdmitDecision::PassThrough {
            target,
            named: found.target.is_some(),
        });
    }
    let id = said(&found.id, InvalidReason::BadId, |header| {
        headers::id(header.value, origin)
    })?;
    let Some(op) = op else {
        let id = id.map(|(id, _)| id);
        let target = target(&found, message, route)?;
        let given_back = given_back(message, route)?;
        if let Some((retry, count)) = given_back
            && count > retry.attempts
        {
            let request = DelayRequest {
                received: arrival.earliest,
                time: RequestedTime::Delay(0),
                expires: None,
                given_back: count,
            };
            return Ok(AdmitDecision::Spent {
                id,
                request,
                target,
            });
        }
        let wait = given_back.map(|(retry, count)| retry.wait_ms(count));
        let AskedTime {
            due,
            mut request,
            spread_ms,
        } = due(&found, message, produced, route, arrival, wait)?;
        request.given_back = given_back.map_or(0, |(_, count)| count);
        return Ok(AdmitDecision::Delayed {
            due,
            request,
            spread_ms,
            id,
            target,
        });
    };
    let Some((id, _)) = id else {
        let why = if found.id.first().is_some() {
            "an id that begins with ~ was made by Postdate, no command takes it".to_owned()
        } else {
            format!("missing, {} needs it", names.op)
        };
        return Err((InvalidReason::BadId, format!("{}: {why}", names.id)));
    };
    if op == HeaderCommand::Cancel {
        // A producer may cancel by sending the same message again with this one header more. Its delay and
        // target then ask for nothing, and must not keep it from being cancelled.
        return Ok(AdmitDecision::Cancel { id });
    }
    let target = target(&found, message, route)?;
    let AskedTime { due, request, .. } = due(&found, message, produced, route, arrival, None)?;
    Ok(AdmitDecision::Change {
        replaces: op == HeaderCommand::Replace,
        id,
        due,
        request,
        target,
    })
}

/// What the headers about one thing say, and the name of the first that says it; `None`: nothing. Where several do, they
/// must say the same.
fn said<'a, T: PartialEq>(
    said: &Said<'a>,
    bad: InvalidReason,
    read: impl Fn(DelayHeader<'a>) -> Result<Option<T>, String>,
) -> Result<Option<(T, &'a str)>, InvalidCause> {
    let mut first: Option<(T, &str)> = None;
    for header in said.iter() {
        let name = header.name;
        let Some(value) = read(header).map_err(|e| (bad, format!("{name}: {e}")))? else {
            continue;
        };
        match &first {
            None => first = Some((value, name)),
            Some((other, _)) if *other == value => {}
            Some((_, other)) => {
                let error = format!("{other} and {name} say different things");
                return Err((InvalidReason::Ambiguous, error));
            }
        }
    }
    Ok(first)
}

/// The route's own target, or the allowed one that the message names.
fn target(
    found: &DelayHeaders<'_>,
    message: &Message,
    route: &Route,
) -> Result<Arc<Target>, InvalidCause> {
    let Some(value) = found.target else {
        let forbidden = |why: &Text| (InvalidReason::ForbiddenTarget, why.as_str().to_owned());
        return route.own_target().cloned().map_err(forbidden);
    };
    let text = headers::text(value, message.origin).and_then(Text::from_utf8);
    let target = text.and_then(|name| route.named_target(name.as_str()).cloned());
    target.ok_or_else(|| {
        let named = headers::describe(value, message.origin);
        let name = &route.policy.headers.target;
        (
            InvalidReason::ForbiddenTarget,
            format!("{name}: {named} is neither the route's target nor allowed"),
        )
    })
}

/// On a route of consumers' retries: how often the message was given back, this time included.
fn given_back(
    message: &Message,
    route: &Route,
) -> Result<Option<(ConsumerRetry, u32)>, InvalidCause> {
    let Some(retry) = route.policy.consumer_retry else {
        return Ok(None);
    };
    let is_count = |header: &&Header| headers::has_name(header, stamped::RETRY);
    let mut counts = message.headers.iter().filter(is_count);
    let before = counts.next().map(|header| {
        let count = headers::retry_count(&header.value, message.origin);
        count.map_err(|e| (InvalidReason::BadRetry, format!("{}: {e}", stamped::RETRY)))
    });
    if counts.next().is_some() {
        let error = format!("{} appears more than once", stamped::RETRY);
        return Err((InvalidReason::Ambiguous, error));
    }
    let before = before.transpose()?.unwrap_or(0);
    Ok(Some((retry, before + 1)))
}

/// When a message is due, and what was asked for.
struct AskedTime {
    due: UnixMs,
    request: DelayRequest,
    /// By how much it may be put off, beside the route's jitter, ms.
    spread_ms: i64,
}

/// The due time of a message. `wait_ms`: how long one waits that asks for nothing itself.
fn due(
    found: &DelayHeaders<'_>,
    message: &Message,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
    wait_ms: Option<i64>,
) -> Result<AskedTime, InvalidCause> {
    let policy = &route.policy;
    let names = &policy.headers;
    let origin = message.origin;
    let delay = said(&found.delay, InvalidReason::BadDelay, |header| {
        headers::delay_ms(header.value, origin).map(Some)
    })?;
    let at = said(&found.deliver_at, InvalidReason::BadTime, |header| {
        headers::deliver_at(header.value, origin, header.style).map(Some)
    })?;
    let mut spread_ms = 0;
    let (due, time, name) = match (delay, at, wait_ms) {
        (Some((delay, name)), ..) => {
            let from = delay_base(produced, policy.delay_from, arrival.latest);
            // A delay of 0 from the arrival is due on arrival. `earliest` makes it so: `latest` may not have
            // come yet.
            let nothing = delay == 0 && from == arrival.latest;
            let due = if nothing {
                arrival.earliest
            } else {
                from.plus(delay)
            };
            (due, RequestedTime::Delay(delay), name)
        }
        (None, Some((at, name)), _) => (at, RequestedTime::At(at), name),
        (None, None, Some(wait)) => {
            spread_ms = wait / RETRY_SPREAD;
            let from = delay_base(produced, policy.delay_from, arrival.latest);
            let due = from.plus(wait - spread_ms);
            (due, RequestedTime::Delay(wait), "consumer_retry")
        }
        // Only a command can have neither header.
        (None, None, None) => {
            let error = format!(
                "{} or {}: missing, {} needs one",
                names.delay, names.deliver_at, names.op
            );
            return Err((InvalidReason::BadDelay, error));
        }
    };
    let ahead = due.since(arrival.latest);
    if ahead > policy.max_delay_ms {
        let ahead = duration::words(ahead);
        let most = duration::render(policy.max_delay_ms);
        return Err((
            InvalidReason::TooFar,
            format!("{name}: due in {ahead}, over max_delay of {most}"),
        ));
    }
    let request = DelayRequest {
        received: arrival.earliest,
        time,
        expires: expiry(found, message, route, due)?,
        given_back: 0,
    };
    // RFC 3339 reaches back to the year 0. Every past due time means now, and the store need not know times
    // before 1970.
    Ok(AskedTime {
        due: due.max(UnixMs(0)),
        request,
        spread_ms,
    })
}

/// How long a message that is due at this moment is wanted: as it says itself, else as its route says.
fn expiry(
    found: &DelayHeaders<'_>,
    message: &Message,
    route: &Route,
    due: UnixMs,
) -> Result<Option<Expiry>, InvalidCause> {
    let origin = message.origin;
    let asked = said(&found.expires, InvalidReason::BadExpiry, |header| {
        headers::expires(header.value, origin, header.style).map(Some)
    })?;
    let Some((asked, name)) = asked else {
        let ms = route.policy.max_lateness_ms;
        return Ok((ms > 0).then(|| Expiry::after(due, ms)));
    };
    let expiry = match asked {
        ExpiryHeader::After(ms) => Expiry::after(due, ms),
        ExpiryHeader::At(last) => Expiry::at(last),
    };
    if expiry.last > due {
        Ok(Some(expiry))
    } else {
        let error = format!("{name}: it ends at the due time or before");
        Err((InvalidReason::BadExpiry, error))
    }
}

/// The time that a delay counts from.
fn delay_base(produced: Option<UnixMs>, from: DelayFrom, arrival: UnixMs) -> UnixMs {
    match from {
        DelayFrom::Produced => credible(produced, arrival).unwrap_or(arrival),
        DelayFrom::Arrival => arrival,
    }
}

/// The time of production, unless it cannot be one: a time in the future, or a number that is too small for Unix
/// milliseconds (Kafka's -1 for "no timestamp", 0, seconds).
pub(super) fn credible(produced: Option<UnixMs>, now: UnixMs) -> Option<UnixMs> {
    produced.filter(|at| (headers::MIN_UNIX_MS..=now.0).contains(&at.0))
}

/// Reports whether a delayed message loses this header: the delay headers of the route and of its dialects, and the three that
/// Postdate sets when it publishes (an inbound one is from an earlier life of the message).
pub(super) fn is_delay_header(header: &Header, route: &Route) -> bool {
    let names = &route.policy.headers;
    [
        &names.delay,
        &names.deliver_at,
        &names.id,
        &names.op,
        &names.target,
        &names.expires,
    ]
    .iter()
    .any(|n| headers::has_name(header, n))
        || headers::is_taken_from_dialect(header, route.policy.dialects)
        || stamped::ALL.iter().any(|n| headers::has_name(header, n))
        || route.policy.consumer_retry.is_some() && headers::has_name(header, stamped::RETRY)
}

#[cfg(test)]
mod tests;
