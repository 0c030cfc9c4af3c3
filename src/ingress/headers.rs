//! The grammar of the delay headers: which of a message's headers they are, and what each value says.
//!
//! Kafka's values are bytes; AMQP's are typed, and text comes as a long string or a byte array. A value
//! either says surely what it means, or it is an error with a sentence for a person.

use bytes::Bytes;

use crate::domain::route::HeaderNames;
use crate::domain::{Header, HeaderValue, Origin, Text, UnixMs, duration, limits, moment};

/// Unix milliseconds below this are surely seconds, or a delay: in milliseconds it is March 1973.
const EARLIEST: i64 = 100_000_000_000;
/// Most bytes of the input that an error quotes.
const QUOTED: usize = 64;

/// The delay headers of a message, as they stand there.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub(super) delay: Option<&'a HeaderValue>,
    pub(super) deliver_at: Option<&'a HeaderValue>,
    pub(super) id: Option<&'a HeaderValue>,
    pub(super) op: Option<&'a HeaderValue>,
    pub(super) target: Option<&'a HeaderValue>,
    /// One that stands there twice.
    pub(super) repeated: Option<&'a str>,
}

/// Whether a header has this name (lower case), in whatever case it was sent.
pub(super) fn is(header: &Header, name: &str) -> bool {
    header.name.bytes().eq_ignore_ascii_case(name.as_bytes())
}

/// Looks for the delay headers under a route's names for them. One pass, and no allocation: most
/// headers differ in length already.
pub(super) fn find<'a>(headers: &'a [Header], names: &'a HeaderNames) -> Found<'a> {
    let mut found = Found::default();
    for header in headers {
        let (slot, name) = if is(header, &names.delay) {
            (&mut found.delay, &names.delay)
        } else if is(header, &names.deliver_at) {
            (&mut found.deliver_at, &names.deliver_at)
        } else if is(header, &names.id) {
            (&mut found.id, &names.id)
        } else if is(header, &names.op) {
            (&mut found.op, &names.op)
        } else if is(header, &names.target) {
            (&mut found.target, &names.target)
        } else {
            continue;
        };
        if slot.replace(&header.value).is_some() {
            found.repeated = Some(name);
        }
    }
    found
}

/// A header's text. On Kafka one pair of JSON quotes round it is not part of it (Spring's header mapper
/// may write them); what stands between them is taken as it is, without undoing JSON's escapes.
/// `None` if the value is of another type.
pub(super) fn text(value: &HeaderValue, origin: Origin) -> Option<Bytes> {
    let (HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes)) = value else { return None };
    match bytes.as_ref() {
        [b'"', inner @ .., b'"'] if origin == Origin::Kafka => Some(bytes.slice_ref(inner)),
        _ => Some(bytes.clone()),
    }
}

/// Milliseconds of a delay: never negative.
pub(super) fn delay_ms(value: &HeaderValue, origin: Origin) -> Result<i64, String> {
    let ms = match value {
        HeaderValue::F32(v) => whole_number(f64::from(*v)),
        HeaderValue::F64(v) => whole_number(*v),
        HeaderValue::Decimal { scale, value } => whole_decimal(*scale, *value),
        other => match (integer(other), text(other, origin)) {
            (Some(ms), _) => Some(ms),
            (None, Some(text)) => {
                let error = |e: String| format!("{} is no delay: {e}", quote(&text));
                let text = std::str::from_utf8(&text).map_err(|_| error("it is not UTF-8".to_owned()))?;
                return duration::parse_header(text).map_err(|e| error(e.to_string()));
            }
            (None, None) => None,
        },
    };
    ms.filter(|ms| *ms >= 0).ok_or_else(|| {
        format!("{} is no delay: milliseconds (0 or more) or a duration is expected", describe(value, origin))
    })
}

/// The moment that a deliver-at header says.
pub(super) fn deliver_at(value: &HeaderValue, origin: Origin) -> Result<UnixMs, String> {
    let error = |e: &str| format!("{} is no moment: {e}", describe(value, origin));
    if let HeaderValue::Timestamp(seconds) = value {
        let ms = i64::try_from(*seconds).ok().and_then(|s| s.checked_mul(1000));
        return ms.map(UnixMs).ok_or_else(|| error("it is too large"));
    }
    let ms = match (integer(value), text(value, origin)) {
        (Some(ms), _) => ms,
        (None, Some(text)) => {
            let text = std::str::from_utf8(&text).map_err(|_| error("it is not UTF-8"))?;
            if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                return moment::parse(text).map_err(|e| error(&e.to_string()));
            }
            // As in a delay, at most 19 digits: more are no number that anybody meant.
            let ms = Some(text).filter(|t| t.len() <= 19).and_then(|t| t.parse().ok());
            ms.ok_or_else(|| error("it is too large"))?
        }
        (None, None) => return Err(error("Unix milliseconds, RFC 3339 or an AMQP timestamp is expected")),
    };
    if ms < EARLIEST {
        return Err(error("Unix milliseconds have 12 digits or more (are these seconds?)"));
    }
    Ok(UnixMs(ms))
}

/// A producer's own id, or `None` for one that Postdate made (`~...`) in an earlier life of the message.
pub(super) fn id(value: &HeaderValue, origin: Origin) -> Result<Option<Text>, String> {
    let error = |e: &str| format!("{} is no id: {e}", describe(value, origin));
    let bytes = text(value, origin).ok_or_else(|| error("text is expected"))?;
    if bytes.first() == Some(&b'~') {
        return Ok(None);
    }
    if bytes.is_empty() || bytes.len() > limits::MAX_ID_BYTES {
        return Err(error("1 to 256 bytes are expected"));
    }
    Text::from_utf8(bytes).map(Some).ok_or_else(|| error("it is not UTF-8"))
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Cancel,
    Reschedule,
}

/// The command that an op header says.
pub(super) fn op(value: &HeaderValue, origin: Origin) -> Result<Op, String> {
    match text(value, origin).as_deref() {
        Some(b"cancel") => Ok(Op::Cancel),
        Some(b"reschedule") => Ok(Op::Reschedule),
        _ => Err(format!("{} is no command: cancel and reschedule are", describe(value, origin))),
    }
}

/// A value for a person: text in quotes, cut and escaped; of other types the type and small values.
pub(super) fn describe(value: &HeaderValue, origin: Origin) -> String {
    match value {
        HeaderValue::Bytes(_) | HeaderValue::LongString(_) => quote(&text(value, origin).unwrap_or_default()),
        HeaderValue::Null => "null".to_owned(),
        HeaderValue::Bool(v) => format!("the bool {v}"),
        HeaderValue::F32(v) => format!("the float {v:e}"),
        HeaderValue::F64(v) => format!("the double {v:e}"),
        HeaderValue::Decimal { scale, value } => format!("the decimal {value} / 10^{scale}"),
        HeaderValue::Timestamp(seconds) => format!("the timestamp {seconds}"),
        HeaderValue::Table(_) => "a table".to_owned(),
        HeaderValue::Array(_) => "an array".to_owned(),
        number => integer(number).unwrap_or_default().to_string(),
    }
}

/// Bytes for a person and a log: in quotes, at most 64 of them, whatever is not plainly readable
/// escaped.
fn quote(bytes: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for chunk in bytes[..bytes.len().min(QUOTED)].utf8_chunks() {
        quoted.extend(chunk.valid().escape_debug());
        quoted.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    quoted.push_str(if bytes.len() > QUOTED { "\"..." } else { "\"" });
    quoted
}

/// The value of any of AMQP's integer types.
fn integer(value: &HeaderValue) -> Option<i64> {
    match *value {
        HeaderValue::I8(v) => Some(v.into()),
        HeaderValue::U8(v) => Some(v.into()),
        HeaderValue::I16(v) => Some(v.into()),
        HeaderValue::U16(v) => Some(v.into()),
        HeaderValue::I32(v) => Some(v.into()),
        HeaderValue::U32(v) => Some(v.into()),
        HeaderValue::I64(v) => Some(v),
        _ => None,
    }
}

/// A float that is a whole number. Minus zero has a sign, and what is signed is not guessed at.
fn whole_number(value: f64) -> Option<i64> {
    // 2^63, exactly; the largest float below it fits.
    let fits = value.is_sign_positive() && value.fract() == 0.0 && value < 9_223_372_036_854_775_808.0;
    fits.then_some(value as i64)
}

/// A decimal that is a whole number. Clients disagree whether its 32 bits are signed (Java's writes
/// negative ones so), so what would be negative then is nobody's to guess.
fn whole_decimal(scale: u8, value: u32) -> Option<i64> {
    let value = i64::from(i32::try_from(value).ok()?);
    match 10_i64.checked_pow(scale.into()) {
        Some(unit) => (value % unit == 0).then_some(value / unit),
        None => (value == 0).then_some(0),
    }
}

#[cfg(test)]
mod tests;
