//! The grammar of the delay headers: which headers of a message they are, and the meaning of each value. Their names
//! (`x-delay`, ...) come from the route; the defaults stand in config/postdate.toml.
//!
//! Kafka's values are bytes. AMQP's are typed, and text comes as a long string or a byte array. A value either
//! has a certain meaning, or is an error with a sentence for a person.

use bytes::Bytes;

use crate::domain::moment::MIN_UNIX_MS;
use crate::domain::route::Dialects;
use crate::domain::{
    Header, HeaderValue, Origin, RoutePolicy, Text, UnixMs, duration, limits, moment,
};

/// Most bytes of the input that an error quotes.
const MAX_QUOTED_BYTES: usize = 64;

/// The delay headers of a message, with their raw values.
#[derive(Debug, Default)]
pub(super) struct DelayHeaders<'a> {
    pub(super) delay: Said<'a>,
    pub(super) deliver_at: Said<'a>,
    pub(super) id: Said<'a>,
    pub(super) expires: Said<'a>,
    pub(super) op: Option<&'a HeaderValue>,
    pub(super) target: Option<&'a HeaderValue>,
    /// The name of a header that appears more than once.
    pub(super) repeated: Option<&'a str>,
}

/// What the headers of a message say of one thing: the route's own header, that of AMQP 1.0, that of Celery.
#[derive(Debug, Default)]
pub(super) struct Said<'a>([Option<DelayHeader<'a>>; 3]);

/// A header that says something of a delay.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelayHeader<'a> {
    pub(super) name: &'a str,
    pub(super) value: &'a HeaderValue,
    pub(super) style: MomentStyle,
}

/// How a header writes moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MomentStyle {
    /// As its producer wrote them, with an offset.
    #[default]
    Own,
    /// In UTC, if without an offset.
    Utc,
    /// RabbitMQ has cut AMQP 1.0's timestamp in milliseconds to whole seconds.
    Cut,
}

impl<'a> Said<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = DelayHeader<'a>> {
        self.0.iter().copied().flatten()
    }

    /// The first header that says it.
    pub(super) fn first(&self) -> Option<DelayHeader<'a>> {
        self.iter().next()
    }
}

/// What a header of a dialect is about.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Delay,
    DeliverAt,
    Id,
    Expires,
}

/// A header of a dialect. Names and meanings are those of its own world.
#[derive(Debug)]
struct DialectHeader {
    name: &'static str,
    meaning: Meaning,
    /// Its place among those that say the same.
    place: usize,
    /// Consumers need it too.
    stays: bool,
    style: MomentStyle,
}

/// Place of the route's own header among those that say the same.
const OWN: usize = 0;

const fn amqp10(name: &'static str, meaning: Meaning) -> DialectHeader {
    DialectHeader {
        name,
        meaning,
        place: 1,
        stays: false,
        style: MomentStyle::Cut,
    }
}

const fn celery(name: &'static str, meaning: Meaning, stays: bool) -> DialectHeader {
    DialectHeader {
        name,
        meaning,
        place: 2,
        stays,
        style: MomentStyle::Utc,
    }
}

const AMQP10: &[DialectHeader] = &[
    amqp10("x-opt-delivery-delay", Meaning::Delay),
    amqp10("x-opt-delivery-time", Meaning::DeliverAt),
];
const CELERY: &[DialectHeader] = &[
    // The worker would wait for it again.
    celery("eta", Meaning::DeliverAt, false),
    celery("expires", Meaning::Expires, true),
    celery("id", Meaning::Id, true),
];

/// The header of a dialect that this one is.
fn dialect_header(header: &Header, dialects: Dialects) -> Option<&'static DialectHeader> {
    let amqp10 = if dialects.amqp10 { AMQP10 } else { &[] };
    let celery = if dialects.celery { CELERY } else { &[] };
    let known = |known: &&DialectHeader| has_name(header, known.name);
    amqp10.iter().chain(celery).find(known)
}

/// The headers in which RabbitMQ before 4.0 leaves what an AMQP 1.0 client sent, as it came.
const UNTRANSLATED: [&str; 2] = [
    "x-amqp-1.0-message-annotations",
    "x-amqp-1.0-app-properties",
];

/// The name of a header in which RabbitMQ has left a delay header of an AMQP 1.0 client without translating it.
pub(super) fn untranslated(headers: &[Header], policy: &RoutePolicy) -> Option<&'static str> {
    if !policy.dialects.amqp10 {
        return None;
    }
    let names = &policy.headers;
    let asks = [&names.delay, &names.deliver_at, &names.id, &names.op];
    let asks = |bytes: &[u8]| {
        let own = asks.iter().map(|name| name.as_bytes());
        let theirs = AMQP10.iter().map(|known| known.name.as_bytes());
        own.chain(theirs)
            .any(|name| memchr::memmem::find(bytes, name).is_some())
    };
    UNTRANSLATED.into_iter().find(|name| {
        headers.iter().any(|header| {
            let (HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes)) = &header.value else {
                return false;
            };
            has_name(header, name) && asks(bytes)
        })
    })
}

/// Reports whether a delayed message loses this header of a dialect.
pub(super) fn is_taken_from_dialect(header: &Header, dialects: Dialects) -> bool {
    dialect_header(header, dialects).is_some_and(|known| !known.stays)
}

/// Reports whether a header has this lower-case name, in whatever case it was sent.
pub(super) fn has_name(header: &Header, name: &str) -> bool {
    header.name.bytes().eq_ignore_ascii_case(name.as_bytes())
}

/// Finds the delay headers under a route's names for them and those of its dialects, where null says nothing. In one pass
/// and without allocation: most headers differ in length already.
pub(super) fn find_delay_headers<'a>(
    headers: &'a [Header],
    policy: &'a RoutePolicy,
) -> DelayHeaders<'a> {
    let names = &policy.headers;
    let mut found = DelayHeaders::default();
    for header in headers {
        let value = &header.value;
        let own = |name: &'a str| DelayHeader {
            name,
            value,
            style: MomentStyle::Own,
        };
        let (said, place, header) = if has_name(header, &names.delay) {
            (&mut found.delay, OWN, own(&names.delay))
        } else if has_name(header, &names.deliver_at) {
            (&mut found.deliver_at, OWN, own(&names.deliver_at))
        } else if has_name(header, &names.id) {
            (&mut found.id, OWN, own(&names.id))
        } else if has_name(header, &names.expires) {
            (&mut found.expires, OWN, own(&names.expires))
        } else if has_name(header, &names.op) {
            if found.op.replace(value).is_some() {
                found.repeated = Some(&names.op);
            }
            continue;
        } else if has_name(header, &names.target) {
            if found.target.replace(value).is_some() {
                found.repeated = Some(&names.target);
            }
            continue;
        } else if let Some(known) = dialect_header(header, policy.dialects)
            && *value != HeaderValue::Null
        {
            let said = match known.meaning {
                Meaning::Delay => &mut found.delay,
                Meaning::DeliverAt => &mut found.deliver_at,
                Meaning::Id => &mut found.id,
                Meaning::Expires => &mut found.expires,
            };
            let header = DelayHeader {
                name: known.name,
                value,
                style: known.style,
            };
            (said, known.place, header)
        } else {
            continue;
        };
        if said.0[place].replace(header).is_some() {
            found.repeated = Some(header.name);
        }
    }
    found
}

/// The text of a header. On Kafka one pair of JSON quotes around the text is not part of it (Spring's header
/// mapper may write them); JSON escapes between the quotes stay as they are. `None` if the value is of another
/// type.
pub(super) fn text(value: &HeaderValue, origin: Origin) -> Option<Bytes> {
    let (HeaderValue::Bytes(bytes) | HeaderValue::LongString(bytes)) = value else {
        return None;
    };
    match bytes.as_ref() {
        [b'"', inner @ .., b'"'] if origin == Origin::Kafka => Some(bytes.slice_ref(inner)),
        _ => Some(bytes.clone()),
    }
}

/// The milliseconds of a delay, never negative.
pub(super) fn delay_ms(value: &HeaderValue, origin: Origin) -> Result<i64, String> {
    let ms = match value {
        HeaderValue::F32(v) => whole_number(f64::from(*v)),
        HeaderValue::F64(v) => whole_number(*v),
        HeaderValue::Decimal { scale, value } => whole_decimal(*scale, *value),
        other => match (integer(other), text(other, origin)) {
            (Some(ms), _) => Some(ms),
            (None, Some(text)) => {
                let error = |e: String| format!("{} is no delay: {e}", quote(&text));
                let text =
                    std::str::from_utf8(&text).map_err(|_| error("it is not UTF-8".to_owned()))?;
                return duration::parse_header(text).map_err(|e| error(e.to_string()));
            }
            (None, None) => None,
        },
    };
    ms.filter(|ms| *ms >= 0).ok_or_else(|| {
        format!(
            "{} is no delay: milliseconds (0 or more) or a duration is expected",
            describe(value, origin)
        )
    })
}

/// The due time of a deliver-at header. Of a moment that was cut to its second it is the last millisecond: never early.
pub(super) fn deliver_at(
    value: &HeaderValue,
    origin: Origin,
    style: MomentStyle,
) -> Result<UnixMs, String> {
    let error = |e: &str| format!("{} is no moment: {e}", describe(value, origin));
    if let HeaderValue::Timestamp(seconds) = value {
        let ms = i64::try_from(*seconds)
            .ok()
            .and_then(|s| s.checked_mul(1000))
            .and_then(|ms| match style {
                MomentStyle::Cut => ms.checked_add(999),
                MomentStyle::Own | MomentStyle::Utc => Some(ms),
            });
        return ms.map(UnixMs).ok_or_else(|| error("it is too large"));
    }
    let ms = match (integer(value), text(value, origin)) {
        (Some(ms), _) => ms,
        (None, Some(text)) => {
            let text = std::str::from_utf8(&text).map_err(|_| error("it is not UTF-8"))?;
            if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                let parse = if style == MomentStyle::Utc {
                    moment::parse_or_utc
                } else {
                    moment::parse
                };
                return parse(text).map_err(|e| error(&e.to_string()));
            }
            // Allow at most 19 digits, as in a delay: nobody means a longer number.
            let ms = Some(text)
                .filter(|t| t.len() <= 19)
                .and_then(|t| t.parse().ok());
            ms.ok_or_else(|| error("it is too large"))?
        }
        (None, None) => {
            return Err(error(
                "Unix milliseconds, RFC 3339 or an AMQP timestamp is expected",
            ));
        }
    };
    if ms < MIN_UNIX_MS {
        return Err(error(
            "Unix milliseconds have 12 digits or more (are these seconds?)",
        ));
    }
    Ok(UnixMs(ms))
}

/// How long a message is wanted, as an expiry header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryHeader {
    /// So many milliseconds after the due time; never negative.
    After(i64),
    /// Until this moment.
    At(UnixMs),
}

/// Reads an expiry header: a span as in a delay header or a moment as in a deliver-at header. Of numbers the size
/// decides.
pub(super) fn expires(
    value: &HeaderValue,
    origin: Origin,
    style: MomentStyle,
) -> Result<ExpiryHeader, String> {
    let is_moment = match (value, integer(value), text(value, origin)) {
        (HeaderValue::Timestamp(_), ..) => true,
        // No span is that long: it is a moment, which is no float.
        (HeaderValue::F64(number), ..) => *number >= MIN_UNIX_MS as f64,
        (HeaderValue::F32(number), ..) => f64::from(*number) >= MIN_UNIX_MS as f64,
        (_, Some(number), _) => number >= MIN_UNIX_MS,
        (_, None, Some(text)) if text.iter().all(u8::is_ascii_digit) => {
            let digits = std::str::from_utf8(&text).unwrap_or_default();
            digits
                .parse()
                .is_ok_and(|number: i64| number >= MIN_UNIX_MS)
        }
        // A year, as RFC 3339 begins; no duration has a sign within.
        (_, None, Some(text)) => text.get(4) == Some(&b'-'),
        (_, None, None) => false,
    };
    if is_moment {
        deliver_at(value, origin, style).map(ExpiryHeader::At)
    } else {
        delay_ms(value, origin).map(ExpiryHeader::After)
    }
}

/// Most digits of a retry count.
const RETRY_DIGITS: usize = 9;

/// How often a message was given back before, as its retry header says.
pub(super) fn retry_count(value: &HeaderValue, origin: Origin) -> Result<u32, String> {
    let digits = text(value, origin).filter(|text| {
        (1..=RETRY_DIGITS).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
    });
    let number = match (integer(value), digits) {
        (Some(number), _) => u32::try_from(number).ok(),
        (None, Some(digits)) => std::str::from_utf8(&digits)
            .ok()
            .and_then(|digits| digits.parse().ok()),
        (None, None) => None,
    };
    number
        .filter(|count| *count < 10_u32.pow(RETRY_DIGITS as u32))
        .ok_or_else(|| {
            format!(
                "{} is no count: a whole number of at most 9 digits is expected",
                describe(value, origin)
            )
        })
}

/// A producer's own id. `None` for an id that Postdate made (`~...`) in an earlier life of the message.
pub(super) fn id(value: &HeaderValue, origin: Origin) -> Result<Option<Text>, String> {
    let error = |e: &str| format!("{} is no id: {e}", describe(value, origin));
    let bytes = text(value, origin).ok_or_else(|| error("text is expected"))?;
    if bytes.first() == Some(&b'~') {
        return Ok(None);
    }
    if bytes.is_empty() || bytes.len() > limits::MAX_ID_BYTES {
        return Err(error("1 to 256 bytes are expected"));
    }
    Text::from_utf8(bytes)
        .map(Some)
        .ok_or_else(|| error("it is not UTF-8"))
}

/// The command of an op header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderCommand {
    Cancel,
    Reschedule,
    Replace,
}

/// Reads the command of an op header.
pub(super) fn op(value: &HeaderValue, origin: Origin) -> Result<HeaderCommand, String> {
    match text(value, origin).as_deref() {
        Some(b"cancel") => Ok(HeaderCommand::Cancel),
        Some(b"reschedule") => Ok(HeaderCommand::Reschedule),
        Some(b"replace") => Ok(HeaderCommand::Replace),
        _ => Err(format!(
            "{} is no command: cancel, reschedule and replace are",
            describe(value, origin)
        )),
    }
}

/// Renders a value for a person: text in quotes, cut and escaped; other types by their name, and small values.
pub(super) fn describe(value: &HeaderValue, origin: Origin) -> String {
    match value {
        HeaderValue::Bytes(_) | HeaderValue::LongString(_) => {
            quote(&text(value, origin).unwrap_or_default())
        }
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

/// Renders bytes for a person and a log: in quotes, at most 64 of them, all but plainly readable ones escaped.
fn quote(bytes: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for chunk in bytes[..bytes.len().min(MAX_QUOTED_BYTES)].utf8_chunks() {
        quoted.extend(chunk.valid().escape_debug());
        quoted.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    quoted.push_str(if bytes.len() > MAX_QUOTED_BYTES {
        "\"..."
    } else {
        "\""
    });
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

/// The value of a float that is a whole number. Minus zero is refused: it has a sign, and nobody guesses what a
/// sign means here.
fn whole_number(value: f64) -> Option<i64> {
    // This is 2^63 exactly. The largest float below it fits.
    let fits =
        value.is_sign_positive() && value.fract() == 0.0 && value < 9_223_372_036_854_775_808.0;
    fits.then_some(value as i64)
}

/// The value of a decimal that is a whole number. A value with the highest bit set is refused: clients disagree
/// whether the 32 bits are signed (Java writes negative decimals so).
fn whole_decimal(scale: u8, value: u32) -> Option<i64> {
    let value = i64::from(i32::try_from(value).ok()?);
    match 10_i64.checked_pow(scale.into()) {
        Some(unit) => (value % unit == 0).then_some(value / unit),
        None => (value == 0).then_some(0),
    }
}

#[cfg(test)]
mod tests;
