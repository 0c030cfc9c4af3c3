//! Converts the headers of a mapped record to those of librdkafka.

use rdkafka::message::{Header, OwnedHeaders};

use super::mapping::KafkaRecord;

/// The headers of a record, in order. `Err` is a sentence on a header that librdkafka cannot carry.
pub(super) fn headers(record: &KafkaRecord<'_>) -> Result<Option<OwnedHeaders>, String> {
    if record.headers.is_empty() {
        return Ok(None);
    }
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (name, value) in &record.headers {
        // librdkafka ends a name at a NUL when it sends it.
        if name.contains('\0') {
            return Err("a header's name holds a NUL byte".to_owned());
        }
        headers = headers.insert(Header {
            key: name,
            value: value.as_deref(),
        });
    }
    Ok(Some(headers))
}
