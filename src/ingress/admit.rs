//! Admission of one record: reads its headers and decides what it is. Pure.

use std::sync::Arc;

use super::Missing;
use super::headers::{self, DelayHeader, DelayHeaders, ExpiryHeader, HeaderCommand, Said};
use crate::domain::moment::MIN_UNIX_MS;
use crate::domain::route::DelayFrom;
use crate::domain::{
    Arrival, ConsumerRetry, DelayRequest, Expiry, Header, InvalidReason, Message, OnInvalid,
    RequestedTime, Route, Target, Text, UnixMs, duration, message::stamped,
};

/// The part of a wait between a consumer's retries by which it is shorter at most.
const RETRY_SPREAD: i64 = 5;

/// What is to become of a record, by its headers.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// The message has no delay header, and is published at once, byte for byte (without `x-delay-target`).
    PassThrough {
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
    },
    /// The message is published at its due time.
    Delayed {
        /// When it is due.
        asked: AskedTime,
        /// The producer's own name for the message.
        id: Option<Text>,
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
    },
    /// Consumers have given the message back more often than its route allows. It becomes a dead letter.
    Spent {
        /// The producer's own name for the message.
        id: Option<Text>,
        /// How often it was given back. What it asks for itself does not count any more.
        request: DelayRequest,
        /// The route's own target, or the allowed one that the message names.
        target: Arc<Target>,
    },
    /// `x-delay-op: cancel`
    Cancel {
        /// The name of the message to cancel.
        id: Text,
    },
    /// `x-delay-op: reschedule` or `replace`. The command's own message is stored if the name is unknown.
    Change {
        /// The message takes the place of the pending one. Otherwise that one only gets the new due time.
        replaces: bool,
        /// The name of the message to change.
        id: Text,
        /// The new due time.
        asked: AskedTime,
        /// Target of the message that the command brings.
        target: Arc<Target>,
    },
    /// The message is invalid. The route's `on_invalid` decides what becomes of it.
    Invalid {
        /// The reason, as documented.
        reason: InvalidReason,
        /// The exact error, for a person. Quotes at most 64 bytes of the input, escaped.
        error: Text,
    },
}

/// When a message is due, and what was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AskedTime {
    /// The due time, which may be past already.
    pub due: UnixMs,
    /// What was asked for.
    pub request: DelayRequest,
    /// By how much the due time may be put off to spread what waits alike, ms; beside the route's jitter.
    pub spread_ms: i64,
}

/// Reads a message's delay headers and decides what becomes of it. Returns the message as it goes on: without its delay
/// headers, or as it came if it is invalid.
///
/// `malformed` is the reason why the broker's client could not read the headers, `produced` the time of
/// production (if the broker says so), `arrival` the time at which the record was read.
///
/// The limits apply to every message, with a delay header or without. Beyond them only what is needed is
/// judged, so that a refusal always concerns what was asked for: the target of a passing message, the id of a
/// cancel. If several things are wrong, the first in this order is the reason: `bad_headers`, `too_big`,
/// `ambiguous`, `bad_op`, `bad_id`, `forbidden_target`, `bad_retry`, `bad_delay` or `bad_time`, `too_far`, `bad_expiry`.
/// Headers for one thing that say different things are `ambiguous` where that thing is judged.
pub fn admit(
    mut message: Message,
    malformed: Option<Text>,
    produced: Option<UnixMs>,
    route: &Route,
    arrival: Arrival,
) -> (Admission, Message) {
    let decision = within_limits(&message, malformed, route).and_then(|()| {
        let found = headers::find_delay_headers(&message.headers, &route.policy);
        let record = RecordHeaders {
            found,
            message: &message,
            produced,
            route,
            arrival,
        };
        record.decide()
    });
    let admission = decision.unwrap_or_else(|(reason, error)| Admission::Invalid {
        reason,
        error: error.into(),
    });
    match admission {
        Admission::Invalid { .. } => {}
        Admission::PassThrough { .. } => message
            .headers
            .retain(|header| !headers::has_name(header, &route.policy.headers.target)),
        _ => message
            .headers
            .retain(|header| !is_delay_header(header, route)),
    }
    (admission, message)
}

/// The decision about a message that lacks a part of its record.
pub(super) fn refuse_incomplete(missing: Missing, route: &Route) -> Admission {
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
    Admission::Invalid { reason, error }
}

/// What becomes of an invalid message. Without its headers, its body or a target it cannot be published byte for byte,
/// so it is kept for a person instead.
pub(super) fn on_invalid(route: &Route, incomplete: bool) -> OnInvalid {
    match route.policy.on_invalid {
        OnInvalid::PassThrough if incomplete || route.own_target().is_err() => {
            OnInvalid::DeadLetter
        }
        policy => policy,
    }
}

fn too_big(bytes: u64, route: &Route) -> String {
    let most = route.policy.max_size;
    format!("a body of {bytes} bytes, over max_size of {most}")
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

/// The delay headers of one record, and all that decides what they mean.
struct RecordHeaders<'a> {
    found: DelayHeaders<'a>,
    message: &'a Message,
    produced: Option<UnixMs>,
    route: &'a Route,
    arrival: Arrival,
}

impl RecordHeaders<'_> {
    fn decide(&self) -> Result<Admission, InvalidCause> {
        self.refuse_ambiguous()?;
        let op = self.op()?;
        if op.is_none() && !self.asks_for_time() && self.route.policy.consumer_retry.is_none() {
            return self.pass_through();
        }
        let id = said(&self.found.id, InvalidReason::BadId, |header| {
            headers::id(header.value, self.message.origin)
        })?;
        let id = id.map(|(id, _)| id);
        match op {
            Some(op) => self.command(op, id),
            None => self.delay(id),
        }
    }

    fn asks_for_time(&self) -> bool {
        self.found.delay.first().is_some() || self.found.deliver_at.first().is_some()
    }

    /// Each header may appear once, needed or not: two ids on a passing message are no less odd.
    fn refuse_ambiguous(&self) -> Result<(), InvalidCause> {
        let error = if let Some(name) = self.found.repeated {
            format!("{name} appears more than once")
        } else if self.route.policy.consumer_retry.is_some() && self.retry_counts().count() > 1 {
            format!("{} appears more than once", stamped::RETRY)
        } else if let (Some(delay), Some(deliver_at)) =
            (self.found.delay.first(), self.found.deliver_at.first())
        {
            format!("both {} and {}", delay.name, deliver_at.name)
        } else {
            return Ok(());
        };
        Err((InvalidReason::Ambiguous, error))
    }

    fn op(&self) -> Result<Option<HeaderCommand>, InvalidCause> {
        let Some(value) = self.found.op else {
            return Ok(None);
        };
        let name = &self.route.policy.headers.op;
        let op = headers::op(value, self.message.origin)
            .map_err(|e| (InvalidReason::BadOp, format!("{name}: {e}")))?;
        if !self.route.policy.commands {
            let error = format!("{name}: the route takes no commands");
            return Err((InvalidReason::BadOp, error));
        }
        Ok(Some(op))
    }

    /// An id alone asks for nothing: a message that Postdate published may pass through again unchanged.
    fn pass_through(&self) -> Result<Admission, InvalidCause> {
        if let Some(name) = headers::untranslated(&self.message.headers, &self.route.policy) {
            let why = "it holds a delay header of an AMQP 1.0 client, which RabbitMQ before 4.0 does not translate";
            return Err((InvalidReason::BadHeaders, format!("{name}: {why}")));
        }
        let target = self.target()?;
        Ok(Admission::PassThrough { target })
    }

    fn delay(&self, id: Option<Text>) -> Result<Admission, InvalidCause> {
        let target = self.target()?;
        let given_back = self.given_back()?;
        if let Some((retry, count)) = given_back
            && count > retry.attempts
        {
            let request = DelayRequest {
                received: self.arrival.earliest,
                time: RequestedTime::Delay(0),
                expires: None,
                given_back: count,
            };
            return Ok(Admission::Spent {
                id,
                request,
                target,
            });
        }
        let wait = given_back.map(|(retry, count)| retry.wait_ms(count));
        let mut asked = self.due(wait)?;
        asked.request.given_back = given_back.map_or(0, |(_, count)| count);
        Ok(Admission::Delayed { asked, id, target })
    }

    fn command(&self, op: HeaderCommand, id: Option<Text>) -> Result<Admission, InvalidCause> {
        let names = &self.route.policy.headers;
        let Some(id) = id else {
            let why = if self.found.id.first().is_some() {
                "an id that begins with ~ was made by Postdate, no command takes it".to_owned()
            } else {
                format!("missing, {} needs it", names.op)
            };
            return Err((InvalidReason::BadId, format!("{}: {why}", names.id)));
        };
        if op == HeaderCommand::Cancel {
            // A producer may cancel by sending the same message again with this one header more. Its delay and
            // target then ask for nothing, and must not keep it from being cancelled.
            return Ok(Admission::Cancel { id });
        }
        let target = self.target()?;
        let asked = self.due(None)?;
        Ok(Admission::Change {
            replaces: op == HeaderCommand::Replace,
            id,
            asked,
            target,
        })
    }

    /// The route's own target, or the allowed one that the message names.
    fn target(&self) -> Result<Arc<Target>, InvalidCause> {
        let Some(value) = self.found.target else {
            return match self.route.own_target() {
                Ok(target) => Ok(target.clone()),
                Err(why) => Err((InvalidReason::ForbiddenTarget, why.as_str().to_owned())),
            };
        };
        let origin = self.message.origin;
        let text = headers::text(value, origin).and_then(Text::from_utf8);
        let target = text.and_then(|name| self.route.named_target(name.as_str()).cloned());
        target.ok_or_else(|| {
            let named = headers::describe(value, origin);
            let name = &self.route.policy.headers.target;
            let error = format!("{name}: {named} is neither the route's target nor allowed");
            (InvalidReason::ForbiddenTarget, error)
        })
    }

    /// On a route of consumers' retries: how often the message was given back, this time included.
    fn given_back(&self) -> Result<Option<(ConsumerRetry, u32)>, InvalidCause> {
        let Some(retry) = self.route.policy.consumer_retry else {
            return Ok(None);
        };
        let before = match self.retry_counts().next() {
            None => 0,
            Some(header) => headers::retry_count(&header.value, self.message.origin)
                .map_err(|e| (InvalidReason::BadRetry, format!("{}: {e}", stamped::RETRY)))?,
        };
        Ok(Some((retry, before + 1)))
    }

    fn retry_counts(&self) -> impl Iterator<Item = &Header> {
        let headers = self.message.headers.iter();
        headers.filter(|header| headers::has_name(header, stamped::RETRY))
    }

    /// When the message is due. `wait_ms`: how long one waits that asks for nothing itself.
    fn due(&self, wait_ms: Option<i64>) -> Result<AskedTime, InvalidCause> {
        let (mut asked, name) = self.asked_time(wait_ms)?;
        let ahead = asked.due.since(self.arrival.latest);
        let most = self.route.policy.max_delay_ms;
        if ahead > most {
            let ahead = duration::words(ahead);
            let most = duration::render(most);
            let error = format!("{name}: due in {ahead}, over max_delay of {most}");
            return Err((InvalidReason::TooFar, error));
        }
        let was_given_back = !self.asks_for_time();
        asked.request.expires = self.expiry(asked.due, was_given_back)?;
        if was_given_back && let Some(expires) = asked.request.expires {
            // It expires as soon as nobody wants it, and holds its name and its key no longer.
            asked.due = asked.due.min(expires.last.plus(1));
        }
        // RFC 3339 reaches back to the year 0. Every past due time means now, and the store need not know times
        // before 1970.
        asked.due = asked.due.max(UnixMs(0));
        Ok(asked)
    }

    /// The time that was asked for, as it is written, and the name of the header or key that says so.
    fn asked_time(&self, wait_ms: Option<i64>) -> Result<(AskedTime, &str), InvalidCause> {
        let origin = self.message.origin;
        let delay = said(&self.found.delay, InvalidReason::BadDelay, |header| {
            headers::delay_ms(header.value, origin).map(Some)
        })?;
        let at = said(&self.found.deliver_at, InvalidReason::BadTime, |header| {
            headers::deliver_at(header.value, origin, header.style).map(Some)
        })?;
        let asked = |due, time, spread_ms| AskedTime {
            due,
            request: DelayRequest {
                received: self.arrival.earliest,
                time,
                expires: None,
                given_back: 0,
            },
            spread_ms,
        };
        let from = self.delay_base();
        match (delay, at, wait_ms) {
            (Some((delay, name)), ..) => {
                // A delay of 0 from the arrival is due on arrival. `earliest` makes it so: `latest` may not have
                // come yet.
                let due = if delay == 0 && from == self.arrival.latest {
                    self.arrival.earliest
                } else {
                    from.plus(delay)
                };
                Ok((asked(due, RequestedTime::Delay(delay), 0), name))
            }
            (None, Some((at, name)), _) => Ok((asked(at, RequestedTime::At(at), 0), name)),
            (None, None, Some(wait)) => {
                let spread_ms = wait / RETRY_SPREAD;
                let due = from.plus(wait - spread_ms);
                let asked = asked(due, RequestedTime::Delay(wait), spread_ms);
                Ok((asked, "consumer_retry"))
            }
            // Only a command can have neither header.
            (None, None, None) => {
                let names = &self.route.policy.headers;
                let error = format!(
                    "{} or {}: missing, {} needs one",
                    names.delay, names.deliver_at, names.op
                );
                Err((InvalidReason::BadDelay, error))
            }
        }
    }

    /// How long a message that is due at this moment is wanted: as it says itself, else as its route says. One that waits
    /// because it was given back may have been wanted when it was made, and not any more: it expires.
    fn expiry(&self, due: UnixMs, was_given_back: bool) -> Result<Option<Expiry>, InvalidCause> {
        let origin = self.message.origin;
        let asked = said(&self.found.expires, InvalidReason::BadExpiry, |header| {
            headers::expires(header.value, origin, header.style).map(Some)
        })?;
        let Some((asked, name)) = asked else {
            let ms = self.route.policy.max_lateness_ms;
            return Ok((ms > 0).then(|| Expiry::after(due, ms)));
        };
        let expiry = match asked {
            ExpiryHeader::After(ms) => Expiry::after(due, ms),
            ExpiryHeader::At(last) => Expiry::at(last),
        };
        if expiry.last > due || was_given_back {
            Ok(Some(expiry))
        } else {
            let error = format!("{name}: it ends at the due time or before");
            Err((InvalidReason::BadExpiry, error))
        }
    }

    /// The time that a delay counts from.
    fn delay_base(&self) -> UnixMs {
        let arrival = self.arrival.latest;
        match self.route.policy.delay_from {
            DelayFrom::Produced => credible(self.produced, arrival).unwrap_or(arrival),
            DelayFrom::Arrival => arrival,
        }
    }
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

/// The time of production, unless it cannot be one: a time in the future, or a number that is too small for Unix
/// milliseconds (Kafka's -1 for "no timestamp", 0, seconds).
pub(super) fn credible(produced: Option<UnixMs>, now: UnixMs) -> Option<UnixMs> {
    produced.filter(|at| (MIN_UNIX_MS..=now.0).contains(&at.0))
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
