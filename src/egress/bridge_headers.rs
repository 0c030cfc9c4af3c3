//! Header names by which one technology's own things travel through the other (`docs/headers.md`).

/// On AMQP: the Kafka key (void: null).
pub(in crate::egress) const KAFKA_KEY: &str = "kafka.key";
/// On AMQP: true where the Kafka value was null, the body then being empty.
pub(in crate::egress) const KAFKA_NULL_VALUE: &str = "kafka.null_value";
/// On Kafka: before the name of an AMQP property.
pub(in crate::egress) const AMQP: &str = "amqp.";
