//! From the mapping's record to librdkafka's headers.

use rdkafka::message::{Header, OwnedHeaders};

use super::mapping::KafkaRecord;

/// The headers of a record, in order. `Err` names what librdkafka cannot carry.
pub(super) fn headers(record: &KafkaRecord<'_>) -> Result<Option<OwnedHeaders>, String> {
    if record.headers.is_empty() {
        return Ok(None);
    }
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (name, value) in &record.headers {
        // The client library ends names at a NUL when it sends them.
        if name.contains('\0') {
            return Err("a header's name holds a NUL byte".to_owned());
        }
        headers = headers.insert(Header { key: name, value: value.as_deref() });
    }
    Ok(Some(headers))
}
