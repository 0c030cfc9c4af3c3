//! Content header frames of AMQP: what the client library can decode of them, and what it is given instead of the
//! rest.
//!
//! The library decodes nested headers by recursion and takes no text but UTF-8. A frame that it cannot decode costs
//! the connection, and one that nests too deep the process. The broker delivers the message again each time. So a
//! frame is judged here first, without recursion. One that cannot be decoded is replaced: it keeps its
//! properties, and in place of its headers has one, [`UNREADABLE_HEADER`], with the reason.

use crate::domain::limits::MAX_HEADER_DEPTH;

/// Name of the only header of a message whose headers cannot be read. Its value is the reason.
pub(super) const UNREADABLE_HEADER: &str = "x-postdate-unreadable";
/// Name of the header with the length of a body that was left out. Any other header stays.
pub(super) const LEFT_OUT_HEADER: &str = "x-postdate-left-out";
/// Bytes before the length of the body: class and weight.
const BODY_SIZE_START: usize = 4;
/// Bytes before the properties: the above, and the length of the body.
const BODY_SIZE_END: usize = 12;
/// Bytes before the first property: the above, and the flags that tell which properties are there.
const FLAGS_END: usize = 14;
/// The flag of the header table.
const HEADERS_FLAG: u16 = 1 << 13;

/// The properties of a message in their order on the wire. The first has the highest flag.
const BASIC_PROPERTIES: [(&str, PropertyKind); 14] = [
    ("content_type", PropertyKind::Text),
    ("content_encoding", PropertyKind::Text),
    ("headers", PropertyKind::Table),
    ("delivery_mode", PropertyKind::Fixed(1)),
    ("priority", PropertyKind::Fixed(1)),
    ("correlation_id", PropertyKind::Text),
    ("reply_to", PropertyKind::Text),
    ("expiration", PropertyKind::Text),
    ("message_id", PropertyKind::Text),
    ("timestamp", PropertyKind::Fixed(8)),
    ("type", PropertyKind::Text),
    ("user_id", PropertyKind::Text),
    ("app_id", PropertyKind::Text),
    ("cluster_id", PropertyKind::Text),
];

#[derive(Clone, Copy)]
enum PropertyKind {
    /// At most 255 bytes of UTF-8, behind one byte of length.
    Text,
    /// A header table, behind four bytes of length.
    Table,
    /// This many bytes.
    Fixed(usize),
}

/// The end of a payload was reached before the end of what its lengths announce.
struct OutOfBounds;

/// Replaces bytes that are not UTF-8 by `?`. Reports whether there were any.
pub(super) fn replace_invalid_utf8(text: &mut [u8]) -> bool {
    let mut start = 0;
    while let Err(error) = std::str::from_utf8(&text[start..]) {
        start += error.valid_up_to();
        text[start] = b'?';
        start += 1;
    }
    start > 0
}

/// The length of the body that a content header announces. Only its first bytes are needed.
pub(super) fn body_size(start: &[u8]) -> u64 {
    let bytes = start
        .get(BODY_SIZE_START..BODY_SIZE_END)
        .unwrap_or_default();
    bytes
        .iter()
        .fold(0, |size, byte| (size << 8) | u64::from(*byte))
}

/// Makes the payload of a content header frame decodable. `fault` is what was wrong with the message before this
/// frame. `left_out` is the length of the body if its frames are left out: the payload then announces none. Returns
/// `None` if the payload can be taken as it is.
pub(super) fn make_decodable(
    payload: &[u8],
    fault: Option<String>,
    left_out: Option<u64>,
) -> Option<Vec<u8>> {
    let mut parts = HeaderFrameParts {
        faults: fault.into_iter().collect(),
        ..HeaderFrameParts::default()
    };
    if parts.read(payload).is_err() {
        parts = HeaderFrameParts {
            faults: vec!["its properties end too early".to_owned()],
            ..HeaderFrameParts::default()
        };
    }
    let is_changed = left_out.is_some() || !parts.faults.is_empty();
    is_changed.then(|| parts.replacement(payload, left_out))
}

/// The payload for a content header frame that is too large to look at. Only its first bytes are needed.
pub(super) fn without_properties(start: &[u8], fault: String, left_out: Option<u64>) -> Vec<u8> {
    let parts = HeaderFrameParts {
        faults: vec![fault],
        ..HeaderFrameParts::default()
    };
    parts.replacement(start, left_out)
}

/// Properties of a content header frame, as they are on the wire.
#[derive(Default)]
struct HeaderFrameParts {
    flags: u16,
    /// The properties before the header table.
    before: Vec<u8>,
    /// The fields of the header table.
    table: Vec<u8>,
    /// The properties behind it.
    after: Vec<u8>,
    /// The reasons why the frame cannot be decoded.
    faults: Vec<String>,
}

impl HeaderFrameParts {
    fn read(&mut self, payload: &[u8]) -> Result<(), OutOfBounds> {
        let mut rest = Input(payload);
        rest.take(BODY_SIZE_END)?;
        let flags = u16::from_be_bytes([rest.byte()?, rest.byte()?]);
        for (n, (name, kind)) in BASIC_PROPERTIES.iter().enumerate() {
            let flag = 1 << (15 - n);
            if flags & flag == 0 {
                continue;
            }
            let place = if flag > HEADERS_FLAG {
                &mut self.before
            } else {
                &mut self.after
            };
            match kind {
                PropertyKind::Text => {
                    let len = rest.byte()?;
                    let mut text = rest.take(len.into())?.to_vec();
                    if replace_invalid_utf8(&mut text) {
                        self.faults.push(format!("its {name} is not UTF-8"));
                    }
                    place.push(len);
                    place.extend(text);
                }
                PropertyKind::Fixed(len) => place.extend(rest.take(*len)?),
                PropertyKind::Table => {
                    let len = rest.length()?;
                    let table = rest.take(len)?;
                    match judge_table(table) {
                        Ok(()) => self.table = table.to_vec(),
                        Err(fault) => self.faults.push(fault),
                    }
                    continue;
                }
            }
            self.flags |= flag;
        }
        if !rest.0.is_empty() {
            self.faults
                .push(format!("{} bytes follow its properties", rest.0.len()));
        }
        Ok(())
    }

    /// The payload that says the same but for the headers, if they have faults, and for the body that is left out.
    /// The place of the headers has the reasons.
    fn replacement(&self, original: &[u8], left_out: Option<u64>) -> Vec<u8> {
        let mut table = if self.faults.is_empty() {
            self.table.clone()
        } else {
            let reason = self.faults.join(", ");
            let mut value = (reason.len() as u32).to_be_bytes().to_vec();
            value.extend(reason.as_bytes());
            field(UNREADABLE_HEADER, b'S', &value)
        };
        if let Some(bytes) = left_out {
            table.extend(field(LEFT_OUT_HEADER, b'l', &bytes.to_be_bytes()));
        }
        let mut payload =
            Vec::with_capacity(FLAGS_END + self.before.len() + 4 + table.len() + self.after.len());
        payload.extend(original.iter().take(BODY_SIZE_END));
        payload.resize(BODY_SIZE_END, 0);
        if left_out.is_some() {
            payload[BODY_SIZE_START..].fill(0);
        }
        payload.extend((self.flags | HEADERS_FLAG).to_be_bytes());
        payload.extend(&self.before);
        payload.extend((table.len() as u32).to_be_bytes());
        payload.extend(&table);
        payload.extend(&self.after);
        payload
    }
}

/// A field of a header table. `value` is encoded as `kind` says.
fn field(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![name.len() as u8];
    field.extend(name.as_bytes());
    field.push(kind);
    field.extend(value);
    field
}

/// A table or an array with what is not read of it yet.
struct OpenContainer<'a> {
    rest: Input<'a>,
    has_names: bool,
}

/// Judges the bytes of a header table as the client library would decode them.
fn judge_table(table: &[u8]) -> Result<(), String> {
    let wrong_length = |OutOfBounds| "the lengths within its headers are wrong".to_owned();
    let mut open = vec![OpenContainer {
        rest: Input(table),
        has_names: true,
    }];
    while let Some(container) = open.last_mut() {
        let rest = &mut container.rest;
        if rest.0.is_empty() {
            open.pop();
            continue;
        }
        if container.has_names {
            let name = rest
                .byte()
                .and_then(|len| rest.take(len.into()))
                .map_err(wrong_length)?;
            if std::str::from_utf8(name).is_err() {
                return Err("a header's name is not UTF-8".to_owned());
            }
            for own in [UNREADABLE_HEADER, LEFT_OUT_HEADER] {
                if name == own.as_bytes() {
                    return Err(format!("it has a header {own} already"));
                }
            }
        }
        let kind = rest.byte().map_err(wrong_length)?;
        let len = match kind {
            b'V' => Ok(0),
            b't' | b'b' | b'B' => Ok(1),
            b's' | b'U' | b'u' => Ok(2),
            b'I' | b'i' | b'f' => Ok(4),
            b'D' => Ok(5),
            b'L' | b'l' | b'd' | b'T' => Ok(8),
            b'S' | b'x' | b'A' | b'F' => rest.length(),
            unknown => return Err(format!("a header is of the unknown type 0x{unknown:02x}")),
        };
        let content = len.and_then(|len| rest.take(len)).map_err(wrong_length)?;
        if matches!(kind, b'A' | b'F') {
            if open.len() > MAX_HEADER_DEPTH {
                return Err(format!("its headers nest deeper than {MAX_HEADER_DEPTH}"));
            }
            open.push(OpenContainer {
                rest: Input(content),
                has_names: kind == b'F',
            });
        }
    }
    Ok(())
}

/// Bytes that are not read yet.
#[derive(Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], OutOfBounds> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(OutOfBounds)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, OutOfBounds> {
        Ok(self.take(1)?[0])
    }

    /// A length of four bytes.
    fn length(&mut self) -> Result<usize, OutOfBounds> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    }
}

#[cfg(test)]
mod tests;
