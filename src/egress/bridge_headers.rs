//! Names of the headers that carry fields of Kafka through AMQP, and of AMQP through Kafka (`docs/headers.md`).

/// AMQP header with the Kafka key; void for a null key.
pub(in crate::egress) const KAFKA_KEY: &str = "kafka.key";
/// AMQP header that is true if the Kafka value was null. The body is empty then.
pub(in crate::egress) const KAFKA_NULL_VALUE: &str = "kafka.null_value";
/// Prefix of Kafka headers that carry an AMQP property, before the name of the property.
pub(in crate::egress) const AMQP_PREFIX: &str = "amqp.";
