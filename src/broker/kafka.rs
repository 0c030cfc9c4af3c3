//! Kafka connections: configuration and the properties that Postdate owns.

use std::collections::BTreeMap;

use crate::domain::Secret;

/// A named Kafka connection, checked.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its name.
    pub name: String,
    /// Bootstrap servers.
    pub brokers: String,
    /// librdkafka properties that the operator set; none of those that Postdate owns.
    pub properties: BTreeMap<String, Secret>,
}
