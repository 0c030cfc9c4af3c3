//! Judges one entry of a queue: the message that it becomes, or why it stays. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::types::{BodyCodec, EntryForm, ImportQueue, ImportRequest, RefusalReason, ScoreUnit};
use crate::domain::{
    Arrival, Endpoint, Header, HeaderValue, Message, Origin, Properties, Route, UnixMs,
};
use crate::import::foreign::{ForeignEntry, unpack};
use crate::ingress::admit::{Admission, admit};
use crate::ingress::intake::ImportedMessage;

/// Least time between reading an entry and the publish of its message, ms. Within it the entry is removed from its
/// queue, or the message called back if its own program has taken it.
const RECALL_MS: i64 = 5_000;
/// Bytes of a member that an example shows.
const EXAMPLE_BYTES: usize = 48;
/// Scores of moments, Unix ms: from 1973 to 5138.
const MOMENTS_MS: Range<f64> = 1e11..1e14;
/// Bytes of the digest in a derived name.
const NAME_BYTES: usize = 16;

/// Judges the entries of one queue.
#[derive(Clone, Debug)]
pub(super) struct EntryJudge {
    route: Arc<Route>,
    queue: ImportQueue,
    form: EntryForm,
    score: ScoreUnit,
    key: Option<String>,
    headers: Vec<(String, String)>,
}

/// A message that may be stored.
#[derive(Clone, Debug)]
pub(super) struct AcceptedEntry {
    pub(super) message: ImportedMessage,
    /// The entry was due already.
    pub(super) is_overdue: bool,
}

/// Why an entry stays where it is, with the exact error.
pub(super) type Refusal = (RefusalReason, String);

impl EntryJudge {
    pub(super) fn new(request: &ImportRequest) -> Self {
        Self {
            route: request.route.clone(),
            queue: request.queue.clone(),
            form: request.form.clone(),
            score: request.score,
            key: request.key.clone(),
            headers: request.headers.clone(),
        }
    }

    /// The message that an entry becomes.
    pub(super) fn judge(
        &self,
        entry: &ForeignEntry,
        arrival: Arrival,
    ) -> Result<AcceptedEntry, Refusal> {
        let body = self.body(entry)?;
        let asked = self.due(&entry.score)?;
        let due = asked.max(arrival.latest.plus(RECALL_MS));
        let message = self.message(body, due, &self.name(entry));
        let (admission, message) = admit(message, None, None, &self.route, arrival);
        match admission {
            Admission::Delayed {
                asked: time,
                id: Some(id),
                target,
            } => Ok(AcceptedEntry {
                message: ImportedMessage {
                    due: time.due,
                    request: time.request,
                    id,
                    target,
                    message,
                },
                is_overdue: asked <= arrival.latest,
            }),
            Admission::Invalid { reason, error } => Err((
                RefusalReason::Invalid,
                format!("{}: {error}", reason.as_str()),
            )),
            _ => Err((
                RefusalReason::Invalid,
                "it is no delayed message".to_owned(),
            )),
        }
    }

    fn body(&self, entry: &ForeignEntry) -> Result<Bytes, Refusal> {
        match &self.form {
            EntryForm::Redisson(codec) => {
                let value = unpack(&entry.member).map(|unpacked| unpacked.value);
                decoded(
                    *codec,
                    value.ok_or((RefusalReason::NotRedisson, String::new()))?,
                )
            }
            EntryForm::Member => Ok(entry.member.clone()),
            EntryForm::JsonField(field) => match json_field(&entry.member, field) {
                Ok(Some(body)) => Ok(body),
                Ok(None) => Err((
                    RefusalReason::NotJson,
                    format!("it has no field `{}`", field.escape_debug()),
                )),
                Err(why) => Err((RefusalReason::NotJson, why)),
            },
            EntryForm::Hash => Ok(entry.body.clone()),
        }
    }

    fn due(&self, score: &str) -> Result<UnixMs, Refusal> {
        let number: f64 = score.parse().unwrap_or(f64::NAN);
        let ms = match self.score {
            ScoreUnit::Milliseconds => number.ceil(),
            ScoreUnit::Seconds => whole_ms(number),
        };
        if MOMENTS_MS.contains(&ms) {
            return Ok(UnixMs(ms as i64));
        }
        let hint = match self.score {
            ScoreUnit::Milliseconds if MOMENTS_MS.contains(&(number * 1e3)) => {
                "; are these seconds?"
            }
            ScoreUnit::Seconds if MOMENTS_MS.contains(&number) => "; are these milliseconds?",
            _ => "",
        };
        Err((RefusalReason::BadScore, format!("score {score}{hint}")))
    }

    /// The name of an entry's message. It follows from the entry, so that a second run finds what the first one stored. A
    /// member that is added again with another score is another message.
    fn name(&self, entry: &ForeignEntry) -> String {
        let (kind, key) = match &self.queue {
            ImportQueue::Redisson(name) => ("redisson", name),
            ImportQueue::Zset { key, .. } => ("zset", key),
        };
        let mut hash = Sha256::new();
        for part in [
            key.as_bytes(),
            &entry.member[..],
            entry.score.as_bytes(),
            &entry.body[..],
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let (begin, _) = digest.split_at(NAME_BYTES);
        format!("{kind}-{}", lower_hex(begin))
    }

    /// The message as a producer of the route's own technology would send it.
    fn message(&self, body: Bytes, due: UnixMs, name: &str) -> Message {
        let names = &self.route.policy.headers;
        let delay = [
            (names.deliver_at.clone(), due.0.to_string()),
            (names.id.clone(), name.to_owned()),
        ];
        let is_kafka = matches!(self.route.from, Endpoint::Kafka { .. });
        let mut headers = Vec::new();
        for (name, text) in self.headers.iter().cloned().chain(delay) {
            let bytes = Bytes::from(text);
            let value = if is_kafka {
                HeaderValue::Bytes(bytes)
            } else {
                HeaderValue::LongString(bytes)
            };
            headers.push(Header::new(name, value));
        }
        let key = self.key.clone().map(Bytes::from);
        if is_kafka {
            return Message {
                origin: Origin::Kafka,
                key,
                body: Some(body),
                headers,
                properties: None,
            };
        }
        // The message is persistent, as every message that Postdate publishes.
        let properties = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        Message {
            origin: Origin::Rabbitmq,
            key: Some(key.unwrap_or_default()),
            body: Some(body),
            headers,
            properties: Some(Box::new(properties)),
        }
    }
}

/// Milliseconds of seconds. A rest below a millisecond rounds up, unless it comes from the number's own precision.
fn whole_ms(seconds: f64) -> f64 {
    let ms = seconds * 1e3;
    let nearest = ms.round();
    if (ms - nearest).abs() < 1e-3 {
        nearest
    } else {
        ms.ceil()
    }
}

fn decoded(codec: BodyCodec, value: Bytes) -> Result<Bytes, Refusal> {
    match codec {
        BodyCodec::Bytes => Ok(value),
        BodyCodec::Text => match std::str::from_utf8(&value) {
            Ok(_) => Ok(value),
            Err(error) => Err((RefusalReason::NotText, error.to_string())),
        },
        BodyCodec::Json => unwrapped_json(&value).map_err(|why| (RefusalReason::NotJson, why)),
    }
}

/// The text of a JSON string; any other JSON as it is.
fn unwrapped_json(json: &Bytes) -> Result<Bytes, String> {
    if let Ok(text) = serde_json::from_slice::<String>(json) {
        return Ok(Bytes::from(text));
    }
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| error.to_string())?;
    Ok(json.clone())
}

/// A field of a JSON object: the text of a string, any other value as it is written there. Of a field that appears more
/// than once, the last.
fn json_field(json: &Bytes, field: &str) -> Result<Option<Bytes>, String> {
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let found = fields
        .get(field)
        .map(|value| json.slice_ref(value.get().as_bytes()));
    found.map(|value| unwrapped_json(&value)).transpose()
}

/// Bytes as hexadecimal digits.
fn lower_hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        write!(digits, "{byte:02x}").unwrap_or_default();
    }
    digits
}

/// The beginning of a member, escaped, and why it stays.
pub(super) fn shown(member: &[u8], why: &str) -> String {
    let cut = if member.len() > EXAMPLE_BYTES {
        "..."
    } else {
        ""
    };
    let text = member[..member.len().min(EXAMPLE_BYTES)].escape_ascii();
    let colon = if why.is_empty() { "" } else { ": " };
    format!("`{text}{cut}`{colon}{why}")
}

#[cfg(test)]
mod tests;
